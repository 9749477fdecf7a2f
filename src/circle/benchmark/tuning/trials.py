"""One trial: settings, and how well they do on held-back training images after each task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from circle.baselines.settings import TrainerConfig
from circle.benchmark import campaign, selection
from circle.benchmark.features import FeatureStore
from circle.benchmark.runner import Stream
from circle.data.datasets import Dataset, Selection
from circle.data.tasks import task_sizes
from circle.heads import HeadConfig
from circle.labels import plain_labels
from circle.learner import CircleClassifier
from circle.method import Task, predict
from circle.registry import entry, resolve

POINTS = 5  # tasks after which CIRCLE is tested in a trial; rivals are tested after every one

Watch = Callable[[int, float], None]  # told a task's number and the value so far; may raise to end the trial


@dataclass(frozen=True)
class Held:
    """Training images of a data set, some of which are held back of every class; its test images are out of reach."""

    dataset: Dataset
    learned: np.ndarray
    held_back: np.ndarray
    share: float

    @classmethod
    def of(cls, dataset: Dataset, share: float, seed: int = 0) -> Held:
        return cls(dataset, *selection.validation_split(dataset.train.labels, share, seed), share)

    def stream(self, class_order_seed: int) -> Stream:
        """The stream with the held-back images in the place of the test images."""
        train = self.dataset.train
        parts = {"train": Selection(train, self.learned), "test": Selection(train, self.held_back)}
        return Stream.of(replace(self.dataset, **parts), class_order_seed)


@dataclass(frozen=True)
class Outcome:
    """What a trial came to: the mean accuracy over the tasks it was tested after, and settings found on the way."""

    value: float
    accuracies: list[float]
    found: dict[str, Any] = field(default_factory=dict)


def points(tasks: str, classes: int, most: int | None) -> list[int]:
    """Numbers of classes after which a trial is tested: every task's end, or ``most`` of them, evenly, the last too.

    >>> points("10", 100, 5), points("4", 8, None)
    ([20, 40, 60, 80, 100], [2, 4, 6, 8])
    """
    ends = np.cumsum(task_sizes(tasks, classes)).tolist()
    if most is None or len(ends) <= most:
        return ends
    return [ends[round(place)] for place in np.linspace(len(ends) / most - 1, len(ends) - 1, most)]


def rival_trial(config: TrainerConfig, seed: int, stream: Stream, tasks: str, watch: Watch) -> Outcome:
    """A rival through the stream; the mean over all tasks of the accuracy after each."""
    method = entry("method", config.name).part(config, seed=seed)
    accuracies: list[float] = []
    start = 0
    for number, end in enumerate(points(tasks, len(stream.order), None)):
        images, labels = stream.view(stream.dataset.train, start, end)
        method.learn(Task(images, labels))
        images, labels = stream.view(stream.dataset.test, 0, end)
        accuracies.append(float((np.array(predict(method, images)) == labels).mean()))
        watch(number, float(np.mean(accuracies)))
        start = end
    return Outcome(float(np.mean(accuracies)), accuracies)


def circle_trial(
    classifier: CircleClassifier, held: Held, stream: Stream, tasks: str, store: FeatureStore, watch: Watch
) -> Outcome:
    """CIRCLE through the stream, tested after a few tasks with every lambda its head wants to be tried with.

    Features are computed once for all trials with the same extractors. A head is a function of the statistics, so
    that a whole path of lambdas costs one pass and as many factorisations; the lambda of the best mean is the
    trial's.
    """
    classifier = classifier.prepare(held.dataset.image)
    config = resolve("head", classifier.head)
    assert isinstance(config, HeadConfig)
    features, _ = campaign.features_of(classifier, held.dataset.train, store, lambda done, total: None)
    labels = held.dataset.train.labels
    candidates = selection.candidate_settings(config)
    ends = points(tasks, len(stream.order), POINTS)
    found = np.zeros((len(ends), len(candidates)))
    start = 0
    for number, end in enumerate(ends):
        new = held.learned[np.isin(labels[held.learned], stream.order[start:end])]
        for positions, tile in selection.tiles(features, new):
            classifier.learn_features(tile, plain_labels(labels[positions]))
        seen = held.held_back[np.isin(labels[held.held_back], stream.order[:end])]
        for index, settings in enumerate(candidates):
            model = classifier.with_head(config.replace(**settings))
            right = selection.correct_answers(model, features, labels, seen, (config.temperature,))
            found[number, index] = right[0] / len(seen)
        watch(number, float(found[: number + 1].mean(0).max()))
        start = end
    best = int(found.mean(0).argmax())
    return Outcome(float(found[:, best].mean()), found[:, best].tolist(), candidates[best])


def changed_classifier(base: CircleClassifier, changes: dict[str, Any]) -> CircleClassifier:
    """A fresh classifier of the same settings but for these, which belong to its extractor, its head or itself."""
    extractor, head = resolve("extractor", base.extractor), resolve("head", base.head)
    own = {name: value for name, value in changes.items() if name in ("groups", "members", "seed")}
    parts: dict[str, Any] = {"extractor": extractor, "head": head}
    for kind, config in parts.items():
        mine = {name: value for name, value in changes.items() if name in config.field_names() and name not in own}
        parts[kind] = config.replace(**mine) if mine else config
    parameters: dict[str, Any] = {**base.get_params(deep=False), **parts, **own}
    return CircleClassifier(**parameters)


def parameters_of(classifier: CircleClassifier, dataset: Dataset) -> int:
    """Learnable and fixed numbers of a classifier after all classes, without learning any."""
    member = campaign.member_of(classifier, dataset)
    own = member.parameter_count()
    count = classifier.groups * classifier.members
    return count * (own.fixed + own.learnable + member.size * len(dataset.classes))


def size_setting(classifier: CircleClassifier) -> tuple[str, int | tuple[int, ...]]:
    """The setting that a member's size follows from, and its value: of the projection, the filters or the width."""
    extractor = resolve("extractor", classifier.extractor)
    if getattr(extractor, "projection", "none") != "none":
        name = "projection_size"
    else:
        name = "filters" if "filters" in extractor.field_names() else "width"
    return name, getattr(extractor, name)


def fitted_size(
    classifier: CircleClassifier, dataset: Dataset, wanted: int, tolerance: float
) -> CircleClassifier | None:
    """The classifier with members of the size that brings it to so many parameters, or None where none does.

    Several numbers, such as the filters of all banks, keep their proportion.
    """
    setting, start = size_setting(classifier)

    def scaled(share: float) -> CircleClassifier:
        value = tuple(max(1, round(share * each)) for each in start) if isinstance(start, Sequence) else start * share
        return changed_classifier(classifier, {setting: value if isinstance(value, tuple) else max(1, round(value))})

    low, high = 1e-3, 64.0
    best: CircleClassifier | None = None
    for _ in range(24):
        share = (low * high) ** 0.5
        candidate = scaled(share)
        found = parameters_of(candidate, dataset)
        if best is None or abs(found - wanted) < abs(parameters_of(best, dataset) - wanted):
            best = candidate
        low, high = (share, high) if found < wanted else (low, share)
    if best is None or abs(parameters_of(best, dataset) - wanted) > tolerance * wanted:
        return None
    return best
