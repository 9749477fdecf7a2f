"""circle learn"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from circle.cli import console
from circle.cli.flags import ModelFlags
from circle.data.folders import check_none_ignored
from circle.data.images import Images
from circle.data.user_images import open_images
from circle.distributed import environment
from circle.errors import counted
from circle.learner import CircleClassifier
from circle.learning import LearningProgress, suited, teach
from circle.machine import stop_requests
from circle.runtime import container


def learn(
    model: Path,
    data: Path,
    /,
    *,
    settings: ModelFlags | None = None,
    strict: Annotated[bool, Parameter(negative=())] = False,
    checkpoint_seconds: float = 30.0,
    device: str = "cpu",
    shard: environment.Sharding = "data",
    timeout_seconds: float = 1800.0,
) -> int:
    """Learn labelled images; creates the model or continues it.

    Images of any size and kind become the model's size and channels. Ctrl-C keeps all that was learned; running
    the same command again resumes where it stopped, and learns no image twice. Started by torchrun, all processes
    learn one model.

    A new model of the preset small, fast or best takes the form for images of 32, 64 or 224 pixels that suits these,
    and says so; --image-size or a form's own name, such as best-32, decides otherwise.

    Parameters
    ----------
    model
        The model file, created where it does not exist.
    data
        Class folders (data/cat/1.jpg, data/dog/2.png, ...), a zip of them, or an npz with images x and labels y. Where
        there are train and test folders, train is learned.
    strict
        Stop before learning anything if an image cannot be read, a file would be ignored, or a picture is in two
        classes, instead of saying so and going on.
    checkpoint_seconds
        The model is written at most this often while it learns, and at the end.
    device
        Where PyTorch computes: cpu, cuda, ...
    shard
        What each process of torchrun takes: a shard of the images, or all images for a shard of the groups.
    timeout_seconds
        How long the processes of torchrun wait for each other before they give up.
    """
    settings = settings or ModelFlags()
    out, err = console.output(), console.messages()
    if environment.world_size() > 1:
        from circle.distributed.communicator import connect
        from circle.distributed.learning import learn_on_all_ranks

        with _watched(err) as (stop, report), connect(device, timeout_seconds, stop) as ranks:
            progress, classifier = learn_on_all_ranks(
                ranks,
                model,
                data,
                new_model=settings.new_model,
                check_model=lambda found: settings.check_against(found, model),
                sharding=shard,
                strict=strict,
                checkpoint_seconds=checkpoint_seconds,
                report=report,
            )
    else:
        images = open_images(data)
        if strict:
            check_none_ignored(images)
        with container.exclusive(model):
            classifier, notes = _opened(model, settings, device, images)
            console.notes([*images.notes, *notes], err)
            with _watched(err) as (stop, report):
                progress = teach(
                    model,
                    images,
                    classifier,
                    strict=strict,
                    checkpoint_seconds=checkpoint_seconds,
                    should_stop=lambda: bool(stop),
                    report=report,
                )
                report(progress)
    if environment.is_rank_zero():
        if environment.world_size() > 1:
            console.notes(progress.notes, err)
        console.skipped(progress.unreadable, err)
        console.notes(filter(None, [progress.duplicates.message()]), err)
        out.print(_summary(progress, classifier, model), soft_wrap=True)
    return 130 if progress.stopped else 0


@contextmanager
def _watched(err: Console) -> Iterator[tuple[list[int], Callable[[LearningProgress], None]]]:
    """Requests to stop, and a bar to report to."""
    with stop_requests() as stop, console.progress(err) as bar:
        task = bar.add_task("learning", total=None)
        yield stop, lambda progress: bar.update(task, completed=progress.looked_at, total=progress.total)


def _opened(path: Path, settings: ModelFlags, device: str, images: Images) -> tuple[CircleClassifier, list[str]]:
    """The model that is there, or a new one that suits the images, and what is to be said of it."""
    if not path.exists():
        return suited(settings.new_model().set_params(device=device), images)
    classifier = CircleClassifier.load(path, device=device)
    settings.check_against(classifier, path)
    return classifier, []


def _summary(progress: LearningProgress, classifier: CircleClassifier, model: Path) -> str:
    parts = [f"learned {counted(progress.learned, 'image')}"]
    if progress.known:
        parts.append(f"{progress.known:,} {_were(progress.known)} known already")
    if progress.unreadable:
        parts.append(f"{len(progress.unreadable):,} unreadable {_were(len(progress.unreadable))} skipped")
    text = ", ".join(parts)
    if progress.stopped:
        left = progress.total - progress.looked_at
        verb = "is" if left == 1 else "are"
        return f"stopped: {text}; {left:,} {verb} left. All of it is kept: run the same command again to resume."
    return f"{text}; {console.knowledge(model, classifier)}"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
