"""What this machine can do at best, measured beside everything else: float32 and float64 products, copies of memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

SIDE = 1536  # of the matrices that are multiplied
COPIED = 2**26  # numbers of float32 that are copied, 256 MiB, far more than any cache


@dataclass(frozen=True)
class Machine:
    """Rates with all threads that PyTorch was given: flops a second, and bytes read and written a second."""

    threads: int
    gemm: float
    double_gemm: float
    copy: float

    @classmethod
    def measure(cls) -> Machine:
        rates = {}
        for dtype in (torch.float32, torch.float64):
            left = torch.randn(SIDE, SIDE, dtype=dtype)
            result = torch.empty_like(left)
            rates[dtype] = 2 * SIDE**3 / least_seconds(lambda a=left, out=result: torch.mm(a, a, out=out), 8)
        source, target = torch.ones(COPIED), torch.empty(COPIED)
        copy = 2 * 4 * COPIED / least_seconds(lambda: target.copy_(source), 5)
        return cls(torch.get_num_threads(), rates[torch.float32], rates[torch.float64], copy)

    def seconds(self, *, flops: float = 0.0, double_flops: float = 0.0, moved: float = 0.0) -> float:
        """The least time for so much work: computing and moving may overlap, so the longer of both."""
        return max(flops / self.gemm + double_flops / self.double_gemm, moved / self.copy)


def least_seconds(function: Callable[[], object], rounds: int = 5, least: float = 0.02) -> float:
    """Seconds of one call: the fastest of several rounds, each of so many calls that the clock can tell."""
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
