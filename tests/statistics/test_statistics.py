"""Algebra of the statistics; every comparison is ``==``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circle.errors import CircleError
from circle.statistics import SAMPLES_PER_PRODUCT, Statistics
from circle.statistics.second_moment import STRIP_ROWS


def features(count: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-127, 128, (count, size), generator=torch.Generator().manual_seed(seed)).to(torch.int8)


def learned(values: torch.Tensor, labels: list, batch: int | None = None) -> Statistics:
    statistics = Statistics(values.shape[1])
    step = batch or max(1, len(values))
    for start in range(0, len(values), step):
        statistics.update(values[start : start + step], labels[start : start + step])
    return statistics


def test_sums_are_those_of_integer_arithmetic() -> None:
    size = STRIP_ROWS + 70  # more than one strip, the last one ragged
    values, labels = (
        features(SAMPLES_PER_PRODUCT + 300, size),
        [index % 5 for index in range(SAMPLES_PER_PRODUCT + 300)],
    )
    statistics = learned(values, labels)
    whole = values.numpy().astype(np.int64)
    assert np.array_equal(statistics.second_moment().numpy(), (whole.T @ whole).astype(np.float64))
    for row, label in enumerate(statistics.classes):
        mine = whole[np.array(labels) == label]
        assert np.array_equal(statistics.sums[row].numpy(), mine.sum(0).astype(np.float64))
        assert int(statistics.counts[row]) == len(mine)


def test_sixteen_bits_are_exact_too() -> None:
    size = STRIP_ROWS + 70
    random = torch.Generator().manual_seed(0)
    values = torch.randint(-32767, 32768, (SAMPLES_PER_PRODUCT + 300, size), generator=random).to(torch.int16)
    values[:, :2] = 32767  # the largest sums there are
    labels = [index % 5 for index in range(len(values))]
    statistics = learned(values, labels)
    whole = values.numpy().astype(np.int64)
    assert np.array_equal(statistics.second_moment().numpy().astype(np.int64), whole.T @ whole)
    assert np.array_equal(statistics.sums.numpy().astype(np.int64)[2], whole[2::5].sum(0))
    order = torch.randperm(len(values), generator=random)
    assert learned(values[order], [labels[index] for index in order], batch=7) == statistics


def test_eight_and_sixteen_bits_may_follow_each_other() -> None:
    few, labels = features(10, 6), list("ababababab")
    statistics = learned(few, labels)
    statistics.update(few.to(torch.int16) * 100, labels)
    whole = few.numpy().astype(np.int64)
    assert np.array_equal(statistics.second_moment().numpy(), 10001.0 * (whole.T @ whole))


def test_extreme_values_stay_exact() -> None:
    """A full tile of the largest products is the worst case of the float32 argument."""
    values = torch.full((SAMPLES_PER_PRODUCT, 3), 127, dtype=torch.int8)
    values[::2, 1] = -127
    statistics = learned(torch.cat([values] * 3), ["a"] * 3 * SAMPLES_PER_PRODUCT)
    assert statistics.second_moment()[0].tolist() == [
        3 * SAMPLES_PER_PRODUCT * 127**2,
        0,
        3 * SAMPLES_PER_PRODUCT * 127**2,
    ]


@pytest.mark.parametrize("batch", [1, 7, 1024])
@pytest.mark.parametrize("threads", [1, 2])
def test_order_batch_size_and_threads_do_not_matter(batch: int, threads: int) -> None:
    values, labels = features(1500, 40), [index % 7 for index in range(1500)]
    reference = learned(values, labels)
    torch.set_num_threads(threads)
    order = torch.randperm(1500, generator=torch.Generator().manual_seed(batch))
    assert learned(values[order], [labels[i] for i in order], batch) == reference


@settings(max_examples=50)
@given(
    labels=st.lists(st.sampled_from("abcd"), min_size=2, max_size=40),
    cut=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_algebra(labels: list[str], cut: float, seed: int) -> None:
    values = features(len(labels), 6, seed)
    middle = round(cut * len(labels))
    first, second = learned(values[:middle], labels[:middle]), learned(values[middle:], labels[middle:])
    whole = learned(values, labels)
    nothing = Statistics(6)
    assert first + second == whole
    assert second + first == whole
    assert whole - second == first
    assert whole - first == second
    assert whole + nothing == whole
    assert whole - whole == nothing
    assert (first + second) + whole == first + (second + whole)


@given(labels=st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=30), seed=st.integers(0, 1000))
def test_parts_make_the_whole_again(labels: list[int], seed: int) -> None:
    whole = learned(features(len(labels), 5, seed), labels)
    again = Statistics.from_parts(whole.classes, whole.counts, **whole.parts())
    assert again == whole
    again.update(features(1, 5, seed + 1), [9])
    assert again != whole


def test_parts_of_several_strips() -> None:
    whole = learned(features(30, STRIP_ROWS * 2 + 9), ["x"] * 30)
    again = Statistics.from_parts(whole.classes, whole.counts, **whole.parts())
    assert again == whole
    assert torch.equal(again.second_moment(), whole.second_moment())


def test_the_buffer_does_not_show() -> None:
    """Samples wait for a full tile before they are multiplied; no reading may miss them."""
    values = features(3, 4)
    statistics = learned(values[:2], ["a", "b"])
    statistics.update(values[2:], ["b"])
    assert statistics.samples == 3
    assert statistics.counts.tolist() == [1, 2]
    copied = statistics.copy()
    copied.update(values[:1], ["a"])
    assert statistics.samples == 3


def test_shorter_products_elsewhere_do_not_come_here() -> None:
    values = features(SAMPLES_PER_PRODUCT, 30)
    torch.set_float32_matmul_precision("medium")
    try:
        found = learned(values, ["a"] * SAMPLES_PER_PRODUCT).second_moment()
        assert torch.get_float32_matmul_precision() == "medium", "the setting is the user's"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(found, values.double().T @ values.double())


def test_a_removed_class_leaves_its_scatter() -> None:
    values, labels = features(90, 8), ["a", "b", "c"] * 30
    statistics = learned(values, labels)
    statistics.remove("b")
    kept = {label: values[index::3].double() for index, label in enumerate("abc")}
    scatter = sum((part - part.mean(0)).T @ (part - part.mean(0)) for part in kept.values())
    pooled = statistics.second_moment() - sum(kept[c].sum(0).outer(kept[c].sum(0)) / 30 for c in "ac")
    assert statistics.classes == ["a", "c"]
    assert statistics.degrees_of_freedom == 90 - 3
    assert float((pooled - scatter).abs().max()) <= 0.5 + 1e-6
    assert torch.equal(statistics.second_moment(), statistics.second_moment().round())


def test_subtracting_what_was_not_learned_is_refused() -> None:
    statistics = learned(features(4, 3), ["a", "a", "b", "b"])
    before = statistics.copy()
    with pytest.raises(CircleError, match="never learned"):
        statistics - learned(features(1, 3), ["z"])
    with pytest.raises(CircleError, match="more samples"):
        statistics - learned(features(3, 3), ["a"] * 3)
    with pytest.raises(CircleError, match="not the samples"):
        statistics - learned(features(2, 3, seed=9), ["a"] * 2)
    assert statistics == before


def test_rejected_updates_change_nothing() -> None:
    statistics = learned(features(2, 3), ["a", "b"])
    before = statistics.copy()
    for values, labels, words in [
        (features(2, 4), ["a", "b"], "shape"),
        (features(2, 3).float(), ["a", "b"], "float32"),
        (features(2, 3), ["a"], "1 label for 2 images"),
        (features(2, 3), ["a", 1], "mixed types"),
        (features(1, 3), [1], "mixed types"),
    ]:
        with pytest.raises(CircleError, match=words):
            statistics.update(values, labels)
        assert statistics == before


def test_float_statistics_are_close() -> None:
    values = features(50, 6)
    exact, rounded = learned(values, ["a"] * 50), Statistics(6, exact=False)
    rounded.update(values.float(), ["a"] * 50)
    assert torch.allclose(exact.second_moment(), rounded.second_moment())
    with pytest.raises(CircleError, match="do not combine"):
        exact + rounded


# -- what only some heads need ---------------------------------------------------------------------------------


def everything(values: torch.Tensor, labels: list) -> Statistics:
    statistics = Statistics(values.shape[1], parts=("class_triangles", "unit_sums"))
    statistics.update(values, labels)
    return statistics


def test_class_moments_are_those_of_integer_arithmetic() -> None:
    size = STRIP_ROWS + 30
    values, labels = (
        features(SAMPLES_PER_PRODUCT + 100, size),
        [index % 3 for index in range(SAMPLES_PER_PRODUCT + 100)],
    )
    statistics = everything(values, labels)
    for label in range(3):
        mine = values[torch.tensor(labels) == label].numpy().astype(np.int64)
        assert np.array_equal(statistics.class_second_moment(label).numpy(), (mine.T @ mine).astype(np.float64))
    whole = sum((statistics.class_second_moment(label) for label in range(3)), torch.zeros(size, size))
    assert torch.equal(whole, statistics.second_moment())
    assert torch.equal(statistics.squares(), statistics.second_moment().diagonal())


def test_unit_sums_are_fixed_point() -> None:
    values = torch.tensor([[3, 4], [0, 0], [-127, 127], [5, 0]], dtype=torch.int8)
    sums = everything(values, ["a", "a", "b", "b"]).unit_sums()
    assert sums.numpy() == pytest.approx(np.array([[0.6, 0.8], [1 - 0.5**0.5, 0.5**0.5]]), abs=2.0**-36)


@settings(max_examples=40)
@given(
    labels=st.lists(st.sampled_from("abcd"), min_size=2, max_size=30),
    cut=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_algebra_of_everything(labels: list[str], cut: float, seed: int) -> None:
    values = features(len(labels), 5, seed)
    middle = round(cut * len(labels))
    first, second = everything(values[:middle], labels[:middle]), everything(values[middle:], labels[middle:])
    whole = everything(values, labels)
    assert first + second == whole == second + first
    assert whole - second == first
    assert Statistics.from_parts(whole.classes, whole.counts, **whole.parts()) == whole
    assert whole.copy() == whole
    assert whole - whole == Statistics(5, parts=("class_triangles", "unit_sums"))
    gone = whole.copy()
    gone.remove(labels[0])
    assert gone.classes == sorted(set(labels) - {labels[0]})
    for label in gone.classes:
        assert torch.equal(gone.class_second_moment(label), whole.class_second_moment(label))


def test_equality_sees_every_part() -> None:
    """Samples swapped between classes so that counts, sums and M agree: M_c alone tells."""
    one = torch.tensor([[1], [-1], [2], [-2]], dtype=torch.int8)
    assert learned(one, ["a", "a", "b", "b"]) == learned(one[[2, 3, 0, 1]], ["a", "a", "b", "b"])
    assert everything(one, ["a", "a", "b", "b"]) != everything(one[[2, 3, 0, 1]], ["a", "a", "b", "b"])
    plain, kept = learned(one, list("aabb")), everything(one, list("aabb"))
    assert plain != kept
    with pytest.raises(CircleError, match="same parts"):
        plain + kept


@pytest.mark.parametrize("size", [7, STRIP_ROWS * 2 + 40])
def test_a_selection_of_features_is_as_if_learned_alone(size: int) -> None:
    values, labels = features(60, size), [index % 4 for index in range(60)]
    whole = Statistics(size, parts=("class_triangles",))
    whole.update(values, labels)
    columns = torch.randperm(size, generator=torch.Generator().manual_seed(1))[: size // 2 + 1].sort().values
    alone = Statistics(len(columns), parts=("class_triangles",))
    alone.update(values[:, columns], labels)
    assert whole.select(columns) == alone
    assert learned(values, labels).select(columns) == learned(values[:, columns], labels)


@pytest.mark.parametrize("columns", [[], [1, 0], [1, 1], [0, 9], [-1, 2]])
def test_impossible_selections_are_refused(columns: list[int]) -> None:
    with pytest.raises(CircleError, match="ascending numbers below"):
        learned(features(5, 9), list("aabbb")).select(torch.tensor(columns, dtype=torch.int64))


def test_parts_not_kept_are_asked_for_in_vain() -> None:
    plain = learned(features(5, 3), list("aabbb"))
    with pytest.raises(CircleError, match="without second moments of each class"):
        plain.class_second_moment("a")
    with pytest.raises(CircleError, match="without sums of unit vectors"):
        plain.unit_sums()
    with pytest.raises(CircleError, match="cannot be cut"):
        everything(features(5, 3), list("aabbb")).select(torch.tensor([0]))


def test_parts_that_cannot_be_cut_can_stay_behind() -> None:
    values, columns = features(5, 3), torch.tensor([0, 2])
    found = everything(values, list("aabbb")).select(columns, ())
    assert found.kept == ("sums", "triangle")
    assert found == learned(values[:, columns], list("aabbb"))


def test_classes_that_do_not_fit_are_refused_before_anything_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = everything(features(4, 300), list("aabb"))
    before, others = statistics.copy(), everything(features(6, 300), list("cdefgh"))
    monkeypatch.setattr("circle.machine.available_memory", lambda: 3 * 8 * 300 * 300 // 2)
    statistics.update(features(2, 300), ["a", "b"])  # known classes need nothing more
    assert statistics.bytes_for("abcde") == 3 * statistics.bytes_for("c") > 0
    with pytest.raises(CircleError, match="second moments of .* classes with 300 features: needs .* available; use"):
        statistics.update(features(6, 300), list("cdefgh"))
    statistics.update(features(2, 300), ["a", "b"])
    assert statistics.classes == before.classes
    with pytest.raises(CircleError, match="needs .* available"):
        before + others
    learned(features(6, 300), list("cdefgh"))  # a head without class moments has no such limit


def test_a_renamed_class_keeps_every_number() -> None:
    features = torch.randint(-127, 128, (12, 5), dtype=torch.int8)
    labels = ["cat", "dog", "eel"] * 4
    found, expected = (Statistics(5, parts=("class_triangles", "unit_sums")) for _ in range(2))
    found.update(features, labels)
    found.rename("cat", "zebra")
    expected.update(features, ["zebra" if label == "cat" else label for label in labels])
    assert found.classes == ["dog", "eel", "zebra"]
    assert found == expected
    found.update(features[:1], ["zebra"])
    expected.update(features[:1], ["zebra"])
    assert found == expected, "and goes on learning"


def test_impossible_renames_change_nothing() -> None:
    statistics = Statistics(2)
    statistics.update(torch.ones(2, 2, dtype=torch.int8), ["cat", "dog"])
    for label, new, message in (
        ("cow", "calf", "'cow' is not in the model"),
        ("cat", "dog", "'dog' is in the model already"),
        ("cat", 7, "mixed types"),
    ):
        with pytest.raises(CircleError, match=message):
            statistics.rename(label, new)
    assert statistics.classes == ["cat", "dog"]


def test_sums_that_might_not_be_exact_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limit at ten samples of the largest squares: small features go on, large ones are refused, whole."""
    from circle.statistics import statistics as module

    monkeypatch.setattr(module, "EXACT_LIMIT", 10 * module.LARGEST_SQUARE)
    small, large = torch.ones(8, 3, dtype=torch.int16), torch.full((8, 3), 32767, dtype=torch.int16)
    learned = Statistics(3)
    for _ in range(4):  # each batch might be of the largest values, but those learned were not
        learned.update(small, ["a"] * 8)
    learned.update(large, ["a"] * 8)
    before = learned.copy()
    with pytest.raises(CircleError, match="no longer be exact"):
        learned.update(small, ["a"] * 8)
    with pytest.raises(CircleError, match="no longer be exact"):
        learned += before
    assert learned == before
    learned.update(small[:1], ["a"])  # one more fits
