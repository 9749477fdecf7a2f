"""Who gets in: hosts, origins, tokens, rates; and what every answer says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from h11 import LocalProtocolError

from circle.serve.access import SECURITY_HEADERS, AccessControl

TOKEN = "open-sesame-0123456789"


def visit(path: str = "/api/state", method: str = "GET", rate: float = 100, **options: Any) -> tuple[int, dict]:
    """Send one request through the access control; status and headers of the answer. 200 means that it got in."""
    given = options.pop("headers", {})
    host = options.pop("host", "127.0.0.1:8000")
    headers = [(b"host", host.encode("latin-1"))] if host is not None else []
    headers += [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in given.items()]
    access = AccessControl(_inside, **{"loopback": True, "token": None, "host_names": (), "rate": rate, **options})
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "method": method, "headers": headers, "client": ("127.0.0.1", 1)}
    asyncio.run(access(scope, _nothing, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


async def _inside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


async def _nothing() -> Any:
    return {"type": "http.request"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:1", "LOCALHOST", "[::1]:8000", "127.1.2.3"])
def test_own_hosts(host: str) -> None:
    assert visit(host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:8000",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            None,
            "192.168.1.5",
        ),
        *(
            "127.0.0.1:8000:8000",
            "127.0.0.1@evil.example",
            "[::1",
            "::1",
            "2130706433",
            "0x7f.1",
            "127.0.0.1:x",
            "\xff",
        ),
    ],
)
def test_a_rebound_name_reaches_nothing(host: str | None) -> None:
    for path in ("/", "/api/state"):
        assert visit(path, host=host)[0] == 421


def test_names_and_numbers_of_a_server_for_others() -> None:
    assert visit(host="192.168.1.5:8000", loopback=False)[0] == 200, "a number cannot be rebound"
    assert visit(host="box.example", loopback=False)[0] == 421
    assert visit(host="Box.example:80", loopback=False, host_names=["box.example"])[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9000"},
        {"origin": "http://localhost:8000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "none"},
    ],
)
def test_other_pages_change_nothing(headers: dict[str, str]) -> None:
    assert visit("/api/undo", "POST", headers=headers)[0] == 403


def test_the_page_itself_and_programs_get_in() -> None:
    own = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    assert visit("/api/undo", "POST", headers=own)[0] == 200
    assert visit("/api/undo", "POST")[0] == 200, "curl says nothing of its origin, and carries nobody's rights"
    assert visit("/api/state", headers={"sec-fetch-site": "none"})[0] == 200, "typed into the address bar"


def test_tokens() -> None:
    for headers, status in (
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": TOKEN}, 401),
        ({"authorization": f"Bearer {TOKEN}"}, 200),
    ):
        assert visit("/api/state", headers=headers, token=TOKEN)[0] == status
    assert visit("/", token=TOKEN)[0] == 200, "the page holds no secret, and asks for the token"
    assert visit("/", "POST", token=TOKEN)[0] == 405


def test_rates_and_doubled_headers() -> None:
    status, headers = visit(rate=0.1)
    assert (status, headers["retry-after"]) == (429, "1")
    access = AccessControl(_inside, loopback=True, token=None, host_names=(), rate=100)
    scope = {"path": "/", "method": "GET", "headers": [(b"host", b"127.0.0.1"), (b"host", b"evil.example")]}
    assert access._refusal(scope) == (400, "duplicate header; expected each of them once")


@pytest.mark.parametrize(("path", "host"), [("/", "127.0.0.1"), ("/api/state", "127.0.0.1"), ("/", "evil.example")])
def test_every_answer_has_the_headers(path: str, host: str) -> None:
    headers = visit(path, host=host)[1]
    assert SECURITY_HEADERS.items() <= headers.items()
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "data:" not in policy


@pytest.mark.parametrize("host", ["127.0.0.1", "evil.example"])
def test_who_breaks_the_protocol_meanwhile_gets_no_answer_and_no_traceback(host: str) -> None:
    """Found by fuzzing: junk after a request ends the connection while the answer to the request is on its way."""

    async def closed(message: Any) -> None:
        raise LocalProtocolError("can't handle event type Response when role=SERVER and state=MUST_CLOSE")

    access = AccessControl(_inside, loopback=True, token=None, host_names=(), rate=100)
    scope = {"type": "http", "path": "/", "method": "GET", "headers": [(b"host", host.encode())], "client": None}
    asyncio.run(access(scope, _nothing, closed))
