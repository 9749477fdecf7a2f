"""Budgets and rates."""

from __future__ import annotations

import pytest

from circle.errors import CircleError
from circle.serve import limits
from circle.serve.limits import BusyError, ByteBudget, Limits, RateLimit


def test_limits_are_positive() -> None:
    with pytest.raises(CircleError, match="--image-bytes 0: expected more than 0"):
        Limits(image_bytes=0)


def test_a_budget_is_given_back_whatever_happens() -> None:
    budget = ByteBudget(100)
    with pytest.raises(BusyError), budget.taken(60), budget.taken(60):
        pass
    with pytest.raises(KeyError), budget.taken(100):
        raise KeyError
    assert budget.free == 100


def test_rates_belong_to_addresses_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    rate = RateLimit(5.0, lambda: now[0])
    assert [rate.allows("a") for _ in range(12)] == [True] * 10 + [False] * 2
    assert rate.allows("b")
    now[0] = 1.0
    assert [rate.allows("a") for _ in range(7)] == [True] * 5 + [False] * 2
    monkeypatch.setattr(limits, "MAX_TRACKED_ADDRESSES", 3)
    for number in range(10):
        rate.allows(str(number))
    assert len(rate._buckets) == 3
