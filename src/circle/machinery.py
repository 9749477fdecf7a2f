"""What CircleClassifier does behind its public methods: checks, tiles, lazily materialised heads."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Self

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from circle.config import Config
from circle.data.batches import ImageBatch, ImageWish
from circle.data.decode import ImageConfig
from circle.ensemble import Group, Kept, build_groups
from circle.errors import CircleError
from circle.extractors import Grid, ImageShape
from circle.heads import HeadConfig, Scores, build_head
from circle.labels import check_one_kind, plain_labels
from circle.ledger import Ledger
from circle.machine import usable_device
from circle.not_learned import NotLearnedError
from circle.registry import resolve
from circle.statistics import Statistics, check_room

TILE = 256  # images in the working set while learning or predicting, however many are given


class Machinery(BaseEstimator):
    """The working parts; :class:`circle.learner.CircleClassifier` is their public face and stores the parameters."""

    extractor: str | Config
    head: str | Config
    groups: int
    members: int
    seed: int
    image_size: int | tuple[int, int] | None
    channels: int | None
    aspect: str
    background: int
    quantise: bool
    device: str

    image_: ImageConfig
    groups_: list[Group]
    statistics_: list[Statistics]

    _cache: dict[Any, list[Scores]]  # a container, because predicting must not change the estimator itself
    _prediction_only = False
    _stored_classes: Sequence[Hashable] = ()
    _stored_samples = 0
    _kept: Kept | None = None  # what a compressed model has left of its groups
    _journal_mark: dict[str, Any] | None = None  # which lessons of a server's journal are in here: circle.serve

    @property
    def ledger_(self) -> Ledger:
        """Which files ``circle learn`` has taught; images given to ``partial_fit`` are not recorded."""
        if "_ledger" not in self.__dict__:
            self._ledger = Ledger()
        return self._ledger

    @property
    def _started(self) -> bool:
        return hasattr(self, "groups_")

    def _classes(self) -> list[Hashable]:
        return list(self._stored_classes) if self._prediction_only else self.statistics_[0].classes

    def _require_learned(self) -> None:
        if not self._started or not self._classes():
            raise NotLearnedError("this model has not learned anything yet: call partial_fit, or run `circle learn`")

    def _require_learning(self) -> None:
        if self._prediction_only:
            raise CircleError("this model only predicts: learn with the learning model it was made from")

    def _require_same_kind(self, other: Machinery) -> None:
        for model in (self, other):
            model._require_learned()
            model._require_learning()
        mine, theirs = self.settings(), other.settings()
        for name in mine:
            if mine[name] != theirs[name]:
                raise CircleError(f"models with different {name} do not combine: {mine[name]} and {theirs[name]}")
        for my_group, their_group in zip(self.groups_, other.groups_, strict=True):
            if not (
                torch.equal(my_group.grid.scale, their_group.grid.scale)
                and torch.equal(my_group.grid.offset, their_group.grid.offset)
            ):
                raise CircleError("models calibrated differently do not combine: start both from one empty model file")

    def input_config(self) -> ImageConfig:
        """The shape that files and PIL images are brought to; known before anything was learned."""
        return self.image_ if self._started else self._wish().decided(32, 32, 3)

    def settings(self) -> dict[str, Any]:
        """The resolved settings that decide what a model learns from an image; plain data."""
        return {**self.part_settings(), "image": self.image_.to_dict()}

    def part_settings(self) -> dict[str, Any]:
        """The resolved settings but for the image shape, which the first batch may have to decide."""
        return {
            "extractor": resolve("extractor", self.extractor).to_dict(),
            "head": resolve("head", self.head).to_dict(),
            "groups": self.groups,
            "members": self.members,
            "seed": self.seed,
            "quantise": self.quantise,
        }

    def _head_config(self) -> HeadConfig:
        config = resolve("head", self.head)
        assert isinstance(config, HeadConfig)
        return config

    def _accepted(self, X: Any, y: Any) -> tuple[ImageBatch, list[Hashable]]:
        """Images and labels, all of them checked before anything changes."""
        if y is None:
            raise CircleError("requires y to be passed, but the target y is None: one label per image")
        labels = plain_labels(y)
        batch = self._batch(X)
        if len(labels) != len(batch):
            raise CircleError(f"{len(labels)} labels for {len(batch)} images: expected one each")
        if self._started:
            # One class is enough, and to ask for all of them would sort a thousand for each image.
            known = self._stored_classes[:1] if self._prediction_only else self.statistics_[0].example
            check_one_kind([*known, *labels])
        else:
            check_one_kind(labels)
        batch.check()
        return batch, labels

    def _batch(self, X: Any) -> ImageBatch:
        if self._started:
            return ImageBatch(X, self.image_, resize=self.image_size is not None)
        return ImageBatch(X, self._wish(), resize=self.image_size is not None)

    def _wish(self) -> ImageWish:
        size = (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size
        return ImageWish(size, self.channels, self.aspect, self.background)

    def _start(self, image: ImageConfig, grids: Sequence[Grid] | None = None, kept: Kept | None = None) -> None:
        """Build what config and seed determine, with nothing learned."""
        if self.groups < 1 or self.members < 1:
            raise CircleError(f"groups = {self.groups}, members = {self.members}: expected at least 1 of each")
        usable_device(self.device)
        self.image_ = image
        self._kept = kept
        self.groups_ = build_groups(
            resolve("extractor", self.extractor),
            ImageShape(image.channels, image.height, image.width),
            groups=self.groups,
            members=self.members,
            seed=self.seed,
            quantise=self.quantise,
            device=self.device,
            grids=grids,
            kept=kept,
        )
        self.statistics_ = [self._new_statistics(group) for group in self.groups_]
        self.n_features_in_ = image.channels * image.height * image.width
        self._cache = {}

    def _new_statistics(self, group: Group) -> Statistics:
        head = self._head_config()
        return Statistics(
            group.size,
            exact=self.quantise,
            parts=head.parts,
            device=self.device,
        )

    def _replace_statistics(self, statistics: Sequence[Statistics]) -> None:
        """Take over all that was learned elsewhere."""
        self.statistics_ = list(statistics)
        self._cache.clear()  # its keys are identities, and a new object may get the one of an old object that is gone

    def _tiles(self, batch: ImageBatch) -> Iterator[tuple[int, Tensor]]:
        for start in range(0, len(batch), TILE):
            yield start, batch.tile(start, start + TILE).to(self.device)

    def _learn(self, batch: ImageBatch, labels: Sequence[Hashable]) -> None:
        check_room(self.statistics_, labels)
        for start, images in self._tiles(batch):
            features = [group.features(images) for group in self.groups_]
            for statistics, values in zip(self.statistics_, features, strict=True):
                statistics.update(values, labels[start : start + len(images)])

    def _subtract(self, batch: ImageBatch, labels: Sequence[Hashable]) -> None:
        """Take samples out of all groups, or out of none where they were not learned."""
        parts = [self._new_statistics(group) for group in self.groups_]
        for start, images in self._tiles(batch):
            for part, group in zip(parts, self.groups_, strict=True):
                part.update(group.features(images), labels[start : start + len(images)])
        self.statistics_[:] = [mine - part for mine, part in zip(self.statistics_, parts, strict=True)]

    def _only_predict(self, classes: Sequence[Hashable], samples: int, scores: Sequence[Scores]) -> None:
        """Become a model that predicts with these heads and no longer learns."""
        self._prediction_only = True
        self._stored_classes, self._stored_samples = classes, samples
        self._cache = {None: list(scores)}
        self.statistics_ = []

    def _materialised(self) -> list[Scores]:
        """The heads, computed when first needed and kept until the statistics change."""
        if self._prediction_only:
            return self._cache[None]
        key = (self.head, *((id(statistics), statistics.version) for statistics in self.statistics_))
        if key not in self._cache:
            head = build_head(resolve("head", self.head))
            scores = [head.materialise(statistics).rounded() for statistics in self.statistics_]
            self._cache.clear()
            self._cache[key] = scores
        return self._cache[key]

    def set_params(self, **params: Any) -> Self:
        """As in scikit-learn; ``extractor__width=60`` replaces the frozen config by a changed one."""
        plain = {name: value for name, value in params.items() if "__" not in name}
        super().set_params(**plain)
        for name, value in params.items():
            part, _, setting = name.partition("__")
            if setting:
                if part not in ("extractor", "head"):
                    raise CircleError(f"unknown parameter {name!r}: only extractor and head have settings of their own")
                setattr(self, part, resolve(part, getattr(self, part)).replace(**{setting: value}))
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.positive_only = True
        return tags
