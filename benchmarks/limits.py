"""What this machine can do at best, measured beside everything else: float32 and float64 products, copies of memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from circle import machine

SIDE = 1536  # of the matrices that are multiplied
COPIED = 2**26  # numbers of float32 that are copied, 256 MiB, far more than any cache
CACHED = 2**17  # likewise, half a MiB in all, which stays close to the cores


@dataclass(frozen=True)
class Machine:
    """Rates with all threads that PyTorch was given: flops a second, and bytes read and written a second."""

    threads: int
    gemm: float
    double_gemm: float
    copy: float
    cached_copy: float

    @classmethod
    def measure(cls) -> Machine:
        rates = {}
        for dtype in (torch.float32, torch.float64):
            left = torch.randn(SIDE, SIDE, dtype=dtype)
            result = torch.empty_like(left)
            rates[dtype] = 2 * SIDE**3 / least_seconds(lambda a=left, out=result: torch.mm(a, a, out=out), 25)
        copies = [copy_rate(count) for count in (COPIED, CACHED)]
        return cls(torch.get_num_threads(), rates[torch.float32], rates[torch.float64], *copies)

    def seconds(self, *, flops: float = 0.0, double_flops: float = 0.0, moved: float = 0.0) -> float:
        """The least time for so much work: computing and moving may overlap, so the longer of both."""
        return max(flops / self.gemm + double_flops / self.double_gemm, moved / self.copy)


def copy_rate(count: int) -> float:
    """Bytes read and written a second by copies of ``count`` numbers, one of its own for each thread."""
    threads = torch.get_num_threads()
    pairs = [(torch.ones(count // threads), torch.empty(count // threads)) for _ in range(threads)]

    def copy(source: torch.Tensor, target: torch.Tensor, times: int) -> None:
        for _ in range(times):
            target.copy_(source)

    times = max(1, 2**24 // count)
    jobs = [partial(copy, *pair, times) for pair in pairs]
    return 2 * 4 * (count // threads) * threads * times / least_seconds(lambda: machine.run_jobs(jobs), 5)


def least_seconds(function: Callable[[], object], rounds: int = 5, least: float = 0.02) -> float:
    """Seconds of one call: the fastest of several rounds, each of so many calls that the clock can tell.

    Rounds are short, here and where limits are measured: on a shared machine others take their turn in long ones.
    """
    function()
    started = time.perf_counter()
    function()
    calls = max(1, int(least / max(1e-9, time.perf_counter() - started)))
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(calls):
            function()
        best = min(best, (time.perf_counter() - started) / calls)
    return best


def memory_now(name: str) -> int:
    """Bytes of this process: VmRSS, held now, or VmHWM, the most so far.

    The maximum that getrusage tells will not do: it begins with that of the process that started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
