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
    for name, arguments in PROGRAMS.items():

        def start(arguments: list[str] = arguments) -> None:
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)

        seconds = least_seconds(start, 3, 0.0)
        barred = name == "import circle"
        against = f"{LIMIT} s" if barred else ""
        yield Row(
            "start", name, f"{seconds:.2f} s", against, seconds / LIMIT if barred else None, "<= 1" if barred else ""
        )
