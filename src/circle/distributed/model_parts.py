"""The contents of a model file cut into shares of its groups, and put together again.

Members take consecutive seeds, so groups ``first`` to ``last`` of a model are a model of their own: the same settings
with ``last - first`` groups and the seed ``seed + first * members``. All shares have learned the same images; the
ledger of these stays with the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from circle.errors import CircleError

Contents = tuple[dict[str, Any], dict[str, Tensor]]  # header and tensors, as in circle.files


def share_bounds(groups: int, shares: int) -> list[tuple[int, int]]:
    """First group of each share, and the one after its last.

    >>> share_bounds(5, 2)
    [(0, 2), (2, 5)]
    """
    if groups < shares:
        raise CircleError(f"{shares} processes for {groups} groups: expected at least as many groups, or --shard data")
    return [(groups * share // shares, groups * (share + 1) // shares) for share in range(shares)]


def share_settings(settings: Mapping[str, Any], first: int, last: int) -> dict[str, int]:
    """What sets the model of groups ``first`` to ``last`` apart from the whole one with these settings."""
    return {"groups": last - first, "seed": settings["seed"] + first * settings["members"]}


def share_of(header: Mapping[str, Any], tensors: Mapping[str, Tensor], first: int, last: int) -> Contents:
    """Contents of the model of groups ``first`` to ``last``; ``tensors`` may be empty, where nothing is learned yet."""
    settings = header["settings"]
    share = {**header, "settings": {**settings, **share_settings(settings, first, last)}}
    if "orphan_degrees" in header:
        share["orphan_degrees"] = header["orphan_degrees"][first:last]
    own = {f"group{group}": f"group{group - first}" for group in range(first, last)}
    kept: dict[str, Tensor] = {}
    for name, values in tensors.items():
        owner, _, part = name.partition(".")
        if owner in own:
            kept[f"{own[owner]}.{part}"] = values
        elif owner == "ledger":
            kept[name] = values if first == 0 else values.new_zeros(values.shape) if part == "counts" else values[:0]
        elif owner == "counts":
            kept[name] = values
    return share, kept


def joined(shares: Sequence[Contents]) -> Contents:
    """Inverse of cutting into shares: contents of the whole model from those of all shares, in their order."""
    (header, tensors), *others = shares
    settings = header["settings"]
    whole = {**header, "settings": dict(settings), "orphan_degrees": list(header["orphan_degrees"])}
    together = dict(tensors)
    for other, theirs in others:
        first = whole["settings"]["groups"]
        whole["settings"]["groups"] += other["settings"]["groups"]
        whole["orphan_degrees"] += other["orphan_degrees"]
        for name, values in theirs.items():
            owner, _, part = name.partition(".")
            if owner.startswith("group"):
                together[f"group{first + int(owner.removeprefix('group'))}.{part}"] = values
    return whole, together
