"""Second moments by their pivot rows: the same whole numbers again, or the whole triangle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from circle import CircleClassifier
from circle.errors import CircleError
from circle.statistics import Statistics, low_rank
from circle.statistics.low_rank import PivotRows, largest_rank, packed, pivot_rows, rebuilt_triangle, unpacked


def triangle_of(samples: Tensor) -> Tensor:
    """The upper triangle of sum z z^T."""
    values = samples.to(torch.float64)
    rows, columns = torch.triu_indices(values.shape[1], values.shape[1])
    return (values.T @ values)[rows, columns]


def drawn(count: int, size: int, largest: int = 32767, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-largest, largest + 1, (count, size), generator=generator)


def comes_back(samples: Tensor, rank: int) -> None:
    triangle, size = triangle_of(samples), samples.shape[1]
    found = pivot_rows(triangle, size, len(samples))
    assert found is not None and len(found.pivots) == rank
    assert torch.equal(rebuilt_triangle(found), triangle)


@given(st.integers(0, 6), st.integers(24, 90), st.sampled_from([1, 127, 32767]), st.integers(0, 2**31))
def test_whole_numbers_come_back(count: int, size: int, largest: int, seed: int) -> None:
    samples = drawn(min(count, largest_rank(size)), size, largest, seed)
    comes_back(samples, int(torch.linalg.matrix_rank(samples.to(torch.float64))))


@pytest.mark.parametrize("size", [255, 256, 257, 600])
def test_windows_and_strips_of_all_lengths(size: int) -> None:
    for count in (1, low_rank.WINDOW - 1, low_rank.WINDOW, low_rank.WINDOW + 1):
        if count <= largest_rank(size):
            comes_back(drawn(count, size), count)


def test_fewer_dimensions_than_samples() -> None:
    """Constant features, features that are multiples of others, and samples that came twice."""
    samples = drawn(9, 100)
    samples[:, :5], samples[:, 5:8], samples[:, 10] = 0, 7, 3 * samples[:, 9]
    samples[3], samples[4], samples[5] = samples[2], -samples[2], samples[0] + samples[1]
    comes_back(samples, 6)
    comes_back(torch.zeros(4, 40), 0)


def test_sums_up_to_the_limit_of_float64() -> None:
    """As many samples as 2^53 has room for, of which all but a few are alike: three primes are needed."""
    few = drawn(3, 60)
    triangle = triangle_of(few) + 8_000_000 * triangle_of(torch.full((1, 60), 32767))
    assert 2**52 < float(triangle.abs().max()) < 2**53
    found = pivot_rows(triangle, 60, 4)
    assert found is not None and torch.equal(rebuilt_triangle(found), triangle)


def test_a_prime_that_divides_a_pivot_is_passed_over() -> None:
    prime = low_rank._primes()[0]
    samples = torch.zeros(2, 40, dtype=torch.float64)
    samples[0, 0], samples[0, 1], samples[1, 5] = prime, 1, 3
    found = PivotRows(torch.tensor([0, 5]), torch.stack([samples[0] * prime, samples[1] * 3]))
    assert torch.equal(rebuilt_triangle(found), triangle_of(samples))
    # Whoever writes finds pivots with that prime: it hides the largest, so the triangle is kept as it is.
    assert pivot_rows(triangle_of(samples), 40, 2) is None


def test_what_pivots_do_not_decide_is_kept_whole() -> None:
    samples = drawn(5, 100)
    triangle = triangle_of(samples)
    assert pivot_rows(triangle, 100, 26) is None, "more samples than rows would save"
    assert pivot_rows(triangle, 100, 4) is None, "a rank above the one that was known"
    for position in (0, 1, -1, 2500):
        changed = triangle.clone()
        changed[position] += 1.0
        assert pivot_rows(changed, 100, 5) is None


def test_classes_side_by_side() -> None:
    size, more = 64, 3
    counts = [1, 40, 2, 0]
    rows = [triangle_of(drawn(count, size, seed=count)) for count in counts]
    values = torch.stack(
        [torch.cat([row, torch.full((more,), float(count))]) for row, count in zip(rows, counts, strict=True)]
    )
    found = packed(values, size, counts)
    assert found[".ranks"].tolist() == [1, low_rank.KEPT_WHOLE, 2, 0]
    assert [len(found[suffix]) for suffix in ("", ".pivots", ".rows", ".rest")] == [1, 3, 3, 3]
    assert torch.equal(unpacked(found, size, (4, values.shape[1])), values)
    assert set(packed(values[1:2], size, [40])) == {""}, "as files always were"


def change(**changed: Any) -> dict[str, Tensor]:
    """What two samples of 64 values are packed as, with changes."""
    found = packed(triangle_of(drawn(2, 64))[None], 64, [2])
    return {**found, **{f".{name}": values for name, values in changed.items()}}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (change(pivots=torch.tensor([1, 1])), "pivots that are none"),
        (change(pivots=torch.tensor([1, 64])), "pivots that are none"),
        (change(pivots=torch.tensor([-1, 3])), "pivots that are none"),
        (change(pivots=torch.tensor([1])), "other shapes"),
        (change(pivots=torch.zeros(2, 10**4)), "other shapes"),
        (change(ranks=torch.tensor([3])), "ranks and rows do not fit"),
        (change(ranks=torch.tensor([-1])), "ranks and rows do not fit"),
        (change(ranks=torch.tensor([-2])), "ranks that are none"),
        (change(ranks=torch.tensor([10**9])), "ranks that are none"),
        (change(ranks=torch.tensor([1, 1])), "other shapes"),
        (change(rows=torch.zeros(2, 65)), "other shapes"),
        (change(rows=torch.zeros(40, 64), pivots=torch.arange(40)), "other numbers"),
        (change(rows=torch.zeros(2, 64)), "decide nothing"),
        (change(rows=torch.full((2, 64), 7.0)), "decide nothing"),
        (change(rows=torch.full((2, 64), float("nan"))), "not whole"),
        (change(rows=torch.full((2, 64), 0.5)), "not whole"),
        (change(rows=torch.full((2, 64), -1.0)), "no sum of products"),
        (change(rows=torch.full((2, 64), 2.0**60)), "no sum of products"),
        (change(rows=torch.arange(128).reshape(2, 64)), "no sum of products"),
        (change(rest=torch.zeros(1, 4)), "other shapes"),
        (change(rest=torch.zeros(0, 0)), "other numbers"),
    ],
)
def test_damage_is_noticed(tensors: dict[str, Tensor], words: str) -> None:
    with pytest.raises(CircleError, match=f"second moments by pivot rows: .*{words}.*the file is damaged"):
        unpacked(tensors, 64, (1, 64 * 65 // 2))


PARTS = ("class_triangles", "unit_sums", "subspace_64")


def learned(labels: list[str], samples: Tensor) -> Statistics:
    statistics = Statistics(samples.shape[1], parts=PARTS)
    statistics.update(samples.to(torch.int16), labels)
    return statistics


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(values, other[name]) for name, values in one.items())


def restored(statistics: Statistics, tensors: dict[str, Tensor]) -> Statistics:
    parts = Statistics(statistics.size, parts=PARTS).unpacked_parts(tensors, len(statistics.classes))
    return Statistics.from_parts(
        statistics.classes, statistics.counts, **parts, orphan_degrees=statistics.orphan_degrees
    )


def test_statistics_of_few_samples_come_back_from_little() -> None:
    samples, labels = drawn(9, 200), list("aabbbcccc")
    statistics = learned(labels, samples)
    tensors = statistics.packed_parts()
    assert (
        sum(values.numel() for values in tensors.values())
        < sum(each.numel() for each in statistics.parts().values()) / 5
    )
    assert {name for name, values in tensors.items() if name.endswith(".ranks")} == {
        "triangle.ranks",
        "class_triangles.ranks",
        "subspace_64.ranks",
    }
    assert restored(statistics, tensors) == statistics
    shapes = {name: tuple(values.shape) for name, values in tensors.items()}
    assert statistics.packed_shapes(shapes, 3) == shapes
    assert restored(statistics, statistics.parts()) == statistics, "the form that files had before"


def test_the_form_is_a_function_of_the_sums() -> None:
    samples, labels = drawn(12, 100), list("abcabcabcabc")
    whole = learned(labels, samples).packed_parts()
    parts = [learned(labels[first::3], samples[first::3]) for first in (2, 0, 1)]
    assert same_bits((parts[0] + parts[1] + parts[2]).packed_parts(), whole)
    more = learned([*labels, "d"], torch.cat([samples, drawn(1, 100, seed=1)]))
    without = more - learned(["d"], drawn(1, 100, seed=1))
    assert same_bits(without.packed_parts(), whole)
    again = restored(without, without.packed_parts())
    again.update(drawn(1, 100, seed=1).to(torch.int16), ["d"])
    assert again == more


def test_after_forgetting_without_the_samples() -> None:
    """What is left of a class is rounded, so its matrix is kept whole; the other classes are not."""
    statistics = learned(list("aaabbb"), drawn(6, 100))
    statistics.remove("b")
    tensors = statistics.packed_parts()
    assert "triangle.ranks" not in tensors and "class_triangles.ranks" in tensors
    assert restored(statistics, tensors) == statistics


def test_model_files_of_both_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Any) -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    whole, parts = tiny().fit(images, list("abababab")), [tiny().fit(images[:4], list("abab")) for _ in range(2)]
    whole.save(tmp_path / "new.circle")
    parts[1].fit(images[4:], list("abab"))
    (parts[1] + parts[0]).save(tmp_path / "merged.circle")
    assert (tmp_path / "merged.circle").read_bytes() == (tmp_path / "new.circle").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(low_rank, "pivot_rows", lambda *given: None)
        patched.setattr("circle.runtime.container.FORMAT_VERSION", 3)
        whole.save(tmp_path / "old.circle")
    sizes = [(tmp_path / f"{name}.circle").stat().st_size for name in ("new", "old")]
    assert sizes[0] < sizes[1] / 2
    for name in ("new", "old"):
        loaded = CircleClassifier.load(tmp_path / f"{name}.circle")
        assert loaded.statistics_ == whole.statistics_
        loaded.save(tmp_path / "again.circle")
        assert (tmp_path / "again.circle").read_bytes() == (tmp_path / "new.circle").read_bytes()


def test_floating_point_is_left_alone() -> None:
    statistics = Statistics(100, exact=False)
    statistics.update(torch.randn(2, 100), ["a", "b"])
    assert statistics.packed_parts().keys() == statistics.parts().keys()
