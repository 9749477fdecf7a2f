"""What presets cost beside each other: learning 50,000 images and one evaluation of 10,000, timed on a share of them.

    python benchmarks/preset_cost.py fast best --images 4000 --rounds 3

Presets take turns, so that a slow moment of the machine meets all of them; the fastest round counts. Learning and
scoring grow with the number of images, the closed form of the heads does not.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from circle import CircleClassifier

LEARNED, SCORED, CLASSES = 50_000, 10_000, 100


def measure(preset: str, images: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """Seconds of learning and of scoring, for all images, and of the closed form."""
    model = CircleClassifier.from_preset(preset)
    model.partial_fit(images[:256], labels[:256])  # calibration and memory are there
    started = time.perf_counter()
    model.partial_fit(images, labels)
    for statistics in model.statistics_:
        statistics.flush()
    learned = time.perf_counter()
    model.predict_proba(images[:256])  # makes the closed form
    solved = time.perf_counter()
    model.predict_proba(images[: len(images) // 4])
    scored = time.perf_counter() - solved
    return (learned - started) * LEARNED / len(images), scored * SCORED / (len(images) // 4), solved - learned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("presets", nargs="+", help="the last one is what the others are compared with")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    side = CircleClassifier.from_preset(arguments.presets[0]).input_config().height
    images = random.integers(0, 256, (arguments.images, side, side, 3), dtype=np.uint8)
    labels = np.arange(arguments.images) % CLASSES
    found: dict[str, list[tuple[float, float, float]]] = {preset: [] for preset in arguments.presets}
    for _ in range(arguments.rounds):
        for preset in arguments.presets:
            found[preset].append(measure(preset, images, labels))
    total = {preset: sum(min(column) for column in zip(*rounds, strict=True)) for preset, rounds in found.items()}
    for preset, rounds in found.items():
        learning, scoring, solving = (min(column) for column in zip(*rounds, strict=True))
        share = total[preset] / total[arguments.presets[-1]]
        print(
            f"{preset:10} learning {learning:6.1f} s, closed form {solving:5.2f} s, scoring {scoring:5.1f} s: "
            f"{total[preset]:6.1f} s, {share:.3f} of {arguments.presets[-1]}"
        )


if __name__ == "__main__":
    main()
