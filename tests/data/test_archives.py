"""Zip archives: what is encrypted, damaged, oversized, replaced, or no archive at all."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest
from places_of_images import CONFIG, image_bytes, make_zip, message_of, pairs

from circle.data.user_images import open_images
from circle.errors import UnreadableImageError


def patch_directory(path: Path, name: str, offset: int, layout: str, value: int) -> None:
    """Change one field of a member's entry in the central directory."""
    content = bytearray(path.read_bytes())
    start = content.rindex(b"PK\x01\x02", 0, content.rindex(name.encode()))
    struct.pack_into(layout, content, start + offset, value)
    path.write_bytes(content)


def test_encrypted_member(tmp_path: Path) -> None:
    path = make_zip(tmp_path, {"cat/1.png": image_bytes(1), "cat/2.png": image_bytes(2)})
    patch_directory(path, "cat/2.png", 8, "<H", 1)
    whole, encrypted = open_images(path)
    assert (whole.pixels(CONFIG) == 1).all()
    message = message_of(lambda: encrypted.pixels(CONFIG), UnreadableImageError)
    assert message.startswith(f"{path}/cat/2.png: encrypted; expected")


def test_oversized_member_is_not_even_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_zip(tmp_path, {"cat/1.png": image_bytes(1), "cat/2.png": image_bytes(2)})
    patch_directory(path, "cat/1.png", 24, "<I", 512 * 2**20 + 1)
    opened: list[str] = []
    read = zipfile.ZipFile.read
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda self, info: (opened.append(info.filename), read(self, info))[1])
    oversized, whole = open_images(path)
    assert (whole.pixels(CONFIG) == 2).all() and opened == ["cat/2.png"]
    message = message_of(lambda: oversized.pixels(CONFIG), UnreadableImageError)
    assert message.startswith(f"{path}/cat/1.png: {512 * 2**20 + 1} bytes; expected at most 512 MiB")


def test_member_larger_than_it_declares(tmp_path: Path) -> None:
    path = make_zip(tmp_path, {"cat/1.bmp": bytes(100_000)})
    patch_directory(path, "cat/1.bmp", 24, "<I", 10)
    (sample,) = open_images(path)
    assert "damaged" in message_of(sample.digest, UnreadableImageError)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_member(tmp_path: Path, compression: int) -> None:
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("cat/1.ppm", b"P5 40 40 255\n" + bytes(range(200)) * 8)
        archive.writestr("cat/2.png", image_bytes(2))
    content = bytearray(path.read_bytes())
    for index in range(60, 120):
        content[index] ^= 0xFF
    path.write_bytes(content)
    damaged, whole = open_images(path)
    assert (whole.pixels(CONFIG) == 2).all()
    message = message_of(lambda: damaged.pixels(CONFIG), UnreadableImageError)
    assert message.startswith(f"{path}/cat/1.ppm: damaged (")


def test_unknown_compression(tmp_path: Path) -> None:
    path = make_zip(tmp_path, {"cat/1.png": image_bytes()})
    patch_directory(path, "cat/1.png", 10, "<H", 77)
    (sample,) = open_images(path)
    assert "damaged" in message_of(sample.digest, UnreadableImageError)


def test_windows_names_and_folder_entries(tmp_path: Path) -> None:
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir("cat/not a file.png")
        archive.writestr("./cat\\1.png", image_bytes(1))
        archive.writestr("../../etc/evil.png", image_bytes(9))
        archive.writestr("/dog/2.png", image_bytes(2))
    source = open_images(path)
    assert pairs(source) == [("cat", "cat/1.png"), ("dog", "dog/2.png")]
    assert [int(sample.pixels(CONFIG)[0, 0, 0]) for sample in source] == [1, 2]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_equal_names_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/1.png", image_bytes(1))
        archive.writestr("cat/1.png", image_bytes(2))
    (sample,) = open_images(path)
    assert (sample.pixels(CONFIG) == 2).all()


def test_not_a_zip(tmp_path: Path) -> None:
    path = tmp_path / "data.ZIP"
    path.write_bytes(b"Rar!" * 100)
    assert message_of(lambda: open_images(path)).startswith(f"{path}: cannot be read (File is not a zip file)")
    path.write_bytes(b"")
    assert "expected a zip archive" in message_of(lambda: open_images(path))


def test_truncated_zip(tmp_path: Path) -> None:
    path = make_zip(tmp_path, {"cat/1.png": image_bytes(), "dog/1.png": image_bytes()})
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        assert "expected a zip archive" in message_of(lambda: open_images(path))


def test_zip_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    path = make_zip(tmp_path, {"cat/1.png": image_bytes(1), "cat/2.png": image_bytes(2)})
    source = open_images(path)
    make_zip(tmp_path, {"cat/2.png": image_bytes(2)})
    gone, here = source
    assert (here.pixels(CONFIG) == 2).all()
    assert "no longer in the archive" in message_of(lambda: gone.pixels(CONFIG), UnreadableImageError)
    path.unlink()
    assert message_of(lambda: list(source)).startswith(f"{path}: cannot be read (No such file or directory)")
