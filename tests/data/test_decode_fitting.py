"""A picture of any size and orientation is turned and brought to the size that is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import GREY, RGB, channels_first, encode, noise, picture
from PIL import Image, ImageFile

from circle.data.decode import ImageConfig, open_image, read_pixels, to_pixels

# --- orientation --------------------------------------------------------------------------------------------


MARKS = {  # where the stored top left corner is shown, for each EXIF orientation
    1: (0, 0),
    2: (0, -1),
    3: (-1, -1),
    4: (-1, 0),
    5: (0, 0),
    6: (0, -1),
    7: (-1, -1),
    8: (-1, 0),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation_turns_the_picture(file_format: str, orientation: int) -> None:
    stored = np.zeros((24, 16), np.uint8)  # upright format, with one bright corner and one grey side
    stored[:8, :8] = 255
    stored[16:] = 128
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encode(Image.fromarray(stored).convert("RGB"), file_format, exif=exif)
    turned = orientation >= 5
    config = ImageConfig(height=16 if turned else 24, width=24 if turned else 16, channels=1)
    pixels = read_pixels(content, config, "x")[0].astype(int)
    assert pixels[MARKS[orientation]] > 200
    # The stored bottom is grey: it lies opposite the corner, along the axis that the orientation says.
    row, column = MARKS[orientation]
    opposite = pixels[row, -1 - column] if turned else pixels[-1 - row, column]
    assert 100 < opposite < 156


def test_orientation_holds_when_a_large_photograph_is_decoded_small() -> None:
    stored = np.zeros((1600, 1200), np.uint8)
    stored[:800, :600] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = read_pixels(encode(Image.fromarray(stored), "JPEG", exif=exif), GREY, "x")[0]
    assert (pixels[:3, 5:] > 250).all() and (pixels[5:] < 5).all() and (pixels[:, :3] < 5).all()


@pytest.mark.parametrize("exif", [b"Exif\0\0rubbish", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0"])
def test_broken_exif_is_no_reason_to_refuse(exif: bytes) -> None:
    assert read_pixels(encode(picture(), "JPEG", exif=exif), RGB, "x").shape == (3, 8, 8)


def test_unknown_orientation_is_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 99
    image = picture()
    assert np.array_equal(read_pixels(encode(image, exif=exif), RGB, "x"), channels_first(image))


# --- fitting ------------------------------------------------------------------------------------------------


def thirds(across: bool) -> Image.Image:
    """Black, white, black: 24 x 8 pixels if side by side, 8 x 24 if one above the other."""
    stripes = np.repeat(np.array([0, 255, 0], np.uint8), 8)
    return Image.fromarray(np.tile(stripes, (8, 1)) if across else np.tile(stripes[:, None], (1, 8)))


@pytest.mark.parametrize("across", [True, False])
def test_crop_keeps_the_centre(across: bool) -> None:
    assert (to_pixels(thirds(across), GREY, "x") == 255).all()
    doubled = thirds(across).resize((48, 16) if across else (16, 48), Image.Resampling.NEAREST)
    assert (to_pixels(doubled, GREY, "x")[:, 1:-1, 1:-1] == 255).all()


def test_crop_without_scaling_takes_whole_pixels() -> None:
    values = noise(8, 11)
    assert np.array_equal(to_pixels(values, GREY, "x")[0], values[:, 1:9])


@pytest.mark.parametrize("across", [True, False])
def test_pad_keeps_everything(across: bool) -> None:
    config = ImageConfig(height=24, width=24, channels=1, aspect="pad", background=9)
    pixels = to_pixels(thirds(across), config, "x")[0]
    pixels = pixels if across else pixels.T
    assert (pixels[:8] == 9).all() and (pixels[16:] == 9).all()
    assert np.array_equal(pixels[8:16], np.asarray(thirds(True)))


def test_pad_scales_to_fit() -> None:
    pixels = to_pixels(thirds(True), GREY.replace(aspect="pad", background=40), "x")[0]
    rows_of_background = (pixels == 40).all(1)
    assert rows_of_background.sum() == 5  # 8 / 3 rows of picture, rounded to 3
    assert (pixels[~rows_of_background][:, 3:5] > 250).all()


def test_stretch_keeps_everything_and_pads_nothing() -> None:
    pixels = to_pixels(thirds(True), GREY.replace(aspect="stretch"), "x")[0]
    assert (pixels[:, 0] < 5).all() and (pixels[:, 3:5] > 250).all() and (pixels[:, -1] < 5).all()


def test_shrinking_is_antialiased() -> None:
    checkers = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    pixels = to_pixels(checkers, GREY, "x")
    assert np.abs(pixels.astype(int) - 127).max() <= 2


@pytest.mark.parametrize("aspect", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (1, 1), (3, 5)])
def test_extreme_shapes(aspect: str, size: tuple[int, int]) -> None:
    pixels = to_pixels(Image.new("RGB", size, (10, 20, 30)), RGB.replace(aspect=aspect, background=20), "x")
    assert pixels.shape == (3, 8, 8)
    assert (pixels[1] == 20).all() and (pixels == 10).any()


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    aspect=st.sampled_from(["crop", "pad", "stretch"]),
)
def test_a_plain_colour_stays_plain(height: int, width: int, target: tuple[int, int], aspect: str) -> None:
    config = ImageConfig(height=target[0], width=target[1], channels=1, aspect=aspect, background=200)
    pixels = to_pixels(np.full((height, width), 100, np.uint8), config, "x")
    assert pixels.shape == (1, *target)
    assert set(np.unique(pixels).tolist()) <= ({100, 200} if aspect == "pad" else {100})
    assert (pixels == 100).any()


def test_large_jpeg_is_decoded_small_but_never_below_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encode(Image.fromarray(noise(1024, 768)).convert("RGB"), "JPEG")
    sizes = []
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: (sizes.append(image.size), load(image))[1])
    read_pixels(content, ImageConfig(height=16, width=16), "x")
    assert sizes[0] == (96, 128)
    sizes.clear()
    read_pixels(content, ImageConfig(height=48, width=24), "x")  # an eighth would do, but not look as good
    assert sizes[0] == (192, 256)
    sizes.clear()
    read_pixels(content, ImageConfig(height=700, width=16), "x")
    assert sizes[0] == (768, 1024)


def test_decoding_small_hardly_changes_the_pixels() -> None:
    smooth = Image.fromarray(noise(12, 16, 3)).resize((640, 480), Image.Resampling.BICUBIC)
    content = encode(smooth, "JPEG", quality=95)
    config = ImageConfig(height=16, width=16)
    difference = read_pixels(content, config, "x").astype(int) - to_pixels(open_image(content, "x"), config, "x")
    assert np.abs(difference).mean() < 1.5


def test_to_pixels_leaves_the_callers_image_as_it_was() -> None:
    image = open_image(encode(picture(640, 480), "JPEG"), "x")
    to_pixels(image, RGB, "x")
    assert image.size == (480, 640)
