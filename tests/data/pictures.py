"""Pictures and their files, made for the tests of decoding."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

from circle.data.decode import ImageConfig

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
