"""What never reaches the application: connections beyond the limit, and what is no HTTP. Heads: test_app.py."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx

from circle.serve.access import SECURITY_HEADERS
from circle.serve.limits import Limits


def answer_to(connection: socket.socket, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer after which the server closes the connection."""
    connection.sendall(request)
    content = b""
    while part := connection.recv(65536):
        content += part
    head, _, body = content.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    return int(line.split()[1]), {name.lower(): value for name, value in (each.split(": ", 1) for each in fields)}, body


def connected(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def test_junk_is_refused_like_everything_else(start_server: Callable[..., Any]) -> None:
    server = start_server()
    for junk in (b"\x00\xff\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET / HTTP/1.1\r\nno header\r\n\r\n"):
        with connected(server) as connection:
            status, headers, body = answer_to(connection, junk)
        assert status == 400
        assert SECURITY_HEADERS.items() <= headers.items()
        assert "Invalid HTTP" in json.loads(body)["error"]
    assert httpx.get(server.address).status_code == 200


def test_junk_behind_a_request_ends_the_connection(start_server: Callable[..., Any]) -> None:
    server = start_server()
    with connected(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n\x00\xff\r\n\r\n")
        content = b""
        while part := connection.recv(65536):
            content += part
    assert content.startswith(b"HTTP/1.1 200")


def test_connections_beyond_the_limit(start_server: Callable[..., Any]) -> None:
    server = start_server(limits=Limits(connections=2))
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=server.address)) for _ in range(2)]
        assert [client.get("/").status_code for client in clients] == [200, 200]  # both stay connected
        with connected(server) as third:
            status, headers, body = answer_to(third, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert SECURITY_HEADERS.items() <= headers.items()
        assert json.loads(body) == {"error": "too many connections: try again in a moment"}
        silent = [stack.enter_context(connected(server)) for _ in range(3)]
        assert silent[2].recv(100) == b"", "closed at once: it would be one more than twice the limit"
        assert [client.get("/").status_code for client in clients] == [200, 200], "who is in goes on"
        for each in (*clients, *silent):
            each.close()
        deadline = time.monotonic() + 30
        while httpx.get(server.address).status_code != 200:
            assert time.monotonic() < deadline, "nobody gets in, though all have left"
