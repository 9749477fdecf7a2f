"""The same work done the plain way, in the same run: what other heads and refitting cost. paper.py has the paper's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from benchmarks import paper
from benchmarks.learning import features_of
from benchmarks.limits import Machine, least_seconds
from benchmarks.published import PublishedSLDA, RecursiveLeastSquares
from benchmarks.rows import Row
from circle import CircleClassifier
from circle.heads import SLDAConfig, build_head
from circle.statistics import SAMPLES_PER_PRODUCT, Statistics

SIZE, CLASSES = 2_016, 100  # of `fast`, CIFAR-100
FEW = 100  # samples of the peers, each of which costs them the same


def per_sample(fit: Callable[[int, int], object], count: int) -> float:
    """Seconds of one sample, given its number and its label."""
    for row in range(3):
        fit(row, row)
    started = time.perf_counter()
    for row in range(count):
        fit(row, row % CLASSES)
    return (time.perf_counter() - started) / count


def statistics_rows() -> Iterator[Row]:
    """One sample at a time, features given; ours waits for a tile to be full, and the waiting is part of the time."""
    features = features_of(SIZE, 16, 2 * SAMPLES_PER_PRODUCT)
    floats = features[:FEW].to(torch.float32)
    statistics, published = Statistics(SIZE), PublishedSLDA(SIZE, CLASSES)
    squares = RecursiveLeastSquares(SIZE, CLASSES)
    quick = per_sample(lambda row, label: statistics.update(features[row, None], [label]), len(features))
    slow = per_sample(lambda row, label: published.fit(floats[row], label), FEW)
    recursive = per_sample(lambda row, label: squares.fit(floats[row], label), FEW)
    words = f"{1 / quick:,.0f} samples/s"
    what = f"one sample at a time, {SIZE:,} values, features given"
    against = f"published SLDA, features given: {1 / slow:,.0f} samples/s"
    yield Row("peers", what, words, against, slow / quick, ">= 20")
    against = f"recursive least squares, features given: {1 / recursive:,.0f} samples/s"
    yield Row("peers", what, words, against, recursive / quick)


def images_rows() -> Iterator[Row]:
    """One image at a time, extraction included in both: `partial_fit`, and the published head behind our extractor."""
    images = np.random.default_rng(0).integers(0, 256, (SAMPLES_PER_PRODUCT, 32, 32, 3), dtype=np.uint8)
    model = CircleClassifier.from_preset("fast").partial_fit(images[:CLASSES], list(range(CLASSES)))
    published = PublishedSLDA(model.groups_[0].size, CLASSES)

    def features(row: int) -> Tensor:
        return model.features(images[row : row + 1])[0][0].to(torch.float32)

    quick = per_sample(lambda row, label: model.partial_fit(images[row : row + 1], [label]), SAMPLES_PER_PRODUCT)
    slow = per_sample(lambda row, label: published.fit(features(row), label), FEW)
    extraction = per_sample(lambda row, label: features(row), FEW)
    yield Row(
        "peers",
        "one image at a time, `partial_fit` with `fast`, extraction included",
        f"{1 / quick:,.0f} images/s, {1e3 * quick:.2f} ms, of which extraction {1e3 * extraction:.2f} ms",
        f"published SLDA behind the same extractor: {1 / slow:,.0f} images/s (the bar is on statistics alone, above)",
        slow / quick,
    )


def refitting_rows() -> Iterator[Row]:
    """A model after each of five batches: all sums and one closed form, or scikit-learn's LDA on everything so far."""
    count, size, batches = 4_000, 512, 5
    random = np.random.default_rng(0)
    labels = np.arange(count) % CLASSES
    values = random.normal(0, 20, (count, size)) + random.normal(0, 20, (CLASSES, size))[labels]
    features = torch.from_numpy(values).round().clamp(-127, 127).to(torch.int8)
    head = build_head(SLDAConfig())

    def ours() -> None:
        statistics = Statistics(size)
        for part in np.array_split(np.arange(count), batches):
            statistics.update(features[part[0] : part[-1] + 1], labels[part].tolist())
            head.materialise(statistics)

    def theirs() -> None:
        for part in np.array_split(np.arange(count), batches):
            end = part[-1] + 1
            LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.01).fit(values[:end], labels[:end])

    quick, slow = least_seconds(ours, 2, 0.0), least_seconds(theirs, 2, 0.0)
    yield Row(
        "peers",
        f"a model after each of {batches} batches of {count // batches}, {size} values",
        f"{quick:.2f} s",
        f"scikit-learn's LDA fitted anew: {slow:.2f} s",
        slow / quick,
    )


def rows(machine: Machine) -> Iterator[Row]:
    yield from paper.rows()
    yield from statistics_rows()
    yield from images_rows()
    yield from refitting_rows()
