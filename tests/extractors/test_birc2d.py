"""BiRC2D against a transcription of its equations, loop by loop."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from circle.errors import CircleError
from circle.extractors import BiRC2DConfig, ImageShape, build_extractor, pink_noise
from circle.extractors.birc2d import BiRC2D
from circle.extractors.reservoir import patches

PLAIN = BiRC2DConfig(stem="plain", zero_mean_inputs=False, join_stem=False, moments=("mean",), power=1.0)
SMALL = PLAIN.replace(stem_channels=(3, 4), stem_kernels=(3, 5), patch_sizes=(2, 3), width=5, grid=2)


SHAPE = ImageShape(3, 8, 8)


def build(config: BiRC2DConfig, shape: ImageShape = SHAPE) -> BiRC2D:
    extractor = build_extractor(config, shape, seed=1)
    assert isinstance(extractor, BiRC2D)
    return extractor.to(torch.float64)


def by_the_book(extractor: BiRC2D, image: torch.Tensor) -> list[torch.Tensor]:
    """Maps [H, W, 4 r] of every stack, one location and one step at a time."""
    config = extractor.config
    x = ((image - config.input_mean) / config.input_scale)[None]
    for layer in range(len(config.stem_channels)):
        weight, bias = extractor.stem.get_buffer(f"weight_{layer}"), extractor.stem.get_buffer(f"bias_{layer}")
        x = functional.leaky_relu(functional.conv2d(x, weight, bias, padding=weight.shape[-1] // 2), config.slope)
    maps = []
    for stack, side in zip(extractor.stacks, config.patch_sizes, strict=True):
        grid = patches(x.permute(0, 2, 3, 1), side)[0]
        for layer in stack:  # pyright: ignore[reportGeneralTypeIssues]
            rows, columns, _ = grid.shape
            width = config.direction_width
            result = grid.new_zeros(rows, columns, 4, width)
            paths = []
            for row in range(rows):
                line = [(row, column) for column in range(columns)]
                paths += [(0, line), (1, line[::-1])]
            for column in range(columns):
                line = [(row, column) for row in range(rows)]
                paths += [(2, line), (3, line[::-1])]
            for direction, path in paths:
                state = grid.new_zeros(width)
                weight_in = layer.weight_in[:, direction * width : (direction + 1) * width].T
                for row, column in path:
                    drive = weight_in @ grid[row, column] + layer.recurrent[direction].T @ state
                    state = (1 - config.leak) * state + config.leak * functional.leaky_relu(drive, config.slope)
                    result[row, column, direction] = state
            grid = result.flatten(2)
        maps.append(grid)
    return maps


@pytest.mark.parametrize("shape", [ImageShape(3, 8, 8), ImageShape(1, 6, 11)])
@pytest.mark.parametrize("changes", [{}, {"layers": 2}, {"leak": 1.0}, {"zero_mean_inputs": True}])
def test_equals_the_equations(shape: ImageShape, changes: dict) -> None:
    extractor = build(SMALL.replace(aggregation="flatten", **changes), shape)
    images = pink_noise(3, shape)
    for image, features in zip(images, extractor.features(images), strict=True):
        expected = torch.cat([part.flatten() for part in by_the_book(extractor, image)])
        assert torch.allclose(features, expected, rtol=1e-10, atol=1e-12)


def test_pooling_is_the_mean_over_regions() -> None:
    shape = ImageShape(3, 12, 12)
    config = SMALL.replace(patch_sizes=(2,), grid=3, moments=("mean", "square"))
    extractor = build(config, shape)
    image = pink_noise(1, shape)
    (maps,) = by_the_book(extractor, image[0])
    regions = maps.view(3, 2, 3, 2, -1)
    expected = torch.cat([regions.mean((1, 3)).flatten(), regions.square().mean((1, 3)).flatten()])
    assert torch.allclose(extractor.features(image)[0], expected)


def test_pooled_stem_maps_are_joined() -> None:
    shape = ImageShape(3, 8, 8)
    alone, joined = build(SMALL), build(SMALL.replace(join_stem=True))
    image = pink_noise(1, shape)
    assert joined.size == alone.size + 4 * 4
    assert torch.equal(joined.features(image)[:, : alone.size], alone.features(image))


def test_signed_power_of_the_vector() -> None:
    plain, rooted = build(SMALL), build(SMALL.replace(power=0.5))
    image = pink_noise(2, ImageShape(3, 8, 8))
    expected = plain.features(image)
    assert float(expected.min()) < 0
    assert torch.allclose(rooted.features(image), expected.sign() * expected.abs().sqrt())


@pytest.mark.parametrize(("width_of", "width"), [("direction", 6), ("location", 24), ("model", 48)])
def test_readings_of_the_width(width_of: str, width: int) -> None:
    config = SMALL.replace(width=width, width_of=width_of)
    assert config.direction_width == 6
    assert build(config).size == 2 * 4 * 6 * 2**2


@pytest.mark.parametrize("fan_in", [0, 16])
@pytest.mark.parametrize("aggregation", ["flatten", "pool"])
def test_projections(aggregation: str, fan_in: int) -> None:
    base = SMALL.replace(aggregation=aggregation, projection_size=50, projection_fan_in=fan_in)
    image = pink_noise(4, ImageShape(3, 8, 8))
    linear, relu = build(base.replace(projection="linear")), build(base.replace(projection="relu"))
    raw = build(base.replace(projection="none"))
    assert linear.size == relu.size == 50
    assert raw.parameter_count().generated == 0
    assert linear.parameter_count().generated == 50 * (fan_in or raw.size)
    assert linear.parameter_count().fixed == raw.parameter_count().fixed
    assert torch.equal(relu.features(image), linear.features(image).relu())
    assert float(linear.features(image).min()) < 0


def test_the_published_size_needs_no_stored_projection() -> None:
    """480 values per location, flattened to 153,600, projected to 1,100: nothing dense is held."""
    config = PLAIN.replace(
        stem_channels=(16, 32),
        stem_kernels=(3, 3),
        patch_sizes=(2, 4),
        width=480,
        width_of="location",
        aggregation="flatten",
        projection="relu",
    )
    with pytest.raises(CircleError, match="projection_fan_in"):
        build_extractor(config, ImageShape(3, 32, 32), 0)
    extractor = build_extractor(config.replace(projection_fan_in=256), ImageShape(3, 32, 32), 0)
    held = sum(buffer.numel() for buffer in extractor.buffers())
    assert extractor.size == 1100
    assert held < 2_000_000


def test_reservoirs_have_the_sparsity_and_radius_asked_for() -> None:
    extractor = build(SMALL.replace(width=40, sparsity=0.8, radius=0.7))
    for stack in extractor.stacks:
        for weight in stack[0].recurrent:  # pyright: ignore[reportIndexIssue]
            assert int((weight != 0).sum()) == 320
            assert float(torch.linalg.eigvals(weight).abs().max()) == pytest.approx(0.7, rel=1e-5)


def test_parameters_are_counted() -> None:
    config = PLAIN.replace(stem_channels=(16,), width=32, layers=2, sparsity=0.5)
    extractor = build_extractor(config, ImageShape(3, 32, 32), 0)
    stem = 3 * 16 * 9 + 16
    reservoirs = 4 * (64 * 32 + 512) + 4 * (128 * 32 + 512)
    assert extractor.parameter_count().fixed == stem + reservoirs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"leak": 0.0}, "leak = 0.0: expected above 0"),
        ({"stem_kernels": (3,)}, "each of the 2 stem_channels"),
        ({"patch_sizes": ()}, "patch_sizes"),
        ({"width": 30, "width_of": "location"}, "multiple of 4"),
        ({"moments": ("mean", "mean")}, "moments"),
        ({"stem": "round"}, "plain, contrast"),
        ({"widht": 3}, "did you mean 'width'"),
        ({"grid": 2.5}, "expected int"),
    ],
)
def test_settings_are_checked(changes: dict, words: str) -> None:
    with pytest.raises(CircleError, match=words):
        BiRC2DConfig.from_dict({"stem_channels": [16, 32], "stem_kernels": [3, 3], **changes})
