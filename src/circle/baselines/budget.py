"""How many epochs fit into a budget of wall-clock time: measured on noise before a run, then fixed in its settings."""

from __future__ import annotations

from typing import Any, TypeVar

from circle.baselines.costs import Course, probe
from circle.baselines.settings import TrainerConfig
from circle.extractors import ImageShape

Settings = TypeVar("Settings", bound=TrainerConfig)

REHEARSAL_SHARE = 0.3  # of the budget that training a head on features may take


def is_fitted(setting: str) -> bool:
    """Whether a budget decides about a setting."""
    return setting.endswith(("epochs", "milestones")) or setting == "learning_rate_step"


def fit_budget(config: Settings, course: Course, shape: ImageShape, seconds: float) -> Settings:
    """The config with as many epochs as its training of all tasks may have to end within ``seconds``, at least one.

    The epochs of later tasks are as many as fit if those of the first task keep their proportion to them; what is left
    of the budget, less than another epoch of all tasks, is spent on the first task, as is everything with a frozen
    network. Milestones keep their places. Training heads on features of all classes so far may take up to a share.
    """
    costs = probe(config, shape)
    left = seconds - costs.others(course)
    changes: dict[str, int] = {}
    for name in config.rehearsals.values():
        epoch = costs.rehearsal(config, course)
        most: int = getattr(config, name)
        changes[name] = max(1, min(most, int(REHEARSAL_SHARE * seconds / epoch))) if epoch else most
        left -= changes[name] * epoch
    first, later = costs.epoch(config, course)
    if "epochs" in config.field_names() and "epochs" not in changes:
        share = config.first_epochs / max(1, config.epochs)  # pyright: ignore[reportAttributeAccessIssue]
        changes["epochs"] = max(1, int(max(0.0, left) / (share * first + later)))
        left -= changes["epochs"] * later
    if "initial_epochs" in config.field_names():
        changes["initial_epochs"] = max(1, int(max(0.0, left) / first))
    return config.replace(**changes, **_milestones(config, changes))


def _milestones(config: TrainerConfig, changes: dict[str, int]) -> dict[str, Any]:
    """Milestones at the same shares of the new numbers of epochs."""
    pairs = {
        "initial_milestones": "initial_epochs",
        "milestones": "epochs",
        "learning_rate_milestones": "initial_epochs",
        "adapter_milestones": "epochs",
    }
    scaled: dict[str, Any] = {}
    for name, epochs in pairs.items():
        if name in config.field_names() and epochs in changes:
            share = changes[epochs] / max(1, getattr(config, epochs))
            scaled[name] = tuple(max(1, round(share * each)) for each in getattr(config, name))
    if "learning_rate_step" in config.field_names() and "epochs" in changes:
        share = changes["epochs"] / max(1, config.epochs)  # pyright: ignore[reportAttributeAccessIssue]
        step: int = config.learning_rate_step  # pyright: ignore[reportAttributeAccessIssue]
        scaled["learning_rate_step"] = max(1, round(share * step))
    return scaled
