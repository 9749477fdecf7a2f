"""Many clients at once on loopback, some predict and some teach: nothing but "busy" goes wrong, and every bit is right.

    python benchmarks/serve_load.py --predicting 32 --teaching 4 --seconds 30

Afterwards the statistics in the model file are compared, bit for bit, with those of the same lessons learned offline.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import torch
from serving import fast_model, picture, running, tiny_model

from circle import CircleClassifier
from circle.data.decode import read_pixels

HEADERS = {"content-type": "image/png"}
CLASSES = [f"class {number}" for number in range(8)]


@dataclass
class Outcome:
    """What the clients saw."""

    latencies: list[float] = field(default_factory=list)  # seconds of each prediction that was answered
    lesson_latencies: list[float] = field(default_factory=list)
    lessons: list[tuple[str, int]] = field(default_factory=list)  # acknowledged
    processor_seconds: float = 0.0  # of the server while the clients were there
    busy: int = 0
    errors: list[str] = field(default_factory=list)
    equal: bool = False

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.latencies, share)) if self.latencies else float("nan")


async def _predict(client: httpx.AsyncClient, outcome: Outcome, end: float, images: list[bytes], turn: int) -> None:
    while time.monotonic() < end:
        turn += 1
        started = time.monotonic()
        response = await client.post("/api/predict", content=images[turn % len(images)], headers=HEADERS)
        if response.status_code == 200:
            outcome.latencies.append(time.monotonic() - started)
            total = sum(each["probability"] for each in response.json()["predictions"])
            if abs(total - 1.0) > 1e-6:
                outcome.errors.append(f"probabilities add up to {total}")
        else:
            await _busy(response, outcome)


async def _teach(client: httpx.AsyncClient, outcome: Outcome, end: float, first: int) -> None:
    number = first
    while time.monotonic() < end:
        label = CLASSES[number % len(CLASSES)]
        content = picture(label, number)
        while True:
            started = time.monotonic()
            response = await client.post("/api/learn", params={"label": label}, content=content, headers=HEADERS)
            if response.status_code == 200:
                outcome.lesson_latencies.append(time.monotonic() - started)
                outcome.lessons.append((label, number))
                break
            if not await _busy(response, outcome):
                break
        number += 1


async def _busy(response: httpx.Response, outcome: Outcome) -> bool:
    """Count an answer that is no success; whether it was "busy", said in the way it must be."""
    if response.status_code == 503 and "retry-after" in response.headers:
        outcome.busy += 1
        await asyncio.sleep(0.1)
        return True
    outcome.errors.append(f"{response.status_code} {response.text[:200]}")
    return False


async def _clients(address: str, outcome: Outcome, predicting: int, teaching: int, seconds: float) -> None:
    limits = httpx.Limits(max_connections=predicting + teaching)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as client:
        for label in CLASSES:
            response = await client.post(
                "/api/learn", params={"label": label}, content=picture(label, 0), headers=HEADERS
            )
            response.raise_for_status()
            outcome.lessons.append((label, 0))
        while (await client.get("/api/state")).json()["predicting"] < len(CLASSES):
            await asyncio.sleep(0.1)
        images = [picture(label, number) for number in range(10_000, 10_004) for label in CLASSES]
        end = time.monotonic() + seconds
        await asyncio.gather(
            *(_predict(client, outcome, end, images, number) for number in range(predicting)),
            *(_teach(client, outcome, end, 1_000_000 * (number + 1)) for number in range(teaching)),
        )


def run(folder: Path, predicting: int, teaching: int, seconds: float, *, tiny: bool = False) -> Outcome:
    """Load a server, end it, and compare what it has learned with the same learned offline."""
    new_model = tiny_model if tiny else fast_model
    outcome = Outcome()
    with running(folder / "load.circle", new_model=new_model) as server:
        before = server.processor_seconds()
        asyncio.run(_clients(server.address, outcome, predicting, teaching, seconds))
        outcome.processor_seconds = server.processor_seconds() - before
    offline, image = new_model(), new_model().input_config()
    pixels = np.stack([read_pixels(picture(label, number), image, "image") for label, number in outcome.lessons])
    offline.partial_fit(torch.from_numpy(pixels), [label for label, _ in outcome.lessons])
    outcome.equal = CircleClassifier.load(folder / "load.circle").statistics_ == offline.statistics_
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--predicting", type=int, default=32)
    parser.add_argument("--teaching", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--tiny", action="store_true", help="a tiny model instead of the preset fast")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(Path(folder), arguments.predicting, arguments.teaching, arguments.seconds, tiny=arguments.tiny)
    count = len(outcome.latencies)
    answers = count + len(outcome.lessons)
    print(
        f"{count:,} predictions ({count / arguments.seconds:.0f}/s): median {1000 * outcome.percentile(50):.0f} ms, "
        f"p95 {1000 * outcome.percentile(95):.0f} ms, p99 {1000 * outcome.percentile(99):.0f} ms; "
        f"{len(outcome.lessons):,} lessons ({len(outcome.lessons) / arguments.seconds:.0f}/s), p95 "
        f"{1000 * float(np.percentile(outcome.lesson_latencies, 95)):.0f} ms; "
        f"{1000 * outcome.processor_seconds / answers:.0f} ms of processor time an answer; busy {outcome.busy:,}, "
        f"other errors {len(outcome.errors)}; statistics equal bit for bit: {outcome.equal}"
    )
    for line in outcome.errors[:5]:
        print(line)
    raise SystemExit(0 if outcome.equal and not outcome.errors else 1)


if __name__ == "__main__":
    main()
