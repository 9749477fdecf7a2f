"""circle rename"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from circle.cli import console
from circle.cli.completion import model_classes


def rename(model: Path, old: Annotated[str, Parameter(completer=model_classes)], new: str, /) -> int:
    """Give a class of a model another name; nothing is learned anew.

    Parameters
    ----------
    model
        A learning model.
    old
        The class as it is called now.
    new
        Its new name, which no other class of the model may have.
    """
    from circle.learner import CircleClassifier
    from circle.learning import find_label, new_label
    from circle.runtime import container

    with container.exclusive(model):
        classifier = CircleClassifier.load(model)
        known = find_label(classifier, old)
        classifier.rename(known, new_label(classifier, new))
        classifier.save(model)
    console.output().print(f"{model}: {old} is called {new} now", soft_wrap=True)
    return 0
