"""Processes that torchrun starts, and the one process that knows nothing of it.

What several processes learn is tested in test_learning.py, how they run a benchmark in
benchmark/test_distributed_method.py; those are started by environment variables alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from circle.cli import run
from circle.distributed.communicator import memory_mapped

SETTINGS = [
    *("--preset", "reservoir", "--extractor.stem-channels", "4", "--extractor.width", "4"),
    *("--extractor.grid", "2", "--image-size", "8"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=random.integers(0, 255, (50, 8, 8), np.uint8), y=random.integers(0, 3, 50))
    return tmp_path / "data.npz"


def test_one_process_imports_nothing_of_it(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("communicator", "learning", "shards"):
        monkeypatch.setitem(sys.modules, f"circle.distributed.{name}", None)
    monkeypatch.setitem(sys.modules, "circle.benchmark.distributed_method", None)
    assert run(["learn", str(tmp_path / "model"), str(data), *SETTINGS]) == 0
    flags = ["--data", str(data), "--tasks", "1", "--no-cache", "--output", str(tmp_path)]
    assert run(["bench", "run", *flags, *SETTINGS]) == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ImportError):
        run(["learn", str(tmp_path / "model"), str(data)])


def test_torchrun_and_one_process_write_the_same_file(tmp_path: Path, data: Path, launcher_of_jobs: Any) -> None:
    assert launcher_of_jobs.alone(["learn", tmp_path / "one", data, *SETTINGS]).code == 0
    environment = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK")}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "circle"]
    ended = subprocess.run(
        [*torchrun, "learn", str(tmp_path / "two"), str(data), *SETTINGS],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert ended.stdout == f"learned 50 images; {tmp_path / 'two'} knows 3 classes from 50 images\n"
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


def test_processes_that_do_not_find_each_other(tmp_path: Path, data: Path, launcher_of_jobs: Any) -> None:
    """The first of two waits for a second that never comes."""
    command = ["learn", tmp_path / "model", data, "--timeout-seconds", "1"]
    (first,) = launcher_of_jobs.wait(launcher_of_jobs.start(2, command, ranks=[0]))
    assert first.code == 1
    assert "circle: error: process 0 of 2: the processes did not find each other within 1 s" in first.err
    assert "Traceback" not in first.err


@pytest.mark.parametrize("shape", [[3, 4], [7], [], [0, 4]])
def test_a_mapped_tensor_is_a_tensor_and_leaves_nothing(tmp_path: Path, shape: list[int]) -> None:
    new = memory_mapped(tmp_path)
    values = torch.randint(-9, 9, shape, dtype=torch.int16)
    tensor = new(shape, torch.int16).copy_(values)
    assert torch.equal(tensor, values) and tensor.dtype == torch.int16
    assert list(tmp_path.iterdir()) == []
