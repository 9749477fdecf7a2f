"""circle predict"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from rich.table import Column, Table

from circle.benchmark.evaluation import probabilities
from circle.cli import console
from circle.data.sources import open_unlabelled
from circle.errors import CircleError
from circle.learner import CircleClassifier


def predict(
    model: Path,
    images: list[Path],
    /,
    *,
    top: int = 3,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    device: str = "cpu",
) -> int:
    """Say what images show, with probabilities.

    Parameters
    ----------
    model
        A model file, of the learning or the predicting kind.
    images
        Image files, folders or zip archives of images.
    top
        How many classes to name for each image.
    as_json
        Write JSON instead of a table.
    device
        Where PyTorch computes: cpu, cuda, ...
    """
    if top < 1:
        raise CircleError(f"--top {top}: expected at least 1")
    err = console.messages()
    if not images:
        raise CircleError("no images given: expected image files, folders or zip archives")
    samples = open_unlabelled(images)
    classifier = CircleClassifier.load(model, device=device)
    classes = classifier.classes_.tolist()
    unreadable: list[str] = []
    rows: list[tuple[str, list[tuple[Any, float]]]] = []
    with console.progress(err) as bar:
        task = bar.add_task("predicting", total=len(samples))
        for sample, values in probabilities(classifier, samples, unreadable.append):
            best = np.argsort(-values, kind="stable")[:top]
            rows.append((sample.name, [(classes[index], float(values[index])) for index in best]))
            bar.update(task, completed=len(rows) + len(unreadable))
    if as_json:
        print(json.dumps([_plain(name, ranked) for name, ranked in rows], indent=2))
    elif rows:
        console.output().print(_table(rows))
    for reason in unreadable:
        err.print(f"circle: error: {reason}", soft_wrap=True)
    return 1 if unreadable else 0


def _plain(name: str, ranked: list[tuple[Any, float]]) -> dict[str, Any]:
    return {"image": name, "predictions": [{"label": label, "probability": value} for label, value in ranked]}


def _table(rows: list[tuple[str, list[tuple[Any, float]]]]) -> Table:
    table = Table(Column("image", overflow="fold"), *[f"{rank}." for rank in range(1, len(rows[0][1]) + 1)])
    for name, ranked in rows:
        table.add_row(name, *[f"{label} {100 * value:.1f} %" for label, value in ranked])
    return table
