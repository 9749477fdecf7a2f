"""Models made of parts of another: exactly those that would have been learned with these parts alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from circle.compression.measurement import Validation
from circle.compression.weights import Moments, pack_scores
from circle.ensemble import Group, Kept, KeptMember, build_groups
from circle.errors import CircleError
from circle.extractors import Grid
from circle.heads import LinearScores, Scores, build_head
from circle.heads.scores import SubspaceScores, Weights
from circle.learner import CircleClassifier
from circle.predictor import ImageClassifier, Predictor
from circle.registry import resolve
from circle.runtime.facts import PACKED
from circle.statistics import Statistics


class PartId(NamedTuple):
    """A part of the extractor of a member of a group."""

    group: int
    member: int
    part: int


class Variant(NamedTuple):
    """What a smaller model is made of; ``parts`` ascending, ``rank`` None for the full one.

    The rank of a linear head is that of its weights, of a head with a subspace the directions of each class.
    """

    parts: tuple[PartId, ...]
    weights: Weights = "float32"
    rank: int | None = None


class VariantBuilder:
    """Makes variants of a model, which stays as it is, and says how accurate they are on validation images.

    Heads, moments and probabilities are kept, group by group, for as long as they may be wanted again.

    Parameters
    ----------
    model : CircleClassifier or Predictor
        The model to make smaller; only of a learning one can parts be left out.
    validation : Validation or None
        Images to measure the accuracy on, where it will be asked for.

    Attributes
    ----------
    predictor : Predictor
        The model as it is.
    columns : dict
        Columns int64 [d] of each part among the features of its group.
    """

    def __init__(self, model: ImageClassifier, validation: Validation | None = None) -> None:
        self.predictor = model.for_prediction()
        kept = any(group.kept is not None for group in self.predictor.groups_)
        if kept or any(scores.kind in PACKED for scores in self.predictor.scores_):
            raise CircleError("this model was compressed already: expected the model it was made from")
        self.statistics = model.statistics_ if isinstance(model, CircleClassifier) else None
        self.validation = validation
        self.columns: dict[PartId, Tensor] = {}
        for index, group in enumerate(self.predictor.groups_):
            self.columns |= _columns_of_group(index, group)
        self._heads: dict[tuple[tuple[PartId, ...], int | None], Scores] = {}
        self._moments: dict[tuple[PartId, ...], Moments] = {}
        # Keyed by variants of a single group.
        self._scores: dict[Variant, Scores] = {}
        self._probabilities: dict[Variant, Tensor] = {}

    @property
    def whole(self) -> Variant:
        """The model as it is."""
        return Variant(tuple(self.columns))

    @property
    def packable(self) -> bool:
        """Whether the heads have weights to pack; those of others keep their format."""
        return isinstance(self.predictor.scores_[0], LinearScores | SubspaceScores)

    @property
    def directions(self) -> int | None:
        """Directions of each class in the subspace of the heads; None: they have no subspace."""
        scores = self.predictor.scores_[0]
        return scores.rank if isinstance(scores, SubspaceScores) else None

    def build(self, variant: Variant) -> Predictor:
        """The predictor of a variant."""
        model, parts_of_groups = self.predictor, _by_group(variant.parts)
        groups, settings = model.groups_, model.settings()
        if variant.parts != self.whole.parts:
            groups = build_groups(
                resolve("extractor", settings["extractor"]),
                groups[0].members[0].shape,
                groups=settings["groups"],
                members=settings["members"],
                seed=settings["seed"],
                quantise=settings["quantise"],
                device=groups[0].grid.scale.device,
                grids=[self._grid(parts) for parts in parts_of_groups],
                kept=self._kept(parts_of_groups),
            )
        return Predictor(
            groups,
            [self._packed(parts, variant) for parts in parts_of_groups],
            model.labels,
            settings=settings,
            samples=model.samples_,
            resize_arrays=model.resize_arrays,
        )

    def accuracy(self, variant: Variant) -> float:
        """Share of the validation images that the variant recognises."""
        assert self.validation is not None
        total = sum(self._group_probabilities(parts, variant) for parts in _by_group(variant.parts))
        assert isinstance(total, Tensor)
        return float((total.argmax(1).cpu() == self.validation.targets).double().mean())

    def features(self, parts: Sequence[PartId]) -> int:
        """Length of all feature vectors together."""
        return sum(len(self.columns[part]) for part in parts)

    def _group_probabilities(self, parts: tuple[PartId, ...], variant: Variant) -> Tensor:
        """Probabilities [N, C] of one group's head; argmax of their sum is argmax of their mean."""
        key = Variant(parts, variant.weights, variant.rank)
        if key not in self._probabilities:
            assert self.validation is not None
            columns, scores = self._group_columns(parts), self._packed(parts, variant)
            features = self.validation.features[parts[0].group]
            tiles = [self.predictor.softmax(scores(tile[:, columns])) for tile in features.split(1024)]
            self._probabilities[key] = torch.cat(tiles)
        return self._probabilities[key]

    def _packed(self, parts: tuple[PartId, ...], variant: Variant) -> Scores:
        key = Variant(parts, variant.weights, variant.rank)
        if key not in self._scores:
            directions = variant.rank if self.directions else None
            wanted = variant.weights == "int8" or (variant.rank is not None and not directions)
            moments = self._moments_of(parts) if wanted else None
            head = self._head(parts, directions)
            self._scores[key] = pack_scores(head, variant.weights, variant.rank, moments)
        return self._scores[key]

    def _head(self, parts: tuple[PartId, ...], directions: int | None) -> Scores:
        """The head of what is left of a group, from the statistics of these columns alone, with so many directions."""
        group, config = parts[0].group, self.predictor.head_config()
        if directions is None and self._whole(parts):
            return self.predictor.scores_[group]
        if (parts, directions) not in self._heads:
            statistics = self._statistics_of(parts)
            if statistics is None:
                given_up = "parts" if directions is None else "directions"
                raise CircleError(
                    f"a model that only predicts has no statistics to leave {given_up} out of: "
                    "expected the learning model it was made from"
                )
            if directions is not None:
                most = self.directions or 0
                if not 1 <= directions <= most:
                    raise CircleError(f"rank = {directions}: expected 1 to {most}, the directions of each class")
                config = config.replace(rank=directions)
            self._heads[parts, directions] = build_head(config).materialise(statistics).rounded()
        return self._heads[parts, directions]

    def _moments_of(self, parts: tuple[PartId, ...]) -> Moments | None:
        """Moments of these columns of a group; those asked for last are kept, because every rank needs the same."""
        if parts not in self._moments:
            group = parts[0].group
            self._moments = {each: found for each, found in self._moments.items() if each[0].group != group}
            statistics = self._statistics_of(parts)
            if statistics is not None:
                self._moments[parts] = Moments.of_statistics(statistics)
            elif self.validation is not None:
                columns = self._group_columns(parts)
                self._moments[parts] = Moments.of_features(self.validation.features[group][:, columns])
        return self._moments.get(parts)

    def _statistics_of(self, parts: tuple[PartId, ...]) -> Statistics | None:
        """Statistics of these columns of a group; of all of them, whatever the head, or those that can be cut."""
        if self.statistics is None:
            return None
        statistics = self.statistics[parts[0].group]
        if self._whole(parts):
            return statistics
        return statistics.select(self._group_columns(parts), self.predictor.head_config().parts)

    def _whole(self, parts: tuple[PartId, ...]) -> bool:
        return len(self._group_columns(parts)) == self.predictor.groups_[parts[0].group].size

    def _group_columns(self, parts: tuple[PartId, ...]) -> Tensor:
        return torch.cat([self.columns[part] for part in parts]).sort().values

    def _grid(self, parts: tuple[PartId, ...]) -> Grid:
        grid, columns = self.predictor.groups_[parts[0].group].grid, self._group_columns(parts)
        return Grid(grid.scale[columns], grid.offset[columns], grid.bits)

    def _kept(self, groups: Sequence[tuple[PartId, ...]]) -> Kept:
        kept: list[list[KeptMember]] = []
        for parts in groups:
            members = sorted({part.member for part in parts})
            seeds = [self.predictor.groups_[parts[0].group].members[member].seed for member in members]
            numbers = [tuple(part.part for part in parts if part.member == member) for member in members]
            kept.append([KeptMember(seed, each) for seed, each in zip(seeds, numbers, strict=True)])
        return kept


def _by_group(parts: Sequence[PartId]) -> list[tuple[PartId, ...]]:
    groups = sorted({part.group for part in parts})
    return [tuple(part for part in parts if part.group == group) for group in groups]


def _columns_of_group(index: int, group: Group) -> dict[PartId, Tensor]:
    """Columns of each part among the features of its group."""
    result: dict[PartId, Tensor] = {}
    start = 0
    for number, member in enumerate(group.members):
        for part, columns in enumerate(member.parts()):
            result[PartId(index, number, part)] = columns + start
        start += member.size
    return result
