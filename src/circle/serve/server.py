"""From a model file to a listening server: lock, socket, uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.machine import stop_requests
from circle.runtime import container
from circle.serve.access import AccessControl, is_loopback
from circle.serve.limits import Limits
from circle.serve.service import Service

MIN_TOKEN_LENGTH = 16  # characters at least


def import_uvicorn() -> Any:
    """Uvicorn, which with Starlette is an extra."""
    # Starlette is only looked for: the application, which is imported later, uses it.
    if any(find_spec(package) is None for package in ("starlette", "uvicorn")):
        raise CircleError("serving needs Starlette and uvicorn: pip install 'circle-cil[serve]'")
    import uvicorn

    return uvicorn


def check_address(host: str, token: str | None) -> None:
    """Refuse to be reached by others without a token."""
    if not is_loopback(host) and not token:
        raise CircleError(
            f"--host {host}: others could teach and read the model; expected a token of at least "
            f"{MIN_TOKEN_LENGTH} characters in the environment variable CIRCLE_TOKEN"
        )
    if token and (len(token) < MIN_TOKEN_LENGTH or not (token.isascii() and token.isprintable()) or " " in token):
        raise CircleError(f"CIRCLE_TOKEN: expected at least {MIN_TOKEN_LENGTH} printable characters without blanks")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, or one line that says why not."""
    if not 0 <= port <= 65535:  # some systems would take the remainder
        raise CircleError(f"--port {port}: expected 0 to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # With the protocol said, asyncio sends small answers at once instead of 40 ms later (Nagle's algorithm).
        listener = socket.socket(found[0], socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(found[4])
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CircleError(f"{host}:{port}: cannot be listened on ({reason}); expected a free address") from error
    return listener


def make_server(service: Service, host: str, token: str | None = None, host_names: Sequence[str] = ()) -> Any:
    """A uvicorn server around a service, behind its access control; ``run(sockets=[...])`` starts it."""
    uvicorn = import_uvicorn()
    from circle.serve.app import create_app
    from circle.serve.http_protocol import LimitedProtocol

    limits = service.limits
    application = AccessControl(
        create_app(service), loopback=is_loopback(host), token=token, host_names=host_names, rate=limits.rate
    )
    config = uvicorn.Config(
        application,
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=32 * 1024,
    )
    return uvicorn.Server(config)


def serve(
    path: Path,
    new_model: Callable[[], CircleClassifier],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    host_names: Sequence[str] = (),
    limits: Limits | None = None,
    check: Callable[[CircleClassifier], None] = lambda model: None,
    ready: Callable[[str, Service], None] = lambda address, service: None,
) -> None:
    """Serve a model file until a signal ends it; everything learned is in the file then.

    ``check`` may refuse the model that is there, which stays as it is.
    """
    import_uvicorn()
    check_address(host, token)
    # Uvicorn stops at a signal, and then raises it once more: by then it must not end the process any more.
    with container.exclusive(path), listen(host, port) as listener, stop_requests():
        service = Service(path, new_model, limits or Limits(), check)
        try:
            server = make_server(service, host, token, host_names)
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{listener.getsockname()[1]}/", service)
            server.run(sockets=[listener])
        finally:
            service.close()
