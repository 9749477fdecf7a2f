"""Where results may be written: each to a file of its own, never over the model, never over a device."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from circle.cli import console
from circle.errors import CircleError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.circle"
    path.write_bytes(b"all that was learned")
    return path


@pytest.mark.parametrize("way", ["same", "detour", "symbolic", "hard"])
def test_an_output_is_never_the_model(model: Path, tmp_path: Path, way: str) -> None:
    other = tmp_path / "other.circle"
    if way == "symbolic":
        other.symlink_to(model)
    elif way == "hard":
        other.hardlink_to(model)
    (tmp_path / "folder").mkdir()
    output = {"same": model, "detour": tmp_path / "folder" / ".." / model.name}.get(way, other)
    with pytest.raises(CircleError, match="is the model itself, which would be lost"):
        console.check_outputs([tmp_path / "fine", output], force=True, model=model)


@pytest.mark.parametrize("there", [False, True])
def test_every_output_needs_a_file_of_its_own(model: Path, tmp_path: Path, there: bool) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    if there:
        first.touch()
    with pytest.raises(CircleError, match="named for two outputs"):
        console.check_outputs([first, None, tmp_path / "." / ".." / tmp_path.name / "a"], force=True, model=model)
    console.check_outputs([first, None, second], force=True, model=model)


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_regular_file_stays(tmp_path: Path, force: bool) -> None:
    pipe, folder, link = tmp_path / "pipe", tmp_path / "folder", tmp_path / "link"
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(pipe)
    special = "is a device, pipe or socket, which stays"
    for path, found in ((pipe, special), (link, special), (folder, "cannot be written; expected a file")):
        with pytest.raises(CircleError, match=f"{path}: {found}") as error:
            console.check_writable(path, force=force)
        assert "--force" not in str(error.value), "it would not help"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout")
def test_the_link_to_the_output_stays_where_it_leads_to_a_file(
    model: Path, tmp_path: Path, launcher_of_jobs: Any
) -> None:
    command = ["pack", model, "/dev/stdout", "--force"]
    (ended,) = launcher_of_jobs.wait(launcher_of_jobs.start(1, command))  # whose output is a file
    assert ended.code == 1
    assert "/dev/stdout: is a device, pipe or socket, which stays" in ended.err


def test_a_file_is_replaced_when_asked_to(tmp_path: Path) -> None:
    console.check_writable(tmp_path / "new", force=False)
    (tmp_path / "old").touch()
    console.check_writable(tmp_path / "old", force=True)
    with pytest.raises(CircleError, match="exists already.*--force"):
        console.check_writable(tmp_path / "old", force=False)
