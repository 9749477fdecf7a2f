"""CircleClassifier: groups of frozen extractors, exact statistics, one head per group; scikit-learn's face."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from circle import files
from circle.config import Config, setting_differences
from circle.data.batches import ImageBatch, ImageOptions
from circle.data.decode import ImageConfig
from circle.data.image_sizes import AUTO, SIDES, side_for
from circle.ensemble import Group, all_features, build_groups, feature_tiles
from circle.errors import CircleError, counted
from circle.extractors import Grid, ImageShape, ParameterCount
from circle.heads import HeadConfig, build_head
from circle.labels import check_one_kind, label_array, plain_labels
from circle.machine import usable_device
from circle.predictor import Predictor
from circle.presets import DEFAULT, read_preset
from circle.presets.forms import FORM_SETTINGS, family_of, form_extractor
from circle.registry import resolve
from circle.statistics import Statistics, check_room

MAX_WAITING_IMAGES = 1024  # whose features are kept until all of a batch are computed; larger batches are summed aside
NOT_LEARNED = "this model has not learned anything yet: call partial_fit, or run `circle learn`"


class NotLearnedError(CircleError, NotFittedError):
    """Something was asked of a model that has not learned anything yet."""


class CircleClassifier(ClassifierMixin, BaseEstimator):
    """An image classifier that learns from a stream, in any order, and never forgets.

    k groups of m frozen random extractors turn an image into k feature vectors; each group has a head that is a
    closed-form function of additive statistics; the probabilities of the k heads are averaged:

        p(x) = 1/k sum_j softmax(h_j(Phi_{G_j}(x)) / (temperature tau_j(x)))

    tau is 1, or follows the image where the head is calibrated (:mod:`circle.runtime.probabilities`).

    Parameters
    ----------
    extractor, head : str or config
        A registered name (``"local_contrast"``, ``"subspace_qda"``) or its config, such as ``BiRC2DConfig(width=60)``.
        The defaults are those of the preset ``fast``.
    groups, members : int
        k heads with m extractors each.
    seed : int
        The extractors draw their weights from seed, seed + 1, ..., seed + k m - 1.
    image_size : int, (height, width), "auto" or None
        Size that images are brought to. None: arrays keep their own size (the first batch decides), files and
        PIL images become 32 x 32. "auto", as :meth:`from_preset` gives it for ``small``, ``fast`` and ``best``: the
        first batch decides for 32, 64 or 224, with the extractor that the preset has for images of that size.
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
    samples_ : int
        Number of images that the model has learned and not forgotten.
    ledger_ : Ledger
        Which files ``circle learn`` has taught; images given to ``partial_fit`` are not recorded.
    metadata_ : dict
        Small JSON that the file keeps with the learning model, such as the server's mark of its journal.

    Any number of threads may predict, score, save and copy while one learns: each of them sees the model before or
    after a call that learns, never between. No thread waits while features are computed.

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
    ledger_: files.Ledger
    metadata_: dict[str, Any]

    _lock: threading.RLock  # held while anything learned changes or is read in more than one step
    _cache: dict[Any, Predictor]  # a container, because predicting must not change the estimator itself

    def __init__(
        self,
        extractor: str | Config = "local_contrast",
        head: str | Config = "subspace_qda",
        *,
        groups: int = 1,
        members: int = 1,
        seed: int = 0,
        image_size: int | tuple[int, int] | Literal["auto"] | None = None,
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

        ``small``, ``fast`` and ``best`` exist for images of 32, 64 and 224 pixels, and the first batch decides which of
        these forms is taken. ``from_preset("best-32")``, or an ``image_size`` among the changes, takes the form for 32
        pixels whatever the images; and so do an extractor or filters of your own, which belong to no other form.

        >>> photographs = np.zeros((2, 250, 300, 3), np.uint8)
        >>> CircleClassifier.from_preset("small").partial_fit(photographs, [0, 1]).image_.height
        224
        >>> CircleClassifier.from_preset("small", image_size=32).partial_fit(photographs, [0, 1]).image_.height
        32
        """
        model = cls.from_settings(read_preset(preset), f"preset {preset}")
        own_extractor = {"extractor", *(f"extractor__{setting}" for setting in FORM_SETTINGS)}
        if model.image_size == AUTO and not own_extractor.isdisjoint(changes):
            model.image_size = SIDES[0]
        return model.set_params(**changes)

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
        if not hasattr(self, "image_"):
            raise NotLearnedError("the image size is decided by the first batch: call partial_fit or prepare first")
        return {**self.part_settings(), "image": self.image_.to_dict()}

    def part_settings(self) -> dict[str, Any]:
        """The resolved settings but for the image shape, which the first batch may have to decide."""
        image: ImageConfig | None = getattr(self, "image_", None)
        extractor = resolve("extractor", self.extractor) if image is None else self._extractor_for(image)
        return {
            "extractor": extractor.to_dict(),
            "head": resolve("head", self.head).to_dict(),
            "groups": self.groups,
            "members": self.members,
            "seed": self.seed,
            "quantise": self.quantise,
        }

    def with_form(self, height: int, width: int) -> Self:
        """A classifier that has learned nothing, with the same settings but for an image size that is left open.

        With ``image_size="auto"`` images of this size decide for a form of the preset; where the extractor is of none,
        for 32 pixels. Any other classifier comes back with all its settings.

        >>> CircleClassifier.from_preset("best").with_form(250, 300).image_size
        224
        """
        parameters = self.get_params(deep=False)
        if self.image_size == AUTO:
            extractor = resolve("extractor", self.extractor)
            family = family_of(extractor)
            side = SIDES[0] if family is None else side_for(height, width)
            parameters["image_size"] = side
            parameters["extractor"] = extractor if family is None else form_extractor(family, extractor, side)
        return type(self)(**parameters)

    def _extractor_for(self, image: ImageConfig) -> Config:
        """The settings of the extractors: of the form that suits these images, where the image size was left open."""
        extractor = resolve("extractor", self.extractor)
        side = side_for(image.height, image.width)
        if self.image_size != AUTO or side == SIDES[0]:
            return extractor
        family = family_of(extractor)
        if family is None:
            raise CircleError(
                f"image_size = {AUTO!r}: images of {image.height} x {image.width} pixels ask for another form of the "
                "preset, but the extractor's settings are of none; expected an image_size, such as 32"
            )
        return form_extractor(family, extractor, side)

    def head_config(self) -> HeadConfig:
        """The settings of the heads."""
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
        """Start anew and learn these images; where they are refused, the model stays as it was."""
        parameters = self.get_params(deep=False)
        fresh = type(self)(**parameters).partial_fit(X, y)
        learned = {name: value for name, value in vars(fresh).items() if name not in parameters}
        if self._started:
            del learned["_lock"]  # threads may be waiting for the old one
        with self._lock if self._started else nullcontext():
            vars(self).update(learned)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Iterable[Hashable] | None = None) -> Self:
        """Learn more images, one or a million; a batch with anything wrong in it changes nothing.

        ``classes`` is accepted for scikit-learn's sake: if given, labels outside it are refused. New classes may
        appear at any time without it.
        """
        batch, labels = self._accepted(X, y)
        if classes is not None:
            strangers = set(labels) - set(plain_labels(classes))
            if strangers:
                raise CircleError(f"label {next(iter(strangers))!r} is not among the classes given")
        if not self._started:
            self._start(batch.config)
        if len(batch) <= MAX_WAITING_IMAGES:
            self.learn_features(all_features(self.groups_, batch), labels)
            return self
        learned = self._statistics_of(batch, labels)
        with self._lock:
            if not self.samples_ and not self.statistics_[0].orphan_degrees:
                self.replace_statistics(learned)
                return self
            check_room(self.statistics_, labels)
            for mine, more in zip(self.statistics_, learned, strict=True):
                mine += more
        return self

    def learn_features(self, features: Sequence[Tensor], labels: Sequence[Hashable]) -> None:
        """Learn samples whose features, one tensor [B, size] per group, were computed before by ``groups_``."""
        self._require_started()
        with self._lock:
            check_room(self.statistics_, labels)
            for statistics, values in zip(self.statistics_, features, strict=True):
                statistics.check(values, labels)
            for statistics, values in zip(self.statistics_, features, strict=True):
                statistics.update(values, labels)

    def unlearn(self, X: Any, y: Any) -> Self:
        """Take samples back out: the model becomes, bit for bit, the one that never saw them."""
        self.require_learned()
        self._subtract(self._statistics_of(*self._accepted(X, y)))
        return self

    def forget(self, label: Hashable, X: Any = None) -> Self:
        """Let a class leave the model.

        Without ``X`` the class is gone from predictions, counts and means, and its anonymous scatter stays in the
        covariance that all classes share. With ``X``, all the images of the class that were learned, the scatter
        goes too, and the model is bit for bit the one that never saw the class. Other images are recognised as
        such and refused.
        """
        self.require_learned()
        label = plain_labels([label])[0]
        classes = self.statistics_[0].classes
        if label not in classes:
            known = ", ".join(repr(each) for each in classes[:10])
            raise CircleError(f"class {label!r} is not in the model; it has {known}")
        if X is None:
            with self._lock:
                for statistics in self.statistics_:
                    statistics.remove(label)
                self.ledger_.discard_class(label)
            return self
        batch = self._batch(X)
        learned = int(self.statistics_[0].counts[classes.index(label)])
        if len(batch) != learned:
            raise CircleError(
                f"class {label!r}: {counted(len(batch), 'image')} given, {learned} learned; expected all of them"
            )
        batch.check()
        gone = self._statistics_of(batch, [label] * len(batch))
        with self._lock:
            self._subtract(gone)
            self.ledger_.discard_class(label)
        return self

    def rename(self, label: Hashable, new: Hashable) -> Self:
        """Give a class another label; nothing is learned anew, and every sum stays bit for bit as it is.

        Digests of files that ``circle learn`` has taught cover the label, too: the same file under the new label
        counts as another image.
        """
        self.require_learned()
        label, new = plain_labels([label, new])
        with self._lock:
            for statistics in self.statistics_:
                statistics.rename(label, new)
            self.ledger_.rename(label, new)
        return self

    def prepare(self, image: ImageConfig, grids: Sequence[Grid] | None = None) -> Self:
        """Build the extractors for images of this shape before any has been seen; nothing is learned.

        ``grids``, one per group, are those of a saved model; without them the extractors are calibrated.
        """
        if not self._started:
            self._start(image, grids)
        return self

    def _start(self, image: ImageConfig, grids: Sequence[Grid] | None = None) -> None:
        """Build what config and seed determine, with nothing learned."""
        if self.groups < 1 or self.members < 1:
            raise CircleError(f"groups = {self.groups}, members = {self.members}: expected at least 1 of each")
        usable_device(self.device)
        groups = build_groups(
            self._extractor_for(image),
            ImageShape(image.channels, image.height, image.width),
            groups=self.groups,
            members=self.members,
            seed=self.seed,
            quantise=self.quantise,
            device=self.device,
            grids=grids,
        )
        self.image_ = image
        self.n_features_in_ = image.channels * image.height * image.width
        self.ledger_ = files.Ledger()
        self.metadata_ = {}
        self._lock = threading.RLock()
        self._cache = {}
        self.statistics_ = self._empty_statistics(groups)
        self.groups_ = groups  # last, because it says that all the rest is there

    def new_statistics(self) -> list[Statistics]:
        """Statistics of nothing, one for each group."""
        return self._empty_statistics(self.groups_)

    def _empty_statistics(self, groups: Sequence[Group]) -> list[Statistics]:
        parts = self.head_config().parts
        return [Statistics(group.size, exact=self.quantise, parts=parts, device=self.device) for group in groups]

    def replace_statistics(self, statistics: Sequence[Statistics]) -> None:
        """Take over all that was learned elsewhere, one of each group."""
        with self._lock:
            self.statistics_[:] = statistics  # in place, for the views that `with_head` has made

    def _accepted(self, X: Any, y: Any) -> tuple[ImageBatch, list[Hashable]]:
        """Images and labels, all of them checked before anything changes."""
        if y is None:
            raise CircleError("requires y to be passed, but the target y is None: one label per image")
        labels = plain_labels(y)
        batch = self._batch(X)
        if len(labels) != len(batch):
            raise CircleError(f"{counted(len(labels), 'label')} for {counted(len(batch), 'image')}: expected one each")
        # One class is enough, and to ask for all of them would sort a thousand for each image.
        check_one_kind([*self.statistics_[0].example, *labels] if self._started else labels)
        batch.check()
        return batch, labels

    def _statistics_of(self, batch: ImageBatch, labels: Sequence[Hashable]) -> list[Statistics]:
        """Statistics of these samples alone, one of each group."""
        result = self.new_statistics()
        for part, features in feature_tiles(self.groups_, batch):
            for statistics, values in zip(result, features, strict=True):
                statistics.update(values, labels[part])
        return result

    def _subtract(self, gone: Sequence[Statistics]) -> None:
        """Take samples out of all groups, or out of none where they were not learned."""
        with self._lock:
            self.replace_statistics([mine - part for mine, part in zip(self.statistics_, gone, strict=True)])

    # -- predicting ------------------------------------------------------------------------------------------

    def for_prediction(self) -> Predictor:
        """The model that predicts what this one predicts now, and no longer learns.

        The heads are computed when they are first needed, and kept until the statistics change.
        """
        self.require_learned()
        with self._lock:
            self.require_learned()  # again: another thread may just have let the last class go
            key = (self.head, *(statistics.version for statistics in self.statistics_))
            if key not in self._cache:
                head = build_head(self.head_config())
                predictor = Predictor(
                    self.groups_,
                    [head.materialise(statistics).rounded() for statistics in self.statistics_],
                    self.statistics_[0].classes,
                    settings=self.settings(),
                    samples=self.samples_,
                    resize_arrays=self.resize_arrays,
                )
                self._cache.clear()
                self._cache[key] = predictor
            return self._cache[key]

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each image, [N]; images in any form that ``predict_proba`` takes."""
        return self.for_prediction().predict(self._batch(X))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities [N, C] in the order of ``classes_``.

        ``X`` holds images in any form: an array [N, H, W, C], [N, H, W] or [N, D], a tensor [N, C, H, W], a list of
        PIL images, of arrays or of paths to image files, or a single image of these kinds.
        """
        return self.for_prediction().predict_proba(self._batch(X))

    def features(self, X: Any) -> list[Tensor]:
        """Features of images, one tensor [N, size] per group: what ``learn_features`` and ``probabilities`` take."""
        self._require_started()
        batch = self._batch(X)
        batch.check()
        return all_features(self.groups_, batch)

    def probabilities(self, features: Sequence[Tensor]) -> Tensor:
        """Probabilities [B, C] from features, one tensor [B, size] per group: the average over the heads."""
        return self.for_prediction().probabilities(features)

    def head_probabilities(self, features: Sequence[Tensor]) -> Tensor:
        """Probabilities float64 [k, B, C] of each head, from features as above."""
        return self.for_prediction().head_probabilities(features)

    def head_scores(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Scores float64 [B, C] of each head, before temperature and softmax, from features as above."""
        return self.for_prediction().head_scores(features)

    # -- combining -------------------------------------------------------------------------------------------

    def merge(self, *others: CircleClassifier) -> Self:
        """Add to this model what others have learned elsewhere; the same as having learned it all here."""
        for other in others:
            self._require_same_kind(other)
            with _locked(self, other):
                self.replace_statistics(
                    [mine + theirs for mine, theirs in zip(self.statistics_, other.statistics_, strict=True)]
                )
                self.ledger_.update(other.ledger_)
        return self

    def __add__(self, other: CircleClassifier) -> Self:
        if not isinstance(other, CircleClassifier):
            return NotImplemented
        self.require_learned()
        return self.copy().merge(other)

    def __sub__(self, other: CircleClassifier) -> Self:
        """The model that never saw what ``other`` has learned; all of that must be in this one."""
        if not isinstance(other, CircleClassifier):
            return NotImplemented
        self._require_same_kind(other)
        with _locked(self, other):
            result = self.copy()
            result._subtract(other.statistics_)
            result.ledger_.subtract(other.ledger_)
        return result

    def copy(self) -> Self:
        """A model of its own that has learned the same; ``copy.copy`` and ``copy.deepcopy`` give the same."""
        if not self._started:
            return self._view()
        with self._lock:
            result = self._view()
            result.statistics_ = [statistics.copy() for statistics in self.statistics_]
            result.ledger_, result.metadata_ = self.ledger_.copy(), dict(self.metadata_)
        result._lock = threading.RLock()
        return result

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def _view(self) -> Self:
        """Another model on the same statistics."""
        result = type(self).__new__(type(self))
        vars(result).update(vars(self))
        if self._started:
            result._cache = {}
        return result

    def with_head(self, head: str | Config) -> Self:
        """Another head on the same statistics: a view that stays current as this model learns."""
        self.require_learned()
        config = resolve("head", head)
        assert isinstance(config, HeadConfig)
        for statistics in self.statistics_:
            config.check_statistics(statistics)
        result = self._view()
        result.head = head
        return result

    def _require_same_kind(self, other: CircleClassifier) -> None:
        if not isinstance(other, CircleClassifier):
            raise CircleError(f"{other!r} only predicts; expected the learning model it was made from")
        for model in (self, other):
            model.require_learned()
        for name, mine, theirs in setting_differences(self.settings(), other.settings()):
            raise CircleError(f"models with different {name} do not combine: {mine} and {theirs}")
        for my_group, their_group in zip(self.groups_, other.groups_, strict=True):
            if not (
                torch.equal(my_group.grid.scale, their_group.grid.scale)
                and torch.equal(my_group.grid.offset, their_group.grid.offset)
            ):
                raise CircleError("models calibrated differently do not combine: start both from one empty model file")

    # -- files -----------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, for_prediction: bool = False) -> None:
        """Write the model; with ``for_prediction`` a far smaller one that predicts but no longer learns."""
        self.require_learned()
        if for_prediction:
            self.for_prediction().save(path)
        else:
            files.save_learner(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu") -> Self:
        """Read a model that :meth:`save` or ``circle learn`` wrote; :func:`circle.load` also reads predictors."""
        tensors, header = files.read(path)
        files.require_learning_kind(header, Path(path))
        result = cls.__new__(cls)
        vars(result).update(vars(files.restored(header, tensors, device, Path(path))))
        return result

    def state_dict(self) -> dict[str, Any]:
        """Everything learned: classes, counts, and per group the parts of its statistics and the orphans."""
        self.require_learned()
        with self._lock:
            first = self.statistics_[0]
            state: dict[str, Any] = {"classes": first.classes, "counts": first.counts}
            for index, statistics in enumerate(self.statistics_):
                state[f"group{index}"] = {**statistics.parts(), "orphan_degrees": statistics.orphan_degrees}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Take over what :meth:`state_dict` gave; the model must be prepared with the same settings."""
        self._require_started()
        self.replace_statistics(
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

    def __getstate__(self) -> dict[str, Any]:
        """For pickling, as joblib does it between processes: locks cannot be, and heads can be computed again."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("_lock", "_cache")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._started:
            self._lock, self._cache = threading.RLock(), {}

    # -- facts -----------------------------------------------------------------------------------------------

    @property
    def classes_(self) -> np.ndarray:
        if not self._started:
            raise AttributeError("classes_ exists once something was learned")
        return label_array(self.statistics_[0].classes)

    @property
    def samples_(self) -> int:
        """Number of images that the model has learned and not forgotten."""
        if not self._started:
            raise AttributeError("samples_ exists once something was learned")
        return self.statistics_[0].samples

    @property
    def statistics_bytes(self) -> int:
        """Memory that everything learned takes."""
        return sum(statistics.nbytes for statistics in self.statistics_)

    def parameter_count(self) -> ParameterCount:
        """Numbers in the model: head weights (k m d C for linear heads, as in the paper), fixed and generated ones."""
        self.require_learned()
        head, classes = self.head_config(), len(self.classes_)
        learnable = sum(head.numbers(classes, group.size) for group in self.groups_)
        return sum((group.parameter_count() for group in self.groups_), ParameterCount(learnable=learnable))

    @property
    def resize_arrays(self) -> bool:
        """Whether arrays of another size are brought to the model's, as files always are, or refused."""
        return self.image_size is not None

    def input_config(self) -> ImageConfig:
        """The shape that files and PIL images are brought to; before anything was learned, the one without knowing any.

        That is 32 x 32 where ``image_size`` leaves it to the images.
        """
        return self.image_ if self._started else self._image_options().decided(32, 32, 3)

    def _batch(self, X: Any) -> ImageBatch:
        return ImageBatch(X, self.image_ if self._started else self._image_options(), resize=self.resize_arrays)

    def _image_options(self) -> ImageOptions:
        size = (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size
        if isinstance(size, str) and size != AUTO:
            raise CircleError(f"image_size = {size!r}: expected pixels, (height, width), {AUTO!r} or None")
        return ImageOptions(size, self.channels, self.aspect, self.background)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Let no other thread change what was learned during a block: all that is read in it is of one moment."""
        self._require_started()
        with self._lock:
            yield

    def require_learned(self) -> None:
        """Refuse what a model that has not learned anything cannot do."""
        self._require_started()
        if not self.statistics_[0].example:
            raise NotLearnedError(NOT_LEARNED)

    @property
    def _started(self) -> bool:
        return hasattr(self, "groups_")

    def _require_started(self) -> None:
        if not self._started:
            raise NotLearnedError(NOT_LEARNED)


@contextmanager
def _locked(*models: CircleClassifier) -> Iterator[None]:
    """Let no other thread change these models during a block."""
    with ExitStack() as stack:
        for model in sorted(models, key=id):  # in one order everywhere, so that no two threads wait for each other
            stack.enter_context(model.unchanged())
        yield
