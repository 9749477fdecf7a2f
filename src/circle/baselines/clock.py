"""Seconds of training, as little disturbed by other programs as can be."""

from __future__ import annotations

import time

Moment = tuple[float, float]  # of the clock on the wall, and of the processors


def now() -> Moment:
    return time.perf_counter(), time.process_time()


def between(start: Moment, stop: Moment, device: str) -> float:
    """Seconds on the wall; on a CPU no more than the processors worked, so that other programs' work is not counted."""
    wall, worked = stop[0] - start[0], stop[1] - start[1]
    return min(wall, worked) if device == "cpu" else wall
