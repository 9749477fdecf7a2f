"""Trials on held-back images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from circle.benchmark.features import FeatureStore
from circle.benchmark.tuning.tune import (
    Held,
    changed_classifier,
    circle_trial,
    fitted_size,
    parameters_of,
    points,
    rival_trial,
)
from circle.data.datasets import Dataset, load_dataset
from circle.data.images import Images
from circle.learner import CircleClassifier
from circle.registry import entry


class Locked(Images):
    """Test images that nobody may look at."""

    def __init__(self, images: Images) -> None:
        self.labels = images.labels

    def _read(self, indices: np.ndarray) -> np.ndarray:
        raise AssertionError("the test images were read")

    def _fingerprint(self) -> str:
        raise AssertionError("the test images were read")


@pytest.fixture
def digits() -> Dataset:
    dataset = load_dataset("digits")
    return replace(dataset.balanced_part(30), test=Locked(dataset.test))


def small() -> CircleClassifier:
    """A few values of grey images."""
    base = CircleClassifier.from_preset("reservoir", channels=1)
    return changed_classifier(base, {"stem_channels": (3,), "width": 3, "grid": 2})


def test_a_fifth_of_every_class_is_held_back(digits: Dataset) -> None:
    held = Held.of(digits, 0.2)
    assert np.bincount(digits.train.labels[held.held_back]).tolist() == [6] * 10
    assert not set(held.learned) & set(held.held_back) and len(held.learned) + len(held.held_back) == 300
    stream = held.stream(0)
    assert (len(stream.dataset.train), len(stream.dataset.test)) == (240, 60)


def test_points() -> None:
    assert points("20", 100, 5) == [20, 40, 60, 80, 100]
    assert points("2", 10, 5) == [5, 10]
    assert points("7", 7, 5)[-1] == 7 and len(set(points("7", 7, 5))) == 5


def test_circle_with_the_lambda_of_the_best_mean(digits: Dataset, tmp_path: Path) -> None:
    """The same as fitting a classifier with each lambda after every task, and never a look at the test images."""
    held = Held.of(digits, 0.2)
    stream, seen = held.stream(0), []
    outcome = circle_trial(
        small(), held, stream, "2", FeatureStore(tmp_path), lambda step, value: seen.append((step, value))
    )
    images, labels = digits.train[np.arange(300)], digits.train.labels
    means = {}
    for ridge in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0):
        accuracies = []
        for end in (5, 10):
            model = changed_classifier(small(), {"ridge": ridge})
            known = np.isin(labels, stream.order[:end])
            learned, asked = (part[known[part]] for part in (held.learned, held.held_back))
            model.fit(images[learned], labels[learned])
            accuracies.append(float((model.predict(images[asked]) == labels[asked]).mean()))
        means[ridge] = accuracies
    best = max(means, key=lambda ridge: np.mean(means[ridge]))
    assert outcome.value == pytest.approx(np.mean(means[best])) and outcome.found == {"ridge": best}
    assert outcome.accuracies == pytest.approx(means[best])
    assert [step for step, _ in seen] == [0, 1] and seen[-1][1] == pytest.approx(outcome.value)


def test_trials_share_features(digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, store = Held.of(digits, 0.2), FeatureStore(tmp_path)
    circle_trial(small(), held, held.stream(0), "2", store, lambda step, value: None)
    files = set(tmp_path.iterdir())
    two = changed_classifier(small(), {"members": 2})
    circle_trial(two, held, held.stream(0), "5", store, lambda step, value: None)
    assert files < set(tmp_path.iterdir()), "a second member was added to the first"
    files = set(tmp_path.iterdir())
    circle_trial(
        changed_classifier(two, {"ridge_rule": "relative"}), held, held.stream(0), "2", store, lambda s, v: None
    )
    assert files == set(tmp_path.iterdir())


def test_a_rival_is_tested_after_every_task(digits: Dataset) -> None:
    held, seen = Held.of(digits, 0.2), []
    config = entry("method", "finetune").config(epochs=2, width=4)
    outcome = rival_trial(config, 0, held.stream(0), "5", lambda step, value: seen.append(value))
    assert len(outcome.accuracies) == 5 and outcome.value == pytest.approx(np.mean(outcome.accuracies))
    assert seen == pytest.approx([np.mean(outcome.accuracies[: count + 1]) for count in range(5)])
    assert outcome.accuracies[0] > 0.6 > outcome.accuracies[-1], "it learns, and forgets"


def test_parameters_without_learning(digits: Dataset) -> None:
    classifier = changed_classifier(small(), {"groups": 2, "members": 3})
    images = digits.train[np.arange(300)]
    model = changed_classifier(classifier, {}).fit(images, digits.train.labels)
    count = model.parameter_count()
    assert parameters_of(classifier, digits) == count.learnable + count.fixed


@pytest.mark.parametrize(("groups", "members"), [(1, 1), (2, 2), (4, 1)])
def test_members_of_the_size_that_is_asked_for(groups: int, members: int, digits: Dataset) -> None:
    base = changed_classifier(CircleClassifier.from_preset("small"), {"groups": groups, "members": members})
    fitted = fitted_size(base, digits, 60_000, 0.05)
    assert fitted is not None and (fitted.groups, fitted.members) == (groups, members)
    assert abs(parameters_of(fitted, digits) - 60_000) <= 3_000
    assert fitted_size(base, digits, 10, 0.05) is None
