"""The API as a client sees it, over a socket."""

from __future__ import annotations

import io
import re
import socket
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from factories import learned, png
from PIL import Image

from circle import CircleClassifier, Predictor
from circle.serve import http_protocol
from circle.serve.app import STATIC_FILES
from circle.serve.limits import Limits

IMAGE = {"content-type": "image/png"}
MODEL = {"content-type": "application/octet-stream"}


class Api(httpx.Client):
    """A client of one server."""

    def learn(self, label: str, number: int = 0, **params: str) -> httpx.Response:
        return self.post("/api/learn", params={"label": label, **params}, content=png(label, number), headers=IMAGE)


@pytest.fixture
def server(start_server: Callable[..., Any]) -> Any:
    return start_server()


@pytest.fixture
def api(server: Any) -> Any:
    with Api(base_url=server.address, timeout=60) as client:
        yield client


def test_teach_ask_and_change(api: Api, server: Any, tmp_path: Path) -> None:
    assert api.post("/api/predict", content=png("ant"), headers=IMAGE).status_code == 409
    assert api.get("/api/model").status_code == 409
    assert api.post("/api/classes", json={"label": "cow"}).status_code == 201
    for number in range(3):
        for label in ("ant", "bee"):
            answer = api.learn(label, number, group="g1")
    assert answer.json() == {"outcome": "learned", "label": "bee", "learned": 3, "held": 0, "samples": 6, "version": 7}
    assert api.learn("bee", 2).json()["outcome"] == "known"
    assert server.service.snapshot_updater.wait(7, 60)
    answer = api.post("/api/predict?top=1", content=png("bee", 77), headers=IMAGE).json()
    assert [each["label"] for each in answer["predictions"]] == ["bee"]
    assert api.post("/api/rename", json={"label": "bee", "to": "wasp"}).json() == {"label": "wasp"}
    answer = api.post("/api/predict", content=png("bee", 77), headers=IMAGE).json()
    assert [each["label"] for each in answer["predictions"]] == ["wasp", "ant"]
    file = tmp_path / "copy.circle"
    file.write_bytes(api.get("/api/model").content)
    assert CircleClassifier.load(file).statistics_ == server.service.store.model.statistics_
    small = api.get("/api/model?kind=prediction")
    assert "model.circle" in small.headers["content-disposition"]
    (tmp_path / "small.circle").write_bytes(small.content)
    assert Predictor.load(tmp_path / "small.circle").predict_proba([Image.open(io.BytesIO(png("ant")))]).shape
    assert api.post("/api/load", content=small.content, headers=MODEL).json()["error"].startswith("this model only")
    assert api.post("/api/merge", content=file.read_bytes(), headers=MODEL).json() == {"twice": 6}
    assert api.get("/api/state").json()["samples"] == 12
    assert api.post("/api/load", content=file.read_bytes(), headers=MODEL).status_code == 200
    assert api.post("/api/undo", json={}).status_code == 409
    assert api.post("/api/forget", json={"label": "wasp"}).json() == {"label": "wasp", "exact": False, "erased": True}
    state = api.get("/api/state").json()
    assert [(each["label"], each["learned"]) for each in state["classes"]] == [("ant", 3)]


def test_models_one_after_the_other_and_at_once(api: Api) -> None:
    api.learn("ant")
    for _ in range(20):
        assert api.get("/api/model?kind=prediction").status_code == 200, "its own last download is no reason to refuse"
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: httpx.get(f"{api.base_url}/api/model", timeout=60), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len({answer.content for answer in answers}) == 1


def test_undo_over_the_api(api: Api, server: Any) -> None:
    api.learn("ant", 0)
    before = server.service.store.model.copy()
    api.learn("ant", 1, group="drop")
    api.learn("bee", 1, group="drop")
    assert api.get("/api/state").json()["undo"] == {"labels": ["ant", "bee"], "images": 2}
    assert api.post("/api/undo", json={}).json() == {"images": 2, "labels": ["ant", "bee"], "group": "drop"}
    assert server.service.store.model.statistics_ == before.statistics_


@pytest.fixture(scope="module")
def empty_server(start_module_server: Callable[..., Any]) -> Any:
    """One server for all requests that change nothing."""
    return start_module_server(limits=Limits(image_bytes=100_000))


@pytest.mark.parametrize(
    ("path", "options", "status", "message"),
    [
        ("/api/learn?label=a", {"content": b"x", "headers": {"content-type": "text/plain"}}, 415, "expected image/"),
        ("/api/learn", {"content": b"x", "headers": IMAGE}, 400, "label"),
        ("/api/learn?label=a&hold=2", {"content": b"x", "headers": IMAGE}, 400, "hold: expected 0 to 1"),
        ("/api/learn?label=a&group=../x", {"content": b"x", "headers": IMAGE}, 400, "group"),
        ("/api/learn?label=a", {"content": b"no image", "headers": IMAGE}, 422, "not a readable image"),
        ("/api/learn?label=a", {"content": iter([b"x"]), "headers": IMAGE}, 411, "content-length"),
        ("/api/learn?label=a", {"content": bytes(100_001), "headers": IMAGE}, 413, "at most 100000"),
        ("/api/predict?top=x", {"content": b"x", "headers": IMAGE}, 400, "top"),
        ("/api/classes", {"json": {}}, 400, "expected a JSON object with label"),
        ("/api/classes", {"json": {"label": 7}}, 400, "expected text"),
        ("/api/classes", {"content": b"[" * 9000, "headers": {"content-type": "application/json"}}, 400, "JSON"),
        ("/api/classes", {"data": {"label": "a"}}, 415, "expected application/json"),
        ("/api/rename", {"json": {"label": "a", "to": "b"}}, 409, "not in the model"),
        ("/api/load", {"content": b"x", "headers": MODEL}, 400, "not a CIRCLE model"),
        ("/api/merge", {"content": b"", "headers": MODEL}, 400, "not a CIRCLE model"),
        ("/api/nothing", {"json": {}}, 404, "Not Found"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    empty_server: Any, path: str, options: dict[str, Any], status: int, message: str
) -> None:
    server = empty_server
    answer = httpx.post(f"{server.address}{path}", timeout=60, **options)
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text
    assert "\n" not in answer.json()["error"]
    assert server.service.store.sequence == 0, "nothing was changed"


def test_no_path_of_a_request_reaches_the_disk(server: Any) -> None:
    for path in ("/../app.py", "/static/app.js", "/%2e%2e/%2e%2e/etc/passwd", "/index.html", "//etc/passwd"):
        assert httpx.get(f"{server.address}{path}").status_code == 404
    answer = httpx.post(f"{server.address}/api/classes", json={"label": "../../escape"}, timeout=60)
    assert answer.status_code == 201
    assert {each.name for each in server.service.path.parent.iterdir()} == {"model.circle", "model.circle.journal"}


def test_a_bomb_is_refused_and_the_server_goes_on(start_server: Callable[..., Any]) -> None:
    server = start_server(limits=Limits(image_pixels=1_000_000, image_seconds=5))
    bomb = io.BytesIO()
    Image.new("1", (14_000, 14_000)).save(bomb, "PNG", compress_level=1)  # above Pillow's own limit, too
    with Api(base_url=server.address, timeout=60) as api:
        answer = api.post("/api/learn?label=a", content=bomb.getvalue(), headers=IMAGE)
        assert (answer.status_code, "too large" in answer.text) == (422, True)
        assert api.learn("ant").status_code == 200


def test_busy_is_said_with_a_time_to_come_back(start_server: Callable[..., Any]) -> None:
    import threading

    server = start_server(limits=Limits(waiting=1))
    begun, go_on = threading.Event(), threading.Event()

    def block_writer(_: object) -> None:
        begun.set()
        assert go_on.wait(60)

    server.service.writer.submit(block_writer)
    assert begun.wait(60)
    server.service.writer.submit(lambda _: None)
    with Api(base_url=server.address, timeout=60) as api:
        answer = api.learn("ant")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert api.get("/api/state").status_code == 200, "looking does not wait for the writer"
        go_on.set()
        assert api.learn("ant").status_code in (200, 503)


def test_a_body_that_does_not_come(start_server: Callable[..., Any]) -> None:
    server = start_server(limits=Limits(body_seconds=0.2))
    head = (
        b"POST /api/learn?label=a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: 9\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head + b"1234")
        assert b" 408 " in connection.recv(4096)


def test_a_head_that_does_not_end(start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.2)
    server = start_server()
    for begun in (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(begun)
            assert connection.recv(4096) == b"", "closed"


def test_page_and_scripts_need_nothing_from_elsewhere(server: Any) -> None:
    text = ""
    for path in STATIC_FILES:
        answer = httpx.get(f"{server.address}{path}")
        assert answer.status_code == 200
        text += answer.text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    page = httpx.get(server.address).text
    assert not re.search(r"<style|style=|<script(?![^>]* src=)| on[a-z]+=", page), "nothing inline"
    assert "innerHTML" not in text


def test_uploads_that_are_made_to_harm(api: Api, server: Any, tmp_path: Path) -> None:
    good = tmp_path / "good.circle"
    learned([("ant", 0)]).save(good)
    content = good.read_bytes()
    assert api.post("/api/merge", content=content, headers=MODEL).status_code == 200
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("data.pkl", b"\x80\x04cos\nsystem\n")
    bad = [
        content[:-10],
        content[: len(content) // 2],
        b"\xff" * 8 + content[8:],
        archive.getvalue(),
        b"\x80\x04cos\nsystem\n(S'false'\ntR.",
        content.replace(b'\\"samples\\"', b'\\"sampels\\"'),
        content.replace(b'\\"seed\\": 0', b'\\"seed\\": 9'),
        content.replace(b'\\"members\\": 1', b'\\"members\\": 7'),
        content.replace(b"ant", b"a\x00t"),
    ]
    for number, each in enumerate(bad):
        for path in ("/api/merge", "/api/load"):
            answer = api.post(path, content=each, headers=MODEL)
            assert (answer.status_code == 400) or number == 5, (number, answer.text)
            assert str(tmp_path) not in answer.text
            assert answer.status_code < 500
    assert api.get("/api/state").json()["samples"] >= 1
