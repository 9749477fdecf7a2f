"""From a request to a search: what is tried, how it is judged, and the preset that comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from circle.baselines.budget import fit_budget
from circle.baselines.settings import TrainerConfig
from circle.benchmark import campaign
from circle.benchmark.features import FeatureStore
from circle.benchmark.runner import Stream
from circle.benchmark.tuning import trials
from circle.benchmark.tuning.search import Sampler, Search, Trial, check_basis
from circle.benchmark.tuning.spaces import ENSEMBLE, SIZES, Stage, member_space, rival_changes, rival_stages
from circle.benchmark.tuning.trials import Held, Outcome, Watch
from circle.config import check_names
from circle.data.datasets import Dataset
from circle.data.tasks import task_sizes
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.registry import resolve

RESNET_18 = 11_168_832  # parameters that the rivals' networks have
LOOSE = 0.5  # tolerance where no number of parameters was asked for
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
    parameters: int | None = RESNET_18  # of CIRCLE, learnable and fixed; None: half to twice those of the preset
    tolerance: float = 0.05
    budget: float | None = None  # seconds of learning that a rival's epochs are fitted to
    only: tuple[str, ...] = ()  # settings to search; all others stay as they are


class Tuning:
    """A search and what it needs: the data without its test images, the settings to start from, the judge."""

    def __init__(self, request: TuneRequest, held: Held) -> None:
        task_sizes(request.tasks, len(held.dataset.classes))  # says at once that a split is impossible
        self.request, self.held = request, held
        self.stream: Stream = held.stream(request.class_order_seed)
        self.basis: dict[str, Any] = {}

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
            "parameters": request.parameters if request.method == campaign.CIRCLE else None,
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
        campaign.estimate(classifier, self.stream, None).check()
        return trials.circle_trial(classifier, self.held, self.stream, self.request.tasks, self.store, watch)

    def classifier(self, settings: dict[str, Any]) -> CircleClassifier:
        """The classifier of a trial: a single member in the first stage, as large as the preset's.

        Members compete at one size, because a larger one is nearly always better; where their size is a setting that is
        searched (the width of a reservoir), it is left to the search.
        """
        alone = {"groups": 1, "members": 1, "seed": self.request.seed}
        changes = {name: value for name, value in settings.items() if name != "size_scale"}
        classifier = trials.changed_classifier(self.base, {**alone, **changes})
        wanted, tolerance = self.request.parameters, self.request.tolerance
        if "groups" not in settings:
            if trials.size_setting(classifier)[0] in settings:
                return classifier
            tolerance = LOOSE
            wanted = trials.parameters_of(trials.changed_classifier(self.base, alone), self.held.dataset)
        elif wanted is None:
            tolerance = LOOSE
            wanted = round(trials.parameters_of(self.base, self.held.dataset) * settings["size_scale"])
        fitted = trials.fitted_size(classifier, self.held.dataset, wanted, tolerance)
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
        return trials.rival_trial(self.config(settings), self.request.seed, self.stream, self.request.tasks, watch)

    def config(self, settings: dict[str, Any]) -> TrainerConfig:
        """The config of a trial."""
        config = rival_changes(self.base, settings)
        if self.request.budget is None:
            return config
        course = campaign.course_of(self.stream.dataset, self.request.tasks, self.request.class_order_seed)
        return fit_budget(config, course, campaign.image_shape(self.held.dataset), self.request.budget)

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
    *,
    classifier: CircleClassifier | None = None,
    rival: TrainerConfig | None = None,
    store: FeatureStore | None = None,
) -> CircleTuning | RivalTuning:
    """The search of one method; the classifier, or the rival's config, is what it starts from."""
    held = Held.of(dataset, request.share)
    if classifier is not None and store is not None:
        return CircleTuning(request, held, classifier, store)
    if rival is None:
        raise CircleError(f"method {request.method!r} has no settings to search")
    return RivalTuning(request, held, rival)
