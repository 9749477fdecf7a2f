"""How much one server takes on: sizes, numbers, rates. Beyond a limit there is an error as answer, never a crash."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from circle.data.workers import MAX_PIXELS, MAX_SECONDS
from circle.errors import CircleError

MEGABYTE = 2**20
MAX_LABEL_LENGTH = 64  # characters of a class's name
MAX_JSON_BYTES = 64 * 1024
MAX_TRACKED_ADDRESSES = 1024  # clients whose rate is remembered


class RequestError(CircleError):
    """The request is at fault, and says how to mend it; ``status`` is the HTTP code."""

    status = 400


class ConflictError(RequestError):
    """The request is well formed, but the model is not in a state for it."""

    status = 409


class BusyError(RequestError):
    """All places are taken; the same request will do in a moment."""

    status = 503


class StorageError(CircleError):
    """Nothing can be kept for now, so nothing was learned."""

    status = 507


@dataclass(frozen=True)
class Limits:
    """What the server takes on.

    Parameters
    ----------
    classes
        Classes of the model.
    image_bytes
        Bytes of one image file.
    image_pixels
        Pixels of one image.
    image_seconds
        Processor time that one image may take to decode.
    model_bytes
        Bytes of a model file that is loaded or merged.
    body_seconds
        Time that a request's body may take to arrive.
    waiting
        Lessons, predictions and model transfers that may wait, of each; a further one is told "busy".
    connections
        Open connections.
    rate
        Requests a second from one address, on average; twice as many may come at once.
    decoders
        Processes that decode images.
    """

    classes: int = 1000
    image_bytes: int = 16 * MEGABYTE
    image_pixels: int = MAX_PIXELS
    image_seconds: float = MAX_SECONDS
    model_bytes: int = 256 * MEGABYTE
    body_seconds: float = 30.0
    waiting: int = 64
    connections: int = 256
    rate: float = 500.0
    decoders: int = 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise CircleError(f"--{name.replace('_', '-')} {value}: expected more than 0")


class ByteBudget:
    """Bodies in memory at once: a request takes what it announces, or is told that the server is busy.

    >>> budget = ByteBudget(100)
    >>> with budget.taken(80):
    ...     budget.free
    20
    """

    def __init__(self, total: int) -> None:
        self.free = total

    @contextmanager
    def taken(self, count: int) -> Iterator[None]:
        if count > self.free:
            raise BusyError("too much is being uploaded at once: try again in a moment")
        self.free -= count
        try:
            yield
        finally:
            self.free += count


class RateLimit:
    """A bucket of requests for each address, which fills at ``rate`` a second up to twice that."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how full, and when that was

    def allows(self, address: str) -> bool:
        """Take one request out of the address's bucket, if there is one in it."""
        now = self._clock()
        full, since = self._buckets.pop(address, (2 * self._rate, now))
        full = min(2 * self._rate, full + (now - since) * self._rate)
        allowed = full >= 1.0
        self._buckets[address] = (full - 1.0 if allowed else full, now)
        if len(self._buckets) > MAX_TRACKED_ADDRESSES:
            self._buckets.popitem(last=False)  # the one not heard of for longest, so nearly full again
        return allowed
