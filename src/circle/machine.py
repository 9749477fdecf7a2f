"""What this machine offers and asks of us: devices, memory, threads, signals.

Threads: features come from many small operations. Splitting each of them over cores makes the cores wait for each
other thousands of times a second, and ruins the speed whenever another program runs; giving every core a tile of
images of its own does not. So jobs run side by side with one thread each inside PyTorch, and the large matrix
products of the statistics keep PyTorch's own threads.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from circle.errors import CircleError

_pools: dict[int, ThreadPoolExecutor] = {}
STOPPING = (signal.SIGINT, signal.SIGTERM)


def usable_device(name: str | torch.device) -> torch.device:
    """The device of this name, or one line that says why it cannot be used here."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise CircleError(f"device {str(name)!r} is not usable: {str(error).splitlines()[0]}") from error
    return device


def available_memory() -> int | None:
    """Bytes that can be taken without swapping, where the system tells."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def total_memory() -> int | None:
    """Bytes of memory in this machine, where the system tells."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def require_memory(needed: int, what: str, advice: str) -> None:
    """Refuse what does not fit: ``what`` needs so much, so much is available, ``advice`` says what to do."""
    available = available_memory()
    if available is not None and needed > available:
        raise CircleError(
            f"{what}: needs about {needed / 1e9:.1f} GB of memory, only {available / 1e9:.1f} GB available; {advice}"
        )


def run_jobs(jobs: Sequence[Callable[[], None]]) -> None:
    """Run all jobs on as many threads as PyTorch is set to use; the first error is raised once all have ended."""
    threads = min(torch.get_num_threads(), len(jobs))
    with _one_thread_inside():
        if threads <= 1:
            for job in jobs:
                job()
            return
        futures = [_pool(threads).submit(job) for job in jobs]
        errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None:
            raise error


@contextmanager
def _one_thread_inside() -> Iterator[None]:
    """Let PyTorch use one thread per operation for a while."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _pool(threads: int) -> ThreadPoolExecutor:
    if threads not in _pools:
        # The setting is kept per thread, so every worker needs it once.
        _pools[threads] = ThreadPoolExecutor(threads, "circle", initializer=torch.set_num_threads, initargs=(1,))
    return _pools[threads]


# A forked child inherits the pool's record but not its threads.
os.register_at_fork(after_in_child=_pools.clear)


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM instead of dying of them, so that the work under way is finished first."""
    stop: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread is told of signals
        yield stop
        return
    handlers = {each: signal.signal(each, lambda number, _: stop.append(number)) for each in STOPPING}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class Workspace(threading.local):
    """Memory that a thread uses again and again for maps that live for microseconds.

    Buffers go by name, data type and device; each grows to the largest size that was asked for. Fresh memory of a few
    megabytes comes from the system page by page, filled with zeros, and goes back right after: that took longer than
    the arithmetic on it (measured). Every thread has its own buffers, so nothing is shared.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of this shape and ``like``'s type and place; the one last taken by it ends."""
        count, key = math.prod(shape), (name, like.dtype, like.device)
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < count:
            # A tensor that was made in inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                buffer = self._buffers[key] = torch.empty(count, dtype=like.dtype, device=like.device)
        return buffer[:count].view(shape)


workspace = Workspace()


_precision_lock = threading.Lock()
_precision_holders = 0
_precision_before = ""


@contextmanager
def full_precision() -> Iterator[None]:
    """Float32 products of full precision, whatever the user allows PyTorch elsewhere.

    All threads share one setting: the first that multiplies sets it, and the last restores the user's.
    """
    global _precision_holders, _precision_before
    with _precision_lock:
        if not _precision_holders:
            _precision_before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
        _precision_holders += 1
    try:
        yield
    finally:
        with _precision_lock:
            _precision_holders -= 1
            if not _precision_holders:
                torch.set_float32_matmul_precision(_precision_before)
