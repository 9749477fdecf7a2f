"""Images as bytes, decoded by a process with limits."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from circle.data import workers
from circle.data.decode import ImageConfig, read_pixels
from circle.data.workers import ContentDecoder
from circle.errors import UnreadableImageError

CONFIG = ImageConfig(height=12, width=10, channels=3)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def noise(seed: int = 0) -> bytes:
    return encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)))


@pytest.fixture
def decoder() -> Iterator[ContentDecoder]:
    with ContentDecoder(CONFIG, pixels=1_000_000) as made:
        yield made


def test_the_same_pixels_as_in_this_process(decoder: ContentDecoder) -> None:
    found = [decoder.decode(noise(seed)) for seed in range(3)]
    assert all(np.array_equal(pixels, read_pixels(noise(seed), CONFIG, "x")) for seed, pixels in enumerate(found))
    assert found[0].shape == (3, 12, 10)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "image: empty"),
        (b"no image", "image: not a readable image"),
        (noise()[:300], "image: cannot be decoded"),
        (encoded(Image.new("1", (1001, 1000))), "image: too large, 1001 x 1000 pixels; expected at most 1000000"),
    ],
)
def test_bad_images_are_one_line_and_the_process_stays(decoder: ContentDecoder, content: bytes, message: str) -> None:
    decoder.decode(noise())
    before = decoder._process
    with pytest.raises(UnreadableImageError, match=message):
        decoder.decode(content)
    assert decoder._process is before
    decoder.decode(noise())


def test_a_process_that_ended_is_replaced(decoder: ContentDecoder) -> None:
    decoder.decode(noise())
    assert decoder._process is not None
    os.kill(decoder._process.pid, signal.SIGKILL)
    decoder._process.wait()
    assert decoder.decode(noise()).shape == (3, 12, 10)


def busy_seconds(process: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="how busy a process is stands in /proc")
def test_an_image_during_which_the_process_dies_is_unreadable() -> None:
    """As a crash of a decoder's library would have it: the process dies while it decodes."""
    slow = encoded(Image.new("RGB", (9000, 9000)), "TIFF")  # half a second
    with ContentDecoder(CONFIG, pixels=100_000_000, memory=4 * 2**30) as decoder:
        decoder.decode(noise())
        process = decoder._process
        assert process is not None
        rest = busy_seconds(process.pid)
        died: list[float] = []

        def crash() -> None:
            while busy_seconds(process.pid) < rest + 0.05:
                time.sleep(0.001)
            died.append(busy_seconds(process.pid))
            os.kill(process.pid, signal.SIGSEGV)

        killer = threading.Thread(target=crash, daemon=True)
        killer.start()
        with pytest.raises(UnreadableImageError, match="image: ended the decoder; expected a whole image"):
            decoder.decode(slow)
        killer.join(10)
        assert died, "it was at work"
        assert process.returncode == -signal.SIGSEGV
        assert decoder.decode(noise()).shape == (3, 12, 10), "the next image has a new process"
        assert decoder._process is not process


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="limits of a process stand in /proc")
def test_a_decoder_can_write_no_file(decoder: ContentDecoder, tmp_path: Path) -> None:
    decoder.decode(noise())
    assert decoder._process is not None
    limits = Path(f"/proc/{decoder._process.pid}/limits").read_text().splitlines()
    (line,) = [line for line in limits if line.startswith("Max file size")]
    assert line.split()[3:5] == ["0", "0"], "neither soft nor hard, so that it cannot be raised again"
    code = f"""
import sys
sys.path[:] = {sys.path!r}
from circle.data.decoding_worker import _limit
_limit({decoder._limits!r})
open({str(tmp_path / "file")!r}, "wb", buffering=0).write(b"x")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGXFSZ or "File too large" in done.stderr
    assert (tmp_path / "file").stat().st_size == 0


def test_an_image_that_holds_the_process_is_unreadable(decoder: ContentDecoder) -> None:
    decoder.decode(noise())
    process = decoder._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)  # it never answers and never ends by itself
    decoder._seconds = 0.05
    with pytest.raises(UnreadableImageError, match="image: took longer than 0.05 s"):
        decoder.decode(noise())
    assert process.returncode == -signal.SIGKILL
    decoder._seconds = 10
    assert decoder.decode(noise()).shape == (3, 12, 10)


def test_processor_time_is_limited() -> None:
    slow = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (4000, 4000), dtype=np.uint8)), "TIFF")
    with ContentDecoder(CONFIG, pixels=100_000_000, seconds=1) as decoder:
        decoder.decode(noise())
        decoder._limits["seconds"] = -1  # a second that is over already
        decoder.close()
        with pytest.raises(UnreadableImageError, match="took longer than 1 s"):
            for _ in range(200):
                decoder.decode(slow)
        decoder._limits["seconds"] = 5
        assert decoder.decode(noise()).shape == (3, 12, 10)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the limit of memory is Linux's")
def test_memory_is_limited() -> None:
    with ContentDecoder(CONFIG, pixels=100_000_000, memory=300 * 2**20) as small:
        with pytest.raises(UnreadableImageError):
            small.decode(encoded(Image.new("L", (9000, 9000)), "TIFF"))
        assert small.decode(noise()).shape == (3, 12, 10)


def test_processes_do_not_live_for_ever(decoder: ContentDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MAX_IMAGES", 2)
    processes = set()
    for _ in range(5):
        decoder.decode(noise())
        assert decoder._process is not None
        processes.add(decoder._process.pid)
    assert len(processes) == 3
