"""circle export"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.table import Column, Table

from circle.cli import console
from circle.export import Export, Layout, export_onnx
from circle.export.checking import TOLERANCE
from circle.files import load


def export(
    model: Path,
    output: Path,
    /,
    *,
    check: Path | None = None,
    layout: Layout = "NHWC",
    force: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write a model as one ONNX file, from uint8 images to probabilities, and check it in onnxruntime.

    The file takes any number of images at a time and holds the class names. A file that does not say what the model
    says is not kept.

    Parameters
    ----------
    model
        A model file, of the learning or the predicting kind; it stays as it is.
    output
        The ONNX file.
    check
        Images to compare the two on: a file, a folder, a zip archive or an npz. Synthetic ones if not given.
    layout
        Order of the input's axes: NHWC (images as decoders give them) or NCHW.
    force
        Replace the output file where it exists.
    """
    console.check_outputs([output], force=force, model=model)
    out, err = console.output(), console.messages()
    classifier = load(model)
    with console.progress(err) as bar:
        task = bar.add_task("checking", total=None)
        result = export_onnx(
            classifier, output, layout=layout, check=check, report=lambda done: bar.update(task, completed=done)
        )
    console.skipped(result.unreadable, err)
    image = classifier.image_
    sides = {"NHWC": (image.height, image.width, image.channels), "NCHW": (image.channels, image.height, image.width)}
    shape = ", ".join(map(str, sides[layout]))
    out.print(
        f"{output}: {console.size(result.size)}; images uint8 [batch, {shape}] -> probabilities float32 "
        f"[batch, {len(classifier.classes_)}], best int64 [batch]",
        soft_wrap=True,
    )
    where = f"images of {check}" if check else "synthetic images (give your own with --check)"
    out.print(f"compared on {result.agreement.images:,} {where}: {agreed(result)}", soft_wrap=True)
    out.print(_speeds(result))
    return 0


def agreed(result: Export) -> str:
    """The measured agreement in words."""
    found = result.agreement
    other = found.other_best
    best = "the same best class on all" if not other else f"another best class on {other:,}"
    best = f"the same features and {best}" if found.same_features else best
    if not found.rounded_otherwise:
        return f"{best}, probabilities to {found.largest:.2g}"
    return (
        f"{best}, probabilities to {TOLERANCE:g} on {found.within:,} and to {found.largest:.2g} on the others, "
        "where a feature a hair from the boundary of two steps of the grid rounds the other way"
    )


def _speeds(result: Export) -> Table:
    table = Table("images/s", *[Column(name, justify="right") for name in ("onnxruntime", "CIRCLE", "ratio")])
    for speed in result.speeds:
        what = "one image at a time" if speed.batch == 1 else f"{speed.batch} at a time"
        ratio = speed.onnxruntime / speed.circle
        table.add_row(what, f"{speed.onnxruntime:,.0f}", f"{speed.circle:,.0f}", f"{ratio:.2f}")
    return table
