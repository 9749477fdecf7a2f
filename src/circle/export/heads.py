"""Heads as ONNX nodes: grid positions [N, D] to scores [N, C], all in float64 as in :mod:`circle.heads.scores`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from circle.errors import CircleError
from circle.export.graph import Graph, require_room
from circle.heads.scores import CosineScores, LinearScores, LowRankScores, PackedScores, QuadraticScores, Scores


def add_scores(graph: Graph, scores: Scores, features: str, name: str) -> str:
    """Scores float64 [N, C] of features float64 [N, D]; ``name`` is the head's, for the error."""
    form = FORMS.get(type(scores))
    if form is None:
        raise CircleError(
            f"head {name!r} cannot be exported: its {scores.kind} scores have no ONNX form; "
            f"expected one of {', '.join(sorted(kind.kind for kind in FORMS))}"
        )
    return form(graph, scores, features)


def linear(graph: Graph, scores: LinearScores, features: str) -> str:
    """z W^T + b; W is kept in float32, as a predicting model keeps it, and widened when the file is loaded."""
    weight = graph.cast(graph.constant(scores.weight.T, "weight"), "DOUBLE")
    return graph.add("Add", graph.add("MatMul", features, weight), graph.constant(scores.bias.double(), "bias"))


def packed(graph: Graph, scores: PackedScores, features: str) -> str:
    """z A^T + b; the codes stay as short in the file as they are in the model."""
    product = graph.add("MatMul", features, _unpacked(graph, scores.codes, scores.rows))
    return graph.add("Add", product, graph.constant(scores.bias.double(), "bias"))


def low_rank(graph: Graph, scores: LowRankScores, features: str) -> str:
    """(z V^T) U^T + b."""
    between = graph.add("MatMul", features, _unpacked(graph, scores.codes, scores.rows))
    outer = graph.cast(graph.constant(scores.outer.T, "outer"), "DOUBLE")
    return graph.add("Add", graph.add("MatMul", between, outer), graph.constant(scores.bias.double(), "bias"))


def _unpacked(graph: Graph, codes: Tensor, rows: Tensor) -> str:
    """A^T, float64 [D, R], with A_ij = rows_i codes_ij."""
    transposed = graph.cast(graph.constant(codes.T, "codes"), "DOUBLE")
    return graph.add("Mul", transposed, graph.constant(rows.double(), "rows"))


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
    require_room(8 * classes * (len(rows) + 1), f"covariances of {classes} classes with {size:,} features")
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


FORMS: dict[type[Scores], Callable[..., str]] = {
    LinearScores: linear,
    PackedScores: packed,
    LowRankScores: low_rank,
    CosineScores: cosine,
    QuadraticScores: quadratic,
}
