"""Fetching data sets from a server on this machine, with all that can go wrong on the way."""

from __future__ import annotations

import fcntl
import hashlib
import http.server
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from circle.data.datasets import load_dataset
from circle.data.download import DOWNLOADS, Download, cache_folder, fetch, find, locate
from circle.errors import CircleError

ARCHIVE = "cifar-100-binary.tar.gz"


def make_archive() -> bytes:
    """CIFAR-100 in small: one image per class in each part."""
    records = np.random.default_rng(0).integers(0, 256, (100, 3074), dtype=np.uint8)
    records[:, 1] = np.arange(100)
    names = "".join(f"class_{number}\n" for number in range(100))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        for name, content in (
            ("train.bin", records.tobytes()),
            ("test.bin", records.tobytes()),
            ("fine_label_names.txt", names.encode()),
        ):
            info = tarfile.TarInfo(f"cifar-100-binary/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


CONTENT = make_archive()


class Server(http.server.ThreadingHTTPServer):
    """Serves one file, whole or as badly as ``mode`` says."""

    daemon_threads = True
    mode = "whole"
    requests = 0
    content = CONTENT


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.server.requests += 1
        mode, content = self.server.mode, self.server.content
        if mode == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if mode == "wrong":
            content = content[:-1] + b"x"
        self.wfile.write(content if mode in ("whole", "wrong") else content[: len(content) // 2])
        if mode == "hanging":
            self.wfile.flush()
            time.sleep(30)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("NO_PROXY", "*")
        monkeypatch.setitem(DOWNLOADS, "cifar100", here(server))
        yield server
        server.shutdown()
        thread.join()


def here(server: Server) -> Download:
    checksum = f"md5:{hashlib.md5(server.content).hexdigest()}"
    return Download({f"http://127.0.0.1:{server.server_port}/{ARCHIVE}": checksum}, also=("cifar-100-binary",))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CIRCLE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def works(cache: Path) -> None:
    """A fetch goes well, leaves nothing but the data set, and the data set loads."""
    assert fetch("cifar100") == cache / "cifar100"
    assert left(cache) == ["cifar100"]
    assert len(load_dataset("cifar100").train) == 100


def test_fetched_once(server: Server, cache: Path) -> None:
    works(cache)
    works(cache)
    assert server.requests == 1
    assert locate("cifar100") == find("cifar100") == cache / "cifar100"


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("wrong", "not the expected file .*MD5 hash.*nothing was kept"),
        ("truncated", "cifar100: cannot be downloaded .*try again, or download http://127.* and put it into .*cache"),
        ("missing", "cifar100: cannot be downloaded \\(the server answers 404\\)"),
    ],
)
def test_failures_leave_nothing_and_a_second_run_repairs(server: Server, cache: Path, mode: str, message: str) -> None:
    server.mode = mode
    with pytest.raises(CircleError, match=message) as error:
        fetch("cifar100")
    assert "\n" not in str(error.value)
    assert left(cache) == []
    server.mode = "whole"
    works(cache)


def test_no_connection(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setitem(DOWNLOADS, "cifar100", Download({f"http://127.0.0.1:9/{ARCHIVE}": "md5:0"}))
    with pytest.raises(
        CircleError, match="cifar100: cannot be downloaded \\(ConnectionError\\): try again, or download"
    ):
        fetch("cifar100")
    assert left(cache) == []


def test_a_checksum_of_a_damaged_archive(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.content = CONTENT[: len(CONTENT) // 2]
    monkeypatch.setitem(DOWNLOADS, "cifar100", here(server))
    with pytest.raises(CircleError, match="damaged archive"):
        fetch("cifar100")
    assert left(cache) == []


class Interrupting:
    """A progress bar at which somebody presses Ctrl-C."""

    total = 0

    def update(self, count: int) -> None:
        raise KeyboardInterrupt


def test_interrupted(server: Server, cache: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch("cifar100", Interrupting())
    assert left(cache) == []
    works(cache)


def test_killed(server: Server, cache: Path) -> None:
    server.mode = "hanging"
    program = (
        "import sys; from circle.data import download; from circle.data.download import DOWNLOADS, Download\n"
        "DOWNLOADS['cifar100'] = Download({sys.argv[1]: sys.argv[2]}); download.fetch('cifar100')"
    )
    [(url, checksum)] = DOWNLOADS["cifar100"].files.items()
    process = subprocess.Popen([sys.executable, "-c", program, url, checksum])
    deadline = time.monotonic() + 30
    while not any(path.stat().st_size for path in cache.glob(".cifar100.tmp/archives/*")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    with pytest.raises(CircleError, match="another process is fetching into"):
        fetch("cifar100")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert left(cache) == [".cifar100.tmp"]
    assert find("cifar100") is None, "half a data set does not count as one"
    server.mode = "whole"
    works(cache)


def test_one_at_a_time(server: Server, cache: Path) -> None:
    cache.mkdir()
    descriptor = os.open(cache, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(CircleError, match="another process is fetching"):
        fetch("cifar100")
    os.close(descriptor)
    works(cache)


@pytest.mark.parametrize("kilobytes", [128, 1000], ids=["while downloading", "while unpacking"])
def test_full_disk(server: Server, tiny_disk: Path, monkeypatch: pytest.MonkeyPatch, kilobytes: int) -> None:
    assert 128_000 < len(CONTENT) < 1_000_000 < len(CONTENT) + 2 * 307_400
    resize = ["mount", "-o", "remount,size={}k", str(tiny_disk)]
    subprocess.run([part.format(kilobytes) for part in resize], check=True)
    monkeypatch.setenv("CIRCLE_DATA", str(tiny_disk))
    with pytest.raises(CircleError, match="cifar100: cannot be written to .*No space left on device.*make room"):
        fetch("cifar100")
    assert left(tiny_disk) == []
    subprocess.run([part.format(4000) for part in resize], check=True)
    works(tiny_disk)


def test_cache_that_cannot_be_used(server: Server, cache: Path) -> None:
    cache.write_text("a file, where the folder should be")
    with pytest.raises(CircleError, match="cifar100: cannot be written to .*cache.*set CIRCLE_DATA"):
        fetch("cifar100")
    with pytest.raises(CircleError, match="not on this machine"):
        locate("cifar100")
    cache.unlink()
    works(cache)


def test_folder_without_permission(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:  # who may read everything, so somebody else has to say no
        monkeypatch.setattr(
            Path, "is_dir", lambda self: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
        )
    else:
        cache.mkdir(mode=0)
    with pytest.raises(CircleError, match="cache: cannot be read \\(Permission denied\\)"):
        locate("cifar100")


def test_damaged_copy_is_repaired(server: Server, cache: Path) -> None:
    works(cache)
    file = cache / "cifar100" / "cifar-100-binary" / "train.bin"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CircleError, match="train.bin: .*damaged, `circle data fetch cifar100` repairs"):
        load_dataset("cifar100")
    works(cache)
    file.unlink()
    file.mkdir()
    with pytest.raises(CircleError, match="train.bin"):
        load_dataset("cifar100")
    works(cache)
    assert server.requests == 3


def test_evil_archive(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        info = tarfile.TarInfo("../../evil")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    server.content = stream.getvalue()
    monkeypatch.setitem(DOWNLOADS, "cifar100", here(server))
    with pytest.raises(CircleError, match="holds '../../evil'"):
        fetch("cifar100")
    assert left(cache) == []
    assert not list(cache.parent.rglob("evil"))


def test_archive_put_there_by_hand(server: Server, cache: Path) -> None:
    with pytest.raises(CircleError, match=f"cifar100: not on this machine: .*{ARCHIVE} and put it into .*cache"):
        locate("cifar100")
    cache.mkdir()
    (cache / ARCHIVE).write_bytes(CONTENT[:-1])
    with pytest.raises(CircleError, match=f"{ARCHIVE}: md5:.*, expected md5:.*: damaged or another file"):
        locate("cifar100")
    (cache / ARCHIVE).write_bytes(CONTENT)
    assert len(load_dataset("cifar100").test) == 100
    assert left(cache) == [ARCHIVE, "cifar100"], "an archive that somebody put there stays"
    (cache / "cifar100" / "cifar-100-binary" / "test.bin").unlink()
    assert fetch("cifar100") == cache / "cifar100"
    assert len(load_dataset("cifar100").test) == 100
    assert server.requests == 0


def test_archive_given_as_path(server: Server, cache: Path, tmp_path: Path) -> None:
    (tmp_path / ARCHIVE).write_bytes(CONTENT)
    assert len(load_dataset("cifar100", path=tmp_path / ARCHIVE).test) == 100
    assert left(cache) == ["cifar100"]
    assert load_dataset("cifar100", path=tmp_path / ARCHIVE).path == cache / "cifar100" / "cifar-100-binary"
    with pytest.raises(CircleError, match="nowhere: cannot be read"):
        locate("cifar100", tmp_path / "nowhere")


def test_a_folder_of_the_users_is_never_replaced(server: Server, cache: Path, tmp_path: Path) -> None:
    (cache / "cifar100").mkdir(parents=True)
    works(cache)  # an empty one may be filled
    (cache / "cifar100").rename(tmp_path / "kept")
    (cache / "cifar100").mkdir()
    (cache / "cifar100" / "thesis.txt").write_text("mine")
    (tmp_path / ARCHIVE).write_bytes(CONTENT)
    assert fetch("cifar100") == cache / "cifar100"
    with pytest.raises(CircleError, match="cifar100: in the way"):
        locate("cifar100", tmp_path / ARCHIVE)
    assert (cache / "cifar100" / "thesis.txt").read_text() == "mine"
    (cache / "cifar100" / "thesis.txt").unlink()
    (tmp_path / "kept" / "cifar-100-binary").rename(cache / "cifar-100-binary")
    assert locate("cifar100") == cache / "cifar-100-binary", "unpacked by hand under its own name"


def test_without_pooch(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(
        CircleError, match="fetching needs pooch: pip install circle-cil\\[data\\], or download https://"
    ):
        fetch("omniglot")
    assert left(cache) == []


def test_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CIRCLE_DATA", "~/images")
    assert cache_folder() == Path.home() / "images"
    monkeypatch.delenv("CIRCLE_DATA")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "circle"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "circle"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "circle"


def test_official_files() -> None:
    assert sorted(DOWNLOADS) == ["cifar100", "fashion_mnist", "omniglot", "tinyimagenet"]
    assert DOWNLOADS["cifar100"].names == [ARCHIVE]
    assert len(DOWNLOADS["fashion_mnist"].files) == 4
    checksums = [checksum for download in DOWNLOADS.values() for checksum in download.files.values()]
    assert len(set(checksums)) == 8
    assert all(checksum.startswith("md5:") and len(checksum) == 36 for checksum in checksums)
    with pytest.raises(CircleError, match="unknown data set to download 'digits'"):
        fetch("digits")
