"""How long a user waits before anything happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.limits import Machine, least_seconds
from benchmarks.rows import Row

LIMIT = 1.5  # seconds, for `import circle`
PROGRAMS = {
    "python, nothing imported": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import circle": ["-c", "import circle"],
    "from circle import CircleClassifier": ["-c", "from circle import CircleClassifier"],
    "circle --help": ["-m", "circle", "--help"],
}


def rows(machine: Machine) -> Iterator[Row]:
    """`import circle` against its promise; all against `import torch`, which no program that learns can do without."""
    found: dict[str, float] = {}
    for name, arguments in PROGRAMS.items():

        def start(arguments: list[str] = arguments) -> None:
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)

        found[name] = least_seconds(start, 3, 0.0)
    torch = found["import torch"]
    for name, seconds in found.items():
        words = f"{seconds:.2f} s"
        if name == "import circle":
            yield Row("start", name, words, f"{LIMIT} s", seconds / LIMIT, "<= 1")
        against = "" if name == "import torch" else f"import torch: {torch:.2f} s"
        yield Row("start", name, words, against, seconds / torch if against else None)
