"""Run one method through a stream of tasks: learn, evaluate, write down, and resume after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from circle.benchmark import results
from circle.benchmark.results import STATE, Row, Run, TensorBoardLog, load_state, save_state
from circle.data.tasks import Stream, boundaries
from circle.errors import CircleError
from circle.extractors import ParameterCount
from circle.method import Method, Step, Steps, Task


class Progress:
    """What a display of runs is told; every method does nothing unless overridden."""

    def note(self, text: str) -> None:
        """What the user should know of how the data were read, before the first run."""

    def begin(self, label: str, seed: int) -> None:
        """A run begins that is not finished yet."""

    def needs(self, memory: int, disk: int, seconds: float | None) -> None:
        """What the run will take at most, before it takes it: bytes, and seconds of learning where they were timed."""

    def features(self, what: str, done: int, total: int) -> None:
        """So many of the ``what`` (training or test) images have their features."""

    def tasks(self, done: int, total: int) -> None:
        """So many of the tasks of all splits are learned."""

    def step(self, step: Step) -> None:
        """A method that trains in steps has made one."""

    def row(self, row: Row, accuracy: float) -> None:
        """The method was tested: share of right answers on all classes seen."""

    def end(self) -> None:
        """The run that was begun is over, well or not."""

    def finished(self, run: Run) -> None:
        """A run as it is on record, done now or earlier."""


class Saver:
    """Keeps a method's state on disk: how far it came, and the seconds spent on a task that is not done."""

    def __init__(self, path: Path, method: Method, every: float) -> None:
        self.path, self.method, self.every = path, method, every
        self.saved = time.monotonic()

    def save(self, seen: int, task_seconds: float = 0.0) -> None:
        progress = {"classes_seen": seen, "task_seconds": task_seconds}
        save_state(self.path, self.method.state_dict(), progress)
        self.saved = time.monotonic()

    def save_if_due(self, seen: int, task_seconds: float = 0.0) -> None:
        if time.monotonic() - self.saved >= self.every:
            self.save(seen, task_seconds)


class LeaveRunError(Exception):
    """The run ends here, for a reason that belongs in the record, or because the user wants it."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Watch:
    """Looks at a run between tasks and, where the method learns in steps, after each of them."""

    def __init__(
        self, saver: Saver, progress: Progress, should_stop: Callable[[], bool], time_limit: float | None
    ) -> None:
        self.saver, self.progress, self.should_stop, self.time_limit = saver, progress, should_stop, time_limit
        self.seen, self.learning, self.started = 0, 0.0, 0.0
        if isinstance(saver.method, Steps):
            saver.method.on_step = self.step

    def begin_task(self, seen: int, learning: float, begun: float) -> None:
        """Classes seen, seconds of learning so far, and those that this task had before it was interrupted."""
        self.seen, self.learning, self.started = seen, learning, time.perf_counter() - begun

    def step(self, step: Step) -> None:
        self.progress.step(step)
        self.look(f" in task {step.task}, epoch {step.epoch} of {step.epochs} ({step.stage})")
        self.saver.save_if_due(self.seen, time.perf_counter() - self.started)

    def look(self, where: str = "") -> None:
        """Save the state and leave, if it is time to."""
        spent = time.perf_counter() - self.started
        late = self.time_limit is not None and self.learning + spent >= self.time_limit
        if not late and not self.should_stop():
            return
        if self.saver.method.classes:
            self.saver.save(self.seen, spent)
        raise LeaveRunError(f"time limit of {self.time_limit:g} s of learning reached{where}" if late else "")


@dataclass(frozen=True)
class Plan:
    """What to run: the same plan gives the same numbers."""

    method: str
    label: str
    preset: str | None
    tasks: tuple[str, ...]
    seed: int
    config: dict[str, Any]
    class_order_seed: int = 0
    command: str = ""
    study: dict[str, Any] | None = None  # which variant of which study it is; a remark, the config says what is run
    budget: float | None = None  # seconds that the config's epochs were fitted to; a remark, too


def run_stream(
    plan: Plan,
    stream: Stream,
    method: Method,
    folder: Path,
    *,
    progress: Progress | None = None,
    save_seconds: float = 60.0,
    confusion: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    time_limit: float | None = None,
    log: TensorBoardLog | None = None,
) -> Run:
    """Take ``method`` through the stream and keep the record in ``folder``.

    Every evaluation is appended to the record. The method's state is saved at most every ``save_seconds``, in the
    middle of a task too where the method learns in steps; a run that was killed resumes from the last saved state, and
    its rows after that are made anew: being determined by plan and data, they come out the same. ``confusion`` also
    keeps who was taken for whom at the end. A method that has learned for ``time_limit`` seconds is stopped, and the
    record says how far it came; with a larger limit it resumes from there.
    """
    progress = progress or Progress()
    ends = boundaries(plan.tasks, len(stream.order))
    run = _open_run(plan, stream, folder)
    if run.complete:
        progress.tasks(len(ends), len(ends))
        return run
    seen, learning, evaluation, samples, begun = _resume(run, method)
    saver = Saver(folder / STATE, method, save_seconds)
    watch = Watch(saver, progress, should_stop, time_limit)
    run.info.pop("stopped", None)
    for end in ends:
        if end <= seen:
            continue
        watch.begin_task(seen, learning, begun)
        try:
            watch.look()
            progress.tasks(ends.index(end), len(ends))
            cached = getattr(method, "cached_seconds", 0.0)
            started = time.perf_counter() - begun
            samples += _learn(method, stream, seen, end)
        except LeaveRunError as left:
            if left.reason:
                _close(run, method, stopped=left.reason)
            return run
        begun = 0.0
        learned = time.perf_counter()
        labels, predicted = _predictions(method, stream, end)
        correct = np.bincount(labels[predicted == labels], minlength=len(stream.order))[stream.order].tolist()
        # Features from the cache are not free: their share of the extraction counts where the images are learned.
        learning += learned - started + getattr(method, "cached_seconds", 0.0) - cached
        evaluation += time.perf_counter() - learned
        seen = end
        row = Row(end, correct, samples, learning, evaluation)
        results.append_row(folder, row)
        run.rows.append(row)
        accuracy = sum(correct) / sum(stream.test_images[:end])
        progress.row(row, accuracy)
        if log is not None:
            log.row(row, accuracy)
        if confusion and end == ends[-1]:
            results.write_confusion(folder, stream.dataset.classes, labels, predicted)
        if end != ends[-1]:
            saver.save_if_due(seen)
    progress.tasks(len(ends), len(ends))
    _close(run, method)
    (folder / STATE).unlink(missing_ok=True)
    return run


def _close(run: Run, method: Method, **more: Any) -> None:
    """Add to the record what is known at the end."""
    count = method.parameter_count() if method.classes else ParameterCount()
    run.info |= {
        "finished": _now(),
        "peak_memory_bytes": results.peak_memory_bytes(),
        "parameters": {"learnable": count.learnable, "fixed": count.fixed, "generated": count.generated},
        **more,
    }
    results.write_info(run.folder, run.info)


def finished_run(plan: Plan, stream: Stream, folder: Path) -> Run | None:
    """The complete record of this plan, if it is there already: nothing needs to be built to find out."""
    run = _open_run(plan, stream, folder) if (folder / results.INFO).exists() else None
    return run if run and run.complete and "finished" in run.info else None


def _learn(method: Method, stream: Stream, start: int, stop: int) -> int:
    """One task: the method gets its images and labels, not its number, and loses them when it returns."""
    view, labels = stream.view(stream.dataset.train, start, stop)
    try:
        method.learn(Task(view, labels))
    finally:
        view.close()
    return len(labels)


def _predictions(method: Method, stream: Stream, seen: int) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted labels of all test images of the classes seen so far, [N] each."""
    view, labels = stream.view(stream.dataset.test, 0, seen)
    classes: list[Hashable] = list(method.classes)
    chosen = method.scores(view).argmax(1).cpu().numpy()
    return labels, np.array(classes, dtype=np.int64)[chosen]


def _open_run(plan: Plan, stream: Stream, folder: Path) -> Run:
    """A new record, or the one that is there if it is of the same plan."""
    identity = {
        "method": plan.method,
        "dataset": stream.dataset.name,
        "data": [stream.dataset.train.fingerprint, stream.dataset.test.fingerprint],
        "tasks": list(plan.tasks),
        "seed": plan.seed,
        "class_order_seed": plan.class_order_seed,
        "config": plan.config,
    }
    if (folder / results.INFO).exists():
        run = results.read_run(folder)
        for name, value in identity.items():
            if run.info.get(name) != value:
                what = "on other images" if name == "data" else f"with another {name.replace('_', ' ')}"
                raise CircleError(f"{folder}: holds a run {what}; choose another folder for the output")
        return run
    folder.mkdir(parents=True, exist_ok=True)
    info = {
        **identity,
        "label": plan.label,
        "preset": plan.preset,
        **({} if plan.budget is None else {"budget": plan.budget}),
        **({} if plan.study is None else {"study": plan.study}),
        "class_order": stream.names,
        "test_images": stream.test_images,
        "command": plan.command,
        "started": _now(),
        **results.environment(),
    }
    results.write_info(folder, info)
    return Run(folder, info)


def _resume(run: Run, method: Method) -> tuple[int, float, float, int, float]:
    """Classes seen, seconds of learning and of evaluation, samples, and seconds of a begun task at the last state."""
    path = run.folder / STATE
    if not path.exists():
        if run.rows:
            results.keep_rows(run.folder, [])
            run.rows.clear()
        return 0, 0.0, 0.0, 0, 0.0
    state, progress = load_state(path)
    seen, begun = int(progress["classes_seen"]), float(progress.get("task_seconds", 0.0))
    kept = [row for row in run.rows if row.classes_seen <= seen]
    if seen and (not kept or kept[-1].classes_seen != seen):
        raise CircleError(f"{run.folder}: state and rows do not belong together; remove the folder to start anew")
    method.load_state_dict(state)
    if len(kept) < len(run.rows):
        results.keep_rows(run.folder, kept)
        run.rows[:] = kept
    if not kept:  # in the middle of the first task
        return 0, 0.0, 0.0, 0, begun
    return seen, kept[-1].learning_seconds, kept[-1].evaluation_seconds, kept[-1].samples, begun


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
