"""The search itself: Optuna with a journal file, so that it can be stopped, resumed and shared by processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from circle.benchmark.tuning.spaces import STARTS, Stage
from circle.errors import CircleError
from circle.runtime.container import atomic_path

JOURNAL, BASIS = "journal.log", "basis.json"
MAX_REPEATED_PROPOSALS = 20  # proposals in a row that were tried before, after which a space counts as exhausted
STARTUP_TRIALS = 5  # trials before any is cut short, and before the sampler learns from them
START = "start"  # setting of a later stage: which of the best of the stage before it begins from
BASE = "base"  # the name of the start that is the settings as they were given

Watch = Callable[[int, float], None]  # told a task's number and the value so far; may raise to end the trial
Sampler = Literal["tpe", "random"]


@dataclass(frozen=True)
class Outcome:
    """What a trial came to: the mean accuracy over the tasks it was tested after, and settings found on the way."""

    value: float
    accuracies: list[float]
    found: dict[str, Any] = field(default_factory=dict)


Evaluate = Callable[[dict[str, Any], Watch], Outcome]  # settings of all stages so far -> what they come to


@dataclass(frozen=True)
class Trial:
    """A finished trial: its stage, its number there, all chosen settings, what it came to and how long it took."""

    stage: str
    number: int
    settings: dict[str, Any]
    value: float | None
    state: str
    seconds: float
    accuracies: list[float]
    refused: str = ""  # why settings did not work, if they did not


class Search:
    """Stages of trials in a folder. Finished trials are never done again, whoever did them."""

    def __init__(
        self, folder: Path, stages: Sequence[Stage], evaluate: Evaluate, *, sampler: Sampler, seed: int
    ) -> None:
        self.folder, self.stages, self.evaluate = folder, list(stages), evaluate
        self.sampler, self.seed = sampler, seed
        optuna = import_optuna()
        backend = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL))
        self.storage = optuna.storages.JournalStorage(backend)

    def run(
        self,
        trials: int,
        *,
        deadline: float | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        report: Callable[[Stage, int, float | None], None] = lambda stage, done, best: None,
    ) -> bool:
        """Trials until every stage has so many, or all there can be, or the time is up; whether all are done."""
        for index, stage in enumerate(self.stages):
            study = self._study(stage, index)
            repeats = 0
            while len(self.finished(stage)) < trials and repeats < MAX_REPEATED_PROPOSALS:
                if should_stop() or (deadline is not None and time.monotonic() > deadline):
                    return False
                repeats = 0 if self._trial(study, stage, index) else repeats + 1
                report(stage, len(self.finished(stage)), self.best_value(stage))
        return True

    def finished(self, stage: Stage) -> list[Trial]:
        """Trials of a stage that came to an end, also those cut short, in the order of their numbers.

        Proposals that had been tried before are told what came of them then, and are no trials of their own.
        """
        optuna = import_optuna()
        states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
        study = self._study(stage, self.stages.index(stage))
        return [
            Trial(
                stage.name,
                trial.number,
                json.loads(trial.user_attrs["settings"]),
                trial.value if trial.state == optuna.trial.TrialState.COMPLETE else None,
                trial.state.name.lower(),
                trial.user_attrs.get("seconds", 0.0),
                trial.user_attrs.get("accuracies", []),
                trial.user_attrs.get("refused", ""),
            )
            for trial in study.get_trials(deepcopy=False, states=states)
            if "repeats" not in trial.user_attrs
        ]

    def best(self, stages: Sequence[Stage] | None = None) -> Trial:
        """The best complete trial of these stages, the first of equals."""
        every = [trial for stage in stages or self.stages for trial in self.finished(stage) if trial.value is not None]
        if not every:
            refused = [trial.refused for stage in self.stages for trial in self.finished(stage) if trial.refused]
            reason = f" ({refused[-1]})" if refused else ""
            raise CircleError(
                f"{self.folder}: no trial of the search was completed{reason}; give it more time or trials"
            )
        return max(every, key=lambda trial: trial.value or 0.0)

    def best_value(self, stage: Stage) -> float | None:
        values = [trial.value for trial in self.finished(stage) if trial.value is not None]
        return max(values, default=None)

    def importances(self, stage: Stage) -> dict[str, float]:
        """The share of each setting in the differences between the trials of a stage; empty where too few are there."""
        optuna = import_optuna()
        study = self._study(stage, self.stages.index(stage))
        if len([trial for trial in self.finished(stage) if trial.value is not None]) < STARTUP_TRIALS:
            return {}
        evaluator = optuna.importance.MeanDecreaseImpurityImportanceEvaluator(seed=self.seed)
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))

    def _trial(self, study: Any, stage: Stage, index: int) -> bool:
        """One proposal, tried; False where it had been tried before, which costs nothing."""
        optuna = import_optuna()
        states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
        known = {json.dumps(each.params, sort_keys=True): each for each in study.get_trials(states=states)}
        trial = study.ask()
        started = time.monotonic()
        settings = self._settings(trial, study, stage, index)
        trial.set_user_attr("settings", json.dumps(settings))
        earlier = known.get(json.dumps(trial.params, sort_keys=True))
        if earlier is not None:
            trial.set_user_attr("repeats", earlier.number)
            complete = earlier.state == optuna.trial.TrialState.COMPLETE
            study.tell(trial, earlier.value if complete else None, state=earlier.state)
            return False

        def watch(step: int, value: float) -> None:
            trial.report(value, step)
            if trial.should_prune():
                raise optuna.TrialPruned

        try:
            outcome = self.evaluate(settings, watch)
        except optuna.TrialPruned:
            trial.set_user_attr("seconds", round(time.monotonic() - started, 2))
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        except CircleError as error:
            # Settings that do not work, such as a step size at which the loss diverges, are an answer, too.
            trial.set_user_attr("refused", str(error))
            trial.set_user_attr("seconds", round(time.monotonic() - started, 2))
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        except BaseException:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            raise
        else:
            trial.set_user_attr("settings", json.dumps({**settings, **outcome.found}))
            trial.set_user_attr("accuracies", [round(value, 6) for value in outcome.accuracies])
            trial.set_user_attr("seconds", round(time.monotonic() - started, 2))
            study.tell(trial, outcome.value)
        return True

    def _settings(self, trial: Any, study: Any, stage: Stage, index: int) -> dict[str, Any]:
        """Values of this stage, on top of one of the starts."""
        settings: dict[str, Any] = {}
        starts = study.user_attrs["starts"]
        if index:
            settings |= starts[trial.suggest_categorical(START, list(starts))]
        for setting, values in stage.space.items():
            labels = [stage.label(setting, value) for value in values]
            settings[setting] = stage.value(setting, trial.suggest_categorical(setting, labels))
        return settings

    def _study(self, stage: Stage, index: int) -> Any:
        optuna = import_optuna()
        # Every process draws its own numbers, from the seed and from how many trials there are.
        try:
            known = len(optuna.load_study(study_name=stage.name, storage=self.storage).get_trials(deepcopy=False))
        except KeyError:
            known = 0
        seed = self.seed + 1000 * index + known
        kinds = {
            "tpe": lambda: optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS),
            "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        }
        study = optuna.create_study(
            storage=self.storage,
            study_name=stage.name,
            direction="maximize",
            load_if_exists=True,
            sampler=kinds[self.sampler](),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=1),
        )
        if "starts" not in study.user_attrs:
            study.set_user_attr("starts", self._starts(index))
            for given in self._first(stage, index):
                study.enqueue_trial(given, skip_if_exists=True)
        return study

    def _starts(self, index: int) -> dict[str, dict[str, Any]]:
        """The best settings of the stage before."""
        if not index:
            return {BASE: {}}
        earlier = [trial for trial in self.finished(self.stages[index - 1]) if trial.value is not None]
        ranked = sorted(earlier, key=lambda trial: -(trial.value or 0.0))
        distinct: dict[str, dict[str, Any]] = {}
        for trial in ranked:
            distinct.setdefault(json.dumps(trial.settings, sort_keys=True), trial.settings)
        chosen = list(distinct.values())[:STARTS] or [{}]
        return {f"{number + 1}": settings for number, settings in enumerate(chosen)}

    def _first(self, stage: Stage, index: int) -> list[dict[str, str]]:
        """The trial to begin with: the settings as they are, in the stage's own words."""
        own = {setting: stage.label(setting, stage.given[setting]) for setting in stage.given}
        return [{START: "1", **own}] if index else [own]


def check_basis(folder: Path, basis: dict[str, Any]) -> None:
    """A folder belongs to one search: what it depends on is written down once and compared ever after."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / BASIS
    text = json.dumps(basis, indent=1, sort_keys=True)
    if not path.exists():
        with atomic_path(path) as temporary:
            temporary.write_text(text + "\n")
        return
    try:
        kept = json.loads(path.read_text())
    except ValueError as error:
        raise CircleError(f"{path}: not a readable description of a search ({error})") from error
    for name, value in json.loads(text).items():
        if kept.get(name) != value:
            raise CircleError(f"{folder}: a search with another {name} was begun here; choose another --output")


def import_optuna() -> Any:
    """Optuna, which is an extra, without its messages."""
    try:
        import optuna
    except ImportError as error:
        raise CircleError("tuning needs Optuna: pip install 'circle-cil[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
