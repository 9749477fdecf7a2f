"""circle compress"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

import circle
from circle.cli import command_line, console
from circle.compression import Compression, CompressionConfig, Validation, compress_weights, explore
from circle.compression.measurement import Timing
from circle.compression.search import Step, Way, compression_figure
from circle.data.user_images import open_images
from circle.errors import CircleError, counted
from circle.files import load
from circle.heads import SLDAConfig, SubspaceQDAConfig
from circle.heads.scores import Weights
from circle.learner import CircleClassifier
from circle.predictor import ImageClassifier


def compress(
    model: Path,
    output: Path,
    /,
    *,
    images: Annotated[Path | None, Parameter(name=("--data", "--images"), negative=())] = None,
    max_loss: float = 0.5,
    target_kb: float | None = None,
    ways: Annotated[list[Way] | None, Parameter(consume_multiple=True, negative=())] = None,
    weights: Weights | None = None,
    head: str | None = None,
    report: Annotated[Path | None, Parameter(negative=())] = None,
    plot: Annotated[Path | None, Parameter(negative=())] = None,
    timing_seconds: float = 20.0,
    force: Annotated[bool, Parameter(negative=())] = False,
    device: str = "cpu",
) -> int:
    """Write a smaller and faster model that only predicts, and say what it loses.

    With images: weights in fewer bits, fewer groups, fewer filters (or members) and a lower rank are tried in this
    order, each from the best so far; the smallest model whose loss on the images is accepted is written. Without
    images the weights change their format, and nothing is measured. The rank of a head with a subspace (subspace_qda)
    is the number of directions of each class; its filters cannot be left out, because the subspace mixes all of them.

    Parameters
    ----------
    model
        A learning model; a predicting one can change its weights and groups, and where they are linear their rank.
        It stays as it is.
    output
        The file for the compressed model.
    images
        Labelled images to choose by, as `circle evaluate` takes them: neither learned nor used as a test afterwards.
    max_loss
        Largest loss of accuracy on the images, in points.
    target_kb
        Stop at a file of this size; an error where the loss allowed does not lead there.
    ways
        What to try: weights, groups, parts, rank (default: all that the model allows).
    weights
        Format: float32, float16 or int8 (default: the smallest whose loss is accepted; without images float16).
    head
        Make another head of the same statistics first, such as slda of subspace_qda: smaller, and its filters can be
        left out. Losses are measured from there.
    report
        Write all steps as JSON.
    plot
        Write a picture of accuracy against time and size, .png or .svg.
    timing_seconds
        About how long to measure times, all models in turns.
    force
        Replace files that exist.
    device
        Where PyTorch computes: cpu, cuda, ...
    """
    kind = console.picture_kind(plot)
    console.check_outputs([output, report, plot], force=force, model=model)
    config = CompressionConfig(
        None if ways is None else tuple(ways),
        weights,
        max_loss,
        None if target_kb is None else round(1000 * target_kb),
        timing_seconds=timing_seconds,
    )
    if images is None:
        for name, value in {"--report": report, "--plot": plot, "--target-kb": target_kb, "--ways": ways}.items():
            if value is not None:
                raise CircleError(f"{name}: needs --data to measure on; without it only --weights can be chosen")
    classifier = load(model, device=device)
    if head is not None:
        classifier = _with_head(classifier, head)
    if images is None:
        compress_weights(classifier, weights or "float16").save(output)
        _say_sizes(model, output)
        return 0
    result = _explored(classifier, images, config)
    result.model.save(output)
    console.output().print(_table(result))
    if ways is None and result.refused:
        left = "; ".join(f"{way} ({reason})" for way, reason in result.refused.items())
        console.notes([f"not tried: {left}"], console.messages())
    if report is not None:
        console.write_json(report, _facts(result, model, images))
    if plot is not None:
        from circle.report.drawing import save  # matplotlib takes a while to import

        save(compression_figure(result, f"{model.name}: what a smaller model costs"), plot, kind)
    _say_sizes(model, output)
    return 0


def _with_head(classifier: ImageClassifier, name: str) -> CircleClassifier:
    """Another head on the same statistics; the settings that it shares with the one it replaces are kept."""
    if not isinstance(classifier, CircleClassifier):
        raise CircleError("--head: this model only predicts; expected the learning model it was made from")
    own = classifier.head_config()
    if isinstance(own, SubspaceQDAConfig) and name == SLDAConfig.name:
        return classifier.with_head(own.without_class_covariances())
    return classifier.with_head(name)


def _explored(classifier: ImageClassifier, images: Path, config: CompressionConfig) -> Compression:
    source, err = open_images(images, "test"), console.messages()
    console.notes(source.notes, err)
    with console.progress(err) as bar:
        task = bar.add_task("features", total=len(source))
        validation = Validation.of_images(classifier, source, lambda done: bar.update(task, completed=done))
    console.skipped(validation.unreadable, err)
    with err.status("compressing") as status:
        return explore(classifier, validation, config, lambda what: status.update(f"compressing: {what}"))


def _table(result: Compression) -> Table:
    title = f"measured on {counted(result.images, 'image')}; work: processor time relative to the first row; *: chosen"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("tried")
    table.add_column("weights")
    numbers = ("rank", "groups", "parts", "accuracy", "loss", "file")
    for heading in (*numbers, "1 image", "work", f"1 of {result.batch_size}", "work"):
        table.add_column(heading, justify="right")
    for step in result.steps:
        style = "bold" if step.chosen else None if step.accepted else "dim"
        table.add_row(*_cells(step, result.batch_size), style=style)
    return table


def _cells(step: Step, batch: int) -> list[str]:
    name = "nothing" if step.way is None else step.way
    return [
        f"{name}{'*' if step.chosen else ''}",
        step.weights,
        "full" if step.rank is None else str(step.rank),
        str(step.groups),
        str(step.parts),
        f"{100 * step.accuracy:.2f} %",
        f"{step.loss:.2f}",
        console.size(step.file_bytes),
        *_time(step.one_image, 1),
        *_time(step.batch, batch),
    ]


def _time(timing: Timing | None, images: int) -> tuple[str, str]:
    return ("-", "-") if timing is None else (f"{1e3 * timing.seconds / images:.1f} ms", f"{timing.work_ratio:.2f}")


def _say_sizes(model: Path, output: Path) -> None:
    console.output().print(
        f"{output}: {console.size(output.stat().st_size)}, predicts only; {model} has "
        f"{console.size(model.stat().st_size)}",
        soft_wrap=True,
    )


def _facts(result: Compression, model: Path, images: Path) -> dict[str, Any]:
    return {
        "model": model.name,
        "images": images.name,
        "validation_images": result.images,
        "unreadable": result.unreadable,
        "refused": dict(result.refused),
        "batch_size": result.batch_size,
        "settings": result.model.settings(),
        "steps": [step.to_dict() for step in result.steps],
        "version": circle.__version__,
        "command": command_line(),
    }
