"""Peak memory while learning: of the number of samples it must not depend, of the classes only by their sums.

`circle learn` also keeps a digest of every image, so that none is learned twice; what that takes is a row of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.limits import Machine
from benchmarks.rows import Row
from circle.files import DIGEST

FEW, MANY = 5_000, 30_000  # images
LEARNING = """
import sys
import numpy as np
from benchmarks.limits import memory_now
from circle import CircleClassifier
preset, images, classes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random = np.random.default_rng(0)
model = CircleClassifier.from_preset(preset)
model.prepare(model.input_config())
before = memory_now("VmRSS")
for start in range(0, images, 1000):
    pixels = random.integers(0, 256, (1000, 32, 32, 3), dtype=np.uint8)
    model.partial_fit(pixels, np.arange(start, start + 1000) * classes // images)
print(memory_now("VmHWM"), model.statistics_[0].size, memory_now("VmRSS") - before, model.statistics_bytes)
"""
TEACHING = """
import sys
from benchmarks.limits import memory_now
from circle.cli import run
code = run(["learn", *sys.argv[1:]])
print(memory_now("VmHWM"), memory_now("VmRSS"))
sys.exit(code)
"""
#: A small model of small images: what is looked for are some hundred bytes of an image.
SMALL = ("--preset", "small", "--image-size", "8")


def numbers(program: str, *arguments: object) -> list[int]:
    """What a program that runs in a process of its own says in its last line."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [int(word) for word in found.splitlines()[-1].split()]


def taught(folder: Path, images: int) -> int:
    """The most bytes of `circle learn` on an npz file of so many images."""
    random, path = np.random.default_rng(0), folder / f"{images}.npz"
    np.savez(path, x=random.integers(0, 256, (images, 8, 8, 3), dtype=np.uint8), y=np.arange(images) % 10)
    return numbers(TEACHING, folder / f"{images}.circle", path, *SMALL)[0]


def learn_rows() -> Iterator[Row]:
    few, size, held, statistics = numbers(LEARNING, "fast", FEW, 10)
    many = numbers(LEARNING, "fast", MANY, 10)[0]
    wide = numbers(LEARNING, "fast", FEW, 1_000)[0]
    what = f"partial_fit with `fast`, {FEW:,} images, 10 classes"
    yield Row(
        "memory",
        f"{what}: more than before the first image",
        f"{held / 1e6:.0f} MB of {few / 1e6:.0f} MB in all",
        f"statistics: {statistics / 1e6:.0f} MB",
        held / statistics,
    )
    what = f"partial_fit with `fast`, {MANY:,} images, 10 classes"
    yield Row("memory", what, f"{many / 1e6:.0f} MB", f"{FEW:,} images: {few / 1e6:.0f} MB", many / few, "<= 1.05")
    sums = 8 * size * 990
    what = f"partial_fit with `fast`, {FEW:,} images, 1,000 classes"
    words = f"{(wide - few) / 1e6:.0f} MB more"
    yield Row("memory", what, words, f"their sums: {sums / 1e6:.0f} MB", (wide - few) / sums)


def ledger_rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        few, many = (taught(Path(name), images) for images in (FEW, MANY))
    what = f"`circle learn`, an npz file of {MANY:,} images"
    against = f"{FEW:,} images: {few / 1e6:.0f} MB"
    yield Row("memory", what, f"{many / 1e6:.0f} MB", against, many / few, "<= 1.05")
    each = (many - few) / (MANY - FEW)
    against = f"a digest: {DIGEST} bytes"
    yield Row("memory", f"{what}: an image more", f"{each:.0f} bytes", against, each / DIGEST)


def rows(machine: Machine) -> Iterator[Row]:
    yield from learn_rows()
    yield from ledger_rows()
