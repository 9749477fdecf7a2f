"""The same work done the plain way, in the same run: what the paper's algorithm, other heads and refitting cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor
from torch.nn import functional

from benchmarks.learning import features_of
from benchmarks.limits import Machine, least_seconds
from benchmarks.rows import Row
from circle import BiRC2DConfig
from circle.extractors import ImageShape, build_extractor
from circle.heads import SLDAConfig, build_head
from circle.statistics import Statistics

SIZE, CLASSES = 2_016, 100  # of `fast`, CIFAR-100


class PublishedSLDA:
    """Streaming LDA as it is published: for every sample a running mean and a rank-one update of the covariance.

    Sigma <- (n Sigma + Delta) / (n + 1),    Delta = n (z - mu_y) (z - mu_y)^T / (n + 1)
    """

    def __init__(self, size: int, classes: int) -> None:
        self.means, self.counts = torch.zeros(classes, size), torch.zeros(classes)
        self.covariance, self.samples = torch.ones(size, size), 0

    def fit(self, sample: Tensor, label: int) -> None:
        centred = sample - self.means[label]
        delta = torch.outer(centred, centred) * (self.samples / (self.samples + 1))
        self.covariance = (self.samples * self.covariance + delta) / (self.samples + 1)
        self.means[label] += centred / (self.counts[label] + 1)
        self.counts[label] += 1
        self.samples += 1


class RecursiveLeastSquares:
    """Ridge regression, one sample at a time: P <- P - P z z^T P / (1 + z^T P z), W <- W + P z (y - z^T W)."""

    def __init__(self, size: int, classes: int, ridge: float = 1.0) -> None:
        self.inverse = torch.eye(size) / ridge
        self.weight = torch.zeros(size, classes)

    def fit(self, sample: Tensor, label: int) -> None:
        gained = self.inverse @ sample
        self.inverse -= torch.outer(gained, gained) / (1 + sample @ gained)
        error = -(sample @ self.weight)
        error[label] += 1
        self.weight += torch.outer(self.inverse @ sample, error)


def plain_birc2d(config: BiRC2DConfig, images: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """BiRC2D transcribed from the text: a stem, patches in rows and columns, four reservoirs, step by step, means."""
    maps = images
    for layer in range(len(config.stem_channels)):
        maps = functional.leaky_relu(functional.conv2d(maps, weights[f"stem{layer}"], padding=1), 0.01)
    patch = config.patch_sizes[0]
    patches = functional.unfold(maps, patch, stride=patch)  # [B, C p p, H' W']
    side = maps.shape[2] // patch
    grid = patches.transpose(1, 2).reshape(len(images), side, side, -1)
    found = []
    for direction in range(4):
        steps = grid if direction < 2 else grid.transpose(1, 2)
        steps = steps.flip(2) if direction % 2 else steps
        lines = steps.reshape(-1, side, grid.shape[-1])
        state = torch.zeros(len(lines), config.width)
        states = []
        for step in range(side):
            drive = lines[:, step] @ weights[f"input{direction}"].T + state @ weights[f"recurrent{direction}"].T
            state = (1 - config.leak) * state + config.leak * torch.tanh(drive)
            states.append(state)
        found.append(torch.stack(states, 1).reshape(len(images), side, side, -1).permute(0, 3, 1, 2))
    return functional.adaptive_avg_pool2d(torch.cat(found, 1), config.grid).flatten(1)


def plain_weights(config: BiRC2DConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights, before = {}, 3
    for layer, channels in enumerate(config.stem_channels):
        weights[f"stem{layer}"] = torch.randn(channels, before, 3, 3, generator=generator) * 0.1
        before = channels
    inputs = before * config.patch_sizes[0] ** 2
    for direction in range(4):
        weights[f"input{direction}"] = torch.randn(config.width, inputs, generator=generator) * 0.1
        weights[f"recurrent{direction}"] = torch.randn(config.width, config.width, generator=generator) * 0.05
    return weights


def extraction_rows() -> Iterator[Row]:
    """The same layers and sizes: random weights of one kind or the other take the same time."""
    config = BiRC2DConfig(
        stem="plain",
        stem_channels=(16, 32),
        stem_kernels=(3, 3),
        patch_sizes=(2,),
        width=120,
        join_stem=False,
        moments=("mean",),
        power=1.0,
        windows="box",
        mirror=False,
        bits=8,
    )
    ours = build_extractor(config, ImageShape(3, 32, 32), 0)
    images, weights = torch.rand(512, 3, 32, 32), plain_weights(config)
    with torch.inference_mode():
        plain = least_seconds(lambda: plain_birc2d(config, images[:256], weights), 3, 0.0) / 256
    quick = least_seconds(lambda: ours.features(images), 3, 0.0) / len(images)
    yield Row(
        "peers",
        "BiRC2D, 4 x 120 units: images/s",
        f"{1 / quick:,.0f}",
        f"plain PyTorch, step by step: {1 / plain:,.0f}",
        plain / quick,
    )


def per_sample(fit: Callable[[Tensor, int], None], features: Tensor) -> float:
    """Seconds of one sample."""
    for row in range(3):
        fit(features[row], row)
    started = time.perf_counter()
    for row in range(len(features)):
        fit(features[row], row % CLASSES)
    return (time.perf_counter() - started) / len(features)


def streaming_rows() -> Iterator[Row]:
    """One sample at a time, features given; ours waits for a tile to be full, and the waiting is part of the time."""
    features = features_of(SIZE, 16, 2_048)
    floats = features[:100].to(torch.float32)
    statistics = Statistics(SIZE)

    def ours(sample: Tensor, label: int) -> None:
        statistics.update(sample[None], [label])

    quick = per_sample(ours, features)
    slow = per_sample(PublishedSLDA(SIZE, CLASSES).fit, floats)
    recursive = per_sample(RecursiveLeastSquares(SIZE, CLASSES).fit, floats)
    words = f"{1 / quick:,.0f} samples/s"
    yield Row(
        "peers",
        f"one sample at a time, {SIZE:,} values",
        words,
        f"published SLDA: {1 / slow:,.0f} samples/s",
        slow / quick,
        ">= 20",
    )
    yield Row("peers", "", words, f"recursive least squares: {1 / recursive:,.0f} samples/s", recursive / quick)


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
    yield from extraction_rows()
    yield from streaming_rows()
    yield from refitting_rows()
