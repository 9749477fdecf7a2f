"""Decoding by worker processes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from circle.data import workers
from circle.data.datasets import load_dataset
from circle.data.decode import ImageConfig
from circle.data.folders import FileImages
from circle.data.workers import Decoders
from circle.errors import CircleError, UnreadableImageError

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
CONFIG = ImageConfig(height=12, width=10, channels=3)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """23 pictures of noise, some of them inside a zip archive, one with an odd name."""
    random = np.random.default_rng(0)
    names = [tmp_path / f"{index}.png" for index in range(22)] + [tmp_path / "ö 'x'\n.png"]
    for name in names:
        Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(name)
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        for name in names[5:9]:
            archive.write(name, f"inside/{name.name}")
    return [*names[:5], *(tmp_path / "some.zip" / "inside" / name.name for name in names[5:9]), *names[9:]]


def decode_batches(
    files: list[Path], *, workers: int = 0, size: int = 64, buffers: int | None = None
) -> Iterator[np.ndarray]:
    """All files in batches, as `FileImages` reads them, or straight from the workers."""
    names = [str(file) for file in files]
    if buffers is None:
        images = FileImages(Path(), names, np.zeros(len(names)), CONFIG, workers)
        yield from images.batches(np.arange(len(names)), size)
    else:
        with Decoders(CONFIG, workers) as decoders:
            yield from decoders.batches((names[at : at + size] for at in range(0, len(names), size)), size, buffers)


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(processes: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, processes))


def test_same_batches_for_any_number_of_workers(files: list[Path]) -> None:
    expected = list(decode_batches(files, workers=0, size=6))
    assert [batch.shape for batch in expected] == [(6, 12, 10, 3)] * 3 + [(5, 12, 10, 3)]
    for count, buffers in ((1, 1), (2, 2), (5, 9)):
        found = list(decode_batches(files, workers=count, size=6, buffers=buffers))
        assert len(found) == 4
        assert all(map(np.array_equal, expected, found)), "also after all buffers were used again"


def test_nothing_to_decode() -> None:
    assert list(decode_batches([], workers=1)) == []


@pytest.mark.parametrize("count", [0, 2])
def test_a_bad_image_is_named_after_all_batches_before_it(files: list[Path], count: int) -> None:
    files[13].write_bytes(files[13].read_bytes()[:200])
    files[15].write_bytes(b"")
    batches = decode_batches(files, workers=count, size=4)
    for _ in range(3):
        next(batches)
    with pytest.raises(UnreadableImageError, match="13.png: cannot be decoded"):
        next(batches)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImageError, match="nowhere.png: No such file"):
        list(decode_batches([tmp_path / "nowhere.png"], workers=1))


@LINUX
@pytest.mark.parametrize("when", ["waiting", "between"])
def test_a_killed_worker_is_an_error_and_not_a_hang(files: list[Path], when: str) -> None:
    with Decoders(CONFIG, 2) as decoders:
        batches = decoders.batches([[str(file)] * 2 for file in files], 2, buffers=2)
        next(batches)
        processes = [process.pid for process in decoders._processes]
        if when == "waiting":  # stopped with an order in hand, then killed while the answer is awaited
            os.kill(processes[1], signal.SIGSTOP)
            subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -KILL {processes[1]}"])
        else:
            os.kill(processes[1], signal.SIGKILL)
        with pytest.raises(CircleError, match="decoding process ended .*signal 9"):
            list(batches)
        assert gone(processes)
        again = list(decoders.batches([[str(file)] for file in files], 6, buffers=2))
        assert len(again) == len(files), "and then they start afresh"


@LINUX
def test_workers_end_with_the_iterator(files: list[Path]) -> None:
    batches = decode_batches(files, workers=2, size=2)
    next(batches)
    processes = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _is_mine(path)]
    assert len(processes) == 2
    del batches
    gc.collect()
    assert gone(processes)


def _is_mine(path: Path) -> bool:
    try:
        fields = (path / "stat").read_text().rpartition(")")[2].split()
        return int(fields[1]) == os.getpid() and b"decoding_worker" in (path / "cmdline").read_bytes()
    except OSError:
        return False


@LINUX
def test_workers_do_not_outlive_a_killed_parent(files: list[Path]) -> None:
    # No guard around the script's main part: multiprocessing would run it again in every worker.
    program = (
        "import sys, time; from circle.data.workers import Decoders; from circle.data.decode import ImageConfig\n"
        "decoders = Decoders(ImageConfig(), 2); list(decoders.batches([sys.argv[1:]], 4, 2))\n"
        "print(*[process.pid for process in decoders._processes], flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, *map(str, files[:4])], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    processes = [int(word) for word in parent.stdout.readline().split()]
    assert len(processes) == 2
    assert all(map(alive, processes))
    maps = Path(f"/proc/{processes[0]}/maps").read_text()
    assert "numpy" in maps
    assert "torch" not in maps and "sklearn" not in maps, (
        "a worker without PyTorch starts in a fraction of the time and memory"
    )
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(processes)


def test_memory_is_bounded_by_the_buffers(files: list[Path]) -> None:
    with Decoders(CONFIG, 1) as decoders:
        list(decoders.batches([[str(file)] * 5 for file in files], 5, buffers=2))
        assert decoders._memory is not None
        assert len(decoders._memory) == 2 * 5 * 12 * 10 * 3


def test_no_shared_memory(files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_SHARED", tmp_path / "nowhere")
    assert len(list(decode_batches(files, workers=1, size=6))) == 4
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(CircleError, match="no room for 6480 bytes of decoded images"):
        next(decode_batches(files, workers=1, size=6, buffers=3))


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(CircleError, match="batches of 0 images: expected at least 1"):
        next(decode_batches([], workers=1, size=0))


def test_a_data_set_decodes_the_same_with_workers(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in ("ant", "bee"):
            (tmp_path / part / name).mkdir(parents=True)
            for index in range(40):
                pixels = random.integers(0, 256, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{index}.png")
    alone, helped = (load_dataset("folder", path=tmp_path, workers=count).train for count in (0, 2))
    asked = random.permutation(80)
    expected = alone[asked]
    assert np.array_equal(helped[asked], expected)
    assert np.array_equal(helped[asked[:70]], expected[:70]), "with the workers that are there already"
    assert np.array_equal(np.concatenate(list(helped.batches(asked, 7))), expected)
    assert alone.fingerprint == helped.fingerprint
