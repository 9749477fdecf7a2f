"""Exact additive statistics: counts, sums and second moments of integers, each part declared once."""

from circle.statistics.parts import ClassSums, Part, declare, parts_named
from circle.statistics.statistics import (
    SAMPLES_PER_PRODUCT,
    Statistics,
    check_room,
    held,
    memory_of,
    sum_across,
)

__all__ = [
    "SAMPLES_PER_PRODUCT",
    "ClassSums",
    "Part",
    "Statistics",
    "check_room",
    "declare",
    "held",
    "memory_of",
    "parts_named",
    "sum_across",
]
