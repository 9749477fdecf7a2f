"""A server in a thread of the tests, and what they share (``factories``, the programs in benchmarks/)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "benchmarks")]


class RunningServer:
    """A running server and what is behind it."""

    def __init__(self, path: Path, new_model: Callable[[], Any], *, port: int = 0, **options: Any) -> None:
        from circle.serve.limits import Limits
        from circle.serve.server import listen, make_server
        from circle.serve.service import Service

        host, limits = options.pop("host", "127.0.0.1"), options.pop("limits", Limits())
        self._listener = listen("127.0.0.1", port)
        self.port = self._listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.service = Service(path, new_model, limits)
        self._server = make_server(self.service, host, **options)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self._listener.close()
        self.service.close()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers that end with the test."""
    yield from _starting(tmp_path)


@pytest.fixture(scope="module")
def start_module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers that end with the last test of the file."""
    yield from _starting(tmp_path_factory.mktemp("live"))


def _starting(folder: Path) -> Iterator[Callable[..., RunningServer]]:
    from factories import tiny_model

    started: list[RunningServer] = []

    def start(path: Path | None = None, new_model: Callable[[], Any] = tiny_model, **options: Any) -> RunningServer:
        started.append(RunningServer(path or folder / "model.circle", new_model, **options))
        return started[-1]

    yield start
    for each in started:
        if each._thread.is_alive():
            each.stop()
