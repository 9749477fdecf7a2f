"""Files: whole or not at all, and a clear word about each kind of damage."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import circle
from circle import files
from circle.errors import CircleError
from circle.runtime import container
from circle.runtime.weights import FEATURE_VERSION

TENSORS = {"a": torch.arange(12).view(3, 4), "empty": torch.zeros(0, 5), "b": torch.ones(2, dtype=torch.float64)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.circle"
    files.write(path, TENSORS, {"kind": "learning"})
    return path


def test_write_and_read(path: Path) -> None:
    tensors, header = files.read(path)
    assert set(tensors) == set(TENSORS)
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert header["kind"] == "learning"
    assert list(path.parent.iterdir()) == [path], "no temporary file is left"


def test_every_truncation_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CircleError, match="truncated|not a CIRCLE model"):
            files.read(path)


def test_every_flipped_byte_of_the_data_is_noticed(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    data = 8 + struct.unpack("<Q", whole[:8])[0]
    for position in range(data, len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(CircleError, match="damaged model file"):
            files.read(path)


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.ones(3)}, foreign)
    with pytest.raises(CircleError, match="another program"):
        files.read(foreign)
    for content in (b"", b"hello", b"\x80\x04pickle here, never loaded", os.urandom(500)):
        other = tmp_path / "other.bin"
        other.write_bytes(content)
        with pytest.raises(CircleError, match="not a CIRCLE model|truncated"):
            files.read(other)
    with pytest.raises(CircleError, match="no such model file"):
        files.read(tmp_path / "missing")
    with pytest.raises(CircleError, match="cannot be read"):
        files.read(tmp_path)


def test_features_of_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.circle"
    for version in (FEATURE_VERSION - 1, FEATURE_VERSION + 1):
        header = container.header_text({"format": container.FORMAT_VERSION, "checksums": {}, "features": version})
        save_file({"a": torch.ones(1)}, path, metadata={"circle": header})
        with pytest.raises(CircleError, match=f"features of version {version}, .* version {FEATURE_VERSION}: learn"):
            files.read(path)


def test_a_file_from_before_the_integers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.circle"
    header = container.header_text({"format": 2, "checksums": {}})
    save_file({"a": torch.ones(1)}, path, metadata={"circle": header})
    with pytest.raises(
        CircleError,
        match=rf"older CIRCLE, .* \(format 2, this one reads {container.FORMAT_VERSION}\): learn its images again",
    ):
        files.read(path)


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new.circle"
    header = container.header_text({"format": container.FORMAT_VERSION + 1, "checksums": {}})
    save_file({"a": torch.ones(1)}, path, metadata={"circle": header})
    with pytest.raises(CircleError, match="newer CIRCLE .* update circle-cil"):
        files.read(path)


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_version_is_refused(version: int, tmp_path: Path) -> None:
    path = tmp_path / "old.circle"
    save_file(
        {"a": torch.ones(1)}, path, metadata={"circle": container.header_text({"format": version, "checksums": {}})}
    )
    reads = container.FORMAT_VERSION
    expected = rf"old\.circle: written by an older CIRCLE, .*\(format {version}, this one reads {reads}\): learn"
    for read in (files.read, container.read_header, circle.load):
        with pytest.raises(CircleError, match=expected):
            read(path)


def test_a_failed_write_keeps_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(tensors: object, name: Path, metadata: object) -> None:
        Path(name).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(container, "save_file", full)
    with pytest.raises(CircleError, match="No space left on device.*unchanged"):
        files.write(path, TENSORS, {})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(CircleError, match="cannot be written"):
        files.write(tmp_path / "no" / "model", TENSORS, {})
    with pytest.raises(CircleError, match="folder that exists"), container.exclusive(tmp_path / "no" / "model"):
        pass


def test_permissions_follow_the_umask_and_the_old_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = tmp_path / "model"
        files.write(path, TENSORS, {})
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o604)
        files.write(path, TENSORS, {})
        assert path.stat().st_mode & 0o777 == 0o604
    finally:
        os.umask(before)


def test_one_writer_at_a_time(path: Path) -> None:
    script = f"from circle.runtime import container\nwith container.exclusive({str(path)!r}): print('in')"
    with container.exclusive(path):
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "another process is changing this model" in result.stderr
    with container.exclusive(path):
        pass
    assert list(path.parent.iterdir()) == [path], "the lock is gone"


def test_leftovers_of_killed_writers_go(path: Path) -> None:
    leftover = path.with_name(f".{path.name}.12345.tmp")
    leftover.write_bytes(b"half")
    with container.exclusive(path):
        assert not leftover.exists()


def test_smallest_integers() -> None:
    assert files.smallest_integers(torch.tensor([2.0**31 - 1, -5.0], dtype=torch.float64)).dtype == torch.int32
    large = torch.tensor([2.0**31, 2.0**53 - 1], dtype=torch.float64)
    assert files.smallest_integers(large).dtype == torch.int64
    assert torch.equal(files.smallest_integers(large).double(), large)
