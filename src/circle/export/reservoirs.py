"""ONNX forms of the extractors that scan: BiRC2D and the Patch-RNNs. A recurrence is one ``Scan`` node."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from circle.export.extractors import form_of, pool, same_convolution, signed_power
from circle.export.graph import Graph
from circle.extractors import BiRC2D, PatchRNN
from circle.extractors.reservoir import DIRECTIONS, ReservoirLayer
from circle.extractors.stem import ContrastStem, PlainStem


@form_of(BiRC2D)
def birc2d(graph: Graph, extractor: BiRC2D, images: str) -> str:
    config, shape = extractor.config, extractor.shape
    stem = add_stem(graph, extractor.stem, images)
    stem_last = graph.add("Transpose", stem, perm=[0, 2, 3, 1])
    maps: list[tuple[str, int, int]] = []  # [N, H, W, C], its channels and its pixels
    for stack, patch in zip(extractor.stacks, config.patch_sizes, strict=True):
        with graph.scope(f"patch{patch}"):
            height, width = -(-shape.height // patch), -(-shape.width // patch)
            values = patches(graph, stem_last, patch, (shape.height, shape.width, extractor.stem.channels))
            for layer in stack.children():
                values = reservoir_layer(graph, layer, values)
            maps.append((values, DIRECTIONS * config.direction_width, height * width))
    if config.join_stem:
        maps.append((stem_last, extractor.stem.channels, shape.height * shape.width))
    parts = []
    for index, (values, channels, pixels) in enumerate(maps):
        if config.aggregation == "pool":
            flat, windows = graph.reshape(values, [0, pixels, channels]), extractor.get_buffer(f"grid_{index}")
            parts.append(pool(graph, flat, windows, channels, config.moments, channels_last=True))
        else:
            parts.append(graph.reshape(values, [0, pixels * channels]))
    return signed_power(graph, graph.concat(parts, 1), config.power)


@form_of(PatchRNN)
def patch_rnn(graph: Graph, extractor: PatchRNN, images: str) -> str:
    config, shape, side = extractor.config, extractor.shape, extractor.patch
    stem = graph.add("Transpose", add_stem(graph, extractor.stem, images), perm=[0, 2, 3, 1])
    cut = patches(graph, stem, side, (shape.height, shape.width, extractor.stem.channels))
    sequence = graph.reshape(cut, [0, -1, side * side * extractor.stem.channels])  # [N, L, p p C]
    drive = graph.add("MatMul", sequence, graph.constant(extractor.weight_in, "weight_in"))
    activation = ("Tanh", {}) if config.activation == "tanh" else ("Relu", {})
    return scan(graph, drive, extractor.recurrent, config.leak, activation, axis=1)[0]


def add_stem(graph: Graph, stem: PlainStem | ContrastStem, images: str) -> str:
    """[N, C, H, W] -> [N, channels, H, W]."""
    for layer, (*_, kernel) in enumerate(stem.shapes):
        with graph.scope(f"stem{layer}"):
            if isinstance(stem, ContrastStem):
                images = contrast_layer(graph, images, stem.weight(layer), kernel, stem.epsilon)
            else:
                bias = stem.get_buffer(f"bias_{layer}") if stem.bias else None
                response = same_convolution(graph, images, stem.weight(layer), bias)
                images = graph.add("LeakyRelu", response, alpha=stem.slope)
    return images


def contrast_layer(graph: Graph, images: str, weight: Tensor, kernel: int, epsilon: float) -> str:
    """r = (f * x) / sqrt(variance of the patch + epsilon); maps max(r, 0) and max(-r, 0)."""
    response = same_convolution(graph, images, weight)
    moments = [graph.mean(images, [1], keep=True), graph.mean(graph.square(images), [1], keep=True)]
    box = torch.full((2, 1, kernel, kernel), kernel**-2)
    pooled = same_convolution(graph, graph.concat(moments, 1), box, group=2)
    mean, square = graph.add_many(
        "Split", pooled, names=[graph.name("mean"), graph.name("square")], axis=1, num_outputs=2
    )
    variance = graph.add("Relu", graph.add("Sub", square, graph.square(mean)))
    deviation = graph.add("Sqrt", graph.add("Add", variance, graph.constant(epsilon, "epsilon")))
    response = graph.add("Div", response, deviation)
    return graph.concat([graph.add("Relu", response), graph.add("Relu", graph.add("Neg", response))], 1)


def patches(graph: Graph, maps: str, side: int, shape: tuple[int, int, int]) -> str:
    """``circle.extractors.reservoir.patches``: [N, H, W, C] -> [N, ceil(H / side), ceil(W / side), side side C]."""
    height, width, channels = shape
    more_rows, more_columns = -height % side, -width % side
    top, left = more_rows // 2, more_columns // 2
    maps = graph.pad(maps, [0, top, left, 0], [0, more_rows - top, more_columns - left, 0])
    rows, columns = (height + more_rows) // side, (width + more_columns) // side
    cut = graph.reshape(maps, [0, rows, side, columns, side, channels])
    cut = graph.add("Transpose", cut, perm=[0, 1, 3, 2, 4, 5])
    return graph.reshape(cut, [0, rows, columns, side * side * channels])


def reservoir_layer(graph: Graph, layer: nn.Module, maps: str) -> str:
    """[N, H, W, inputs] -> [N, H, W, 4 width]: right, left, down and up."""
    assert isinstance(layer, ReservoirLayer)
    drives = graph.add("MatMul", maps, graph.constant(layer.weight_in, "weight_in"))
    names = [graph.name("drive") for _ in range(DIRECTIONS)]
    graph.add_many("Split", drives, names=names, axis=3, num_outputs=DIRECTIONS)
    activation = "LeakyRelu", {"alpha": layer.slope}
    states = [
        scan(
            graph,
            drive,
            layer.recurrent[direction],
            layer.leak,
            activation,
            axis=2 - direction // 2,
            backward=direction % 2,
        )[1]
        for direction, drive in enumerate(names)
    ]
    return graph.concat(states, 3)


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
    helper, kind = graph.onnx.helper, graph.onnx.TensorProto.FLOAT
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

    def described(*names: str) -> list:
        return [helper.make_tensor_value_info(name, kind, None) for name in names]

    step = helper.make_graph(
        body.nodes, "step", described(old, given), described(new, out), list(body.constants.values())
    )
    first = graph.add("Gather", drive, graph.constant(torch.tensor(0), "first"), axis=axis)
    zero = graph.add("ConstantOfShape", graph.add("Shape", first))
    last, states = graph.add_many(
        "Scan",
        zero,
        drive,
        names=[graph.name("last"), graph.name("states")],
        body=step,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis],
        scan_input_directions=[backward],
        scan_output_directions=[backward],
    )
    return last, states
