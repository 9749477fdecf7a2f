"""Extractors as ONNX nodes: what they share, and the form of each kind that is known.

A form adds the nodes of an extractor's ``vector`` to a graph: pixels float32 [N, C, H, W] of about zero mean and unit
variance become a vector [N, length]. The order of operations is that of the extractor, so that the two differ by no
more than rounding; contracts/test_export.py holds every registered extractor to that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from circle.errors import CircleError
from circle.export.graph import Graph
from circle.extractors import Extractor
from circle.extractors.projection import ProjectedExtractor, RandomProjection

Form = Callable[[Graph, Any, str], str]
FORMS: dict[type[Extractor], Form] = {}
Wrapped = TypeVar("Wrapped", bound=Form)


def form_of(kind: type[ProjectedExtractor]) -> Callable[[Wrapped], Wrapped]:
    """Decorator: this function is the ONNX form of ``kind.vector``. Plug-ins may use it for extractors of their own."""

    def remember(form: Wrapped) -> Wrapped:
        FORMS[kind] = form
        return form

    return remember


def add_extractor(graph: Graph, extractor: Extractor, images: str) -> str:
    """Features float32 [N, size] of images float32 [N, C, H, W] in [0, 1]: ``ProjectedExtractor.forward``."""
    form = FORMS.get(type(extractor))
    if form is None or not isinstance(extractor, ProjectedExtractor):
        known = ", ".join(sorted(kind.__name__ for kind in FORMS))
        raise CircleError(
            f"extractor {extractor.config.name!r} cannot be exported: it has no ONNX form (those that have: {known})"
        )
    config = extractor.config
    images = graph.add("Sub", images, graph.constant(config.input_mean, "mean"))
    images = graph.add("Div", images, graph.constant(config.input_scale, "scale"))
    if config.mirror:
        both = graph.concat([images, mirrored(graph, images, axis=3)], 0)
        vector = form(graph, extractor, both)
        length = extractor.projection.inputs if extractor.projection else extractor.size
        vector = graph.mean(graph.reshape(vector, [2, -1, length]), [0])
    else:
        vector = form(graph, extractor, images)
    return project(graph, extractor.projection, vector) if extractor.projection else vector


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
