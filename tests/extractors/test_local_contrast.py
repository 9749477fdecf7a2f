"""Local contrast features against a transcription of their equations in float64, and what they promise to ignore."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from portable import extreme_images, noise

from circle.errors import CircleError
from circle.extractors import ImageShape, LocalContrast, LocalContrastConfig, build_extractor
from circle.extractors.calibration import calibration_images
from circle.extractors.local_contrast import reduced
from circle.runtime import local_contrast as specification
from circle.runtime.weights import FILTER_NORM

PLAIN = LocalContrastConfig(filters=(5,), kernels=(3,), reductions=(1,), colours=2, grid=2, mirror=False)
SHAPE = ImageShape(3, 9, 12)
LEVELS = 32  # of a response, for one deviation
ROOT = 64 * 254  # root(2^12 254^2): what the root of a mean is multiplied by


def build(config: LocalContrastConfig, shape: ImageShape = SHAPE) -> LocalContrast:
    extractor = build_extractor(config, shape, seed=1)
    assert isinstance(extractor, LocalContrast)
    return extractor


def responses_by_the_book(image: np.ndarray, filters: np.ndarray, kernel: int, epsilon: float) -> np.ndarray:
    """r [H, W, J] of pixels [C, H, W] of about unit variance, one at a time; filters [J, C, k, k]."""
    _, height, width = image.shape
    maps = np.empty((height, width, len(filters)))
    before = (kernel - 1) // 2
    for row in range(height):
        for column in range(width):
            rows = (np.arange(kernel) + row - before).clip(0, height - 1)
            columns = (np.arange(kernel) + column - before).clip(0, width - 1)
            patch = image[:, rows][:, :, columns]
            variance = patch.reshape(len(patch), -1).var(1).mean()
            maps[row, column] = (filters * patch).sum((1, 2, 3)) / np.sqrt(variance + epsilon)
    return maps


def by_the_book(extractor: LocalContrast, image: np.ndarray) -> np.ndarray:
    """The vector of one image [C, H, W] before the root, one bank, filter, sign, moment and window at a time."""
    config = extractor.config
    responses = []
    for filters, kernel, reduction in zip(extractor.filters, config.kernels, config.reductions, strict=True):
        x = (specification.reduced(image[None].astype(np.int64), reduction)[0] / 255 - 0.5) / 0.25
        responses.append(responses_by_the_book(x, filters / FILTER_NORM, kernel, config.contrast_epsilon))
    if config.colours:
        x = (specification.reduced(image[None].astype(np.int64), config.finest)[0] / 255 - 0.5) / 0.25
        directions, constants = extractor.colours
        responses.append(np.einsum("chw,qc->hwq", x, directions / 16) + constants / 2040)
    parts = []
    for maps in responses:
        rows, columns = (config.windows_along(length) / 254 for length in maps.shape[:2])
        for sign in (1.0, -1.0):
            part = np.minimum(np.maximum(sign * maps, 0.0), 255 / LEVELS)
            for moment in config.moments:
                values = part if moment == "mean" else part**2
                parts.append(np.einsum("gh,hwj,fw->gfj", rows, values, columns).reshape(-1))
    return np.concatenate(parts)


def moments(extractor: LocalContrast, features: np.ndarray) -> np.ndarray:
    """Pooled responses and squares, in deviations, of features whose mirror images were not added."""
    config = extractor.config
    unit = {"mean": 1 / LEVELS, "square": 256 / LEVELS**2}
    blocks = []
    for count in extractor.counts:
        values = features[..., : 2 * len(config.moments) * config.grid**2 * count]
        features = features[..., values.shape[-1] :]
        values = values.reshape(*values.shape[:-1], 2, len(config.moments), -1)
        pooled = np.square(values / ROOT) if config.power == 0.5 else values * 16 / 254**2
        pooled = pooled * np.array([unit[moment] for moment in config.moments])[:, None]
        blocks.append(pooled.reshape(*pooled.shape[:-3], -1))
    return np.concatenate(blocks, -1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"filters": (4, 3), "kernels": (3, 5), "reductions": (1, 2)},
        {"filters": (2, 2), "kernels": (3, 3), "reductions": (2, 3)},
        {"kernels": (2,), "windows": "box", "moments": ("square",), "power": 1.0},
        {"colours": 0, "grey_share": 1.0},
        {"moments": ("square", "mean"), "contrast_epsilon": 1.0},
    ],
)
@pytest.mark.parametrize("shape", [SHAPE, ImageShape(1, 7, 7)])
def test_equals_the_equations_but_for_rounding(changes: dict, shape: ImageShape) -> None:
    """Means within half a level, which is a 64th of a deviation, and three hundredths; squares, too."""
    extractor = build(PLAIN.replace(**changes), shape)
    images = noise(3, shape)
    found = moments(extractor, extractor.features(torch.from_numpy(images)).numpy().astype(np.float64))
    expected = np.stack([by_the_book(extractor, image) for image in images])
    assert expected.max() > 0.3
    np.testing.assert_allclose(found, expected, rtol=0.03, atol=0.5 / LEVELS)


@pytest.mark.parametrize("kernel", [2, 3, 5])
@pytest.mark.parametrize("channels", [1, 3])
def test_responses_are_those_of_the_equation_rounded(channels: int, kernel: int) -> None:
    """A value of a patch is wrong by half a level, so a response by half of its filter's values, and its own half."""
    shape = ImageShape(channels, 10, 11)
    filters = build(PLAIN.replace(kernels=(kernel,), filters=(20,)), shape).filters[0]
    bound = np.abs(filters).sum((1, 2, 3)) / 2 / 2**specification.RESPONSE_SHIFT + 0.51
    for image in [*noise(2, shape), *extreme_images(shape)]:
        patches = specification.normalised_patches(image[None].astype(np.int64), kernel, 0.05)[0]
        found = specification.responses(np.einsum("ckhw,jck->hwj", patches, filters.reshape(20, channels, -1)))
        expected = responses_by_the_book((image / 255 - 0.5) / 0.25, filters / FILTER_NORM, kernel, 0.05) * LEVELS
        errors = np.abs(found - expected.clip(-255, 255))
        assert bool((errors <= bound).all())
        assert errors.mean() < 0.6


def test_filters_see_neither_brightness_nor_colour() -> None:
    extractor = build(PLAIN.replace(colours=0))
    images = calibration_images(4, SHAPE) // 2 + 50
    shift = torch.tensor([25, -25, 13]).view(3, 1, 1)
    brighter = (images.int() + shift).to(torch.uint8)
    assert torch.equal(extractor.features(images), extractor.features(brighter))
    # The functions of colour are there to see what the filters leave out.
    with_colours = build(PLAIN)
    filters_alone = extractor.size
    found, other = with_colours.features(images), with_colours.features(brighter)
    assert torch.equal(found[:, :filters_alone], other[:, :filters_alone])
    assert float((found - other)[:, filters_alone:].abs().max()) > 0.1 * float(found.max())


def test_contrast_is_taken_out() -> None:
    extractor = build(PLAIN.replace(colours=0, contrast_epsilon=1e-9))
    images = calibration_images(4, SHAPE) // 4
    stronger = images * 3 + 20
    found, expected = extractor.features(images), extractor.features(stronger)
    assert float((found - expected).abs().max()) < 2e-3 * float(expected.max())
    softened = build(PLAIN.replace(colours=0, contrast_epsilon=1.0))
    assert float((softened.features(images) - softened.features(stronger)).abs().max()) > 0.1 * float(expected.max())


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({}, SHAPE),
        ({"kernels": (4,)}, SHAPE),
        ({"reductions": (2,)}, SHAPE),
        ({"reductions": (5,)}, SHAPE),
        ({"filters": (2, 2), "kernels": (3, 2), "reductions": (1, 2)}, ImageShape(1, 7, 7)),
        ({"windows": "box", "power": 1.0, "moments": ("square",)}, ImageShape(2, 5, 9)),
    ],
)
def test_mirror_images_have_the_same_vector(changes: dict, shape: ImageShape) -> None:
    """By mirrored filters, and as images of their own where the filters are even or the reduction leaves a rest."""
    extractor, single = build(PLAIN.replace(**changes, mirror=True), shape), build(PLAIN.replace(**changes), shape)
    images = calibration_images(4, shape)
    assert torch.equal(extractor.features(images), extractor.features(images.flip(3)))
    assert torch.equal(extractor.features(images), single.features(images) + single.features(images.flip(3)))


def test_reduction_of_sizes_that_do_not_divide() -> None:
    image = torch.tensor([0.0, 1.0, 2.0, 7.0, 4.0]).expand(1, 1, 3, 5)
    expected = [[[[0.0, 4.0, 4.0], [0.0, 4.0, 4.0]]]]  # 0.5 and 4.5, rounded half to even
    assert reduced(image, 2).tolist() == expected
    assert specification.reduced(image.numpy().astype(np.int64), 2).tolist() == expected


@pytest.mark.parametrize("factor", [2, 3, 7, 100, 300])
def test_reduction_equals_the_specification_at_the_ends_of_the_range(factor: int) -> None:
    shape = ImageShape(1, 2 * factor - 1, 2 * factor + 1)
    images = extreme_images(shape)
    found = reduced(torch.from_numpy(images).float(), factor)
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy(), specification.reduced(images.astype(np.int64), factor))


def test_counts() -> None:
    extractor = build(PLAIN)
    assert extractor.size == 4 * 2 * 2 * (5 + 2)  # windows, signs, moments
    assert extractor.parameter_count().fixed == 5 * 27 + 2 * (3 + 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"filters": (3, 4)}, "each of the 2 banks"),
        ({"kernels": (1,)}, "one pixel has no contrast"),
        ({"reductions": (0,)}, "a positive number"),
        ({"filters": (), "kernels": (), "reductions": (), "colours": 0}, "at least one bank"),
        ({"grey_share": 1.5}, "from 0 to 1"),
        ({"window_margin": 0.6}, "at most 0.5"),
        ({"window_spread": 0.0}, "at least 0.01"),
        ({"contrast_epsilon": 0.0}, "a positive number"),
        ({"contrast_epsilon": math.inf}, "at most 1e6"),
        ({"colour_offset": 1e30}, "at most 1e6"),
        ({"colours": -1}, "0 or more"),
    ],
)
def test_bad_settings(changes: dict, words: str) -> None:
    with pytest.raises(CircleError, match=words):
        PLAIN.replace(**changes)


@pytest.mark.parametrize("power", [0.7, 2.0, 0.0])
def test_only_a_root_or_none(power: float) -> None:
    with pytest.raises(CircleError, match="local_contrast.power = .*: expected 0.5, a square root, or 1"):
        LocalContrastConfig.from_dict({"power": power})


@pytest.mark.parametrize("kept", [[0], [1, 3, 8], [5, 6, 7, 8, 9], [8, 9], list(range(10))])
@pytest.mark.parametrize("mirror", [False, True])
def test_kept_parts_are_columns_of_the_whole(kept: list[int], mirror: bool) -> None:
    """Two banks of five and three filters and two functions of colour; banks may vanish."""
    config = LocalContrastConfig(
        filters=(5, 3), kernels=(3, 2), reductions=(1, 2), colours=2, grid=2, moments=("mean",), mirror=mirror
    )
    whole = build(config)
    parts = whole.parts()
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(whole.size))
    cut = whole.keep(kept)
    images = calibration_images(4, SHAPE)
    columns = torch.cat([parts[part] for part in kept]).sort().values
    assert torch.equal(cut.features(images), whole.features(images)[:, columns])
    assert cut.size == len(columns)
    drawn = sum(27 if part < 5 else 12 if part < 8 else 4 for part in kept)
    assert cut.parameter_count().fixed == drawn
    assert whole.parameter_count().fixed == 5 * 27 + 3 * 12 + 2 * 4


def test_a_projection_cannot_be_cut() -> None:
    projected = build(PLAIN.replace(projection="linear", projection_size=9))
    assert [len(part) for part in projected.parts()] == [9]
    assert projected.keep([0]) is projected
    for extractor, parts in ((projected, [1]), (build(PLAIN), []), (build(PLAIN), [2, 1]), (build(PLAIN), [7])):
        with pytest.raises(CircleError, match="expected at least one, ascending, from 0 to"):
            extractor.keep(parts)


@pytest.mark.parametrize(
    ("config", "side"),
    [
        (LocalContrastConfig(), 32),
        (LocalContrastConfig(mirror=False), 28),
        (LocalContrastConfig(filters=(112, 112), kernels=(3, 5), reductions=(1, 1), colours=32), 32),
        (LocalContrastConfig(filters=(28, 28), kernels=(3, 3), reductions=(1, 2)), 64),
        (LocalContrastConfig(filters=(1,), colours=1), 8),
    ],
)
def test_one_image_alone_has_the_same_bits(config: LocalContrastConfig, side: int) -> None:
    """No second image is computed beside a single one."""
    extractor = build_extractor(config, ImageShape(3, side, side), 0)
    assert extractor.minimum_batch == 1
    images = calibration_images(34, extractor.shape)
    together = extractor.features(images)
    for index in (0, 7, 33):
        assert torch.equal(extractor.features(images[index : index + 1])[0], together[index])
