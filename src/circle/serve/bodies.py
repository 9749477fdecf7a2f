"""Requests taken apart: sizes are known before anything is read, and everything arrives in time or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from circle.serve.errors import RequestError
from circle.serve.limits import MAX_JSON_BYTES


def body_size(request: Request, kind: str, limit: int) -> int:
    """What a request says of its body, before any of it is read."""
    found = request.headers.get("content-type", "").lower()
    if not found.startswith(kind):
        raise HTTPException(415, f"content-type {found[:60]!r}: expected {kind}{'*' if kind.endswith('/') else ''}")
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise HTTPException(411, "expected a content-length")
    if len(length) > 15 or int(length) > limit:
        raise HTTPException(413, f"{length[:15]} bytes: expected at most {limit}")
    return int(length)


async def read_body(request: Request, size: int, seconds: float) -> AsyncIterator[bytes]:
    """The parts of a body, all of which arrive in time."""
    received = 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                received += len(part)
                if received > size:
                    raise HTTPException(400, "a longer body than was announced")
                yield part
    except TimeoutError as error:
        raise HTTPException(408, f"the body took longer than {seconds:g} s") from error
    if received != size:
        raise HTTPException(400, "a shorter body than was announced")


async def json_fields(request: Request, *names: str) -> dict[str, Any]:
    """The JSON object in a body, which must have just these fields."""
    size = body_size(request, "application/json", MAX_JSON_BYTES)
    content = b"".join([part async for part in read_body(request, size, 10.0)])
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RequestError("the body is not JSON") from error
    if not isinstance(fields, dict) or set(fields) != set(names):
        raise RequestError(f"expected a JSON object with {', '.join(names) or 'nothing in it'}")
    return fields


def integer_parameter(text: str, low: int, high: int, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
        raise RequestError(f"{name}: expected {low} to {high}")
    return int(text)
