"""A model that only predicts, by NumPy and Pillow alone: for small machines, and for quick answers on large ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from circle.data.decode import ImageConfig, read_pixels, to_pixels
from circle.data.images import Images
from circle.errors import CircleError
from circle.labels import decode_labels, label_array
from circle.runtime import birc2d, container, local_contrast
from circle.runtime.arithmetic import Settings, on_grid, whole_vector
from circle.runtime.probabilities import softmax
from circle.runtime.subspace import COMPONENT_STEPS, CURVATURE_STEPS, MAX_WHITENED, WHITENED_STEPS, coordinates
from circle.runtime.weights import FEATURE_VERSION

VECTORS = {"local_contrast": local_contrast.vector, "birc2d": birc2d.vector}
IMAGES_AT_ONCE = 16  # in the working set, however many are given


class NumPyPredictor:
    """The model of a predicting file: the same integers as the learner's, and the same scores.

    Parameters
    ----------
    header, arrays
        What :func:`circle.runtime.container.read` gives of a predicting file.

    Attributes
    ----------
    classes_ : ndarray [C]
        Labels, the columns of :meth:`predict_proba`.
    image : ImageConfig
        How images become the model's input.

    Examples
    --------
    >>> model = NumPyPredictor.load("pets.circle")  # doctest: +SKIP
    >>> model.predict(["new.jpg"])  # doctest: +SKIP
    array(['cat'], dtype='<U3')
    """

    def __init__(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        settings = header["settings"]
        self.image = ImageConfig.from_dict(settings["image"])
        self.labels: list[Hashable] = decode_labels(header["classes"])
        self.classes_ = label_array(self.labels)
        self._extractor: Settings = SimpleNamespace(**settings["extractor"])
        self._temperature = float(settings["head"].get("temperature", 1.0))
        self._calibrated = bool(settings["head"].get("calibrated"))
        self._scores = header.get("scores", "linear")
        self._arrays = arrays
        if "kept" in header:
            self._members = [[(each["seed"], each["parts"]) for each in group] for group in header["kept"]]
        else:
            first, members = settings["seed"], settings["members"]
            starts = range(first, first + settings["groups"] * members, members)
            self._members = [[(seed, None) for seed in range(start, start + members)] for start in starts]

    @staticmethod
    def supports(header: Mapping[str, Any]) -> bool:
        """Whether a file with this header can be used here: it predicts, portably, with a head of :data:`SCORES`."""
        return (
            header["kind"] == "prediction"
            and header["settings"]["extractor"]["name"] in VECTORS
            and header["settings"]["quantise"]
            and header.get("features") == FEATURE_VERSION
            and header.get("scores", "linear") in SCORES
        )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model that ``circle pack``, ``circle compress`` or ``save(for_prediction=True)`` wrote."""
        arrays, header = container.read(path)
        if not cls.supports(header):
            raise CircleError(
                f"{path}: not for the light runtime; expected a model that `circle pack` made, with a portable "
                f"extractor ({', '.join(VECTORS)}) and a head that it knows (slda, subspace_qda)"
            )
        return cls(header, arrays)

    def pixels(self, images: Any) -> np.ndarray:
        """Paths, PIL images or arrays [H, W], [H, W, C] -> uint8 [N, C, H, W] in the model's shape."""
        if isinstance(images, str | Path) or not isinstance(images, Sequence | np.ndarray):
            images = [images]
        found = []
        for number, image in enumerate(images):
            if isinstance(image, str | Path):
                found.append(read_pixels(Path(image), self.image, str(image)))
            else:
                found.append(to_pixels(image, self.image, f"image {number}"))
        shape = (self.image.channels, self.image.height, self.image.width)
        return np.stack(found) if found else np.empty((0, *shape), np.uint8)

    def features(self, pixels: np.ndarray) -> list[np.ndarray]:
        """Pixels uint8 [N, C, H, W] -> positions on the grid, int8 or int16 [N, size], one array per group."""
        result = []
        for group, members in enumerate(self._members):
            values = np.concatenate([self._values(pixels, seed, parts) for seed, parts in members], 1)
            scale, offset = self._arrays[f"group{group}.scale"], self._arrays[f"group{group}.offset"]
            result.append(on_grid(values, scale, offset, self._extractor.bits))
        return result

    def _values(self, pixels: np.ndarray, seed: int, parts: Sequence[int] | None) -> np.ndarray:
        settings = self._extractor
        values = whole_vector(pixels, settings, seed, VECTORS[settings.name])
        return values if parts is None else values[:, kept_columns(settings, parts)]

    def predict_proba(self, images: Any) -> np.ndarray:
        """Probabilities [N, C] of paths, PIL images or arrays, in the order of ``classes_``."""
        pixels = self.pixels(images)
        parts = [
            self._probabilities(self.features(pixels[start : start + IMAGES_AT_ONCE]))
            for start in range(0, len(pixels), IMAGES_AT_ONCE)
        ]
        return np.concatenate(parts) if parts else np.empty((0, len(self.labels)))

    def probabilities_of(self, images: Images, unreadable: Callable[[str], None]) -> Iterator[tuple[int, np.ndarray]]:
        """Position and probabilities [C] of each image that can be read; the others' reasons go to ``unreadable``."""
        for positions, batch in images.readable_batches(self.image, IMAGES_AT_ONCE, unreadable):
            yield from zip(positions.tolist(), self._probabilities(self.features(batch)), strict=True)

    def predict(self, images: Any) -> np.ndarray:
        """The most probable label of each image, [N]."""
        return self.classes_[self.predict_proba(images).argmax(1)]

    def _probabilities(self, features: Sequence[np.ndarray]) -> np.ndarray:
        total = 0.0
        for group, values in enumerate(features):
            arrays = {name: self._arrays[f"group{group}.{name}"] for name in SCORES[self._scores].names}
            scores = SCORES[self._scores].function(values.astype(np.float64), **arrays)
            total = total + softmax(scores, self._temperature, calibrated=self._calibrated)
        return np.asarray(total) / len(features)


def kept_columns(settings: Settings, parts: Sequence[int]) -> list[int]:
    """The columns of some filters and functions of colour, numbered through all banks, of ``local_contrast``."""
    per_map = 2 * settings.grid**2 * len(settings.moments)
    columns, first, start = [], 0, 0
    for count in (*settings.filters, settings.colours):
        kept = [part - first for part in parts if first <= part < first + count]
        columns += [start + value * count + each for value in range(per_map) for each in kept]
        first, start = first + count, start + per_map * count
    return columns


def most_probable(labels: Sequence[Hashable], values: np.ndarray, number: int) -> list[tuple[Hashable, float]]:
    """The classes of largest probability, largest first, with it; of equal ones the first in the model's order.

    >>> most_probable(["ant", "bee", "cow"], np.array([0.25, 0.5, 0.25]), 2)
    [('bee', 0.5), ('ant', 0.25)]
    """
    best: list[int] = [int(values.argmax())] if number == 1 else np.argsort(-values, kind="stable")[:number].tolist()
    return [(labels[index], float(values[index])) for index in best]


# -- scores: features float64 [N, D] -> [N, C] -----------------------------------------------------------------


def linear(values: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """z W^T + b, a sum of whole numbers times a power of two."""
    return values @ weight.astype(np.float64).T + bias


def packed(values: np.ndarray, codes: np.ndarray, rows: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """(z A^T) r + b with codes A of few bits and a factor for each row."""
    return (values @ codes.astype(np.float64).T) * rows.astype(np.float64) + bias


def low_rank(
    values: np.ndarray, codes: np.ndarray, rows: np.ndarray, outer: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """((z V^T) r) U^T + b."""
    return (values @ codes.astype(np.float64).T) * rows.astype(np.float64) @ outer.astype(np.float64).T + bias


def subspace(values: np.ndarray, weight: np.ndarray, bias: np.ndarray, **arrays: np.ndarray) -> np.ndarray:
    """z W^T + b and what a subspace adds; ``circle.heads.scores.SubspaceScores`` says more."""
    return linear(values, weight, bias) + correction(values, **arrays)


def packed_subspace(
    values: np.ndarray,
    weight: np.ndarray,
    rows: np.ndarray,
    bias: np.ndarray,
    triangle: np.ndarray,
    **arrays: np.ndarray,
) -> np.ndarray:
    """The same with packed weights, and of the whitening its lower triangle."""
    size = len(arrays["origin"])
    whitening = np.zeros((size, size), triangle.dtype)
    whitening[np.tril_indices(size)] = triangle
    return packed(values, weight, rows, bias) + correction(values, whitening, **arrays)


def correction(
    values: np.ndarray,
    whitening: np.ndarray,
    origin: np.ndarray,
    curvature: np.ndarray,
    pull: np.ndarray,
    level: np.ndarray,
    evidence: np.ndarray,
    codes: np.ndarray,
    units: np.ndarray,
    offsets: np.ndarray,
    shift: np.ndarray,
) -> np.ndarray:
    """e / max(|v|^2, e_0) (k |v|^2 + p.v + q + sum_r y_r^2) in steps of 2^-20, [N, C]."""
    steps = coordinates(values, len(whitening), int(shift[0])) @ whitening.astype(np.float64).T - origin
    steps = np.clip(np.rint(steps), -MAX_WHITENED, MAX_WHITENED)
    sums = steps.astype(np.float32) @ codes.reshape(-1, codes.shape[2]).astype(np.float32).T
    components = np.rint(sums.reshape(len(values), *units.shape) * units) - offsets
    squares = np.square(components.astype(np.float64)).sum(2) / COMPONENT_STEPS**2
    length = np.square(steps).sum(1, keepdims=True) / WHITENED_STEPS**2
    pulled = (steps @ pull.astype(np.float64).T) / (WHITENED_STEPS * CURVATURE_STEPS)
    bracket = length * curvature + (pulled + level) + squares
    factor = evidence[0] / np.maximum(length, evidence[1])
    return np.rint(bracket * factor * CURVATURE_STEPS) / CURVATURE_STEPS


CORRECTION = ("origin", "curvature", "pull", "level", "evidence", "codes", "units", "offsets", "shift")

#: By the kind that a file names: the function and the arrays that it takes.
SCORES: dict[str, SimpleNamespace] = {
    "linear": SimpleNamespace(function=linear, names=("weight", "bias")),
    "packed": SimpleNamespace(function=packed, names=("codes", "rows", "bias")),
    "low_rank": SimpleNamespace(function=low_rank, names=("codes", "rows", "outer", "bias")),
    "subspace": SimpleNamespace(function=subspace, names=("weight", "bias", "whitening", *CORRECTION)),
    "packed_subspace": SimpleNamespace(
        function=packed_subspace, names=("weight", "rows", "bias", "triangle", *CORRECTION)
    ),
}
