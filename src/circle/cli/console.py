"""What the commands share: progress bars, tables, sizes in words."""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from circle.distributed import environment
from circle.errors import CircleError, counted

if TYPE_CHECKING:
    from circle.predictor import ImageClassifier


def output() -> Console:
    """Standard output: results. A "[" in the name of a file or class is a "[": rich's markup is off everywhere."""
    return Console(highlight=False, markup=False)


def messages() -> Console:
    """Standard error: progress and remarks, so that results can be piped."""
    return Console(stderr=True, highlight=False, markup=False)


class RateColumn(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("- images/s" if speed is None else f"{speed:,.0f} images/s", style="progress.data.speed")


def progress(console: Console) -> Progress:
    """A bar with images/s and the time left; it shows on terminals only and leaves no litter in logs."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not (console.is_terminal and sys.stderr.isatty() and environment.is_rank_zero()),
    )


def size(count: float) -> str:
    """Bytes in words."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def duration(seconds: float) -> str:
    """Seconds in words, two units at most.

    >>> duration(3.2), duration(200), duration(9000), duration(1e6)
    ('3 s', '3 min 20 s', '2 h 30 min', '11 d 13 h')
    """
    whole = round(seconds)
    for unit, size, small, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {small}"
    return f"{whole} s"


def knowledge(path: Path, model: ImageClassifier) -> str:
    """What a model knows, in words."""
    return f"{path} knows {counted(len(model.classes_), 'class')} from {counted(model.samples_, 'image')}"


def remark(console: Console, mark: str, text: str) -> None:
    """A line that begins with a coloured word, such as "note"."""
    console.print(Text.assemble((mark, "yellow"), f" {text}"), soft_wrap=True)


def notes(lines: Iterable[str], console: Console) -> None:
    """What the user should know of how images were read: which part of them, what was ignored."""
    for line in lines:
        remark(console, "note", line)


def skipped(unreadable: list[str], console: Console, shown: int = 5) -> None:
    """Name the images that could not be read."""
    for reason in unreadable[:shown]:
        remark(console, "skipped", reason)
    if len(unreadable) > shown:
        remark(console, "skipped", f"{len(unreadable) - shown:,} more")


def check_writable(path: Path, *, force: bool) -> None:
    """Say now, not after the work, that a result could not be written; replace no file unless asked to.

    What exists and is no regular file is never replaced: a rename would put a file in the place of a device.
    """
    try:
        # Trying is the one test that also knows of read-only file systems and of the superuser.
        with tempfile.TemporaryFile(dir=path.parent):
            writable = not path.is_dir()
    except OSError:
        writable = False
    if not writable:
        raise CircleError(f"{path}: cannot be written; expected a file in a folder that exists and can be written to")
    # /dev/stdout is a link, and leads to a regular file where the output is redirected to one.
    if path.exists() and (not path.is_file() or path.parent.resolve() == Path("/dev")):
        raise CircleError(f"{path}: is a device, pipe or socket, which stays; expected the name of a file")
    if path.exists() and not force:
        raise CircleError(f"{path}: exists already; choose another name, or add --force to replace it")


def check_outputs(outputs: Sequence[Path | None], *, force: bool, model: Path | None = None) -> None:
    """Say now that results could not be written: each needs a file of its own, and none may be the model's.

    Not even ``force`` lets a result replace the model that it is made from: what that one learned would be lost.
    """
    wanted = [path for path in outputs if path is not None]
    for number, path in enumerate(wanted):
        if model is not None and is_same_file(path, model):
            raise CircleError(f"{path}: is the model itself, which would be lost; choose another name for the output")
        for other in wanted[:number]:
            if is_same_file(path, other):
                raise CircleError(f"{path}: named for two outputs; expected a file for each")
        check_writable(path, force=force)


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two names mean one file, be it there or still to be written."""
    try:
        return one.samefile(other)
    except OSError:  # one of them does not exist
        return one.resolve() == other.resolve()


def picture_kind(plot: Path | None) -> Literal["png", "svg"]:
    """The kind of picture that a file name asks for."""
    suffix = ".png" if plot is None else plot.suffix.lower()
    if suffix not in (".png", ".svg"):
        raise CircleError(f"{plot}: expected a name that ends in .png or .svg")
    return "svg" if suffix == ".svg" else "png"


def check_top_k(top_k: int) -> None:
    """Refuse a number of classes that says nothing."""
    if top_k < 1:
        raise CircleError(f"--top-k {top_k}: expected at least 1")


def check_csv(path: Path | None) -> None:
    """Refuse a name that does not say that the file is a table: it may be that of a model or of an image."""
    if path is not None and path.suffix.lower() != ".csv":
        raise CircleError(f"{path}: expected a name that ends in .csv")


def write_csv(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write a table, its headings in the first row, whole or not at all."""
    from circle.runtime.container import atomic_path  # NumPy takes a while to import, and the Tab key waits for none

    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    """Write plain data whole or not at all."""
    from circle.runtime.container import atomic_path

    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(facts, indent=2) + "\n")
