"""Memory is asked for before it is taken."""

from __future__ import annotations

import pytest

from circle import machine
from circle.errors import CircleError


def test_what_fits_passes_and_what_does_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 2_000_000_000)
    machine.require_memory(1_999_999_999, "a thing", "do less")
    with pytest.raises(CircleError, match="^a thing: needs about 3.5 GB of memory, only 2.0 GB available; do less$"):
        machine.require_memory(3_500_000_000, "a thing", "do less")


def test_a_system_that_does_not_tell_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: None)
    machine.require_memory(10**18, "a thing", "do less")


def test_the_system_is_asked() -> None:
    there = machine.available_memory()
    assert there is None or 10**7 < there < 10**16


def test_no_more_is_available_than_there_is() -> None:
    available, total = machine.available_memory(), machine.total_memory()
    assert total is not None and total > 10**8
    assert available is None or 0 < available <= total
