"""How much memory there is, asked before much of it is taken."""

from __future__ import annotations

import os
from pathlib import Path

from circle.errors import CircleError


def available_memory() -> int | None:
    """Bytes that can be taken without swapping, where the system tells."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def total_memory() -> int | None:
    """Bytes of memory in this machine, where the system tells."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def require_memory(needed: int, what: str, advice: str) -> None:
    """Refuse what does not fit: ``what`` needs so much, so much is there, ``advice`` says what to do."""
    there = available_memory()
    if there is not None and needed > there:
        raise CircleError(f"{what}: needs {needed / 1e9:.1f} GB of memory, {there / 1e9:.1f} GB are there; {advice}")
