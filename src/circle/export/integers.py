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
from circle.extractors.integers import FLOAT32_EXACT
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


def powered(graph: Graph, values: str, power: float, *, signed: bool = True, pooled: bool = True) -> str:
    """What the config's ``power`` makes of integers in float32: sign(v) floor(sqrt(2^12 |v|)) of one half.

    Values that are not ``signed`` are never below zero.
    """
    if power != 0.5:
        return graph.add("Floor", times(graph, values, 2.0**-PLAIN_SHIFT)) if pooled else values
    size = graph.cast(graph.add("Abs", values) if signed else values, "DOUBLE")
    root = graph.cast(integer_root(graph, graph.add("Mul", size, double(graph, 2.0**ROOT_SHIFT))), "FLOAT")
    return graph.add("Mul", graph.add("Sign", values), root) if signed else root


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


def box_sums(graph: Graph, maps: str, kernel: int, sides: tuple[int, int], mode: str) -> str:
    """Maps [N, C, H, W] -> the sums of the k x k values around each, along one side after the other."""
    before, after = (kernel - 1) // 2, kernel // 2
    maps = graph.pad(maps, [0, 0, before, before], [0, 0, after, after], mode=mode)
    for axis, length in zip((2, 3), sides, strict=True):
        place = graph.constant([axis], "axis")
        moved = [
            graph.add("Slice", maps, graph.constant([start], "start"), graph.constant([start + length], "end"), place)
            for start in range(kernel)
        ]
        maps = graph.add("Sum", *moved)
    return maps


def squares_by_pixel(graph: Graph, maps: str, channels: int, limit: int) -> str:
    """Maps [N, C, H, W] of at most ``limit`` -> sums of squares over channels, float64 [N, 1, H, W]."""
    if channels * limit**2 > FLOAT32_EXACT:
        maps = graph.cast(maps, "DOUBLE")
    return graph.cast(graph.sum(graph.square(maps), [1], keep=True), "DOUBLE")


def normalised(graph: Graph, scale: PatchScale, centred: str, scatter: str) -> str:
    """Centred patches float32 [N, k k, C, H, W] with their scatter V float64 [N, 1, H, W], in levels: [N, k k C, H W].

    They are multiplied by m / 2^shift with m = floor(sqrt(floor(numerator / (V + epsilon)))).
    """
    divisor = graph.add("Add", scatter, double(graph, scale.epsilon))
    quotient = graph.add("Floor", graph.add("Div", double(graph, scale.numerator), divisor))
    factor = graph.add("Mul", integer_root(graph, quotient), double(graph, 2.0**-scale.shift))
    factor = graph.add("Unsqueeze", graph.cast(factor, "FLOAT"), graph.constant([1], "axis"))
    product = graph.add("Mul", centred, factor)
    values = rounded(graph, product, 127) if scale.may_exceed else graph.add("Round", product)
    return graph.reshape(values, [0, scale.values, -1])


def columns_of(filters: torch.Tensor) -> torch.Tensor:
    """Filters [J, C, k k] in the order of patches: [k k C, J]."""
    return filters.transpose(1, 2).flatten(1).T


def along_columns(graph: Graph, maps: str, rows: torch.Tensor) -> str:
    """Maps [..., H, X] -> [..., g, X]."""
    return graph.add("MatMul", graph.constant(rows, "rows"), maps)


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
                colours += both_signs(graph, bank, colour_maps(graph, bank, smaller), bank.colours, sides)
    return powered(graph, graph.concat([*responses, *colours], 1), extractor.config.power, signed=False)


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
    sums = box_sums(graph, pixels, kernel, sides, "edge")
    squares = box_sums(graph, squares_by_pixel(graph, pixels, channels, 255), kernel, sides, "edge")
    squares = graph.add("Mul", squares, double(graph, kernel**2))
    scatter = graph.add("Sub", squares, graph.sum(graph.square(graph.cast(sums, "DOUBLE")), [1], keep=True))
    patches = neighbours(graph, times(graph, pixels, kernel**2), kernel, sides, "edge")  # [N, k k, C, H, W]
    centred = graph.add("Sub", patches, graph.add("Unsqueeze", sums, graph.constant([1], "axis")))
    filters = columns_of(bank.weights[: channels * kernel**2, : bank.count].T.reshape(bank.count, channels, -1))
    patches = normalised(graph, bank.scaling, centred, scatter)
    return levels(graph, graph.add("MatMul", graph.constant(filters.T, "filters"), patches), may_clip=bank.may_clip)


def colour_maps(graph: Graph, bank: ContrastBank, pixels: str) -> str:
    """Functions of colour [N, Q, H W] in levels; half a level is in their constants already."""
    weights = bank.weights[:, bank.weights.shape[1] - bank.colours :]
    constants = weights[-2] * 127.0 + weights[-1] - 0.5
    centred = graph.add("Sub", graph.reshape(pixels, [0, bank.channels, -1]), graph.constant(128.0))
    directions = weights[len(weights) - 2 - bank.channels : -2].T
    sums = graph.add("MatMul", graph.constant(directions, "directions"), centred)
    return levels(
        graph, graph.add("Add", sums, graph.constant(constants[:, None], "constants")), may_clip=bank.may_clip
    )


def levels(graph: Graph, sums: str, *, may_clip: bool) -> str:
    """Sums in levels, rounded half up, 255 at most."""
    whole = graph.add("Floor", graph.add("Add", sums, graph.constant(0.5)))
    return graph.add("Clip", whole, graph.constant(-255.0), graph.constant(255.0)) if may_clip else whole


def both_signs(graph: Graph, bank: ContrastBank, maps: str, count: int, sides: tuple[int, int]) -> list[str]:
    """Maps [N, J, H W] -> moments of max(r, 0) and of max(-r, 0) over windows, each [N, g g J].

    Sums are exact, so those of max(-r, 0) are those of max(r, 0) less those of r, and of squares likewise.
    """
    whole = graph.reshape(maps, [0, count, *sides])
    positive = graph.add("Relu", whole)
    parts: tuple[list[str], list[str]] = ([], [])
    for moment in bank.moments:
        if moment == "square":
            above = along_columns(graph, graph.square(positive), bank.rows)
            below = graph.add("Sub", along_columns(graph, graph.square(whole), bank.rows), above)
        else:
            above = along_columns(graph, positive, bank.rows)
            below = graph.add("Sub", above, along_columns(graph, whole, bank.rows))
        for sums, sign in zip((above, below), parts, strict=True):
            rounded_sums = rounded_half_up(graph, sums, 8) if moment == "square" else sums
            pooled_maps = graph.add("MatMul", rounded_sums, graph.constant(bank.columns.T, "columns"))  # [N, J, g, g]
            flat = graph.add("Transpose", graph.reshape(pooled_maps, [0, count, -1]), perm=[0, 2, 1])
            sign.append(graph.reshape(flat, [0, -1]))
    return [*parts[0], *parts[1]]


# -- BiRC2D ----------------------------------------------------------------------------------------------------


@form_of(BiRC2D)
def birc2d(graph: Graph, extractor: BiRC2D, pixels: str) -> str:
    """Pixels float32 [N, C, H, W], whole numbers from 0 to 255 -> [N, length]."""
    config, shape = extractor.config, extractor.shape
    sides = (shape.height, shape.width)
    pixels = graph.add("Sub", times(graph, pixels, 2.0), graph.constant(255.0))
    stem = plain_stem if isinstance(extractor.stem, PlainStem) else contrast_stem
    stem_maps = stem(graph, extractor.stem, pixels, sides)  # [N, H, W, channels]
    pool = config.aggregation == "pool"
    maps: list[tuple[str, int, int, bool]] = []  # [N, H, W, C], its channels and largest value, whether it is signed
    for stack, patch in zip(extractor.stacks, config.patch_sizes, strict=True):
        with graph.scope(f"patch{patch}"):
            values = cut_patches(graph, stem_maps, patch, (*sides, extractor.stem.channels))
            for layer in stack.children():
                values = reservoir_layer(graph, layer, values)
            if pool:
                shortened = times(graph, values, 2.0**-specification.STATE_SHIFT)
                values = rounded(graph, shortened, specification.WIDE_LIMIT)
            maps.append((values, DIRECTIONS * config.direction_width, specification.WIDE_LIMIT, True))
    if config.join_stem:
        signed = not isinstance(extractor.stem, ContrastStem) or not extractor.stem.shapes
        maps.append((stem_maps, extractor.stem.channels, extractor.stem.limit, signed))
    if not pool:
        flat = graph.concat([graph.reshape(values, [0, -1]) for values, _, _, _ in maps], 1)
        return powered(graph, flat, config.power, pooled=False)
    return graph.concat([pooled(graph, extractor, index, *each) for index, each in enumerate(maps)], 1)


def pooled(graph: Graph, extractor: BiRC2D, index: int, maps: str, channels: int, limit: int, signed: bool) -> str:
    """Moments of maps [N, H, W, J] over windows, to the config's power: [N, m g g J]."""
    rows, columns = extractor.get_buffer(f"rows_{index}"), extractor.get_buffer(f"columns_{index}")
    wide, parts = limit > specification.MAP_LIMIT, []
    maps = graph.reshape(maps, [0, rows.shape[1], columns.shape[1] * channels])
    for moment in extractor.config.moments:
        if moment == "square":
            squares = graph.square(maps)
            squares = graph.add("Round", times(graph, squares, 2.0**-4)) if wide else squares
            sums = rounded_half_up(graph, along_columns(graph, squares, rows), 8)
        else:
            sums = along_columns(graph, maps, rows)
            sums = graph.add("Round", times(graph, sums, 2.0**-2)) if wide else sums
        sums = graph.reshape(sums, [0, rows.shape[0], columns.shape[1], channels])
        values = graph.reshape(graph.add("MatMul", graph.constant(columns, "columns"), sums), [0, -1])
        parts.append(powered(graph, values, extractor.config.power, signed=signed and moment != "square"))
    return graph.concat(parts, 1)


def filtered(graph: Graph, patches: str, filters: torch.Tensor) -> str:
    """Patches [N, k k C, P] and filters [J, C, k k] -> responses [N, P, J]."""
    turned = graph.add("Transpose", patches, perm=[0, 2, 1])  # onnxruntime makes it a part of the product
    return graph.add("MatMul", turned, graph.constant(columns_of(filters), "filters"))


def planes(graph: Graph, maps: str) -> str:
    """Maps [N, H, W, C] -> [N, C, H, W]."""
    return graph.add("Transpose", maps, perm=[0, 3, 1, 2])


def plain_stem(graph: Graph, stem: nn.Module, pixels: str, sides: tuple[int, int]) -> str:
    """[N, C, H, W] -> [N, H, W, channels]."""
    assert isinstance(stem, PlainStem)
    maps = graph.add("Transpose", pixels, perm=[0, 2, 3, 1])
    for layer, (outputs, inputs, kernel, _) in enumerate(stem.shapes):
        with graph.scope(f"stem{layer}"):
            weight = stem.get_buffer(f"weight_{layer}").reshape(outputs, inputs, -1)
            kind = "DOUBLE" if weight.dtype == torch.float64 else "FLOAT"
            patches = neighbours(graph, planes(graph, maps) if layer else pixels, kernel, sides, "constant")
            patches = graph.cast(graph.reshape(patches, [0, inputs * kernel**2, -1]), kind)
            half = torch.full((outputs,), 0.5, dtype=weight.dtype)
            if f"bias_{layer}" in dict(stem.named_buffers()):
                half = half + stem.get_buffer(f"bias_{layer}")
            sums = graph.add("Add", filtered(graph, patches, weight), graph.constant(half, "bias"))
            active = graph.add("LeakyRelu", graph.cast(graph.add("Floor", sums), "FLOAT"), alpha=stem.slope)
            maps = graph.reshape(rounded(graph, active, stem.limit), [0, *sides, outputs])
    return maps


def contrast_stem(graph: Graph, stem: nn.Module, pixels: str, sides: tuple[int, int]) -> str:
    """[N, C, H, W] -> [N, H, W, channels]: max(r, 0) and max(-r, 0) of contrast-normalised responses."""
    assert isinstance(stem, ContrastStem)
    maps = graph.add("Transpose", pixels, perm=[0, 2, 3, 1])
    for layer, (outputs, inputs, kernel, _) in enumerate(stem.shapes):
        with graph.scope(f"stem{layer}"):
            size = inputs * kernel**2
            given = planes(graph, maps) if layer else pixels
            sums = box_sums(graph, graph.sum(given, [1], keep=True), kernel, sides, "constant")  # [N, 1, H, W]
            squares = squares_by_pixel(graph, given, inputs, specification.MAP_LIMIT)
            squares = graph.add("Mul", box_sums(graph, squares, kernel, sides, "constant"), double(graph, size))
            scatter = graph.add("Sub", squares, graph.square(graph.cast(sums, "DOUBLE")))
            patches = neighbours(graph, times(graph, given, size), kernel, sides, "constant")  # [N, k k, C, H, W]
            centred = graph.add("Sub", patches, graph.add("Unsqueeze", sums, graph.constant([1], "axis")))
            filters = stem.get_buffer(f"weight_{layer}").reshape(outputs, inputs, -1)
            values = filtered(graph, normalised(graph, stem.scales[layer], centred, scatter), filters)
            largest = stem.scales[layer].norm * float(filters.flatten(1).norm(dim=1).max())
            response = levels(graph, values, may_clip=largest + 1 > specification.MAP_LIMIT)
            both = [graph.add("Relu", response), graph.add("Relu", graph.add("Neg", response))]
            maps = graph.reshape(graph.concat(both, 2), [0, *sides, 2 * outputs])
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
        old, given, out = (body.name(word) for word in ("old", "drive", "out"))
        sums = body.add("Round", body.add("Add", given, body.add("MatMul", old, weight)))
        if kind == "FLOAT":
            active = body.add("LeakyRelu", sums, alpha=layer.slope)
        else:  # LeakyRelu, which onnxruntime has in float32 only
            slanted = body.add("Mul", sums, number(layer.slope))
            active = body.add("Max" if layer.slope <= 1.0 else "Min", sums, slanted)
        active = body.add("Round", active)
        limit = float(specification.STATE_LIMIT)
        state = body.add("Clip", active, number(-limit), number(limit))
        if layer.leak < 1.0:
            kept = body.add("Mul", old, number(1.0 - layer.leak))
            state = body.add("Round", body.add("Add", kept, body.add("Mul", state, number(layer.leak))))
        body.add("Identity", state, name=out)
    return add_scan(graph, body, (old, given), (state, out), drive, kind, axis=axis, backward=backward)[1]


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
