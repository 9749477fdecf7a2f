"""Work that evaluations could share: features of test images, and the factor of the last evaluation's covariance.

Features are the same at every evaluation, so `circle bench run --cache` keeps them. A factor is not: every entry of
the covariance has changed. It can still serve to solve the new system step by step (conjugate gradients, the old
factor as preconditioner, the old weights as a start), and that is compared with a new factor here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.limits import Machine
from benchmarks.rows import Row
from circle import linalg
from circle.heads import SLDA, SLDAConfig
from circle.statistics import Statistics

SIZE, CLASSES, IMAGES = 4_096, 100, 25_000
TASKS = {20: 18, 100: 90}  # tasks in all, and that after which the work begins: late, where a task changes least
TOLERANCE = 1e-8  # of the residual: the scores are then the same to all digits that are shown


def features_of(count: int, generator: torch.Generator) -> Tensor:
    """Correlated features on the grid of 16 bits: 512 directions, and noise."""
    mixing = torch.randn(512, SIZE, generator=torch.Generator().manual_seed(1)) / 512**0.5
    values = torch.randn(count, 512, generator=generator) @ mixing + 0.3 * torch.randn(count, SIZE, generator=generator)
    return (200 * values).round().clamp(-2000, 2000).to(torch.int16)


def conjugate_gradients(matrix: Tensor, right: Tensor, factor: linalg.Factor, start: Tensor) -> tuple[Tensor, int]:
    """X in A X = B for all columns at once, [D, C], and the number of steps."""
    solution = start.clone()
    residual = right - matrix @ solution
    direction = ready = factor.solve(residual)
    product, bound, steps = (residual * ready).sum(0), TOLERANCE * right.norm(dim=0), 0
    while bool((residual.norm(dim=0) > bound).any()):
        along = matrix @ direction
        step = product / (direction * along).sum(0)
        solution += step * direction
        residual -= step * along
        ready = factor.solve(residual)
        former, product = product, (residual * ready).sum(0)
        direction = ready + product / former * direction
        steps += 1
    return solution, steps


def rows(machine: Machine) -> Iterator[Row]:
    head = SLDA(SLDAConfig())
    for tasks, after in TASKS.items():
        generator = torch.Generator().manual_seed(0)
        per_task, statistics = CLASSES // tasks, Statistics(SIZE)
        each = IMAGES // CLASSES
        for label in range(per_task * after):
            statistics.update(features_of(each, generator), [label] * each)
        matrix, means = head.system(statistics)
        right = means.T
        factor = linalg.cholesky(matrix)
        weights = factor.solve(right)
        for label in range(per_task * after, per_task * (after + 1)):
            statistics.update(features_of(each, generator), [label] * each)
        matrix, means = head.system(statistics)
        right = means.T
        started = time.perf_counter()
        expected = linalg.cholesky(matrix).solve(right)
        anew = time.perf_counter() - started
        start = torch.cat([weights, factor.solve(right[:, weights.shape[1] :])], 1)
        started = time.perf_counter()
        found, steps = conjugate_gradients(matrix, right, factor, start)
        warm = time.perf_counter() - started
        error = float((found - expected).norm() / expected.norm())
        yield Row(
            "reuse",
            f"weights after task {after + 1} of {tasks}, {SIZE:,} values: from the last factor",
            f"{warm:.2f} s, {steps} steps, relative error {error:.0e}",
            f"a new factor: {anew:.2f} s",
            warm / anew,
        )
