"""Nonsense at a server: malformed requests and malformed images. No 500, no hang, no growth of memory.

    python benchmarks/serve_fuzz.py --requests 10000 --images 2000

Requests go out as raw bytes over sockets, so that they can be as wrong as they like: broken lines, headers, lengths,
encodings, JSON, paths, bodies that end early. Images are real ones with bytes changed, cut, doubled or made up.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import numpy as np
from PIL import Image
from serving import Server, picture, running

from circle.serve import http_protocol
from circle.serve.limits import Limits

HANG_SECONDS = 60.0  # seconds after which an answer counts as a hang
ROUTES = ("state", "predict", "learn", "classes", "rename", "forget", "undo", "model", "load", "merge", "nothing")
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "get", "X" * 40, "")
TYPES = ("image/png", "image/svg+xml", "application/json", "application/octet-stream", "text/plain", "", "image/\xff")
JSONS = (
    b"{}",
    b"[]",
    b"null",
    b"{",
    b'{"label": 1}',
    b'{"label": null}',
    b'{"label": ""}',
    b'{"label": "\\ud800"}',
    b'{"label": "a\\u0000b"}',
    b'{"label": "../../etc/passwd"}',
    b'{"label": "' + b"x" * 70 + b'"}',
    b'{"label": "a", "to": {"a": 1}}',
    b'{"label": "a", "to": "a", "more": 1}',
    b'{"label": "__proto__"}',
    b'{"label": 1' + b"0" * 5000 + b"}",
    b"[" * 30_000,
    b'{"a":' * 5000,
    b"\xff\xfe",
    b"NaN",
    b'"' + b"\\u1234" * 1000,
)
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")


@dataclass
class Outcome:
    """What came of it."""

    statuses: Counter[int] = field(default_factory=Counter)  # 0: the connection was closed without an answer
    bad: list[str] = field(default_factory=list)  # hangs and answers of 500 and more, but "busy"
    memory: tuple[int, int] = (0, 0)  # bytes after a first share, and at the end
    seconds: float = 0.0


def request_bytes(chance: random.Random, host: str) -> bytes:
    """One request, wrong in some way or other."""
    body = _body(chance)
    path = f"/api/{chance.choice(ROUTES)}"
    if chance.random() < 0.2:
        path = chance.choice(
            ["/", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/api//learn", "*", "//x", "/static/..\\x"]
        )
    if chance.random() < 0.6:
        words = ["label", "hold", "group", "top", "kind", "a[]", "%ff"]
        values = ["1", "-1", "9" * 30, "", "a", "%00", "%ff%fe", quote("ä 漢字 \u202e"), "../x", "x" * 300, "\u0661"]
        path += "?" + "&".join(f"{chance.choice(words)}={chance.choice(values)}" for _ in range(chance.randint(1, 4)))
    headers = [
        (
            "Host",
            host
            if chance.random() < 0.9
            else chance.choice(["evil.example", "", "127.0.0.1.evil.example", "[::", "a:b:c"]),
        ),
        ("Content-Type", chance.choice(TYPES)),
        ("Content-Length", _length(chance, len(body))),
        ("Connection", "close"),
    ]
    if chance.random() < 0.2:
        headers.append(("Origin", chance.choice(["null", "http://evil.example", f"http://{host}", "\x80", "http://"])))
    if chance.random() < 0.2:
        headers.append(("Transfer-Encoding", chance.choice(["chunked", "gzip", "chunked, chunked", "identity"])))
    if chance.random() < 0.1:
        headers.append(
            (chance.choice(["Content-Length", "Host", "Authorization", "X" * 300]), "1" * chance.randint(1, 400))
        )
    if chance.random() < 0.1:
        headers = headers[: chance.randint(0, 3)]
    method = chance.choice(METHODS) if chance.random() < 0.3 else "POST"
    line = f"{method} {path} HTTP/{chance.choice(['1.1'] * 9 + ['1.0', '9', ''])}"
    text = "\r\n".join([line, *(f"{name}: {value}" for name, value in headers)]) + "\r\n\r\n"
    content = text.encode("latin-1", "replace") + body
    if chance.random() < 0.1:
        content = bytes(chance.randrange(256) for _ in range(chance.randint(0, 400)))
    if chance.random() < 0.1:
        spoiled = bytearray(content)
        for _ in range(chance.randint(1, 20)):
            if spoiled:
                spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
        content = bytes(spoiled)
    return content


def _body(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.5:
        return chance.choice(JSONS)
    if kind < 0.7:
        return bytes(chance.randrange(256) for _ in range(chance.randint(0, 200)))
    if kind < 0.8:
        header = json.dumps({"__metadata__": {"circle": chance.choice(["{}", "[]", "x", '{"format": 1}'])}}).encode()
        return len(header).to_bytes(8, "little") + header
    return b"" if kind < 0.9 else b"\xff" * 8 + b"{" + b"x" * 50


def _length(chance: random.Random, right: int) -> str:
    if chance.random() < 0.7:
        return str(right)
    return chance.choice(
        ["-1", "0", "x", "9" * 25, str(right + 5), str(max(0, right - 5)), "1e3", "", "\u0663", "+5", "0x10"]
    )


def spoiled_image(chance: random.Random) -> bytes:
    """A real image of some kind, no longer whole; or a head that promises too much."""
    image = Image.open(io.BytesIO(picture("class", chance.randrange(50), chance.randint(1, 60))))
    mode = chance.choice(["RGB", "L", "RGBA", "P", "1", "CMYK", "I;16"])
    kind = chance.choice(FORMATS)
    file = io.BytesIO()
    try:
        image.convert("L" if mode == "I;16" else mode).save(file, kind)
    except (OSError, ValueError):
        image.save(file, kind)
    content = bytearray(file.getvalue())
    way = chance.random()
    if way < 0.5:
        for _ in range(chance.choice([1, 3, 20, 200])):
            content[chance.randrange(len(content))] = chance.randrange(256)
    elif way < 0.7:
        del content[chance.randrange(len(content)) :]
    elif way < 0.8:
        start = chance.randrange(len(content))
        content[start:start] = content[: chance.randrange(len(content))]
    elif way < 0.9:  # a huge size in the first bytes, where most formats keep it
        start = chance.randrange(min(40, len(content)))
        content[start : start + 4] = b"\x7f\xff\xff\xff"
    else:
        start = chance.randrange(len(content))
        content[start : start + chance.randint(1, 100)] = bytes(
            chance.randrange(256) for _ in range(chance.randint(1, 100))
        )
    return bytes(content)


def send(address: tuple[str, int], content: bytes, seconds: float = HANG_SECONDS) -> int:
    """Send bytes, and say which status came back: 0 for none, -1 for a hang."""
    try:
        with socket.create_connection(address, timeout=seconds) as connection:
            connection.sendall(content)
            answer = b""
            while len(answer) < 12:
                part = connection.recv(4096)
                if not part:
                    break
                answer += part
            while connection.recv(65536):
                pass
    except TimeoutError:
        return -1
    except OSError:
        return 0
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.") and answer[9:12].isdigit() else 0


def run(folder: Path, requests: int, images: int, *, seed: int = 0, clients: int = 8) -> Outcome:
    """Fuzz a server that has something to lose."""
    outcome = Outcome()
    http_protocol.HEADER_SECONDS = 0.5  # heads that never end would take most of the time
    started = time.monotonic()
    with running(folder / "fuzz.circle", limits=Limits(rate=1e6, body_seconds=0.5)) as server:
        address = urlsplit(server.address)
        place = (str(address.hostname), int(address.port or 0))
        for number in range(4):
            label = "ab"[number % 2]
            httpx.post(
                f"{server.address}api/learn?label={label}",
                content=picture(label, number),
                headers={"content-type": "image/png"},
                timeout=60,
            )
        chance = random.Random(seed)
        contents = [(request_bytes(chance, address.netloc), "request") for _ in range(requests)]
        contents += [(_image_request(spoiled_image(chance), address.netloc, chance), "image") for _ in range(images)]
        chance.shuffle(contents)
        share = len(contents) // 4  # caches fill and models grow at first; then nothing may grow any more
        with ThreadPoolExecutor(clients) as pool:
            _all(pool, place, contents[:share], outcome)
            first = server.memory()
            _all(pool, place, contents[share:], outcome)
        outcome.memory = (first, server.memory())
        outcome.seconds = time.monotonic() - started
        _still_well(server, outcome)
    return outcome


def _image_request(content: bytes, host: str, chance: random.Random) -> bytes:
    route = chance.choice(["predict", "predict", "learn?label=a"])
    head = (
        f"POST /api/{route} HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/png\r\nContent-Length: {len(content)}\r\n"
    )
    return f"{head}Connection: close\r\n\r\n".encode() + content


def _all(
    pool: ThreadPoolExecutor, place: tuple[str, int], contents: Sequence[tuple[bytes, str]], outcome: Outcome
) -> None:
    for (content, kind), status in zip(contents, pool.map(lambda each: send(place, each[0]), contents), strict=True):
        outcome.statuses[status] += 1
        if status < 0 or (status >= 500 and status != 503):
            outcome.bad.append(f"{kind} {status}: {content[:300]!r}")


def _still_well(server: Server, outcome: Outcome) -> None:
    """The server answers as ever."""
    answer = httpx.post(
        f"{server.address}api/predict", content=picture("a", 0), headers={"content-type": "image/png"}, timeout=60
    )
    if answer.status_code not in (200, 409):  # 409: the fuzz has undone or forgotten everything
        outcome.bad.append(f"afterwards: {answer.status_code} {answer.text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(Path(folder), arguments.requests, arguments.images, seed=arguments.seed)
    first, last = (np.array(outcome.memory) / 2**20).round(1)
    print(
        f"{outcome.statuses.total():,} in {outcome.seconds:.0f} s; answers {dict(sorted(outcome.statuses.items()))}; "
        f"memory {first} MB after a quarter, {last} MB at the end; bad: {len(outcome.bad)}"
    )
    for line in outcome.bad[:10]:
        print(line)
    raise SystemExit(1 if outcome.bad or last > 1.2 * first + 20 else 0)


if __name__ == "__main__":
    main()
