"""Models made of parts of another: exactly those that would have been learned with these parts alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from circle.compression.validation import Validation
from circle.compression.weights import Moments, pack_scores
from circle.ensemble import Group, Kept, KeptMember
from circle.errors import CircleError
from circle.extractors import Grid
from circle.heads import LinearScores, Scores, build_head
from circle.heads.scores import Weights
from circle.learner import CircleClassifier
from circle.registry import resolve


class PartId(NamedTuple):
    """A part of the extractor of a member of a group."""

    group: int
    member: int
    part: int


class Variant(NamedTuple):
    """What a smaller model is made of; ``parts`` ascending, ``rank`` None for the full one."""

    parts: tuple[PartId, ...]
    weights: Weights = "float32"
    rank: int | None = None


class Workshop:
    """Makes variants of a model, which stays as it is, and says how accurate they are on validation images.

    Heads, moments and probabilities are kept, group by group, for as long as they may be wanted again.
    """

    def __init__(self, model: CircleClassifier, validation: Validation | None = None) -> None:
        model._require_learned()
        if model._kept is not None or any(scores.file_format > 1 for scores in _stored(model)):
            raise CircleError("this model was compressed already: expected the model it was made from")
        self.model = model
        self.validation = validation
        self.columns: dict[PartId, Tensor] = {}
        for index, group in enumerate(model.groups_):
            self.columns |= _columns_of_group(index, group)
        self._heads: dict[tuple[PartId, ...], Scores] = {}
        self._moments: dict[tuple[PartId, ...], Moments] = {}
        # Keyed by variants of a single group.
        self._scores: dict[Variant, Scores] = {}
        self._probabilities: dict[Variant, Tensor] = {}

    @property
    def learning(self) -> bool:
        """Whether there are statistics that can be cut."""
        return not self.model._prediction_only

    @property
    def whole(self) -> Variant:
        """The model as it is."""
        return Variant(tuple(self.columns))

    def linear(self) -> bool:
        """Whether the heads are linear; other weights keep their format."""
        return isinstance(self._head(_by_group(self.whole.parts)[0]), LinearScores)

    def build(self, variant: Variant) -> CircleClassifier:
        """The predicting model of a variant."""
        groups = _by_group(variant.parts)
        scores = [self._packed(parts, variant) for parts in groups]
        result = copy.copy(self.model)
        result.__dict__.pop("_ledger", None)
        if variant.parts != self.whole.parts:
            grids = [self._grid(parts) for parts in groups]
            result._start(self.model.image_, grids, self._kept(groups))
        result._only_predict(self.model._classes(), self.model.samples_, scores)
        return result

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
            temperature = self.model._head_config().temperature
            tiles = [torch.softmax(scores(tile[:, columns]) / temperature, 1) for tile in features.split(1024)]
            self._probabilities[key] = torch.cat(tiles)
        return self._probabilities[key]

    def _packed(self, parts: tuple[PartId, ...], variant: Variant) -> Scores:
        key = Variant(parts, variant.weights, variant.rank)
        if key not in self._scores:
            wanted = variant.weights == "int8" or variant.rank is not None
            moments = self._moments_of(parts) if wanted else None
            self._scores[key] = pack_scores(self._head(parts), variant.weights, variant.rank, moments)
        return self._scores[key]

    def _head(self, parts: tuple[PartId, ...]) -> Scores:
        """The head of what is left of a group, from the statistics of these columns alone."""
        group, columns = parts[0].group, self._group_columns(parts)
        if len(columns) == self.model.groups_[group].size:
            return self.model._materialised()[group]
        if parts not in self._heads:
            if not self.learning:
                raise CircleError(
                    "a model that only predicts has no statistics to leave parts out of: "
                    "expected the learning model it was made from"
                )
            head = build_head(resolve("head", self.model.head))
            self._heads[parts] = head.materialise(self.model.statistics_[group].select(columns)).rounded()
        return self._heads[parts]

    def _moments_of(self, parts: tuple[PartId, ...]) -> Moments | None:
        """Moments of these columns of a group; those asked for last are kept, because every rank needs the same."""
        if parts not in self._moments:
            group, columns = parts[0].group, self._group_columns(parts)
            self._moments = {each: found for each, found in self._moments.items() if each[0].group != group}
            if self.learning:
                self._moments[parts] = Moments.of_statistics(self.model.statistics_[group].select(columns))
            elif self.validation is not None:
                self._moments[parts] = Moments.of_features(self.validation.features[group][:, columns])
        return self._moments.get(parts)

    def _group_columns(self, parts: tuple[PartId, ...]) -> Tensor:
        return torch.cat([self.columns[part] for part in parts]).sort().values

    def _grid(self, parts: tuple[PartId, ...]) -> Grid:
        grid, columns = self.model.groups_[parts[0].group].grid, self._group_columns(parts)
        return Grid(grid.scale[columns], grid.offset[columns], grid.bits)

    def _kept(self, groups: Sequence[tuple[PartId, ...]]) -> Kept:
        kept: list[list[KeptMember]] = []
        for parts in groups:
            members = sorted({part.member for part in parts})
            seeds = [self.model.groups_[parts[0].group].members[member].seed for member in members]
            numbers = [tuple(part.part for part in parts if part.member == member) for member in members]
            kept.append([KeptMember(seed, each) for seed, each in zip(seeds, numbers, strict=True)])
        return kept


def _stored(model: CircleClassifier) -> list[Scores]:
    return model._materialised() if model._prediction_only else []


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
