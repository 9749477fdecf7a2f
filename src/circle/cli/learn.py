"""circle learn"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from circle import checkpoint
from circle.cli import console
from circle.cli.flags import ModelFlags
from circle.learner import CircleClassifier
from circle.streams.sources import open_source
from circle.teaching import Lesson, teach


def learn(
    model: Path,
    data: Path,
    /,
    *,
    settings: ModelFlags | None = None,
    strict: Annotated[bool, Parameter(negative=())] = False,
    checkpoint_seconds: float = 30.0,
    device: str = "cpu",
) -> int:
    """Learn labelled images; creates the model or continues it.

    Images of any size and kind become the model's size and channels. Ctrl-C keeps all that was learned; running
    the same command again goes on where it stopped, and learns no image twice.

    Parameters
    ----------
    model
        The model file, created where it does not exist.
    data
        Class folders (data/cat/1.jpg, data/dog/2.png, ...), a zip of them, or an npz with images x and labels y.
    strict
        Stop before learning anything if an image cannot be read, instead of skipping it.
    checkpoint_seconds
        The model is written at most this often while it learns, and at the end.
    device
        Where PyTorch computes: cpu, cuda, ...
    """
    settings = settings or ModelFlags()
    out, err = console.output(), console.messages()
    source = open_source(data)
    with checkpoint.exclusive(model):
        if model.exists():
            classifier = CircleClassifier.load(model, device=device)
            classifier._require_learning()
            settings.check_against(classifier, model)
        else:
            classifier = settings.new_model().set_params(device=device)
        with console.stop_requests() as stop, console.progress(err) as bar:
            task = bar.add_task("learning", total=len(source))

            def report(lesson: Lesson) -> None:
                bar.update(task, completed=lesson.looked_at)

            lesson = teach(
                model,
                source,
                classifier,
                strict=strict,
                checkpoint_seconds=checkpoint_seconds,
                should_stop=lambda: bool(stop),
                report=report,
            )
            report(lesson)
    console.skipped(lesson.unreadable, err)
    out.print(_summary(lesson, classifier, model), soft_wrap=True)
    return 130 if lesson.stopped else 0


def _summary(lesson: Lesson, classifier: CircleClassifier, model: Path) -> str:
    parts = [f"learned {lesson.learned:,} images"]
    if lesson.known:
        parts.append(f"{lesson.known:,} were known already")
    if lesson.unreadable:
        parts.append(f"{len(lesson.unreadable):,} unreadable were skipped")
    text = ", ".join(parts)
    if lesson.stopped:
        left = lesson.total - lesson.looked_at
        return f"stopped: {text}; {left:,} are left. All of it is kept: run the same command again to go on."
    return f"{text}; {model} knows {len(classifier.classes_):,} classes from {classifier.samples_:,} images"
