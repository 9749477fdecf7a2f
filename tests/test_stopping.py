"""Signals are collected, and then mean what they meant before."""

from __future__ import annotations

import signal

from circle.machine import STOPPING, stop_requests


def test_requests_are_collected_and_handlers_come_back() -> None:
    before = [signal.getsignal(each) for each in STOPPING]
    with stop_requests() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert stop == [signal.SIGTERM, signal.SIGINT]
    assert [signal.getsignal(each) for each in STOPPING] == before
