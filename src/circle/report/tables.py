"""The tables of a report as plain data: what was measured here, and what the paper published beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from circle.benchmark.metrics import StreamRecord
from circle.benchmark.results import Run
from circle.paper import published
from circle.paper.published import PublishedValue
from circle.report.cells import Cell, Summary, comparable, summarise

MISSING = "—"
AVERAGE, FINAL = "Ā", "A_T"  # the paper's symbols: average incremental accuracy, final accuracy
METRICS: tuple[tuple[published.Metric, Callable[[StreamRecord], float]], ...] = (
    ("average", lambda record: record.average_incremental_accuracy),
    ("final", lambda record: record.final_accuracy),
)

COST_HEADINGS = (
    *("tasks", "method", "learning (s)", "evaluation (s)", "peak memory (MB)"),
    *("learnable", "fixed", "learnable + fixed", "generated"),
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
