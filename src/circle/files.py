"""The model file: safetensors with a versioned JSON header, written whole or not at all, checksummed, never pickled.

First the container (:func:`write`, :func:`read`, :func:`exclusive`), then what a model keeps in it: the learning kind
holds all statistics and the :class:`Ledger`, the predicting kind the weights of the heads alone. Extractors are not in
it: they are drawn from the seed again, and a probe of each group tells whether they are the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from circle import __version__
from circle.data.decode import ImageConfig
from circle.ensemble import Group, KeptMember, build_groups
from circle.errors import CircleError
from circle.extractors import Grid, ImageShape
from circle.heads.scores import SCORES
from circle.labels import decode_labels, encode_labels
from circle.machine import usable_device
from circle.registry import resolve
from circle.runtime import container
from circle.runtime.weights import FEATURE_VERSION
from circle.statistics import Statistics

if TYPE_CHECKING:
    from circle.learner import CircleClassifier
    from circle.predictor import Predictor

DIGEST = 16  # bytes per image in the ledger
PROBE_TOLERANCE = 1e-3  # other processors round differently; other weights differ by far more
# The entries of a header that are the model's own; all others are metadata, which belong to whoever put them there.
_OWN_ENTRIES = {
    *("format", "checksums", "version", "settings", "resize_arrays", "kind", "classes", "samples"),
    *("orphan_degrees", "kept", "scores", "features", "portable", "group_parameters"),
}

# -- the container -------------------------------------------------------------------------------------------


def write(path: Path | str, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and header to a model file, whole or not at all."""
    container.write(path, {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}, header)


def read(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a model file, or one line that says what is wrong with it; tensors stay on the disk."""
    header = container.read_header(path)
    with container.readable(path), safe_open(str(path), "pt") as file:
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in sorted(file.keys())}
    container.check_sums(path, header, {name: tensor.numpy() for name, tensor in tensors.items()})
    return tensors, header


# -- the ledger ----------------------------------------------------------------------------------------------


class Ledger:
    """Which images a model has learned, so that a re-run of ``circle learn`` learns none of them twice.

    A set of 16-byte digests per class. It is part of the learning model, never of the predicting one.

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.add("cat", b"0123456789abcdef")
    >>> ("cat", b"0123456789abcdef") in ledger, len(ledger)
    (True, 1)
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, set[bytes]] = {}

    def __len__(self) -> int:
        return sum(len(digests) for digests in self._seen.values())

    def __contains__(self, entry: tuple[Hashable, bytes]) -> bool:
        label, digest = entry
        return digest in self._seen.get(label, ())

    def add(self, label: Hashable, digest: bytes) -> None:
        self._seen.setdefault(label, set()).add(digest)

    def discard_class(self, label: Hashable) -> None:
        self._seen.pop(label, None)

    def rename(self, label: Hashable, new: Hashable) -> None:
        """Let a class keep its digests under another name."""
        if label in self._seen:
            self._seen.setdefault(new, set()).update(self._seen.pop(label))

    def discard(self, label: Hashable, digest: bytes) -> None:
        """Forget one image; nothing happens if it is not there."""
        self._seen.get(label, set()).discard(digest)

    def overlap(self, other: Ledger) -> int:
        """Number of images that both have learned."""
        return sum(len(digests & other._seen.get(label, set())) for label, digests in self._seen.items())

    def update(self, other: Ledger) -> None:
        for label, digests in list(other._seen.items()):
            self._seen.setdefault(label, set()).update(digests)

    def subtract(self, other: Ledger) -> None:
        for label, digests in list(other._seen.items()):
            self._seen.get(label, set()).difference_update(digests)

    def copy(self) -> Ledger:
        result = Ledger()
        result.update(self)
        return result

    def to_tensors(self, classes: Sequence[Hashable]) -> tuple[Tensor, Tensor]:
        """Digests uint8 [N, 16], sorted within each class, and their number per class int64 [C]."""
        parts = [b"".join(sorted(self._seen.get(label, ()))) for label in classes]
        digests = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, DIGEST)
        return torch.from_numpy(digests.copy()), torch.tensor([len(part) // DIGEST for part in parts])

    @classmethod
    def from_tensors(cls, classes: Sequence[Hashable], digests: Tensor, counts: Tensor) -> Ledger:
        result = cls()
        rows = iter(digests.numpy())
        for label, count in zip(classes, counts.tolist(), strict=True):
            if count:
                result._seen[label] = {next(rows).tobytes() for _ in range(count)}
        return result


# -- what a model keeps in it --------------------------------------------------------------------------------


def load(path: str | Path, *, device: str = "cpu") -> CircleClassifier | Predictor:
    """Read a model file of either kind: a :class:`CircleClassifier` that learns on, or a :class:`Predictor`.

    Parameters
    ----------
    path : str or Path
        A file that ``save``, ``circle learn``, ``circle pack`` or ``circle compress`` wrote.
    device : str
        Where PyTorch computes.

    Raises
    ------
    CircleError
        No such file, no model, a damaged one, or one of a newer version.
    """
    tensors, header = read(path)
    return restored(header, tensors, device, Path(path))


def save_learner(model: CircleClassifier, path: Path) -> None:
    """Write a model with all that it has learned."""
    header, tensors = learning_contents(model)
    write(path, tensors, header)


def save_predictor(model: Predictor, path: Path) -> None:
    """Write a model that only predicts."""
    header, tensors = blueprint(model)
    if any(group.kept is not None for group in model.groups_):
        header["kept"] = [[member.to_dict() for member in group.kept or ()] for group in model.groups_]
    for index, scores in enumerate(model.scores_):
        header["scores"] = scores.kind
        tensors |= {f"group{index}.{name}": values for name, values in scores.tensors().items()}
    header |= {"kind": "prediction", "classes": encode_labels(model.labels), "samples": model.samples_}
    write(path, tensors, header)


def blueprint(model: CircleClassifier | Predictor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a model that has learned nothing: settings, grids, and probes of the weights."""
    tensors: dict[str, Tensor] = {}
    for index, group in enumerate(model.groups_):
        tensors[f"group{index}.scale"] = group.grid.scale
        tensors[f"group{index}.offset"] = group.grid.offset
        tensors[f"group{index}.probe"] = group.probe()
    counts = [group.parameter_count() for group in model.groups_]
    return {
        "version": __version__,
        "features": FEATURE_VERSION,
        "portable": all(group.portable for group in model.groups_),
        "settings": model.settings(),
        "resize_arrays": model.resize_arrays,
        "group_parameters": [[count.fixed, count.generated] for count in counts],
    }, tensors


def learning_contents(model: CircleClassifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of the learning kind: all that was learned up to one moment."""
    groups = model.groups_
    header, tensors = blueprint(model)  # not within the block below, because probes are features
    with model.unchanged():
        if model.groups_ is not groups:  # another thread has just fitted the model anew
            return learning_contents(model)
        first, classes = model.statistics_[0], model.statistics_[0].classes
        header |= {"kind": "learning", "classes": encode_labels(classes), "samples": first.samples}
        for name in model.metadata_:
            if name in _OWN_ENTRIES:
                raise CircleError(f"metadata {name!r}: the model file has an entry of this name; expected another")
        header |= model.metadata_
        header["orphan_degrees"] = [statistics.orphan_degrees for statistics in model.statistics_]
        tensors["counts"] = first.counts
        for index, statistics in enumerate(model.statistics_):
            if not torch.equal(statistics.counts, tensors["counts"]):
                raise CircleError("the groups have learned different samples: an update was interrupted; load the file")
            pack = smallest_integers if statistics.exact else (lambda values: values)
            tensors |= {f"group{index}.{name}": pack(values) for name, values in statistics.packed_parts().items()}
        tensors["ledger.digests"], tensors["ledger.counts"] = model.ledger_.to_tensors(classes)
    return header, tensors


def require_learning_kind(header: Mapping[str, Any], path: Path) -> None:
    """Refuse the file of a predictor where a learning model is needed."""
    if header.get("kind") == "prediction":
        raise CircleError(
            f"{path}: this model only predicts; expected the learning model it was made from "
            "(circle.load and Predictor.load read this one)"
        )


def restored(
    header: dict[str, Any], tensors: dict[str, Tensor], device: str, path: Path
) -> CircleClassifier | Predictor:
    """The model with these contents, of either kind; ``path`` names the file in an error."""
    try:
        if header["kind"] == "prediction":
            return _predictor(header, tensors, device, path)
        return _learner(header, tensors, device, path)
    except KeyError as error:
        raise CircleError(f"{path}: damaged model file ({error} is missing)") from error
    except CircleError:
        raise  # it says already what is wrong
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        # A checksum finds damage, not malice: a value in the header may be of another kind than it was.
        raise CircleError(f"{path}: damaged model file (its header does not fit: {error})") from error


def _learner(header: dict[str, Any], tensors: dict[str, Tensor], device: str, path: Path) -> CircleClassifier:
    model = empty_learner(header, tensors, device, path)
    classes = decode_labels(header["classes"])
    model.replace_statistics(
        [
            Statistics.from_parts(
                classes,
                tensors["counts"],
                **empty.unpacked_parts(_of_group(tensors, index), len(classes)),
                orphan_degrees=header["orphan_degrees"][index],
                exact=model.quantise,
                device=model.device,
            )
            for index, empty in enumerate(model.statistics_)
        ]
    )
    model.ledger_ = Ledger.from_tensors(classes, tensors["ledger.digests"], tensors["ledger.counts"])
    model.metadata_ = {name: value for name, value in header.items() if name not in _OWN_ENTRIES}
    return model


def _of_group(tensors: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    """The tensors of one group, by their names within it."""
    prefix = f"group{index}."
    return {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}


def _predictor(header: dict[str, Any], tensors: dict[str, Tensor], device: str, path: Path) -> Predictor:
    from circle.predictor import Predictor

    name = header.get("scores", "linear")  # the first files did not say, and held nothing else
    if name not in SCORES:
        raise CircleError(f"{path}: a head of the unknown kind {name!r}; expected one of {', '.join(SCORES)}")
    settings, kept = header["settings"], header.get("kept")
    image = ImageConfig.from_dict(settings["image"])
    count = settings["groups"] if kept is None else len(kept)
    groups = build_groups(
        resolve("extractor", settings["extractor"]),
        ImageShape(image.channels, image.height, image.width),
        groups=count,
        members=settings["members"],
        seed=settings["seed"],
        quantise=settings["quantise"],
        device=usable_device(device),
        grids=_grids(tensors, count),
        kept=None if kept is None else [[KeptMember.from_dict(member) for member in group] for group in kept],
    )
    _check_probes(groups, tensors, path)
    kind = SCORES[name]
    scores = [
        kind.from_tensors({part: tensors[f"group{index}.{part}"].to(device) for part in kind.names})
        for index in range(count)
    ]
    return Predictor(
        groups,
        scores,
        decode_labels(header["classes"]),
        settings=settings,
        samples=header["samples"],
        resize_arrays=header["resize_arrays"],
    )


def described_learner(header: Mapping[str, Any], device: str) -> CircleClassifier:
    """A learner with the settings of a header, of which nothing is built yet."""
    from circle.learner import CircleClassifier

    settings = header["settings"]
    image = ImageConfig.from_dict(settings["image"])
    model = CircleClassifier(
        extractor=resolve("extractor", settings["extractor"]),
        head=resolve("head", settings["head"]),
        groups=settings["groups"],
        members=settings["members"],
        seed=settings["seed"],
        image_size=(image.height, image.width) if header["resize_arrays"] else None,
        channels=image.channels,
        aspect=image.aspect,
        background=image.background,
        quantise=settings["quantise"],
        device=device,
    )
    model.image_ = image
    return model


def empty_learner(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor], device: str, path: Path
) -> CircleClassifier:
    """The learner of a :func:`blueprint`, with nothing learned; without grids in it, the extractors are calibrated."""
    model = described_learner(header, device)
    model.prepare(model.image_, _grids(tensors, model.groups) if tensors else None)
    if tensors:
        _check_probes(model.groups_, tensors, path)
    return model


def _grids(tensors: Mapping[str, Tensor], groups: int) -> list[Grid]:
    return [Grid(tensors[f"group{index}.scale"], tensors[f"group{index}.offset"]) for index in range(groups)]


def _check_probes(groups: Sequence[Group], tensors: Mapping[str, Tensor], path: Path) -> None:
    """The weights are drawn from the seed again: make sure that they are the ones the model learned with."""
    for index, group in enumerate(groups):
        found = group.probe()
        expected, scale = tensors[f"group{index}.probe"].to(found.device), group.grid.scale * 8
        if expected.shape != found.shape or bool(((expected - found).abs() > PROBE_TOLERANCE * scale).any()):
            raise CircleError(
                f"{path}: this installation draws other random weights than the one that wrote the model "
                f"(torch {torch.__version__}); use the version of torch it was made with"
            )


def smallest_integers(values: Tensor) -> Tensor:
    """Whole numbers kept in float64 as the smallest integer type that holds them all exactly."""
    largest = float(values.abs().max()) if values.numel() else 0.0
    return values.to(torch.int32 if largest < 2**31 else torch.int64)
