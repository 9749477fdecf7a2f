"""Parts of the statistics: rows come, move and go without losing anything, and a new part is one declaration."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from circle import CircleClassifier, registry
from circle.errors import CircleError
from circle.heads import NCM, HeadConfig
from circle.registry import register
from circle.serve.limits import Limits
from circle.serve.model_upload import read_upload
from circle.statistics import ClassSums, Statistics, declare, held, sum_across
from circle.statistics.parts import DECLARED, UNIT_SCALE, fixed_point_units, unit_vectors

BOTH = ("class_triangles", "unit_sums")


def filled(*labels: str, parts: tuple[str, ...] = BOTH) -> Statistics:
    """One sample of each label, with as many ones as its place."""
    result = Statistics(3, parts=parts)
    for place, label in enumerate(labels, start=1):
        result.update(torch.full((1, 3), place, dtype=torch.int8), [label])
    return result


def test_many_classes_keep_their_rows_while_room_grows() -> None:
    labels = [f"class {number:03}" for number in range(70)]
    result = filled(*labels).copy()  # without a buffer
    assert result.classes == labels
    assert result.sums[:, 0].tolist() == list(range(1, 71))
    assert [float(result.class_second_moment(label)[0, 0]) for label in labels] == [n * n for n in range(1, 71)]
    assert result.nbytes == 8 * 70 * (1 + 3 + 3) + 70 * 8 * 9 + 8 * 9


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_a_row_that_leaves_takes_only_itself(gone: str) -> None:
    result = filled("a", "b", "c")
    result.remove(gone)
    kept = [label for label in "abc" if label != gone]
    assert result.classes == kept
    assert result.counts.tolist() == [1, 1]
    for row, label in enumerate(kept):
        place = "abc".index(label) + 1
        assert result.sums[row].tolist() == [place] * 3
        assert float(result.class_second_moment(label)[0, 0]) == place**2
    result.update(torch.zeros(1, 3, dtype=torch.int8), [gone])
    returned = result.classes.index(gone)
    assert result.sums[returned].tolist() == [0.0] * 3, "a class that returns starts from nothing"
    assert result.unit_sums()[returned].tolist() == [0.0] * 3
    assert not result.class_second_moment(gone).any()


def test_order_of_arrival_does_not_matter_to_equality() -> None:
    first, second = filled("a", "b"), Statistics(3, parts=BOTH)
    for place, label in ((2, "b"), (1, "a")):
        second.update(torch.full((1, 3), place, dtype=torch.int8), [label])
    assert first == second
    parts = first.parts()
    parts["class_triangles"][0, 0] += 1
    assert Statistics.from_parts(first.classes, first.counts, exact=True, **parts) != first
    assert Statistics(3, parts=BOTH) != Statistics(3, parts=BOTH[:1])


def test_what_cannot_be_subtracted_is_refused() -> None:
    with pytest.raises(CircleError, match="'b' was never learned"):
        filled("a") - filled("a", "b")
    with pytest.raises(CircleError, match="'a': more samples to subtract"):
        filled("a") - (filled("a") + filled("a"))
    other = filled("b", "a")
    other.update(torch.zeros(1, 3, dtype=torch.int8), ["b"])
    alone = Statistics(3, parts=BOTH)
    alone.update(torch.full((1, 3), 2, dtype=torch.int8), ["a"])
    with pytest.raises(CircleError, match="'a': these are not the samples"):
        filled("a") - alone


def test_memory_of_classes_that_are_new() -> None:
    assert filled("a", parts=()).bytes_for("abc") == 0
    assert filled("a").bytes_for("abc") == 2 * 8 * (9 + 3)


def test_unknown_parts_are_refused() -> None:
    with pytest.raises(CircleError, match="unknown part of the statistics 'unit_sum': did you mean 'unit_sums'"):
        Statistics(3, parts=("unit_sum",))


def test_copies_are_of_their_own() -> None:
    statistics = filled("a", "b")
    for other in (copy.copy(statistics), copy.deepcopy(statistics)):
        assert other == statistics
        other.update(torch.ones(1, 3, dtype=torch.int8), ["a"])
        assert other != statistics
    assert statistics == filled("a", "b")


def test_unit_vectors_have_length_one_and_are_rounded() -> None:
    values = torch.randint(-127, 128, (50, 700), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    units = unit_vectors(values)
    assert np.allclose(np.linalg.norm(units.numpy(), axis=1), 1.0, atol=1e-12)
    fixed = fixed_point_units(values)
    assert fixed.dtype == torch.int64
    assert float((fixed.to(torch.float64) / UNIT_SCALE - units).abs().max()) <= 0.5 / UNIT_SCALE


def test_every_batch_gives_the_same_unit_vectors() -> None:
    """|z|^2 is a sum of integers, so it has no rounding that the order could change."""
    values = torch.randint(-127, 128, (33, 3312), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    together = fixed_point_units(values)
    assert torch.equal(torch.cat([fixed_point_units(row[None]) for row in values]), together)
    backwards = fixed_point_units(values.flip(1)).flip(1)
    assert torch.equal(backwards, together)


# -- a new part is one declaration -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SquaresConfig(HeadConfig):
    name: ClassVar[str] = "ncm_with_squares"
    parts: ClassVar[tuple[str, ...]] = ("square_sums",)


@pytest.fixture
def squares() -> Iterator[None]:
    """Declare the sums of squares of each class, and a head that asks for them."""

    @declare
    class SquareSums(ClassSums):
        name = "square_sums"
        title = "sums of squares"
        dtype = torch.int64

        @staticmethod
        def values(features: torch.Tensor) -> torch.Tensor:
            return features.to(torch.int64).square()

    register("head", SquaresConfig)(NCM)
    yield
    del DECLARED[SquareSums.name], registry._ENTRIES["head"][SquaresConfig.name]


def test_a_new_part_goes_everywhere(squares: None, tiny: Any, stream: Any, tmp_path: Path) -> None:
    images, labels = (values[:60] for values in stream)

    def learned(part: slice) -> CircleClassifier:
        return tiny(head=SquaresConfig()).partial_fit(images[part], labels[part])

    whole, first, second = learned(slice(60)), learned(slice(25)), learned(slice(25, 60))
    statistics = whole.statistics_[0]
    squares_of = whole.features(images)[0].to(torch.int64).square()
    expected = torch.stack([squares_of[torch.from_numpy(labels == label)].sum(0) for label in statistics.classes])
    assert torch.equal(statistics.part("square_sums"), expected)
    whole.save(tmp_path / "whole.circle")
    assert CircleClassifier.load(tmp_path / "whole.circle").statistics_ == whole.statistics_, "saves and loads"
    assert (first + second).statistics_ == whole.statistics_, "merges"
    assert (whole - second).statistics_ == first.statistics_, "subtracts"
    assert read_upload(tmp_path / "whole.circle", whole, Limits()).statistics_ == whole.statistics_, "uploads"
    columns = torch.arange(0, statistics.size, 2)
    assert torch.equal(statistics.select(columns).part("square_sums"), expected[:, columns])
    gone, *_, renamed = statistics.classes
    whole.forget(gone)
    assert torch.equal(whole.statistics_[0].part("square_sums"), expected[1:]), "forgets"
    whole.rename(renamed, renamed + 100)
    assert torch.equal(whole.statistics_[0].part("square_sums"), expected[1:]), "renames"


def test_a_new_part_is_summed_across_processes(squares: None) -> None:
    values = torch.randint(-127, 128, (40, 5), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    labels = [f"class {index % (4 if index < 20 else 7)}" for index in range(40)]
    whole = Statistics(5, parts=("square_sums", *BOTH))
    whole.update(values, labels)
    ranks, vectors, lists, results = 2, {}, {}, {}
    barrier = threading.Barrier(ranks, timeout=60)

    def work(rank: int) -> None:
        mine = Statistics(5, parts=("square_sums", *BOTH))
        mine.update(values[20 * rank : 20 * rank + 20], labels[20 * rank : 20 * rank + 20])

        def gather(classes: list) -> list[list]:
            lists[rank] = classes
            barrier.wait()
            return [lists[each] for each in range(ranks)]

        def all_reduce(vector: torch.Tensor) -> None:
            vectors[rank] = vector.clone()
            barrier.wait()
            vector.copy_(sum(vectors.values()))

        (results[rank],) = sum_across([mine], gather, all_reduce, "cpu")

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[1] == whole


# -- threads ---------------------------------------------------------------------------------------------------


def test_many_may_read_while_one_learns() -> None:
    values = torch.randint(-127, 128, (200, 20), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    labels = [index % 5 for index in range(200)]
    expected = Statistics(20, parts=BOTH)
    expected.update(values, labels)
    for _ in range(50):
        found, errors, done = Statistics(20, parts=BOTH), [], threading.Event()

        def read(found: Statistics = found, errors: list = errors, done: threading.Event = done) -> None:
            try:
                while not done.is_set():
                    assert found.samples % 20 == 0, "a batch is seen whole or not at all"
                    with held(found):
                        total = sum(float(found.class_second_moment(label).trace()) for label in found.classes)
                        assert total == float(found.squares().sum()), "all readings are of one moment"
                    assert len(found.copy().parts()) == 4
            except Exception as error:
                errors.append(error)

        readers = [threading.Thread(target=read) for _ in range(8)]
        for reader in readers:
            reader.start()
        for start in range(0, 200, 20):
            found.update(values[start : start + 20], labels[start : start + 20])
        done.set()
        for reader in readers:
            reader.join()
        assert not errors
        assert found == expected
