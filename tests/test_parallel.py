"""Jobs side by side."""

from __future__ import annotations

import threading

import pytest
import torch

from circle import machine


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_all_and_restores_the_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    done: list[tuple[int, int]] = []
    machine.run_jobs([lambda number=number: done.append((number, torch.get_num_threads())) for number in range(9)])
    assert sorted(number for number, _ in done) == list(range(9))
    assert {inside for _, inside in done} == {1}
    assert torch.get_num_threads() == threads


def test_jobs_really_run_side_by_side() -> None:
    torch.set_num_threads(2)
    barrier = threading.Barrier(2, timeout=10)
    machine.run_jobs([lambda: (barrier.wait(), None)[1]] * 2)  # one after the other, this would never end


def test_errors_are_raised_after_all_have_ended() -> None:
    done: list[int] = []
    torch.set_num_threads(2)

    def fail() -> None:
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        machine.run_jobs([fail, *[lambda: done.append(1)] * 5])
    assert len(done) == 5
    assert torch.get_num_threads() == 2
