"""Being asked to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM instead of dying of them, so that the work under way is finished first."""
    stop: list[int] = []
    handlers = {each: signal.signal(each, lambda number, _: stop.append(number)) for each in STOPPING}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
