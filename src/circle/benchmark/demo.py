"""The demo: digits arrive two classes at a time; who still knows the first ones at the end?"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from torch import Tensor

from circle.baselines.finetune import FineTune
from circle.benchmark.metrics import DEFINITIONS, StreamRecord, count_correct
from circle.data.digits import DigitsSplit, load_digits_images
from circle.data.tasks import split_tasks
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.method import CircleMethod, Images, Method, Task, predict
from circle.report.plots import plot_streams

TASKS = 5
PLOT_NAME = "circle-demo.png"
CIRCLE, CLASS_MEAN, NETWORK = "CIRCLE", "nearest class mean", "fine-tuned network"
HEADINGS = {
    CIRCLE: CIRCLE,
    CLASS_MEAN: "nearest class mean\n(shares CIRCLE's\nfeatures)",
    NETWORK: "fine-tuned\nnetwork",
}


@dataclass(frozen=True, eq=False)
class ContestantResult:
    """One contestant's counts, wall clock and size of what it learned, in bytes.

    ``learning_seconds`` and ``state_bytes`` are None where the contestant learns nothing of its own.
    """

    record: StreamRecord
    learning_seconds: float | None
    evaluation_seconds: float
    state_bytes: int | None


@dataclass(frozen=True, eq=False)
class DemoResult:
    """All contestants by name, and where the plot is."""

    contestants: dict[str, ContestantResult]
    plot: Path


class ClassMeanView(CircleMethod):
    """CIRCLE's own statistics under another head: whatever CIRCLE has learned, this knows."""

    def learn(self, task: Task) -> None:
        """Only look again: the statistics are CIRCLE's and already hold this task."""
        # Not once at the start: an empty classifier has no statistics yet that a view could share.
        self.view = self.classifier.with_head("ncm")

    def scores(self, images: Images) -> Tensor:
        return CircleMethod(self.view).scores(images)


@dataclass
class Run:
    """A contestant on its way through the tasks."""

    method: Method
    rows: list[np.ndarray] = field(default_factory=list)
    learning_seconds: float = 0.0
    evaluation_seconds: float = 0.0

    def advance(self, task: Task, test: Task, class_order: Sequence[int]) -> float:
        """Learn a task, then count right answers on the test images of all classes seen: their share."""
        start = perf_counter()
        self.method.learn(task)
        learned = perf_counter()
        predictions = predict(self.method, test.images)
        self.learning_seconds += learned - start
        self.evaluation_seconds += perf_counter() - learned
        self.rows.append(count_correct(test.labels, predictions, class_order))
        return float(self.rows[-1].sum() / len(test.labels))


def run_demo(output: Path, seed: int = 0, console: Console | None = None) -> DemoResult:
    """Class-incremental learning of the digits, 5 tasks of 2 classes, by three contestants in one run.

    Shows progress and a table on ``console`` and writes a PNG to ``output``, or to ``circle-demo.png`` in it where
    it is a folder. ``seed`` is the models' seed; the class order is always that of ``class_order_seed=0``.
    """
    console = console or Console()
    plot = _check_output(Path(output))
    digits = load_digits_images()
    tasks = split_tasks(range(10), TASKS)

    classifier = CircleClassifier.from_preset("small", channels=1, seed=seed)
    network = FineTune(seed=seed)
    # The order counts: the class means are read from CIRCLE's statistics after CIRCLE has learned the task.
    runs = {
        CIRCLE: Run(CircleMethod(classifier)),
        CLASS_MEAN: Run(ClassMeanView(classifier)),
        NETWORK: Run(network),
    }
    _run_tasks(runs, tasks, digits, console)

    state_bytes = {CIRCLE: classifier.statistics_bytes, CLASS_MEAN: None, NETWORK: network.parameter_bytes}
    total = np.array([np.sum(digits.test_labels == label) for task in tasks for label in task])
    contestants = {
        name: ContestantResult(
            record=StreamRecord(np.array(run.rows), total, tasks),
            learning_seconds=None if state_bytes[name] is None else run.learning_seconds,
            evaluation_seconds=run.evaluation_seconds,
            state_bytes=state_bytes[name],
        )
        for name, run in runs.items()
    }
    _print_report(contestants, console)
    plot_streams(
        {name: contestant.record for name, contestant in contestants.items()},
        plot,
        title=f"Handwritten digits, {len(tasks[0])} new classes per task",
    )
    console.print("Plot:", str(plot), soft_wrap=True, markup=False, highlight=False)
    return DemoResult(contestants, plot)


def _check_output(output: Path) -> Path:
    """The plot's path, or an error before any time is spent."""
    plot = output / PLOT_NAME if output.is_dir() else output
    if not plot.parent.is_dir():
        raise CircleError(f"{plot}: expected a path in an existing folder, found none at {plot.parent}")
    if plot.is_dir():
        raise CircleError(f"{plot}: is a folder, expected a file or nothing where the plot goes")
    try:
        # Trying is the one test that also knows of read-only file systems and of the superuser.
        with tempfile.TemporaryFile(dir=plot.parent):
            return plot
    except OSError as error:
        raise CircleError(f"{plot}: cannot be written ({error.strerror})") from error


def _run_tasks(runs: dict[str, Run], tasks: list[list[int]], digits: DigitsSplit, console: Console) -> None:
    """Bring every task to every contestant, with one live line for each."""
    class_order = [label for task in tasks for label in task]
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(bar_width=20),
        TextColumn("task {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[accuracy]}"),
    )
    with Progress(*columns, console=console) as progress:
        lines = {name: progress.add_task(name, total=len(tasks), accuracy="") for name in runs}
        for index, classes in enumerate(tasks):
            arriving = np.isin(digits.train_labels, classes)
            seen = np.isin(digits.test_labels, class_order[: (index + 1) * len(classes)])
            task = Task(digits.train_images[arriving], digits.train_labels[arriving])
            test = Task(digits.test_images[seen], digits.test_labels[seen])
            for name, run in runs.items():
                accuracy = run.advance(task, test, class_order)
                text = f"{100 * accuracy:.1f} % on all classes seen"
                progress.update(lines[name], advance=1, accuracy=text)


def _print_report(contestants: dict[str, ContestantResult], console: Console) -> None:
    """The table, a column per contestant so that it fits 80 characters, and what its rows mean."""
    records = [contestant.record for contestant in contestants.values()]
    table = Table(title="Handwritten digits, class-incremental; accuracies in %", title_style="bold")
    table.add_column("")
    for name in contestants:
        table.add_column(HEADINGS[name], justify="right")

    def add_accuracies(label: str, values: Sequence[float], end_section: bool = False) -> None:
        table.add_row(label, *[f"{100 * value:.2f}" for value in values], end_section=end_section)

    for index, classes in enumerate(records[0].tasks):
        label = f"after task {index + 1} (+ {', '.join(map(str, classes))})"
        add_accuracies(label, [record.accuracy_after_task[index] for record in records], index == TASKS - 1)
    averages = [record.average_incremental_accuracy for record in records]
    add_accuracies("average incremental accuracy", averages)
    add_accuracies("final accuracy", [record.final_accuracy for record in records])
    first_task = [record.first_task_accuracy[-1] for record in records]
    add_accuracies("first task accuracy at the end", first_task, end_section=True)
    table.add_row("seconds, learning + evaluating", *[_seconds(contestant) for contestant in contestants.values()])
    table.add_row("learned state, size", *[_size(contestant) for contestant in contestants.values()])
    console.print(table)

    shown = ("accuracy_after_task", "average_incremental_accuracy", "final_accuracy", "first_task_accuracy")
    definitions = {name.replace("_", " "): DEFINITIONS[name] for name in shown}
    definitions[CLASS_MEAN] = "another head on CIRCLE's statistics; its seconds are its evaluation alone"
    definitions["learned state"] = "bytes of CIRCLE's statistics, and of the network's weights"
    for name, text in definitions.items():
        console.print(f"{name}: {text}", style="dim", markup=False, highlight=False)


def _seconds(contestant: ContestantResult) -> str:
    learning = contestant.learning_seconds
    return f"{'shared' if learning is None else f'{learning:.1f}'} + {contestant.evaluation_seconds:.1f}"


def _size(contestant: ContestantResult) -> str:
    return "shared" if contestant.state_bytes is None else decimal(contestant.state_bytes)
