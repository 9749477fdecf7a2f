"""Runs on disk with accuracies that are known, made for the tests of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from circle.benchmark.results import Row, Run, append_row, read_runs, write_info
from circle.data.tasks import task_sizes
from circle.report.report import Report
from circle.report.tables import Table, TableRow

BIRC2D = {"name": "birc2d", "width": 30}
CIRCLE = {"extractor": BIRC2D, "head": {"name": "slda"}, "groups": 8, "members": 8}


def make(
    folder: Path,
    accuracies: Sequence[int],
    *,
    tasks: Sequence[str] = ("10",),
    method: str = "circle",
    label: str = "CIRCLE paper",
    dataset: str = "cifar100",
    classes: int = 100,
    images: int = 100,
    seed: int = 0,
    config: dict[str, Any] | None = None,
    seconds: float = 10.0,
    **more: Any,
) -> Run:
    """A run on disk that answers ``accuracies[t]`` percent of each class right after task t of its first split."""
    folder.mkdir(parents=True)
    info = {
        "method": method,
        "label": label,
        "preset": None,
        "dataset": dataset,
        "tasks": list(tasks),
        "seed": seed,
        "class_order_seed": 0,
        "class_order": [f"class {number}" for number in range(classes)],
        "test_images": [images] * classes,
        "config": CIRCLE if config is None else config,
        "parameters": {"learnable": 7_040_000, "fixed": 4_650_000, "generated": 0},
        "command": f"circle bench run --dataset {dataset} --seeds {seed}",
        "started": "2026-11-15T10:00:00+00:00",
        "versions": {"circle": "0.1.0", "torch": "2.13.0"},
        "commit": "7b7eadf",
        "machine": {"processor": "test machine", "cores": 2},
        "peak_memory_bytes": 1_000_000_000,
        **more,
    }
    write_info(folder, info)
    seen = 0
    for number, (size, accuracy) in enumerate(zip(task_sizes(tasks[0], classes), accuracies, strict=False), start=1):
        seen += size
        correct = [accuracy * images // 100] * seen + [0] * (classes - seen)
        append_row(folder, Row(seen, correct, 500 * seen, seconds * number, 2.0 * number))
    return read_runs([folder])[0]


def steps(last: int) -> list[int]:
    """Accuracies of ten tasks that fall to ``last``, with the average ``last + 9``."""
    return [last + 18 - 2 * number for number in range(10)]


def table(report: Report, title: str) -> Table:
    return next(table for section in report.sections for table in section.tables if title in table.title)


def row(found: Table, label: str) -> TableRow:
    return next(row for row in found.rows if label in [entry.text for entry in row.entries])
