"""Arrays of npz files, mapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from circle.data.npz import NpzImages, array_names
from circle.errors import CircleError

PIXELS = np.random.default_rng(0).integers(0, 256, (50, 9, 7), dtype=np.uint8)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_mapped_where_they_lie_or_from_a_copy(tmp_path: Path, save: object) -> None:
    path = tmp_path / "a.npz"
    save(path, y=np.arange(50) % 3, pixels=PIXELS)  # pyright: ignore[reportCallIssue]
    assert array_names(path) == {"y", "pixels"}
    opened = NpzImages(path, ["pixels"], ["y"])
    mapped = opened.mapped()
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    assert np.array_equal(mapped, PIXELS)
    assert opened.labels.tolist() == [number % 3 for number in range(50)]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_is_found(tmp_path: Path, save: object) -> None:
    path = tmp_path / "a.npz"
    save(path, x=PIXELS, y=np.arange(50))  # pyright: ignore[reportCallIssue]
    opened = NpzImages(path, ["x"], ["y"])
    content = bytearray(path.read_bytes())
    content[2000] ^= 4
    path.write_bytes(content)
    with pytest.raises(CircleError, match="a.npz: cannot be read"):
        opened.mapped()


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=PIXELS, y=np.arange(49))
    with pytest.raises(CircleError, match="50 images, but labels of shape \\[49\\]"):
        NpzImages(path, ["x"], ["y"])
    with pytest.raises(CircleError, match="holds x, y; expected images as one of x_test"):
        NpzImages(path, ["x_test"], ["y"])
    np.savez(path, x=PIXELS, y=np.array([{}] * 50, dtype=object))
    with pytest.raises(CircleError, match="would need unpickling"):
        NpzImages(path, ["x"], ["y"])
