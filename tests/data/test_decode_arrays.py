"""Arrays as pictures: their shapes, types and values."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import GREY, RGB, noise, picture

from circle.data.decode import ImageConfig, to_pixels
from circle.errors import CircleError, UnreadableImageError


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1)])
def test_grey_arrays(shape: tuple[int, ...]) -> None:
    values = noise(*shape)
    assert np.array_equal(to_pixels(values, GREY, "x")[0], values.reshape(8, 8))
    assert np.array_equal(to_pixels(values, RGB, "x")[2], values.reshape(8, 8))


def test_colour_arrays_also_as_views() -> None:
    values = noise(16, 16, 3)
    assert np.array_equal(to_pixels(values[::2, ::-2], RGB, "x"), np.moveaxis(values[::2, ::-2], 2, 0))


@pytest.mark.parametrize("channels", [2, 4])
def test_alpha_of_arrays(channels: int) -> None:
    values = np.zeros((8, 8, channels), np.uint8)
    values[:, :4, -1] = 255
    pixels = to_pixels(values, RGB.replace(background=60), "x")
    assert (pixels[:, :, :4] == 0).all() and (pixels[:, :, 4:] == 60).all()


@pytest.mark.parametrize("channels", [2, 4, 5, 16])
def test_arrays_with_just_the_channels_asked_for(channels: int) -> None:
    values = noise(8, 8, channels)
    config = ImageConfig(height=8, width=8, channels=channels)
    assert np.array_equal(to_pixels(values, config, "x"), np.moveaxis(values, 2, 0))
    enlarged = to_pixels(values, config.replace(height=16, width=16), "x")
    assert enlarged.shape == (channels, 16, 16)
    last = to_pixels(values[:, :, -1], ImageConfig(height=16, width=16, channels=1), "x")
    assert np.array_equal(enlarged[-1:], last)


@pytest.mark.parametrize(("found", "asked"), [(5, 3), (5, 1), (3, 4), (1, 2), (4, 5)])
def test_other_numbers_of_channels_are_named(found: int, asked: int) -> None:
    with pytest.raises(CircleError, match=rf"^x: .*{found} channels.* asks for {asked}"):
        to_pixels(noise(8, 8, found), RGB.replace(channels=asked), "x")


def test_pictures_cannot_have_five_channels() -> None:
    with pytest.raises(CircleError, match=r"^x: a picture has 1 or 3 channels, .*asks for 5"):
        to_pixels(picture(), RGB.replace(channels=5), "x")


def test_types_of_arrays() -> None:
    levels = noise(8, 8)
    for values in (
        levels.astype(np.float64) / 255,
        levels.astype(np.float32) / np.float32(255),
        levels.astype(np.uint16) * 257,
        (levels.astype(np.uint16) * 257).astype(">u2"),
        levels.astype(">f4") / np.float32(255),
    ):
        assert np.array_equal(to_pixels(values, GREY, "x")[0], levels), values.dtype
    assert np.array_equal(to_pixels(levels > 99, GREY, "x")[0], (levels > 99) * np.uint8(255))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.25, 1.5])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_outside_zero_to_one_are_named(value: float, kind: type) -> None:
    values = np.zeros((8, 8, 3), kind)
    values[4, 5, 1] = value
    with pytest.raises(UnreadableImageError, match=f"^row 7: holds the value {value}; expected 0 to 1$"):
        to_pixels(values, RGB, "row 7")


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint32, np.complex64, object, "U1"])
def test_other_types_of_arrays_are_named(kind: type) -> None:
    with pytest.raises(CircleError, match=rf"^x: array of type {np.dtype(kind)}; expected uint8".replace("<", ".")):
        to_pixels(np.zeros((8, 8), kind), GREY, "x")


@pytest.mark.parametrize("shape", [(), (8,), (0, 8), (8, 0, 3), (8, 8, 0), (1, 8, 8, 3)])
def test_other_shapes_of_arrays_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(CircleError, match=r"^x: array of shape \[.*expected \[height, width\]"):
        to_pixels(np.zeros(shape, np.uint8), RGB, "x")
