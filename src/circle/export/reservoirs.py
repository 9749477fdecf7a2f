"""ONNX form of the Patch-RNNs: the recurrence is one ``Scan`` node."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from circle.export.extractors import form_of, same_convolution
from circle.export.graph import Graph
from circle.export.integers import add_scan, cut_patches
from circle.extractors import PatchRNN
from circle.extractors.patch_rnn import ConvolutionStem


@form_of(PatchRNN)
def patch_rnn(graph: Graph, extractor: PatchRNN, images: str) -> str:
    config, shape, side = extractor.config, extractor.shape, extractor.patch
    stem = graph.add("Transpose", add_stem(graph, extractor.stem, images), perm=[0, 2, 3, 1])
    cut = cut_patches(graph, stem, side, (shape.height, shape.width, extractor.stem.channels))
    sequence = graph.reshape(cut, [0, -1, side * side * extractor.stem.channels])  # [N, L, p p C]
    drive = graph.add("MatMul", sequence, graph.constant(extractor.weight_in, "weight_in"))
    activation = ("Tanh", {}) if config.activation == "tanh" else ("Relu", {})
    return scan(graph, drive, extractor.recurrent, config.leak, activation, axis=1)[0]


def add_stem(graph: Graph, stem: ConvolutionStem, images: str) -> str:
    """[N, C, H, W] -> [N, channels, H, W]."""
    for layer in range(len(stem.shapes)):
        with graph.scope(f"stem{layer}"):
            bias = stem.get_buffer(f"bias_{layer}") if stem.bias else None
            response = same_convolution(graph, images, stem.weight(layer), bias)
            images = graph.add("LeakyRelu", response, alpha=stem.slope)
    return images


def scan(
    graph: Graph,
    drive: str,
    recurrent: Tensor,
    leak: float,
    activation: tuple[str, dict[str, Any]],
    *,
    axis: int,
    backward: int = 0,
) -> tuple[str, str]:
    """h_t = (1 - a) h_{t-1} + a f(x_t + W h_{t-1}) with h_0 = 0, t running along ``axis`` of the inputs x [..., width].

    Returns the last state, without that axis, and all states in the shape of the inputs.
    """
    weight = graph.constant(recurrent, "recurrent")
    body = Graph()
    with body.scope(graph.name("step")):
        old, given, new, out = (body.name(word) for word in ("old", "drive", "new", "out"))
        drive_here = body.add("Add", given, body.add("MatMul", old, weight))
        current = body.add(activation[0], drive_here, **activation[1])
        if leak < 1.0:
            kept = body.add("Mul", old, body.constant(1.0 - leak, "kept"))
            current = body.add("Add", kept, body.add("Mul", current, body.constant(leak, "leak")))
        body.add("Identity", current, name=new)
        body.add("Identity", current, name=out)

    last, states = add_scan(graph, body, (old, given), (new, out), drive, "FLOAT", axis=axis, backward=backward)
    return last, states
