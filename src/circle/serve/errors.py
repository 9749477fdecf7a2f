"""What a request can be told besides its answer; ``status`` is the HTTP code."""

from __future__ import annotations

from circle.errors import CircleError


class RequestError(CircleError):
    """The request is at fault, and says how to mend it."""

    status = 400


class ConflictError(RequestError):
    """The request is well formed, but the model is not in a state for it."""

    status = 409


class BusyError(RequestError):
    """All places are taken; the same request will do in a moment."""

    status = 503


class StorageError(CircleError):
    """Nothing can be kept for now, so nothing was learned."""

    status = 507
