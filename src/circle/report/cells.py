"""From runs to cells: all seeds of one method on one data set and task split, and their means."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import numpy as np

from circle.baselines.budget import is_fitted
from circle.benchmark.metrics import StreamRecord
from circle.benchmark.results import Run
from circle.data.tasks import task_sizes
from circle.errors import CircleError
from circle.paper import published

REQUIRED = ("method", "label", "dataset", "tasks", "seed", "class_order", "test_images", "config")


@dataclass(frozen=True)
class Summary:
    """Mean over seeds and their sample standard deviation (None for a single seed)."""

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True, eq=False)
class Curve:
    """Mean and standard deviation over seeds at the ends of the tasks; NaN deviation where only one seed got there."""

    classes_seen: np.ndarray
    learning_seconds: np.ndarray
    mean: np.ndarray  # in percent, as the deviation
    std: np.ndarray


@dataclass(frozen=True, eq=False)
class Cell:
    """All seeds of one method, with one config, on one task split of one data set."""

    dataset: str
    tasks: str
    label: str
    runs: tuple[Run, ...]

    @property
    def config(self) -> dict[str, Any]:
        return _plain_config(self.runs[0])

    @property
    def named(self) -> bool:
        """Whether the label is the runs' own, and not one of several configs under the same label."""
        return self.label == _display(self.runs[0])

    @cached_property
    def complete(self) -> tuple[Run, ...]:
        """Runs that reached the end of the stream; only these have an average and a final accuracy."""
        return tuple(run for run in self.runs if run.complete)

    @cached_property
    def records(self) -> list[StreamRecord]:
        """Counts of all runs that finished at least one task, complete ones first."""
        ordered = [*self.complete, *(run for run in self.runs if not run.complete)]
        return [record for run in ordered if (record := record_of(run, self.tasks))]

    def summary(self, metric: Callable[[StreamRecord], float]) -> Summary | None:
        """A metric of the complete runs, in percent."""
        return summarise([100 * metric(record) for record in self.records[: len(self.complete)]])

    def seconds(self) -> tuple[Summary | None, Summary | None]:
        """(learning, evaluation) seconds of the complete runs."""
        pairs = [run.seconds(self.tasks)[-1] for run in self.complete]
        return summarise([pair[0] for pair in pairs]), summarise([pair[1] for pair in pairs])

    @property
    def published_method(self) -> str | None:
        """The paper's method that this is, or None: CIRCLE with another extractor or head is not the paper's CIRCLE."""
        key = published.method_key(str(self.runs[0].info["method"]))
        if key == "circle":
            extractor, head = (self.config.get(part, {}) for part in ("extractor", "head"))
            ours = (
                published.extractor_key(extractor or {"name": "birc2d"}),
                published.head_key(head or {"name": "slda"}),
            )
            return key if ours == ("birc2d_circle", "slda_circle") else None
        return key

    @property
    def rank(self) -> tuple[int, str]:
        """The paper's order of methods with CIRCLE last; methods that the paper lacks come before CIRCLE."""
        order = list(published.METHODS)
        key = published.method_key(str(self.runs[0].info["method"]))
        return (order.index(key) if key in order[:-1] else len(order) + (key == "circle")), self.label

    def curve(self, metric: Callable[[StreamRecord], np.ndarray]) -> Curve | None:
        """A metric over the stream. Runs that were stopped count as far as they got."""
        pairs = [(record, run) for run in self.runs if (record := record_of(run, self.tasks))]
        if not pairs:
            return None
        longest = max(len(record.tasks) for record, _ in pairs)
        values, seconds = np.full((2, len(pairs), longest), np.nan)
        for row, (record, run) in enumerate(pairs):
            values[row, : len(record.tasks)] = 100 * metric(record)
            seconds[row, : len(record.tasks)] = [pair[0] for pair in run.seconds(self.tasks)][: len(record.tasks)]
        several = (~np.isnan(values)).sum(axis=0) >= 2
        std = np.full(longest, np.nan)
        std[several] = np.nanstd(values[:, several], axis=0, ddof=1)
        ends = np.cumsum(task_sizes(self.tasks, len(self.runs[0].info["class_order"])))[:longest]
        return Curve(ends, np.nanmean(seconds, axis=0), np.nanmean(values, axis=0), std)


def summarise(values: Sequence[float]) -> Summary | None:
    """Mean and sample standard deviation, None of nothing.

    >>> summarise([1.0, 2.0, 3.0])
    Summary(mean=2.0, std=1.0, count=3)
    """
    if not values:
        return None
    return Summary(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def record_of(run: Run, tasks: str) -> StreamRecord | None:
    """The counts of a run for one split, or None where it was stopped before its first task ended."""
    return run.record(tasks) if run.complete or run.reached(tasks) else None


def collect(runs: Sequence[Run]) -> tuple[list[Cell], list[Run]]:
    """All cells, by data set, split and label, and the runs left out because another repeats their seed.

    Runs of one label with different configs are different methods: what differs is then added to their labels.
    """
    check_runs(runs)
    labels = _labels(runs)
    members: dict[tuple[str, str, str], dict[tuple[Any, Any], Run]] = defaultdict(dict)
    for run in runs:
        for tasks in map(str, run.info["tasks"]):
            seeds = members[published.dataset_key(run.info["dataset"]), tasks, labels[id(run)]]
            seed = (run.info["seed"], run.info.get("class_order_seed"))
            # The same seed twice would only make the deviation look smaller: the one that got further stays.
            if seed not in seeds or len(run.rows) > len(seeds[seed].rows):
                seeds[seed] = run
    cells = [Cell(*key, tuple(seeds.values())) for key, seeds in members.items()]
    used = {id(run) for cell in cells for run in cell.runs}
    cells.sort(key=lambda cell: (_rank(cell.dataset, published.DATASETS), _split_rank(cell), cell.rank))
    return cells, [run for run in runs if id(run) not in used]


def same_but(cells: Iterable[Cell], *parts: str) -> list[list[Cell]]:
    """Groups of at least two cells of one data set and split whose configs differ in these parts alone."""
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        # Other methods may have settings of these names; CIRCLE's are tables and numbers.
        if all(isinstance(cell.config.get(part), (Mapping, int)) for part in parts):
            rest = {name: value for name, value in cell.config.items() if name not in parts}
            groups[json.dumps([cell.dataset, cell.tasks, rest], sort_keys=True)].append(cell)
    return [group for group in groups.values() if len(group) > 1]


def comparable(cell: Cell) -> bool:
    """Whether the paper's values for this data set apply: all of its classes and test images are there."""
    info = cell.runs[0].info
    return published.SIZES.get(cell.dataset) == (len(info["class_order"]), sum(info["test_images"]))


def check_runs(runs: Sequence[Run]) -> None:
    """Refuse what cannot be put into one table, before anything is written."""
    if not runs:
        raise CircleError("no results to report: expected at least one run")
    tests: dict[str, tuple[dict[str, int], Run]] = {}
    for run in runs:
        missing = [name for name in REQUIRED if name not in run.info]
        if missing:
            raise CircleError(f"{run.folder}: the run record has no {missing[0]!r}")
        if not run.info["tasks"] or not isinstance(run.info["config"], dict):
            raise CircleError(f"{run.folder}: the run record has no usable tasks or config")
        if not run.rows:
            raise CircleError(f"{run.folder}: no rows, expected at least one evaluation")
        if len(run.info["class_order"]) != len(run.info["test_images"]):
            raise CircleError(f"{run.folder}: the run record has not one number of test images for each class")
        test = dict(zip(run.info["class_order"], run.info["test_images"], strict=True))
        name = published.dataset_key(run.info["dataset"])
        first, other = tests.setdefault(name, (test, run))
        if first != test:
            raise CircleError(
                f"{run.folder} and {other.folder}: different classes or test images under the name "
                f"{run.info['dataset']!r}; report them apart"
            )


def _labels(runs: Sequence[Run]) -> dict[int, str]:
    """The label of each run, by identity; with what differs added where one label stands for several configs."""
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[published.dataset_key(run.info["dataset"]), _display(run)].append(run)
    labels: dict[int, str] = {}
    for (_, label), group in groups.items():
        # A method may have a config of its own for every split; only several in one split need telling apart.
        per_split = defaultdict(set)
        for run in group:
            for tasks in run.info["tasks"]:
                per_split[str(tasks)].add(_key(run))
        if max(map(len, per_split.values())) < 2:
            labels |= {id(run): label for run in group}
            continue
        suffixes = _differences({_key(run): _plain_config(run) for run in group})
        labels |= {id(run): f"{label} ({suffixes[_key(run)]})" for run in group}
    return labels


def _differences(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """For each config a short text of the settings in which it differs from the others."""
    flat = {key: _flatten(config) for key, config in configs.items()}
    names = list(dict.fromkeys(name for config in flat.values() for name in config))
    varying = [name for name in names if len({json.dumps(config.get(name)) for config in flat.values()}) > 1]
    # Another kind of extractor has other settings altogether: its name says it all.
    for part in [name.removesuffix(".name") for name in varying if name.endswith(".name")]:
        varying = [name for name in varying if not name.startswith(f"{part}.") or name == f"{part}.name"]
    texts = {
        key: ", ".join(f"{name.removesuffix('.name')} {config[name]}" for name in varying[:4] if name in config)
        for key, config in flat.items()
    }
    repeated = Counter(texts.values())
    return {
        key: text if text and repeated[text] == 1 else f"{text} variant {number}".strip()
        for number, (key, text) in enumerate(texts.items(), start=1)
    }


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _plain_config(run: Run) -> dict[str, Any]:
    """The config without what the runs of a cell differ in: the seed, and what was fitted to a budget of seconds."""
    fitted = run.info.get("budget") is not None
    return {
        name: value for name, value in run.info["config"].items() if name != "seed" and not (fitted and is_fitted(name))
    }


def _key(run: Run) -> str:
    return json.dumps(_plain_config(run), sort_keys=True)


def _display(run: Run) -> str:
    """The label; a method that is only called by its registered name gets the paper's spelling."""
    label = str(run.info["label"])
    key = published.method_key(label) if label == run.info["method"] else None
    return published.METHODS[key] if key else label


def _rank(name: str, order: Iterable[str]) -> tuple[int, str]:
    known = list(order)
    return (known.index(name) if name in known else len(known), name)


def _split_rank(cell: Cell) -> tuple[int, str]:
    """By number of tasks."""
    return len(task_sizes(cell.tasks, len(cell.runs[0].info["class_order"]))), cell.tasks
