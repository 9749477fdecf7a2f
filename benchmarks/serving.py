"""Servers for the programs that load, hurt and fuzz them; each is a process of its own, made by a fork.

Importing PyTorch takes seconds, and killing fifty servers needs fifty of them. The parent imports once, computes
nothing, and forks.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from circle import BiRC2DConfig, CircleClassifier
from circle.errors import CircleError
from circle.serve.limits import Limits
from circle.serve.server import serve

TINY = BiRC2DConfig(stem_channels=(4,), patch_sizes=(2, 4), width=5, grid=2, moments=("mean",))


def tiny_model() -> CircleClassifier:
    """A model that costs next to nothing, for what is not about speed."""
    return CircleClassifier(extractor=TINY, image_size=16, channels=3)


def fast_model() -> CircleClassifier:
    """What `circle serve` makes."""
    return CircleClassifier.from_preset("fast")


class Server:
    """A server in a process of its own."""

    def __init__(
        self, path: Path, new_model: Callable[[], CircleClassifier] = tiny_model, limits: Limits | None = None
    ) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reader)
            _serve(path, new_model, limits, writer)
        os.close(writer)
        self.gone = False
        with os.fdopen(reader) as answers:
            self.address = answers.readline().strip()
        if not self.address.startswith("http"):
            self.wait()
            raise CircleError(self.address or "the server ended before it listened")

    def kill(self) -> None:
        """kill -9, of this process alone."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def stop(self) -> None:
        """End as Ctrl-C does."""
        os.kill(self.pid, signal.SIGTERM)
        self.wait()

    def wait(self) -> int:
        if not self.gone:
            self.status = os.waitpid(self.pid, 0)[1]
            self.gone = True
        return self.status

    def memory(self) -> int:
        """Resident bytes of the server and of the processes that it started."""
        return sum(int(fields[21]) for fields in self._statistics()) * os.sysconf("SC_PAGE_SIZE")

    def processor_seconds(self) -> float:
        """Time that the server and its processes have computed for, whatever else the machine does."""
        return sum(int(fields[11]) + int(fields[12]) for fields in self._statistics()) / os.sysconf("SC_CLK_TCK")

    def _statistics(self) -> Iterator[list[str]]:
        """What /proc says of the server and its processes, from the state of each on."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
                if fields and (int(entry.name) == self.pid or int(fields[1]) == self.pid):
                    yield fields


def _serve(path: Path, new_model: Callable[[], CircleClassifier], limits: Limits | None, writer: int) -> None:
    """The child: never returns into the parent's program."""
    code = 1
    try:
        torch.set_num_threads(1)
        with os.fdopen(writer, "w") as answers:

            def ready(address: str, _: object) -> None:
                print(address, file=answers, flush=True)

            try:
                serve(path, new_model, port=0, limits=limits, ready=ready)
                code = 0
            except CircleError as error:
                print(str(error), file=answers, flush=True)
    except BaseException as error:
        print(f"server: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


@contextlib.contextmanager
def running(path: Path, **options: object) -> Iterator[Server]:
    """A server for the time of a block."""
    server = Server(path, **options)  # pyright: ignore[reportArgumentType]
    try:
        yield server
    finally:
        if not server.gone:
            server.stop()


def picture(label: str, number: int, side: int = 40) -> bytes:
    """A noisy PNG whose colour tells the class."""
    random = np.random.default_rng([number, *label.encode()])
    colour = np.random.default_rng([*label.encode()]).integers(40, 216, 3)
    pixels = np.clip(colour + random.normal(0, 40, (side, side, 3)), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether something comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
