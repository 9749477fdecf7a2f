"""Processes that torchrun starts, and the one process that knows nothing of it.

What several processes make of a lesson is tested in test_joint_teaching.py, of a benchmark in
benchmark/test_joint_method.py; those are started by environment variables alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

SETTINGS = [
    *("--preset", "reservoir", "--extractor.stem-channels", "4", "--extractor.width", "4"),
    *("--extractor.grid", "2", "--image-size", "8"),
]
ALONE = """
import sys
from circle.cli import run
assert run(sys.argv[1:]) == 0
assert "circle.distributed" not in sys.modules, "not needed"
"""


def test_torchrun_and_one_process_write_the_same_file(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=random.integers(0, 255, (50, 8, 8), np.uint8), y=random.integers(0, 3, 50))
    environment = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK")}
    environment["OMP_NUM_THREADS"] = "1"

    def run(*command: str, model: str) -> subprocess.CompletedProcess[str]:
        arguments = [*command, "learn", str(tmp_path / model), str(tmp_path / "data.npz"), *SETTINGS]
        return subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True, timeout=600
        )

    run("-c", ALONE, model="one")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = run(*torchrun, "-m", "circle", model="two")
    assert ended.stdout == f"learned 50 images; {tmp_path / 'two'} knows 3 classes from 50 images\n"
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


def test_processes_that_do_not_find_each_other(tmp_path: Path, launcher_of_jobs: Any) -> None:
    """The first of two waits for a second that never comes."""
    np.savez(tmp_path / "data.npz", x=np.zeros((1, 8, 8), np.uint8), y=[0])
    command = ["learn", tmp_path / "model", tmp_path / "data.npz", "--timeout-seconds", "1"]
    (first,) = launcher_of_jobs.wait(launcher_of_jobs.start(2, command, ranks=[0]))
    assert first.code == 1
    assert "circle: error: process 0 of 2: the processes did not find each other within 1 s" in first.err
    assert "Traceback" not in first.err
