"""npz files: arrays by any of their names, read in chunks, never unpickled, and one line for what is wrong."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places_of_images import CONFIG, IMAGES, message_of, save

from circle.data import npz
from circle.data.user_images import open_images
from circle.errors import CircleError, UnreadableImageError


@pytest.mark.parametrize("compress", [False, True])
def test_npz_keeps_the_order_of_the_file(tmp_path: Path, compress: bool) -> None:
    path = save(tmp_path / "data.npz", compress, x=IMAGES, y=[2, 0, 2, -1, 0, 2])
    source = open_images(path)
    samples = list(source)
    assert isinstance(source, npz.NpzImages) and len(source) == 6
    assert [sample.label for sample in samples] == [2, 0, 2, -1, 0, 2]
    assert {type(label) for label in source.classes} == {int}
    assert source.classes == [-1, 0, 2] and source.counts == {-1: 1, 0: 2, 2: 3}
    assert all(np.array_equal(sample.content, row) for sample, row in zip(samples, IMAGES, strict=True))
    assert samples[3].name == f"{path}[3]"
    assert np.array_equal(samples[3].pixels(CONFIG), IMAGES[3:4])


@pytest.mark.parametrize("images", ["x", "X", "images", "data", "x_train"])
@pytest.mark.parametrize("labels", ["y", "labels", "targets", "target", "y_train"])
def test_npz_names_of_arrays(tmp_path: Path, images: str, labels: str) -> None:
    path = save(tmp_path / "data.npz", **{images: IMAGES, labels: range(6), "other": [1]})
    assert len(open_images(path)) == 6


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
    found = [sample.label for sample in open_images(save(tmp_path / "data.npz", x=IMAGES, y=labels))]
    assert found == expected
    assert {type(label) for label in found} == {type(expected[0])}


def test_npz_class_names(tmp_path: Path) -> None:
    names = ["cat", "dog", "cat", "unused"]
    source = open_images(save(tmp_path / "data.npz", x=IMAGES, y=[0, 1, 2, 0, 1, 2], class_names=names))
    assert [sample.label for sample in source] == ["cat", "dog", "cat", "cat", "dog", "cat"]
    assert source.classes == ["cat", "dog"] and source.counts == {"cat": 4, "dog": 2}


@pytest.mark.parametrize("kind", [np.uint8, bool, np.uint16, ">u2", np.float16, np.float32, np.float64])
def test_npz_types_of_images(tmp_path: Path, kind: type) -> None:
    images = np.ones((2, 4, 4, 3), kind)
    (first, _) = open_images(save(tmp_path / "data.npz", x=images, y=[0, 1]))
    assert isinstance(first.content, np.ndarray) and first.content.dtype == np.dtype(kind)
    assert np.array_equal(first.content, images[0])


def test_npz_is_read_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (10, 4, 4), dtype=np.uint8)
    source = open_images(save(tmp_path / "data.npz", x=images, y=range(10)))
    monkeypatch.setattr(npz, "CHUNK_BYTES", 3 * 16 + 5)  # three rows and a bit
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
        count = sum(1 for _ in open_images(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 300
    assert peak < 2.5 * npz.CHUNK_BYTES < size / 3


def test_npz_rows_larger_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "CHUNK_BYTES", 1)
    samples = list(open_images(save(tmp_path / "data.npz", x=IMAGES, y=range(6))))
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
    message = message_of(lambda: list(open_images(path)))
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
    assert message_of(lambda: open_images(path)).startswith(f"{path}: {complaint}")


def test_npz_bad_value_is_a_matter_of_one_sample(tmp_path: Path) -> None:
    images = np.zeros((3, 4, 4))
    images[1, 2, 2] = np.nan
    samples = list(open_images(save(tmp_path / "data.npz", x=images, y=[0, 1, 2])))
    assert samples[2].pixels(CONFIG).shape == (1, 4, 4)
    message = message_of(lambda: samples[1].pixels(CONFIG), UnreadableImageError)
    assert message.startswith(f"{tmp_path / 'data.npz'}[1]: holds the value nan")


def test_npz_truncated_anywhere(tmp_path: Path) -> None:
    path = save(tmp_path / "data.npz", x=IMAGES, y=range(6))
    content = path.read_bytes()
    for length in range(0, len(content), 13):
        path.write_bytes(content[:length])
        message = message_of(lambda: open_images(path))
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
    assert message_of(lambda: open_images(path)).startswith(f"{path}: x.npy has 95 bytes; expected 96 for shape")


def test_npz_header_that_asks_for_all_memory(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (10**15,)})
    path = write_members(tmp_path / "data.npz", x=npy(IMAGES), y=header.getvalue() + bytes(48))
    assert message_of(lambda: open_images(path)).startswith(f"{path}: y.npy has 48 bytes; expected 8000000000000000")


@pytest.mark.parametrize("shape", [(-6, -4, 4), (-6, 4, 4), (0, 10**9, 10**9)])
def test_npz_header_with_an_impossible_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    path = write_members(tmp_path / "data.npz", x=header.getvalue() + bytes(96), y=npy(range(6)))
    assert message_of(lambda: open_images(path)).startswith(f"{path}: x.npy has 96 bytes; expected ")


def test_npz_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "data.npz", x=IMAGES, y=range(6))
    monkeypatch.setattr(npz, "MAXIMUM_BYTES", 15)
    assert message_of(lambda: open_images(path)).startswith(f"{path}: x.npy has 16 bytes per image; expected")
    monkeypatch.setattr(npz, "MAXIMUM_BYTES", 47)
    assert message_of(lambda: open_images(path)).startswith(f"{path}: y.npy has 48 bytes; expected at most")


@pytest.mark.parametrize("rubbish", [b"", b"rubbish", b"\x93NUMPY\x01\x00\xff\xff", b"\x93NUMPY\x03\x00\x02\x00{}"])
def test_npz_member_that_is_no_array(tmp_path: Path, rubbish: bytes) -> None:
    path = write_members(tmp_path / "data.npz", x=rubbish, y=npy(range(6)))
    message = message_of(lambda: open_images(path))
    assert message.startswith(f"{path}: cannot be read (") and message.endswith("as numpy.savez writes it")


def test_npz_damaged_in_the_middle(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (400, 16, 16), dtype=np.uint8)
    path = save(tmp_path / "data.npz", x=images, y=np.zeros(400, int))
    content = bytearray(path.read_bytes())
    content[60_000] ^= 0xFF
    path.write_bytes(content)
    source = open_images(path)
    assert message_of(lambda: list(source)).startswith(f"{path}: cannot be read (Bad CRC-32")


def test_npz_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    path = save(tmp_path / "data.npz", x=IMAGES, y=range(6))
    source = open_images(path)
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
        samples = list(open_images(path))
    except CircleError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
    else:
        assert len(samples) == 6


def test_one_of_two_parts_is_taken(tmp_path: Path) -> None:
    path = save(tmp_path / "data.npz", x_train=IMAGES, y_train=range(6), x_test=IMAGES[:2], y_test=[5, 4])
    train, test = open_images(path), open_images(path, "test")
    assert (len(train), len(test), test.classes) == (6, 2, [4, 5])
    assert np.array_equal(test[:][..., 0], IMAGES[:2])
    assert test.notes == [f"{path}: has x_train and x_test: taking x_test"]
    assert train.notes == [f"{path}: has x_train and x_test: taking x_train"]
