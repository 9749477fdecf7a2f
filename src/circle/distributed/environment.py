"""Rank and world size of this process, as torchrun or a scheduler set them in the environment; one process without."""

from __future__ import annotations

import os
from typing import Literal

from circle.errors import CircleError, ReportedByRankZeroError

#: What is divided among the ranks: the images (each rank has the whole ensemble), or the groups of the ensemble (each
#: rank has all images).
Sharding = Literal["data", "groups"]


def world_size() -> int:
    """Number of processes of the job: ``WORLD_SIZE``."""
    return _whole_number("WORLD_SIZE", 1, at_least=1)


def rank() -> int:
    """Number of this process among all: ``RANK``, from 0."""
    if world_size() == 1:
        return 0
    if "RANK" not in os.environ:
        raise CircleError(f"WORLD_SIZE = {world_size()}, but RANK is not set: expected both, or neither (see torchrun)")
    number = _whole_number("RANK", 0, at_least=0)
    if number >= world_size():
        raise CircleError(f"RANK = {number} of {world_size()} processes: expected 0 to {world_size() - 1}")
    return number


def local_rank() -> int:
    """Number of this process on its machine: ``LOCAL_RANK``, which decides on its GPU."""
    return _whole_number("LOCAL_RANK", 0, at_least=0)


def is_rank_zero() -> bool:
    """Whether this process prints and writes what all of them would; also where the environment is nonsense."""
    try:
        return rank() == 0
    except CircleError:
        return True


def require_one_process(command: str, advice: str) -> None:
    """Refuse a command that cannot divide its work among the ranks of a job."""
    if world_size() > 1:
        raise error_on_all_ranks(f"{command}: {world_size()} processes started by torchrun, expected one; {advice}")


def error_on_all_ranks(message: str) -> CircleError:
    """An error that every rank meets alike: printed by rank zero, silent on the others."""
    return (ReportedByRankZeroError if rank() else CircleError)(message)


def _whole_number(name: str, default: int, *, at_least: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or int(text) < at_least:
        raise CircleError(f"{name} = {text!r} in the environment: expected a whole number from {at_least}")
    return int(text)
