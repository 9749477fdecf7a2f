"""Every kind of picture comes out right, and every kind of rubbish as one line."""

from __future__ import annotations

import io
import os
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from circle.errors import CircleError, UnreadableImageError
from circle.streams import guard
from circle.streams.decode import ImageConfig, open_image, read_pixels, to_pixels
from circle.streams.guard import MAXIMUM_BYTES, MAXIMUM_PIXELS

RGB = ImageConfig(height=8, width=8)
GREY = ImageConfig(height=8, width=8, channels=1)


def noise(*shape: int, kind: type[np.integer] = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, np.iinfo(kind).max, shape, dtype=kind, endpoint=True)


def encode(image: Image.Image, file_format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def picture(height: int = 8, width: int = 8) -> Image.Image:
    return Image.fromarray(noise(height, width, 3))


def channels_first(image: Image.Image) -> np.ndarray:
    return np.moveaxis(np.asarray(image), 2, 0)


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


def png(width: int, height: int, depth: int, colour: int, *chunks: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IEND", b"")


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


# --- arrays -------------------------------------------------------------------------------------------------


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


# --- what cannot be read ------------------------------------------------------------------------------------


def refused(content: bytes | Path, name: str = "x") -> str:
    with pytest.raises(UnreadableImageError) as caught:
        read_pixels(content, RGB, name)
    message = str(caught.value)
    assert message.startswith(f"{name}: ") and "\n" not in message and "expected" in message
    return message


def test_what_is_no_image(tmp_path: Path) -> None:
    assert "empty" in refused(b"")
    assert "not a readable image" in refused(b"just some text\n" * 20)
    path = tmp_path / "text.png"
    path.write_text("I am not a picture")
    assert "not a readable image" in refused(path, str(path))


@pytest.mark.parametrize(
    "content",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n",
        b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\n",
        b"\xd7\xcd\xc6\x9a" + bytes(40),
    ],
)
def test_formats_that_start_other_programs_are_not_known(content: bytes) -> None:
    assert "not a readable image" in refused(content)


def test_files_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No such file" in refused(tmp_path / "missing.png")
    assert "not a regular file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    assert "not a regular file" in refused(tmp_path / "pipe.png")

    secret = tmp_path / "secret.png"
    secret.write_bytes(encode(picture()))

    def forbidden(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(secret))

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    assert "Permission denied" in refused(secret)


def test_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Path, "read_bytes")
    path = tmp_path / "huge.png"
    with path.open("wb") as file:
        file.truncate(MAXIMUM_BYTES + 1)  # sparse
    assert f"{MAXIMUM_BYTES + 1} bytes; expected at most 512 MiB" in refused(path)


def test_names_stay_on_one_line() -> None:
    with pytest.raises(UnreadableImageError, match=r"^'a\\nb\\udc80\.png': empty"):
        open_image(b"", "a\nb\udc80.png")


# Just above our limit Pillow would only warn, far above it raises.
@pytest.mark.parametrize("side", [9460, 60_000])
@pytest.mark.parametrize("limit", [MAXIMUM_PIXELS, None])
def test_bombs_are_refused_before_decoding(side: int, limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    content = png(side, side, 8, 0, chunk(b"IDAT", zlib.compress(bytes(1000))))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        start = time.perf_counter()
        message = refused(content)
        seconds = time.perf_counter() - start
    assert "too large" in message and str(MAXIMUM_PIXELS) in message
    assert not seen
    assert seconds < 0.5


def test_our_limit_is_pillows() -> None:
    assert MAXIMUM_PIXELS == Image.MAX_IMAGE_PIXELS


def test_no_warning_of_pillow_reaches_the_screen_and_filters_are_restored() -> None:
    no_frames = chunk(b"acTL", bytes(8))
    content = png(8, 8, 8, 0, no_frames, chunk(b"IDAT", zlib.compress(bytes(72))))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        Image.open(io.BytesIO(content))
        assert seen, "Pillow alone does not warn about this file, so it shows nothing"
        seen.clear()
        assert read_pixels(content, RGB, "x").max() == 0
        assert not seen
        assert warnings.filters == before


def test_pillow_stays_muted_until_the_last_has_left() -> None:
    def warn_as_pillow() -> None:
        warnings.warn_explicit("odd file", UserWarning, "Image.py", 1, module="PIL.Image")

    muting = guard._PillowWarnings()
    first, second = muting.muted(), muting.muted()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        warn_as_pillow()
        assert not seen
        second.__exit__(None, None, None)
        assert warnings.filters == before


def test_filters_are_restored_after_many_threads() -> None:
    content = encode(picture(40, 40), "JPEG")
    before = list(warnings.filters)
    together = threading.Barrier(8)
    results: list[np.ndarray] = []

    def work() -> None:
        together.wait()
        results.extend(read_pixels(content, RGB, "x") for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 160 and all(np.array_equal(result, results[0]) for result in results)
    assert warnings.filters == before


FILES: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: encode(picture(20, 20), "JPEG"),
    "png": lambda: encode(picture(20, 20)),
    "gif": lambda: encode(picture(20, 20), "GIF"),
    "bmp": lambda: encode(picture(20, 20), "BMP"),
    "webp": lambda: encode(picture(20, 20), "WEBP"),
    "tiff": lambda: encode(picture(20, 20), "TIFF"),
    "ppm": lambda: encode(picture(20, 20), "PPM"),
}


@pytest.mark.parametrize("kind", FILES)
def test_truncated_anywhere(kind: str) -> None:
    content = FILES[kind]()
    whole = read_pixels(content, RGB, "x")
    refusals = 0
    for length in sorted({*range(0, len(content), max(1, len(content) // 40)), len(content) - 1}):
        try:
            pixels = read_pixels(content[:length], RGB, "x")
        except UnreadableImageError as error:
            refusals += 1
            assert str(error).startswith("x: ")
        else:  # only the trailer is missing, so all of the picture must be there
            assert np.array_equal(pixels, whole), length
            assert length > 0.9 * len(content)
    assert refusals >= 35


@pytest.mark.parametrize(
    "error",
    [
        OSError("disk"),
        SyntaxError("broken"),
        ValueError("bad\nvalue"),
        struct.error("unpack"),
        zlib.error("inflate"),
        EOFError(),
        IndexError("index"),
        KeyError("key"),
        MemoryError(),
        RecursionError("deep"),
        OverflowError("large"),
        Image.DecompressionBombError("bomb"),
        ZeroDivisionError("zero"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_pillow_raises_becomes_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    content = encode(picture())
    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    message = refused(content)
    assert (" ".join(str(error).split()) or type(error).__name__) in message


def test_only_errors_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    content = encode(picture())
    monkeypatch.setattr(ImageFile.ImageFile, "load", interrupt)
    with pytest.raises(KeyboardInterrupt):
        read_pixels(content, RGB, "x")


SIGNATURES = [
    b"",
    b"\xff\xd8\xff\xe0",
    b"\x89PNG\r\n\x1a\n",
    b"GIF89a",
    b"BM",
    b"RIFF\x40\0\0\0WEBPVP8 ",
    b"II*\0",
    b"P6\n",
]


@settings(max_examples=300, deadline=None)
@given(signature=st.sampled_from(SIGNATURES), rest=st.binary(max_size=200))
@example(signature=b"P5\n", rest=b"99999 99999 255\n")
@example(signature=b"GIF89a", rest=b"\xff\xff\xff\xff\0\0\0")
def test_random_bytes_only_ever_raise_unreadable(signature: bytes, rest: bytes) -> None:
    try:
        pixels = read_pixels(signature + rest, RGB, "x")
    except UnreadableImageError as error:
        assert str(error).startswith("x: ")
    else:
        assert pixels.shape == (3, 8, 8)


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(sorted(FILES)),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damaged_files_only_ever_raise_unreadable(kind: str, changes: list[tuple[int, int]]) -> None:
    content = bytearray(FILES[kind]())
    for position, value in changes:
        content[position % len(content)] = value
    try:
        pixels = read_pixels(bytes(content), RGB, "x")
    except UnreadableImageError as error:
        assert str(error).startswith("x: ")
    else:
        assert pixels.shape == (3, 8, 8)
