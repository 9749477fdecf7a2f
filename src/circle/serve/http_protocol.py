"""HTTP as uvicorn speaks it, but for heads that never end, connections beyond the limit, and how junk is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from circle.serve.access import Receive, Scope, Send, error_response

HEADER_SECONDS = 30.0


class LimitedProtocol(H11Protocol):
    """Closes a connection on which no whole head has come for a while; bodies have a limit of their own.

    As many connections again as the limit allows are told that the server is busy; any further one is closed at once.
    Uvicorn's own refusals are plain text without the headers of all other answers (``access.py``), so these are ours.
    """

    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        limit, self.limit_concurrency = self.limit_concurrency, None
        if limit is not None and len(self.connections) > limit:
            self.app: Any = _too_many_connections
            if len(self.connections) > 2 * limit:
                transport.abort()
                return
        self._update_timer()

    def send_400_response(self, msg: str) -> None:
        headers, body = error_response(400, msg)
        events = [h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()]
        try:
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer is under way already, and cannot be finished
            pass
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _update_timer(self) -> None:
        """Let time run while the head of a request is awaited, and not otherwise."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(HEADER_SECONDS, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_timeout(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.close()


async def _too_many_connections(scope: Scope, _: Receive, send: Send) -> None:
    """The whole application for a connection beyond the limit."""
    headers, body = error_response(503, "too many connections: try again in a moment")
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
