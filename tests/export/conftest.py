"""Shared by the tests of the export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from portable import extreme_images, noise
from sklearn.datasets import load_digits

from circle.export.checking import import_onnxruntime, open_session
from circle.export.extractors import add_extractor
from circle.export.graph import Graph
from circle.extractors import Extractor, ImageShape, calibration_images


def file_of(build: Callable[[Graph, str], str], shape: Sequence[int], kind: str, free: Sequence[str | int]) -> bytes:
    """The file of what ``build(graph, "x")`` adds to a graph."""
    graph = Graph()
    graph.add("Identity", build(graph, "x"), name="y")
    proto = graph.model({"x": (kind, ["batch", *shape])}, {"y": (kind, ["batch", *free])}, {}, ("test", "0"))
    return proto.SerializeToString()


@pytest.fixture
def run_graph() -> Callable[..., np.ndarray]:
    """Runs what ``build(graph, "x")`` adds to a graph on one array whose first axis is the batch."""

    def run(build: Callable[[Graph, str], str], x: np.ndarray, rank: int) -> np.ndarray:
        kind = {"float32": "FLOAT", "float64": "DOUBLE"}[str(x.dtype)]
        free = [f"axis{axis}" for axis in range(1, rank)]
        return open_session(file_of(build, x.shape[1:], kind, free)).run(["y"], {"x": x})[0]

    return run


@pytest.fixture
def error_of(run_graph: Callable[..., np.ndarray]) -> Callable[[Extractor], float]:
    """The largest difference between an extractor and its ONNX form, in typical deviations of its features.

    Only for extractors that are not portable: those have no difference.
    """

    def error(extractor: Extractor) -> float:
        assert not extractor.portable
        images = calibration_images(5, extractor.shape)
        expected = extractor.features(images).numpy()
        found = run_graph(lambda graph, x: add_extractor(graph, extractor, x), images.float().numpy(), 2)
        assert found.shape == expected.shape
        return float(np.abs(found - expected).max() / expected.std(0).mean())

    return error


def sessions_of(content: bytes) -> list[Any]:
    """One with the graph as it is written, one as onnxruntime rewrites it; and one with several threads."""
    runtime = import_onnxruntime()
    levels = runtime.GraphOptimizationLevel
    sessions = []
    for level, threads in ((levels.ORT_DISABLE_ALL, 1), (levels.ORT_ENABLE_ALL, 1), (levels.ORT_ENABLE_ALL, 3)):
        options = runtime.SessionOptions()
        options.graph_optimization_level, options.intra_op_num_threads = level, threads
        options.log_severity_level = 3
        sessions.append(runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"]))
    return sessions


def digits(shape: ImageShape, count: int = 5) -> np.ndarray:
    """Handwritten digits uint8 [N, C, H, W], brought to the shape by whole pixels."""
    drawn = load_digits().images[:count] / 16 * 255
    rows, columns = np.arange(shape.height) * 8 // shape.height, np.arange(shape.width) * 8 // shape.width
    grey = drawn[:, rows][:, :, columns].astype(np.uint8)
    return np.repeat(grey[:, None], shape.channels, 1)


@pytest.fixture
def require_same_integers() -> Callable[[Extractor], None]:
    """Compares an extractor with its ONNX form, ``==``: noise, extreme images and digits, in several batches."""

    def require(extractor: Extractor) -> None:
        assert extractor.portable
        shape = extractor.shape
        images = np.concatenate([noise(5, shape), extreme_images(shape), digits(shape)])
        expected = extractor.features(torch.from_numpy(images)).numpy()
        assert np.ptp(expected, axis=0).any(), "features that differ from image to image"

        def build(graph: Graph, pixels: str) -> str:
            return add_extractor(graph, extractor, pixels)

        content = file_of(build, images.shape[1:], "FLOAT", [extractor.size])
        for session in sessions_of(content):
            for batch in (1, 7, len(images)):
                parts = np.split(images.astype(np.float32), range(batch, len(images), batch))
                found = np.concatenate([session.run(["y"], {"x": part})[0] for part in parts])
                assert np.array_equal(found, expected)

    return require
