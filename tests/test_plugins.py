"""Parts from files of one's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "nearest_mean.py"


def run(plugins: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own: what is registered stays registered."""
    environment = {**os.environ, "CIRCLE_PLUGINS": plugins}
    command = [sys.executable, "-m", "circle", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_an_eleventh_method_runs_from_a_file(tmp_path: Path) -> None:
    settings = ["--rival.network", "convnet", "--rival.width", "4", "--rival.initial-epochs", "2", "--rival.no-centred"]
    done = run(
        str(EXAMPLE),
        *("bench", "run", "--dataset", "digits", "--tasks", "5", "--method", "nearest_mean"),
        *(*settings, "--output", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    assert "nearest_mean" in done.stderr + done.stdout and "A_T" in done.stderr + done.stdout
    assert list(tmp_path.glob("digits/*/run.json"))


def test_the_contracts_hold_for_it() -> None:
    environment = {**os.environ, "CIRCLE_PLUGINS": str(EXAMPLE), "OMP_NUM_THREADS": "1"}
    tests = Path(__file__).parent / "contracts" / "test_methods.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", "nearest_mean"]
    done = subprocess.run([*command, str(tests)], env=environment, capture_output=True, text=True, check=False)
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
def test_a_wrong_file_is_one_line(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    done = run(str(path), "bench", "run", "--dataset", "digits", "--tasks", "5", "--method", "lwf")
    assert done.returncode != 0
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and str(path) in lines[0] and words in lines[0], done.stderr
