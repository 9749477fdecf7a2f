"""The model file: safetensors with a versioned JSON header, written whole or not at all, checksummed, never pickled.

First the container (:func:`write`, :func:`read`, :func:`exclusive`), then what a model keeps in it: the learning kind
holds all statistics and the :class:`Ledger`, the predicting kind the weights of the heads alone. Extractors are not in
it: they are drawn from the seed again, and a probe of each group tells whether they are the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import threading
import zlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
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
from circle.statistics import Statistics, parts_named

if TYPE_CHECKING:
    from circle.learner import CircleClassifier
    from circle.predictor import ImageClassifier, Predictor

FORMAT_VERSION = 2  # 1: learning and predicting models; 2: compressed ones as well
DIGEST = 16  # bytes per image in the ledger
PROBE_TOLERANCE = 1e-3  # other processors round differently; other weights differ by far more
_KEY = "circle"
_CHECKSUM = "checksum"  # of the rest of the header
# The entries of a header that are the model's own; all others are metadata, which belong to whoever put them there.
_OWN_ENTRIES = {
    *("format", "checksums", "version", "settings", "resize_arrays", "kind", "classes", "samples"),
    *("orphan_degrees", "kept", "scores"),
}
_umask_lock = threading.Lock()

# -- the container -------------------------------------------------------------------------------------------


def write(path: Path | str, tensors: Mapping[str, Tensor], header: Mapping[str, Any], *, file_format: int = 1) -> None:
    """Write a model file atomically: after a crash at any moment the old file or the new one is there, whole.

    ``file_format`` is the first whose readers understand all that is in it, so that older ones still read the rest.
    """
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    checks = {name: _checksum(contiguous[name]) for name in sorted(contiguous)}  # equal content makes an equal file
    text = header_text({"format": file_format, "checksums": checks, **header})
    with atomic_path(path) as temporary:
        save_file(contiguous, temporary, metadata={_KEY: text})


def header_text(header: Mapping[str, Any]) -> str:
    """A header as it stands in a file, with its own checksum at the end."""
    return json.dumps({**header, _CHECKSUM: zlib.crc32(json.dumps(header).encode())})


@contextlib.contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """A temporary path beside ``path`` that replaces it when the block ends well, and vanishes when it does not."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        yield temporary
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise CircleError(f"{path}: cannot be written ({reason}); what was there before is unchanged") from error
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    """The mask of new files, which can only be read by setting it."""
    with _umask_lock:  # it is one for all threads
        mask = os.umask(0o077)
        os.umask(mask)
    return mask


def remove_leftovers(path: Path | str) -> None:
    """Delete temporary files of writers that were killed; only for the one who holds the model's lock."""
    path = Path(path)
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive(path: Path | str) -> Iterator[None]:
    """Hold the model at ``path`` for writing; a second writer gets an error instead of losing what was learned."""
    path = Path(path)
    lock = path.with_name(f".{path.name}.lock")
    while True:
        try:
            file = lock.open("w")
        except OSError as error:
            raise CircleError(f"{path}: cannot be written ({error.strerror}); expected a folder that exists") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise CircleError(f"{path}: another process is changing this model; wait for it to end") from error
            # The last holder may have removed the file between our opening and locking it: then take a new one.
            if not lock.exists() or lock.stat().st_ino != os.fstat(file.fileno()).st_ino:
                continue
            try:
                remove_leftovers(path)
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def read(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a model file, or one line that says what is wrong with it."""
    header = read_header(path)
    try:
        with safe_open(str(path), "pt") as file:
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise CircleError(f"{path}: damaged model file ({str(error).splitlines()[0]})") from error
    for name, expected in header["checksums"].items():
        if name not in tensors or _checksum(tensors[name]) != expected:
            raise CircleError(f"{path}: damaged model file (checksum of {name!r} does not match)")
    return tensors, header


def read_header(path: Path | str) -> dict[str, Any]:
    """The header alone: config, classes, sizes."""
    path = Path(path)
    _check_frame(path)
    try:
        with safe_open(str(path), "pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CircleError(f"{path}: not a CIRCLE model ({str(error).splitlines()[0]})") from error
    if _KEY not in metadata:
        raise CircleError(f"{path}: not a CIRCLE model: a safetensors file of another program")
    header = _header_of(metadata[_KEY])
    if header is None:
        raise CircleError(f"{path}: damaged model file (unreadable header); expected one that `circle learn` wrote")
    if header["format"] > FORMAT_VERSION:
        raise CircleError(
            f"{path}: written by a newer CIRCLE (format {header['format']}, this one reads up to {FORMAT_VERSION}): "
            "update circle-cil"
        )
    return header


def _header_of(text: str) -> dict[str, Any] | None:
    """The header as it was written, or None where this is none."""
    try:
        header = json.loads(text)
        whole = header.pop(_CHECKSUM) == zlib.crc32(json.dumps(header).encode())
        # A checksum finds damage, not malice: someone who sends a file can make it match.
        known = isinstance(header["format"], int) and isinstance(header["checksums"], dict)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return header if whole and known else None


def _check_frame(path: Path) -> None:
    """Tell a missing, foreign or truncated file apart, before safetensors says something less clear."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(9)
            if len(start) < 9 or start[8:9] != b"{":
                raise CircleError(f"{path}: not a CIRCLE model (expected a file that `circle learn` or `save` wrote)")
            (length,) = struct.unpack("<Q", start[:8])
            if length > size - 8:
                raise CircleError(f"{path}: truncated model file ({size:,} bytes, its header alone has {length:,})")
            file.seek(8)
            try:
                entries = json.loads(file.read(length))
                end = max(
                    (item["data_offsets"][1] for key, item in entries.items() if key != "__metadata__"),
                    default=0,
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CircleError(f"{path}: not a CIRCLE model (unreadable header)") from error
    except FileNotFoundError as error:
        raise CircleError(f"{path}: no such model file") from error
    except OSError as error:
        raise CircleError(f"{path}: cannot be read ({error.strerror}); expected a model file") from error
    if 8 + length + end > size:
        raise CircleError(f"{path}: truncated model file ({size:,} of {8 + length + end:,} bytes)")


def _checksum(tensor: Tensor) -> int:
    """Of type and shape, which are in the file's own header, and of the values."""
    start = zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    return zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, start) if tensor.numel() else start


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    file_format = 1
    if any(group.kept is not None for group in model.groups_):
        header["kept"] = [[member.to_dict() for member in group.kept or ()] for group in model.groups_]
        file_format = 2
    for index, scores in enumerate(model.scores_):
        header["scores"] = scores.kind
        file_format = max(file_format, scores.file_format)
        tensors |= {f"group{index}.{name}": values for name, values in scores.tensors().items()}
    header |= {"kind": "prediction", "classes": encode_labels(model.labels), "samples": model.samples_}
    write(path, tensors, header, file_format=file_format)


def blueprint(model: CircleClassifier | Predictor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a model that has learned nothing: settings, grids, and probes of the weights."""
    tensors: dict[str, Tensor] = {}
    for index, group in enumerate(model.groups_):
        tensors[f"group{index}.scale"] = group.grid.scale
        tensors[f"group{index}.offset"] = group.grid.offset
        tensors[f"group{index}.probe"] = group.probe()
    return {"version": __version__, "settings": model.settings(), "resize_arrays": model.resize_arrays}, tensors


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
            tensors |= {f"group{index}.{name}": pack(values) for name, values in statistics.parts().items()}
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
    parts = parts_named(model.head_config().parts)
    model.replace_statistics(
        [
            Statistics.from_parts(
                classes,
                tensors["counts"],
                **{part.name: tensors[f"group{index}.{part.name}"] for part in parts},
                orphan_degrees=header["orphan_degrees"][index],
                exact=model.quantise,
                device=model.device,
            )
            for index in range(model.groups)
        ]
    )
    model.ledger_ = Ledger.from_tensors(classes, tensors["ledger.digests"], tensors["ledger.counts"])
    model.metadata_ = {name: value for name, value in header.items() if name not in _OWN_ENTRIES}
    return model


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


# -- sizes ---------------------------------------------------------------------------------------------------


def smallest_integers(values: Tensor) -> Tensor:
    """Whole numbers kept in float64 as the smallest integer type that holds them all exactly."""
    largest = float(values.abs().max()) if values.numel() else 0.0
    return values.to(torch.int32 if largest < 2**31 else torch.int64)


def learning_bytes(model: CircleClassifier) -> int:
    """Size of the learning model's file now, header aside: parts of the statistics, counts, grids, ledger."""
    parts = sum(
        values.numel() * values.element_size()
        for statistics in model.statistics_
        for values in (smallest_integers(each) if statistics.exact else each for each in statistics.parts().values())
    )
    grids = sum(12 * group.size for group in model.groups_)
    return parts + grids + 16 * len(model.classes_) + 16 * len(model.ledger_)


def prediction_bytes(model: ImageClassifier) -> int:
    """Size of the predicting model's file, header aside: what the heads hold in float32, float64 biases, the grid."""
    from circle.predictor import Predictor

    grids = sum(12 * group.size for group in model.groups_)
    if isinstance(model, Predictor):
        return grids + sum(values.nbytes for scores in model.scores_ for values in scores.tensors().values())
    return grids + 4 * model.parameter_count().learnable + 8 * len(model.classes_) * len(model.groups_)


def compressed_facts(model: Predictor) -> dict[str, Any] | None:
    """What `circle compress` left of a model: format of the weights, groups, parts of their extractors, features."""
    kept = [member for group in model.groups_ for member in group.kept or ()]
    if not kept and all(each.file_format == 1 for each in model.scores_):
        return None
    return {
        "weights": model.scores_[0].describe(),
        "groups": len(model.groups_),
        "parts": sum(len(member.parts) for member in kept) if kept else None,
        "features": sum(group.size for group in model.groups_),
    }
