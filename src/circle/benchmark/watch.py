"""What goes on beside a run: progress, saved states, limits of time, and the user's wish to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from circle.benchmark.results import Row
from circle.benchmark.state import save_state
from circle.method import Method, Step, Steps


@dataclass
class Progress:
    """What a progress bar wants to know; all methods do nothing unless replaced."""

    stages: Callable[[int, int], None] = lambda done, total: None
    step: Callable[[Step], None] = lambda step: None
    row: Callable[[Row, float], None] = lambda row, accuracy: None


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
