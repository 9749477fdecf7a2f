"""From a model's settings and labelled images to advice: learn a part, judge groups of members on the rest.

All members are learned in one pass as one group of N. The statistics of any smaller group are then columns of the
large ones, so that every group size and every partition into groups is judged without looking at an image again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circle.data.sources import Label
from circle.errors import CircleError
from circle.extractors import ImageShape, build_extractor
from circle.heads import HeadConfig, build_head
from circle.learner import CircleClassifier
from circle.machine import available_memory, require_memory
from circle.paper.advice import (
    Advice,
    EnsembleMeasurement,
    GroupMeasurement,
    advise,
    divisors,
    group_variance,
    squared_error,
)
from circle.paper.advice_images import HELD_BACK, UNUSED, LabelledImages, assign_roles
from circle.registry import resolve
from circle.statistics import SAMPLES_PER_PRODUCT, memory_of, parts_named

TILE = 256  # images judged together
LARGEST = 100_000  # members: nobody has more, and a slip of the finger should not count divisors for hours

Report = Callable[[str, int, int], None]  # told what is going on, how many images are done, and of how many


@dataclass(frozen=True)
class Request:
    """What is asked: how to spend ``budget`` members, judged by ``available`` ones."""

    budget: int
    available: int
    validation: float = 0.2
    limit: int | None = None
    split_seed: int = 0
    partitions: int = 3

    def __post_init__(self) -> None:
        checks = [
            ("budget", self.budget, 2 <= self.budget <= LARGEST, f"2 to {LARGEST:,} members to spend"),
            # Two disjoint groups of one member and two of two: a law needs two points.
            ("members measured", self.available, 4 <= self.available <= LARGEST, f"4 to {LARGEST:,}"),
            ("validation", self.validation, 0 < self.validation < 1, "a share above 0 and below 1"),
            ("limit", self.limit, self.limit is None or self.limit >= 1, "at least 1 image"),
            ("seed of the split", self.split_seed, self.split_seed >= 0, "0 or more"),
            ("partitions", self.partitions, self.partitions >= 1, "at least 1"),
        ]
        for name, value, fine, expected in checks:
            if not fine:
                raise CircleError(f"{name} = {value}: expected {expected}")

    def sizes(self) -> list[int]:
        """Group sizes to measure: all divisors of n, and 1, 2, 3, 4, 6, 8, 12, ... to fit laws to.

        The latter only where two disjoint groups exist: a single group does not tell bias from variance.
        """
        grown = {factor << power for factor in (1, 3) for power in range(self.budget.bit_length())}
        pairs = {size for size in grown if size <= min(self.available // 2, self.budget)}
        return sorted(pairs | {size for size in divisors(self.budget) if size <= self.available})


@dataclass(frozen=True)
class Findings:
    """The advice, and what it rests on."""

    advice: Advice
    learned: int
    validated: int
    classes: int
    member_size: int  # d, features of one member

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        facts = {name: value for name, value in vars(self).items() if name != "advice"}
        return {**self.advice.to_dict(), **facts}


def study(
    classifier: CircleClassifier,
    images: LabelledImages,
    request: Request,
    report: Report = lambda what, done, total: None,
) -> Findings:
    """Measure groups of the classifier's kind of member and judge all ways to spend the budget.

    Of ``classifier`` the settings are taken, but for groups and members: those are what is to be found.
    """
    roles = assign_roles(images, request.validation, request.limit, request.split_seed)
    config = resolve("head", classifier.head)
    assert isinstance(config, HeadConfig)
    if not all(part.selectable for part in parts_named(config.parts)):
        raise CircleError(f"head {config.name!r} cannot be judged on groups of all sizes at once: choose another head")
    shape = ImageShape(images.image.channels, images.image.height, images.image.width)
    member = build_extractor(resolve("extractor", classifier.extractor), shape, classifier.seed)
    member_size = member.size
    held = sum(int((role == HELD_BACK).sum()) for role in roles.values())
    check_memory(member_size, len(roles), held * (member.bits // 8 if classifier.quantise else 4), config, request)
    settings = {**classifier.get_params(deep=False), "groups": 1, "members": request.available}
    model = CircleClassifier(**settings).prepare(images.image)
    features, labels = _learn(model, images, roles, report)
    judge = _Judge(model, features, labels, request, report)
    measured = {size: judge.measure(size) for size in request.sizes()}
    ensembles = {size: ensemble for size, (_, ensemble) in measured.items() if ensemble is not None}
    advice = advise(request.budget, [group for group, _ in measured.values()], ensembles)
    return Findings(advice, model.samples_, len(labels), len(roles), member_size)


def memory_needed(size: int, classes: int, held_bytes: int, head: HeadConfig, request: Request) -> int:
    """Bytes: second moments of all members, those of the largest group with its matrices, held-back features."""
    whole, largest = request.available * size, max(request.sizes()) * size
    statistics = memory_of(whole, classes, head.parts) + SAMPLES_PER_PRODUCT * whole
    factors = classes * 8 * largest**2 if "class_triangles" in head.parts else 0
    # The covariance, its factor and two work spaces, besides the statistics that they are made from. Measured with 16
    # members of 864 features: 7.2 GB at the peak, of which 1.1 GB before anything was learned; this says 7.7 GB.
    matrices = memory_of(largest, classes, head.parts) + 4 * 8 * largest**2 + factors
    return statistics + matrices + held_bytes * whole


def check_memory(size: int, classes: int, held_bytes: int, head: HeadConfig, request: Request) -> None:
    """Refuse what does not fit, with the largest number of members that does.

    size: features of one member; held_bytes: of one feature of all images held back.
    """

    def needed(available: int) -> int:
        return memory_needed(size, classes, held_bytes, head, replace(request, available=available))

    there = available_memory()
    if there is None or needed(request.available) <= there:
        return
    fits = bisect_right(range(request.available), there, lo=4, key=needed) - 1
    fewer = f"--members-measured {fits} would fit; or use" if fits >= 4 else "use"
    width = request.available * size
    require_memory(
        needed(request.available),
        f"{request.available} members of {size:,} features, a matrix of {width:,} x {width:,} and the heads on it",
        f"{fewer} a smaller preset, or a projection (--extractor.projection linear)",
    )


def _learn(
    model: CircleClassifier, images: LabelledImages, roles: Mapping[Label, np.ndarray], report: Report
) -> tuple[Tensor, np.ndarray]:
    """Learn what is to be learned; features [N, size] of the images held back, and their columns of probabilities."""
    total, done = sum(int((role != UNUSED).sum()) for role in roles.values()), 0
    held_images = sum(int((role == HELD_BACK).sum()) for role in roles.values())
    dtype = model.groups_[0].grid.dtype if model.quantise else torch.float32
    kept = torch.empty(held_images, model.groups_[0].size, dtype=dtype, device=model.device)
    labels: list[Label] = []
    for tile in images.tiles(roles):
        pixels = torch.from_numpy(np.ascontiguousarray(tile.pixels)).to(torch.float32).div_(255.0)
        features = model.groups_[0].features(pixels.to(model.device))
        held_back = torch.from_numpy(tile.held_back).to(features.device)
        learned = [label for label, held in zip(tile.labels, tile.held_back, strict=True) if not held]
        if learned:
            model.learn_features([features[~held_back]], learned)
        kept[len(labels) : len(labels) + int(held_back.sum())] = features[held_back]
        labels += [label for label, held in zip(tile.labels, tile.held_back, strict=True) if held]
        done += len(tile.labels)
        report("learning", done, total)
    column = {label: index for index, label in enumerate(model.statistics_[0].classes)}
    missing = [label for label in labels if label not in column]
    if missing or not labels or len(column) < 2:
        what = f"of class {missing[0]!r} none to learn" if missing else "too few"
        raise CircleError(f"{images.name}: {what} of the images could be read; expected some of every class")
    return kept[: len(labels)], np.array([column[label] for label in labels])


class _Judge:
    """Errors and variances of groups, on images that were held back."""

    def __init__(
        self, model: CircleClassifier, features: Tensor, columns: np.ndarray, request: Request, report: Report
    ) -> None:
        self._statistics = model.statistics_[0]
        self._config = model._head_config()
        self._features, self._columns = features, columns
        self._request, self._report = request, report
        self._member_size = features.shape[1] // request.available
        self._random = np.random.Generator(np.random.PCG64([request.split_seed, 1]))
        self._done = 0
        heads = sum(self._partitions(size) * (request.available // size) for size in request.sizes())
        self._total = heads * len(columns)

    def _partitions(self, size: int) -> int:
        """All members together make one group only; taken singly, they differ in nothing but who shares an ensemble."""
        available, budget = self._request.available, self._request.budget
        only = size == available or (size == 1 and budget >= available)
        return 1 if only else self._request.partitions

    def measure(self, size: int) -> tuple[GroupMeasurement, EnsembleMeasurement | None]:
        """Groups of ``size`` members, and ensembles of n members where there are as many.

        The first partition is the one that ``CircleClassifier`` makes of consecutive seeds, the others are random.
        Groups of one partition share no member, so that the estimates of each are unbiased; so is their mean.
        """
        budget, available = self._request.budget, self._request.available
        groups, partitions = available // size, self._partitions(size)
        heads_each = budget // size if budget % size == 0 and budget <= available else 0
        ensembles = groups // heads_each if heads_each else 0
        error = variance = ensemble_error = correct = 0.0
        for partition in range(partitions):
            order = np.arange(available) if partition == 0 else self._random.permutation(available)
            for probabilities, chosen in self._probabilities(order[: groups * size].reshape(groups, size)):
                targets = np.eye(probabilities.shape[2])[chosen]
                error += float(squared_error(probabilities, targets).mean(0).sum())
                variance += float(group_variance(probabilities).sum()) if groups > 1 else 0.0
                for index in range(ensembles):
                    mean = probabilities[index * heads_each : (index + 1) * heads_each].mean(0)
                    ensemble_error += float(squared_error(mean, targets).sum())
                    correct += int((mean.argmax(1) == chosen).sum())
        images = partitions * len(self._columns)
        measured = GroupMeasurement(size, error / images, variance / images if groups > 1 else None)
        if not ensembles:
            return measured, None
        judged = images * ensembles
        return measured, EnsembleMeasurement(ensemble_error / judged, correct / judged, partitions * ensembles)

    def _probabilities(self, groups: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Probabilities [R, B, C] of R groups of members, [R, m], and the right columns [B], a tile at a time."""
        head = build_head(self._config)
        chosen = [self._feature_columns(members) for members in groups]
        heads = [head.materialise(self._statistics.select(columns)).rounded() for columns in chosen]
        for start in range(0, len(self._columns), TILE):
            part = self._features[start : start + TILE]
            scores = [scored(part[:, columns]) for scored, columns in zip(heads, chosen, strict=True)]
            probabilities = torch.softmax(torch.stack(scores) / self._config.temperature, 2)
            self._done += len(groups) * len(part)
            self._report("judging", self._done, self._total)
            yield probabilities.cpu().numpy(), self._columns[start : start + TILE]

    def _feature_columns(self, members: np.ndarray) -> Tensor:
        """Where the features of some members are, ascending."""
        first = torch.from_numpy(np.sort(members)) * self._member_size
        return (first[:, None] + torch.arange(self._member_size)).flatten()
