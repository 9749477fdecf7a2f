"""Folders, archives and arrays of small grey images, made for the tests of sources."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from circle.data.decode import ImageConfig
from circle.data.images import Images
from circle.errors import CircleError

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


def pairs(source: Images) -> list[tuple[str, str]]:
    """(label, name below the source) of every sample."""
    return [(str(sample.label), Path(sample.name).relative_to(source.path or "").as_posix()) for sample in source]


def message_of(action: Callable[[], object], kind: type[CircleError] = CircleError) -> str:
    with pytest.raises(kind) as caught:
        action()
    message = str(caught.value)
    assert type(caught.value) is kind and "\n" not in message
    return message


def save(path: Path, compress: bool = False, **content: object) -> Path:
    values = {name: np.asarray(value) for name, value in content.items()}
    (np.savez_compressed if compress else np.savez)(path, **values)
    return path


IMAGES = np.random.default_rng(1).integers(0, 256, (6, 4, 4), dtype=np.uint8)
