"""circle evaluate"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from circle.benchmark.evaluation import Evaluation
from circle.benchmark.evaluation import evaluate as evaluate_source
from circle.cli import console
from circle.data.sources import open_source
from circle.learner import CircleClassifier


def evaluate(
    model: Path,
    data: Path,
    /,
    *,
    pairs: int = 5,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    device: str = "cpu",
) -> int:
    """Measure accuracy on labelled images: overall, per class, and the pairs most often confused.

    Parameters
    ----------
    model
        A model file, of the learning or the predicting kind.
    data
        Class folders, a zip of them, or an npz with images x and labels y.
    pairs
        How many of the worst pairs to name.
    as_json
        Write JSON instead of tables.
    device
        Where PyTorch computes: cpu, cuda, ...
    """
    err = console.messages()
    source = open_source(data)
    classifier = CircleClassifier.load(model, device=device)
    with console.progress(err) as bar:
        task = bar.add_task("evaluating", total=len(source))
        result = evaluate_source(classifier, source, lambda e: bar.update(task, completed=e.total + len(e.unreadable)))
    console.skipped(result.unreadable, err)
    if result.unknown_classes:
        names = ", ".join(map(str, result.unknown_classes[:5]))
        more = f" and {len(result.unknown_classes) - 5} more" if len(result.unknown_classes) > 5 else ""
        console.remark(err, "note", f"the model never learned {names}{more}: their images count as wrong")
    if as_json:
        print(json.dumps(_plain(result, pairs), indent=2))
    else:
        _show(result, pairs)
    return 0


def _plain(result: Evaluation, pairs: int) -> dict[str, object]:
    return {
        "accuracy": result.accuracy,
        "correct": result.correct,
        "total": result.total,
        "unreadable": result.unreadable,
        "classes": [{"label": label, "correct": right, "total": n} for label, right, n in result.per_class()],
        "confused": [{"true": true, "predicted": other, "images": n} for true, other, n in result.worst_pairs(pairs)],
    }


def _show(result: Evaluation, pairs: int) -> None:
    out = console.output()
    per_class = Table("class", "accuracy", "right", "of", title="per class, worst first", title_justify="left")
    for label, right, total in result.per_class():
        per_class.add_row(str(label), f"{100 * right / total:.1f} %", f"{right:,}", f"{total:,}")
    out.print(per_class)
    worst = result.worst_pairs(pairs)
    if worst:
        confused = Table("is", "was called", "images", title="most often confused", title_justify="left")
        for true, predicted, count in worst:
            confused.add_row(str(true), str(predicted), f"{count:,}")
        out.print(confused)
    out.print(f"accuracy {100 * result.accuracy:.2f} % ({result.correct:,} of {result.total:,} images)")
