"""What every request passes before anything else looks at it: host, rate, origin, token; and the answer's headers."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from circle.serve.limits import RateLimit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=(), payment=(), usb=()",
    "cache-control": "no-store",
}
_SAFE_METHODS = ("GET", "HEAD")
_ENCODED_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


def error_response(status: int, text: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of a refusal, after which the connection is closed."""
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close"), *_ENCODED_HEADERS]
    headers += [(b"retry-after", b"1")] if status in (429, 503) else []
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    return headers, body


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class AccessControl:
    """ASGI middleware around the whole application.

    - Host: a name that an attacker's DNS can point here is refused, so a rebound page reaches nothing. Numbers cannot
      be rebound; ``names`` are those that the user has said. A server bound to loopback takes loopback's alone.
    - Origin: a browser says where a request comes from; anything but this very page is refused.
    - Token: if there is one, every request of the API carries it as ``Authorization: Bearer``; the page gets it in the
      part of its address that is never sent. There are no cookies to ride on.
    """

    def __init__(
        self, application: Application, *, loopback: bool, token: str | None, host_names: Sequence[str], rate: float
    ) -> None:
        self._application = application
        self._loopback = loopback
        self._token = token.encode() if token else None
        self._names = {name.lower() for name in host_names}
        self._rate = RateLimit(rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        from h11 import LocalProtocolError  # it comes with uvicorn, an extra that nobody needs to read this file

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *((n, v) for n, v in _ENCODED_HEADERS if n not in own)]
            # Who breaks the protocol while the answer is on its way has lost the connection, and gets none.
            with contextlib.suppress(LocalProtocolError):
                await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._application(scope, receive, send_with_headers)
            return
        status, text = refusal
        headers, body = error_response(status, text)
        await send_with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await send_with_headers({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason, if the request may not pass."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        if any(len(headers.get(name, [])) > 1 for name in (b"host", b"origin", b"authorization", b"content-length")):
            return 400, "duplicate header; expected each of them once"
        host = headers.get(b"host", [b""])[0].decode("latin-1").lower()
        if not self._is_host(host):
            return 421, "host: expected the address that the server was started with"
        client = scope.get("client")
        if not self._rate.allows(client[0] if client else ""):
            return 429, "too many requests: try again in a moment"
        if not scope["path"].startswith("/api/"):
            return None if scope["method"] in _SAFE_METHODS else (405, "expected GET")
        site = headers.get(b"sec-fetch-site", [b"same-origin"])[0]
        if site not in (b"same-origin", b"none") or (site == b"none" and scope["method"] not in _SAFE_METHODS):
            return 403, "a request from another page"
        origin = headers.get(b"origin", [None])[0]
        if origin is not None and origin.decode("latin-1").lower() not in (f"http://{host}", f"https://{host}"):
            return 403, "a request from another page"
        if self._token is not None:
            given = headers.get(b"authorization", [b""])[0]
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                return 401, "expected the token of this server"
        return None

    def _is_host(self, host: str) -> bool:
        """Whether the Host header names this server: name or number, with or without a port."""
        name, _, port = host.rpartition(":") if host.rpartition(":")[2].isdigit() else (host, "", "")
        name = name[1:-1] if name.startswith("[") and name.endswith("]") else name
        if not port and ":" in name and not host.startswith("["):
            return False
        if name in self._names or is_loopback(name):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return not self._loopback
