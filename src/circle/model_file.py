"""What a saved model holds: the learning kind (all statistics) and the predicting kind (weights alone)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from circle import __version__, checkpoint
from circle.checkpoint import smallest_integers
from circle.data.decode import ImageConfig
from circle.ensemble import Kept, KeptMember
from circle.errors import CircleError
from circle.extractors import Grid
from circle.heads.scores import SCORES
from circle.labels import decode_labels, encode_labels
from circle.ledger import Ledger
from circle.registry import resolve
from circle.statistics import Statistics, parts_named

if TYPE_CHECKING:
    from circle.learner import CircleClassifier

Classifier = TypeVar("Classifier", bound="CircleClassifier")

PROBE_TOLERANCE = 1e-3  # other processors round differently; other weights differ by far more


def save_model(model: CircleClassifier, path: Path, *, for_prediction: bool) -> None:
    """Write ``model`` to ``path``, whole or not at all."""
    file_format = 1
    if for_prediction or model._prediction_only:
        header, tensors = blueprint(model)
        if model._kept is not None:
            header["kept"] = [[member.to_dict() for member in group] for group in model._kept]
            file_format = 2
        for index, scores in enumerate(model._materialised()):
            header["scores"] = scores.kind
            file_format = max(file_format, scores.file_format)
            tensors |= {f"group{index}.{name}": values for name, values in scores.tensors().items()}
        header |= {"kind": "prediction", "classes": encode_labels(model._classes()), "samples": model.samples_}
    else:
        header, tensors = learning_contents(model)
    checkpoint.write(path, tensors, header, file_format=file_format)


def blueprint(model: CircleClassifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a model that has learned nothing: settings, grids, and probes of the weights."""
    tensors: dict[str, Tensor] = {}
    for index, group in enumerate(model.groups_):
        tensors[f"group{index}.scale"] = group.grid.scale
        tensors[f"group{index}.offset"] = group.grid.offset
        tensors[f"group{index}.probe"] = group.probe()
    resize = model.image_size is not None
    return {"version": __version__, "settings": model.settings(), "resize_arrays": resize}, tensors


def learning_contents(model: CircleClassifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of the learning kind: all that was learned."""
    header, tensors = blueprint(model)
    classes = model._classes()
    header |= {"kind": "learning", "classes": encode_labels(classes), "samples": model.samples_}
    if model._journal_mark is not None:
        header["journal"] = model._journal_mark
    header["orphan_degrees"] = [statistics.orphan_degrees for statistics in model.statistics_]
    tensors["counts"] = model.statistics_[0].counts
    for index, statistics in enumerate(model.statistics_):
        if not torch.equal(statistics.counts, tensors["counts"]):
            raise CircleError("the groups have learned different samples: an update was interrupted; load the file")
        pack = smallest_integers if statistics.exact else (lambda values: values)
        tensors |= {f"group{index}.{name}": pack(values) for name, values in statistics.parts().items()}
    tensors["ledger.digests"], tensors["ledger.counts"] = model.ledger_.to_tensors(classes)
    return header, tensors


def load_model(kind: type[Classifier], path: Path, device: str) -> Classifier:
    """Read a model of either kind."""
    tensors, header = checkpoint.read(path)
    return restored(kind, header, tensors, device, path)


def restored(
    kind: type[Classifier], header: dict[str, Any], tensors: dict[str, Tensor], device: str, path: Path
) -> Classifier:
    """The model with these contents, of either kind; ``path`` names the file in an error."""
    try:
        model = built(kind, header, tensors, device, path)
        classes = decode_labels(header["classes"])
        if header["kind"] == "prediction":
            _restore_heads(model, tensors, header, classes, path)
        else:
            _restore_statistics(model, tensors, header, classes)
            model._journal_mark = header.get("journal")
    except KeyError as error:
        raise CircleError(f"{path}: damaged model file ({error} is missing)") from error
    except CircleError:
        raise  # it says already what is wrong
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        # The tensors have checksums, the header has none: a value in it may be of another kind than it was.
        raise CircleError(f"{path}: damaged model file (its header does not fit: {error})") from error
    return model


def built(
    kind: type[Classifier], header: dict[str, Any], tensors: dict[str, Tensor], device: str, path: Path
) -> Classifier:
    """The model of a :func:`blueprint`, with nothing learned; without grids in it, the extractors are calibrated."""
    model = described(kind, header, device)
    image, grids, kept = model.image_, None, _kept(header)
    if tensors:
        groups = model.groups if kept is None else len(kept)
        grids = [Grid(tensors[f"group{index}.scale"], tensors[f"group{index}.offset"]) for index in range(groups)]
    model._start(image, grids, kept)
    if tensors:
        _check_probes(model, tensors, path)
    return model


def described(kind: type[Classifier], header: dict[str, Any], device: str) -> Classifier:
    """A model with the settings of a header, of which nothing is built yet."""
    settings = header["settings"]
    image = ImageConfig.from_dict(settings["image"])
    model = kind(
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


def _kept(header: dict[str, Any]) -> Kept | None:
    """What a compressed model has left of its groups."""
    if "kept" not in header:
        return None
    return [[KeptMember.from_dict(member) for member in group] for group in header["kept"]]


def _check_probes(model: CircleClassifier, tensors: dict[str, Tensor], path: Path) -> None:
    """The weights are drawn from the seed again: make sure that they are the ones the model learned with."""
    for index, group in enumerate(model.groups_):
        expected, found = tensors[f"group{index}.probe"].to(model.device), group.probe()
        scale = group.grid.scale * 8
        if expected.shape != found.shape or bool(((expected - found).abs() > PROBE_TOLERANCE * scale).any()):
            raise CircleError(
                f"{path}: this installation draws other random weights than the one that wrote the model "
                f"(torch {torch.__version__}); use the version of torch it was made with"
            )


def _restore_heads(
    model: CircleClassifier, tensors: dict[str, Tensor], header: dict[str, Any], classes: list[Any], path: Path
) -> None:
    name = header.get("scores", "linear")  # the first files did not say, and held nothing else
    if name not in SCORES:
        raise CircleError(f"{path}: a head of the unknown kind {name!r}; expected one of {', '.join(SCORES)}")
    kind = SCORES[name]
    scores = [
        kind.from_tensors({name: tensors[f"group{index}.{name}"].to(model.device) for name in kind.names})
        for index in range(len(model.groups_))
    ]
    model._only_predict(classes, header["samples"], scores)


def _restore_statistics(
    model: CircleClassifier, tensors: dict[str, Tensor], header: dict[str, Any], classes: list[Any]
) -> None:
    parts = parts_named(model._head_config().parts)
    model.statistics_ = [
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
    model._ledger = Ledger.from_tensors(classes, tensors["ledger.digests"], tensors["ledger.counts"])


def learning_bytes(model: CircleClassifier) -> int:
    """Size of the learning model's file now, header aside: parts of the statistics, counts, grids, ledger."""
    parts = sum(
        values.numel() * values.element_size()
        for statistics in model.statistics_
        for values in (smallest_integers(each) if statistics.exact else each for each in statistics.parts().values())
    )
    grids = sum(12 * group.size for group in model.groups_)
    return parts + grids + 16 * len(model._classes()) + 16 * len(model.ledger_)


def prediction_bytes(model: CircleClassifier) -> int:
    """Size of the predicting model's file, header aside: what the heads hold in float32, float64 biases, the grid."""
    if model._prediction_only:
        held = [values for scores in model._materialised() for values in scores.tensors().values()]
        return sum(values.nbytes for values in held) + sum(12 * group.size for group in model.groups_)
    classes, head = len(model._classes()), model._head_config()
    return sum(4 * head.numbers(classes, group.size) + 8 * classes + 12 * group.size for group in model.groups_)


def compressed_facts(model: CircleClassifier) -> dict[str, Any] | None:
    """What `circle compress` left of a model: format of the weights, groups, parts of their extractors, features."""
    scores = model._materialised() if model._prediction_only else []
    if model._kept is None and all(each.file_format == 1 for each in scores):
        return None
    return {
        "weights": scores[0].describe(),
        "groups": len(model.groups_),
        "parts": None if model._kept is None else sum(len(member.parts) for group in model._kept for member in group),
        "features": sum(group.size for group in model.groups_),
    }
