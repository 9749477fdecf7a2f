"""The programs in benchmarks/ that load, hurt and fuzz a server, with smaller numbers.

A short form of each runs always; those marked ``long`` take as long as all other tests of serving together, and are for
whoever works on it: CIRCLE_LONG=1.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "benchmarks"
SOURCE = Path(__file__).parents[2] / "src"

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists() or not PROGRAMS.is_dir(), reason="needs Linux, and the programs in benchmarks/"
)
long = pytest.mark.skipif("CIRCLE_LONG" not in os.environ, reason="minutes of load and faults: set CIRCLE_LONG=1")


# Imports once, which takes longer than what it then runs, computes nothing, and forks for every program.
RUNNER = """
import json, os, runpy, sys, traceback
sys.path.insert(0, sys.argv[1])
import serving

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        code = 70
        for stream in (1, 2):
            os.dup2(os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        sys.argv = order["command"]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Runs a program in a process of its own, which forks in turn, as a process with threads should not."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUNNER, str(PROGRAMS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        orders, answers = runner.stdin, runner.stdout

        def run_program(name: str, *arguments: str) -> str:
            output = tmp_path_factory.mktemp("program") / "output"
            order = {"command": [str(PROGRAMS / name), *arguments], "output": str(output)}
            hangs = threading.Timer(600, runner.kill)
            hangs.start()
            print(json.dumps(order), file=orders, flush=True)
            code = answers.readline().strip()
            hangs.cancel()
            assert code == "0", f"ended with {code}: {output.read_text()}"
            return output.read_text()

        yield run_program
        orders.close()  # which ends it


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
