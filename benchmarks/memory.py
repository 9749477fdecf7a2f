"""Peak memory while learning: of the number of samples it must not depend, of the classes only by their sums."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.limits import Machine
from benchmarks.rows import Row

PROGRAM = """
import sys
import numpy as np
from benchmarks.limits import memory_now
from circle import CircleClassifier
preset, images, classes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random = np.random.default_rng(0)
model = CircleClassifier.from_preset(preset)
for start in range(0, images, 1000):
    pixels = random.integers(0, 256, (1000, 32, 32, 3), dtype=np.uint8)
    model.partial_fit(pixels, np.arange(start, start + 1000) * classes // images)
print(memory_now("VmHWM"), model.statistics_[0].size)
"""


def peak(preset: str, images: int, classes: int) -> tuple[int, int]:
    """Bytes of a process that learns, and the size of its features."""
    program = [sys.executable, "-c", PROGRAM, preset, str(images), str(classes)]
    found = subprocess.run(program, check=True, capture_output=True, text=True).stdout.split()
    return int(found[0]), int(found[1])


def rows(machine: Machine) -> Iterator[Row]:
    few, size = peak("fast", 5_000, 10)
    many, _ = peak("fast", 30_000, 10)
    wide, _ = peak("fast", 5_000, 1_000)
    yield Row("memory", "fast, 5,000 images, 10 classes", f"{few / 1e6:.0f} MB")
    words = f"{many / 1e6:.0f} MB"
    yield Row("memory", "fast, 30,000 images, 10 classes", words, "5,000 images", many / few, "<= 1.05")
    sums = 8 * size * 990
    words = f"{(wide - few) / 1e6:.0f} MB more"
    yield Row(
        "memory", "fast, 5,000 images, 1,000 classes", words, f"their sums: {sums / 1e6:.0f} MB", (wide - few) / sums
    )
