"""Model files from a stranger: looked at from the outside before anything of them is built."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from circle.errors import CircleError, counted
from circle.labels import check_one_kind, decode_labels
from circle.learner import CircleClassifier
from circle.machine import require_memory
from circle.registry import resolve
from circle.runtime import container
from circle.serve.limits import Limits, RequestError
from circle.serve.model_store import clean_name
from circle.serve.recovery import JOURNAL
from circle.statistics import memory_of

MAX_HEADER_BYTES = 4 * 2**20
# What a page may load; see `empty_model_like`.
UPLOADABLE_PRESETS = ("small", "fast", "small-64", "fast-64", "small-224", "fast-224")
_INTEGER_DTYPES = ("I32", "I64")


def read_upload(path: Path, current: CircleClassifier, limits: Limits) -> CircleClassifier:
    """The model in an uploaded file, or one line that says why it is not taken.

    Raises:
        RequestError: no model, a damaged one, one that only predicts, or of a kind that this server does not build
            on a stranger's word.
    """
    try:
        kind = _check_without_loading(path, current, limits)
        model = CircleClassifier.load(path)
        model.require_learned()
        if not bool((model.statistics_[0].counts > 0).all()):
            raise CircleError("counts below one")
        for group in model.groups_:
            if not bool(group.grid.offset.isfinite().all() and (group.grid.scale > 0.0).all()):
                raise CircleError("a grid that is none")
    except RequestError:
        raise
    except CircleError as error:
        raise RequestError(f"the model cannot be used: {str(error).replace(f'{path}: ', '')}") from error
    except Exception as error:  # a file made to harm raises all sorts
        raise RequestError("not a CIRCLE model: expected a file that `circle learn` or this page wrote") from error
    model.metadata_.pop(JOURNAL, None)
    assert model.settings() == kind.settings()
    return model


def _check_without_loading(path: Path, current: CircleClassifier, limits: Limits) -> CircleClassifier:
    """Check header, settings, labels and shapes before memory is taken; an empty model of the same kind."""
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8 or struct.unpack("<Q", start)[0] > MAX_HEADER_BYTES:
            raise RequestError("not a CIRCLE model: expected a file that `circle learn` or this page wrote")
    header = container.read_header(path)
    if header["kind"] != "learning":
        raise RequestError("this model only predicts: expected the learning model that it was made from")
    labels = decode_labels(header["classes"])
    if len(labels) > limits.classes or len(set(labels)) != len(labels):
        raise RequestError(f"{counted(len(labels), 'class')}: expected at most {limits.classes}, each of them once")
    check_one_kind(labels)
    for label in labels:
        if clean_name(str(label)) != str(label) or not isinstance(label, (str, int)):
            raise RequestError("labels: expected printable text or whole numbers")
    kind = empty_model_like(header["settings"], current)
    _check_tensors(path, kind, len(labels))
    return kind


def empty_model_like(settings: dict[str, Any], current: CircleClassifier) -> CircleClassifier:
    """An empty model with these settings, if it is one that the server has, or a preset small enough to build.

    Settings decide how much memory and time a model takes, so a stranger's are not simply believed.
    """
    if isinstance(settings, dict) and isinstance(settings.get("head"), dict):
        # A file that is older than a setting of the head means its default.
        settings = {**settings, "head": resolve("head", settings["head"]).to_dict()}
    if settings == current.settings():
        return current
    seed = settings.get("seed")
    for preset in UPLOADABLE_PRESETS if isinstance(seed, int) and 0 <= seed < 2**31 else ():
        model = CircleClassifier.from_preset(preset, seed=seed)
        if settings == {**model.part_settings(), "image": model.input_config().to_dict()}:
            return model.prepare(model.input_config())
    raise RequestError(
        f"settings of another kind of model: expected this server's own or a preset ({', '.join(UPLOADABLE_PRESETS)}); "
        "start `circle serve` with that file instead"
    )


def _check_tensors(path: Path, kind: CircleClassifier, classes: int) -> None:
    """Shapes and types that statistics of this kind have, read from the file's own list."""
    try:
        with safe_open(str(path), "pt") as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
            shapes = {name: tuple(each.get_shape()) for name, each in found.items()}
            whole = {name for name, each in found.items() if each.get_dtype() in _INTEGER_DTYPES or not kind.quantise}
    except SafetensorError as error:
        raise RequestError("damaged model file: its parts cannot be read") from error
    expected: dict[str, tuple[int, ...]] = {"counts": (classes,)}
    for index, statistics in enumerate(kind.statistics_):
        own = {
            name.removeprefix(f"group{index}."): shapes[name] for name in shapes if name.startswith(f"group{index}.")
        }
        for name, shape in statistics.packed_shapes(own, classes).items():
            expected[f"group{index}.{name}"] = shape
    if not expected.keys() <= shapes.keys():
        raise RequestError("damaged model file: parts are missing")
    for name, shape in expected.items():
        if shapes[name] != shape or name not in whole:
            raise RequestError(f"damaged model file: {name} has another shape or type than expected")
    # A small file may hold what takes much more room in memory.
    needed = sum(memory_of(statistics.size, classes, statistics.kept) for statistics in kind.statistics_)
    require_memory(needed, "this model", "learn its images here, or start `circle serve` with that file")
