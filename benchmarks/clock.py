"""Where the time goes: methods of the package watched while they run, by part of the work."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

WALL, PROCESSOR = 0, 1
Times = tuple[float, float]  # seconds on the wall, and of processors


def now() -> Times:
    """Readings of both clocks: the one on the wall, and the time that processors have worked for this process."""
    return time.perf_counter(), time.process_time()


class Clock:
    """Times by part, on the wall and of processors; time in a part within another counts for the inner one alone."""

    def __init__(self, *names: str) -> None:
        self.parts = {name: np.zeros(2) for name in names}
        self._inside: list[np.ndarray] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = np.array(now())
        self._inside.append(np.zeros(2))
        try:
            yield
        finally:
            took = np.array(now()) - started
            self.parts[name] += took - self._inside.pop()
            if self._inside:
                self._inside[-1] += took

    def seconds(self, clock: int = WALL) -> dict[str, float]:
        return {name: float(times[clock]) for name, times in self.parts.items()}

    @contextmanager
    def watching(self, kind: type, method: str, name: str) -> Iterator[None]:
        """Count every call of a method as a part."""
        original = getattr(kind, method)

        @functools.wraps(original)
        def timed(*arguments: object, **more: object) -> object:
            with self.part(name):
                return original(*arguments, **more)

        setattr(kind, method, timed)
        try:
            yield
        finally:
            setattr(kind, method, original)
