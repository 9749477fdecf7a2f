"""Parts from files of one's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "nearest_mean.py"

# Imports once what takes long and forks for every program: what is registered stays registered, and the commands of
# `circle bench`, which are imported by each fork anew, make their flags of what is registered by then.
FORKS = """
import json, os, sys, traceback
import numpy, pytest, sklearn, torch
import circle.baselines, circle.benchmark, circle.cli

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        os.environ["CIRCLE_PLUGINS"] = order["plugins"]
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{order['folder']}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        code = 70
        try:
            code = (circle.cli.run if order["program"] == "circle" else pytest.main)(order["arguments"])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("CIRCLE_PLUGINS", None)
    command = [sys.executable, "-c", FORKS]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.communicate()


@pytest.fixture
def run(forks: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run `circle` or `pytest` with such plug-ins, in a process of its own."""

    def run(plugins: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        assert forks.stdin is not None and forks.stdout is not None
        folder = tmp_path_factory.mktemp("said")
        order = {"plugins": str(plugins), "program": program, "arguments": arguments, "folder": str(folder)}
        forks.stdin.write(json.dumps(order) + "\n")
        forks.stdin.flush()
        code = int(forks.stdout.readline())
        said = ((folder / name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess([program, *arguments], code, *said)

    return run


def test_an_eleventh_method_runs_from_a_file(run: Run, tmp_path: Path) -> None:
    settings = ["--rival.network", "convnet", "--rival.width", "4", "--rival.initial-epochs", "2", "--rival.no-centred"]
    done = run(
        *(EXAMPLE, "circle", "bench", "run", "--dataset", "digits", "--tasks", "5", "--method", "nearest_mean"),
        *(*settings, "--output", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    assert "nearest_mean" in done.stderr + done.stdout and "A_T" in done.stderr + done.stdout
    assert list(tmp_path.glob("digits/*/run.json"))


def test_the_contracts_hold_for_it(run: Run) -> None:
    tests = Path(__file__).parent / "contracts" / "test_methods.py"
    done = run(EXAMPLE, "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", "nearest_mean", str(tests))
    assert done.returncode == 0, done.stdout[-2000:]
    assert " passed" in done.stdout and " failed" not in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such Python file"),
        ("1 +", "SyntaxError"),
        ("raise ValueError('of mine')", "ValueError: of mine"),
        (EXAMPLE.read_text().replace('"nearest_mean"', '"lwf"'), "method 'lwf' needs a name of its own"),
    ],
)
def test_a_wrong_file_is_one_line(text: str | None, words: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    done = run(path, "circle", "bench", "run", "--dataset", "digits", "--tasks", "5", "--method", "lwf")
    assert done.returncode != 0
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and str(path) in lines[0] and words in lines[0], done.stderr
