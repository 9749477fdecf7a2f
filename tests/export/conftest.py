"""Shared by the tests of the export."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from circle.export.checking import open_session
from circle.export.extractors import add_extractor
from circle.export.graph import Graph
from circle.extractors import Extractor, calibration_images


@pytest.fixture
def run_graph() -> Callable[..., np.ndarray]:
    """Runs what ``build(graph, "x")`` adds to a graph on one array whose first axis is the batch."""

    def run(build: Callable[[Graph, str], str], x: np.ndarray, rank: int) -> np.ndarray:
        graph = Graph()
        graph.add("Identity", build(graph, "x"), name="y")
        kind = {"float32": "FLOAT", "float64": "DOUBLE"}[str(x.dtype)]
        free = [f"axis{axis}" for axis in range(1, rank)]
        proto = graph.model({"x": (kind, ["batch", *x.shape[1:]])}, {"y": (kind, ["batch", *free])}, {}, ("test", "0"))
        return open_session(proto.SerializeToString()).run(["y"], {"x": x})[0]

    return run


@pytest.fixture
def error_of(run_graph: Callable[..., np.ndarray]) -> Callable[[Extractor], float]:
    """The largest difference between an extractor and its ONNX form, in typical deviations of its features."""

    def error(extractor: Extractor) -> float:
        images = calibration_images(5, extractor.shape)
        expected = extractor.features(images).numpy()
        found = run_graph(lambda graph, x: add_extractor(graph, extractor, x), images.float().numpy(), 2)
        assert found.shape == expected.shape
        return float(np.abs(found - expected).max() / expected.std(0).mean())

    return error
