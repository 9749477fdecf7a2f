"""One thing that `circle doctor` looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """What was found, and whether it is as it should be.

    ``good``: as it should be. ``note``: worth knowing, and CIRCLE works. ``wrong``: it does not work, or not exactly.
    ``unit`` tells what a number counts; ``advice`` what to do about it.
    """

    group: str
    name: str
    value: str | int | float | bool | None
    state: Literal["good", "note", "wrong"] = "good"
    advice: str = ""
    unit: Literal["", "bytes", "GFLOP/s"] = ""
