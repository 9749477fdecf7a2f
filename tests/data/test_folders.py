"""Folders: links, pipes, files that are forbidden, gone or changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from places_of_images import CONFIG, image_bytes, make_folder, message_of, pairs

from circle.data.user_images import open_images
from circle.errors import UnreadableImageError


def test_empty_and_missing(tmp_path: Path) -> None:
    assert message_of(lambda: open_images(tmp_path)).startswith(f"{tmp_path}: no images in it")
    missing = tmp_path / "nowhere"
    assert message_of(lambda: open_images(missing)).startswith(f"{missing}: No such file or directory; expected")
    assert message_of(lambda: open_images("nul\0byte")).startswith(r"'nul\x00byte': ")


@pytest.mark.parametrize("name", ["data.tar", "data.png", "data"])
def test_other_kinds_of_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(image_bytes())
    assert message_of(lambda: open_images(path)).startswith(f"{path}: neither folder, .zip nor .npz; expected")


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {"cat/1.png": image_bytes(1), "cat/in/2.png": image_bytes(2)})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "3.png").write_bytes(image_bytes(3))
    (path / "dog").symlink_to(elsewhere)
    (path / "ape").symlink_to(path / "cat")
    (path / "cat" / "self").symlink_to(path / "cat")
    (path / "cat" / "in" / "up").symlink_to(path)
    (path / "cat" / "itself").symlink_to(path / "cat" / "itself")
    assert pairs(open_images(path)) == [
        ("ape", "ape/1.png"),
        ("ape", "ape/in/2.png"),
        ("cat", "cat/1.png"),
        ("cat", "cat/in/2.png"),
        ("dog", "dog/3.png"),
    ]


def test_a_mesh_of_links_ends_soon(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {f"{index}/x.png": image_bytes() for index in range(12)})
    for here in range(12):
        for there in range(12):
            (path / str(here) / f"to{there}").symlink_to(path / str(there))
    assert len(open_images(path)) == 12 * 12


def test_dangling_link_is_reported_not_dropped(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {"cat/1.png": image_bytes()})
    (path / "cat" / "2.png").symlink_to(tmp_path / "gone.png")
    (path / "cat" / "gone").symlink_to(tmp_path / "gone")
    source = open_images(path)
    assert len(source) == 2
    _, broken = source
    for use in (lambda: broken.pixels(CONFIG), broken.digest):
        assert message_of(use, UnreadableImageError).startswith(f"{path}/cat/2.png: No such file or directory")


def test_pipes_are_left_alone(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {"cat/1.png": image_bytes()})
    os.mkfifo(path / "cat" / "2.png")
    assert pairs(open_images(path)) == [("cat", "cat/1.png")]


def test_forbidden_file_fails_when_loaded_not_when_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_folder(tmp_path, {"cat/1.png": image_bytes(1), "cat/2.png": image_bytes(2)})
    source = open_images(path)
    read = Path.read_bytes

    def forbid(file: Path) -> bytes:
        if file.name == "1.png":
            raise PermissionError(13, "Permission denied", str(file))
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", forbid)
    forbidden, allowed = source
    assert (allowed.pixels(CONFIG) == 2).all()
    message = message_of(lambda: forbidden.pixels(CONFIG), UnreadableImageError)
    assert message.startswith(f"{path}/cat/1.png: Permission denied")


def test_forbidden_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_folder(tmp_path, {"cat/1.png": image_bytes(), "dog/1.png": image_bytes()})
    scan = os.scandir

    def forbid(folder: Path) -> object:
        if folder.name == "dog":
            raise PermissionError(13, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", forbid)
    assert message_of(lambda: open_images(path)).startswith(f"{path}/dog: Permission denied; expected")


def test_files_that_change_meanwhile(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {"cat/1.png": image_bytes(1), "cat/2.png": image_bytes(2)})
    source = open_images(path)
    (path / "cat" / "1.png").unlink()
    gone, here = source
    assert (here.pixels(CONFIG) == 2).all()
    assert "No such file" in message_of(lambda: gone.pixels(CONFIG), UnreadableImageError)


def test_folder_is_read_one_image_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_folder(tmp_path, {f"cat/{index}.png": image_bytes() for index in range(5)})
    read: list[str] = []
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda file: (read.append(file.name), original(file))[1])
    samples = iter(open_images(path))
    assert read == []
    next(samples)
    next(samples)
    assert read == ["0.png", "1.png"]
