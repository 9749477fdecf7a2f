"""Prediction: one image at a time, and many."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.extraction import counted_flops
from benchmarks.limits import Machine, least_seconds
from benchmarks.rows import Row
from circle import CircleClassifier

CLASSES, LEARNED, SINGLE = 100, 1_000, 60
PRESETS = ("small", "fast", "best")
LIMIT = 0.025  # seconds, for one image with `fast`


def learned_model(preset: str, random: np.random.Generator) -> tuple[CircleClassifier, np.ndarray]:
    images = random.integers(0, 256, (LEARNED, 32, 32, 3), dtype=np.uint8)
    return CircleClassifier.from_preset(preset).partial_fit(images, np.arange(LEARNED) % CLASSES), images


def least_time(model: CircleClassifier, machine: Machine) -> float:
    """Seconds of one image at the GEMM rates: products of all extractors in float32, scores of all heads in float64."""
    flops = sum(counted_flops(member, 32) for group in model.groups_ for member in group.members)
    scores = sum(2.0 * group.size * CLASSES for group in model.groups_)
    return machine.seconds(flops=flops, double_flops=scores)


def rows(machine: Machine) -> Iterator[Row]:
    for preset in PRESETS:
        model, images = learned_model(preset, np.random.default_rng(0))
        model.predict_proba(images[:2])
        single = []
        for index in range(SINGLE):
            started = time.perf_counter()
            model.predict(images[index : index + 1])
            single.append(time.perf_counter() - started)
        middle, late = statistics.median(single), sorted(single)[int(0.95 * SINGLE)]
        batch = least_seconds(lambda m=model, x=images: m.predict(x), 2, 0.0) / len(images)
        limit = least_time(model, machine)
        against = f"products of extraction and scores at the GEMM rates: {1e3 * limit:.2f} ms"
        one, words = f"{preset}: one image", f"{1e3 * middle:.1f} ms (95 %: {1e3 * late:.1f} ms)"
        if preset == "fast":
            yield Row("prediction", one, words, f"{1e3 * LIMIT:.0f} ms", middle / LIMIT, "<= 1")
        yield Row("prediction", one, words, against, limit / middle)
        many, words = f"{preset}: {LEARNED:,} images at once", f"{1 / batch:,.0f} images/s, {1e3 * batch:.2f} ms each"
        yield Row("prediction", many, words, against, limit / batch)
        yield Row("prediction", many, words, "one image at a time", middle / batch)
