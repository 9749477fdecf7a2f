"""Work shared out over threads, one whole job each.

Features come from many small operations. Splitting each of them over cores makes the cores wait for each other
thousands of times a second, and ruins the speed whenever another program runs; giving every core a tile of
images of its own does not. So jobs run side by side with one thread each inside PyTorch, and the large matrix
products of the statistics keep PyTorch's own threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

_pools: dict[int, ThreadPoolExecutor] = {}


def run(jobs: Sequence[Callable[[], None]]) -> None:
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
