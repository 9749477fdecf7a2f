"""Parts from files of one's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forking import Forks

EXAMPLE = Path(__file__).parents[1] / "examples" / "nearest_mean.py"

# Imports once what takes long and forks for every program: what is registered stays registered, and the commands of
# `circle bench`, which are imported by each fork anew, make their flags of what is registered by then.
PREPARATION = """
import numpy, pytest, sklearn, torch
import circle.baselines, circle.benchmark, circle.cli

def act(order):
    os.environ["CIRCLE_PLUGINS"] = order["plugins"]
    return (circle.cli.run if order["program"] == "circle" else pytest.main)(order["arguments"])
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("CIRCLE_PLUGINS", None)
    forks = Forks(PREPARATION, environment)
    yield forks
    forks.end()


@pytest.fixture
def run(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run `circle` or `pytest` with such plug-ins, in a process of its own."""

    def run(plugins: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("said")
        return forks.run(folder, plugins=str(plugins), program=program, arguments=arguments)

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
