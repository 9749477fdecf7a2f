"""Local contrast features against a transcription of their equations, and what they promise to ignore."""

from __future__ import annotations

import pytest
import torch

from circle.errors import CircleError
from circle.extractors import ImageShape, LocalContrast, LocalContrastConfig, build_extractor, pink_noise
from circle.extractors.local_contrast import reduced, separable_filters

PLAIN = LocalContrastConfig(filters=(5,), kernels=(3,), reductions=(1,), colours=2, grid=2, mirror=False)
SHAPE = ImageShape(3, 9, 12)


def build(config: LocalContrastConfig, shape: ImageShape = SHAPE) -> LocalContrast:
    extractor = build_extractor(config, shape, seed=1)
    assert isinstance(extractor, LocalContrast)
    return extractor.to(torch.float64)


def by_the_book(extractor: LocalContrast, image: torch.Tensor) -> torch.Tensor:
    """The vector of one image [C, H, W], one bank, filter, sign, moment and window at a time."""
    config = extractor.config
    x = (image - config.input_mean) / config.input_scale
    responses = []
    for bank, (count, kernel, reduction) in enumerate(
        zip(config.filters, config.kernels, config.reductions, strict=True)
    ):
        small = reduced(x[None], reduction)[0]
        filters = extractor.get_buffer(f"weight_{bank}")[:count]
        _, height, width = small.shape
        maps = torch.empty(height, width, count, dtype=torch.float64)
        before = (kernel - 1) // 2
        for row in range(height):
            for column in range(width):
                rows = (torch.arange(kernel) + row - before).clamp(0, height - 1)
                columns = (torch.arange(kernel) + column - before).clamp(0, width - 1)
                patch = small[:, rows][:, :, columns]
                variance = patch.flatten(1).var(1, unbiased=False).mean()
                maps[row, column] = (filters * patch).sum((1, 2, 3)) / (variance + config.contrast_epsilon).sqrt()
        responses.append((maps, extractor.get_buffer(f"windows_{bank}")))
    if config.colours:
        small = reduced(x[None], min(config.reductions, default=1))[0]
        colours = small.permute(1, 2, 0) @ extractor.get_buffer("colour_directions")
        colours += extractor.get_buffer("colour_offsets")
        responses.append((colours, extractor.get_buffer("colour_windows")))
    parts = []
    for maps, windows in responses:
        for sign in (1.0, -1.0):
            part = (sign * maps).clamp_min(0.0).flatten(0, 1)
            for moment in config.moments:
                values = part if moment == "mean" else part**2
                parts.append((windows @ values).flatten())
    vector = torch.cat(parts)
    return vector.sign() * vector.abs() ** config.power


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"filters": (4, 3), "kernels": (3, 5), "reductions": (1, 2)},
        {"filters": (2, 2), "kernels": (3, 3), "reductions": (2, 3)},
        {"kernels": (2,), "windows": "box", "moments": ("square",), "power": 0.7},
        {"colours": 0, "grey_share": 1.0},
    ],
)
@pytest.mark.parametrize("shape", [SHAPE, ImageShape(1, 7, 7)])
@pytest.mark.parametrize("mirror", [False, True])
def test_equals_the_equations(changes: dict, shape: ImageShape, mirror: bool) -> None:
    """Mirror images by mirrored filters, and as images of their own where the filters or the width are even or odd."""
    extractor = build(PLAIN.replace(**changes, mirror=mirror), shape)
    images = pink_noise(2, shape)
    for image, features in zip(images, extractor.features(images), strict=True):
        expected = by_the_book(extractor, image)
        if mirror:
            expected = (expected + by_the_book(extractor, image.flip(2))) / 2
        assert torch.allclose(features, expected, rtol=1e-6, atol=1e-6)


def test_filters_see_neither_brightness_nor_colour() -> None:
    extractor = build(PLAIN.replace(colours=0))
    images = pink_noise(4, SHAPE) * 0.5 + 0.2
    shift = torch.tensor([0.1, -0.1, 0.05], dtype=torch.float64).view(3, 1, 1)
    assert torch.allclose(extractor.features(images), extractor.features(images + shift), rtol=1e-6)
    # The functions of colour are there to see what the filters leave out.
    with_colours = build(PLAIN)
    assert not torch.allclose(with_colours.features(images), with_colours.features(images + shift), rtol=1e-2)


def test_contrast_is_taken_out() -> None:
    extractor = build(PLAIN.replace(colours=0, contrast_epsilon=1e-9))
    images = pink_noise(4, SHAPE)
    fainter = (images - 0.5) * 0.3 + 0.5
    assert torch.allclose(extractor.features(images), extractor.features(fainter), rtol=1e-4)


def test_mirror_images_have_the_same_vector() -> None:
    extractor = build(PLAIN.replace(mirror=True))
    images = pink_noise(4, SHAPE)
    assert torch.allclose(extractor.features(images), extractor.features(images.flip(3)), rtol=1e-12)
    single = build(PLAIN)
    expected = (single.features(images) + single.features(images.flip(3))) / 2
    assert torch.allclose(extractor.features(images), expected, rtol=1e-12)


def test_separable_filters() -> None:
    filters = separable_filters(10, 3, 5, 0.3, torch.Generator().manual_seed(0))
    assert torch.allclose(filters.flatten(1).norm(dim=1), torch.ones(10))
    assert torch.allclose(filters.mean((2, 3)), torch.zeros(10, 3), atol=1e-6)
    ranks = torch.linalg.matrix_rank(filters.flatten(2), rtol=1e-4)
    assert ranks.tolist() == [1] * 10, "a colour times a pattern"
    grey = (filters - filters[:, :1]).abs().amax((1, 2, 3)) < 1e-7
    assert grey.tolist() == [True] * 3 + [False] * 7


def test_reduction_of_sizes_that_do_not_divide() -> None:
    image = torch.arange(5.0).expand(1, 1, 3, 5)
    assert reduced(image, 2).tolist() == [[[[0.5, 2.5, 4.0], [0.5, 2.5, 4.0]]]]


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
        ({"window_spread": 0.0}, "a positive number"),
        ({"contrast_epsilon": 0.0}, "a positive number"),
        ({"colours": -1}, "0 or more"),
    ],
)
def test_bad_settings(changes: dict, words: str) -> None:
    with pytest.raises(CircleError, match=words):
        PLAIN.replace(**changes)


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
    images = pink_noise(4, SHAPE)
    columns = torch.cat([parts[part] for part in kept]).sort().values
    torch.testing.assert_close(cut.features(images), whole.features(images)[:, columns])
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
    """Its pixels are batch enough: no second image is computed beside a single one."""
    extractor = build_extractor(config, ImageShape(3, side, side), 0)
    assert extractor.minimum_batch == 1
    images = pink_noise(34, extractor.shape).to(torch.float32)
    together = extractor.features(images)
    for index in (0, 7, 33):
        assert torch.equal(extractor.features(images[index : index + 1])[0], together[index])
