"""The tables of a report as plain data: what was measured here, and what the paper published beside it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import numpy as np

from circle.baselines.costs import is_fitted
from circle.benchmark.experiment import USER_DATA
from circle.benchmark.metrics import StreamRecord
from circle.benchmark.results import Run
from circle.data.tasks import task_sizes
from circle.errors import CircleError, counted
from circle.paper import published_results as published
from circle.paper.published_results import PublishedValue
from circle.registry import list_datasets

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


def collect(runs: Sequence[Run], names: Mapping[int, str] | None = None) -> tuple[list[Cell], list[Run]]:
    """All cells, by data set, split and label, and the runs left out because another repeats their seed.

    Runs of one label with different configs are different methods: what differs is then added to their labels.
    ``names`` has the data sets' (:func:`data_names`).
    """
    names = names or data_names(runs)
    labels = _labels(runs, names)
    members: dict[tuple[str, str, str], dict[tuple[Any, Any], Run]] = defaultdict(dict)
    for run in runs:
        for tasks in map(str, run.info["tasks"]):
            seeds = members[names[id(run)], tasks, labels[id(run)]]
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


def data_names(runs: Iterable[Run]) -> dict[int, str]:
    """What the data set of each run, by identity, is called in the report.

    Two folders of a user's may have one name: where classes or test images differ, the name says how many there are.
    A data set that CIRCLE knows by name has one test part only.
    """
    tests: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        test = dict(zip(run.info["class_order"], run.info["test_images"], strict=True))
        tests[published.dataset_key(run.info["dataset"])][json.dumps(test, sort_keys=True)].append(run)
    names: dict[int, str] = {}
    for name, parts in tests.items():
        taken = Counter[str]()
        (first, *_), *others = parts.values()
        if others and (name in published.DATASETS or (name in list_datasets() and name != USER_DATA)):
            raise CircleError(
                f"{others[0][0].folder} and {first.folder}: different classes or test images under the name "
                f"{first.info['dataset']!r}; report them apart"
            )
        for part in parts.values():
            shown = f"{name} ({_counts(part[0])})" if others else name
            taken[shown] += 1
            number = f", number {taken[shown]}" if taken[shown] > 1 else ""
            names |= {id(run): f"{shown}{number}" for run in part}
    return names


def _counts(run: Run) -> str:
    classes, images = len(run.info["class_order"]), sum(run.info["test_images"])
    return f"{counted(classes, 'class')}, {counted(images, 'test image')}"


def _labels(runs: Sequence[Run], names: Mapping[int, str]) -> dict[int, str]:
    """The label of each run, by identity; with what differs added where one label stands for several configs."""
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[names[id(run)], _display(run)].append(run)
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


MISSING = "—"
AVERAGE, FINAL = "Ā", "A_T"  # the paper's symbols: average incremental accuracy, final accuracy
METRICS: tuple[tuple[published.Metric, Callable[[StreamRecord], float]], ...] = (
    ("average", lambda record: record.average_incremental_accuracy),
    ("final", lambda record: record.final_accuracy),
)

COST_HEADINGS = (
    "tasks",
    "method",
    "learning (s)",
    "evaluation (s)",
    "peak memory (MB)",
    "learnable",
    "fixed",
    "learnable + fixed",
    "generated",
)


@dataclass(frozen=True)
class Entry:
    """One field of a table: a measured value or words, a small note on it, and the published value beside it."""

    text: str = ""
    mark: str = ""  # "best", "second" or nothing; so is paper_mark
    note: str = ""
    paper: str = ""
    paper_mark: str = ""


@dataclass(frozen=True)
class TableRow:
    """``muted`` rows hold published values only: nothing in them was measured here."""

    entries: tuple[Entry, ...]
    muted: bool = False


@dataclass(frozen=True)
class Table:
    """``spans`` is an optional upper line of headings, (text, columns) each; footnotes stand below."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[TableRow, ...]
    spans: tuple[tuple[str, int], ...] = ()
    note: str = ""
    footnotes: tuple[str, ...] = ()


def main_table(cells: Sequence[Cell]) -> Table:
    """The main comparison on one data set: methods against splits, average and final accuracy."""
    dataset, splits = cells[0].dataset, list(dict.fromkeys(cell.tasks for cell in cells))
    by_place = {(cell.label, cell.tasks): cell for cell in cells}
    labels = list(dict.fromkeys(cell.label for cell in _by_method(cells)))
    found = {cell.label: cell.published_method if comparable(cell) else None for cell in cells}
    methods = [found[label] for label in labels]
    columns: list[list[Entry]] = []
    for tasks in splits:
        column = [by_place.get((label, tasks)) for label in labels]
        present = {method for cell, method in zip(column, methods, strict=True) if cell}
        # Where a method was not measured for this split, its first row still shows the published value.
        spares = [method not in (*methods[:row], *present) for row, method in enumerate(methods)]
        for metric, value in METRICS:
            entries = measured([cell.summary(value) if cell else None for cell in column])
            paper = [
                published.main_result(dataset, tasks, method, metric) if method and (cell or spare) else None
                for cell, method, spare in zip(column, methods, spares, strict=True)
            ]
            entries = [count_stopped(entry, cell) for entry, cell in zip(entries, column, strict=True)]
            columns.append([beside(*pair) for pair in zip(entries, paper, strict=True)])
    rows = [TableRow((Entry(label), *fields)) for label, *fields in zip(labels, *columns, strict=True)]
    if comparable(cells[0]):
        rows += _unmeasured(cells, splits)
    return Table(
        title=f"{dataset_name(dataset)}: accuracy (%)",
        headings=("method", *[AVERAGE, FINAL] * len(splits)),
        spans=(("", 1), *((f"T = {tasks}", 2) for tasks in splits)),
        rows=tuple(rows),
        note=_size_note(cells[0]),
    )


def cost_table(cells: Sequence[Cell]) -> Table:
    """Time, memory and parameters on one data set."""
    rows: list[TableRow] = []
    for tasks in dict.fromkeys(cell.tasks for cell in cells):
        column = [cell for cell in _by_method(cells) if cell.tasks == tasks]
        times = [cell.seconds() for cell in column]
        learning = measured([pair[0] for pair in times], lowest=True)
        for cell, entry, (_, evaluation) in zip(column, learning, times, strict=True):
            method = cell.published_method if comparable(cell) else None
            cost = published.cost_result(cell.dataset, tasks, method) if method else None
            memory = [run.info["peak_memory_bytes"] / 1e6 for run in cell.complete if "peak_memory_bytes" in run.info]
            counts = next((run.info["parameters"] for run in cell.complete if run.info.get("parameters")), {})
            learnable, fixed = counts.get("learnable"), counts.get("fixed")
            stored = None if learnable is None or fixed is None else learnable + fixed
            rows.append(
                TableRow(
                    (
                        Entry(f"T = {tasks}"),
                        Entry(cell.label),
                        beside(count_stopped(entry, cell), cost and cost.minutes, "{:.2f} ± {:.2f} min"),
                        *measured([evaluation], notes=False),
                        *measured([summarise(memory)], decimals=0, notes=False),
                        Entry(millions(learnable), paper=f"{cost.learnable_millions:.2f} M" if cost else ""),
                        Entry(millions(fixed)),
                        Entry(millions(stored), paper=f"{cost.total_millions:.2f} M" if cost else ""),
                        Entry(millions(counts.get("generated"))),
                    )
                )
            )
        if comparable(cells[0]):
            rows += _unmeasured_costs(column, tasks)
    return Table(
        title=f"{dataset_name(cells[0].dataset)}: time, memory and parameters",
        headings=COST_HEADINGS,
        rows=tuple(rows),
        note="Fixed parameters are random and stored; generated ones are drawn from the seed when needed and never "
        "stored. The paper's times are minutes of training on its own hardware, at T = 20.",
    )


def retention_table(cells: Sequence[Cell]) -> Table:
    """Forgetting, and the first task at its own end and at the end of the stream."""
    rows: list[TableRow] = []
    for tasks in dict.fromkeys(cell.tasks for cell in cells):
        column = [cell for cell in _by_method(cells) if cell.tasks == tasks]
        forgetting = measured([cell.summary(lambda record: record.forgetting) for cell in column], lowest=True)
        start = measured([cell.summary(lambda record: record.first_task_accuracy[0]) for cell in column])
        end = measured([cell.summary(lambda record: record.first_task_accuracy[-1]) for cell in column])
        rows += [
            TableRow((Entry(f"T = {tasks}"), Entry(cell.label), *fields))
            for cell, *fields in zip(column, start, end, forgetting, strict=True)
        ]
    return Table(
        title=f"{dataset_name(cells[0].dataset)}: what is left of earlier tasks (%)",
        headings=("tasks", "method", "first task, when learned", "first task, at the end", "forgetting"),
        rows=tuple(rows),
    )


def stopped_table(runs: Sequence[Run]) -> Table | None:
    """Runs that did not reach the end of their stream, why, and how far they got."""
    rows: list[TableRow] = []
    for run in (run for run in runs if not run.complete):
        last, info = run.rows[-1], run.info
        accuracy = 100 * sum(last.correct) / sum(info["test_images"][: last.classes_seen])
        reached = f"{last.classes_seen} of {len(info['class_order'])} classes"
        what = (
            str(info["label"]),
            dataset_name(info["dataset"]),
            ", ".join(map(str, info["tasks"])),
            str(info["seed"]),
        )
        reason = str(info.get("stopped") or "not finished")
        rows.append(TableRow(tuple(map(Entry, (*what, reached, f"{accuracy:.2f}", reason)))))
    headings = ("method", "data set", "tasks", "seed", "reached", "accuracy there (%)", "reason")
    note = "They are drawn in the figures as far as they got and enter no mean."
    return Table("Runs that were stopped", headings, tuple(rows), note=note) if rows else None


def measured(
    summaries: Sequence[Summary | None], *, lowest: bool = False, decimals: int = 2, notes: bool = True
) -> list[Entry]:
    """A column of measured values; best and second are marked where there are at least two to compare.

    What is equal as printed is marked alike.
    """
    shown = [None if summary is None else round(summary.mean, decimals) for summary in summaries]
    ranked = sorted({value for value in shown if value is not None}, reverse=not lowest)
    enough = sum(value is not None for value in shown) > 1
    marks = dict(zip(ranked, ("best", "second"), strict=False)) if enough else {}
    entries: list[Entry] = []
    for summary, value in zip(summaries, shown, strict=True):
        if summary is None or value is None:
            entries.append(Entry(MISSING))
            continue
        text = f"{value + 0.0:.{decimals}f}" + ("" if summary.std is None else f" ± {summary.std:.{decimals}f}")
        entries.append(Entry(text, marks.get(value, ""), f"n = {summary.count}" if notes else ""))
    return entries


def beside(entry: Entry, value: PublishedValue | None, form: str = "{:.2f} ± {:.1f}") -> Entry:
    """The entry with the published value beside it."""
    if value is None:
        return entry
    text = "" if entry.text == MISSING else entry.text
    return Entry(text, entry.mark, entry.note, form.format(value.mean, value.std), value.mark)


def dataset_name(name: str) -> str:
    return published.DATASETS.get(published.dataset_key(name), name)


def millions(count: int | None) -> str:
    """A number of parameters, in millions."""
    if not count:
        return MISSING if count is None else "0"
    return f"{count / 1e6:.3f} M" if count < 1e5 else f"{count / 1e6:.2f} M"


def _by_method(cells: Sequence[Cell]) -> list[Cell]:
    """Cells in the methods' order, whichever splits they are of."""
    return sorted(cells, key=lambda cell: cell.rank)


def count_stopped(entry: Entry, cell: Cell | None) -> Entry:
    """Say so where runs of a cell are missing from its mean."""
    stopped = len(cell.runs) - len(cell.complete) if cell else 0
    if not stopped:
        return entry
    if not cell or not cell.complete:
        return Entry("stopped")
    return Entry(entry.text, entry.mark, f"{entry.note}, {stopped} stopped")


def _unmeasured(cells: Sequence[Cell], splits: Sequence[str]) -> list[TableRow]:
    """Rows of the paper's main table whose methods were not measured here at all."""
    known = {cell.published_method for cell in cells}
    rows: list[TableRow] = []
    for method, name in published.METHODS.items():
        values = [published.main_result(cells[0].dataset, tasks, method, m) for tasks in splits for m, _ in METRICS]
        if method not in known and any(values):
            rows.append(TableRow((Entry(name), *(beside(Entry(), value) for value in values)), muted=True))
    return rows


def _unmeasured_costs(column: Sequence[Cell], tasks: str) -> list[TableRow]:
    """Rows of the paper's time table whose methods were not measured here."""
    known = {cell.published_method for cell in column}
    rows: list[TableRow] = []
    for method, name in published.METHODS.items():
        cost = published.cost_result(column[0].dataset, tasks, method)
        if cost and method not in known:
            fields = (
                Entry(f"T = {tasks}"),
                Entry(name),
                beside(Entry(), cost.minutes, "{:.2f} ± {:.2f} min"),
                *[Entry()] * 2,
                Entry(paper=f"{cost.learnable_millions:.2f} M"),
                Entry(),
                Entry(paper=f"{cost.total_millions:.2f} M"),
                Entry(),
            )
            rows.append(TableRow(fields, muted=True))
    return rows


def _size_note(cell: Cell) -> str:
    """Why no published values stand beside those of a part of a data set."""
    info = cell.runs[0].info
    if cell.dataset not in published.SIZES or comparable(cell):
        return ""
    classes, images = published.SIZES[cell.dataset]
    return (
        f"These runs have {len(info['class_order']):,} classes and {sum(info['test_images']):,} test images, the "
        f"paper's {classes:,} and {images:,}: the published values do not apply."
    )
