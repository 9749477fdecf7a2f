"""Folders, zip archives and npz files: the same samples every time, and one line for what is wrong."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from circle.errors import CircleError, UnreadableImageError
from circle.streams import arrays
from circle.streams.decode import ImageConfig
from circle.streams.sources import Sample, Source, open_source, open_unlabelled

CONFIG = ImageConfig(height=4, width=4, channels=1)


def image_bytes(level: int = 0, file_format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (4, 4), level).save(buffer, file_format)
    return buffer.getvalue()


Maker = Callable[[Path, dict[str, bytes]], Path]


def make_folder(root: Path, files: dict[str, bytes]) -> Path:
    path = root / "data"
    path.mkdir()
    for name, content in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return path


def make_zip(root: Path, files: dict[str, bytes]) -> Path:
    path = root / "data.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


both = pytest.mark.parametrize("make", [make_folder, make_zip])


def pairs(source: Source) -> list[tuple[str, str]]:
    """(label, name below the source) of every sample."""
    return [(str(sample.label), Path(sample.name).relative_to(source.path).as_posix()) for sample in source]


def message_of(action: Callable[[], object], kind: type[CircleError] = CircleError) -> str:
    with pytest.raises(kind) as caught:
        action()
    message = str(caught.value)
    assert type(caught.value) is kind and "\n" not in message
    return message


# --- samples ------------------------------------------------------------------------------------------------


def test_sample_decodes_bytes_and_arrays() -> None:
    assert (Sample("a", "cat", image_bytes(7)).pixels(CONFIG) == 7).all()
    assert (Sample("a", 3, np.full((9, 9, 3), 7, np.uint8)).pixels(CONFIG) == 7).all()
    with pytest.raises(UnreadableImageError, match=r"^a: not a readable image"):
        Sample("a", "cat", b"rubbish").pixels(CONFIG)


def test_digest_tells_apart_what_differs_and_nothing_else() -> None:
    row = np.arange(12, dtype=np.uint8)
    samples = [
        Sample("a", "1", b"x"),
        Sample("a", 1, b"x"),
        Sample("a", None, b"x"),
        Sample("a", "1", b"y"),
        Sample("a", "1", row),
        Sample("a", "1", row.tobytes()),
        Sample("a", "1", row.reshape(3, 4)),
        Sample("a", "1", row.reshape(4, 3)),
        Sample("a", "1", row.reshape(3, 4).view(bool)),
        Sample("a", "1", row.view(np.uint16)),
        Sample("a", "1", row[::-1]),
    ]
    digests = [sample.digest() for sample in samples]
    assert len(set(digests)) == len(samples)
    assert {len(digest) for digest in digests} == {16}
    assert Sample("other name", "1", b"x").digest() == digests[0]
    strided = np.repeat(row, 2)[::2].reshape(3, 4)
    assert Sample("b", "1", strided).digest() == Sample("c", "1", row.reshape(3, 4)).digest()
    # Written down, because models remember digests: a change here makes them forget what they have seen.
    assert digests[0].hex() == "b7681d5fdb6b1e0cecdb652594b403dd"


# --- folders and zip archives alike -------------------------------------------------------------------------


@both
def test_classes_are_folders_and_order_is_fixed(tmp_path: Path, make: Maker) -> None:
    names = [
        "dog/b.png",
        "cat/z/deep/1.PNG",
        "cat/10.jpeg",
        "cat/2.Jpg",
        "dog/a.png",
        "cat-2/x.webp",
        "Ape/x.tif",
    ]
    source = open_source(make(tmp_path, {name: image_bytes() for name in names}))
    assert pairs(source) == [
        ("Ape", "Ape/x.tif"),
        ("cat", "cat/10.jpeg"),
        ("cat", "cat/2.Jpg"),
        ("cat", "cat/z/deep/1.PNG"),
        ("cat-2", "cat-2/x.webp"),
        ("dog", "dog/a.png"),
        ("dog", "dog/b.png"),
    ]
    assert pairs(source) == pairs(source)
    assert source.labels == ["Ape", "cat", "cat-2", "dog"] == sorted(source.labels)
    assert source.counts == {"Ape": 1, "cat": 3, "cat-2": 1, "dog": 2}
    assert len(source) == 7
    assert source.kind == ("zip" if make is make_zip else "folder")


def make_npz(root: Path, files: dict[str, bytes]) -> Path:
    labels = [name.split("/")[0] for name in files]
    np.savez(root / "data.npz", x=np.arange(len(files) * 16, dtype=np.uint8).reshape(-1, 4, 4), y=labels)
    return root / "data.npz"


@pytest.mark.parametrize("make", [make_folder, make_zip, make_npz])
def test_shares_make_up_the_whole_and_listings_tell_sources_apart(tmp_path: Path, make: Maker) -> None:
    files = {f"class{level % 3}/{level}.png": image_bytes(level) for level in range(7)}
    source = open_source(make(tmp_path, files))
    whole = [(sample.name, sample.label, sample.digest()) for sample in source]
    shares = [[(each.name, each.label, each.digest()) for each in source.share(number, 3)] for number in range(3)]
    assert [len(share) for share in shares] == [3, 2, 2]
    assert [shares[position % 3][position // 3] for position in range(7)] == whole
    assert list(source.share(8, 9)) == []
    assert open_source(source.path).listing() == source.listing()
    (tmp_path / "other").mkdir()
    other = open_source(make(tmp_path / "other", {**files, "class1/8.png": image_bytes()}))
    assert other.listing() != source.listing()


@both
def test_contents_belong_to_their_names(tmp_path: Path, make: Maker) -> None:
    files = {f"class{level % 3}/{level}.png": image_bytes(level) for level in range(20)}
    for sample in open_source(make(tmp_path, files)):
        level = int(Path(sample.name).stem)
        assert sample.label == f"class{level % 3}"
        assert (sample.pixels(CONFIG) == level).all()


@both
def test_hidden_and_other_files_are_ignored(tmp_path: Path, make: Maker) -> None:
    ignored = [
        "cat/.hidden.png",
        ".git/x.png",
        "cat/.thumbs/1.png",
        "cat/notes.txt",
        "cat/png",
        "dog/readme.md",
    ]
    if make is make_zip:
        ignored += ["__MACOSX/cat/._1.png", "__MACOSX/cat/1.png"]
    files = {name: image_bytes() for name in ["cat/1.png", "loose.png", *ignored]}
    assert pairs(open_source(make(tmp_path, files))) == [("cat", "cat/1.png")]


@both
def test_wrapping_folders_are_stepped_into(tmp_path: Path, make: Maker) -> None:
    names = ["wrap/once/cat/1.png", "wrap/once/dog/2.png", "preview.png"]
    source = open_source(make(tmp_path, {name: image_bytes() for name in names}))
    assert pairs(source) == [("cat", "wrap/once/cat/1.png"), ("dog", "wrap/once/dog/2.png")]


@both
def test_one_class_with_images_of_its_own_is_no_wrapping(tmp_path: Path, make: Maker) -> None:
    source = open_source(make(tmp_path, {"cat/1.png": image_bytes(), "cat/more/2.png": image_bytes()}))
    assert pairs(source) == [("cat", "cat/1.png"), ("cat", "cat/more/2.png")]


@both
@pytest.mark.parametrize("wrap", ["", "wrapped/"])
@pytest.mark.parametrize("splits", [("train", "test"), ("Train", "VAL"), ("valid", "validation")])
def test_splits_are_refused(tmp_path: Path, make: Maker, splits: tuple[str, str], wrap: str) -> None:
    path = make(tmp_path, {f"{wrap}{split}/{label}/1.png": image_bytes() for split in splits for label in "ab"})
    message = message_of(lambda: open_source(path))
    proposal = splits[0]
    assert "holds splits" in message and message.endswith(f"give {path / wrap / proposal}")


@both
def test_unlabelled_test_images_beside_training_classes_are_splits_too(tmp_path: Path, make: Maker) -> None:
    path = make(tmp_path, {"train/cat/1.png": image_bytes(), "test/1.png": image_bytes()})
    assert "holds splits (test, train)" in message_of(lambda: open_source(path))


@both
def test_a_train_may_be_a_class(tmp_path: Path, make: Maker) -> None:
    names = ["train/steam/1.png", "car/1.png"]
    assert open_source(make(tmp_path, {name: image_bytes() for name in names})).labels == ["car", "train"]


@both
def test_splits_without_classes_in_them_are_classes(tmp_path: Path, make: Maker) -> None:
    names = ["train/1.png", "test/1.png", "other/deep/1.png"]
    assert open_source(make(tmp_path, {name: image_bytes() for name in names})).labels == ["other", "test", "train"]


@both
def test_a_lone_split_is_stepped_into(tmp_path: Path, make: Maker) -> None:
    names = ["train/cat/1.png", "train/dog/1.png"]
    assert open_source(make(tmp_path, {name: image_bytes() for name in names})).labels == ["cat", "dog"]


@both
def test_nothing_usable(tmp_path: Path, make: Maker) -> None:
    path = make(tmp_path, {"cat/notes.txt": b"", ".hidden/1.png": image_bytes()})
    assert message_of(lambda: open_source(path)).startswith(f"{path}: no images in it; expected one folder")


@both
def test_images_without_class_folders(tmp_path: Path, make: Maker) -> None:
    path = make(tmp_path, {"1.png": image_bytes(), "2.png": image_bytes()})
    assert message_of(lambda: open_source(path)).startswith(f"{path}: images, but no class folders; expected")


@both
def test_a_broken_image_does_not_end_the_stream(tmp_path: Path, make: Maker) -> None:
    path = make(tmp_path, {"cat/1.png": image_bytes(1), "cat/2.png": b"", "cat/3.png": image_bytes(3)})
    samples = list(open_source(path))
    assert [int(samples[index].pixels(CONFIG)[0, 0, 0]) for index in (0, 2)] == [1, 3]
    assert message_of(lambda: samples[1].pixels(CONFIG), UnreadableImageError).startswith(f"{path}/cat/2.png: empty")


@both
def test_names_in_any_script(tmp_path: Path, make: Maker) -> None:
    source = open_source(make(tmp_path, {"猫/écran 1.png": image_bytes(5), "собака/1.png": image_bytes(6)}))
    assert source.labels == ["собака", "猫"]
    assert [int(sample.pixels(CONFIG)[0, 0, 0]) for sample in source] == [6, 5]


# --- folders ------------------------------------------------------------------------------------------------


def test_empty_and_missing(tmp_path: Path) -> None:
    assert message_of(lambda: open_source(tmp_path)).startswith(f"{tmp_path}: no images in it")
    missing = tmp_path / "nowhere"
    assert message_of(lambda: open_source(missing)).startswith(f"{missing}: No such file or directory; expected")
    assert message_of(lambda: open_source("nul\0byte")).startswith(r"'nul\x00byte': ")


@pytest.mark.parametrize("name", ["data.tar", "data.png", "data"])
def test_other_kinds_of_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(image_bytes())
    assert message_of(lambda: open_source(path)).startswith(f"{path}: neither folder, .zip nor .npz; expected")


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
    assert pairs(open_source(path)) == [
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
    assert len(open_source(path)) == 12 * 12


def test_dangling_link_is_reported_not_dropped(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {"cat/1.png": image_bytes()})
    (path / "cat" / "2.png").symlink_to(tmp_path / "gone.png")
    (path / "cat" / "gone").symlink_to(tmp_path / "gone")
    source = open_source(path)
    assert len(source) == 2
    _, broken = source
    for use in (lambda: broken.pixels(CONFIG), broken.digest):
        assert message_of(use, UnreadableImageError).startswith(f"{path}/cat/2.png: No such file or directory")


def test_pipes_are_left_alone(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {"cat/1.png": image_bytes()})
    os.mkfifo(path / "cat" / "2.png")
    assert pairs(open_source(path)) == [("cat", "cat/1.png")]


def test_forbidden_file_fails_when_loaded_not_when_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_folder(tmp_path, {"cat/1.png": image_bytes(1), "cat/2.png": image_bytes(2)})
    source = open_source(path)
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
    assert message_of(lambda: open_source(path)).startswith(f"{path}/dog: Permission denied; expected")


def test_files_that_change_meanwhile(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {"cat/1.png": image_bytes(1), "cat/2.png": image_bytes(2)})
    source = open_source(path)
    (path / "cat" / "1.png").unlink()
    gone, here = source
    assert (here.pixels(CONFIG) == 2).all()
    assert "No such file" in message_of(lambda: gone.pixels(CONFIG), UnreadableImageError)


def test_folder_is_read_one_image_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_folder(tmp_path, {f"cat/{index}.png": image_bytes() for index in range(5)})
    read: list[str] = []
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda file: (read.append(file.name), original(file))[1])
    samples = iter(open_source(path))
    assert read == []
    next(samples)
    next(samples)
    assert read == ["0.png", "1.png"]


# --- zip archives -------------------------------------------------------------------------------------------


def patch_directory(path: Path, name: str, offset: int, layout: str, value: int) -> None:
    """Change one field of a member's entry in the central directory."""
    content = bytearray(path.read_bytes())
    start = content.rindex(b"PK\x01\x02", 0, content.rindex(name.encode()))
    struct.pack_into(layout, content, start + offset, value)
    path.write_bytes(content)


def test_encrypted_member(tmp_path: Path) -> None:
    path = make_zip(tmp_path, {"cat/1.png": image_bytes(1), "cat/2.png": image_bytes(2)})
    patch_directory(path, "cat/2.png", 8, "<H", 1)
    whole, encrypted = open_source(path)
    assert (whole.pixels(CONFIG) == 1).all()
    message = message_of(lambda: encrypted.pixels(CONFIG), UnreadableImageError)
    assert message.startswith(f"{path}/cat/2.png: encrypted; expected")


def test_oversized_member_is_not_even_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_zip(tmp_path, {"cat/1.png": image_bytes(1), "cat/2.png": image_bytes(2)})
    patch_directory(path, "cat/1.png", 24, "<I", 512 * 2**20 + 1)
    opened: list[str] = []
    read = zipfile.ZipFile.read
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda self, info: (opened.append(info.filename), read(self, info))[1])
    oversized, whole = open_source(path)
    assert (whole.pixels(CONFIG) == 2).all() and opened == ["cat/2.png"]
    message = message_of(lambda: oversized.pixels(CONFIG), UnreadableImageError)
    assert message.startswith(f"{path}/cat/1.png: {512 * 2**20 + 1} bytes; expected at most 512 MiB")


def test_member_larger_than_it_declares(tmp_path: Path) -> None:
    path = make_zip(tmp_path, {"cat/1.bmp": bytes(100_000)})
    patch_directory(path, "cat/1.bmp", 24, "<I", 10)
    (sample,) = open_source(path)
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
    damaged, whole = open_source(path)
    assert (whole.pixels(CONFIG) == 2).all()
    message = message_of(lambda: damaged.pixels(CONFIG), UnreadableImageError)
    assert message.startswith(f"{path}/cat/1.ppm: damaged (")


def test_unknown_compression(tmp_path: Path) -> None:
    path = make_zip(tmp_path, {"cat/1.png": image_bytes()})
    patch_directory(path, "cat/1.png", 10, "<H", 77)
    (sample,) = open_source(path)
    assert "damaged" in message_of(sample.digest, UnreadableImageError)


def test_windows_names_and_folder_entries(tmp_path: Path) -> None:
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.mkdir("cat/not a file.png")
        archive.writestr("./cat\\1.png", image_bytes(1))
        archive.writestr("../../etc/evil.png", image_bytes(9))
        archive.writestr("/dog/2.png", image_bytes(2))
    source = open_source(path)
    assert pairs(source) == [("cat", "cat/1.png"), ("dog", "dog/2.png")]
    assert [int(sample.pixels(CONFIG)[0, 0, 0]) for sample in source] == [1, 2]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_equal_names_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/1.png", image_bytes(1))
        archive.writestr("cat/1.png", image_bytes(2))
    (sample,) = open_source(path)
    assert (sample.pixels(CONFIG) == 2).all()


def test_not_a_zip(tmp_path: Path) -> None:
    path = tmp_path / "data.ZIP"
    path.write_bytes(b"Rar!" * 100)
    assert message_of(lambda: open_source(path)).startswith(f"{path}: cannot be read (File is not a zip file)")
    path.write_bytes(b"")
    assert "expected a zip archive" in message_of(lambda: open_source(path))


def test_truncated_zip(tmp_path: Path) -> None:
    path = make_zip(tmp_path, {"cat/1.png": image_bytes(), "dog/1.png": image_bytes()})
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        assert "expected a zip archive" in message_of(lambda: open_source(path))


def test_zip_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    path = make_zip(tmp_path, {"cat/1.png": image_bytes(1), "cat/2.png": image_bytes(2)})
    source = open_source(path)
    make_zip(tmp_path, {"cat/2.png": image_bytes(2)})
    gone, here = source
    assert (here.pixels(CONFIG) == 2).all()
    assert "no longer in the archive" in message_of(lambda: gone.pixels(CONFIG), UnreadableImageError)
    path.unlink()
    assert message_of(lambda: list(source)).startswith(f"{path}: cannot be read (No such file or directory)")


# --- npz files ----------------------------------------------------------------------------------------------


def save(path: Path, compress: bool = False, **content: object) -> Path:
    values = {name: np.asarray(value) for name, value in content.items()}
    (np.savez_compressed if compress else np.savez)(path, **values)
    return path


IMAGES = np.random.default_rng(1).integers(0, 256, (6, 4, 4), dtype=np.uint8)


@pytest.mark.parametrize("compress", [False, True])
def test_npz_keeps_the_order_of_the_file(tmp_path: Path, compress: bool) -> None:
    path = save(tmp_path / "data.npz", compress, x=IMAGES, y=[2, 0, 2, -1, 0, 2])
    source = open_source(path)
    samples = list(source)
    assert source.kind == "npz" and len(source) == 6
    assert [sample.label for sample in samples] == [2, 0, 2, -1, 0, 2]
    assert {type(label) for label in source.labels} == {int}
    assert source.labels == [-1, 0, 2] and source.counts == {-1: 1, 0: 2, 2: 3}
    assert all(np.array_equal(sample.content, row) for sample, row in zip(samples, IMAGES, strict=True))
    assert samples[3].name == f"{path}[3]"
    assert np.array_equal(samples[3].pixels(CONFIG), IMAGES[3:4])


@pytest.mark.parametrize("images", ["x", "X", "images", "data", "x_train"])
@pytest.mark.parametrize("labels", ["y", "labels", "targets", "target", "y_train"])
def test_npz_names_of_arrays(tmp_path: Path, images: str, labels: str) -> None:
    path = save(tmp_path / "data.npz", **{images: IMAGES, labels: range(6), "other": [1]})
    assert len(open_source(path)) == 6


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["b", "a", "b", "ü", "a", ""], ["b", "a", "b", "ü", "a", ""]),
        (np.array([b"b", b"a", b"b", "ü".encode(), b"a", b"c"]), ["b", "a", "b", "ü", "a", "c"]),
        (np.array([1.0, 0.0, 2.0, 3.0, 0.0, 1.0]), [1, 0, 2, 3, 0, 1]),
        (np.array([True, False, True, True, False, True]), [1, 0, 1, 1, 0, 1]),
        (np.arange(6, dtype=">i2"), [0, 1, 2, 3, 4, 5]),
        (np.arange(6, dtype=np.uint64) + 2**63, [2**63 + index for index in range(6)]),
        (np.arange(6).reshape(6, 1), [0, 1, 2, 3, 4, 5]),
    ],
)
def test_npz_labels_become_int_or_str(tmp_path: Path, labels: np.ndarray, expected: list[str | int]) -> None:
    found = [sample.label for sample in open_source(save(tmp_path / "data.npz", x=IMAGES, y=labels))]
    assert found == expected
    assert {type(label) for label in found} == {type(expected[0])}


def test_npz_class_names(tmp_path: Path) -> None:
    names = ["cat", "dog", "cat", "unused"]
    source = open_source(save(tmp_path / "data.npz", x=IMAGES, y=[0, 1, 2, 0, 1, 2], class_names=names))
    assert [sample.label for sample in source] == ["cat", "dog", "cat", "cat", "dog", "cat"]
    assert source.labels == ["cat", "dog"] and source.counts == {"cat": 4, "dog": 2}


@pytest.mark.parametrize("kind", [np.uint8, bool, np.uint16, ">u2", np.float16, np.float32, np.float64])
def test_npz_types_of_images(tmp_path: Path, kind: type) -> None:
    images = np.ones((2, 4, 4, 3), kind)
    (first, _) = open_source(save(tmp_path / "data.npz", x=images, y=[0, 1]))
    assert isinstance(first.content, np.ndarray) and first.content.dtype == np.dtype(kind)
    assert np.array_equal(first.content, images[0])


def test_npz_is_read_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (10, 4, 4), dtype=np.uint8)
    source = open_source(save(tmp_path / "data.npz", x=images, y=range(10)))
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 3 * 16 + 5)  # three rows and a bit
    sizes: list[int] = []
    read = zipfile.ZipExtFile.read
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda file, size=-1: (sizes.append(size), read(file, size))[1])
    rows = []
    for sample in source:
        rows.append(sample.content)
        assert sum(size == 48 for size in sizes) == min(3, (len(rows) + 2) // 3)
    assert sizes[-1] == 16 and max(sizes) < 200
    assert np.array_equal(rows, images)


def test_npz_needs_little_memory(tmp_path: Path) -> None:
    images = np.zeros((300, 256, 512), np.uint8)  # 39 MB
    path = save(tmp_path / "data.npz", compress=True, x=images, y=np.zeros(300, int))
    size = images.nbytes
    del images
    tracemalloc.start()
    try:
        count = sum(1 for _ in open_source(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 300
    assert peak < 2.5 * arrays.CHUNK_BYTES < size / 3


def test_npz_rows_larger_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 1)
    samples = list(open_source(save(tmp_path / "data.npz", x=IMAGES, y=range(6))))
    assert np.array_equal([sample.content for sample in samples], IMAGES)


class Detonator:
    """Writes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["x", "y", "class_names"])
def test_npz_objects_are_never_unpickled(tmp_path: Path, name: str) -> None:
    evidence = tmp_path / "unpickled"
    objects = np.empty(6, object)
    objects[:] = [Detonator(evidence)] * 6
    content = {"x": IMAGES, "y": np.arange(6), "class_names": np.array(list("abcdef")), name: objects}
    path = save(tmp_path / "data.npz", **content)
    message = message_of(lambda: list(open_source(path)))
    assert message.startswith(f"{path}: {name}.npy holds Python objects, which would need unpickling")
    assert not evidence.exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"x": IMAGES}, "holds x; expected labels as one of y, labels, targets, target, y_train"),
        ({"y": [1], "z": [2]}, "holds y, z; expected images as one of x, X, images, data, x_train"),
        ({"x": IMAGES, "y": range(5)}, "6 images, but labels of shape [5]; expected one each"),
        ({"x": IMAGES, "y": np.eye(6)}, "6 images, but labels of shape [6, 6]; expected one each"),
        ({"x": IMAGES, "y": 3}, "6 images, but labels of shape []; expected one each"),
        ({"x": IMAGES, "y": [0, 1, 2, 3, 4, np.nan]}, "holds the label nan; expected integers or strings"),
        ({"x": IMAGES, "y": [0, 1, 2, 3, 4, np.inf]}, "holds the label inf; expected"),
        ({"x": IMAGES, "y": [0, 1, 2, 3, 4, 0.5]}, "holds the label 0.5; expected"),
        ({"x": IMAGES, "y": np.arange(6) * 1j}, "labels of type complex128; expected"),
        ({"x": IMAGES.reshape(6, 16), "y": range(6)}, "x.npy has shape [6, 16]; expected [N, height, width]"),
        ({"x": IMAGES[:0], "y": []}, "x.npy has shape [0, 4, 4]; expected"),
        ({"x": IMAGES[:, :0], "y": range(6)}, "x.npy has shape [6, 0, 4]; expected"),
        ({"x": IMAGES.astype(int), "y": range(6)}, "x.npy is of type int64; expected uint8, bool, uint16"),
        ({"x": IMAGES.astype("U3"), "y": range(6)}, "x.npy is of type <U3; expected"),
        ({"x": np.asfortranarray(IMAGES), "y": range(6)}, "x.npy is in Fortran order; expected"),
        (
            {"x": IMAGES, "y": range(6), "class_names": ["a", "b"]},
            "holds the label 2, class_names has 2 names",
        ),
        (
            {"x": IMAGES, "y": [-1] * 6, "class_names": ["a", "b"]},
            "holds the label -1, class_names has 2 names",
        ),
        (
            {"x": IMAGES, "y": range(6), "class_names": range(6)},
            "class_names is int64 of shape [6]; expected",
        ),
        ({"x": IMAGES, "y": range(6), "class_names": [["a"] * 6]}, "class_names is <U1 of shape [1, 6]"),
    ],
)
def test_npz_that_cannot_be_used(tmp_path: Path, content: dict[str, object], complaint: str) -> None:
    path = save(tmp_path / "data.npz", **content)
    assert message_of(lambda: open_source(path)).startswith(f"{path}: {complaint}")


def test_npz_bad_value_is_a_matter_of_one_sample(tmp_path: Path) -> None:
    images = np.zeros((3, 4, 4))
    images[1, 2, 2] = np.nan
    samples = list(open_source(save(tmp_path / "data.npz", x=images, y=[0, 1, 2])))
    assert samples[2].pixels(CONFIG).shape == (1, 4, 4)
    message = message_of(lambda: samples[1].pixels(CONFIG), UnreadableImageError)
    assert message.startswith(f"{tmp_path / 'data.npz'}[1]: holds the value nan")


def test_npz_truncated_anywhere(tmp_path: Path) -> None:
    path = save(tmp_path / "data.npz", x=IMAGES, y=range(6))
    content = path.read_bytes()
    for length in range(0, len(content), 13):
        path.write_bytes(content[:length])
        message = message_of(lambda: open_source(path))
        assert message.startswith(f"{path}: ") and "expected an npz file" in message


def write_members(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(values: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(values))
    return buffer.getvalue()


def test_npz_array_shorter_than_its_header_says(tmp_path: Path) -> None:
    path = write_members(tmp_path / "data.npz", x=npy(IMAGES)[:-1], y=npy(range(6)))
    assert message_of(lambda: open_source(path)).startswith(f"{path}: x.npy has 95 bytes; expected 96 for shape")


def test_npz_header_that_asks_for_all_memory(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (10**15,)})
    path = write_members(tmp_path / "data.npz", x=npy(IMAGES), y=header.getvalue() + bytes(48))
    assert message_of(lambda: open_source(path)).startswith(f"{path}: y.npy has 48 bytes; expected 8000000000000000")


@pytest.mark.parametrize("shape", [(-6, -4, 4), (-6, 4, 4), (0, 10**9, 10**9)])
def test_npz_header_with_an_impossible_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    path = write_members(tmp_path / "data.npz", x=header.getvalue() + bytes(96), y=npy(range(6)))
    assert message_of(lambda: open_source(path)).startswith(f"{path}: x.npy has 96 bytes; expected ")


def test_npz_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "data.npz", x=IMAGES, y=range(6))
    monkeypatch.setattr(arrays, "MAXIMUM_BYTES", 15)
    assert message_of(lambda: open_source(path)).startswith(f"{path}: x.npy has 16 bytes per image; expected")
    monkeypatch.setattr(arrays, "MAXIMUM_BYTES", 47)
    assert message_of(lambda: open_source(path)).startswith(f"{path}: y.npy has 48 bytes; expected at most")


@pytest.mark.parametrize("rubbish", [b"", b"rubbish", b"\x93NUMPY\x01\x00\xff\xff", b"\x93NUMPY\x03\x00\x02\x00{}"])
def test_npz_member_that_is_no_array(tmp_path: Path, rubbish: bytes) -> None:
    path = write_members(tmp_path / "data.npz", x=rubbish, y=npy(range(6)))
    message = message_of(lambda: open_source(path))
    assert message.startswith(f"{path}: cannot be read (") and message.endswith("as numpy.savez writes it")


def test_npz_damaged_in_the_middle(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (400, 16, 16), dtype=np.uint8)
    path = save(tmp_path / "data.npz", x=images, y=np.zeros(400, int))
    content = bytearray(path.read_bytes())
    content[60_000] ^= 0xFF
    path.write_bytes(content)
    source = open_source(path)
    assert message_of(lambda: list(source)).startswith(f"{path}: cannot be read (Bad CRC-32")


def test_npz_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    path = save(tmp_path / "data.npz", x=IMAGES, y=range(6))
    source = open_source(path)
    save(path, x=IMAGES[:3], y=range(3))
    assert message_of(lambda: list(source)).startswith(f"{path}: changed since it was opened")


@settings(max_examples=100, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_npz_only_ever_raises_circle_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    path = save(tmp_path_factory.getbasetemp() / "damaged.npz", x=IMAGES, y=list("abcdef"))
    content = bytearray(path.read_bytes())
    for position, value in changes:
        content[position % len(content)] = value
    path.write_bytes(content)
    try:
        samples = list(open_source(path))
    except CircleError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
    else:
        assert len(samples) == 6


# --- images without labels ----------------------------------------------------------------------------------


def test_unlabelled_files_folders_and_archives_in_the_order_given(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, {"b/2.png": image_bytes(2), "1.png": image_bytes(1), "notes.txt": b""})
    archive = make_zip(tmp_path, {"z.png": image_bytes(4), "a/3.png": image_bytes(3)})
    single = tmp_path / "without extension"
    single.write_bytes(image_bytes(9, "GIF"))
    images = open_unlabelled([single, archive, folder, str(single)])
    assert len(images) == 6
    for _ in range(2):
        samples = list(images)
        assert [int(sample.pixels(CONFIG)[0, 0, 0]) for sample in samples] == [9, 3, 4, 1, 2, 9]
        assert [sample.name for sample in samples] == [
            str(single),
            f"{archive}/a/3.png",
            f"{archive}/z.png",
            f"{folder}/1.png",
            f"{folder}/b/2.png",
            str(single),
        ]
        assert {sample.label for sample in samples} == {None}


def test_unlabelled_takes_one_path_and_none(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {"1.png": image_bytes()})
    assert len(open_unlabelled(path)) == len(open_unlabelled(str(path))) == 1
    assert list(open_unlabelled([])) == []


def test_unlabelled_complains_at_once(tmp_path: Path) -> None:
    here = make_folder(tmp_path, {"1.png": image_bytes()})
    gone, empty = tmp_path / "gone.png", tmp_path / "empty"
    empty.mkdir()
    assert message_of(lambda: open_unlabelled([here, gone])).startswith(f"{gone}: No such file or directory")
    assert message_of(lambda: open_unlabelled([here, empty])).startswith(f"{empty}: no images in it; expected")
    npz = save(tmp_path / "data.npz", x=IMAGES)
    assert message_of(lambda: open_unlabelled([npz])).startswith(f"{npz}: an npz file; expected image files")
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"PK")
    assert message_of(lambda: open_unlabelled([broken])).startswith(f"{broken}: cannot be read")


def test_unlabelled_broken_images_do_not_end_the_stream(tmp_path: Path) -> None:
    text, image = tmp_path / "text.png", tmp_path / "image.png"
    text.write_text("no picture")
    image.write_bytes(image_bytes(5))
    gone = tmp_path / "gone.png"
    gone.write_bytes(image_bytes())
    images = open_unlabelled([text, gone, image])
    gone.unlink()
    first, second, third = images
    assert "not a readable image" in message_of(lambda: first.pixels(CONFIG), UnreadableImageError)
    assert "No such file" in message_of(lambda: second.pixels(CONFIG), UnreadableImageError)
    assert (third.pixels(CONFIG) == 5).all()
