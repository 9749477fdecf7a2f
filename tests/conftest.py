"""Shared by all tests: small models, synthetic images, and where the real images are."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from circle import BiRC2DConfig, CircleClassifier

# Examples are drawn the same way every time, and a slow machine is not a failed test.
settings.register_profile("circle", derandomize=True, deadline=None)
settings.load_profile("circle")

# Beside another worker a test computes with one thread, and so do the programs it starts: two workers of two threads
# each would wait for each other most of the time. Tests of threads say how many they want.
THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
os.environ["OMP_NUM_THREADS"] = str(THREADS)
torch.set_num_threads(THREADS)

SHARED = Path(__file__).parents[2] / "shared" / "data" / "unpack.py"
TINY = BiRC2DConfig(stem_channels=(4,), patch_sizes=(2, 4), width=5, grid=2, moments=("mean",))


@pytest.fixture
def tiny() -> Any:
    """Makes classifiers small enough for a test to build many: two groups of two members, 192 values each."""

    def make(**changes: Any) -> CircleClassifier:
        return CircleClassifier(**{"extractor": TINY, "groups": 2, "members": 2, **changes})

    return make


@pytest.fixture
def stream() -> tuple[np.ndarray, np.ndarray]:
    """120 uint8 images [N, 16, 16, 3] of four classes that differ in colour and texture."""
    return _stream(120)


@pytest.fixture
def make_stream() -> Any:
    """Makes streams of other lengths."""
    return _stream


def _stream(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 4, count)
    base = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200], [150, 150, 40]])[labels][:, None, None, :]
    return np.clip(base + random.normal(0, 50, (count, 16, 16, 3)), 0, 255).astype(np.uint8), labels


@pytest.fixture
def soften() -> Any:
    """Sets the temperature of a model to the spread of its scores: easy images get soft probabilities, too."""

    def soft(model: CircleClassifier, images: np.ndarray) -> CircleClassifier:
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
        scores = torch.stack(model.head_scores([group.features(pixels) for group in model.groups_]))
        config = model.head_config()
        spread = float(scores.std(2).mean())  # calibrated heads divide by temperatures of the images, of about two
        return model.set_params(head=config.replace(temperature=spread / 2 if config.calibrated else spread))

    return soft


@pytest.fixture(autouse=True)
def usual_threads() -> Any:
    """Tests may change the number of threads; the next one starts with the usual number again."""
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of real images: CIRCLE_REAL_DATA, or unpacked once from shared/data where that exists."""
    if os.environ.get("CIRCLE_REAL_DATA"):
        return Path(os.environ["CIRCLE_REAL_DATA"])
    if not SHARED.is_file():
        pytest.skip("no real images: neither CIRCLE_REAL_DATA nor shared/data/unpack.py is there")
    # All workers of a parallel run share one copy; the first one makes it while the others wait.
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "real-images"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            subprocess.run([sys.executable, str(SHARED), str(folder)], check=True, capture_output=True)
            (folder / "done").touch()
    return folder


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for less than the archive."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("a full disk needs the right to mount a small one")
    yield place
    subprocess.run(["umount", str(place)], check=True)


# Imports once and forks for every process of every job, which learn in tiles of 16. A job may say that one of its
# processes is to get a signal when it learns its n-th tile or task, so that a kill falls on the same moment each time.
# What one process does alone it does itself, so that all that come after find the extractors built and calibrated.
LAUNCHER = """
import json, os, sys
from contextlib import redirect_stderr, redirect_stdout
import torch
import circle.cli.bench, circle.cli.learn
from circle.distributed import learning
from circle.benchmark.distributed_method import DistributedCircle
from circle.cli import run

torch.set_num_threads(1)
learning.IMAGES_PER_TILE = 16

def signalled(step, number, nth):
    left = [nth]
    def stepped(*arguments):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), number)
        return step(*arguments)
    return stepped

for line in sys.stdin:
    order = json.loads(line)
    if "wait" in order:
        print(os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1]), flush=True)
        continue
    if not order["environment"]:
        with open(f"{order['folder']}/out", "w") as out, open(f"{order['folder']}/err", "w") as err:
            with redirect_stdout(out), redirect_stderr(err):
                code = run(order["arguments"])
        print(code, flush=True)
        continue
    child = os.fork()
    if not child:
        os.environ.update(order["environment"])
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{order['folder']}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        if order["signal"]:
            number, nth = order["signal"]
            learning.learn_batch = signalled(learning.learn_batch, number, nth)
            DistributedCircle._learn = signalled(DistributedCircle._learn, number, nth)
        code = 70
        try:
            code = run(order["arguments"])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(child, flush=True)
"""


@dataclass
class Ended:
    """What became of one process of a job."""

    code: int
    out: str
    err: str


class Launcher:
    """Starts jobs of several processes by environment variables alone, as a scheduler does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _ask(self, order: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def start(
        self,
        size: int,
        arguments: Sequence[object],
        signals: dict[int, tuple[int, int]] | None = None,
        ranks: Sequence[int] | None = None,
    ) -> list[int]:
        """Start a job, or some of its processes; "{rank}" in an argument becomes the number of the process.

        ``signals`` has, by rank, a signal and the number of the step at which it comes.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        children = []
        for rank in range(size) if ranks is None else ranks:
            folder = self.folder / str(rank)
            folder.mkdir(exist_ok=True)
            order = {
                "environment": {**address, "RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"},
                "arguments": [str(each).replace("{rank}", str(rank)) for each in arguments],
                "folder": str(folder),
                "signal": (signals or {}).get(rank),
            }
            children.append(self._ask(order))
        return children

    def wait(self, children: list[int]) -> list[Ended]:
        codes = [self._ask({"wait": child}) for child in children]
        folders = [self.folder / str(rank) for rank in range(len(codes))]
        return [
            Ended(code, (folder / "out").read_text(), (folder / "err").read_text())
            for code, folder in zip(codes, folders, strict=True)
        ]

    def run(
        self, size: int, arguments: Sequence[object], signals: dict[int, tuple[int, int]] | None = None
    ) -> list[Ended]:
        return self.wait(self.start(size, arguments, signals))

    def alone(self, arguments: Sequence[object]) -> Ended:
        """One process that nobody has told of others."""
        order = {"environment": {}, "arguments": [str(each) for each in arguments], "folder": str(self.folder)}
        return Ended(self._ask(order), (self.folder / "out").read_text(), (self.folder / "err").read_text())


@pytest.fixture(scope="session")
def launcher_of_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("jobs"))
    yield launcher
    launcher.process.kill()
    launcher.process.communicate()
