"""What stands between Pillow and a stranger's file: limits, one-line errors, no warnings on the screen."""

from __future__ import annotations

import contextlib
import logging
import stat
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from circle.errors import CircleError, UnreadableImageError

# Pillow's own default, kept as ours: the user may have raised or removed the limit of Pillow.
MAXIMUM_PIXELS = 89_478_485
MAXIMUM_BYTES = 512 * 2**20
EXPECTED = "expected a JPEG, PNG, GIF, BMP, WebP, TIFF or PPM image"

# With no handler at all, Python itself would print Pillow's remarks about broken files.
logging.getLogger("PIL").addHandler(logging.NullHandler())


def printable(name: str | Path) -> str:
    """A name as it can stand in a one-line message, whatever bytes or line breaks a file name holds."""
    return str(name) if str(name).isprintable() else ascii(str(name))


def reason(error: Exception) -> str:
    """What an exception says, in one short line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())[:200] or type(error).__name__


def read_bytes(path: Path, name: str) -> bytes:
    """The content of one regular file, or an :class:`UnreadableImageError` that says why not."""
    content = b""
    try:
        status = path.stat()
        regular = stat.S_ISREG(status.st_mode)  # a pipe or a device might never end
        if regular and status.st_size <= MAXIMUM_BYTES:
            content = path.read_bytes()
    except (OSError, ValueError, MemoryError) as error:
        raise UnreadableImageError(f"{printable(name)}: {reason(error)}; expected an image file") from error
    if not regular:
        raise UnreadableImageError(f"{printable(name)}: not a regular file; {EXPECTED}")
    if status.st_size > MAXIMUM_BYTES:
        raise UnreadableImageError(
            f"{printable(name)}: {status.st_size} bytes; expected at most {MAXIMUM_BYTES >> 20} MiB"
        )
    return content


@contextlib.contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """Whatever Pillow's plugins raise (they raise all sorts) becomes one line with the image's name."""
    try:
        with _PILLOW_WARNINGS.muted():
            yield
    except CircleError:
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImageError(f"{printable(name)}: not a readable image; {EXPECTED}") from error
    except Image.DecompressionBombError as error:
        found = reason(error).partition(" exceeds")[0]  # the rest of Pillow's text names its limit, not ours
        raise UnreadableImageError(
            f"{printable(name)}: too large, {found}; expected at most {MAXIMUM_PIXELS} pixels"
        ) from error
    except Exception as error:
        raise UnreadableImageError(
            f"{printable(name)}: cannot be decoded ({reason(error)}); expected a whole image"
        ) from error


class _PillowWarnings:
    """Mutes what Pillow would print about odd files, while at least one thread decodes.

    ``warnings.catch_warnings`` swaps a list that all threads share, so overlapping uses would restore each
    other's filters. Here the first to enter swaps and the last to leave restores.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._filters = contextlib.ExitStack()

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._filters.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", module=r"PIL\.")
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._filters.close()


_PILLOW_WARNINGS = _PillowWarnings()
