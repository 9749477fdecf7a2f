"""The contents of a model divided by its groups, and joined again.

Members take consecutive seeds, so groups ``first`` to ``last`` of a model are a model of their own: the same settings
with ``last - first`` groups and the seed ``seed + first * members``. All of them have learned the same images; the
ledger of these stays with the model that has group 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from circle.errors import CircleError, counted

Contents = tuple[dict[str, Any], dict[str, Tensor]]  # JSON header and tensors by name, as in circle.files
BY_GROUP = ("orphan_degrees", "group_parameters")  # entries of the header with a value for each group


def group_bounds(groups: int, ranks: int) -> list[tuple[int, int]]:
    """First group of each rank, and the one after its last.

    >>> group_bounds(5, 2)
    [(0, 2), (2, 5)]
    """
    if groups < ranks:
        raise CircleError(
            f"{counted(ranks, 'process')} for {counted(groups, 'group')}: expected at least as many groups, "
            "or --shard data"
        )
    return [(groups * rank // ranks, groups * (rank + 1) // ranks) for rank in range(ranks)]


def select_groups(header: Mapping[str, Any], tensors: Mapping[str, Tensor], first: int, last: int) -> Contents:
    """Contents of the model of groups ``first`` to ``last``; ``tensors`` may be empty, where nothing is learned yet."""
    settings = header["settings"]
    own_settings = {"groups": last - first, "seed": settings["seed"] + first * settings["members"]}
    selected = {**header, "settings": {**settings, **own_settings}}
    for by_group in BY_GROUP:
        if by_group in header:
            selected[by_group] = header[by_group][first:last]
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
    return selected, kept


def join_groups(shards: Sequence[Contents]) -> Contents:
    """Inverse of :func:`select_groups`: contents of the whole model from those of all its shards, in their order."""
    (header, tensors), *others = shards
    whole: dict[str, Any] = {**header, "settings": dict(header["settings"])}
    whole |= {by_group: list(header[by_group]) for by_group in BY_GROUP if by_group in header}
    joined = dict(tensors)
    for other, theirs in others:
        first = whole["settings"]["groups"]
        whole["settings"]["groups"] += other["settings"]["groups"]
        for by_group in BY_GROUP:
            whole.get(by_group, []).extend(other.get(by_group, []))
        for name, values in theirs.items():
            owner, _, part = name.partition(".")
            if owner.startswith("group"):
                joined[f"group{first + int(owner.removeprefix('group'))}.{part}"] = values
    return whole, joined
