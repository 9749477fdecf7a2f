"""circle demo"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from circle.benchmark.demo import CIRCLE, CLASS_MEAN, NETWORK, TASKS, ContestantResult, run_demo
from circle.benchmark.metrics import DEFINITIONS
from circle.cli import console
from circle.cli.console import check_writable
from circle.report.figures import plot_streams

PLOT_NAME = "circle-demo.png"
HEADINGS = {
    CIRCLE: CIRCLE,
    CLASS_MEAN: "nearest class mean\n(shares CIRCLE's\nfeatures)",
    NETWORK: "fine-tuned\nnetwork",
}


def demo(*, output: Path = Path(PLOT_NAME), seed: int = 0) -> int:
    """Class-incremental learning of handwritten digits: 5 tasks of 2 classes, CIRCLE beside two references.

    Parameters
    ----------
    output
        Where the plot goes.
    seed
        Seed of the models.
    """
    show_demo(output, seed, console.output())
    return 0


def show_demo(output: Path, seed: int, console: Console) -> tuple[dict[str, ContestantResult], Path]:
    """Run the demo with a live line for each contestant, print the table, write the plot; results and plot's path."""
    plot = _plot_path(output)
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(bar_width=20),
        TextColumn("task {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[accuracy]}"),
    )
    with Progress(*columns, console=console) as progress:
        lines = {name: progress.add_task(name, total=TASKS, accuracy="") for name in HEADINGS}

        def on_task(name: str, accuracy: float) -> None:
            progress.update(lines[name], advance=1, accuracy=f"{100 * accuracy:.1f} % on all classes seen")

        contestants = run_demo(seed, on_task)
    _print_report(contestants, console)
    records = {name: contestant.record for name, contestant in contestants.items()}
    classes = len(records[CIRCLE].tasks[0])
    plot_streams(records, plot, title=f"Handwritten digits, {classes} new classes per task")
    console.print("Plot:", str(plot), soft_wrap=True, markup=False, highlight=False)
    return contestants, plot


def _plot_path(output: Path) -> Path:
    """The plot's path, or an error before any time is spent."""
    plot = output / PLOT_NAME if output.is_dir() else output
    check_writable(plot, force=True)
    return plot


def _print_report(contestants: Mapping[str, ContestantResult], console: Console) -> None:
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
