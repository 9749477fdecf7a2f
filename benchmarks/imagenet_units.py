"""Unit costs on this machine: photographs to decode, features, statistics, closed forms and scores of any size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor

from benchmarks.clock import WALL, Times, now
from benchmarks.imagenet_costs import Costs, Line, Surface
from circle import CircleClassifier
from circle.data.folders import FileImages
from circle.data.images import Subset
from circle.distributed.communicator import Communicator
from circle.ensemble import IMAGES_PER_TILE
from circle.heads import build_head
from circle.method import MAX_BATCH, CircleMethod, predict
from circle.registry import resolve
from circle.runtime.noise import noise_images
from circle.statistics import SAMPLES_PER_PRODUCT

PHOTOGRAPHS, AT_ONCE = 64, 8
WIDTH, HEIGHT, QUALITY = 500, 375, 85  # the usual size of ImageNet's files; noise then takes its 110 kB or so
CALLS = (8, 64, IMAGES_PER_TILE)  # images of a call whose features are timed
PRODUCTS = (8, 128, SAMPLES_PER_PRODUCT)  # samples of a product that is timed
SCORED = (64, MAX_BATCH)  # images of a call whose scores are timed
SAMPLES = 2  # of each class where closed forms are timed: what they take does not depend on it


def write_photographs(folder: Path) -> list[str]:
    """JPEG files of noise whose amplitude falls as in photographs; their names."""
    names = []
    for seed in range(PHOTOGRAPHS // AT_ONCE):
        for pixels in noise_images(AT_ONCE, 3, HEIGHT, WIDTH, seed).transpose(0, 2, 3, 1):
            names.append(f"{len(names):03}.jpg")
            Image.fromarray(pixels).save(folder / names[-1], quality=QUALITY)
    return names


def drawn_images(
    folder: Path, names: list[str], labels: np.ndarray, model: CircleClassifier, seed: int, workers: int = 0
) -> FileImages:
    """An image for each label, drawn from the files; each is read and decoded whenever it is asked for."""
    chosen = np.random.default_rng(seed).integers(0, len(names), len(labels))
    return FileImages(folder, [names[index] for index in chosen], labels, model.input_config(), workers)


def typical_times(function: Callable[[], object], budget: float = 2.0) -> Times:
    """The medians of as many calls as fit into some seconds, the first, which warms up, aside.

    Not the least: a stream of thousands of calls takes what calls usually take. A call that takes longer than the
    budget is made once.
    """
    rounds: list[Times] = []
    while not rounds or sum(wall for wall, _ in rounds) < budget:
        started = now()
        function()
        ended = now()
        rounds.append((ended[0] - started[0], ended[1] - started[1]))
    wall, processor = zip(*(rounds[1:] or rounds), strict=True)
    return statistics.median(wall), statistics.median(processor)


@contextmanager
def single_rank() -> Iterator[Communicator]:
    """Processes that sum up their statistics, of which there is one: what is left is the work of each."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
    try:
        yield Communicator(0, 1, "cpu", 60.0)
    finally:
        dist.destroy_process_group()


@dataclass
class Measured:
    """Times by the amount of work; :meth:`costs` fits the lines, by either clock."""

    decoding: Times
    extraction: dict[int, Times]
    update: dict[int, Times]
    closed_form: dict[int, Times] = field(default_factory=dict)
    scoring: dict[tuple[int, int], Times] = field(default_factory=dict)
    summing: dict[int, Times] = field(default_factory=dict)

    def costs(self, model: CircleClassifier, network: float, clock: int = WALL) -> Costs:
        def line(measured: dict[int, Times]) -> Line:
            return Line.through({amount: times[clock] for amount, times in measured.items()})

        image = model.input_config()
        return Costs(
            heads=len(model.groups_),
            size=model.groups_[0].size,
            pixels=image.height * image.width * image.channels,
            decoding=self.decoding[clock],
            extraction=line(self.extraction),
            update=line(self.update),
            closed_form=line(self.closed_form),
            scoring=Surface.through({amounts: times[clock] for amounts, times in self.scoring.items()}),
            summing=line(self.summing),
            network=network,
        )


def measure(model: CircleClassifier, photographs: FileImages, class_points: Sequence[int]) -> Measured:
    """Unit costs of a model that is prepared and has learned nothing."""
    say("decoding")
    every = np.arange(len(photographs))
    wall, processor = typical_times(lambda: photographs[every])
    pixels = np.resize(photographs[every], (IMAGES_PER_TILE, *photographs[every[:1]].shape[1:]))
    say("extraction")
    extraction = {count: typical_times(lambda n=count: model.features(pixels[:n])) for count in CALLS}
    say("update")
    features = [values.repeat(SAMPLES_PER_PRODUCT // IMAGES_PER_TILE, 1) for values in model.features(pixels)]
    update = _update_times(model, features[0])
    found = Measured((wall / len(every), processor / len(every)), extraction, update)
    for classes in class_points:
        say(f"closed forms, scores and sums of {classes:,} classes")
        learned = _learned(model, features, classes)
        head = build_head(resolve("head", model.head))
        found.closed_form[classes] = typical_times(lambda m=learned, h=head: h.materialise(m.statistics_[0]).rounded())
        with single_rank() as ranks:
            found.summing[classes] = typical_times(lambda m=learned, r=ranks: r.all_reduce(m.statistics_))
        found.scoring |= {(classes, images): times for images, times in _scoring_times(learned, features)}
    return found


def _update_times(model: CircleClassifier, features: Tensor) -> dict[int, Times]:
    """Times of a product of so many samples, of two classes as in a task, into the statistics of one head."""
    learning = model.statistics_[0].copy()

    def update(count: int) -> None:
        learning.update(features[:count], [row % 2 for row in range(count)])
        learning.flush()

    return {count: typical_times(lambda n=count: update(n)) for count in PRODUCTS}


def _learned(model: CircleClassifier, features: list[Tensor], classes: int) -> CircleClassifier:
    """A model of so many classes, with few samples of each, whose second moment is dense none the less."""
    learned = model.copy()
    generator = torch.Generator().manual_seed(0)
    for start in range(0, max(SAMPLES_PER_PRODUCT, SAMPLES * classes), SAMPLES_PER_PRODUCT):
        noise = [torch.randint(-99, 100, each.shape, generator=generator).to(each.dtype) for each in features]
        learned.learn_features(noise, [row % classes for row in range(start, start + SAMPLES_PER_PRODUCT)])
    for each in learned.statistics_:
        each.flush()
    return learned


def _scoring_times(learned: CircleClassifier, features: list[Tensor]) -> Iterator[tuple[int, Times]]:
    """Times of predicting so many images whose features are kept, as an evaluation does."""
    method = CircleMethod(learned)
    config = learned.input_config()
    images = FileImages(Path(), [""] * MAX_BATCH, np.zeros(MAX_BATCH, np.int64), config)  # never read
    method.use_features(images, [[np.resize(each.numpy(), (MAX_BATCH, each.shape[1]))] for each in features])
    predict(method, Subset(images, np.arange(1)))  # computes the heads, which the calls below find ready
    for count in SCORED:
        view = Subset(images, np.arange(count))
        yield count, typical_times(lambda v=view: predict(method, v))


def say(text: str) -> None:
    """A line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
