"""Exact additive statistics: counts, sums and second moments of integers."""

from circle.statistics.statistics import TILE, Statistics, check_room

__all__ = ["TILE", "Statistics", "check_room"]
