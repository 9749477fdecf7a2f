"""Scores as ONNX nodes against the scores themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from circle.errors import CircleError
from circle.export import graph as graph_module
from circle.export.graph import Graph
from circle.export.model import SCORE_FORMS, add_scores
from circle.heads.scores import (
    SCORES,
    CosineScores,
    LinearScores,
    LowRankScores,
    PackedScores,
    PackedSubspaceScores,
    QuadraticScores,
    Scores,
    SubspaceScores,
    Weights,
    pack,
)
from circle.runtime.predictor import SCORES as LIGHT_SCORES

EXACT = {"linear", "packed", "subspace", "packed_subspace"}  # sums of whole numbers


def made(kind: str, classes: int = 5, size: int = 7) -> Scores:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(classes, size, generator=generator, dtype=torch.float64)
    bias = torch.randn(classes, generator=generator, dtype=torch.float64)
    if kind == "linear":
        return LinearScores(weight, bias).rounded()
    if kind == "packed":
        return PackedScores(**vars(pack(weight, "int8")), bias=bias)
    if kind == "low_rank":
        inner = pack(weight[:2], "float16")
        return LowRankScores(**vars(inner), outer=weight[:, :2].to(torch.float16), bias=bias)
    if kind == "cosine":
        return CosineScores(weight / weight.norm(dim=1, keepdim=True), 0 * bias).rounded()
    if kind == "subspace":
        return subspace(weight, bias, generator)
    if kind == "packed_subspace":
        return PackedSubspaceScores.of(subspace(weight, bias, generator), pack(weight, "int8"), bias)
    lower = torch.randn(classes, size, size, generator=generator, dtype=torch.float64).tril() + 3 * torch.eye(size)
    rows, columns = torch.tril_indices(size, size)
    return QuadraticScores(weight, lower[:, rows, columns], bias).rounded()


def subspace(
    weight: torch.Tensor, bias: torch.Tensor, generator: torch.Generator, dimension: int = 6
) -> SubspaceScores:
    """Three directions of each class in whitened coordinates of about one deviation."""
    whitening, classes = (
        torch.randn(dimension, dimension, generator=generator, dtype=torch.float64).tril() / 2000,
        len(weight),
    )
    return SubspaceScores.of(
        weight,
        bias,
        whitening,
        torch.randn(dimension, generator=generator, dtype=torch.float64),
        torch.randn(classes, generator=generator, dtype=torch.float64) / 4,
        torch.randn(classes, 3, dimension, generator=generator, dtype=torch.float64),
        torch.randn(classes, dimension, generator=generator, dtype=torch.float64),
        9,
        evidence=float(dimension),
    )


@pytest.mark.parametrize("kind", SCORES)
def test_same_scores(kind: str, run_graph: Callable[..., np.ndarray]) -> None:
    scores = made(kind)
    features = torch.randint(-32767, 32768, (4, 7), generator=torch.Generator().manual_seed(1)).double()
    features[2] = 0.0  # has no direction
    found = run_graph(lambda graph, x: add_scores(graph, scores, x, kind), features.numpy(), 2)
    expected = scores(features).numpy()
    if kind in EXACT:
        assert np.array_equal(found, expected)
    else:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("weights", ["int8", "float16"])
def test_compressed_weights_add_up_exactly(weights: Weights, run_graph: Callable[..., np.ndarray]) -> None:
    generator = torch.Generator().manual_seed(2)
    matrix = torch.randn(11, 3000, generator=generator, dtype=torch.float64) ** 3  # large ones and small ones
    scores = PackedScores(**vars(pack(matrix, weights)), bias=matrix[:, 0].clone())
    features = torch.randint(-32767, 32768, (9, 3000), generator=generator).double()
    found = run_graph(lambda graph, x: add_scores(graph, scores, x, "slda"), features.numpy(), 2)
    assert np.array_equal(found, scores(features).numpy())


@pytest.mark.parametrize("weights", ["int8", "float16", "float32"])
def test_compressed_weights_beside_a_subspace_add_up_exactly(
    weights: Weights, run_graph: Callable[..., np.ndarray]
) -> None:
    """The same bits in the graph, in PyTorch and in the light runtime; features at the ends of their range, too."""
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randn(11, 3000, generator=generator, dtype=torch.float64) ** 3
    whole = subspace(matrix, matrix[:, 0].clone(), generator, 32)
    scores = PackedSubspaceScores.of(whole, pack(whole.weight.double(), weights), whole.bias)
    features = torch.randint(-32767, 32768, (9, 3000), generator=generator).double()
    features[0], features[1] = 32767.0, -32767.0
    expected = scores(features).numpy()
    assert float(scores.correction(features).abs().max()) > 1, "there is something to be right about"
    found = run_graph(lambda graph, x: add_scores(graph, scores, x, "subspace_qda"), features.numpy(), 2)
    assert np.array_equal(found, expected)
    light = LIGHT_SCORES[scores.kind]
    arrays = {name: tensor.numpy() for name, tensor in scores.tensors().items()}
    assert tuple(arrays) == light.names == scores.names
    assert np.array_equal(light.function(features.numpy(), **arrays), expected)
    if weights == "float32":
        assert np.array_equal(whole(features).numpy(), expected), "nothing was packed but the whitening"


def test_every_kind_has_a_form() -> None:
    assert set(SCORE_FORMS) == {kind for kind in SCORES.values() if kind.__module__.startswith("circle.")}


@dataclass(frozen=True, eq=False)
class StrangeScores(LinearScores):
    kind: ClassVar[str] = "strange"


def test_unknown_scores_are_refused() -> None:
    scores = StrangeScores(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(CircleError, match="head 'mine' cannot be exported: its strange scores have no ONNX form"):
        add_scores(Graph(), scores, "x", "mine")


def test_covariances_beyond_the_limit_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module, "LIMIT", 1000)
    monkeypatch.setattr(torch.linalg, "solve_triangular", None)  # calling it would be another error
    with pytest.raises(CircleError, match="covariances of 5 classes with 7 features: .* at most"):
        add_scores(Graph(), made("quadratic"), "x", "qda")
