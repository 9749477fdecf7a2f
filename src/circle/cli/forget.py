"""circle forget"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from circle.cli import console
from circle.cli.completion import model_classes
from circle.errors import counted


def forget(
    model: Path, label: Annotated[str, Parameter(completer=model_classes)], /, *, images: Path | None = None
) -> int:
    """Let a class leave a model.

    Parameters
    ----------
    model
        A learning model.
    label
        The class to forget.
    images
        The images of the class as they were learned: a folder of them, or the data they were learned from.
        With them the class's scatter leaves too, and the model is bit for bit the one that never saw the class.
    """
    from circle.learner import CircleClassifier
    from circle.learning import class_pixels, find_label
    from circle.runtime import container

    with container.exclusive(model):
        classifier = CircleClassifier.load(model)
        known = find_label(classifier, label)
        if images is not None and not all(group.portable for group in classifier.groups_):
            console.remark(
                console.messages(),
                "note",
                "this model is exact on one kind of machine: use the kind that learned the images; another may compute "
                "other features of them, and then they are refused",
            )
        before = classifier.samples_
        classifier.forget(known, None if images is None else class_pixels(images, known, classifier))
        classifier.save(model)
    left = "its scatter left with it" if images is not None else "its anonymous scatter stays in the covariance"
    console.output().print(
        f"forgot {label}: {counted(before - classifier.samples_, 'image')} gone, {left}; "
        f"{model} knows {counted(len(classifier.classes_), 'class')}",
        soft_wrap=True,
    )
    return 0
