"""Digests of features and statistics that every machine must reproduce, kept in ``digests.json``.

    python -m tests.golden.make            # compares, and names what differs
    python -m tests.golden.make --write    # writes the file anew

A digest is SHA-256 of integers in C order, little endian. A changed digest means that models learned before and after
do not add up: it takes a new ``FEATURE_VERSION`` (circle/runtime/weights.py) and an entry in the changelog.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from circle.config import Config
from circle.ensemble import Group, build_groups
from circle.extractors import BiRC2DConfig, ImageShape, LocalContrastConfig
from circle.heads import SubspaceQDAConfig, build_head
from circle.heads.scores import BIAS_BITS, FINER_BIAS, LinearScores, unit_exponents
from circle.presets import list_presets, read_preset
from circle.presets.forms import side_of
from circle.registry import resolve
from circle.runtime.weights import FEATURE_VERSION
from circle.statistics import Statistics

from .pictures import digits, drawn_pictures, photographs

FILE = Path(__file__).with_name("digests.json")

#: Groups and members of presets that would take more than about ten seconds; those left out are drawn like the others.
CUT = {"paper": (1, 2), "best-224": (1, 1)}
#: Statistics are learned of the first values only, because second moments of 9,216 would take gigabytes.
STATISTICS_SIZE = 1024
#: Portable extractors as they are by default, on images of every kind.
DEFAULTS: tuple[Config, ...] = (BiRC2DConfig(), LocalContrastConfig())

CHANGED = (
    "{names}: not the integers of tests/golden/digests.json. Every machine must reproduce them. If the function from "
    "pixels to integers was changed on purpose, raise FEATURE_VERSION in circle/runtime/weights.py, say so in "
    "CHANGELOG.md and run `python -m tests.golden.make --write`; else find out what rounds differently here."
)

Images = tuple[np.ndarray, list]


def digest_of(*arrays: np.ndarray) -> str:
    """SHA-256 of integers in C order, little endian, each array after its type and shape."""
    result = hashlib.sha256()
    for array in arrays:
        little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        result.update(f"{little.dtype.name} {little.shape} ".encode())
        result.update(little.tobytes())
    return result.hexdigest()


def features_digest(groups: list[Group], images: Images) -> str:
    """Of the grid positions int8 or int16 [N, size] of every group."""
    return digest_of(*(group.features(torch.from_numpy(images[0])).numpy() for group in groups))


def statistics_of(group: Group, images: Images, parts: Sequence[str] = ("class_triangles", "unit_sums")) -> Statistics:
    """Statistics of the first values of a group's features."""
    features = group.features(torch.from_numpy(images[0]))[:, :STATISTICS_SIZE]
    statistics = Statistics(features.shape[1], parts=parts)
    statistics.update(features, images[1])
    return statistics


def statistics_digest(statistics: Statistics) -> str:
    """Of the classes, the counts and every part, which hold whole numbers."""
    classes = np.frombuffer(json.dumps(statistics.classes).encode(), np.uint8)
    parts = [part.numpy() for part in statistics.parts().values()]
    whole = [part.astype(np.int64) for part in parts]
    assert all(np.array_equal(part, integers) for part, integers in zip(parts, whole, strict=True))
    return digest_of(classes, statistics.counts.numpy(), *whole)


def preset_digests(name: str) -> dict[str, str]:
    """Of a shipped preset, on drawn pictures and photographs of its size."""
    preset = read_preset(name)
    side, channels = side_of(preset), preset["channels"]
    groups, members = CUT.get(name, (preset["groups"], preset["members"]))
    built = build_groups(
        resolve("extractor", preset["extractor"]),
        ImageShape(channels, side, side),
        groups=groups,
        members=members,
        seed=0,
    )
    count = 6 if side > 64 else 12
    drawn, scenes = drawn_pictures(count, side), photographs(count, side)
    statistics = statistics_of(built[-1], scenes)
    head, subspace = resolve("head", preset["head"]), {}
    if isinstance(head, SubspaceQDAConfig):
        subspace = {"subspace of photographs": statistics_digest(statistics_of(built[-1], scenes, head.parts))}
        # Eigenvectors have no sign that every machine agrees on; the linear part of the scores is the same everywhere.
        head = head.without_class_covariances().replace(calibrated=False)
    return {
        "drawn pictures": features_digest(built, drawn),
        "photographs": features_digest(built, scenes),
        "statistics of photographs": statistics_digest(statistics),
        "predicting model of photographs": scores_digest(head, statistics),
        **subspace,
    }


def scores_digest(head: Config, statistics: Statistics) -> str:
    """Of the weights and biases that a predicting model keeps.

    Solvers of linear equations differ in their last bits, which rounding takes away, unless a weight lies within
    those of a boundary. None of these does: solvers differ by 5e-8 of a step here, the nearest is a hundred times away.
    """
    scores = build_head(head).materialise(statistics)
    rounded = scores.rounded()
    assert isinstance(scores, LinearScores) and isinstance(rounded, LinearScores)
    unit = torch.tensor([[math.ldexp(1.0, exponent)] for exponent in unit_exponents(scores.weight)])
    steps = scores.weight / unit.to(torch.float64)
    assert float((steps - steps.floor() - 0.5).abs().min()) > 5e-6, "a weight on a boundary: take other images"
    for exact, low in zip(scores.bias.tolist(), unit[:, 0].tolist(), strict=True):
        step = exact / max(math.ldexp(1.0, math.frexp(exact)[1] - BIAS_BITS), low / 2**FINER_BIAS)
        assert abs(step - math.floor(step) - 0.5) > 1e-3, "a bias on a boundary: take other images"
    return digest_of(rounded.weight.numpy(), rounded.bias.numpy())


def default_digests(config: Config) -> dict[str, str]:
    """Of an extractor with its default settings, on digits, drawn pictures and photographs."""
    result = {}
    for name, images in {
        "digits": digits(60),
        "drawn pictures": drawn_pictures(12, 24),
        "photographs": photographs(12, 32),
    }.items():
        groups = build_groups(config, ImageShape(*images[0].shape[1:]), groups=1, members=1, seed=3)
        result[name] = features_digest(groups, images)
        result[f"statistics of {name}"] = statistics_digest(statistics_of(groups[0], images))
    return result


#: What each entry of the file is made by.
CASES: dict[str, Callable[[], dict[str, str]]] = {
    "images": lambda: {
        "digits": digest_of(digits(60)[0]),
        **{f"drawn pictures {side}": digest_of(drawn_pictures(12, side)[0]) for side in (24, 32, 64, 224)},
        **{f"photographs {side}": digest_of(photographs(12, side)[0]) for side in (32, 64, 224)},
    },
    **{f"extractor {config.name}": partial(default_digests, config) for config in DEFAULTS},
    **{f"preset {name}": partial(preset_digests, name) for name in list_presets()},
}


def committed() -> dict:
    """What the file says."""
    return json.loads(FILE.read_text())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.make", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write digests.json anew instead of comparing")
    write = parser.parse_args(arguments).write
    found = {"feature_version": FEATURE_VERSION, **{name: make() for name, make in CASES.items()}}
    if write:
        FILE.write_text(json.dumps(found, indent=2) + "\n")
        return 0
    expected = committed()
    differing = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    if differing:
        print(CHANGED.format(names=", ".join(differing)), file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
