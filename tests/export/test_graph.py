"""The graph under construction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from circle.errors import CircleError
from circle.export import graph as graph_module
from circle.export.graph import Graph


def test_names_are_unique_and_scoped() -> None:
    graph = Graph()
    with graph.scope("group0"):
        names = [graph.add("Relu", "x"), graph.add("Relu", "x"), graph.constant(1.0, "one")]
    assert names == ["group0/Relu", "group0/Relu_2", "group0/one"]
    assert graph.add("Relu", "x") == "Relu"


def test_equal_constants_are_kept_once() -> None:
    graph = Graph()
    first = graph.constant(torch.ones(3))
    assert graph.constant(np.ones(3, np.float32)) == first
    assert graph.constant(torch.ones(3, dtype=torch.float64)) != first
    assert graph.constant([1, 1, 1]) != first
    assert len(graph.constants) == 3
    assert graph.size == 3 * (4 + 8 + 8)


def test_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module, "LIMIT", 1000)
    graph = Graph()
    graph.constant(torch.zeros(200))
    with pytest.raises(CircleError, match="GB of constants, but an ONNX file holds at most"):
        graph.constant(torch.ones(100))


def test_helpers(run_graph: Callable[..., np.ndarray]) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    assert run_graph(lambda graph, value: graph.mean(value, [2]), x, 2) == pytest.approx(x.mean(2), abs=1e-6)
    assert run_graph(lambda graph, value: graph.sum(value, [1], keep=True), x, 3).shape == (3, 1, 5)
    padded = run_graph(lambda graph, value: graph.pad(value, [0, 1, 0], [0, 0, 2], mode="edge"), x, 3)
    assert np.array_equal(padded, np.pad(x, [(0, 0), (1, 0), (0, 2)], mode="edge"))
    assert Graph().pad("x", [0, 0], [0, 0]) == "x", "no node for nothing"
