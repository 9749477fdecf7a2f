"""Extractors as ONNX nodes: what they share, and the form of each kind that is known.

A form adds the nodes of an extractor's ``vector`` to a graph: pixels float32 [N, C, H, W] of about zero mean and unit
variance become a vector [N, length]. The order of operations is that of the extractor, so that the two differ by no
more than rounding; contracts/test_export.py holds every registered extractor to that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from circle.errors import CircleError
from circle.export.graph import Graph
from circle.extractors import Extractor
from circle.extractors.integers import IntegerExtractor, IntegerProjection
from circle.extractors.projection import ProjectedExtractor, RandomProjection, StandardisedConfig
from circle.runtime.weights import PROJECTED_BITS

Form = Callable[[Graph, Any, str], str]
FORMS: dict[type[Extractor], Form] = {}
Wrapped = TypeVar("Wrapped", bound=Form)


def form_of(kind: type[Extractor]) -> Callable[[Wrapped], Wrapped]:
    """Decorator: this function is the ONNX form of ``kind.vector``. Plug-ins may use it for extractors of their own."""

    def remember(form: Wrapped) -> Wrapped:
        FORMS[kind] = form
        return form

    return remember


def add_extractor(graph: Graph, extractor: Extractor, pixels: str) -> str:
    """Values float32 [N, size] of pixels float32 [N, C, H, W], whole numbers from 0 to 255: ``Extractor.forward``."""
    form = FORMS.get(type(extractor))
    if form is None or not isinstance(extractor, ProjectedExtractor | IntegerExtractor):
        known = ", ".join(sorted(kind.__name__ for kind in FORMS))
        raise CircleError(
            f"extractor {extractor.config.name!r} cannot be exported: it has no ONNX form (those that have: {known})"
        )
    config = extractor.config
    images = standardised(graph, config, pixels) if isinstance(config, StandardisedConfig) else pixels
    if config.mirror:
        both = graph.concat([images, mirrored(graph, images, axis=3)], 0)
        vector = form(graph, extractor, both)
        length = extractor.projection.inputs if extractor.projection else extractor.size
        vectors = graph.reshape(vector, [2, -1, length])
        vector = graph.sum(vectors, [0]) if extractor.portable else graph.mean(vectors, [0])
    else:
        vector = form(graph, extractor, images)
    if isinstance(extractor.projection, RandomProjection):
        return project(graph, extractor.projection, vector)
    return project_integers(graph, extractor.projection, vector) if extractor.projection else vector


def standardised(graph: Graph, config: StandardisedConfig, pixels: str) -> str:
    """Pixels from 0 to 255, of about zero mean and unit variance."""
    images = graph.add("Div", pixels, graph.constant(255.0, "full_scale"))
    images = graph.add("Sub", images, graph.constant(config.input_mean, "mean"))
    return graph.add("Div", images, graph.constant(config.input_scale, "scale"))


def mirrored(graph: Graph, value: str, axis: int) -> str:
    """The value with the order along an axis reversed."""
    start, stop = graph.constant([-1], "last"), graph.constant([-(2**31)], "first")
    return graph.add("Slice", value, start, stop, graph.constant([axis], "axes"), graph.constant([-1], "step"))


def project(graph: Graph, projection: RandomProjection, vector: str) -> str:
    """y = activation(R x): [N, inputs] -> [N, outputs].

    A sparse R stays sparse: as a dense matrix it could take gigabytes. Its values are gathered, [N, outputs, fan_in].
    """
    if projection.fan_in:
        gathered = graph.add("Gather", vector, graph.constant(projection.index.to(torch.int32), "index"), axis=1)
        result = graph.sum(graph.add("Mul", gathered, graph.constant(projection.signs, "signs")), [2])
    else:
        result = graph.add("MatMul", vector, graph.constant(projection.dense.T, "projection"))
    return graph.add("Relu", result) if projection.relu else result


def project_integers(graph: Graph, projection: IntegerProjection, vector: str) -> str:
    """y = floor(R v / 2^s): [N, inputs] -> [N, outputs]. A sparse R stays sparse: its values are gathered."""
    values = graph.cast(vector, "DOUBLE")
    if projection.fan_in:
        gathered = graph.add("Gather", values, graph.constant(projection.index.to(torch.int32), "index"), axis=1)
        result = graph.sum(graph.add("Mul", gathered, graph.constant(projection.signs, "signs")), [2])
    else:
        # Weights have eight bits, and the file keeps them so.
        weights = graph.cast(graph.constant(projection.dense.to(torch.int8), "projection"), "DOUBLE")
        result = graph.add("MatMul", values, weights)
    limit = 2.0**PROJECTED_BITS - 1.0
    result = graph.add("Floor", graph.add("Mul", result, double(graph, 2.0**-projection.shift)))
    lowest = 0.0 if projection.relu else -limit
    return graph.add("Clip", graph.cast(result, "FLOAT"), graph.constant(lowest), graph.constant(limit))


def double(graph: Graph, value: float) -> str:
    """A float64 constant."""
    return graph.constant(np.array(value, np.float64))


def pool(
    graph: Graph, maps: str, matrix: torch.Tensor, channels: int, moments: tuple[str, ...], *, channels_last: bool
) -> str:
    """Maps [N, H W, C], or [N, C, H W] as convolutions leave them, -> [N, len(moments) g g C].

    As ``circle.extractors.pooling.pool`` has it; where channels come first only the small result is turned.
    """
    windows = graph.constant(matrix if channels_last else matrix.T, "windows")
    parts = []
    for moment in moments:
        values = graph.square(maps) if moment == "square" else maps
        if channels_last:
            means = graph.add("MatMul", windows, values)  # [N, g g, C]
        else:
            means = graph.add("Transpose", graph.add("MatMul", values, windows), perm=[0, 2, 1])
        parts.append(graph.reshape(means, [0, matrix.shape[0] * channels]))
    return graph.concat(parts, 1)


def signed_power(graph: Graph, values: str, exponent: float) -> str:
    """sign(v) |v|^p."""
    if exponent == 1.0:
        return values
    size = graph.add("Abs", values)
    size = graph.add("Sqrt", size) if exponent == 0.5 else graph.add("Pow", size, graph.constant(exponent, "power"))
    return graph.add("Mul", graph.add("Sign", values), size)


def same_convolution(
    graph: Graph, images: str, weight: torch.Tensor, bias: torch.Tensor | None = None, **attributes: Any
) -> str:
    """Convolution that keeps height and width; an even kernel reaches one pixel further right and down."""
    kernel = weight.shape[-1]
    before, after = (kernel - 1) // 2, kernel // 2
    biases = [] if bias is None else [graph.constant(bias, "bias")]
    return graph.add(
        "Conv", images, graph.constant(weight, "filters"), *biases, pads=[before, before, after, after], **attributes
    )
