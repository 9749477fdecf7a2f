"""The routes: a page with its static files, and a JSON API. No part of a request ever becomes a path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from circle.errors import CircleError, UnreadableImageError
from circle.learner import NotLearnedError
from circle.serve.limits import MAX_JSON_BYTES, RequestError, StorageError
from circle.serve.model_store import clean_name
from circle.serve.service import Service, ranked

STATIC_FOLDER = Path(__file__).with_name("static")
STATIC_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/camera.js": ("camera.js", "text/javascript; charset=utf-8"),
    "/parts.js": ("parts.js", "text/javascript; charset=utf-8"),
    "/api.js": ("api.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
RETRY_HEADERS = {"Retry-After": "1"}
Handler = Callable[[Request], Awaitable[Response]]


def create_app(service: Service) -> Starlette:
    """The application around a service."""
    api = _Api(service)
    routes = [
        *(Route(path, _page(*page), methods=["GET"]) for path, page in STATIC_FILES.items()),
        Route("/api/state", api.state, methods=["GET"]),
        Route("/api/predict", api.predict, methods=["POST"]),
        Route("/api/learn", api.learn, methods=["POST"]),
        Route("/api/classes", api.create_class, methods=["POST"]),
        Route("/api/rename", api.rename, methods=["POST"]),
        Route("/api/forget", api.forget, methods=["POST"]),
        Route("/api/undo", api.undo, methods=["POST"]),
        Route("/api/model", api.download, methods=["GET"]),
        Route("/api/load", api.load, methods=["POST"]),
        Route("/api/merge", api.merge, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {
        CircleError: _handle_circle_error,
        HTTPException: _handle_http_error,
        ClientDisconnect: _handle_disconnect,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def _page(name: str, kind: str) -> Handler:
    content = (STATIC_FOLDER / name).read_bytes()

    async def page(_: Request) -> Response:
        return Response(content, headers={"content-type": kind, "cache-control": "no-cache"})

    return page


async def _handle_circle_error(_: Request, error: Exception) -> Response:
    """One line that says what was expected, with a status that says whose turn it is."""
    if isinstance(error, (RequestError, StorageError)):
        status = error.status
    elif isinstance(error, UnreadableImageError):
        status = 422
    else:
        status = 409 if isinstance(error, NotLearnedError) else 400
    return JSONResponse({"error": str(error)}, status, RETRY_HEADERS if status in (503, 507) else None)


async def _handle_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _handle_disconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=400)  # nobody is there to read it


class _Api:
    """One method per route; each takes the request apart, asks the service, and gives its answer."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def state(self, _: Request) -> Response:
        return JSONResponse(self._service.state())

    async def predict(self, request: Request) -> Response:
        top = integer_parameter(request.query_params.get("top", "10"), 1, self._service.limits.classes, "top")
        async with self._image(request) as content:
            prediction = await self._service.predict(content)
        return JSONResponse({"predictions": ranked(prediction, top), "version": prediction.snapshot.version})

    async def learn(self, request: Request) -> Response:
        name = clean_name(request.query_params.get("label"))
        hold = integer_parameter(request.query_params.get("hold", "0"), 0, 1, "hold")
        group = request.query_params.get("group", "")
        if group and not (len(group) <= 32 and group.isascii() and group.isalnum()):
            raise RequestError("group: expected at most 32 letters and digits")
        async with self._image(request) as content:
            outcome = await self._service.learn(name, content, hold=bool(hold), group=group)
        status = self._service.writer.status
        counts = next((each for label, each in status.classes.items() if str(label) == name), (0, 0))
        answer = {"outcome": outcome, "label": name, "learned": counts[0], "held": counts[1]}
        return JSONResponse({**answer, "samples": status.samples, "version": status.version})

    async def create_class(self, request: Request) -> Response:
        name = clean_name((await json_fields(request, "label"))["label"])
        label = await self._service.change(lambda store: store.create_class(name))
        return JSONResponse({"label": str(label)}, 201)

    async def rename(self, request: Request) -> Response:
        fields = await json_fields(request, "label", "to")
        name, to = clean_name(fields["label"]), clean_name(fields["to"])
        label = await self._service.change(lambda store: store.rename(name, to))
        return JSONResponse({"label": str(label)})

    async def forget(self, request: Request) -> Response:
        name = clean_name((await json_fields(request, "label"))["label"])
        # The writer does both at once: nothing of anybody can come into the journal between them.
        exact, erased = await self._service.change(lambda store: (store.forget(name), not store.journal_bytes))
        await self._service.wait_for_snapshot()
        return JSONResponse({"label": name, "exact": exact, "erased": erased})

    async def undo(self, request: Request) -> Response:
        await json_fields(request)
        learn_request = await self._service.change(lambda store: store.undo())
        await self._service.wait_for_snapshot()
        labels = dict.fromkeys(str(example.label) for example in learn_request)
        return JSONResponse({"images": len(learn_request), "labels": list(labels), "group": learn_request[0].group})

    async def download(self, request: Request) -> Response:
        kind = request.query_params.get("kind", "learning")
        if kind not in ("learning", "prediction"):
            raise RequestError("kind: expected learning or prediction")
        service = self._service
        transfer = service.transfer()
        folder = await transfer.__aenter__()
        try:
            file = folder / "model.circle"
            await service.save_copy(file, for_prediction=kind == "prediction")
        except BaseException:
            await transfer.__aexit__(None, None, None)
            raise
        return _TemporaryFileResponse(file, transfer, filename=service.path.name)

    async def load(self, request: Request) -> Response:
        return await self._receive_model(request, merge=False)

    async def merge(self, request: Request) -> Response:
        return await self._receive_model(request, merge=True)

    async def _receive_model(self, request: Request, *, merge: bool) -> Response:
        service = self._service
        size = body_size(request, "application/octet-stream", service.limits.model_bytes)
        async with service.transfer() as folder:
            file = folder / "model.circle"
            # The server's own folder and name, whatever the request says; written while it arrives.
            with file.open("wb") as target:
                async for part in read_body(request, size, 10 * service.limits.body_seconds):
                    await asyncio.to_thread(target.write, part)
            twice = await service.import_model(file, merge=merge)
        await service.wait_for_snapshot()
        return JSONResponse({"twice": twice} if merge else {})

    @asynccontextmanager
    async def _image(self, request: Request) -> AsyncIterator[bytes]:
        """The bytes of an image in a request's body; they count in the budget until the answer is made."""
        limits = self._service.limits
        size = body_size(request, "image/", limits.image_bytes)
        with self._service.budget.taken(size):
            yield b"".join([part async for part in read_body(request, size, limits.body_seconds)])


class _TemporaryFileResponse(FileResponse):
    """A file that is gone once it was sent."""

    def __init__(self, path: Path, transfer: Any, **options: Any) -> None:
        super().__init__(path, media_type="application/octet-stream", **options)
        self._transfer = transfer

    async def __call__(self, *arguments: Any) -> None:
        try:
            await super().__call__(*arguments)
        finally:
            await self._transfer.__aexit__(None, None, None)


# -- requests taken apart: sizes are known before anything is read, and all of it arrives in time or not at all


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
