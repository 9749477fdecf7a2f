"""Addresses, tokens and sockets."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from factories import tiny_model

from circle.errors import CircleError
from circle.runtime import container
from circle.serve.server import check_address, listen, serve


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_others_need_a_token(host: str, tmp_path: Path) -> None:
    with pytest.raises(CircleError, match=f"--host {host}.*CIRCLE_TOKEN"):
        serve(tmp_path / "m.circle", tiny_model, host=host)
    assert list(tmp_path.iterdir()) == [], "nothing was begun"
    check_address(host, "x" * 16)


def test_poor_tokens() -> None:
    for token in ("short", "x" * 15, "with a blank in it", "ä" * 20):
        with pytest.raises(CircleError, match="CIRCLE_TOKEN: expected at least 16"):
            check_address("127.0.0.1", token)


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CircleError, match=f"127.0.0.1:{port}: cannot be listened on"):
            serve(tmp_path / "m.circle", tiny_model, port=port)
    with pytest.raises(CircleError, match="cannot be listened on"):
        listen("no.such.host.invalid", 1)
    with pytest.raises(CircleError, match="--port 99999: expected 0 to 65535"):
        listen("127.0.0.1", 99999)
    assert not (tmp_path / "m.circle").exists()


def test_one_server_per_model(tmp_path: Path) -> None:
    with container.exclusive(tmp_path / "m.circle"), pytest.raises(CircleError, match="another process"):
        serve(tmp_path / "m.circle", tiny_model, port=0)


def test_small_answers_are_sent_at_once() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP, "else asyncio does not switch Nagle's algorithm off"


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_extra_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CircleError, match=r"pip install 'circle-cil\[serve\]'"):
        serve(tmp_path / "m.circle", tiny_model, port=0)
    assert list(tmp_path.iterdir()) == [], "nothing was begun"
