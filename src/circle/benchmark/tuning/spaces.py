"""What a search may choose among: a few values for each setting, in the stages of the paper."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from circle.baselines.frozen import FrozenConfig
from circle.baselines.trainer import TrainerConfig
from circle.config import Config
from circle.errors import CircleError

Space = dict[str, tuple[Any, ...]]  # setting -> values worth trying

#: A single member's settings, by extractor. Its head's lambda follows from the statistics of each trial.
MEMBER: dict[str, Space] = {
    "birc2d": {
        "stem_channels": ((16,), (32,), (64,)),
        "patch_sizes": ((1,), (2,), (4,), (2, 4)),
        "width": (20, 30, 60),
        "leak": (0.5, 0.8, 1.0),
        "sparsity": (0.5, 0.8, 0.9, 0.95),
        "radius": (0.3, 0.6, 0.9, 1.1),
    },
    "local_contrast": {
        "kernels": (3, 4, 5, 6),
        "grid": (2, 3, 4),
        "window_spread": (0.12, 0.16, 0.2, 0.25, 0.3),
        "window_margin": (0.15, 0.2, 0.25, 0.3),
        "contrast_epsilon": (0.01, 0.02, 0.05, 0.1, 0.2),
        "grey_share": (0.3, 0.5, 0.7),
        "colours": (4, 8, 12, 16),
        "power": (0.5, 1.0),
    },
}
ENSEMBLE: Space = {"groups": (1, 2, 4, 8), "members": (1, 2, 4, 8)}
SIZES = (0.5, 0.75, 1.0, 1.5, 2.0)  # of the preset's parameters, where no number of them is asked for
STARTS = 3  # best settings of a stage that the next one starts from

RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
BATCHES = (16, 32, 64, 128)
FIRST_TASK = (1.0, 3.0, 10.0)  # times as many epochs there, of a budget, as the method is published with
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
#: Settings that are no coefficients: what the network is, where it is, and how it is fed.
LEFT_ALONE = ("network", "width", "first_kernel", "max_pool", "augmentations", "device", "optimiser", "scheduler")


@dataclasses.dataclass(frozen=True)
class Stage:
    """One part of a search: its name, the values of each setting, and the ones to begin with."""

    name: str
    space: Space
    given: dict[str, Any] = dataclasses.field(default_factory=dict)

    def part(self, settings: Sequence[str]) -> Stage:
        """The stage with some of its settings."""
        space, given = ({name: part[name] for name in part if name in settings} for part in (self.space, self.given))
        return Stage(self.name, space, given)

    def label(self, setting: str, value: Any) -> str:
        """How a value is written in the record of a search, and on the command line."""
        return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def value(self, setting: str, label: str) -> Any:
        """Inverse of :meth:`label`."""
        return next(value for value in self.space[setting] if self.label(setting, value) == label)

    def to_dict(self) -> dict[str, list[str]]:
        return {setting: [self.label(setting, value) for value in values] for setting, values in self.space.items()}


def member_space(extractor: Config) -> Space:
    """Values for the settings of a single member; those of the preset are among them."""
    wanted = MEMBER.get(extractor.name)
    if wanted is None:
        raise CircleError(f"no settings to search for extractor {extractor.name!r}: expected {' or '.join(MEMBER)}")
    space: Space = {}
    for setting, values in wanted.items():
        own = getattr(extractor, setting)
        if setting == "kernels":
            # One number moves the filters of all banks alike.
            values = tuple(tuple(value + each - own[0] for each in own) for value in values)
        elif setting == "stem_channels" and len(own) > 1:
            continue  # a published stem of several layers is left as it is
        space[setting] = _with(own, [value for value in values if _legal(extractor, {setting: value})])
    return space


def rival_stages(config: TrainerConfig, *, fitted: bool) -> list[Stage]:
    """Optimisation first, then the method's own coefficients; ``fitted``: epochs follow from a budget of seconds."""
    names = config.field_names()
    first: Space = {"rate_scale": RATES}
    if "batch_size" in names:
        first["batch_size"] = _with(config.batch_size, list(BATCHES))  # pyright: ignore[reportAttributeAccessIssue]
    if not fitted:
        first["epochs_scale"] = (0.5, 1.0, 2.0)
    elif "epochs" in names and "epochs" not in config.rehearsals.values():
        first["initial_scale"] = FIRST_TASK
    first["decay_scale"] = (0.2, 1.0, 5.0)
    own = {setting: 1.0 for setting in first if setting.endswith("_scale")}
    if "batch_size" in first:
        own["batch_size"] = config.batch_size  # pyright: ignore[reportAttributeAccessIssue]
    second = coefficient_space(config)
    stages = [Stage("optimisation", first, own)]
    if second:
        stages.append(Stage("coefficients", second, {name: getattr(config, name) for name in second}))
    return stages


def coefficient_space(config: TrainerConfig) -> Space:
    """Multiples of each coefficient of a method, and all values of a choice; what is no coefficient is left alone."""
    shared = {field.name for base in (TrainerConfig, FrozenConfig) for field in dataclasses.fields(base)}
    hints = typing.get_type_hints(type(config))
    space: Space = {}
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        optimised = any(
            word in name for word in ("learning_rate", "epochs", "batch_size", "weight_decay", "milestones")
        )
        if name in LEFT_ALONE or name in shared or optimised:
            continue
        if typing.get_origin(hints[name]) is Literal:
            values = [each for each in typing.get_args(hints[name]) if each != "none"]
        elif isinstance(value, bool | str | tuple):
            continue
        elif isinstance(value, int):
            values = [max(1, round(value * factor)) for factor in (0.5, 1.0, 2.0)]
        else:
            values = [value * factor for factor in FACTORS]
        space[name] = _with(value, [each for each in values if _legal(config, {name: each})])
    return space


def rival_changes(config: TrainerConfig, chosen: Mapping[str, Any]) -> TrainerConfig:
    """The config with chosen values: scales multiply, all else takes the place of what was there."""
    changes: dict[str, Any] = {}
    chosen = dict(chosen)
    if (share := chosen.pop("initial_scale", 1.0)) != 1.0:
        changes["initial_epochs"] = max(1, round(config.first_epochs * share))
        if "initial_milestones" in config.field_names():
            own: tuple[int, ...] = config.initial_milestones  # pyright: ignore[reportAttributeAccessIssue]
            changes["initial_milestones"] = tuple(round(each * share) for each in own)
    scales = {"rate_scale": ("learning_rate",), "decay_scale": ("weight_decay",), "epochs_scale": ("epochs",)}
    for setting, value in chosen.items():
        if setting not in scales:
            changes[setting] = value
            continue
        for name in config.field_names():
            if name in (scales[setting][0], f"initial_{scales[setting][0]}"):
                own = getattr(config, name)
                if own:  # none of them may stand for the number of another
                    changes[name] = max(1, round(own * value)) if isinstance(own, int) else own * value
            elif setting == "epochs_scale" and (name.endswith("milestones") or name == "learning_rate_step"):
                own = getattr(config, name)
                scaled = [max(1, round(value * each)) for each in (own if isinstance(own, tuple) else (own,))]
                changes[name] = tuple(scaled) if isinstance(own, tuple) else scaled[0]
    return config.replace(**changes)


def _legal(config: Config, changes: dict[str, Any]) -> bool:
    try:
        config.replace(**changes)
    except CircleError:
        return False
    return True


def _with(own: Any, values: Sequence[Any]) -> tuple[Any, ...]:
    """The values and the one there is, each once, in order."""
    every = {*values, own}
    return tuple(sorted(every, key=lambda value: (str(type(value)), value)))
