"""Frames: whole, torn, damaged, and on a disk that is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from circle.errors import CircleError
from circle.serve.journal import MAGIC, Frame, Journal, read_frames, split
from circle.serve.limits import StorageError

BASE = Frame({"identity": "x", "sequence": 0})
STEPS = [Frame({"sequence": number}, bytes([number]) * number) for number in range(1, 5)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal.create(tmp_path / "m.journal", BASE)
    for step in STEPS:
        journal.append(step)
    assert journal.appended_bytes == sum(len(step.encode()) for step in STEPS)
    journal.close()
    return journal.path


def test_what_was_appended_is_read(path: Path) -> None:
    assert read_frames(path) == ([BASE, *STEPS], 0)


def test_a_torn_tail_is_dropped_at_every_byte(path: Path) -> None:
    content = path.read_bytes()
    last = len(STEPS[-1].encode())
    for cut in range(1, last + 1):
        path.write_bytes(content[:-cut])
        assert read_frames(path) == ([BASE, *STEPS[:-1]], last - cut)
    path.write_bytes(content[:-last] + MAGIC * 30)
    assert read_frames(path) == ([BASE, *STEPS[:-1]], 120)


def test_damage_before_whole_frames_is_no_torn_tail(path: Path) -> None:
    content = path.read_bytes()
    start = len(BASE.encode())
    for position in range(start, start + len(STEPS[0].encode())):
        path.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
        with pytest.raises(CircleError, match=f"damaged at byte {start}"):
            read_frames(path)


@pytest.mark.parametrize("content", [b"", b"something else", Frame({"sequence": 1}).encode()])
def test_no_journal(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CircleError, match="damaged journal, or none"):
        read_frames(path)
    path.unlink()
    with pytest.raises(CircleError, match="cannot be read"):
        read_frames(path)


def test_what_does_not_fit_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.create(tmp_path / "m.journal", BASE)
    journal.append(STEPS[0])
    before, write = journal.path.read_bytes(), os.pwrite

    def half(descriptor: int, content: bytes, position: int) -> int:
        write(descriptor, bytes(content)[:5], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", half)
        with pytest.raises(StorageError, match="No space left on device.*nothing was learned"):
            journal.append(STEPS[1])
    assert journal.path.read_bytes() == before
    journal.append(STEPS[1])
    assert read_frames(journal.path) == ([BASE, *STEPS[:2]], 0)


def test_a_disk_that_cannot_even_be_cut_back_stops_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.create(tmp_path / "m.journal", BASE)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(StorageError):
            journal.append(STEPS[0])
    with pytest.raises(StorageError, match="nothing can be kept \\(Input/output error\\)"):
        journal.append(STEPS[0])


def test_a_journal_knows_whether_it_is_the_one_at_its_place(tmp_path: Path) -> None:
    first = Journal.create(tmp_path / "m.journal", BASE)
    assert first.is_current()
    second = Journal.create(tmp_path / "m.journal", BASE)
    assert (first.is_current(), second.is_current()) == (False, True)
    second.path.unlink()
    assert not second.is_current()


def test_split() -> None:
    assert split(b"abcdef", [1, 0, 3]) == [b"a", b"", b"bcd"]
