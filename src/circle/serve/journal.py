"""The journal beside the model: every change is on the disk before it is acknowledged.

A file of frames, each written by one call and synced:

    magic [4]   length of the payload [4]   blake2b of length and payload [8]   payload

and in the payload the length of a JSON head [4], the head, and the bytes that the head speaks of. The first frame is
the base: what the edit history held when the journal was begun. A frame that a crash tore is the last one and was never
acknowledged, so it is dropped. A damaged frame with whole ones behind it is no torn one, and an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from circle.errors import CircleError
from circle.runtime import container
from circle.serve.limits import StorageError

MAGIC = b"CJ1\n"
_FRAME = struct.Struct("<4sI8s")
_HEADER_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Frame:
    """One step: a JSON head, and bytes."""

    header: dict[str, Any]
    blob: bytes = b""

    def encode(self) -> bytes:
        header = json.dumps(self.header, separators=(",", ":")).encode()
        payload = _HEADER_LENGTH.pack(len(header)) + header + self.blob
        return _FRAME.pack(MAGIC, len(payload), _digest(payload)) + payload


class Journal:
    """The open journal of a server: frames are appended, and lost never."""

    def __init__(self, path: Path, identity: str, descriptor: int, length: int) -> None:
        self.path = path
        self.identity = identity
        self._descriptor = descriptor
        self._length = length
        self.appended_bytes = 0  # bytes since the base
        self.broken = ""  # why nothing can be appended any more

    @classmethod
    def create(cls, path: Path, base: Frame) -> Journal:
        """Begin a journal, in one step in the place of the one that is there."""
        content = base.encode()
        with container.atomic_path(path) as temporary:
            temporary.write_bytes(content)
        return cls(path, base.header["identity"], os.open(path, os.O_WRONLY), len(content))

    def append(self, frame: Frame) -> None:
        """Write a frame and sync it; when this returns, it survives a kill and a power cut.

        Where it does not fit, the file is cut back to what it was. If even that fails, nothing can be promised
        any more, and every further call says so until a new journal is begun.
        """
        if self.broken:
            raise StorageError(f"nothing can be kept ({self.broken}); nothing was learned")
        content = frame.encode()
        try:
            self._write(content)
            os.fdatasync(self._descriptor) if hasattr(os, "fdatasync") else os.fsync(self._descriptor)
        except OSError as error:
            try:
                os.ftruncate(self._descriptor, self._length)
                os.fsync(self._descriptor)
            except OSError as second:
                self.broken = second.strerror or str(second)
            raise StorageError(f"the disk takes no more ({error.strerror}); nothing was learned") from error
        self._length += len(content)
        self.appended_bytes += len(content)

    def _write(self, content: bytes) -> None:
        view, position = memoryview(content), self._length
        while view:
            written = os.pwrite(self._descriptor, view, position)
            view, position = view[written:], position + written

    def is_current(self) -> bool:
        """Whether the file at the path is still the one being written to."""
        try:
            return self.path.stat().st_ino == os.fstat(self._descriptor).st_ino
        except OSError:
            return False

    def close(self) -> None:
        os.close(self._descriptor)


def read_frames(path: Path) -> tuple[list[Frame], int]:
    """All whole frames of a journal, the base first, and how many bytes a crash left behind them."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CircleError(f"{path}: cannot be read ({error.strerror})") from error
    frames: list[Frame] = []
    position = 0
    while position < len(content):
        found = _frame_at(content, position)
        if found is None:
            break
        frame, position = found
        frames.append(frame)
    if not frames or "identity" not in frames[0].header:
        raise CircleError(f"{path}: damaged journal, or none; move it away to continue with the model file alone")
    following = content.find(MAGIC, position + 1)
    while following >= 0:
        if _frame_at(content, following) is not None:
            raise CircleError(
                f"{path}: damaged at byte {position:,}, with whole changes after that; move it away to continue with "
                "the model file alone"
            )
        following = content.find(MAGIC, following + 1)
    return frames, len(content) - position


def _frame_at(content: bytes, position: int) -> tuple[Frame, int] | None:
    """The frame that begins here and the end of it, or nothing if there is no whole one."""
    start = position + _FRAME.size
    if start > len(content):
        return None
    magic, length, digest = _FRAME.unpack_from(content, position)
    payload = content[start : start + length] if magic == MAGIC else b""
    if len(payload) != length or length < _HEADER_LENGTH.size or _digest(payload) != digest:
        return None
    (header,) = _HEADER_LENGTH.unpack_from(payload)
    try:
        values = json.loads(payload[_HEADER_LENGTH.size : _HEADER_LENGTH.size + header])
    except ValueError:
        return None
    return Frame(values, payload[_HEADER_LENGTH.size + header :]), start + length


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(_HEADER_LENGTH.pack(len(payload)) + payload, digest_size=8).digest()


def split(blob: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The parts of a blob that lie in it one after the other."""
    parts, start = [], 0
    for size in sizes:
        parts.append(blob[start : start + size])
        start += size
    return parts
