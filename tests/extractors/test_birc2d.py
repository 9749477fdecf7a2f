"""BiRC2D against a transcription of its equations, loop by loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from circle.errors import CircleError
from circle.extractors import BiRC2DConfig, ImageShape, build_extractor
from circle.extractors.birc2d import BiRC2D
from circle.extractors.calibration import calibration_images
from circle.extractors.reservoir import patches
from circle.runtime.birc2d import spectral_radius

PLAIN = BiRC2DConfig(stem="plain", zero_mean_inputs=False, join_stem=False, moments=("mean",), power=1.0)
SMALL = PLAIN.replace(stem_channels=(3, 4), stem_kernels=(3, 5), patch_sizes=(2, 3), width=5, grid=2)
SHAPE = ImageShape(3, 8, 8)
DEVIATION = 256  # levels of a state


def build(config: BiRC2DConfig, shape: ImageShape = SHAPE) -> BiRC2D:
    extractor = build_extractor(config, shape, seed=1)
    assert isinstance(extractor, BiRC2D)
    return extractor


def by_the_book(extractor: BiRC2D, image: torch.Tensor) -> list[torch.Tensor]:
    """Maps [H, W, 4 r] of every stack in levels, never rounded, one location and one step at a time."""
    config = extractor.config
    x = (image.double() * 2 - 255)[None]
    for layer, shape in enumerate(extractor.stem.shapes):
        weight = extractor.stem.get_buffer(f"weight_{layer}").double().view(shape)
        bias = extractor.stem.get_buffer(f"bias_{layer}").double()
        x = functional.leaky_relu(functional.conv2d(x, weight, bias, padding=shape[-1] // 2), config.slope)
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
                weight_in = layer.weight_in[:, direction * width : (direction + 1) * width].T.double()
                recurrent = layer.recurrent[direction].T.double()
                for row, column in path:
                    drive = weight_in @ grid[row, column] + recurrent @ state
                    state = (1 - config.leak) * state + config.leak * functional.leaky_relu(drive, config.slope)
                    result[row, column, direction] = state
            grid = result.flatten(2)
        maps.append(grid)
    return maps


@pytest.mark.parametrize("shape", [ImageShape(3, 8, 8), ImageShape(1, 6, 11)])
@pytest.mark.parametrize("changes", [{}, {"layers": 2}, {"leak": 1.0}, {"zero_mean_inputs": True}])
def test_equals_the_equations_but_for_rounding(shape: ImageShape, changes: dict) -> None:
    """Of images without states at the end of the range, 16 deviations."""
    extractor = build(SMALL.replace(aggregation="flatten", **changes), shape)
    images = calibration_images(3, shape) // 4 + 96
    for image, features in zip(images, extractor.features(images), strict=True):
        expected = torch.cat([part.flatten() for part in by_the_book(extractor, image)])
        assert 0.5 * DEVIATION < float(expected.abs().max()) < 15 * DEVIATION
        errors = (features - expected).abs()
        assert bool((errors <= 0.1 * DEVIATION + 0.01 * expected.abs()).all())
        assert float(errors.mean()) < 0.008 * DEVIATION
        assert float((features - expected).norm()) < 0.05 * float(expected.norm())


def test_states_are_bounded() -> None:
    """A radius far above one would let states grow without end."""
    extractor = build(SMALL.replace(aggregation="flatten", radius=9.0), ImageShape(3, 24, 24))
    states = extractor.features(calibration_images(3, extractor.shape))
    assert float(states.abs().max()) == 4095


def test_pooling_is_the_mean_over_regions() -> None:
    shape = ImageShape(3, 12, 12)
    config = SMALL.replace(patch_sizes=(2,), grid=3)
    image = calibration_images(1, shape)
    whole = build(config.replace(aggregation="flatten"), shape).features(image)[0].double()
    halved = (whole.view(6, 6, -1) / 2).round().clamp(-1023, 1023)
    # The weights of two cells of a region are 127 each. Sums go without six bits, squares without 4 + 8 + 4.
    for moment, values, bits in (("mean", halved, 6), ("square", halved.square(), 16)):
        found = build(config.replace(moments=(moment,)), shape).features(image)[0]
        regions = values.view(3, 2, 3, 2, -1).mean((1, 3)).flatten() * 254**2 / 2**bits
        errors = (found - regions).abs()
        assert float(errors.max()) < 20 < 1e-4 * float(regions.max())


def test_pooled_stem_maps_are_joined() -> None:
    alone, joined = build(SMALL), build(SMALL.replace(join_stem=True))
    image = calibration_images(1, SHAPE)
    assert joined.size == alone.size + 4 * 4
    assert torch.equal(joined.features(image)[:, : alone.size], alone.features(image))


def test_signed_root_of_the_vector() -> None:
    plain, rooted = (build(SMALL.replace(power=power, aggregation="flatten")) for power in (1.0, 0.5))
    image = calibration_images(2, SHAPE)
    values = plain.features(image).to(torch.int64)
    assert int(values.min()) < 0
    expected = values.sign() * (values.abs() * 2**12).double().sqrt().floor().to(torch.int64)
    assert torch.equal(rooted.features(image).to(torch.int64), expected)


@pytest.mark.parametrize("changes", [{}, {"aggregation": "flatten"}, {"stem": "contrast", "join_stem": True}])
def test_mirror_images_have_the_same_vector(changes: dict) -> None:
    both, single = build(SMALL.replace(mirror=True, **changes)), build(SMALL.replace(**changes))
    images = calibration_images(3, SHAPE)
    assert torch.equal(both.features(images), both.features(images.flip(3)))
    assert torch.equal(both.features(images), single.features(images) + single.features(images.flip(3)))


@pytest.mark.parametrize(("width_of", "width"), [("direction", 6), ("location", 24), ("model", 48)])
def test_readings_of_the_width(width_of: str, width: int) -> None:
    config = SMALL.replace(width=width, width_of=width_of)
    assert config.direction_width == 6
    assert build(config).size == 2 * 4 * 6 * 2**2


@pytest.mark.parametrize("fan_in", [0, 16])
@pytest.mark.parametrize("aggregation", ["flatten", "pool"])
def test_projections(aggregation: str, fan_in: int) -> None:
    base = SMALL.replace(aggregation=aggregation, projection_size=50, projection_fan_in=fan_in)
    image = calibration_images(4, SHAPE)
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
    """But for weights that round to zero, and what rounding to 2^-7 does to the radius."""
    extractor = build(SMALL.replace(width=40, sparsity=0.8, radius=0.7))
    for stack in extractor.stacks:
        for weight in stack[0].recurrent:  # pyright: ignore[reportIndexIssue]
            assert 300 <= int((weight != 0).sum()) <= 320
            assert float(torch.linalg.eigvals(weight.double()).abs().max()) == pytest.approx(0.7, rel=0.01)


def test_the_spectral_radius_is_that_of_the_eigenvalues() -> None:
    random = np.random.default_rng(0)
    for size in (1, 2, 7, 30):
        weight = random.integers(-4096, 4096, (size, size))
        expected = np.abs(np.linalg.eigvals(weight)).max()
        assert float(spectral_radius(weight)) == pytest.approx(expected, rel=2e-3)
    assert spectral_radius(np.triu(random.integers(1, 4096, (9, 9)), 1)) == 0, "nilpotent"


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
        ({"leak": 0.001}, "leak = 0.001: expected at least 1/512"),
        ({"radius": math.inf}, "radius = inf: expected at most 1e6"),
        ({"slope": math.nan}, "slope = nan: expected from -1000 to 1000"),
        ({"contrast_epsilon": 1e30}, "contrast_epsilon = 1e.30: expected .* at most 1e6"),
        ({"power": 0.7}, "power = 0.7: expected 0.5, a square root, or 1"),
    ],
)
def test_settings_are_checked(changes: dict, words: str) -> None:
    with pytest.raises(CircleError, match=words):
        BiRC2DConfig.from_dict({"stem_channels": [16, 32], "stem_kernels": [3, 3], **changes})
