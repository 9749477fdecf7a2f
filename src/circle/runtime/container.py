"""The container of model files: safetensors with a versioned JSON header, written whole or not at all, checksummed.

Nothing in it is ever unpickled, and nothing here knows what a model keeps in it: see :mod:`circle.files`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from circle.errors import CircleError
from circle.runtime.weights import FEATURE_VERSION

FORMAT_VERSION = 4  # 2: compressed models as well; 3: features in integers; 4: second moments by pivot rows
FIRST_READABLE = 3
_KEY = "circle"
_CHECKSUM = "checksum"  # of the rest of the header
_umask_lock = threading.Lock()


def write(path: Path | str, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> None:
    """Write a model file atomically: after a crash at any moment the old file or the new one is there, whole."""
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    checks = {name: checksum(contiguous[name]) for name in sorted(contiguous)}  # equal content makes an equal file
    text = header_text({"format": FORMAT_VERSION, "checksums": checks, **header})
    with atomic_path(path) as temporary:
        save_file(contiguous, temporary, metadata={_KEY: text})


def header_text(header: Mapping[str, Any]) -> str:
    """A header as it stands in a file, with its own checksum at the end."""
    return json.dumps({**header, _CHECKSUM: zlib.crc32(json.dumps(header).encode())})


@contextlib.contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """A temporary path beside ``path`` that replaces it when the block ends well, and vanishes when it does not."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        yield temporary
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise CircleError(f"{path}: cannot be written ({reason}); what was there before is unchanged") from error
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    """The mask of new files, which can only be read by setting it."""
    with _umask_lock:  # it is one for all threads
        mask = os.umask(0o077)
        os.umask(mask)
    return mask


def remove_leftovers(path: Path | str) -> None:
    """Delete temporary files of writers that were killed; only for the one who holds the model's lock."""
    path = Path(path)
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive(path: Path | str) -> Iterator[None]:
    """Hold the model at ``path`` for writing; a second writer gets an error instead of losing what was learned."""
    path = Path(path)
    lock = path.with_name(f".{path.name}.lock")
    while True:
        try:
            file = lock.open("w")
        except OSError as error:
            raise CircleError(f"{path}: cannot be written ({error.strerror}); expected a folder that exists") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise CircleError(f"{path}: another process is changing this model; wait for it to end") from error
            # The last holder may have removed the file between our opening and locking it: then take a new one.
            if not lock.exists() or lock.stat().st_ino != os.fstat(file.fileno()).st_ino:
                continue
            try:
                remove_leftovers(path)
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def read(path: Path | str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and header of a model file, or one line that says what is wrong with it."""
    header = read_header(path)
    with readable(path), safe_open(str(path), "np") as file:
        arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
    check_sums(path, header, arrays)
    return arrays, header


@contextlib.contextmanager
def readable(path: Path | str) -> Iterator[None]:
    """Say in one line what safetensors says of a damaged file."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise CircleError(f"{path}: damaged model file ({str(error).splitlines()[0]})") from error


def check_sums(path: Path | str, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse a file in which a value is missing or another than was written."""
    for name, expected in header["checksums"].items():
        if name not in arrays or checksum(arrays[name]) != expected:
            raise CircleError(f"{path}: damaged model file (checksum of {name!r} does not match)")


def read_header(path: Path | str) -> dict[str, Any]:
    """The header alone: config, classes, sizes."""
    path = Path(path)
    _check_frame(path)
    try:
        with safe_open(str(path), "np") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CircleError(f"{path}: not a CIRCLE model ({str(error).splitlines()[0]})") from error
    if _KEY not in metadata:
        raise CircleError(f"{path}: not a CIRCLE model: a safetensors file of another program")
    header = _header_of(metadata[_KEY])
    if header is None:
        raise CircleError(f"{path}: damaged model file (unreadable header); expected one that `circle learn` wrote")
    if header["format"] < FIRST_READABLE:
        raise CircleError(
            f"{path}: written by an older CIRCLE, whose features were other numbers on other machines (format "
            f"{header['format']}, this one reads {FORMAT_VERSION}): learn its images again, or use circle-cil 0.1"
        )
    if header["format"] > FORMAT_VERSION:
        raise CircleError(
            f"{path}: written by a newer CIRCLE (format {header['format']}, this one reads up to {FORMAT_VERSION}): "
            "update circle-cil"
        )
    if header.get("features", FEATURE_VERSION) != FEATURE_VERSION:
        raise CircleError(
            f"{path}: learned from features of version {header['features']}, where this CIRCLE computes version "
            f"{FEATURE_VERSION}: learn its images again, or use the version of circle-cil that wrote it"
        )
    return header


def _header_of(text: str) -> dict[str, Any] | None:
    """The header as it was written, or None where this is none."""
    try:
        header = json.loads(text)
        whole = header.pop(_CHECKSUM) == zlib.crc32(json.dumps(header).encode())
        # A checksum finds damage, not malice: someone who sends a file can make it match.
        known = isinstance(header["format"], int) and isinstance(header["checksums"], dict)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return header if whole and known else None


def _check_frame(path: Path) -> None:
    """Tell a missing, foreign or truncated file apart, before safetensors says something less clear."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(9)
            if len(start) < 9 or start[8:9] != b"{":
                raise CircleError(f"{path}: not a CIRCLE model (expected a file that `circle learn` or `save` wrote)")
            (length,) = struct.unpack("<Q", start[:8])
            if length > size - 8:
                raise CircleError(f"{path}: truncated model file ({size:,} bytes, its header alone has {length:,})")
            file.seek(8)
            try:
                entries = json.loads(file.read(length))
                end = max(
                    (item["data_offsets"][1] for key, item in entries.items() if key != "__metadata__"),
                    default=0,
                )
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise CircleError(f"{path}: not a CIRCLE model (unreadable header)") from error
    except FileNotFoundError as error:
        raise CircleError(f"{path}: no such model file") from error
    except OSError as error:
        raise CircleError(f"{path}: cannot be read ({error.strerror}); expected a model file") from error
    if 8 + length + end > size:
        raise CircleError(f"{path}: truncated model file ({size:,} of {8 + length + end:,} bytes)")


def checksum(array: np.ndarray) -> int:
    """Of type (by PyTorch's name) and shape, which are in the file's own header, and of the values."""
    start = zlib.crc32(f"torch.{array.dtype.name} {tuple(map(int, array.shape))}".encode())
    return zlib.crc32(np.asarray(array, order="C").reshape(-1).view(np.uint8).data, start) if array.size else start


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
