"""circle pack"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from circle.cli import console
from circle.errors import CircleError
from circle.files import load
from circle.predictor import Predictor


def pack(model: Path, output: Path, /, *, force: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Write the small model that predicts but no longer learns, to be taken to a phone or a server.

    Parameters
    ----------
    model
        A learning model; it stays as it is.
    output
        The file for the predicting model.
    force
        Replace the output file where it exists.
    """
    console.check_outputs([output], force=force, model=model)
    classifier = load(model)
    if isinstance(classifier, Predictor):
        raise CircleError(
            f"{model}: this model only predicts already; expected a learning model "
            "(copy the file as it is, or make it smaller with `circle compress`)"
        )
    classifier.save(output, for_prediction=True)
    console.output().print(
        f"{output}: {console.size(output.stat().st_size)}, predicts only; {model} has "
        f"{console.size(model.stat().st_size)} and keeps learning",
        soft_wrap=True,
    )
    return 0
