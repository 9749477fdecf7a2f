"""What tests run in a process that takes itself for another machine: see :mod:`golden.test_machines`.

    python -m golden.machine digests                # features and statistics, for many threads and batches
    python -m golden.machine learn FILE             # machine A learns the classes of both
    python -m golden.machine forget FILE OWN        # machine B forgets some of A's model, and learns a model of its own

The last two lines of what it prints are what PyTorch says of the processor and the result, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from circle import CircleClassifier
from circle.config import Config
from circle.ensemble import Group, build_groups
from circle.extractors import BiRC2DConfig, ImageShape
from circle.extractors.integers import multiplies_bytes
from circle.presets import read_preset
from circle.registry import resolve
from circle.statistics import Statistics

from .make import digest_of, statistics_digest
from .pictures import photographs

#: Threads, and images extracted and learned at a time.
VARIATIONS = ((1, 1), (2, 7), (3, 1000), (1, 1000))
COUNT, SIDE, SEED = 9, 32, 11
PLAIN = BiRC2DConfig(
    stem="plain", stem_channels=(6, 8), stem_kernels=(3, 4), patch_sizes=(2, 3), width=8, join_stem=True,
    windows="gaussian", projection="linear", projection_size=90, bits=16,
)  # fmt: skip


def configs() -> dict[str, Config]:
    """A preset of filters, one of reservoirs, and what neither of them has: a plain stem and a projection."""
    presets = {name: resolve("extractor", read_preset(name)["extractor"]) for name in ("fast", "reservoir")}
    return {**presets, "plain": PLAIN}


def build(config: Config) -> Group:
    return build_groups(config, ImageShape(3, SIDE, SIDE), groups=1, members=1, seed=SEED)[0]


def digest(group: Group, batch: int) -> str:
    """Of the grid, of features that are extracted and learned so many images at a time, and of what was learned."""
    images, labels = photographs(COUNT, SIDE)
    statistics, found = Statistics(group.size), []
    for start in range(0, COUNT, batch):
        some = slice(start, start + batch)
        found.append(group.features(torch.from_numpy(images[some])))
        statistics.update(found[-1], labels[some])
    return combined(group, torch.cat(found).numpy(), statistics)


def combined(group: Group, features: np.ndarray, statistics: Statistics) -> str:
    grid = [group.grid.scale.numpy().view(np.int32), group.grid.offset.numpy().view(np.int32)]
    return digest_of(*grid, features) + statistics_digest(statistics)


def digests() -> Iterator[tuple[str, str]]:
    for name, config in configs().items():
        group = build(config)
        for threads, batch in VARIATIONS:
            torch.set_num_threads(threads)
            yield f"{name}, {threads} threads, {batch} at a time", digest(group, batch)


def model() -> CircleClassifier:
    """Two groups whose extractor has the plain stem and the projection."""
    return CircleClassifier(PLAIN.replace(patch_sizes=(4,), projection_size=40), groups=2, seed=SEED)


def labelled(start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Photographs [N, H, W, C] and their labels, of the stream that A and B share out."""
    images, labels = photographs(start + count, SIDE)
    return images[start:].transpose(0, 2, 3, 1), np.array(labels[start:])


def learn(path: Path) -> None:
    model().partial_fit(*labelled(0, 24)).save(path)


def forget(path: Path, own: Path) -> None:
    """Forget the class "ball" and six other images that A learned; learn twelve of one's own."""
    images, labels = labelled(0, 24)
    rest = labels != "ball"
    learned = CircleClassifier.load(path).forget("ball", images[~rest])
    learned.unlearn(images[rest][-6:], labels[rest][-6:]).save(path)
    model().partial_fit(*labelled(24, 12)).save(own)


def main(command: str, *paths: str) -> None:
    actions = {"digests": lambda: dict(digests()), "learn": learn, "forget": forget}
    result = actions[command](*map(Path, paths))
    print(json.dumps({"capability": torch.backends.cpu.get_cpu_capability(), "bytes": multiplies_bytes()}))
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
