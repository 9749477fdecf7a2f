"""The programs in benchmarks/ that load, hurt and fuzz a server, with smaller numbers.

A short form of each runs always; those marked ``long`` take as long as all other tests of serving together, and are for
whoever works on it: CIRCLE_LONG=1.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forking import Forks

PROGRAMS = Path(__file__).parents[2] / "benchmarks"
SOURCE = Path(__file__).parents[2] / "src"

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists() or not PROGRAMS.is_dir(), reason="needs Linux, and the programs in benchmarks/"
)
long = pytest.mark.skipif("CIRCLE_LONG" not in os.environ, reason="minutes of load and faults: set CIRCLE_LONG=1")


PREPARATION = f"""
import runpy
sys.path.insert(0, {str(PROGRAMS)!r})
import serving

def act(order):
    sys.argv = order["command"]
    runpy.run_path(sys.argv[0], run_name="__main__")
    return 0
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Runs a program in a process of its own, which forks in turn, as a process with threads should not."""
    forks = Forks(PREPARATION, {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"})

    def run_program(name: str, *arguments: str) -> str:
        done = forks.run(tmp_path_factory.mktemp("program"), command=[str(PROGRAMS / name), *arguments])
        assert done.returncode == 0, f"ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    yield run_program
    forks.end()


def test_a_few_kills_torn_journals_and_damaged_files(run: Callable[..., str]) -> None:
    """The program checks what must hold after each fault, and fails if it does not; here is what there was to lose."""
    text = run("serve_faults.py", "--kills", "3", "--lessons", "5", "--no-disk")
    found = {name: ast.literal_eval(counts) for name, counts in (line.split(": ", 1) for line in text.splitlines())}
    assert (found["killed"]["kills"], found["torn journal"], found["damaged files"]) == (3, 5, 7)
    assert found["killed"]["acknowledged"] >= 3


def test_a_little_nonsense(run: Callable[..., str]) -> None:
    text = run("serve_fuzz.py", "--requests", "200", "--images", "50")
    assert text.startswith("250 in ")
    assert "bad: 0" in text


@long
def test_load(run: Callable[..., str]) -> None:
    text = run("serve_load.py", "--tiny", "--predicting", "32", "--teaching", "4", "--seconds", "3")
    assert "other errors 0; statistics equal bit for bit: True" in text


@long
def test_kills_torn_journals_and_damaged_files(run: Callable[..., str]) -> None:
    text = run("serve_faults.py", "--kills", "4", "--lessons", "6", "--no-disk")
    assert "'kills': 4" in text
    assert "'acknowledged': 0" not in text


@long
def test_a_full_disk(run: Callable[..., str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("a full disk needs the right to mount a small one")
    text = run("serve_faults.py", "--kills", "0")
    assert "'refused': 5" in text


@long
def test_nonsense(run: Callable[..., str]) -> None:
    text = run("serve_fuzz.py", "--requests", "400", "--images", "80")
    assert "bad: 0" in text
