"""Predictor: a model that only predicts. Images go in, probabilities come out, and nothing in it ever changes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from circle import files
from circle.data.batches import ImageBatch
from circle.data.decode import ImageConfig
from circle.ensemble import Group, all_features, feature_tiles
from circle.errors import CircleError, counted
from circle.extractors import ParameterCount
from circle.heads import HeadConfig, Scores
from circle.heads.probabilities import softmax
from circle.labels import label_array, plain_labels
from circle.registry import resolve

# What only a learning model has. Whoever asks a predictor for it is told so, and not just that it is missing.
LEARNING_ONLY = {
    *("fit", "partial_fit", "learn_features", "unlearn", "forget", "rename", "merge", "with_head"),
    *("statistics_", "ledger_", "metadata_"),
}


class OnlyPredictsError(CircleError, AttributeError):
    """Something was asked of a predictor that only the learning model it was made from can do."""


class ImageClassifier(Protocol):
    """What a learning model and a predictor have in common: all that predicting, evaluating and exporting need."""

    @property
    def classes_(self) -> np.ndarray: ...
    @property
    def samples_(self) -> int: ...
    @property
    def image_(self) -> ImageConfig: ...
    @property
    def groups_(self) -> list[Group]: ...

    def input_config(self) -> ImageConfig: ...
    def settings(self) -> dict[str, Any]: ...
    def head_config(self) -> HeadConfig: ...
    def features(self, X: Any) -> list[Tensor]: ...
    def predict(self, X: Any) -> np.ndarray: ...
    def predict_proba(self, X: Any) -> np.ndarray: ...
    def score(self, X: Any, y: Any) -> float: ...
    def parameter_count(self) -> ParameterCount: ...
    def for_prediction(self) -> Predictor: ...


class Predictor:
    """What is left of a learner for prediction: k groups of frozen extractors and k heads with fixed weights.

        p(x) = 1/k sum_j softmax(h_j(Phi_{G_j}(x)) / (temperature tau_j(x)))

    tau is 1, or follows the image where the head is calibrated (:mod:`circle.runtime.probabilities`).
    :meth:`circle.CircleClassifier.for_prediction` makes one, ``circle pack`` and ``circle compress`` write one to a
    file, and :func:`circle.load` reads it. The learner predicts with one, too, so that both say the same. It never
    changes, so any number of threads may use it.

    Parameters
    ----------
    groups : sequence of Group
        The extractors of each head.
    scores : sequence of Scores
        The heads, one for each group.
    classes : sequence
        Labels in the order of the heads' columns.
    settings : mapping
        The resolved settings of the learner as plain data, image shape and head (with its temperature) included.
    samples : int
        Number of images that the learner had learned.
    resize_arrays : bool
        Whether arrays of another size are brought to the model's, as files always are, or refused.

    Attributes
    ----------
    classes_ : ndarray [C]
        The labels; the columns of ``predict_proba``. ``labels`` has them as plain Python values.
    groups_, scores_ : list
        The groups and the heads.
    image_ : ImageConfig
        How images become the model's input.
    temperature : float
        Scores are divided by it before the softmax.
    calibrated : bool
        Whether scores are divided by each image's own temperature, too.
    samples_ : int
        Number of images that the learner had learned.

    Examples
    --------
    >>> from circle import CircleClassifier
    >>> from sklearn.datasets import load_digits
    >>> images, labels = load_digits(return_X_y=True)
    >>> learner = CircleClassifier(image_size=16).partial_fit(images[:500] / 16, labels[:500])
    >>> predictor = learner.for_prediction()
    >>> predictor
    Predictor(10 classes, 500 images learned, 1 group)
    >>> bool((predictor.predict(images[500:] / 16) == learner.predict(images[500:] / 16)).all())
    True
    """

    def __init__(
        self,
        groups: Sequence[Group],
        scores: Sequence[Scores],
        classes: Sequence[Hashable],
        *,
        settings: Mapping[str, Any],
        samples: int,
        resize_arrays: bool = False,
    ) -> None:
        self.groups_ = list(groups)
        self.scores_ = list(scores)
        self.labels = list(classes)
        self.samples_ = samples
        self.resize_arrays = resize_arrays
        self._settings = dict(settings)
        self.image_ = ImageConfig.from_dict(settings["image"])
        self.temperature = self.head_config().temperature
        self.calibrated = bool(self._settings["head"].get("calibrated"))

    @classmethod
    def load(cls, path: str | Path, *, device: str = "cpu") -> Self:
        """Read a model file. Of a learning model, only what predicts is kept."""
        return files.load(path, device=device).for_prediction()  # pyright: ignore[reportReturnType]

    def save(self, path: str | Path) -> None:
        """Write the model to a file, whole or not at all."""
        files.save_predictor(self, Path(path))

    # -- predicting ------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each image, [N]."""
        return self.classes_[self.predict_proba(X).argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities float64 [N, C] in the order of ``classes_``.

        ``X`` holds images in any form: an array [N, H, W, C], [N, H, W] or [N, D], a tensor [N, C, H, W], a list of
        PIL images, of arrays or of paths to image files, or a single image of these kinds.
        """
        batch = self.batch(X)
        result = np.empty((len(batch), len(self.labels)))
        for part, features in feature_tiles(self.groups_, batch):
            result[part] = self.probabilities(features).cpu().numpy()
        return result

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of the images whose most probable label is the right one, weighted where weights are given."""
        labels, predicted = plain_labels(y), self.predict(X).tolist()
        if len(labels) != len(predicted):
            raise CircleError(
                f"{counted(len(labels), 'label')} for {counted(len(predicted), 'image')}: expected one each"
            )
        right = [found == label for found, label in zip(predicted, labels, strict=True)]
        return float(np.average(right, weights=sample_weight))

    def features(self, X: Any) -> list[Tensor]:
        """Features of images, one tensor [N, size] per group: what ``probabilities`` takes."""
        return all_features(self.groups_, self.batch(X))

    def probabilities(self, features: Sequence[Tensor]) -> Tensor:
        """Probabilities float64 [B, C] from features, one tensor [B, size] per group: the average over the heads."""
        return self.head_probabilities(features).mean(0)

    def head_probabilities(self, features: Sequence[Tensor]) -> Tensor:
        """Probabilities float64 [k, B, C] of each head, from features as above."""
        return torch.stack([self.softmax(scores) for scores in self.head_scores(features)])

    def softmax(self, scores: Tensor) -> Tensor:
        """Probabilities [B, C] of one head's scores [B, C]."""
        return softmax(scores, self.temperature, calibrated=self.calibrated)

    def head_scores(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Scores float64 [B, C] of each head, before temperature and softmax, from features as above."""
        return [scores(values) for scores, values in zip(self.scores_, features, strict=True)]

    def batch(self, X: Any) -> ImageBatch:
        """Images in any form as the model takes them, all of them checked."""
        batch = X if isinstance(X, ImageBatch) else ImageBatch(X, self.image_, resize=self.resize_arrays)
        batch.check()
        return batch

    # -- facts -----------------------------------------------------------------------------------------------

    @property
    def classes_(self) -> np.ndarray:
        return label_array(self.labels)

    def settings(self) -> dict[str, Any]:
        """The resolved settings of the learner that it was made from; plain data."""
        return dict(self._settings)

    def head_config(self) -> HeadConfig:
        """The settings of the heads."""
        config = resolve("head", self._settings["head"])
        assert isinstance(config, HeadConfig)
        return config

    def input_config(self) -> ImageConfig:
        """The shape that files and PIL images are brought to."""
        return self.image_

    def parameter_count(self) -> ParameterCount:
        """Numbers in the model: weights of the heads, fixed and generated ones of the extractors."""
        learnable = ParameterCount(learnable=sum(scores.numbers for scores in self.scores_))
        return sum((group.parameter_count() for group in self.groups_), learnable)

    def for_prediction(self) -> Predictor:
        """This model: what a learner answers with the predictor that it is at the moment."""
        return self

    def __repr__(self) -> str:
        learned = f"{counted(len(self.labels), 'class')}, {counted(self.samples_, 'image')} learned"
        return f"{type(self).__name__}({learned}, {counted(len(self.groups_), 'group')})"

    def __getattr__(self, name: str) -> NoReturn:
        if name in LEARNING_ONLY:
            raise OnlyPredictsError(f"{name}: this model only predicts; expected the learning model it was made from")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __add__(self, other: object) -> NoReturn:
        raise OnlyPredictsError("+ and -: this model only predicts; expected the learning model it was made from")

    __radd__ = __sub__ = __rsub__ = __add__
