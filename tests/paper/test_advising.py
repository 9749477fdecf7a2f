"""Advice from images: what is measured is what CircleClassifier would do, and what does not fit is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from circle import BiRC2DConfig
from circle.data.datasets import Dataset
from circle.data.decode import ImageConfig
from circle.data.images import ArrayImages, Images, Sample
from circle.errors import CircleError, UnreadableImageError
from circle.heads import HeadConfig, SLDAConfig
from circle.learner import CircleClassifier
from circle.paper import advise as advising
from circle.paper.advise import (
    AdviceRequest,
    Findings,
    check_memory,
    memory_needed,
    recommend_allocation,
    split_images,
    squared_error,
)
from circle.registry import entry, list_heads
from circle.statistics.parts import parts_named

SHAPE = ImageConfig(height=16, width=16, channels=3)


class Untouchable(Images):
    """A test part that nobody may look at."""

    def __init__(self, labels: np.ndarray) -> None:
        self.labels = labels

    def _read(self, indices: np.ndarray) -> np.ndarray:
        raise AssertionError("the test part was read")

    def _fingerprint(self) -> str:
        raise AssertionError("the test part was read")


@pytest.fixture
def dataset(make_stream: Any) -> Dataset:
    """Noisy enough for the members to err and to differ."""
    images, labels = make_stream(160)
    random = np.random.default_rng(5)
    noisy = np.clip(0.15 * images + 0.85 * random.integers(0, 256, images.shape), 0, 255).astype(np.uint8)
    train = ArrayImages(noisy, labels, SHAPE, "stream")
    return Dataset("stream", ["a", "b", "c", "d"], SHAPE, train, Untouchable(labels))


@pytest.fixture
def classifier() -> CircleClassifier:
    extractor = BiRC2DConfig(stem_channels=(4,), patch_sizes=(4,), width=4, grid=1, moments=("mean",))
    return CircleClassifier(extractor, SLDAConfig(ridge=1.0, temperature=1.5), seed=3)


@pytest.fixture(autouse=True)
def one_thread(usual_threads: None) -> None:
    """Matrices this small are not worth waiting for a second core."""
    torch.set_num_threads(1)


def split(dataset: Dataset, request: AdviceRequest) -> tuple[np.ndarray, np.ndarray]:
    """Positions that are learned and that are held back."""
    return split_images(dataset.train, request, dataset.name)


def studied(classifier: CircleClassifier, dataset: Dataset, request: AdviceRequest, *report: Any) -> Findings:
    return recommend_allocation(classifier, dataset.train, request, *report, image=dataset.image, name=dataset.name)


@pytest.mark.parametrize("quantise", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_measured_ensemble_is_the_classifier(
    dataset: Dataset, classifier: CircleClassifier, size: int, quantise: bool
) -> None:
    """With one partition: error and accuracy of k groups of m are those of CircleClassifier(groups=k, members=m)."""
    request = AdviceRequest(4, 4, partitions=1)
    classifier.set_params(quantise=quantise)
    findings = studied(classifier, dataset, request)
    row = next(each for each in findings.advice.allocations if each.members == size)
    learned, held = split(dataset, request)
    assert (findings.learned, findings.validated, findings.classes) == (len(learned), len(held), 4)
    model = CircleClassifier(**{**classifier.get_params(deep=False), "groups": 4 // size, "members": size})
    model.fit(dataset.train[learned], dataset.train.labels[learned])
    probabilities = model.predict_proba(dataset.train[held])
    targets = np.eye(4)[dataset.train.labels[held]]
    assert row.ensemble is not None
    assert row.ensemble.error == pytest.approx(squared_error(probabilities, targets).mean(), rel=1e-6)
    assert row.ensemble.accuracy == (probabilities.argmax(1) == dataset.train.labels[held]).mean()
    assert row.predicted == pytest.approx(row.ensemble.error, rel=1e-9), "by algebra, with the same groups"
    assert findings.member_size == model.groups_[0].size // size


def test_more_members_than_the_budget(dataset: Dataset, classifier: CircleClassifier) -> None:
    """The decomposition and the ensembles now differ in the members they average over, and still agree."""
    advice = studied(classifier, dataset, AdviceRequest(4, 12, partitions=4)).advice
    assert [each.origin for each in advice.allocations] == ["measured"] * 3
    assert [each.members for each in advice.measurements] == [1, 2, 3, 4]
    for each in advice.allocations:
        assert each.ensemble is not None
        assert each.ensemble.ensembles == 12
        assert each.ensemble.error == pytest.approx(each.predicted, rel=0.02)
        assert 0 < each.variance < 1
        assert 0 < each.bias < 2


def test_the_seeds_decide_everything(dataset: Dataset, classifier: CircleClassifier) -> None:
    first = studied(classifier, dataset, AdviceRequest(4, 4))
    assert studied(classifier, dataset, AdviceRequest(4, 4)) == first
    assert studied(classifier, dataset, AdviceRequest(4, 4, split_seed=1)) != first
    other = CircleClassifier(**{**classifier.get_params(deep=False), "seed": 4})
    assert studied(other, dataset, AdviceRequest(4, 4)) != first
    assert not hasattr(classifier, "groups_"), "the classifier given is left alone"


def test_fewer_members_than_the_budget(dataset: Dataset, classifier: CircleClassifier) -> None:
    seen = []
    request = AdviceRequest(16, 4, limit=60)
    advice = studied(classifier, dataset, request, lambda *told: seen.append(told)).advice
    origins = [each.origin for each in advice.allocations]
    assert origins == ["measured", "measured", "sum measured", "extrapolated", "extrapolated"]
    assert all(each.ensemble is None for each in advice.allocations)
    assert {what for what, _, _ in seen} == {"learning", "judging"}
    for what in ("learning", "judging"):
        done = [(done, total) for each, done, total in seen if each == what]
        assert done == sorted(done)
        assert done[-1][0] == done[-1][1], "the bar arrives at its end"


def test_sizes() -> None:
    assert AdviceRequest(16, 16).sizes() == [1, 2, 3, 4, 6, 8, 16]
    assert AdviceRequest(16, 6).sizes() == [1, 2, 3, 4]
    assert AdviceRequest(10, 40).sizes() == [1, 2, 3, 4, 5, 6, 8, 10]
    assert AdviceRequest(7, 7).sizes() == [1, 2, 3, 7]
    assert AdviceRequest(2, 4).sizes() == [1, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"budget": 1}, "budget = 1: expected 2"),
        ({"budget": 10**9}, "budget = 1000000000: expected 2 to 100,000"),
        ({"available": 3}, "members measured = 3: expected 4"),
        ({"validation": 0.0}, "validation = 0.0: expected a share above 0"),
        ({"validation": 1.0}, "validation = 1.0"),
        ({"validation": float("nan")}, "validation = nan"),
        ({"limit": 0}, "limit = 0: expected at least 1"),
        ({"split_seed": -1}, "seed of the split = -1"),
        ({"partitions": 0}, "partitions = 0"),
    ],
)
def test_requests_that_make_no_sense(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CircleError, match=message):
        AdviceRequest(**{"budget": 8, "available": 8, **values})


def test_memory_is_asked_for_before_it_is_taken(
    dataset: Dataset, classifier: CircleClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, request = SLDAConfig(), AdviceRequest(16, 16)
    needed = memory_needed(1000, 100, 5000, head, request)
    assert 16_000**2 * 8 < needed < 16_000**2 * 8 * 6
    for there, hint in [(needed, None), (needed - 1, "--members-measured 15 would fit"), (10**6, "; use a smaller")]:
        for module in ("circle.machine", "circle.paper.advise"):
            monkeypatch.setattr(f"{module}.available_memory", lambda there=there: there)
        if hint is None:
            check_memory(1000, 100, 5000, head, request)
            continue
        with pytest.raises(CircleError, match="16 members of 1,000 features, a matrix of 16,000 x 16,000") as error:
            check_memory(1000, 100, 5000, head, request)
        assert hint in str(error.value)
        assert "--extractor.projection linear" in str(error.value)
        assert f"needs about {needed / 1e9:.1f} GB of memory, only {there / 1e9:.1f} GB available" in str(error.value)
    monkeypatch.setattr(advising, "_learn", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(CircleError, match="GB available"):
        studied(classifier, dataset, request)


@pytest.mark.parametrize("fit", [4, 9, 15])
def test_the_number_of_members_that_fits_is_the_largest(fit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    head = SLDAConfig()
    there = memory_needed(1000, 100, 5000, head, AdviceRequest(16, fit))
    for module in ("circle.machine", "circle.paper.advise"):
        monkeypatch.setattr(f"{module}.available_memory", lambda: there)
    with pytest.raises(CircleError, match=f"--members-measured {fit} would fit"):
        check_memory(1000, 100, 5000, head, AdviceRequest(16, 16))


class Unlucky(ArrayImages):
    """Of class b, nothing that was meant to be learned can be read; or of all, nothing that was held back."""

    def __init__(self, held_back: bool) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)
        super().__init__(pixels, np.repeat([0, 1, 2], 8), SHAPE, "unlucky", ["a", "b", "c"])
        learned, held = split_images(self, AdviceRequest(4, 4), "unlucky")
        self._broken = set((learned[self.labels[learned] == 1] if held_back else held).tolist())

    def _samples(self, positions: np.ndarray) -> Iterator[Sample]:
        for position, sample in zip(positions.tolist(), super()._samples(positions), strict=True):
            broken = position in self._broken
            yield Sample(sample.name, sample.label, UnreadableImageError("broken")) if broken else sample


@pytest.mark.parametrize(("held_back", "message"), [(True, "of class 'b' none to learn"), (False, "too few")])
def test_images_that_cannot_be_read(classifier: CircleClassifier, held_back: bool, message: str) -> None:
    with pytest.raises(CircleError, match=f"unlucky: {message}"):
        recommend_allocation(classifier, Unlucky(held_back), AdviceRequest(4, 4), image=SHAPE, name="unlucky")


@pytest.mark.parametrize("name", list_heads())
def test_every_head_is_judged_or_refused(dataset: Dataset, classifier: CircleClassifier, name: str) -> None:
    """Unit vectors and subspaces know nothing of a part of a vector: heads that need their sums are refused."""
    config = entry("head", name).config()
    assert isinstance(config, HeadConfig)
    classifier.set_params(head=config)
    if not all(part.selectable for part in parts_named(config.parts)):
        with pytest.raises(CircleError, match=f"head '{name}' cannot be judged"):
            studied(classifier, dataset, AdviceRequest(4, 4))
        return
    findings = studied(classifier, dataset, AdviceRequest(4, 4, partitions=1))
    learned, held = split(dataset, AdviceRequest(4, 4))
    model = CircleClassifier(**{**classifier.get_params(deep=False), "groups": 2, "members": 2})
    model.fit(dataset.train[learned], dataset.train.labels[learned])
    right = model.score(dataset.train[held], dataset.train.labels[held])
    ensemble = findings.advice.allocations[1].ensemble
    assert ensemble is not None
    assert ensemble.accuracy == right
