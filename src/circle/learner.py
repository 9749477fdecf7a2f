"""CircleClassifier: groups of frozen extractors, exact statistics, one head per group; scikit-learn's face."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from circle.config import Config, setting_differences
from circle.data.batches import ImageBatch, ImageOptions
from circle.data.decode import ImageConfig
from circle.ensemble import Group, Kept, build_groups
from circle.errors import CircleError, counted
from circle.extractors import Grid, ImageShape, ParameterCount
from circle.heads import HeadConfig, Scores, build_head
from circle.labels import check_one_kind, label_array, plain_labels
from circle.ledger import Ledger
from circle.machine import usable_device
from circle.presets import DEFAULT, read_preset
from circle.registry import resolve
from circle.statistics import Statistics, check_room

IMAGES_PER_TILE = 256  # in the working set while learning or predicting, however many are given


class NotLearnedError(CircleError, NotFittedError):
    """A prediction was asked of a model that has not learned anything yet."""


class CircleClassifier(ClassifierMixin, BaseEstimator):
    """An image classifier that learns from a stream, in any order, and never forgets.

    k groups of m frozen random extractors turn an image into k feature vectors; each group has a head that is a
    closed-form function of additive statistics; the probabilities of the k heads are averaged:

        p(x) = 1/k sum_j softmax(h_j(Phi_{G_j}(x)) / temperature)

    Parameters
    ----------
    extractor, head : str or config
        A registered name (``"local_contrast"``, ``"slda"``) or its config, such as ``BiRC2DConfig(width=60)``. The
        defaults are those of the preset ``fast``.
    groups, members : int
        k heads with m extractors each.
    seed : int
        The extractors draw their weights from seed, seed + 1, ..., seed + k m - 1.
    image_size : int, (height, width) or None
        Size that images are brought to. None: arrays keep their own size (the first batch decides), files and
        PIL images become 32 x 32.
    channels : int or None
        1 or 3 (arrays may have other counts). None: the first array decides, files and PIL images become RGB.
    aspect : {"crop", "pad", "stretch"}
        How an image of another aspect ratio is brought to the model's.
    background : int
        Grey level behind transparent pixels and around padded images.
    quantise : bool
        True: features are integers on a fixed grid and the statistics exact. False: float32, for comparison.
    device : str
        Where PyTorch computes.

    Attributes
    ----------
    classes_ : ndarray [C]
        Labels learned so far, sorted; the columns of ``predict_proba``.
    statistics_ : list of Statistics
        One per group: all that was learned.
    image_ : ImageConfig
        How images become the model's input.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> images, labels = load_digits(return_X_y=True)
    >>> model = CircleClassifier(image_size=16).partial_fit(images[:1000] / 16, labels[:1000])
    >>> bool(model.score(images[1000:] / 16, labels[1000:]) > 0.9)
    True
    """

    image_: ImageConfig
    groups_: list[Group]
    statistics_: list[Statistics]

    _cache: dict[Any, list[Scores]]  # a container, because predicting must not change the estimator itself
    _prediction_only = False
    _stored_classes: Sequence[Hashable] = ()
    _stored_samples = 0
    _kept: Kept | None = None  # what a compressed model has left of its groups
    _journal_mark: dict[str, Any] | None = None  # which lessons of a server's journal are in here: circle.serve

    def __init__(
        self,
        extractor: str | Config = "local_contrast",
        head: str | Config = "slda",
        *,
        groups: int = 1,
        members: int = 1,
        seed: int = 0,
        image_size: int | tuple[int, int] | None = None,
        channels: int | None = None,
        aspect: str = "crop",
        background: int = 255,
        quantise: bool = True,
        device: str = "cpu",
    ) -> None:
        self.extractor = extractor
        self.head = head
        self.groups = groups
        self.members = members
        self.seed = seed
        self.image_size = image_size
        self.channels = channels
        self.aspect = aspect
        self.background = background
        self.quantise = quantise
        self.device = device

    @classmethod
    def from_preset(cls, preset: str | Path = DEFAULT, **changes: Any) -> Self:
        """A classifier with the settings of a preset (a name, or a TOML file), some of them changed.

        Settings of a part are written with two underscores: ``from_preset("fast", head__ridge=10.0)``.
        """
        return cls.from_settings(read_preset(preset), f"preset {preset}").set_params(**changes)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], where: str = "settings") -> Self:
        """A classifier from plain data, as a preset file holds it; ``where`` names it in an error."""
        settings = {name: value for name, value in settings.items() if name not in ("description", "methods")}
        names = cls._get_param_names()
        unknown = [name for name in settings if name not in names]
        if unknown:
            raise CircleError(f"{where}: unknown setting {unknown[0]!r}; known: {', '.join(names)}")
        for kind in ("extractor", "head"):
            if kind in settings:
                settings[kind] = resolve(kind, settings[kind])
        return cls(**settings)

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.positive_only = True
        return tags

    # -- learning --------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Start anew and learn these images."""
        for fitted in ("groups_", "statistics_", "image_", "_ledger", "_journal_mark", "n_features_in_"):
            self.__dict__.pop(fitted, None)
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any, classes: Iterable[Hashable] | None = None) -> Self:
        """Learn more images, one or a million; a batch with anything wrong in it changes nothing.

        ``classes`` is accepted for scikit-learn's sake: if given, labels outside it are refused. New classes may
        appear at any time without it.
        """
        self._require_learning()
        batch, labels = self._accepted(X, y)
        if classes is not None:
            strangers = set(labels) - set(plain_labels(classes))
            if strangers:
                raise CircleError(f"label {next(iter(strangers))!r} is not among the classes given")
        if not self._started:
            self._start(batch.config)
        self._learn(batch, labels)
        return self

    def unlearn(self, X: Any, y: Any) -> Self:
        """Take samples back out: the model becomes, bit for bit, the one that never saw them."""
        self._require_learned()
        self._require_learning()
        self._subtract(*self._accepted(X, y))
        return self

    def forget(self, label: Hashable, X: Any = None) -> Self:
        """Let a class leave the model.

        Without ``X`` the class is gone from predictions, counts and means, and its anonymous scatter stays in the
        covariance that all classes share. With ``X``, all the images of the class that were learned, the scatter
        goes too, and the model is bit for bit the one that never saw the class. Other images are recognised as
        such and refused.
        """
        self._require_learned()
        self._require_learning()
        label = plain_labels([label])[0]
        if label not in self.statistics_[0].classes:
            known = ", ".join(repr(each) for each in self.statistics_[0].classes[:10])
            raise CircleError(f"class {label!r} is not in the model; it has {known}")
        if X is None:
            for statistics in self.statistics_:
                statistics.remove(label)
        else:
            batch, labels = self._accepted(X, [label] * len(X))
            learned = int(self.statistics_[0].counts[self.statistics_[0].classes.index(label)])
            if len(batch) != learned:
                raise CircleError(
                    f"class {label!r}: {counted(len(batch), 'image')} given, {learned} learned; expected all of them"
                )
            self._subtract(batch, labels)
        self.ledger_.discard_class(label)
        return self

    def rename(self, label: Hashable, new: Hashable) -> Self:
        """Give a class another label; nothing is learned anew, and every sum stays bit for bit as it is.

        Digests of files that ``circle learn`` has taught cover the label, too: the same file under the new label
        counts as another image.
        """
        self._require_learned()
        self._require_learning()
        label, new = plain_labels([label, new])
        for statistics in self.statistics_:
            statistics.rename(label, new)
        self.ledger_.rename(label, new)
        return self

    def features(self, X: Any) -> list[Tensor]:
        """Features of images, one tensor [N, size] per group: what ``learn_features`` and ``probabilities`` take."""
        batch = self._batch(X)
        batch.check()
        tiles = [[group.features(images) for group in self.groups_] for _, images in self._tiles(batch)]
        return [torch.cat(parts) for parts in zip(*tiles, strict=True)]

    def learn_features(self, features: Sequence[Tensor], labels: Sequence[Hashable]) -> None:
        """Learn samples whose features, one tensor [B, size] per group, were computed before by ``groups_``."""
        check_room(self.statistics_, labels)
        for statistics, values in zip(self.statistics_, features, strict=True):
            statistics.update(values, labels)

    def prepare(self, image: ImageConfig) -> Self:
        """Build the extractors for images of this shape before any has been seen; nothing is learned."""
        if not self._started:
            self._start(image)
        return self

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

    # -- predicting ------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each image, [N]."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities [N, C] in the order of ``classes_``."""
        self._require_learned()
        batch = self._batch(X)
        batch.check()
        result = np.empty((len(batch), len(self.classes_)))
        for start, images in self._tiles(batch):
            features = [group.features(images) for group in self.groups_]
            result[start : start + len(images)] = self.probabilities(features).cpu().numpy()
        return result

    def probabilities(self, features: Sequence[Tensor]) -> Tensor:
        """Probabilities [B, C] from features, one tensor [B, size] per group: the average over the heads."""
        return self.head_probabilities(features).mean(0)

    def head_probabilities(self, features: Sequence[Tensor]) -> Tensor:
        """Probabilities float64 [k, B, C] of each head, from features as above."""
        temperature = self._head_config().temperature
        return torch.stack([torch.softmax(scores / temperature, 1) for scores in self.head_scores(features)])

    def head_scores(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Scores float64 [B, C] of each head, before temperature and softmax, from features as above."""
        self._require_learned()
        return [head(z) for head, z in zip(self._materialised(), features, strict=True)]

    @property
    def classes_(self) -> np.ndarray:
        if not self._started:
            raise AttributeError("classes_ exists once something was learned")
        return label_array(self._classes())

    def _classes(self) -> list[Hashable]:
        return list(self._stored_classes) if self._prediction_only else self.statistics_[0].classes

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

    # -- combining -------------------------------------------------------------------------------------------

    def merge(self, *others: CircleClassifier) -> Self:
        """Add to this model what others have learned elsewhere; the same as having learned it all here."""
        for other in others:
            self._require_same_kind(other)
            merged = [mine + theirs for mine, theirs in zip(self.statistics_, other.statistics_, strict=True)]
            self.statistics_[:] = merged
            self.ledger_.update(other.ledger_)
        return self

    def __add__(self, other: CircleClassifier) -> Self:
        if not isinstance(other, CircleClassifier):
            return NotImplemented
        return self.copy().merge(other)

    def __sub__(self, other: CircleClassifier) -> Self:
        """The model that never saw what ``other`` has learned; all of that must be in this one."""
        if not isinstance(other, CircleClassifier):
            return NotImplemented
        self._require_same_kind(other)
        result = self.copy()
        result.statistics_[:] = [
            mine - theirs for mine, theirs in zip(self.statistics_, other.statistics_, strict=True)
        ]
        result.ledger_.subtract(other.ledger_)
        return result

    def copy(self) -> Self:
        """A model of its own with the same lessons."""
        result = copy.copy(self)
        if self._started:
            result._ledger = self.ledger_.copy()
            result.statistics_ = [statistics.copy() for statistics in self.statistics_]
        result._cache = dict(self._cache) if self._prediction_only else {}
        return result

    def for_prediction(self) -> Self:
        """The model that predicts the same and no longer learns, as ``save(for_prediction=True)`` writes it."""
        self._require_learned()
        result = copy.copy(self)
        result._stored_classes, result._stored_samples = self._classes(), self.samples_
        result._cache = {None: self._materialised()}
        result._prediction_only = True
        result.statistics_ = []
        return result

    def with_head(self, head: str | Config) -> Self:
        """Another head on the same statistics: a view that stays current as this model learns."""
        self._require_learned()
        config = resolve("head", head)
        assert isinstance(config, HeadConfig)
        for statistics in self.statistics_:
            config.check_statistics(statistics)
        result = copy.copy(self)
        result.head = head
        result._cache = {}
        return result

    def _require_same_kind(self, other: CircleClassifier) -> None:
        for model in (self, other):
            model._require_learned()
            model._require_learning()
        for name, mine, theirs in setting_differences(self.settings(), other.settings()):
            raise CircleError(f"models with different {name} do not combine: {mine} and {theirs}")
        for my_group, their_group in zip(self.groups_, other.groups_, strict=True):
            if not (
                torch.equal(my_group.grid.scale, their_group.grid.scale)
                and torch.equal(my_group.grid.offset, their_group.grid.offset)
            ):
                raise CircleError("models calibrated differently do not combine: start both from one empty model file")

    def _only_predict(self, classes: Sequence[Hashable], samples: int, scores: Sequence[Scores]) -> None:
        """Become a model that predicts with these heads and no longer learns."""
        self._prediction_only = True
        self._stored_classes, self._stored_samples = classes, samples
        self._cache = {None: list(scores)}
        self.statistics_ = []

    # -- files -----------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, for_prediction: bool = False) -> None:
        """Write the model; with ``for_prediction`` a far smaller one that predicts but no longer learns."""
        from circle.model_file import save_model

        self._require_learned()
        save_model(self, Path(path), for_prediction=for_prediction)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu") -> Self:
        """Read a model that :meth:`save` or ``circle learn`` wrote."""
        from circle.model_file import load_model

        return load_model(cls, Path(path), device)

    # -- facts -----------------------------------------------------------------------------------------------

    @property
    def ledger_(self) -> Ledger:
        """Which files ``circle learn`` has taught; images given to ``partial_fit`` are not recorded."""
        if "_ledger" not in self.__dict__:
            self._ledger = Ledger()
        return self._ledger

    @property
    def samples_(self) -> int:
        """Number of images that the model has learned and not forgotten."""
        return self._stored_samples if self._prediction_only else self.statistics_[0].samples

    @property
    def statistics_bytes(self) -> int:
        """Memory that everything learned takes."""
        return sum(statistics.nbytes for statistics in self.statistics_)

    def parameter_count(self) -> ParameterCount:
        """Numbers in the model: head weights (k m d C for linear heads, as in the paper), fixed and generated ones."""
        self._require_learned()
        if self._prediction_only:
            learnable = sum(scores.numbers for scores in self._materialised())
        else:
            learnable = sum(self._head_config().numbers(len(self._classes()), group.size) for group in self.groups_)
        return sum((group.parameter_count() for group in self.groups_), ParameterCount(learnable=learnable))

    def state_dict(self) -> dict[str, Any]:
        """Everything learned: classes, counts, and per group the parts of its statistics and the orphans."""
        self._require_learned()
        state: dict[str, Any] = {"classes": self._classes(), "counts": self.statistics_[0].counts}
        for index, statistics in enumerate(self.statistics_):
            state[f"group{index}"] = {**statistics.parts(), "orphan_degrees": statistics.orphan_degrees}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Take over what :meth:`state_dict` gave; the model must be prepared with the same settings."""
        self._replace_statistics(
            [
                Statistics.from_parts(
                    state["classes"],
                    state["counts"],
                    **state[f"group{index}"],
                    exact=self.quantise,
                    device=self.device,
                )
                for index in range(self.groups)
            ]
        )
        return self

    # -- images and checks -------------------------------------------------------------------------------------

    def input_config(self) -> ImageConfig:
        """The shape that files and PIL images are brought to; known before anything was learned."""
        return self.image_ if self._started else self._image_options().decided(32, 32, 3)

    def _batch(self, X: Any) -> ImageBatch:
        if self._started:
            return ImageBatch(X, self.image_, resize=self.image_size is not None)
        return ImageBatch(X, self._image_options(), resize=self.image_size is not None)

    def _image_options(self) -> ImageOptions:
        size = (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size
        return ImageOptions(size, self.channels, self.aspect, self.background)

    def _tiles(self, batch: ImageBatch) -> Iterator[tuple[int, Tensor]]:
        for start in range(0, len(batch), IMAGES_PER_TILE):
            yield start, batch.tile(start, start + IMAGES_PER_TILE).to(self.device)

    @property
    def _started(self) -> bool:
        return hasattr(self, "groups_")

    def _require_learned(self) -> None:
        if not self._started or not self._classes():
            raise NotLearnedError("this model has not learned anything yet: call partial_fit, or run `circle learn`")

    def _require_learning(self) -> None:
        if self._prediction_only:
            raise CircleError("this model only predicts: learn with the learning model it was made from")
