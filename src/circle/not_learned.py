"""The error of a model that was asked too early; apart from the others because it needs scikit-learn."""

from __future__ import annotations

from sklearn.exceptions import NotFittedError

from circle.errors import CircleError


class NotLearnedError(CircleError, NotFittedError):
    """A prediction was asked of a model that has not learned anything yet."""
