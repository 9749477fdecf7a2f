"""Which process of a job this one is, as torchrun or a scheduler says in the environment; alone where nobody does."""

from __future__ import annotations

import os
from typing import Literal

from circle.errors import CircleError, ToldElsewhereError

#: What each process of a job takes: a share of the images, or all images for a share of the groups.
Shard = Literal["data", "groups"]


def count() -> int:
    """Processes of the job: ``WORLD_SIZE``."""
    return _number("WORLD_SIZE", 1, at_least=1)


def rank() -> int:
    """The number of this process among all: ``RANK``, from 0."""
    if count() == 1:
        return 0
    if "RANK" not in os.environ:
        raise CircleError(f"WORLD_SIZE = {count()}, but RANK is not set: expected both, or neither (see torchrun)")
    number = _number("RANK", 0, at_least=0)
    if number >= count():
        raise CircleError(f"RANK = {number} of {count()} processes: expected 0 to {count() - 1}")
    return number


def local_rank() -> int:
    """The number of this process on its machine: ``LOCAL_RANK``, which decides on its GPU."""
    return _number("LOCAL_RANK", 0, at_least=0)


def require_one(command: str, advice: str) -> None:
    """Refuse a command that does not share its work among the processes of a job."""
    if count() > 1:
        raise told_once(f"{command}: {count()} processes started by torchrun, expected one; {advice}")


def told_once(message: str) -> CircleError:
    """An error that every process of a job makes alike: the first one's is printed, the others' are not."""
    return (ToldElsewhereError if rank() else CircleError)(message)


def speaks() -> bool:
    """Whether it is for this process to print what all of them would."""
    try:
        return rank() == 0
    except CircleError:
        return True


def _number(name: str, default: int, *, at_least: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or int(text) < at_least:
        raise CircleError(f"{name} = {text!r} in the environment: expected a whole number from {at_least}")
    return int(text)
