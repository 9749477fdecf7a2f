"""Statistics and closed forms: updates against products of one triangle, heads against their factorisation."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.limits import Machine, least_seconds
from benchmarks.rows import Row
from circle.heads import SLDAConfig, build_head
from circle.statistics import SAMPLES_PER_PRODUCT, Statistics

CLASSES = 100
SIZES = {"fast": 2_016, "best": 9_216}


def features_of(size: int, bits: int, count: int = SAMPLES_PER_PRODUCT) -> torch.Tensor:
    limit = {8: 127, 16: 2_000}[bits]
    kind = {8: torch.int8, 16: torch.int16}[bits]
    return torch.randint(-limit, limit + 1, (count, size), generator=torch.Generator().manual_seed(0)).to(kind)


def rows(machine: Machine) -> Iterator[Row]:
    for preset, size in SIZES.items():
        for bits in (8, 16):
            statistics = Statistics(size)
            features = features_of(size, bits)
            labels = [row % CLASSES for row in range(SAMPLES_PER_PRODUCT)]
            statistics.update(features, labels)

            def update(statistics: Statistics = statistics, x: torch.Tensor = features, y: list[int] = labels) -> None:
                statistics.update(x, y)
                statistics.flush()

            seconds = least_seconds(update, 12, 0.05)
            flops = SAMPLES_PER_PRODUCT * size * (size + 1)  # one triangle; a multiplication and an addition each
            what, words = (
                f"update, {size:,} values of {bits} bits ({preset})",
                f"{SAMPLES_PER_PRODUCT / seconds:,.0f} samples/s",
            )
            # Sums of 16-bit products do not fit into float32 exactly, so these are made in float64, at half the rate.
            limits = {"float64": machine.seconds(double_flops=flops)} if bits == 16 else {}
            limits["float32"] = machine.seconds(flops=flops)
            for rate, limit in limits.items():
                against = f"one triangle at the {rate} GEMM rate"
                yield Row("statistics", what, words, against, limit / seconds, ">= 0.6")
        head = build_head(SLDAConfig())
        seconds = least_seconds(lambda h=head, s=statistics: h.materialise(s), 2, 0.0)
        flops = size**3 / 3 + 2 * size**2 * CLASSES + 2 * size**2 * CLASSES
        yield Row(
            "closed form",
            f"SLDA, {size:,} values, {CLASSES} classes",
            f"{seconds:.2f} s",
            "scatter, Cholesky and solutions at the float64 GEMM rate",
            machine.seconds(double_flops=flops) / seconds,
        )
