"""What a model file says of itself, without building the model: for ``circle info``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from safetensors import safe_open

from circle.labels import decode_labels
from circle.runtime import container

_WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "I16": 2, "I8": 1, "U8": 1}  # bytes, by safetensors' names
_GRID = ("scale", "offset", "probe")
PACKED = ("packed", "low_rank", "packed_subspace")  # kinds of scores that only `circle compress` makes


class Tensors:
    """Types and shapes of a file's tensors; values only where they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with container.readable(path), safe_open(str(path), "np") as file:
            slices = {name: file.get_slice(name) for name in sorted(file.keys())}
            self.shapes: dict[str, tuple[int, ...]] = {name: tuple(each.get_shape()) for name, each in slices.items()}
            self.types: dict[str, str] = {name: each.get_dtype() for name, each in slices.items()}

    def bytes(self, name: str) -> int:
        return _WIDTHS[self.types[name]] * math.prod(self.shapes[name])

    def values(self, name: str) -> list[int]:
        with container.readable(self.path), safe_open(str(self.path), "np") as file:
            return file.get_tensor(name).tolist()


def model_facts(path: Path) -> dict[str, Any]:
    """Classes, sizes, numbers and settings of the model at ``path``; plain data for JSON."""
    header, tensors = container.read_header(path), Tensors(path)
    labels = decode_labels(header["classes"])
    learning = header["kind"] == "learning"
    counts = tensors.values("counts") if learning else [None] * len(labels)
    groups = [name for name in tensors.shapes if name.endswith(".scale")]
    sizes = [tensors.shapes[name][0] for name in groups]
    grids = sum(12 * size for size in sizes)
    if learning:
        heads = [_head(header, tensors, group.partition(".")[0], len(labels)) for group in groups]
        learnable = sum(numbers for numbers, _ in heads)
        prediction_bytes = grids + sum(size for _, size in heads)
    else:
        heads = [name for name in tensors.shapes if name.startswith("group") and name.partition(".")[2] not in _GRID]
        matrices = [name for name in heads if len(tensors.shapes[name]) > 1 or name.endswith(".triangle")]
        learnable = sum(math.prod(tensors.shapes[name]) for name in matrices)
        prediction_bytes = grids + sum(tensors.bytes(name) for name in heads)
    numbers = header["group_parameters"]
    return {
        "kind": header["kind"],
        "version": header.get("version", "unknown"),
        "samples": header["samples"],
        "classes": [{"label": label, "images": count} for label, count in zip(labels, counts, strict=True)],
        "file_bytes": path.stat().st_size,
        "learning_bytes": _learning_bytes(tensors, grids, len(labels)) if learning else None,
        "prediction_bytes": prediction_bytes,
        "compressed": None if learning else _compressed(header, tensors, sizes),
        "portable": header["portable"],
        "parameters": {
            "learnable": learnable,
            "fixed": sum(fixed for fixed, _ in numbers),
            "generated": sum(generated for _, generated in numbers),
        },
        "settings": header["settings"],
    }


def _head(header: dict[str, Any], tensors: Tensors, group: str, classes: int) -> tuple[int, int]:
    """Numbers in the head that would be made of a group's statistics, biases aside, and its bytes in a file.

    See ``HeadConfig.numbers`` and, for a head with a subspace, the arrays of ``circle.heads.scores.SubspaceScores``.
    """
    size, head = tensors.shapes[f"{group}.scale"][0], header["settings"]["head"]
    if head["name"] == "subspace_qda":
        coordinates = min(head["dimension"], size)
        directions = classes * min(head["rank"] or head["dimension"] // 2, coordinates)
        matrices = classes * (size + coordinates) + coordinates**2  # weights, pull, whitening
        by_class = 8 + 4 + 8  # bias, curvature, level
        size_in_file = 4 * matrices + directions * (coordinates + 8) + by_class * classes + 4 * coordinates + 20
        return matrices + directions * (coordinates + 2), size_in_file
    triangle = size * (size + 1) // 2 if f"{group}.class_triangles" in tensors.shapes else 0
    numbers = classes * (size + triangle)
    return numbers, 4 * numbers + 8 * classes


def _learning_bytes(tensors: Tensors, grids: int, classes: int) -> int:
    """Size of the learning model's file, header aside: parts of the statistics, counts, grids, ledger."""
    parts = (name for name in tensors.shapes if name.startswith("group") and name.partition(".")[2] not in _GRID)
    return sum(map(tensors.bytes, parts)) + grids + 16 * classes + tensors.bytes("ledger.digests")


def _compressed(header: dict[str, Any], tensors: Tensors, sizes: list[int]) -> dict[str, Any] | None:
    """What `circle compress` left of a model: format of the weights, groups, parts of their extractors, features."""
    scores, kept = header.get("scores", "linear"), header.get("kept")
    if kept is None and scores not in PACKED:
        return None
    weights = "float32"
    if scores in PACKED:
        subspace = scores == "packed_subspace"
        bits = tensors.types["group0.weight" if subspace else "group0.codes"]
        weights = {"F": "float", "I": "int"}[bits[0]] + bits[1:]
        if scores == "low_rank":
            weights += f", rank {tensors.shapes['group0.codes'][0]}"
        elif subspace:
            weights += f", rank {tensors.shapes['group0.codes'][1]}"
    parts = None if kept is None else sum(len(member["parts"]) for group in kept for member in group)
    return {"weights": weights, "groups": len(sizes), "parts": parts, "features": sum(sizes)}
