"""circle evaluate"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Column, Table

from circle.benchmark.evaluation import Evaluation
from circle.benchmark.evaluation import evaluate as evaluate_images
from circle.cli import console
from circle.data.folders import check_none_ignored
from circle.data.user_images import open_images
from circle.errors import CircleError, counted
from circle.files import load

TABLE = "table"  # what --confusion is given to have the matrix printed
FILES = (".csv", ".png", ".svg")  # what figures are written to
MAX_COLUMNS = 20  # classes of a confusion matrix that fit on a terminal


def evaluate(
    model: Path,
    data: Path,
    /,
    *,
    pairs: int = 5,
    top_k: int = 1,
    confusion: Annotated[str | None, Parameter(negative=())] = None,
    reliability: Annotated[Path | None, Parameter(negative=())] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    csv: Annotated[Path | None, Parameter(negative=())] = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    strict: Annotated[bool, Parameter(negative=())] = False,
    device: str = "cpu",
) -> int:
    """Measure accuracy on labelled images: overall, per class, and the pairs most often confused.

    Parameters
    ----------
    model
        A model file, of the learning or the predicting kind.
    data
        Class folders, a zip of them, or an npz with images x and labels y. Where there are train and test folders,
        test is taken.
    pairs
        How many of the worst pairs to name.
    top_k
        Also count images whose class is among the K most probable ones.
    confusion
        The confusion matrix: table to print it, or a file whose name ends in .csv, .png or .svg.
    reliability
        How often answers of each probability are right, as a file whose name ends in .csv, .png or .svg.
    as_json
        Write JSON instead of tables.
    csv
        Write the table of classes to a CSV file.
    force
        Replace files that exist.
    strict
        Stop if an image cannot be read, a file would be ignored, or a picture is in two classes.
    device
        Where PyTorch computes: cpu, cuda, ...
    """
    console.check_top_k(top_k)
    console.check_csv(csv)
    matrix_file = _matrix_file(confusion)
    if reliability is not None and reliability.suffix.lower() not in FILES:
        raise CircleError(f"--reliability {reliability}: expected a name that ends in .csv, .png or .svg")
    console.check_outputs([csv, matrix_file, reliability], force=force, model=model)
    err = console.messages()
    images = open_images(data, "test")
    if strict:
        check_none_ignored(images)
    classifier = load(model, device=device)
    console.notes(images.notes, err)
    with console.progress(err) as bar:
        task = bar.add_task("evaluating", total=len(images))
        result = evaluate_images(
            classifier,
            images,
            lambda done: bar.update(task, completed=done.total + len(done.unreadable)),
            top_k=top_k,
            strict=strict,
        )
    console.skipped(result.unreadable, err)
    console.notes(filter(None, [result.duplicates.message()]), err)
    if result.unknown_classes:
        names = ", ".join(map(str, result.unknown_classes[:5]))
        more = f" and {len(result.unknown_classes) - 5} more" if len(result.unknown_classes) > 5 else ""
        console.remark(err, "note", f"the model never learned {names}{more}: their images count as wrong")
    if csv is not None:
        console.write_csv(csv, _class_rows(result))
    if matrix_file is not None:
        _write_matrix(result, matrix_file, f"{model.name} on {data.name}")
    if reliability is not None:
        _write_reliability(result, reliability, f"{model.name} on {data.name}")
    if as_json:
        print(json.dumps(_plain(result, pairs, matrix=confusion == TABLE), indent=2))
    else:
        _show(result, pairs)
        if confusion == TABLE:
            _show_matrix(result)
        _show_accuracy(result)
    return 0


def _matrix_file(confusion: str | None) -> Path | None:
    """The file that the confusion matrix goes to, if it goes to one."""
    if confusion is None or confusion == TABLE:
        return None
    path = Path(confusion)
    if path.suffix.lower() not in FILES:
        raise CircleError(f"--confusion {confusion}: expected table, or a name that ends in .csv, .png or .svg")
    return path


def _write_matrix(result: Evaluation, path: Path, title: str) -> None:
    labels, matrix = result.confusion_matrix()
    if path.suffix.lower() == ".csv":
        rows = [[label, *counts] for label, counts in zip(labels, matrix.tolist(), strict=True)]
        console.write_csv(path, [["true / predicted", *labels], *rows])
        return
    from circle.report.drawing import save
    from circle.report.figures import confusion_figure  # matplotlib takes a while to import

    save(confusion_figure(labels, matrix, title), path, console.picture_kind(path))


def _write_reliability(result: Evaluation, path: Path, title: str) -> None:
    if path.suffix.lower() == ".csv":
        console.write_csv(path, [["from", "to", "images", "mean_probability", "accuracy"], *result.reliability.rows()])
        return
    from circle.report.drawing import save
    from circle.report.figures import reliability_figure  # matplotlib takes a while to import

    save(reliability_figure(result.reliability, title), path, console.picture_kind(path))


def _class_rows(result: Evaluation) -> Iterator[list[Any]]:
    """The table of classes, headings in the first row."""
    near = result.top_k > 1
    yield ["label", "images", "correct", "accuracy", *([f"top_{result.top_k}_accuracy"] if near else [])]
    for label, right, total in result.per_class():
        yield [label, total, right, right / total, *([result.near[label] / total] if near else [])]


def _plain(result: Evaluation, pairs: int, *, matrix: bool) -> dict[str, object]:
    more: dict[str, object] = {}
    if result.top_k > 1:
        more |= {"top_k": result.top_k, "top_k_accuracy": result.top_k_accuracy}
    if matrix:
        labels, counts = result.confusion_matrix()
        more["confusion"] = {"labels": labels, "images": counts.tolist()}
    return {
        "accuracy": result.accuracy,
        "correct": result.correct,
        "total": result.total,
        "mean_confidence": result.reliability.mean_confidence,
        "expected_calibration_error": result.reliability.expected_calibration_error,
        "unreadable": result.unreadable,
        "classes": [{"label": label, "correct": right, "total": n} for label, right, n in result.per_class()],
        "confused": [{"true": true, "predicted": other, "images": n} for true, other, n in result.worst_pairs(pairs)],
        **more,
    }


def _show(result: Evaluation, pairs: int) -> None:
    out = console.output()
    near = [f"top {result.top_k}"] if result.top_k > 1 else []
    per_class = Table("class", "accuracy", *near, "right", "of", title="per class, worst first", title_justify="left")
    for label, right, total in result.per_class():
        among = [f"{100 * result.near[label] / total:.1f} %"] if near else []
        per_class.add_row(str(label), f"{100 * right / total:.1f} %", *among, f"{right:,}", f"{total:,}")
    out.print(per_class)
    worst = result.worst_pairs(pairs)
    if worst:
        confused = Table("is", "was called", "images", title="most often confused", title_justify="left")
        for true, predicted, count in worst:
            confused.add_row(str(true), str(predicted), f"{count:,}")
        out.print(confused)


def _show_matrix(result: Evaluation) -> None:
    labels, matrix = result.confusion_matrix()
    if len(labels) > MAX_COLUMNS:
        text = f"the confusion matrix of {len(labels):,} classes is too wide; --confusion FILE.csv writes it"
        console.remark(console.messages(), "note", text)
        return
    columns = [Column(str(label), justify="right") for label in labels]
    table = Table("is \\ was called", *columns, title="confusion matrix, images", title_justify="left")
    for label, counts in zip(labels, matrix.tolist(), strict=True):
        table.add_row(str(label), *[f"{count:,}" if count else "." for count in counts])
    console.output().print(table)


def _show_accuracy(result: Evaluation) -> None:
    out = console.output()
    if result.top_k > 1:
        out.print(
            f"among the {result.top_k} most probable classes {100 * result.top_k_accuracy:.2f} % "
            f"({result.near.total():,} of {result.total:,} images)"
        )
    found = result.reliability
    out.print(
        f"mean confidence {100 * found.mean_confidence:.2f} %, "
        f"expected calibration error {100 * found.expected_calibration_error:.2f} points"
    )
    out.print(f"accuracy {100 * result.accuracy:.2f} % ({result.correct:,} of {counted(result.total, 'image')})")
