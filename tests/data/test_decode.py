"""The config, and pictures of every format and mode, transparent ones among them."""

from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from pictures import GREY, RGB, channels_first, chunk, encode, noise, picture, png
from PIL import Image

from circle.data.decode import ImageConfig, read_pixels, to_pixels
from circle.errors import CircleError, UnreadableImageError

# --- the config ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("height", 0),
        ("height", 4097),
        ("width", -1),
        ("width", 4097),
        ("channels", 0),
        ("channels", 17),
        ("background", 256),
        ("background", -1),
        ("aspect", "squeeze"),
    ],
)
def test_config_refuses_values_out_of_range(field: str, value: object) -> None:
    with pytest.raises(CircleError, match=rf"image\.{field} = .*{value}.*expected"):
        ImageConfig(**{field: value})


def test_config_takes_its_limits_and_survives_the_way_to_toml_and_back() -> None:
    config = ImageConfig(height=4096, width=1, channels=16, aspect="pad", background=0)
    assert ImageConfig.from_dict(config.to_dict()) == config


# --- files of every format and mode -------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF", "PPM"])
def test_right_size_is_bit_exact(file_format: str) -> None:
    image = picture()
    for aspect in ("crop", "pad", "stretch"):
        pixels = read_pixels(encode(image, file_format), RGB.replace(aspect=aspect), "x")
        assert np.array_equal(pixels, channels_first(image))
    assert pixels.dtype == np.uint8 and pixels.flags.c_contiguous and pixels.flags.writeable


def test_lossless_webp_is_bit_exact() -> None:
    image = picture()
    assert np.array_equal(read_pixels(encode(image, "WEBP", lossless=True), RGB, "x"), channels_first(image))


def test_path_and_bytes_give_the_same_and_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "x.gif"
    path.write_bytes(encode(picture(), "GIF", save_all=True, append_images=[picture().rotate(90)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        from_path = read_pixels(path, RGB, "x")
    assert np.array_equal(from_path, read_pixels(path.read_bytes(), RGB, "x"))


def test_grey_becomes_three_equal_channels_and_colour_becomes_luminance() -> None:
    grey = Image.fromarray(noise(8, 8))
    assert np.array_equal(read_pixels(encode(grey), RGB, "x"), np.stack([np.asarray(grey)] * 3))
    colour = picture()
    assert np.array_equal(read_pixels(encode(colour), GREY, "x")[0], np.asarray(colour.convert("L")))


def test_one_bit_is_black_and_white() -> None:
    bits = noise(8, 8) > 127
    pixels = read_pixels(encode(Image.fromarray(bits)), GREY, "x")
    assert np.array_equal(pixels[0], bits * np.uint8(255))


@pytest.mark.parametrize("config", [GREY, RGB])
@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled_not_clipped(file_format: str, config: ImageConfig) -> None:
    values = noise(8, 8, kind=np.uint16)
    values[0, :6] = 0, 65535, 256, 257, 128, 129  # 128 / 257 rounds down, 129 / 257 up
    pixels = read_pixels(encode(Image.fromarray(values), file_format), config, "x")
    assert pixels[0, 0, :6].tolist() == [0, 255, 1, 1, 0, 1]
    assert np.array_equal(pixels[0], np.rint(values / 257).astype(np.uint8))


@pytest.mark.parametrize("mode", ["I;16", "I;16L", "I;16B", "I;16N", "I"])
def test_all_kinds_of_deep_grey(mode: str) -> None:
    kinds = {"I;16": "<u2", "I;16L": "<u2", "I;16B": ">u2", "I;16N": "=u2", "I": "=i4"}
    values = noise(8, 8, kind=np.uint16)
    image = Image.frombytes(mode, (8, 8), values.astype(kinds[mode]).tobytes())
    assert np.array_equal(to_pixels(image, GREY, "x")[0], np.rint(values / 257).astype(np.uint8))


@pytest.mark.parametrize("value", [-1, 65536])
def test_deep_grey_beyond_sixteen_bits_is_named(value: int) -> None:
    with pytest.raises(UnreadableImageError, match=rf"^deep: holds the value {value}; expected 0 to 65535"):
        to_pixels(Image.new("I", (8, 8), value), GREY, "deep")


@pytest.mark.parametrize("top", [1, 255])
def test_float_images_by_their_range(top: int) -> None:
    values = np.linspace(0, top, 64, dtype=np.float32).reshape(8, 8)
    pixels = read_pixels(encode(Image.fromarray(values), "TIFF"), GREY, "x")
    assert np.array_equal(pixels[0], np.rint(np.arange(64) * 255 / 63).reshape(8, 8))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5, 256.0])
def test_float_images_with_other_values_are_refused(value: float) -> None:
    values = np.full((8, 8), 0.5, np.float32)
    values[3, 3] = value
    with pytest.raises(UnreadableImageError, match=f"^x: holds the value {value}"):
        to_pixels(Image.fromarray(values), GREY, "x")


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "LAB", "HSV", "RGBX"])
def test_other_colour_spaces_keep_their_colours(mode: str) -> None:
    red = to_pixels(Image.new("RGB", (8, 8), (250, 20, 30)).convert(mode), RGB, "x")
    assert np.abs(red.astype(int) - np.array([250, 20, 30])[:, None, None]).max() <= 8
    assert to_pixels(Image.new("RGB", (8, 8), "white").convert(mode), GREY, "x").min() >= 250


def test_cmyk_jpeg_is_not_inverted() -> None:
    content = encode(Image.new("RGB", (8, 8), (255, 0, 0)).convert("CMYK"), "JPEG", quality=95)
    red, green, blue = read_pixels(content, RGB, "x").astype(int).mean((1, 2))
    assert red > 240 and green < 15 and blue < 15


def test_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for file_format in ("GIF", "PNG", "WEBP", "TIFF"):
        content = encode(frames[0], file_format, save_all=True, append_images=frames[1:])
        red, _, blue = read_pixels(content, RGB, "x").astype(int).mean((1, 2))
        assert red > 240 and blue < 15, file_format


# --- transparency -------------------------------------------------------------------------------------------


def half_transparent(mode: str) -> Image.Image:
    """The left half black and opaque, the right half black and transparent."""
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 255))
    image.paste((0, 0, 0, 0), (4, 0, 8, 8))
    if mode == "P":  # index 1 is transparent
        palette = Image.fromarray(np.repeat([[0, 0, 0, 0, 1, 1, 1, 1]], 8, 0).astype(np.uint8)).convert("P")
        palette.putpalette([0] * 768)
        palette.info["transparency"] = 1
        return palette
    if mode == "PA":
        alpha = image.getchannel("A")
        return Image.merge("PA", (Image.new("L", (8, 8), 0), alpha))
    if mode == "La":
        return image.convert("LA").convert("La")
    return image.convert(mode)


@pytest.mark.parametrize("config", [GREY, RGB])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P", "RGBa", "La"])
def test_transparent_pixels_show_the_background(mode: str, config: ImageConfig) -> None:
    for background in (0, 77, 255):
        pixels = to_pixels(half_transparent(mode), config.replace(background=background), "x")
        assert (pixels[:, :, :4] == 0).all() and (pixels[:, :, 4:] == background).all()


@pytest.mark.parametrize("file_format", ["PNG", "GIF"])
def test_palette_transparency_in_files(file_format: str) -> None:
    content = encode(half_transparent("P"), file_format, transparency=1)
    pixels = read_pixels(content, RGB.replace(background=200), "x")
    assert (pixels[:, :, :4] == 0).all() and (pixels[:, :, 4:] == 200).all()


def test_palette_with_a_level_of_alpha_per_entry() -> None:
    content = encode(half_transparent("P"), transparency=bytes([255, 127]))
    pixels = read_pixels(content, GREY.replace(background=200), "x")
    assert (pixels[:, :, :4] == 0).all() and (np.abs(pixels[:, :, 4:].astype(int) - 100) <= 1).all()


def test_colour_keys_are_transparent() -> None:
    grey = np.repeat([[0, 0, 0, 0, 9, 9, 9, 9]], 8, 0).astype(np.uint8)
    content = encode(Image.fromarray(grey), transparency=9)
    pixels = read_pixels(content, GREY.replace(background=50), "x")[0]
    assert (pixels[:, :4] == 0).all() and (pixels[:, 4:] == 50).all()


def test_colour_key_of_a_sixteen_bit_png() -> None:
    rows = np.array([[1000, 30000]] * 2, dtype=">u2")
    data = b"".join(b"\0" + row.tobytes() for row in rows)
    content = png(2, 2, 16, 0, chunk(b"tRNS", struct.pack(">H", 30000)), chunk(b"IDAT", zlib.compress(data)))
    pixels = read_pixels(content, ImageConfig(height=2, width=2, channels=1, background=7), "x")
    assert pixels.tolist() == [[[4, 7], [4, 7]]]


def test_half_alpha_is_half_way() -> None:
    pixels = to_pixels(Image.new("RGBA", (8, 8), (0, 0, 0, 128)), RGB, "x")
    assert set(np.unique(pixels).tolist()) <= {126, 127, 128}
