"""The record of a run: a folder with ``run.json`` (what was run, where) and ``rows.jsonl`` (what came of it).

Rows are appended and never changed. A row is an evaluation: after so many classes of the class order, so many
right answers on each. Every metric follows from these counts, so nothing else is stored twice. While the run is under
way, ``state.safetensors`` holds the method's state, from which a killed run is resumed.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import resource
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import circle
from circle import files
from circle.benchmark.metrics import StreamRecord
from circle.data.tasks import task_sizes
from circle.distributed.environment import world_size
from circle.errors import CircleError
from circle.labels import decode_labels, encode_labels
from circle.runtime.container import atomic_path

INFO, ROWS, CONFUSION, STATE = "run.json", "rows.jsonl", "confusion.csv", "state.safetensors"


@dataclass(frozen=True)
class Row:
    """One evaluation. Seconds and samples count from the start of the run."""

    classes_seen: int
    correct: list[int]  # [C] in class order; 0 for classes yet to come
    samples: int
    learning_seconds: float
    evaluation_seconds: float


@dataclass
class Run:
    """One method with one seed on one data set, evaluated wherever one of its task splits ends a task.

    Attributes
    ----------
    folder
        Where the record is.
    info
        Plain data: ``method`` (its registered name), ``label`` (how reports call it), ``preset``, ``dataset``,
        ``tasks`` (list of specifications such as "20"), ``seed``, ``class_order_seed``, ``class_order`` (class
        names), ``test_images`` (per class, in class order), ``config`` (resolved), ``command``, ``started``,
        ``versions``, ``commit``, ``machine``; for a run of a study ``study`` (its name, variant, budget, the settings
        selected and their accuracy on held-back training images); and once it ended ``finished``,
        ``peak_memory_bytes``, ``parameters`` (learnable, fixed, generated) and, where it was stopped before its end,
        ``stopped`` with the reason.
    rows
        The evaluations so far.

    Examples
    --------
    ``run.record("20").final_accuracy`` is the accuracy after the last of 20 tasks, ``run.seconds("20")[-1]`` what
    learning and evaluating took until then.
    """

    folder: Path
    info: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return bool(self.rows) and self.rows[-1].classes_seen == len(self.info["class_order"])

    def reached(self, tasks: str) -> bool:
        """Whether the first task of a split is done: the splits of one pass end their tasks at different times."""
        first = task_sizes(tasks, len(self.info["class_order"]))[0]
        return any(row.classes_seen == first for row in self.rows)

    def record(self, tasks: str) -> StreamRecord:
        """Counts at the ends of the tasks of one split; a run that was stopped gives the tasks it reached."""
        sizes = task_sizes(tasks, len(self.info["class_order"]))
        ends = np.cumsum(sizes)
        by_end = {row.classes_seen: row for row in self.rows}
        reached = [int(end) for end in ends if int(end) in by_end]
        if not reached or reached != [int(end) for end in ends[: len(reached)]]:
            raise CircleError(f"{self.folder}: no rows for the split {tasks}")
        seen = reached[-1]
        order = self.info["class_order"][:seen]
        starts = [0, *reached[:-1]]
        return StreamRecord(
            np.array([by_end[end].correct[:seen] for end in reached]),
            np.array(self.info["test_images"][:seen]),
            [order[start:stop] for start, stop in zip(starts, reached, strict=True)],
        )

    def seconds(self, tasks: str) -> list[tuple[float, float]]:
        """(learning, evaluation) seconds since the start at the end of each task of one split."""
        ends = set(np.cumsum(task_sizes(tasks, len(self.info["class_order"]))).tolist())
        return [(row.learning_seconds, row.evaluation_seconds) for row in self.rows if row.classes_seen in ends]

    def cost_growth(self, tasks: str) -> float:
        """Seconds of learning per image in the last tenth of the tasks, over those in the first tenth.

        1 means that a task late in the stream costs no more than an early one.
        """
        ends = set(np.cumsum(task_sizes(tasks, len(self.info["class_order"]))).tolist())
        rows = [Row(0, [], 0, 0.0, 0.0), *(row for row in self.rows if row.classes_seen in ends)]
        tenth = max(1, (len(rows) - 1) // 10)

        def cost(first: Row, last: Row) -> float:
            return (last.learning_seconds - first.learning_seconds) / (last.samples - first.samples)

        return cost(rows[-1 - tenth], rows[-1]) / cost(rows[0], rows[tenth])


def write_info(folder: Path, info: dict[str, Any]) -> None:
    """Replace ``run.json`` in one step."""
    with atomic_path(folder / INFO) as temporary:
        temporary.write_text(json.dumps(info, indent=1) + "\n")


def append_row(folder: Path, row: Row) -> None:
    """Add a row and make sure that it is on disk."""
    try:
        with (folder / ROWS).open("a") as file:
            file.write(_line(row))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CircleError(f"{folder / ROWS}: cannot be written ({error.strerror}); finished tasks are kept") from error


def keep_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Replace all rows in one step: those after the last checkpoint are learned again."""
    with atomic_path(folder / ROWS) as temporary:
        temporary.write_text("".join(_line(row) for row in rows))


def _line(row: Row) -> str:
    """A row as JSON; classes yet to come are left out, which halves the record of a long stream."""
    values = {**row.__dict__, "correct": row.correct[: row.classes_seen]}
    return json.dumps(values, separators=(",", ":")) + "\n"


def write_confusion(folder: Path, classes: Sequence[str], labels: np.ndarray, predicted: np.ndarray) -> None:
    """``confusion.csv``: true class, predicted class, number of test images; most frequent first."""
    pairs, counts = np.unique(np.stack([labels, predicted], 1), axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    with atomic_path(folder / CONFUSION) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["true", "predicted", "images"])
        writer.writerows(
            [classes[t], classes[p], int(n)] for (t, p), n in zip(pairs[order], counts[order], strict=True)
        )


def read_run(folder: Path) -> Run:
    """One run; a last line that a kill cut short is left out."""
    try:
        info = json.loads((folder / INFO).read_text())
    except (OSError, ValueError) as error:
        raise CircleError(f"{folder / INFO}: not a readable run record ({error})") from error
    rows = []
    path = folder / ROWS
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            row = Row(**json.loads(line))
            to_come = len(info["class_order"]) - len(row.correct)
            rows.append(replace(row, correct=row.correct + [0] * to_come))
        except (ValueError, TypeError) as error:
            if number == len(lines):
                break
            raise CircleError(f"{path}, line {number}: not a readable row ({error})") from error
    return Run(folder, info, rows)


def read_runs(folders: Iterable[Path]) -> list[Run]:
    """All runs in and below the folders, sorted by path; those without a single row are left out."""
    found: dict[Path, Run] = {}
    for folder in folders:
        if not folder.is_dir():
            raise CircleError(f"{folder}: no such folder of results")
        for path in sorted(folder.rglob(INFO)):
            run = read_run(path.parent)
            if run.rows:
                found[path.parent.resolve()] = run
    if not found:
        raise CircleError("no results found: expected folders that `circle bench run` wrote")
    return list(found.values())


def check_folder(path: Path | str | None) -> None:
    """Say now, not after the work, that a folder for results, which is made where it is missing, cannot be one."""
    if path is None:
        return
    whole = Path(path).absolute()
    nearest = next(each for each in (whole, *whole.parents) if each.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        what = "is a file" if nearest.is_file() else "cannot be written to"
        raise CircleError(f"{path}: cannot be a folder for results: {nearest} {what}; expected a folder, or a new name")


def environment() -> dict[str, Any]:
    """Versions, commit and machine, for the record."""
    return {
        "versions": {
            "circle": circle.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "commit": _commit(),
        "machine": {
            "system": platform.system(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "processes": world_size(),
        },
    }


def peak_memory_bytes() -> int:
    """The most memory that this process has held at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)


def _commit() -> str | None:
    """Commit of the source tree, marked where files were changed; None outside a checkout."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def save_state(path: Path, state: dict[str, Any], progress: dict[str, Any]) -> None:
    """Write a nested dictionary of tensors and plain data, and how far the run had come."""
    plain, tensors = split_tensors(state)
    files.write(path, tensors, {"plain": plain, "progress": progress})


def load_state(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inverse of :func:`save_state`."""
    tensors, header = files.read(path)
    return join_tensors(header["plain"], tensors), header["progress"]


def split_tensors(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A state as what JSON can hold, and tensors by their dotted path."""
    return _plain(state), tensors_of(state, {})


def tensors_of(state: dict[str, Any], found: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """All tensors of a nested dictionary by their dotted path; whole numbers take the smallest type that holds them."""
    for name, value in state.items():
        if isinstance(value, dict):
            tensors_of(value, found, f"{prefix}{name}.")
        elif isinstance(value, Tensor):
            found[f"{prefix}{name}"] = value
    return found


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """The skeleton of a state: tensors become a mark, lists of labels their JSON form."""
    result: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, dict):
            result[name] = {"dict": _plain(value)}
        elif isinstance(value, Tensor):
            result[name] = {"tensor": True}
        elif isinstance(value, list):
            result[name] = {"labels": encode_labels(value)}
        else:
            result[name] = {"value": value}
    return result


def join_tensors(plain: dict[str, Any], tensors: dict[str, Tensor], prefix: str = "") -> dict[str, Any]:
    """Inverse of :func:`split_tensors`."""
    result: dict[str, Any] = {}
    for name, entry in plain.items():
        (kind, value), *_ = entry.items()
        if kind == "dict":
            result[name] = join_tensors(value, tensors, f"{prefix}{name}.")
        elif kind == "tensor":
            result[name] = tensors[f"{prefix}{name}"]
        else:
            result[name] = decode_labels(value) if kind == "labels" else value
    return result


def same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two states are equal to the last bit."""
    mine, theirs = tensors_of(one, {}), tensors_of(other, {})
    return (
        _plain(one) == _plain(other)
        and mine.keys() == theirs.keys()
        and all(torch.equal(mine[name], theirs[name]) for name in mine)
    )


class TensorBoardLog:
    """The course of a run for TensorBoard, an extra: accuracy and seconds against the number of classes seen."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise CircleError("--tensorboard needs an extra: pip install circle-cil[tensorboard]") from error
        self._writer: Any = SummaryWriter(str(folder))

    def row(self, row: Row, accuracy: float) -> None:
        """One evaluation."""
        self._writer.add_scalar("accuracy/all classes seen", accuracy, row.classes_seen)
        self._writer.add_scalar("seconds/learning", row.learning_seconds, row.classes_seen)
        self._writer.add_scalar("seconds/evaluation", row.evaluation_seconds, row.classes_seen)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
