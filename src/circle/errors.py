"""The errors that CIRCLE raises for what a user can correct; nothing heavy is imported for them."""

from __future__ import annotations

from os import PathLike


def printable(name: str | PathLike[str]) -> str:
    """A name as it can stand in a one-line message, whatever bytes or line breaks a file name holds."""
    return str(name) if str(name).isprintable() else ascii(str(name))


def reason(error: Exception) -> str:
    """What an exception says, in one short line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())[:200] or type(error).__name__


def counted(number: int, noun: str) -> str:
    """A number with its noun, for messages.

    >>> counted(1, "class"), counted(2, "class"), counted(0, "image"), counted(1200, "step")
    ('1 class', '2 classes', '0 images', '1,200 steps')
    """
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


class CircleError(ValueError):
    """Bad input, in one line: where, what was found, and what was expected.

    The command line prints the message and nothing else; in Python it is an ordinary ``ValueError``, which is
    what scikit-learn's tools expect of a rejected batch.

    Examples
    --------
    >>> from circle import SLDAConfig
    >>> try:
    ...     SLDAConfig(ridge=-1)
    ... except CircleError as error:
    ...     print(error)
    slda.ridge = -1.0: expected zero or a positive number
    """


class UnreadableImageError(CircleError):
    """One image cannot be used (broken, too large, not an image); the others may be fine."""


class NotDefiniteError(CircleError):
    """Settings under which a matrix cannot be factorised; others may do."""


class LostProcessError(CircleError):
    """Another rank of the same job ended, or cannot be reached any more."""


class ReportedByRankZeroError(CircleError):
    """An error that ends all ranks of a job and that rank zero prints."""
