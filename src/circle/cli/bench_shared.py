"""What the benchmark commands share: flags of the rivals, bars while a run is under way, lines on what came of it."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Group, Parameter
from rich import progress as bars
from rich.console import Console

from circle.benchmark.jobs import CIRCLE
from circle.benchmark.results import Row, Run
from circle.benchmark.runner import Progress
from circle.cli import console
from circle.cli.flags import named, part_flags
from circle.machine import available_memory
from circle.method import Step
from circle.registry import list_datasets, list_methods

RivalFlags = Annotated[
    part_flags("method", list_methods(), named=False) | None,
    Parameter(group=Group("Settings of the rivals", sort_key=13)),
]
DatasetName = Annotated[named(list_datasets()) | None, Parameter(show_choices=False)]
MethodName = Annotated[named([CIRCLE, *list_methods()]), Parameter(show_choices=False)]
LOG_SECONDS = 30.0  # between lines, where no bars are shown
STOPPED = "stopped: finished {} are kept; run the same command again to resume"


def stage_bars(err: Console) -> bars.Progress:
    """Bars with a note beside them; they show on terminals only."""
    return bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.fields[note]}", markup=False),
        console=err,
        disable=not err.is_terminal,
    )


class RunBars(Progress):
    """Bars on a terminal, a line now and then in a log; and what came of every run."""

    def __init__(self, out: Console, err: Console) -> None:
        self.out, self.err = out, err
        self.bars = stage_bars(err)

    def note(self, text: str) -> None:
        console.remark(self.err, "note", text)

    def begin(self, label: str, seed: int) -> None:
        self.label, self.seed, self.spoken = label, seed, time.monotonic()
        self.bars = stage_bars(self.err)
        self.bars.start()
        self.whole = self.bars.add_task(f"{label}, seed {seed}", total=None, note="")
        self.part = self.bars.add_task("", total=None, visible=False, note="")

    def needs(self, memory: int, disk: int, seconds: float | None) -> None:
        available = available_memory()
        room = "" if available is None else f" of {console.size(available)}"
        rest = f"{console.size(disk)} of disk for features"
        if seconds is not None:
            rest = f"about {console.duration(seconds)} of learning"
        text = f"{self.label}, seed {self.seed}: about {console.size(memory)}{room} of memory, {rest}"
        self.err.print(text, soft_wrap=True)

    def features(self, what: str, done: int, total: int) -> None:
        text = f"features of {what} images"
        self.bars.update(self.part, description=text, completed=done, total=total, visible=True)

    def tasks(self, done: int, total: int) -> None:
        self.bars.update(self.part, visible=False)
        self.bars.update(self.whole, completed=done, total=total)

    def step(self, step: Step) -> None:
        losses = ", ".join(f"{name} {value:.3f}" for name, value in step.losses.items())
        where = f"task {step.task}, {step.stage}, epoch {step.epoch} of {step.epochs}"
        done, total = (step.epoch - 1) * step.steps + step.step, step.epochs * step.steps
        self.bars.update(self.part, description=where, completed=done, total=total, visible=True, note=losses)
        self._log(f"{where}: {losses}")

    def row(self, row: Row, accuracy: float) -> None:
        self.bars.update(self.whole, note=f"{100 * accuracy:.2f} % on all classes seen")
        self._log(f"{row.classes_seen} of {len(row.correct)} classes, {100 * accuracy:.2f} %")

    def end(self) -> None:
        self.bars.stop()

    def finished(self, run: Run) -> None:
        for line in summaries(run):
            self.out.print(line, soft_wrap=True)

    def _log(self, text: str) -> None:
        """No terminal, so somebody keeps a log: a line now and then, instead of a bar."""
        if self.bars.disable and time.monotonic() - self.spoken > LOG_SECONDS:
            self.spoken = time.monotonic()
            self.err.print(f"{self.label}: {text}", soft_wrap=True)


def summaries(run: Run) -> list[str]:
    """A line for every split of a run that has got anywhere, and why it went no further."""
    lines = [_summary(run, split) for split in run.info["tasks"] if run.reached(split)]
    if "stopped" in run.info:
        seen = run.rows[-1].classes_seen if run.rows else 0
        where = f"{seen} of {len(run.info['class_order'])} classes learned and evaluated"
        lines.append(f"{run.info['label']}, seed {run.info['seed']}: stopped, {run.info['stopped']}; {where}")
    return lines


def _summary(run: Run, split: str) -> str:
    record = run.record(split)
    learning, evaluation = run.seconds(split)[-1]
    return (
        f"{run.info['label']}, seed {run.info['seed']}, T = {split}: "
        f"A_bar {100 * record.average_incremental_accuracy:.2f} %, A_T {100 * record.final_accuracy:.2f} %, "
        f"forgetting {100 * record.forgetting:.2f} %, {learning:.1f} s learning (an image in the last tenth of the "
        f"tasks took {run.cost_growth(split):.2f} x one in the first), {evaluation:.0f} s evaluating"
    )
