"""Tuning a method: what one trial is and how it is judged, what is tried, and the preset that comes out."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from circle.baselines.costs import fit_budget
from circle.baselines.trainer import TrainerConfig
from circle.benchmark import jobs, selection
from circle.benchmark.experiment import StoppedError
from circle.benchmark.features import FeatureStore, features_of
from circle.benchmark.tuning.search import Outcome, Sampler, Search, Trial, Watch, check_basis
from circle.benchmark.tuning.spaces import ENSEMBLE, SIZES, Stage, member_space, rival_changes, rival_stages
from circle.config import check_names
from circle.data.datasets import Dataset
from circle.data.hold_out import hold_out
from circle.data.tasks import Stream, task_sizes
from circle.errors import CircleError
from circle.heads import HeadConfig
from circle.labels import plain_labels
from circle.learner import CircleClassifier
from circle.machine import stop_requests
from circle.method import Task, predict
from circle.registry import entry, list_methods, resolve

MAX_TEST_POINTS = 5  # tasks after which CIRCLE is tested in a trial; rivals are tested after every one


@dataclass(frozen=True)
class Held:
    """Training images of a data set, some of which are held back of every class; its test images are out of reach."""

    dataset: Dataset
    learned: np.ndarray
    held_back: np.ndarray
    share: float

    @classmethod
    def of(cls, dataset: Dataset, share: float, seed: int = 0) -> Held:
        return cls(dataset, *hold_out(dataset.train.labels, share, seed=seed), share)

    def stream(self, class_order_seed: int) -> Stream:
        """The stream with the held-back images in the place of the test images."""
        train = self.dataset.train
        parts = {"train": train.subset(self.learned), "test": train.subset(self.held_back)}
        return Stream.of(replace(self.dataset, **parts), class_order_seed)


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
    features, _ = features_of(classifier, held.dataset.train, store, lambda done, total: None)
    labels = held.dataset.train.labels
    candidates = selection.candidate_settings(config)
    ends = points(tasks, len(stream.order), MAX_TEST_POINTS)
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
    member = jobs.member_of(classifier, dataset)
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


RESNET_18_PARAMETERS = 11_168_832  # parameters that the rivals' networks have
LOOSE_TOLERANCE = 0.5  # tolerance where no number of parameters was asked for
MEMBER_STAGE, ENSEMBLE_STAGE = "member", "ensemble"


@dataclass(frozen=True)
class TuneRequest:
    """What one call of ``circle bench tune`` asks for."""

    method: str
    tasks: str
    folder: Path
    share: float
    class_order_seed: int
    seed: int
    sampler: Sampler
    parameters: int | None = (
        RESNET_18_PARAMETERS  # of CIRCLE, learnable and fixed; None: half to twice those of the preset
    )
    tolerance: float = 0.05
    budget: float | None = None  # seconds of learning that a rival's epochs are fitted to
    only: tuple[str, ...] = ()  # settings to search; all others stay as they are
    trials: int = 20  # of each stage
    minutes: float | None = None  # after which no further trial is begun

    def __post_init__(self) -> None:
        check_names([self.method], [jobs.CIRCLE, *list_methods()], "method")
        for name in ("trials", "minutes", "budget"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise CircleError(f"{name} {value:g}: expected more than 0")


class Tuning(ABC):
    """A search and what it needs: the data without its test images, the settings to start from, the judge."""

    def __init__(self, request: TuneRequest, held: Held) -> None:
        task_sizes(request.tasks, len(held.dataset.classes))  # says at once that a split is impossible
        self.request, self.held = request, held
        self.stream: Stream = held.stream(request.class_order_seed)
        self.basis: dict[str, Any] = {}

    @abstractmethod
    def start(self) -> Search:
        """The search with its stages, as far as it came before."""

    def run(self, report: Callable[[Stage, int, float | None], None]) -> tuple[Search, bool]:
        """Try settings; the search, and whether all trials are done.

        ``report`` is told the stage, its finished trials and the best value so far. An interruption ends with
        :class:`StoppedError` after the trial under way; finished ones are kept.
        """
        search, minutes = self.start(), self.request.minutes
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        with stop_requests() as stop:
            done = search.run(self.request.trials, deadline=deadline, should_stop=lambda: bool(stop), report=report)
            if stop:
                raise StoppedError
        return search, done

    def search(self, stages: list[Stage], evaluate: Callable[[dict[str, Any], Watch], Outcome], base: Any) -> Search:
        """The search in its folder, which must be of the same data, settings and space."""
        request = self.request
        stages = self._wanted(stages)
        self.basis = {
            "method": request.method,
            "tasks": request.tasks,
            "data": self.held.dataset.train.fingerprint,
            "share": self.held.share,
            "class_order_seed": request.class_order_seed,
            "seed": request.seed,
            "parameters": request.parameters if request.method == jobs.CIRCLE else None,
            "budget": request.budget,
            "base": base,
            "space": {stage.name: stage.to_dict() for stage in stages},
        }
        check_basis(request.folder, self.basis)
        return Search(request.folder, stages, evaluate, sampler=request.sampler, seed=request.seed)

    def _wanted(self, stages: list[Stage]) -> list[Stage]:
        """The stages with those settings alone that are to be searched."""
        only = self.request.only
        if not only:
            return stages
        check_names(only, [setting for stage in stages for setting in stage.space], "setting to search")
        kept = [stage.part(only) for stage in stages]
        return [stage for stage in kept if stage.space]


class CircleTuning(Tuning):
    """CIRCLE: the settings of a single member first, then how many there are and how large, within the parameters."""

    def __init__(self, request: TuneRequest, held: Held, base: CircleClassifier, store: FeatureStore) -> None:
        super().__init__(request, held)
        self.base, self.store = base, store

    def start(self) -> Search:
        extractor = resolve("extractor", self.base.extractor)
        space = member_space(extractor)
        ensemble = dict(ENSEMBLE)
        own: dict[str, Any] = {"groups": 1, "members": 1}
        if self.request.parameters is None:
            ensemble["size_scale"], own["size_scale"] = SIZES, 1.0
        stages = [
            Stage(MEMBER_STAGE, space, {name: getattr(extractor, name) for name in space}),
            Stage(ENSEMBLE_STAGE, ensemble, own),
        ]
        search = self.search(stages, self.evaluate, self.base.part_settings())
        if self.request.parameters is not None and search.stages[-1].name != ENSEMBLE_STAGE:
            raise CircleError("--search without groups or members cannot meet --parameters: expected one of them, or 0")
        return search

    def evaluate(self, settings: dict[str, Any], watch: Watch) -> Outcome:
        classifier = self.classifier(settings)
        jobs.circle_estimate(classifier, self.stream, None).check()
        return circle_trial(classifier, self.held, self.stream, self.request.tasks, self.store, watch)

    def classifier(self, settings: dict[str, Any]) -> CircleClassifier:
        """The classifier of a trial: a single member in the first stage, as large as the preset's.

        Members compete at one size, because a larger one is nearly always better; where their size is a setting that is
        searched (the width of a reservoir), it is left to the search.
        """
        alone = {"groups": 1, "members": 1, "seed": self.request.seed}
        changes = {name: value for name, value in settings.items() if name != "size_scale"}
        classifier = changed_classifier(self.base, {**alone, **changes})
        wanted, tolerance = self.request.parameters, self.request.tolerance
        if "groups" not in settings:
            if size_setting(classifier)[0] in settings:
                return classifier
            tolerance = LOOSE_TOLERANCE
            wanted = parameters_of(changed_classifier(self.base, alone), self.held.dataset)
        elif wanted is None:
            tolerance = LOOSE_TOLERANCE
            wanted = round(parameters_of(self.base, self.held.dataset) * settings["size_scale"])
        fitted = fitted_size(classifier, self.held.dataset, wanted, tolerance)
        if fitted is None:
            raise CircleError(f"no size of the members gives {wanted:,} parameters to {tolerance:.0%}")
        return fitted

    def chosen(self, search: Search) -> Trial:
        """The best trial; with a number of parameters asked for, of those that have it."""
        sized = [stage for stage in search.stages if stage.name == ENSEMBLE_STAGE]
        return search.best(search.stages if self.request.parameters is None else sized)

    def preset(self, trial: Trial) -> dict[str, Any]:
        """The settings of a trial, as a preset file holds them."""
        classifier = self.classifier(trial.settings)
        image = self.held.dataset.image
        parts = classifier.part_settings()
        return {
            "description": f"chosen on held-back training images of {self.held.dataset.name}",
            "image_size": image.height,
            "channels": image.channels,
            "groups": classifier.groups,
            "members": classifier.members,
            "extractor": parts["extractor"],
            "head": parts["head"],
        }


class RivalTuning(Tuning):
    """A rival: its optimisation first, then its own coefficients, from the best few."""

    def __init__(self, request: TuneRequest, held: Held, base: TrainerConfig) -> None:
        super().__init__(request, held)
        self.base = base

    def start(self) -> Search:
        stages = rival_stages(self.base, fitted=self.request.budget is not None)
        return self.search(stages, self.evaluate, self.base.to_dict())

    def evaluate(self, settings: dict[str, Any], watch: Watch) -> Outcome:
        return rival_trial(self.config(settings), self.request.seed, self.stream, self.request.tasks, watch)

    def config(self, settings: dict[str, Any]) -> TrainerConfig:
        """The config of a trial."""
        config = rival_changes(self.base, settings)
        if self.request.budget is None:
            return config
        course = jobs.course_of(self.stream.dataset, self.request.tasks, self.request.class_order_seed)
        return fit_budget(config, course, jobs.image_shape(self.held.dataset), self.request.budget)

    def chosen(self, search: Search) -> Trial:
        return search.best()

    def preset(self, trial: Trial) -> dict[str, Any]:
        """The settings of a trial under the method's name, as a preset file holds them."""
        settings = {name: value for name, value in self.config(trial.settings).to_dict().items() if name != "name"}
        return {
            "description": f"{self.request.method}, chosen on held-back training images of {self.held.dataset.name}",
            "methods": {self.request.method: settings},
        }


def new_tuning(
    request: TuneRequest,
    dataset: Dataset,
    new_classifier: Callable[[], CircleClassifier],
    store: FeatureStore,
    *,
    preset: str | None = None,
    rival: Mapping[str, Any] | None = None,
) -> CircleTuning | RivalTuning:
    """The search of one method, from CIRCLE's settings, or a rival's: the preset's with the given ones on top."""
    held = Held.of(dataset, request.share)
    if request.method == jobs.CIRCLE:
        return CircleTuning(request, held, new_classifier().with_form(dataset.image.height, dataset.image.width), store)
    asked = jobs.Request((request.method,), (request.tasks,), preset=preset, rival=dict(rival or {}))
    config = jobs.rival_config(asked, request.method, request.tasks, dataset)
    if not isinstance(config, TrainerConfig):
        raise CircleError(f"method {request.method!r} has no settings to search")
    return RivalTuning(request, held, config)
