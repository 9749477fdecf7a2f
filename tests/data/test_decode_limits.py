"""Every kind of rubbish comes out as one line, and no warning of Pillow is seen."""

from __future__ import annotations

import io
import os
import struct
import threading
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pictures import RGB, chunk, encode, picture, png
from PIL import Image, ImageFile

from circle.data import decode
from circle.data.decode import MAXIMUM_BYTES, MAXIMUM_PIXELS, open_image, read_pixels
from circle.errors import UnreadableImageError


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
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("Pillow was asked to decode it"))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        message = refused(content)
    assert "too large" in message and str(MAXIMUM_PIXELS) in message
    assert not seen


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

    muting = decode._PillowWarnings()
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
