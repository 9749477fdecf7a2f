"""One image in, one array of bytes out: every kind of picture becomes uint8 ``[channels, height, width]``.

A file from a stranger is the usual case, so the formats are an explicit list, sizes are checked before
decoding, and whatever goes wrong inside Pillow becomes one line that names the image.
"""

from __future__ import annotations

import contextlib
import io
import logging
import stat
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from circle.config import Config, option
from circle.errors import CircleError, UnreadableImageError, printable, reason

# Decoded by Pillow and the libraries in its wheel. Never EPS, PDF or WMF: these start other programs.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
# Pillow's own default, kept as ours: the user may have raised or removed the limit of Pillow.
MAXIMUM_PIXELS = 89_478_485
MAXIMUM_BYTES = 512 * 2**20
EXPECTED = "expected a JPEG, PNG, GIF, BMP, WebP, TIFF or PPM image"

# With no handler at all, Python itself would print Pillow's remarks about broken files.
logging.getLogger("PIL").addHandler(logging.NullHandler())

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class ImageConfig(Config):
    """The shape that every image is brought to.

    >>> ImageConfig(height=28, width=28, channels=1).aspect
    'crop'
    """

    name: ClassVar[str] = "image"

    height: int = option(32, "height of the images in pixels")
    width: int = option(32, "width of the images in pixels")
    channels: int = option(3, "1 for luminance, 3 for RGB; other counts only for arrays that have them")
    aspect: Literal["crop", "pad", "stretch"] = option("crop", "what to do with another aspect ratio")
    background: int = option(255, "grey level behind transparent pixels and around padded images")

    def check(self) -> None:
        self.require(1 <= self.height <= 4096, "height", "1 to 4096")
        self.require(1 <= self.width <= 4096, "width", "1 to 4096")
        self.require(1 <= self.channels <= 16, "channels", "1 to 16")
        self.require(0 <= self.background <= 255, "background", "a grey level, 0 to 255")


def image_format(start: bytes) -> str | None:
    r"""The format of a file by its first bytes (32 are enough), or None where they are of no format that is read.

    >>> image_format(b"\xff\xd8\xff\xe0 and so on"), image_format(b"dear diary")
    ('JPEG', None)
    """
    if start.startswith(b"RIFF"):
        return "WebP" if start[8:12] == b"WEBP" else None
    if start.startswith(b"BM"):  # two letters that a text may begin with: these are followed by a size and four zeros
        return "BMP" if len(start) > 14 and start[6:10] == bytes(4) else None
    if start[:1] == b"P" and start[1:2] in b"123456" and start[2:3].isspace():
        return "PPM" if start[3:4].isdigit() or start[3:4] == b"#" else None
    beginnings = {
        b"\xff\xd8\xff": "JPEG",
        b"\x89PNG\r\n\x1a\n": "PNG",
        b"GIF8": "GIF",
        b"II*\0": "TIFF",
        b"MM\0*": "TIFF",
    }
    return next((name for beginning, name in beginnings.items() if start.startswith(beginning)), None)


def open_image(content: bytes | Path, name: str) -> Image.Image:
    """Identify an image without decoding it yet; :func:`to_pixels` decodes.

    A path is read at once and closed, so that no file stays open however the image is used.

    Raises:
        UnreadableImageError: missing, forbidden, empty, too large, or no image of a known format.
    """
    if isinstance(content, Path):
        content = read_bytes(content, name)
    if not content:
        raise UnreadableImageError(f"{printable(name)}: empty; {EXPECTED}")
    with one_line_errors(name):
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        if image.width * image.height > MAXIMUM_PIXELS:
            raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels")
    return image


def read_pixels(content: bytes | Path, config: ImageConfig, name: str) -> np.ndarray:
    """:func:`open_image` and :func:`to_pixels` in one, and much faster for large JPEG photographs."""
    image = open_image(content, name)
    # A JPEG can be decoded at 1/2, 1/4 or 1/8 for far less work. Four times the target leaves antialiasing
    # to the resampling: on Caltech-101 at 32 x 32 the pixels then differ by 0.8 of 255, against 4.4 at just
    # the target. A square is right whichever way the camera was held. Not in `to_pixels`, because this
    # shrinks the image object itself, which there belongs to the caller.
    side = 4 * max(config.height, config.width)
    with one_line_errors(name):
        image.draft(None, (side, side))
    return to_pixels(image, config, name)


def to_pixels(image: Image.Image | np.ndarray, config: ImageConfig, name: str) -> np.ndarray:
    """Decode, turn upright, flatten onto the background and bring to the shape of ``config``.

    Arrays are ``[H, W]`` or ``[H, W, C]`` of uint8, bool, uint16 or float in [0, 1]; two and four channels
    are grey and RGB with alpha, unless ``config.channels`` asks for just that many. An image that has the
    right size already is not resampled.

    Returns:
        uint8 ``[channels, height, width]``, contiguous.

    Raises:
        UnreadableImageError: the image is broken, or holds values that are no colours.
        CircleError: an array of another shape, type or number of channels than asked for.
    """
    if isinstance(image, np.ndarray):
        pixels = _checked_shape(image, config, name)
        levels = _to_levels(pixels, name)
        if pixels.shape[2] == config.channels and config.channels not in (1, 3):
            bands = [Image.fromarray(np.ascontiguousarray(band)) for band in np.moveaxis(levels, 2, 0)]
            return np.stack([np.asarray(_fit(band, config)) for band in bands])
        image = Image.fromarray(np.ascontiguousarray(levels[:, :, 0] if levels.shape[2] == 1 else levels))
    elif config.channels not in (1, 3):
        raise CircleError(
            f"{printable(name)}: a picture has 1 or 3 channels, image.channels asks for {config.channels}; "
            "expected an array with that many"
        )
    with one_line_errors(name):
        flat = _fit(_flatten(_decode(image), config, name), config)
        pixels = np.asarray(flat, dtype=np.uint8)
        # A copy, because Pillow's own memory is read-only and torch warns about such arrays.
        return np.array(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0), order="C")


def _decode(image: Image.Image) -> Image.Image:
    """The first frame, all of it, upright."""
    if 0 in image.size:
        raise ValueError("no pixels")
    image.load()
    try:
        # Only after load: a PNG may hold its EXIF data behind the pixels.
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # Broken EXIF data is no reason to refuse a picture that every viewer shows.
        return image
    turn = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _flatten(image: Image.Image, config: ImageConfig, name: str) -> Image.Image:
    """Any mode of Pillow to ``L`` or ``RGB``, without alpha."""
    if image.mode == "F" or image.mode.startswith("I"):
        image = _deep_grey(image, config, name)
    elif image.has_transparency_data:
        if image.mode == "La":  # premultiplied grey; Pillow converts it to nothing but LA
            image = image.convert("LA")
        behind = Image.new("RGBA", image.size, (config.background,) * 3 + (255,))
        image = Image.alpha_composite(behind, image.convert("RGBA")).convert("RGB")
    elif image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    wanted = "L" if config.channels == 1 else "RGB"
    return image if image.mode == wanted else image.convert(wanted)


def _deep_grey(image: Image.Image, config: ImageConfig, name: str) -> Image.Image:
    """16-bit, 32-bit and float grey to 8 bits; Pillow's own conversion would clip at 255 instead of scale."""
    values = np.asarray(image)
    if image.mode == "F":
        # No file says which: Pillow's own float images are 0 to 255, most other programs write 0 to 1.
        top = 1.0 if values.max() <= 1 else 255.0
        levels = _to_levels(_within(values, 0, top, name) / top, name)
    else:
        levels = _to_levels(_within(values, 0, 65535, name).astype(np.uint16), name)
    key = image.info.get("transparency")
    if isinstance(key, int):
        levels = np.where(values == key, np.uint8(config.background), levels)
    return Image.fromarray(levels)


def _checked_shape(array: np.ndarray, config: ImageConfig, name: str) -> np.ndarray:
    """A view ``[H, W, C]`` of an array that may be used, or the error that says why it may not."""
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise CircleError(
            f"{printable(name)}: array of shape {list(array.shape)}; expected [height, width] or "
            "[height, width, channels]"
        )
    pixels = array[:, :, None] if array.ndim == 2 else array
    found = pixels.shape[2]
    if found != config.channels and (config.channels not in (1, 3) or found > 4):
        raise CircleError(
            f"{printable(name)}: array of shape {list(array.shape)} has {found} channels in its last axis, "
            f"image.channels asks for {config.channels}"
        )
    return pixels


def _to_levels(values: np.ndarray, name: str) -> np.ndarray:
    """Grey levels 0 to 255 of the same shape."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if values.dtype.kind == "f":
        return np.rint(_within(values, 0, 1, name).astype(np.float64) * 255).astype(np.uint8)
    raise CircleError(
        f"{printable(name)}: array of type {values.dtype}; expected uint8, bool, uint16 or float in [0, 1]"
    )


def _within(values: np.ndarray, low: float, high: float, name: str) -> np.ndarray:
    inside = (values >= low) & (values <= high)  # false for NaN as well
    if not inside.all():
        raise UnreadableImageError(
            f"{printable(name)}: holds the value {values[~inside][0]}; expected {low} to {high:g}"
        )
    return values


def _fit(image: Image.Image, config: ImageConfig) -> Image.Image:
    """Bring an ``L`` or ``RGB`` image to the size of ``config``; untouched if it has it."""
    width, height = image.size
    size = config.width, config.height
    if image.size == size:
        return image
    if config.aspect == "stretch":
        return image.resize(size, Image.Resampling.BILINEAR)
    # Whole numbers, because a rounded ratio could leave a line of background or resample a mere crop.
    wider = width * config.height >= height * config.width
    if config.aspect == "pad":
        inner = (
            (config.width, max(1, round(height * config.width / width)))
            if wider
            else (max(1, round(width * config.height / height)), config.height)
        )
        canvas = Image.new(image.mode, size, (config.background,) * len(image.getbands()))
        offset = (config.width - inner[0]) // 2, (config.height - inner[1]) // 2
        canvas.paste(image if image.size == inner else image.resize(inner, Image.Resampling.BILINEAR), offset)
        return canvas
    # Crop and scale in one go: scaling first would make a narrow strip millions of pixels long.
    across = height * config.width / config.height if wider else width
    down = height if wider else width * config.height / config.width
    left, top = (width - across) / 2, (height - down) / 2
    if (across, down) == size:  # the scale is one, so stay on the grid of pixels
        return image.crop((int(left), int(top), int(left) + config.width, int(top) + config.height))
    box = left, top, min(left + across, width), min(top + down, height)
    return image.resize(size, Image.Resampling.BILINEAR, box=box)


# --- limits and one-line errors ---


def read_bytes(path: Path, name: str) -> bytes:
    """The content of one regular file, or an :class:`UnreadableImageError` that says why not."""
    content = b""
    try:
        status = path.stat()
        regular = stat.S_ISREG(status.st_mode)  # a pipe or a device might never end
        if regular and status.st_size <= MAXIMUM_BYTES:
            content = path.read_bytes()
    except (OSError, ValueError, MemoryError) as error:
        raise UnreadableImageError(f"{printable(name)}: {reason(error)}; expected an image file") from error
    if not regular:
        raise UnreadableImageError(f"{printable(name)}: not a regular file; {EXPECTED}")
    if status.st_size > MAXIMUM_BYTES:
        raise UnreadableImageError(
            f"{printable(name)}: {status.st_size} bytes; expected at most {MAXIMUM_BYTES >> 20} MiB"
        )
    return content


@contextlib.contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """Whatever Pillow's plugins raise (they raise all sorts) becomes one line with the image's name."""
    try:
        with _PILLOW_WARNINGS.muted():
            yield
    except CircleError:
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImageError(f"{printable(name)}: not a readable image; {EXPECTED}") from error
    except Image.DecompressionBombError as error:
        found = reason(error).partition(" exceeds")[0]  # the rest of Pillow's text names its limit, not ours
        raise UnreadableImageError(
            f"{printable(name)}: too large, {found}; expected at most {MAXIMUM_PIXELS} pixels"
        ) from error
    except Exception as error:
        raise UnreadableImageError(
            f"{printable(name)}: cannot be decoded ({reason(error)}); expected a whole image"
        ) from error


class _PillowWarnings:
    """Mutes what Pillow would print about odd files, while at least one thread decodes.

    ``warnings.catch_warnings`` swaps a list that all threads share, so overlapping uses would restore each
    other's filters. Here the first to enter swaps and the last to leave restores.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._filters = contextlib.ExitStack()

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._filters.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", module=r"PIL\.")
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._filters.close()


_PILLOW_WARNINGS = _PillowWarnings()
