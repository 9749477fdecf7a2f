"""ONNX forms of the portable extractors: the same integers, node by node, in any runtime that keeps to IEEE arithmetic.

Patches are cut by slices and multiplied as matrices. A convolution node would be shorter, but some runtimes compute it
by way of fractions, which no longer add up exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from circle.export.extractors import double, form_of
from circle.export.graph import Graph
from circle.extractors import BiRC2D, LocalContrast
from circle.extractors.local_contrast import ContrastBank
from circle.extractors.reservoir import ReservoirLayer
from circle.extractors.stem import ContrastStem, PlainStem
from circle.runtime import birc2d as specification
from circle.runtime.birc2d import DIRECTIONS
from circle.runtime.local_contrast import PatchScale
from circle.runtime.weights import PLAIN_SHIFT, ROOT_SHIFT

# -- arithmetic ------------------------------------------------------------------------------------------------


def times(graph: Graph, values: str, factor: float) -> str:
    """Values float32 times a constant."""
    return graph.add("Mul", values, graph.constant(float(factor)))


def rounded_half_up(graph: Graph, values: str, shift: int) -> str:
    """floor(v / 2^shift + 1/2) of float32 values."""
    return graph.add("Floor", graph.add("Add", times(graph, values, 2.0**-shift), graph.constant(0.5)))


def rounded(graph: Graph, values: str, limit: float) -> str:
    """Rounded half to even, from -limit to limit; of float32 values."""
    return graph.add("Clip", graph.add("Round", values), graph.constant(-float(limit)), graph.constant(float(limit)))


def integer_root(graph: Graph, values: str) -> str:
    """floor(sqrt(n)) of integers in float64."""
    return graph.add("Floor", graph.add("Sqrt", graph.add("Add", values, double(graph, 0.5))))


def signed_root(graph: Graph, values: str) -> str:
    """sign(v) floor(sqrt(2^12 |v|)) of integers in float32."""
    size = graph.cast(graph.add("Abs", values), "DOUBLE")
    root = integer_root(graph, graph.add("Mul", size, double(graph, 2.0**ROOT_SHIFT)))
    return graph.add("Mul", graph.add("Sign", values), graph.cast(root, "FLOAT"))


def powered(graph: Graph, values: str, power: float, *, pooled: bool = True) -> str:
    """What the config's ``power`` makes of the vector."""
    if power == 0.5:
        return signed_root(graph, values)
    return graph.add("Floor", times(graph, values, 2.0**-PLAIN_SHIFT)) if pooled else values


def neighbours(graph: Graph, maps: str, kernel: int, sides: tuple[int, int], mode: str) -> str:
    """Maps [N, C, H, W] -> [N, k k, C, H, W]: the k x k values around each; even kernels reach right and down."""
    before, after = (kernel - 1) // 2, kernel // 2
    padded = graph.pad(maps, [0, 0, before, before], [0, 0, after, after], mode=mode)
    height, width = sides
    axes = graph.constant([2, 3], "axes")
    moved = []
    for i in range(kernel):
        for j in range(kernel):
            ends = graph.constant([i + height, j + width], "ends")
            part = graph.add("Slice", padded, graph.constant([i, j], "starts"), ends, axes)
            moved.append(graph.add("Unsqueeze", part, graph.constant([1], "axis")))
    return graph.concat(moved, 1)


def patch_factor(graph: Graph, scale: PatchScale, scatter: str) -> str:
    """floor(sqrt(floor(numerator / (V + epsilon)))) / 2^shift in float32, of V in float64."""
    divisor = graph.add("Add", scatter, double(graph, scale.epsilon))
    quotient = graph.add("Floor", graph.add("Div", double(graph, scale.numerator), divisor))
    factor = graph.add("Mul", integer_root(graph, quotient), double(graph, 2.0**-scale.shift))
    return graph.cast(factor, "FLOAT")


def along_columns(graph: Graph, maps: str, rows: torch.Tensor) -> str:
    """Maps [N, J, H, W] -> [N, J, g, W]."""
    return graph.add("MatMul", graph.constant(rows, "rows"), maps)


def along_rows(graph: Graph, sums: str, columns: torch.Tensor, channels: int) -> str:
    """Sums [N, J, g, W] -> [N, g g J], windows before filters."""
    pooled = graph.add("MatMul", sums, graph.constant(columns.T, "columns"))  # [N, J, g, g]
    flat = graph.add("Transpose", graph.reshape(pooled, [0, channels, -1]), perm=[0, 2, 1])
    return graph.reshape(flat, [0, -1])


# -- local contrast --------------------------------------------------------------------------------------------


@form_of(LocalContrast)
def local_contrast(graph: Graph, extractor: LocalContrast, pixels: str) -> str:
    """Pixels float32 [N, C, H, W], whole numbers from 0 to 255 -> [N, length]."""
    responses, colours = [], []
    for index, bank in enumerate(extractor.banks):
        assert isinstance(bank, ContrastBank)
        with graph.scope(f"bank{index}"):
            smaller, sides = reduced(graph, pixels, bank.reduction, extractor)
            if bank.count:
                responses += both_signs(graph, bank, contrast_maps(graph, bank, smaller, sides), bank.count, sides)
            if bank.colours:
                colours += both_signs(graph, bank, colour_maps(graph, bank, smaller, sides), bank.colours, sides)
    return powered(graph, graph.concat([*responses, *colours], 1), extractor.config.power)


def reduced(graph: Graph, pixels: str, factor: int, extractor: LocalContrast) -> tuple[str, tuple[int, int]]:
    """Means over factor x factor pixels, fewer at the far edges, rounded; and their sides."""
    channels, height, width = extractor.shape.channels, extractor.shape.height, extractor.shape.width
    if factor == 1:
        return pixels, (height, width)
    rows, columns = -(-height // factor), -(-width // factor)
    padded = graph.pad(pixels, [0, 0, 0, 0], [0, 0, -height % factor, -width % factor])
    sums = graph.sum(graph.reshape(padded, [0, channels, rows, factor, columns, factor]), [3, 5])
    tall, wide = np.full(rows, factor, np.float32), np.full(columns, factor, np.float32)
    tall[-1], wide[-1] = (height - 1) % factor + 1, (width - 1) % factor + 1
    return graph.add("Round", graph.add("Div", sums, graph.constant(tall[:, None] * wide, "counts"))), (rows, columns)


def contrast_maps(graph: Graph, bank: ContrastBank, pixels: str, sides: tuple[int, int]) -> str:
    """Responses [N, J, H W] in levels."""
    kernel, channels = bank.kernel, bank.channels
    patches = neighbours(graph, pixels, kernel, sides, "edge")  # [N, k k, C, H, W]
    sums = graph.sum(patches, [1], keep=True)
    whole = graph.cast(patches, "DOUBLE")
    squares = graph.add("Mul", graph.sum(graph.square(whole), [1, 2]), double(graph, kernel**2))
    scatter = graph.add("Sub", squares, graph.sum(graph.square(graph.cast(sums, "DOUBLE")), [1, 2]))
    factor = graph.add("Unsqueeze", patch_factor(graph, bank.scaling, scatter), graph.constant([1, 2], "axes"))
    centred = graph.add("Sub", times(graph, patches, kernel**2), sums)
    values = rounded(graph, graph.add("Mul", centred, factor), 127)
    values = graph.reshape(values, [0, kernel**2 * channels, -1])
    filters = bank.weights[: channels * kernel**2, : bank.count].T  # [J, C k k]
    filters = filters.reshape(bank.count, channels, -1).transpose(1, 2).reshape(bank.count, -1)
    return levels(graph, graph.add("MatMul", graph.constant(filters, "filters"), values))


def colour_maps(graph: Graph, bank: ContrastBank, pixels: str, sides: tuple[int, int]) -> str:
    """Functions of colour [N, Q, H W] in levels; half a level is in their constants already."""
    weights = bank.weights[:, bank.weights.shape[1] - bank.colours :]
    constants = weights[-2] * 127.0 + weights[-1] - 0.5
    centred = graph.add("Sub", graph.reshape(pixels, [0, bank.channels, -1]), graph.constant(128.0))
    directions = weights[len(weights) - 2 - bank.channels : -2].T
    sums = graph.add("MatMul", graph.constant(directions, "directions"), centred)
    return levels(graph, graph.add("Add", sums, graph.constant(constants[:, None], "constants")))


def levels(graph: Graph, sums: str) -> str:
    """Sums in levels, rounded half up, 255 at most."""
    whole = graph.add("Floor", graph.add("Add", sums, graph.constant(0.5)))
    return graph.add("Clip", whole, graph.constant(-255.0), graph.constant(255.0))


def both_signs(graph: Graph, bank: ContrastBank, maps: str, count: int, sides: tuple[int, int]) -> list[str]:
    """Maps [N, J, H W] -> moments of max(r, 0) and of max(-r, 0) over windows, each [N, g g J]."""
    maps = graph.reshape(maps, [0, count, *sides])
    parts = []
    for sign in (graph.add("Relu", maps), graph.add("Relu", graph.add("Neg", maps))):
        for moment in bank.moments:
            sums = along_columns(graph, graph.square(sign) if moment == "square" else sign, bank.rows)
            if moment == "square":
                sums = rounded_half_up(graph, sums, 8)
            parts.append(along_rows(graph, sums, bank.columns, count))
    return parts


# -- BiRC2D ----------------------------------------------------------------------------------------------------


@form_of(BiRC2D)
def birc2d(graph: Graph, extractor: BiRC2D, pixels: str) -> str:
    """Pixels float32 [N, C, H, W], whole numbers from 0 to 255 -> [N, length]."""
    config, shape = extractor.config, extractor.shape
    sides = (shape.height, shape.width)
    pixels = graph.add("Sub", times(graph, pixels, 2.0), graph.constant(255.0))
    stem = plain_stem if isinstance(extractor.stem, PlainStem) else contrast_stem
    stem_maps = stem(graph, extractor.stem, pixels, sides)  # [N, channels, H, W]
    stem_last = graph.add("Transpose", stem_maps, perm=[0, 2, 3, 1])
    pool = config.aggregation == "pool"
    maps: list[tuple[str, int, int]] = []  # [N, H, W, C], its channels and its largest value
    for stack, patch in zip(extractor.stacks, config.patch_sizes, strict=True):
        with graph.scope(f"patch{patch}"):
            values = cut_patches(graph, stem_last, patch, (*sides, extractor.stem.channels))
            for layer in stack.children():
                values = reservoir_layer(graph, layer, values)
            if pool:
                shortened = times(graph, values, 2.0**-specification.STATE_SHIFT)
                values = rounded(graph, shortened, specification.WIDE_LIMIT)
            maps.append((values, DIRECTIONS * config.direction_width, specification.WIDE_LIMIT))
    if config.join_stem:
        maps.append((stem_last, extractor.stem.channels, extractor.stem.limit))
    if not pool:
        parts = [graph.reshape(values, [0, -1]) for values, _, _ in maps]
    else:
        parts = [
            pooled(graph, extractor, index, values, channels, limit)
            for index, (values, channels, limit) in enumerate(maps)
        ]
    return powered(graph, graph.concat(parts, 1), config.power, pooled=pool)


def pooled(graph: Graph, extractor: BiRC2D, index: int, maps: str, channels: int, limit: int) -> str:
    """Moments of maps [N, H, W, J] over windows: [N, m g g J]."""
    rows, columns = extractor.get_buffer(f"rows_{index}"), extractor.get_buffer(f"columns_{index}")
    wide, parts = limit > specification.MAP_LIMIT, []
    maps = graph.add("Transpose", maps, perm=[0, 3, 1, 2])
    for moment in extractor.config.moments:
        if moment == "square":
            squares = graph.square(maps)
            squares = graph.add("Round", times(graph, squares, 2.0**-4)) if wide else squares
            sums = rounded_half_up(graph, along_columns(graph, squares, rows), 8)
        else:
            sums = along_columns(graph, maps, rows)
            sums = graph.add("Round", times(graph, sums, 2.0**-2)) if wide else sums
        parts.append(along_rows(graph, sums, columns, channels))
    return graph.concat(parts, 1)


def plain_stem(graph: Graph, stem: nn.Module, maps: str, sides: tuple[int, int]) -> str:
    """[N, C, H, W] -> [N, channels, H, W]."""
    assert isinstance(stem, PlainStem)
    for layer, (outputs, inputs, kernel, _) in enumerate(stem.shapes):
        with graph.scope(f"stem{layer}"):
            weight = stem.get_buffer(f"weight_{layer}").reshape(outputs, inputs, -1).transpose(1, 2)
            kind = "DOUBLE" if weight.dtype == torch.float64 else "FLOAT"
            patches = graph.reshape(neighbours(graph, maps, kernel, sides, "constant"), [0, inputs * kernel**2, -1])
            filters = graph.constant(weight.reshape(outputs, -1), "filters")
            sums = graph.add("MatMul", filters, graph.cast(patches, kind))
            half = torch.full((outputs, 1), 0.5, dtype=weight.dtype)
            if f"bias_{layer}" in dict(stem.named_buffers()):
                half = half + stem.get_buffer(f"bias_{layer}")[:, None]
            sums = graph.cast(graph.add("Floor", graph.add("Add", sums, graph.constant(half, "bias"))), "FLOAT")
            active = rounded(graph, graph.add("LeakyRelu", sums, alpha=stem.slope), stem.limit)
            maps = graph.reshape(active, [0, outputs, *sides])
    return maps


def contrast_stem(graph: Graph, stem: nn.Module, maps: str, sides: tuple[int, int]) -> str:
    """[N, C, H, W] -> [N, channels, H, W]: max(r, 0) and max(-r, 0) of contrast-normalised responses."""
    assert isinstance(stem, ContrastStem)
    for layer, (outputs, inputs, kernel, _) in enumerate(stem.shapes):
        with graph.scope(f"stem{layer}"):
            size = inputs * kernel**2
            patches = neighbours(graph, maps, kernel, sides, "constant")  # [N, k k, C, H, W]
            whole = graph.cast(patches, "DOUBLE")
            sums = graph.sum(whole, [1, 2], keep=True)
            squares = graph.add("Mul", graph.sum(graph.square(whole), [1, 2], keep=True), double(graph, size))
            factor = patch_factor(graph, stem.scales[layer], graph.add("Sub", squares, graph.square(sums)))
            centred = graph.add("Sub", times(graph, patches, size), graph.cast(sums, "FLOAT"))
            values = graph.reshape(rounded(graph, graph.add("Mul", centred, factor), 127), [0, size, -1])
            filters = stem.get_buffer(f"weight_{layer}").reshape(outputs, inputs, -1).transpose(1, 2)
            response = levels(
                graph, graph.add("MatMul", graph.constant(filters.reshape(outputs, -1), "filters"), values)
            )
            both = [graph.add("Relu", response), graph.add("Relu", graph.add("Neg", response))]
            maps = graph.reshape(graph.concat(both, 1), [0, 2 * outputs, *sides])
    return maps


def cut_patches(graph: Graph, maps: str, side: int, shape: tuple[int, int, int]) -> str:
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
    kind = "DOUBLE" if layer.weight_in.dtype == torch.float64 else "FLOAT"
    drives = graph.add("MatMul", graph.cast(maps, kind), graph.constant(layer.weight_in, "weight_in"))
    names = [graph.name("drive") for _ in range(DIRECTIONS)]
    graph.add_many("Split", drives, names=names, axis=3, num_outputs=DIRECTIONS)
    states = [reservoir_scan(graph, layer, direction, drive, kind) for direction, drive in enumerate(names)]
    return graph.cast(graph.concat(states, 3), "FLOAT")


def reservoir_scan(graph: Graph, layer: ReservoirLayer, direction: int, drive: str, kind: str) -> str:
    """All states of one direction, in the shape of its inputs [N, H, W, width]: one ``Scan`` node."""
    axis, backward = 2 - direction // 2, direction % 2
    weight = graph.constant(layer.recurrent[direction], "recurrent")
    dtype = layer.weight_in.dtype

    def number(value: float) -> str:
        return body.constant(torch.tensor(value, dtype=dtype))

    body = Graph()
    with body.scope(graph.name("step")):
        old, given, new, out = (body.name(word) for word in ("old", "drive", "new", "out"))
        sums = body.add("Round", body.add("Add", given, body.add("MatMul", old, weight)))
        # Not LeakyRelu, which onnxruntime has in float32 only.
        slanted = body.add("Mul", sums, number(layer.slope))
        active = body.add("Round", body.add("Max" if layer.slope <= 1.0 else "Min", sums, slanted))
        limit = float(specification.STATE_LIMIT)
        state = body.add("Clip", active, number(-limit), number(limit))
        if layer.leak < 1.0:
            kept = body.add("Mul", old, number(1.0 - layer.leak))
            state = body.add("Round", body.add("Add", kept, body.add("Mul", state, number(layer.leak))))
        body.add("Identity", state, name=new)
        body.add("Identity", state, name=out)
    return add_scan(graph, body, (old, given), (new, out), drive, kind, axis=axis, backward=backward)[1]


def add_scan(
    graph: Graph,
    body: Graph,
    inputs: Sequence[str],
    outputs: Sequence[str],
    drive: str,
    kind: str,
    *,
    axis: int,
    backward: int,
) -> Sequence[str]:
    """A ``Scan`` of the body along an axis of ``drive``, beginning with a state of zeros: last state, all states."""
    helper = graph.onnx.helper

    def described(names: Sequence[str]) -> list:
        return [helper.make_tensor_value_info(name, getattr(graph.onnx.TensorProto, kind), None) for name in names]

    step = helper.make_graph(body.nodes, "step", described(inputs), described(outputs), list(body.constants.values()))
    first = graph.add("Gather", drive, graph.constant(torch.tensor(0), "first"), axis=axis)
    zero = graph.cast(graph.add("ConstantOfShape", graph.add("Shape", first)), kind)
    return graph.add_many(
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
