"""Augmentations against loops over images, their statistics, and that the given generator decides everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from circle.baselines.augmentation import (
    KNOWN,
    augmenter,
    brightness,
    crop_boxes,
    cutout,
    random_crop,
    random_flip,
    random_resized_crop,
    rotations,
)
from circle.errors import CircleError
from circle.extractors import ImageShape, calibration_images


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distinct(count: int, channels: int, height: int, width: int) -> Tensor:
    """Images in (0, 1] no two values of which are equal, so that a pixel tells where it comes from."""
    size = count * channels * height * width
    return ((torch.randperm(size, generator=seeded(9)) + 1) / size).view(count, channels, height, width)


def near(count: float, trials: int, chance: float) -> bool:
    """Within five standard deviations of a binomial distribution."""
    return abs(count - trials * chance) <= 5 * math.sqrt(trials * chance * (1 - chance))


def offsets(image: np.ndarray, result: np.ndarray, padding: int) -> list[tuple[int, int]]:
    """The windows (top, left) of the padded image that equal the result."""
    channels, height, width = image.shape
    padded = np.zeros((channels, height + 2 * padding, width + 2 * padding), dtype=image.dtype)
    padded[:, padding : padding + height, padding : padding + width] = image
    every = [(top, left) for top in range(2 * padding + 1) for left in range(2 * padding + 1)]
    return [
        (top, left) for top, left in every if np.array_equal(padded[:, top : top + height, left : left + width], result)
    ]


@given(
    count=st.integers(1, 4),
    channels=st.integers(1, 4),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    padding=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_a_crop_is_a_window(count: int, channels: int, height: int, width: int, padding: int, seed: int) -> None:
    images = distinct(count, channels, height, width)
    results = random_crop(images, padding, seeded(seed))
    assert results.shape == images.shape
    for image, result in zip(images, results, strict=True):
        assert offsets(image.numpy(), result.numpy(), padding)


def test_windows_are_equally_likely() -> None:
    count, padding = 9000, 1
    images = distinct(1, 1, 3, 4).expand(count, -1, -1, -1)
    results = random_crop(images, padding, seeded())
    found = [offsets(images[0].numpy(), result.numpy(), padding)[0] for result in results]
    for top in range(3):
        for left in range(3):
            assert near(found.count((top, left)), count, 1 / 9)


def test_half_of_the_images_are_flipped() -> None:
    images = distinct(2000, 2, 3, 2)
    results = random_flip(images, seeded()).numpy()
    flipped = 0
    for image, result in zip(images.numpy(), results, strict=True):
        mirrored = np.array_equal(result, image[:, :, ::-1])
        assert mirrored or np.array_equal(result, image)
        flipped += mirrored
    assert near(flipped, 2000, 0.5)


@pytest.mark.parametrize(("amount", "lowest"), [(63 / 255, 1 - 63 / 255), (1.5, 0.0)])
def test_brightness(amount: float, lowest: float) -> None:
    images = torch.full((4000, 2, 2, 1), 0.25)
    images[:, 1, 1] = 0.9
    results = brightness(images, amount, seeded())
    factors = results[:, 0, 0, 0] / 0.25
    assert torch.allclose(results, (images * factors[:, None, None, None]).clamp(max=1.0))
    assert results.max() == 1, "clipped"
    highest = 1 + amount
    # Uniform: the deciles are where they should be.
    shares = torch.quantile(factors, torch.arange(11) / 10)
    assert torch.allclose(shares, lowest + (highest - lowest) * torch.arange(11) / 10, atol=0.03 * (highest - lowest))
    assert factors.min() >= lowest
    assert factors.max() <= highest + 1e-6


@pytest.mark.parametrize("size", [1, 2, 3, 4, 20])
def test_cutout(size: int) -> None:
    height, width = 5, 7
    images = distinct(3500, 2, height, width)
    results = cutout(images, size, seeded())
    expected = {}
    for row in range(height):
        for column in range(width):
            mask = np.zeros((height, width), dtype=bool)
            for y in range(row - size // 2, row - size // 2 + size):
                for x in range(column - size // 2, column - size // 2 + size):
                    if 0 <= y < height and 0 <= x < width:
                        mask[y, x] = True
            expected[mask.tobytes()] = expected.get(mask.tobytes(), 0) + 1
    found = dict.fromkeys(expected, 0)
    for image, result in zip(images.numpy(), results.numpy(), strict=True):
        hidden = result[0] == 0
        found[hidden.tobytes()] += 1  # an error where no centre gives this square
        assert np.array_equal(result, np.where(hidden, 0, image))
    for mask, centres in expected.items():
        assert near(found[mask], 3500, centres / (height * width))


@pytest.mark.parametrize(("height", "width"), [(12, 12), (9, 20)])
def test_resized_crop_is_cropping_and_resizing(height: int, width: int) -> None:
    images = calibration_images(30, ImageShape(3, height, width)).float().div(255.0).clamp(0, 1)
    boxes = crop_boxes(30, height, width, seeded(), (0.08, 1.0), (3 / 4, 4 / 3)).tolist()
    results = random_resized_crop(images, seeded())
    for image, result, (top, left, rows, columns) in zip(images, results, boxes, strict=True):
        part = image[None, :, top : top + rows, left : left + columns]
        expected = functional.interpolate(part, (height, width), mode="bilinear", align_corners=False)[0]
        assert torch.allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize(("height", "width", "padding"), [(12, 12, 4), (9, 14, 3)])
def test_padded_resized_crop(height: int, width: int, padding: int) -> None:
    """A part of the image with zeros around it, brought to the size of the image without them."""
    images = calibration_images(30, ImageShape(3, height, width)).float().div(255.0).clamp(0.1, 1)
    padded = torch.zeros(30, 3, height + 2 * padding, width + 2 * padding)
    padded[:, :, padding : padding + height, padding : padding + width] = images
    boxes = crop_boxes(30, height + 2 * padding, width + 2 * padding, seeded(), (0.08, 1.0), (3 / 4, 4 / 3)).tolist()
    results = random_resized_crop(images, seeded(), padding=padding)
    assert results.shape == images.shape
    for image, result, (top, left, rows, columns) in zip(padded, results, boxes, strict=True):
        part = image[None, :, top : top + rows, left : left + columns]
        expected = functional.interpolate(part, (height, width), mode="bilinear", align_corners=False)[0]
        assert torch.allclose(result, expected, atol=1e-5)
    assert 0.0 < float((results == 0).float().mean()) < 0.5, "zeros come in from the sides"


def test_where_resized_crops_lie() -> None:
    # The first channel is a pixel's row, the second its column: extremes of the result are the edges of the part.
    side, count = 16, 2000
    places = torch.arange(side) / side
    images = torch.stack([places[:, None].expand(side, side), places.expand(side, side)]).expand(count, -1, -1, -1)
    results = random_resized_crop(images, seeded(), (0.2, 0.8), (0.5, 2.0)) * side
    first, last = results.amin((2, 3)), results.amax((2, 3))
    assert torch.allclose(first, first.round(), atol=1e-4)
    assert torch.allclose(last, last.round(), atol=1e-4)
    sides = (last - first + 1).round()  # [count, 2]: heights and widths
    areas, ratios = sides.prod(1) / side**2, sides[:, 1] / sides[:, 0]
    # Sides are rounded, by half a pixel at most.
    assert ((sides + 0.5).prod(1) / side**2 >= 0.2).all()
    assert ((sides - 0.5).prod(1) / side**2 <= 0.8).all()
    assert ((sides[:, 1] + 0.5) / (sides[:, 0] - 0.5) >= 0.5).all()
    assert ((sides[:, 1] - 0.5) / (sides[:, 0] + 0.5) <= 2.0).all()
    assert abs(ratios.log().mean()) < 0.05, "wide and high parts are equally likely"
    assert areas.min() < 0.23
    assert areas.max() > 0.75
    # Parts of one size lie anywhere.
    for axis in range(2):
        free = side - sides[:, axis]
        share = (first[:, axis] / free)[free > 0]
        assert abs(share.mean() - 0.5) < 0.03
        assert share.min() == 0
        assert abs(share.max() - 1) < 1e-4


def test_boxes_are_the_first_draw_that_fits() -> None:
    height, width, scale, ratio = 10, 14, (0.3, 1.0), (0.4, 2.5)
    boxes = crop_boxes(300, height, width, seeded(5), scale, ratio).numpy()
    uniform = torch.rand(300, 10, 4, generator=seeded(5), dtype=torch.float64).numpy()
    later = 0
    for tries, box in zip(uniform, boxes, strict=True):
        for number, (area, shape, down, right) in enumerate(tries):
            pixels = (scale[0] + (scale[1] - scale[0]) * area) * height * width
            aspect = ratio[0] * (ratio[1] / ratio[0]) ** shape
            columns, rows = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
            if 0 < columns <= width and 0 < rows <= height:
                later += number > 0
                assert box.tolist() == [
                    math.floor(down * (height - rows + 1)),
                    math.floor(right * (width - columns + 1)),
                    rows,
                    columns,
                ]
                break
    assert later > 30, "some first draws did not fit"


@pytest.mark.parametrize(
    ("height", "width", "ratio", "central"),
    [
        (4, 30, (3 / 4, 4 / 3), [0, 12, 4, 5]),
        (30, 4, (3 / 4, 4 / 3), [12, 0, 5, 4]),
        (10, 10, (0.5, 2.0), [0, 0, 10, 10]),
        (10, 12, (0.5, 2.0), [0, 0, 10, 12]),
    ],
)
def test_the_central_part_where_nothing_fits(
    height: int, width: int, ratio: tuple[float, float], central: list[int]
) -> None:
    # No part is four times as large as the image.
    assert crop_boxes(3, height, width, seeded(), (4.0, 4.0), ratio).tolist() == [central] * 3


def test_rotations() -> None:
    images = distinct(3, 2, 4, 4)
    results = rotations(images)
    assert results.shape == (12, 2, 4, 4)
    for turns in range(4):
        for position in range(3):
            assert np.array_equal(results[turns * 3 + position], np.rot90(images[position].numpy(), turns, (1, 2)))


def test_rotations_of_oblong_images() -> None:
    with pytest.raises(CircleError, match="rotations need square images, got 3 x 4"):
        rotations(torch.zeros(1, 1, 3, 4))


def test_unknown_names() -> None:
    assert set(KNOWN) == {
        *("crop", "flip", "brightness", "cutout", "resized_crop", "padded_resized_crop"),
        *("auto_augment", "trivial_augment"),
    }
    with pytest.raises(CircleError, match="unknown augmentation 'flp': did you mean 'flip'?"):
        augmenter(["crop", "flp"], 32)
    with pytest.raises(CircleError, match="unknown augmentation 'zzz': known: auto_augment, brightness, crop"):
        augmenter(["zzz"], 32)


@pytest.mark.parametrize(("side", "padding"), [(28, 4), (32, 4), (33, 8), (64, 8), (65, 8), (96, 12), (224, 28)])
def test_settings_follow_the_side(side: int, padding: int) -> None:
    images = torch.rand(4, 1, side, side, generator=seeded())
    assert torch.equal(augmenter(["crop"], side)(images, seeded(1)), random_crop(images, padding, seeded(1)))
    padded = random_resized_crop(images, seeded(1), padding=padding)
    assert torch.equal(augmenter(["padded_resized_crop"], side)(images, seeded(1)), padded)
    assert torch.equal(augmenter(["cutout"], side)(images, seeded(1)), cutout(images, side // 2, seeded(1)))
    assert torch.equal(augmenter(["brightness"], side)(images, seeded(1)), brightness(images, 63 / 255, seeded(1)))


def test_names_are_applied_in_their_order() -> None:
    images = distinct(8, 3, 6, 6)
    results = augmenter(("flip", "cutout", "crop"), 6)(images, seeded())
    generator = seeded()
    expected = random_crop(cutout(random_flip(images, generator), 3, generator), 4, generator)
    assert torch.equal(results, expected)
    nothing = augmenter((), 6)(images, seeded())
    assert torch.equal(nothing, images)
    assert nothing.data_ptr() != images.data_ptr()


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("names", [(name,) for name in KNOWN] + [KNOWN])
def test_what_every_augmentation_keeps(names: tuple[str, ...], channels: int) -> None:
    images = calibration_images(1, ImageShape(channels, 16, 16)).float().div(255.0).clamp(0, 1).repeat(40, 1, 1, 1)
    before, state = images.clone(), torch.get_rng_state()
    augment = augmenter(names, 16)
    results = augment(images, seeded(1))
    assert results.shape == images.shape
    assert results.dtype == torch.float32
    assert results.min() >= 0
    assert results.max() <= 1
    assert torch.equal(images, before), "the input is not touched"
    assert torch.equal(torch.get_rng_state(), state), "nor is the global generator"
    # The seed decides, and the generator moves on.
    generator = seeded(1)
    assert torch.equal(augment(images, generator), results)
    assert not torch.equal(augment(images, generator), results)
    # Copies of one image are not treated alike; a flip can only give two.
    different = len({result.numpy().tobytes() for result in results})
    assert different == 2 if names == ("flip",) else different >= 12
    results.zero_()
    assert torch.equal(images, before), "the result is a tensor of its own"


@pytest.mark.parametrize("name", KNOWN)
def test_images_may_be_on_another_device(name: str) -> None:
    # "meta" is the one other device that every machine has: it computes shapes, and refuses tensors from elsewhere.
    images = torch.zeros(64, 3, 16, 16, device="meta")
    results = augmenter([name], 16)(images, seeded())
    assert results.device.type == "meta"
    assert results.shape == images.shape
