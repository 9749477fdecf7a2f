"""A whole classifier as one ONNX graph: uint8 images in, probabilities and the best class out.

Heads turn grid positions [N, D] into scores [N, C], all in float64 as in :mod:`circle.heads.scores`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any, Literal

import torch

from circle import __version__
from circle.ensemble import Group
from circle.errors import CircleError, counted
from circle.export.extractors import add_extractor
from circle.export.graph import Graph, require_room
from circle.heads.scores import (
    CosineScores,
    LinearScores,
    LowRankScores,
    PackedScores,
    PackedSubspaceScores,
    QuadraticScores,
    Scores,
    SubspaceCorrection,
    SubspaceScores,
)
from circle.labels import encode_labels
from circle.predictor import ImageClassifier, Predictor
from circle.runtime.probabilities import MARGINS_PER_SQUARE, USUAL_CLASSES, USUAL_MARGIN
from circle.runtime.subspace import COMPONENT_STEPS, CURVATURE_STEPS, MAX_WHITENED, WHITENED_STEPS, subspace_matrix

Layout = Literal["NHWC", "NCHW"]
# The files that register the forms of extractors. They are loaded with this one, which every way to ``form_of`` passes,
# so that a plug-in's form for the same extractor comes later and holds.
FORM_FILES = (
    "circle.export.integers",
    "circle.export.convolutions",
    "circle.export.reservoirs",
    "circle.export.scattering",
)
INPUT, PROBABILITIES, BEST = "images", "probabilities", "best"

for forms in FORM_FILES:
    importlib.import_module(forms)


def onnx_model(model: ImageClassifier, layout: Layout = "NHWC") -> Any:
    """The ``onnx.ModelProto`` of a model of either kind, for any number of images at a time.

    ``images`` uint8 [batch, H, W, C], or [batch, C, H, W] with the layout NCHW -> ``probabilities`` float32
    [batch, classes] and ``best`` int64 [batch], the column of the most probable class.
    """
    predictor = model.for_prediction()
    graph = Graph()
    images = INPUT if layout == "NCHW" else graph.add("Transpose", INPUT, perm=[0, 3, 1, 2])
    images = graph.cast(images, "FLOAT")
    temperature = graph.constant(torch.tensor(predictor.temperature, dtype=torch.float64), "temperature")
    head = predictor.head_config().name
    heads = []
    for index, (group, scores) in enumerate(zip(predictor.groups_, predictor.scores_, strict=True)):
        with graph.scope(f"group{index}"):
            positions = add_positions(graph, group, images, positions_name(index))
            values = add_scores(graph, scores, graph.cast(positions, "DOUBLE"), head)
            heads.append(add_probabilities(graph, values, predictor, temperature))
    average = heads[0]
    if len(heads) > 1:
        count = graph.constant(torch.tensor(float(len(heads)), dtype=torch.float64), "heads")
        average = graph.add("Div", graph.add("Sum", *heads), count)
    graph.add("Cast", average, name=PROBABILITIES, to=graph.onnx.TensorProto.FLOAT)
    graph.add("ArgMax", average, name=BEST, axis=1, keepdims=0)
    shape = predictor.image_
    sides = {"NHWC": [shape.height, shape.width, shape.channels], "NCHW": [shape.channels, shape.height, shape.width]}
    return graph.model(
        {INPUT: ("UINT8", ["batch", *sides[layout]])},
        {PROBABILITIES: ("FLOAT", ["batch", len(predictor.labels)]), BEST: ("INT64", ["batch"])},
        metadata(predictor, layout),
        ("circle-cil", __version__),
    )


def positions_name(group: int) -> str:
    """What the graph calls the features of a group, as positions on its grid."""
    return f"group{group}/positions"


def add_positions(graph: Graph, group: Group, images: str, name: str) -> str:
    """``Group.features``: pixels float32 [N, C, H, W] from 0 to 255 -> positions on the grid, float32 [N, size].

    q = clamp(round((z - offset) / scale), -L, L). ONNX and PyTorch both round halves to the even neighbour.
    """
    members = []
    for index, member in enumerate(group.members):
        with graph.scope(f"member{index}"):
            members.append(add_extractor(graph, member, images))
    grid = group.grid
    centred = graph.add("Sub", graph.concat(members, 1), graph.constant(grid.offset, "offset"))
    scale = graph.constant(grid.scale, "scale")
    if not group.quantise:
        return graph.add("Div", centred, scale, name=name)
    positions = graph.add("Div", centred, scale)
    limit = float(torch.iinfo(grid.dtype).max)
    return graph.add("Clip", graph.add("Round", positions), graph.constant(-limit), graph.constant(limit), name=name)


def metadata(model: Predictor, layout: Layout) -> dict[str, str]:
    """What a program needs to know besides the graph, as text by name; lists and settings are JSON."""
    image = model.image_
    return {
        "classes": encode_labels(model.labels),
        "layout": layout,
        "input": "uint8, 0 to 255, RGB" if image.channels == 3 else f"uint8, 0 to 255, {image.channels} channels",
        "height": str(image.height),
        "width": str(image.width),
        "channels": str(image.channels),
        "aspect": image.aspect,
        "background": str(image.background),
        "temperature": repr(model.temperature),
        "settings": json.dumps(model.settings()),
        "samples": str(model.samples_),
        "version": __version__,
    }


def add_probabilities(graph: Graph, scores: str, predictor: Predictor, temperature: str) -> str:
    """:func:`circle.runtime.probabilities.softmax` of scores float64 [N, C]; ``temperature`` names a constant."""
    if predictor.calibrated:
        highest = graph.add("ReduceMax", scores, graph.constant([1], "axes"), keepdims=1)
        total = graph.sum(graph.add("Sub", highest, scores), [1], keep=True)
        usual = torch.tensor(USUAL_CLASSES * USUAL_MARGIN, dtype=torch.float64)
        count = torch.tensor(MARGINS_PER_SQUARE * (USUAL_CLASSES + len(predictor.labels) - 1), dtype=torch.float64)
        square = graph.add("Div", graph.add("Add", total, graph.constant(usual)), graph.constant(count))
        scores = graph.add("Div", graph.add("Sub", scores, highest), graph.add("Sqrt", square))
    return graph.add("Softmax", graph.add("Div", scores, temperature), axis=1)


# -- heads -----------------------------------------------------------------------------------------------------


def add_scores(graph: Graph, scores: Scores, features: str, name: str) -> str:
    """Scores float64 [N, C] of features float64 [N, D]; ``name`` is the head's, for the error."""
    form = SCORE_FORMS.get(type(scores))
    if form is None:
        raise CircleError(
            f"head {name!r} cannot be exported: its {scores.kind} scores have no ONNX form; "
            f"expected one of {', '.join(sorted(kind.kind for kind in SCORE_FORMS))}"
        )
    return form(graph, scores, features)


def linear(graph: Graph, scores: LinearScores, features: str) -> str:
    """z W^T + b; W is kept in float32, as a predicting model keeps it, and widened when the file is loaded."""
    weight = graph.cast(graph.constant(scores.weight.T, "weight"), "DOUBLE")
    return graph.add("Add", graph.add("MatMul", features, weight), graph.constant(scores.bias.double(), "bias"))


def packed(graph: Graph, scores: PackedScores, features: str) -> str:
    """(z codes^T) r + b, exact sums first, as the model has it; the codes stay as short in the file as in the model."""
    sums = graph.add("MatMul", features, graph.cast(graph.constant(scores.codes.T, "codes"), "DOUBLE"))
    product = graph.add("Mul", sums, graph.constant(scores.rows.double(), "rows"))
    return graph.add("Add", product, graph.constant(scores.bias.double(), "bias"))


def low_rank(graph: Graph, scores: LowRankScores, features: str) -> str:
    """(z V^T) U^T + b."""
    codes = graph.cast(graph.constant(scores.codes.T, "codes"), "DOUBLE")
    inner = graph.add("Mul", codes, graph.constant(scores.rows.double(), "rows"))
    between = graph.add("MatMul", features, inner)
    outer = graph.cast(graph.constant(scores.outer.T, "outer"), "DOUBLE")
    return graph.add("Add", graph.add("MatMul", between, outer), graph.constant(scores.bias.double(), "bias"))


def cosine(graph: Graph, scores: CosineScores, features: str) -> str:
    """(z / |z|) W^T; a z of zero stays zero."""
    length = graph.add("Sqrt", graph.sum(graph.square(features), [1], keep=True))
    length = graph.add("Max", length, graph.constant(torch.tensor(1e-12, dtype=torch.float64)))
    weight = graph.cast(graph.constant(scores.weight.T, "weight"), "DOUBLE")
    return graph.add("MatMul", graph.add("Div", features, length), weight)


def quadratic(graph: Graph, scores: QuadraticScores, features: str) -> str:
    """b_c - |A_c (z - mu_c)|^2 with A_c = L_c^{-1}, because ONNX has no triangular solve.

    The A_c are lower triangular, too. The file holds their triangles row by row in float64 (float32 could cost the
    fourth digit of a probability) and one index that lays them out as matrices when it is loaded.
    """
    classes, size = scores.means.shape
    rows, columns = torch.tril_indices(size, size)
    require_room(8 * classes * (len(rows) + 1), f"covariances of {counted(classes, 'class')} with {size:,} features")
    identity = torch.eye(size, dtype=torch.float64)
    packed = torch.zeros(classes, len(rows) + 1, dtype=torch.float64)  # the last entry is the zero above diagonals
    for index in range(classes):
        lower = torch.zeros(size, size, dtype=torch.float64)
        lower[rows, columns] = scores.factors[index].cpu().double()
        packed[index, :-1] = torch.linalg.solve_triangular(lower, identity, upper=False)[rows, columns]
    place = torch.full((size, size), len(rows), dtype=torch.int32)
    place[columns, rows] = torch.arange(len(rows), dtype=torch.int32)  # of the transposed matrices
    inverse = graph.add("Gather", graph.constant(packed, "factors"), graph.constant(place, "places"), axis=1)

    means = graph.cast(graph.constant(scores.means.unsqueeze(1), "means"), "DOUBLE")  # [C, 1, D]
    centred = graph.add("Sub", graph.add("Unsqueeze", features, graph.constant([0], "axes")), means)  # [C, N, D]
    distance = graph.sum(graph.square(graph.add("MatMul", centred, inverse)), [2])  # [C, N]
    bias = graph.constant(scores.bias.double(), "bias")
    return graph.add("Sub", bias, graph.add("Transpose", distance, perm=[1, 0]))


def subspace(graph: Graph, scores: SubspaceScores, features: str) -> str:
    """z W^T + b and what a subspace adds, in the steps and the order of the model, so that no bit differs."""
    added = correction(graph, scores.correction, features, scores.weight.shape[1])
    return graph.add("Add", linear(graph, LinearScores(scores.weight, scores.bias), features), added)


def packed_subspace(graph: Graph, scores: PackedSubspaceScores, features: str) -> str:
    """The same with a packed W."""
    added = correction(graph, scores.correction, features, scores.weight.shape[1])
    return graph.add("Add", packed(graph, scores.linear, features), added)


def correction(graph: Graph, scores: SubspaceCorrection, features: str, size: int) -> str:
    """e / max(|v|^2, e_0) (k |v|^2 + p.v + q + sum_r y_r^2), [N, C], of features of this size."""
    double, dimension = torch.float64, len(scores.whitening)
    matrix = torch.from_numpy(subspace_matrix(size, dimension))
    projected = graph.add("MatMul", features, graph.cast(graph.constant(matrix, "subspace"), "DOUBLE"))
    shortened = graph.add("Mul", projected, graph.constant(torch.tensor(2.0**-scores.shift, dtype=double)))
    whitening = graph.cast(graph.constant(scores.whitening.T, "whitening"), "DOUBLE")
    whitened = graph.add("MatMul", graph.add("Round", shortened), whitening)
    whitened = graph.add("Round", graph.add("Sub", whitened, graph.constant(scores.origin.to(double), "origin")))
    limit = torch.tensor(MAX_WHITENED, dtype=double)
    steps = graph.add("Clip", whitened, graph.constant(-limit), graph.constant(limit))
    classes, rank = scores.units.shape
    codes = graph.cast(graph.constant(scores.codes.flatten(0, 1).T, "codes"), "FLOAT")
    sums = graph.add("MatMul", graph.cast(steps, "FLOAT"), codes)
    sums = graph.add("Mul", sums, graph.constant(scores.units.flatten(), "units"))
    components = graph.add("Sub", graph.add("Round", sums), graph.constant(scores.offsets.flatten(), "offsets"))
    components = graph.reshape(graph.cast(components, "DOUBLE"), [-1, classes, rank])
    unit = graph.constant(torch.tensor(COMPONENT_STEPS**2, dtype=double))
    squares = graph.add("Div", graph.sum(graph.square(components), [2]), unit)
    length = graph.sum(graph.square(steps), [1], keep=True)
    length = graph.add("Div", length, graph.constant(torch.tensor(WHITENED_STEPS**2, dtype=double)))
    curved = graph.add("Mul", length, graph.constant(scores.curvature.to(double), "curvature"))
    pulled = graph.add("MatMul", steps, graph.cast(graph.constant(scores.pull.T.contiguous(), "pull"), "DOUBLE"))
    step = graph.constant(torch.tensor(WHITENED_STEPS * CURVATURE_STEPS, dtype=double))
    pulled = graph.add("Add", graph.add("Div", pulled, step), graph.constant(scores.level.to(double), "level"))
    bracket = graph.add("Add", graph.add("Add", curved, pulled), squares)
    evidence, least = (graph.constant(each.to(double)) for each in scores.evidence)
    factor = graph.add("Div", evidence, graph.add("Max", length, least))
    finest = graph.constant(torch.tensor(CURVATURE_STEPS, dtype=double))
    scaled = graph.add("Round", graph.add("Mul", graph.add("Mul", bracket, factor), finest))
    return graph.add("Div", scaled, finest)


SCORE_FORMS: dict[type[Scores], Callable[..., str]] = {
    LinearScores: linear,
    PackedScores: packed,
    LowRankScores: low_rank,
    CosineScores: cosine,
    QuadraticScores: quadratic,
    SubspaceScores: subspace,
    PackedSubspaceScores: packed_subspace,
}
