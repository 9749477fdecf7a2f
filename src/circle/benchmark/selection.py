"""Settings of a head, chosen on a part of the training data that is held back; test data never enters.

The statistics of the other part are learned once. A head is a pure function of them, so every candidate is
one materialisation, and a temperature only divides the scores that are there already:

    accuracy(theta, tau) = mean_i [ y_i = argmax_c sum_j softmax(h_j(z_ij; theta) / tau)_c ]    over held-back images i
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circle.data.hold_out import hold_out
from circle.errors import CircleError, NotDefiniteError
from circle.heads import HeadConfig
from circle.labels import plain_labels
from circle.learner import CircleClassifier
from circle.registry import resolve
from circle.runtime.container import atomic_path

FILE = "selection.json"
MAX_BATCH = 1024  # images learned or scored at a time
VALIDATION_SHARE = 0.2

Features = Sequence[Sequence[np.ndarray]]  # for each group, for each member, integers [N, size]; may be mapped files


@dataclass(frozen=True)
class Trial:
    """Settings that were tried and the share of held-back images they got right; none where they were refused."""

    settings: dict[str, float]
    accuracy: float
    refused: str = ""


@dataclass(frozen=True)
class Choice:
    """The settings that did best on held-back training images, with all that were tried."""

    head: HeadConfig
    settings: dict[str, float]
    accuracy: float
    trials: tuple[Trial, ...]
    share: float
    seed: int
    images: tuple[int, int]  # learned from, held back

    @property
    def at_the_edge(self) -> list[str]:
        """Settings that came out at the smallest or largest of three or more values: others may do better still."""
        names: list[str] = []
        for name, value in self.settings.items():
            tried = {trial.settings[name] for trial in self.trials if not trial.refused}
            if len(tried) > 2 and value in (min(tried), max(tried)):
                names.append(name)
        return names

    def to_dict(self) -> dict[str, Any]:
        """Plain data; :meth:`from_dict` is its inverse."""
        return {
            "head": self.head.to_dict(),
            "settings": self.settings,
            "accuracy": self.accuracy,
            "trials": [
                {key: value for key, value in vars(trial).items() if key != "refused" or value} for trial in self.trials
            ],
            "share": self.share,
            "seed": self.seed,
            "images": list(self.images),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Choice:
        head = resolve("head", values["head"])
        assert isinstance(head, HeadConfig)
        trials = tuple(Trial(**trial) for trial in values["trials"])
        learned, held_back = values["images"]
        return cls(
            head,
            values["settings"],
            values["accuracy"],
            trials,
            values["share"],
            values["seed"],
            (learned, held_back),
        )


def candidate_settings(config: HeadConfig) -> list[dict[str, float]]:
    """All combinations of the settings that a head wants to be tried with, but for the temperature."""
    wanted = config.candidates()
    return [dict(zip(wanted, values, strict=True)) for values in itertools.product(*wanted.values())]


def choose_head(
    classifier: CircleClassifier,
    features: Features,
    labels: np.ndarray,
    *,
    share: float = VALIDATION_SHARE,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Choice:
    """The settings of the classifier's head that are most accurate on a held-back share of the training images.

    classifier: prepared, nothing learned; it is left as it is.
    features, labels [N]: of all training images. They are read in tiles, so mapped files stay on disk.

    Of equally accurate settings the first wins. With a single group no temperature changes an answer, so the
    head keeps the one it has. Memory is what learning and predicting with this classifier takes anyway.
    """
    if classifier.samples_:
        raise CircleError("settings are chosen from a fresh classifier: this one has learned something")
    config = resolve("head", classifier.head)
    assert isinstance(config, HeadConfig)
    train, validation = hold_out(labels, share, seed=seed)
    temperatures = config.temperatures() if classifier.groups > 1 else (config.temperature,)
    candidates = candidate_settings(config)
    learner = classifier.copy()
    for positions, tile in tiles(features, train):
        learner.learn_features(tile, plain_labels(labels[positions]))
    trials: list[Trial] = []
    for number, settings in enumerate(candidates):
        report(number, len(candidates))
        try:
            model = learner.with_head(config.replace(**settings))
            correct = correct_answers(model, features, labels, validation, temperatures)
        except NotDefiniteError as error:
            # Some combinations of shrinkage leave no covariance to speak of: the others are still worth trying.
            trials.append(Trial(settings, 0.0, str(error)))
            continue
        for temperature, count in zip(temperatures, correct, strict=True):
            shown = settings if len(temperatures) == 1 else {**settings, "temperature": temperature}
            trials.append(Trial(shown, count / len(validation)))
    report(len(candidates), len(candidates))
    valid = [trial for trial in trials if not trial.refused]
    if not valid:
        raise CircleError(f"head {config.name!r}: none of the settings to be tried works ({trials[0].refused})")
    best = max(valid, key=lambda trial: trial.accuracy)  # the first of equals
    head = config.replace(**best.settings)
    return Choice(head, best.settings, best.accuracy, tuple(trials), share, seed, (len(train), len(validation)))


def correct_answers(
    model: CircleClassifier,
    features: Features,
    labels: np.ndarray,
    validation: np.ndarray,
    temperatures: Sequence[float],
) -> list[int]:
    """Right answers among the held-back images at every temperature."""
    classes = np.array(plain_labels(model.classes_))
    correct = [0] * len(temperatures)
    for positions, tile in tiles(features, validation):
        scores = model.head_scores(tile)
        for index, temperature in enumerate(temperatures):
            config = model.head_config().replace(temperature=temperature)
            probabilities = torch.stack([config.probabilities(group) for group in scores]).mean(0)
            predicted = classes[probabilities.argmax(1).cpu().numpy()]
            correct[index] += int((predicted == labels[positions]).sum())
    return correct


def tiles(features: Features, positions: np.ndarray) -> Iterator[tuple[np.ndarray, list[Tensor]]]:
    """Positions and their features, one tensor [B, size] per group, a tile at a time."""
    for start in range(0, len(positions), MAX_BATCH):
        part = positions[start : start + MAX_BATCH]
        yield part, [torch.cat([torch.from_numpy(member[part]) for member in group], 1) for group in features]


def remember(path: Path, choice: Choice, basis: dict[str, Any]) -> None:
    """Keep a choice, and ``basis``, plain data that it depends on, in a JSON file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps({"basis": basis, **choice.to_dict()}, indent=1) + "\n")


def recall(path: Path, basis: dict[str, Any]) -> Choice | None:
    """The choice kept in a file, or None where there is none; one that was made on another basis is refused."""
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text())
        kept = values.pop("basis")
        choice = Choice.from_dict(values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CircleError(f"{path}: not a readable choice of settings ({error})") from error
    for name, value in basis.items():
        if kept.get(name) != value:
            raise CircleError(f"{path}: settings were chosen with another {name}; choose another --output")
    return choice
