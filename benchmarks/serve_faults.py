"""What can happen to a server: kill -9 at random moments, a full disk, a damaged file. No acknowledged lesson is lost.

    python benchmarks/serve_faults.py --kills 50

A client teaches without pause, now and then undoes or forgets, and writes down what was acknowledged. The server is
killed at a random moment, started again, and must hold all of that; of what was under way when it died, all or nothing.
Then journals are torn, files damaged, and the disk of a small file system is filled.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from serving import Server, picture, running, tiny_model, until

from circle import CircleClassifier
from circle.data.decode import read_pixels
from circle.errors import CircleError
from circle.serve import workers
from circle.serve.recovery import journal_path

HEADERS = {"content-type": "image/png"}


@dataclass
class Pupil:
    """What a model must hold: (class, number) of every image, in the order of learning."""

    images: list[tuple[str, int]] = field(default_factory=list)

    def after(self, step: tuple[Any, ...]) -> Pupil:
        """The same after one more acknowledged step."""
        kind, *rest = step
        if kind == "learn":
            return Pupil([*self.images, (rest[0], rest[1])])
        if kind == "undo":
            return Pupil(self.images[:-1])
        return Pupil([each for each in self.images if each[0] != rest[0]])  # forget

    def model(self) -> CircleClassifier:
        """The same lessons learned offline, at once."""
        model = tiny_model()
        model.prepare(model.input_config())
        if self.images:
            pixels = [read_pixels(picture(*each), model.input_config(), "image") for each in self.images]
            model.partial_fit(torch.from_numpy(np.stack(pixels)), [label for label, _ in self.images])
        return model


class Client(threading.Thread):
    """Teaches until the server is gone; knows what was acknowledged, and what was under way."""

    def __init__(self, address: str, pupil: Pupil, first: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._address, self._number, self._random = address, first, random.Random(seed)
        self.pupil = pupil
        self.acknowledged = 0
        self.under_way: tuple[Any, ...] | None = None
        self.problem = ""
        self.start()

    def run(self) -> None:
        with contextlib.suppress(httpx.TransportError), httpx.Client(base_url=self._address, timeout=60) as client:
            while True:
                self.under_way = self._next()
                response = self._send(client, self.under_way)
                if response.status_code != 200:
                    self.problem = f"{self.under_way}: {response.status_code} {response.text}"
                    return
                self.pupil = self.pupil.after(self.under_way)
                self.acknowledged += 1
                self.under_way = None

    def _next(self) -> tuple[Any, ...]:
        self._number += 1
        chance = self._random.random()
        if chance < 0.1 and self.pupil.images:
            return ("undo",)
        if chance < 0.12 and self.pupil.images:
            return "forget", self.pupil.images[-1][0]
        return "learn", f"class {self._number % 5}", self._number

    def _send(self, client: httpx.Client, step: tuple[Any, ...]) -> httpx.Response:
        if step[0] == "learn":
            return client.post(
                "/api/learn", params={"label": step[1]}, content=picture(step[1], step[2]), headers=HEADERS
            )
        return client.post(f"/api/{step[0]}", json={} if step[0] == "undo" else {"label": step[1]})


def kill_often(folder: Path, kills: int, seed: int = 0, lessons: int = 12) -> dict[str, int]:
    """Kill a server again and again; an AssertionError if it ever forgets, or learns what nobody sent."""
    chance, path, pupil = random.Random(seed), folder / "kill.circle", Pupil()
    workers.CHECKPOINT_JOURNAL_BYTES = 1000  # a checkpoint after every lesson, so that many kills meet one
    counts = {"kills": 0, "acknowledged": 0, "under_way_kept": 0, "under_way_gone": 0, "leftovers": 0}
    for turn in range(kills):
        server = Server(path)
        client = Client(server.address, pupil, turn * 1_000_000, turn)
        wanted = chance.randint(1, lessons)
        assert until(lambda client=client, wanted=wanted: bool(client.acknowledged >= wanted or client.problem))
        time.sleep(chance.uniform(0.0, 0.1))
        server.kill()
        client.join()
        assert not client.problem, client.problem
        counts["leftovers"] += len(list(folder.glob(".*.tmp")))
        CircleClassifier.load(path)  # never half-written: whole at every moment
        candidates = [client.pupil, *([client.pupil.after(client.under_way)] if client.under_way else [])]
        with running(path) as again:
            found = _downloaded(again.address)
            held = [each for each in candidates if _same(each.model(), found)]
            assert held, f"turn {turn}: neither the acknowledged lessons nor those and {client.under_way}"
        pupil = held[0]
        counts["kills"] += 1
        counts["acknowledged"] += client.acknowledged
        counts["under_way_kept"] += int(client.under_way is not None and held[0] is not candidates[0])
        counts["under_way_gone"] += int(client.under_way is not None and held[0] is candidates[0])
        assert _same(CircleClassifier.load(path), pupil.model()), "in the file after an ordinary end"
    return counts


def _downloaded(address: str) -> CircleClassifier | None:
    """The model that a server holds, or nothing if it has learned nothing."""
    response = httpx.get(f"{address}api/model", timeout=60)
    if response.status_code == 409:
        return None
    response.raise_for_status()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.circle"
        file.write_bytes(response.content)
        return CircleClassifier.load(file)


def _same(one: CircleClassifier, other: CircleClassifier | None) -> bool:
    if other is None or not other.statistics_[0].samples:
        return not one.statistics_[0].samples
    # What was forgotten with its images at hand leaves no trace, so the statistics are equal, scatter and all.
    return one.statistics_ == other.statistics_


@contextlib.contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """A file system of this size; needs the right to mount one."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def fill_disk(folder: Path) -> dict[str, int]:
    """Teach until the disk is full; then make room, and go on. ``folder`` is on a small file system."""
    path, pupil, refused = folder / "full.circle", Pupil(), 0
    with running(path) as server, httpx.Client(base_url=server.address, timeout=60) as client:

        def teach(number: int) -> int:
            label = f"class {number % 5}"
            content = picture(label, number)
            answer = client.post("/api/learn", params={"label": label}, content=content, headers=HEADERS)
            if answer.status_code == 200:
                pupil.images.append((label, number))
            return answer.status_code

        for number in range(5):
            assert teach(number) == 200
        ballast = folder / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(1024))
                file.flush()
        number = 5
        while refused < 5 and number < 5000:
            status = teach(number)
            assert status in (200, 507), status
            refused += status == 507
            number += 1
        assert refused == 5, "the disk was never full"
        assert client.post("/api/predict", content=picture("class 0", 1), headers=HEADERS).status_code == 200
        server.kill()
        ballast.unlink()
    with running(path) as server, httpx.Client(base_url=server.address, timeout=60) as client:
        assert _same(pupil.model(), _downloaded(server.address)), "every acknowledged lesson, and no other"
        label = "class 0"
        answer = client.post("/api/learn", params={"label": label}, content=picture(label, 10**6), headers=HEADERS)
        assert answer.status_code == 200, answer.text
    return {"acknowledged": len(pupil.images), "refused": refused}


def damage(folder: Path) -> int:
    """Damaged and missing files at the start: one line, a code that is not 0, and nothing changed."""
    path = folder / "damaged.circle"
    with running(path) as server:
        for number in range(6):
            params = {"label": f"class {number % 2}"}
            content = picture(params["label"], number)
            httpx.post(f"{server.address}api/learn", params=params, content=content, headers=HEADERS, timeout=60)
        server.kill()
    journal = journal_path(path)
    model, lessons = path.read_bytes(), journal.read_bytes()
    flip = lambda content, at: content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]  # noqa: E731
    cases: list[tuple[bytes | None, bytes | None, str]] = [
        (flip(model, len(model) - 9), lessons, "damaged model file"),
        (model[: len(model) // 2], lessons, "truncated"),
        (b"something else", lessons, "not a CIRCLE model"),
        (None, lessons, "no such model file"),
        (model, flip(lessons, 30), "damaged journal"),
        (model, flip(lessons, len(lessons) // 2), "damaged"),  # a frame in the middle, or the base
        (model, b"", "damaged journal"),
    ]
    for content, steps, message in cases:
        for file, data in ((path, content), (journal, steps)):
            file.unlink(missing_ok=True)
            if data is not None:
                file.write_bytes(data)
        try:
            Server(path).kill()
            raise AssertionError(f"started in spite of: {message}")
        except CircleError as error:
            assert message in str(error) and "\n" not in str(error), error
        assert (path.read_bytes() if path.exists() else None) == content
        assert (journal.read_bytes() if journal.exists() else None) == steps
    return len(cases)


def torn(folder: Path) -> int:
    """The journal cut off at every byte of its last frame: that lesson was never acknowledged, all others are there."""
    path = folder / "torn.circle"
    journal, sizes = journal_path(path), []
    with running(path) as server:
        for number in range(3):
            content = picture("class 0", number)
            httpx.post(f"{server.address}api/learn?label=class+0", content=content, headers=HEADERS, timeout=60)
            sizes.append(journal.stat().st_size)
        server.kill()
    model, lessons = path.read_bytes(), journal.read_bytes()
    cuts = [sizes[1], sizes[1] + 1, sizes[1] + 10, sizes[1] + 100, sizes[2] - 1]
    for cut in cuts:
        path.write_bytes(model)
        journal.write_bytes(lessons[:cut])
        with running(path) as server:
            state = httpx.get(f"{server.address}api/state", timeout=60).json()
            assert state["samples"] == 2, (cut, state)
    return len(cuts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lessons", type=int, default=12, help="the most lessons that a server lives for")
    parser.add_argument("--no-disk", action="store_true", help="leave the full disk out, which needs root")
    arguments = parser.parse_args()
    programs: dict[str, Callable[[Path], object]] = {
        "killed": lambda folder: kill_often(folder, arguments.kills, arguments.seed, arguments.lessons),
        "torn journal": torn,
        "damaged files": damage,
    }
    for name, program in programs.items():
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}: {program(Path(folder))}", flush=True)
    if not arguments.no_disk:
        with small_disk("400k") as folder:
            print(f"full disk: {fill_disk(folder)}", flush=True)


if __name__ == "__main__":
    main()
