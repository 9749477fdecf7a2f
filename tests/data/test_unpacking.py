"""Archives from strangers."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from circle.data.download import intact, unpack, unpacked_here, write_manifest
from circle.errors import CircleError


def tar(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            if isinstance(content, bytes):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                archive.addfile(content)
    return path


def special(name: str, kind: bytes, target: str = "") -> dict[str, bytes | tarfile.TarInfo]:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return {name: info}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_tar_zip_and_gzip(tmp_path: Path, folder: Path) -> None:
    unpack(tar(tmp_path / "a.tar.gz", {"data/one.bin": b"1", **special("data/empty", tarfile.DIRTYPE)}), folder)
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.mkdir("more")
        archive.writestr("more/two.bin", b"2")
    unpack(tmp_path / "b.zip", folder)
    (tmp_path / "three.bin.gz").write_bytes(gzip.compress(b"3"))
    unpack(tmp_path / "three.bin.gz", folder)
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert contents == {"data/one.bin": b"1", "more/two.bin": b"2", "three.bin": b"3"}
    assert (folder / "data" / "empty").is_dir()


@pytest.mark.parametrize(
    "members",
    [
        {"../evil": b"x"},
        {"data/../../evil": b"x"},
        {"/tmp/evil": b"x"},
        {"data\\..\\evil": b"x"},
        special("evil", tarfile.SYMTYPE, "/etc/passwd"),
        special("evil", tarfile.LNKTYPE, "../other"),
        special("evil", tarfile.FIFOTYPE),
        special("evil", tarfile.CHRTYPE),
    ],
)
def test_evil_tar_members(tmp_path: Path, folder: Path, members: dict) -> None:
    with pytest.raises(CircleError, match="a.tar.gz: holds .*evil.*; expected plain files inside one folder"):
        unpack(tar(tmp_path / "a.tar.gz", members), folder)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar.gz", "out"]


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "link-evil"])
def test_evil_zip_members(tmp_path: Path, folder: Path, name: str) -> None:
    info = zipfile.ZipInfo(name)
    if name.startswith("link"):
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(CircleError, match="a.zip: holds '.*evil'"):
        unpack(tmp_path / "a.zip", folder)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.zip", "out"]


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip", ".gz"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "text", "empty"])
def test_damaged_archives(tmp_path: Path, folder: Path, suffix: str, damage: str) -> None:
    path = tmp_path / f"a{suffix}"
    payload = bytes(range(256)) * 40
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data.bin", payload)
    elif suffix == ".gz":
        path.write_bytes(gzip.compress(payload))
    else:
        tar(path, {"data.bin": payload})
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[len(content) // 2] ^= 0xFF
    else:
        content = bytearray(b"<html>not found</html>" if damage == "text" else b"")
    path.write_bytes(content)
    with pytest.raises(CircleError, match=f"a{suffix}: damaged archive .*download it again"):
        unpack(path, folder)


def test_another_kind_of_file(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.rar").write_bytes(b"Rar!")
    with pytest.raises(CircleError, match="a.rar: expected .tar.gz, .zip or .gz"):
        unpack(tmp_path / "a.rar", folder)


def test_manifest_notices_every_change(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "a.bin").write_bytes(b"abc")
    assert intact(folder), "somebody's own folder is not judged"
    assert not unpacked_here(folder)
    write_manifest(folder)
    assert intact(folder)
    assert unpacked_here(folder)
    (folder / "inner" / "a.bin").write_bytes(b"abd")
    assert not intact(folder)
    (folder / "inner" / "a.bin").write_bytes(b"abc")
    assert intact(folder)
    (folder / "inner" / "b.bin").write_bytes(b"")
    assert not intact(folder)
    (folder / "inner" / "b.bin").unlink()
    (folder / "inner" / "a.bin").unlink()
    assert not intact(folder)
