"""circle predict"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from rich.table import Column, Table

from circle.cli import console
from circle.data.folders import check_none_ignored
from circle.data.user_images import open_unlabelled
from circle.errors import CircleError, counted
from circle.runtime import container
from circle.runtime.predictor import NumPyPredictor, most_probable

FEW_IMAGES = 64  # that are answered sooner by NumPy than PyTorch is imported


def predict(
    model: Path,
    images: list[Path],
    /,
    *,
    top_k: Annotated[int, Parameter(name=("--top-k", "--top"))] = 3,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    csv: Annotated[Path | None, Parameter(negative=())] = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    strict: Annotated[bool, Parameter(negative=())] = False,
    device: str = "cpu",
) -> int:
    """Say what images show, with probabilities.

    Parameters
    ----------
    model
        A model file, of the learning or the predicting kind.
    images
        Image files, folders or zip archives of images.
    top_k
        How many classes to name for each image, the most probable first.
    as_json
        Write JSON instead of a table.
    csv
        Write the predictions to a CSV file, one row for each image.
    force
        Replace the CSV file where it exists.
    strict
        Stop if an image cannot be read or a file would be ignored, and write no predictions.
    device
        Where PyTorch computes: cpu, cuda, ...
    """
    console.check_top_k(top_k)
    console.check_csv(csv)
    console.check_outputs([csv], force=force, model=model)
    err = console.messages()
    if not images:
        raise CircleError("no images given: expected image files, folders or zip archives")
    found = open_unlabelled(images)
    if strict:
        check_none_ignored(found)
    classes, probabilities = _opened(model, len(found), device)
    console.notes(found.notes, err)
    unreadable: list[str] = []
    rows: list[tuple[str, list[tuple[Any, float]]]] = []
    with console.progress(err) as bar:
        task = bar.add_task("predicting", total=len(found))
        for position, values in probabilities(found, unreadable.append):
            rows.append((found.name_of(position), most_probable(classes, values, top_k)))
            bar.update(task, completed=len(rows) + len(unreadable))
    if strict and unreadable:
        raise CircleError(unreadable[0])
    if csv is not None and rows:
        console.write_csv(csv, _spread(rows))
    if as_json:
        print(json.dumps([_plain(name, ranked) for name, ranked in rows], indent=2))
    elif csv is not None and rows:
        console.output().print(f"{csv}: predictions of {counted(len(rows), 'image')}", soft_wrap=True)
    elif rows:
        console.output().print(_table(rows))
    for reason in unreadable:
        err.print(f"circle: error: {reason}", soft_wrap=True)
    return 1 if unreadable else 0


def _opened(path: Path, images: int, device: str) -> tuple[list[Any], Callable[..., Iterator[tuple[int, np.ndarray]]]]:
    """The classes of the model at ``path``, and what gives the probabilities of images: few need no PyTorch.

    It takes seconds to import, in which NumPy answers for dozens of images, with the same scores.
    """
    if images <= FEW_IMAGES and device == "cpu" and NumPyPredictor.supports(container.read_header(path)):
        light = NumPyPredictor.load(path)
        return light.classes_.tolist(), light.probabilities_of
    from circle.benchmark.evaluation import probabilities
    from circle.files import load

    classifier = load(path, device=device)
    return classifier.classes_.tolist(), partial(probabilities, classifier)


def _plain(name: str, ranked: list[tuple[Any, float]]) -> dict[str, Any]:
    return {"image": name, "predictions": [{"label": label, "probability": value} for label, value in ranked]}


def _spread(rows: list[tuple[str, list[tuple[Any, float]]]]) -> Iterator[list[Any]]:
    """A row for each image, the columns of its best class first; headings in the first row."""
    headings = ["image"]
    for rank in range(1, len(rows[0][1]) + 1):
        headings += ["label", "probability"] if rank == 1 else [f"label_{rank}", f"probability_{rank}"]
    yield headings
    for name, ranked in rows:
        yield [name, *(value for pair in ranked for value in pair)]


def _table(rows: list[tuple[str, list[tuple[Any, float]]]]) -> Table:
    table = Table(Column("image", overflow="fold"), *[f"{rank}." for rank in range(1, len(rows[0][1]) + 1)])
    for name, ranked in rows:
        table.add_row(name, *[f"{label} {100 * value:.1f} %" for label, value in ranked])
    return table
