"""What all ONNX forms of extractors share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from circle.errors import CircleError
from circle.export.extractors import FORMS, add_extractor, form_of, mirrored, pool, signed_power
from circle.export.graph import Graph
from circle.extractors import Extractor, ImageShape, PatchRNNConfig, build_extractor, pooling
from circle.extractors.projection import ProjectedExtractor, StandardisedConfig
from circle.extractors.vgg import VGG13Config

SHAPE = ImageShape(3, 8, 8)


class Brightness(ProjectedExtractor[StandardisedConfig]):
    """An extractor that no one has registered."""

    def __init__(self) -> None:
        super().__init__(StandardisedConfig(), SHAPE, 0)
        self.finish(3, 0, torch.Generator())

    def vector(self, images: Tensor) -> Tensor:
        return images.mean((2, 3))


@pytest.mark.parametrize("fan_in", [0, 4])
@pytest.mark.parametrize("kind", ["linear", "relu"])
@pytest.mark.parametrize("mirror", [False, True])
def test_projection_and_mirror(kind: str, fan_in: int, mirror: bool, error_of: Callable[[Extractor], float]) -> None:
    config = PatchRNNConfig(
        width=9, projection=kind, projection_size=6, projection_fan_in=fan_in, mirror=mirror, input_mean=0.4
    )
    assert error_of(build_extractor(config, SHAPE, 0)) < 1e-4


@pytest.mark.parametrize("channels_last", [False, True])
def test_pool(channels_last: bool, run_graph: Callable[..., np.ndarray]) -> None:
    maps, matrix = torch.rand(2, 4, 5, 3), pooling.grid_matrix(4, 5, 2)
    expected = pooling.pool(maps, matrix, ("square", "mean"))
    flat = maps.flatten(1, 2) if channels_last else maps.flatten(1, 2).mT.contiguous()
    found = run_graph(
        lambda graph, x: pool(graph, x, matrix, 3, ("square", "mean"), channels_last=channels_last), flat.numpy(), 2
    )
    assert found == pytest.approx(expected.numpy(), abs=1e-6)


@pytest.mark.parametrize("exponent", [0.5, 0.7, 1.0])
def test_signed_power(exponent: float, run_graph: Callable[..., np.ndarray]) -> None:
    values = torch.tensor([[-4.0, -0.0, 0.0, 9.0]])
    found = run_graph(lambda graph, x: signed_power(graph, x, exponent), values.numpy(), 2)
    assert found == pytest.approx(pooling.signed_power(values, exponent).numpy(), rel=1e-6)


def test_mirrored(run_graph: Callable[..., np.ndarray]) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert np.array_equal(run_graph(lambda graph, value: mirrored(graph, value, 2), x, 3), x[:, :, ::-1])


def test_unknown_extractor_is_refused_until_it_has_a_form(
    monkeypatch: pytest.MonkeyPatch, error_of: Callable[[Extractor], float]
) -> None:
    monkeypatch.setattr("circle.export.extractors.FORMS", dict(FORMS))
    with pytest.raises(CircleError, match="extractor '' cannot be exported: it has no ONNX form .*VGG13"):
        add_extractor(Graph(), Brightness(), "x")
    form_of(Brightness)(lambda graph, extractor, images: graph.mean(images, [2, 3]))
    assert error_of(Brightness()) < 1e-4


def test_a_subclass_needs_a_form_of_its_own() -> None:
    kind = type(build_extractor(VGG13Config(base_channels=1), SHAPE, 0))

    class Other(kind):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
        pass

    with pytest.raises(CircleError, match="extractor 'vgg13' cannot be exported"):
        add_extractor(Graph(), Other(VGG13Config(base_channels=1), SHAPE, 0), "x")
