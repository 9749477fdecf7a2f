"""circle bench: run the benchmark and report it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from circle.benchmark import experiment
from circle.benchmark.results import read_runs
from circle.cli import command_line, console
from circle.cli.bench_shared import STOPPED, DatasetName, MethodName, RivalFlags, RunBars
from circle.cli.flags import ModelFlags, given
from circle.distributed import environment
from circle.errors import CircleError

app = App(name="bench", help="Run class-incremental experiments and report them.")
app.command(
    "circle.cli.bench_ablation:ablation",
    name="ablation",
    help="Run one of the paper's studies: what each choice is worth.",
)
app.command("circle.cli.bench_tune:tune", name="tune", help="Choose a method's settings on held-back training images.")


@app.command
def run(
    *,
    tasks: Annotated[list[str], Parameter(consume_multiple=True, negative=())],
    dataset: DatasetName = None,  # pyright: ignore[reportInvalidTypeForm]
    data: Annotated[Path | None, Parameter(negative=())] = None,
    method: Annotated[
        list[MethodName] | None,  # pyright: ignore[reportInvalidTypeForm]
        Parameter(consume_multiple=True, negative=(), show_choices=False),
    ] = None,
    seeds: str = "0",
    output: Path = Path("results"),
    label: str | None = None,
    class_order_seed: int = 0,
    cache: Annotated[Path | None, Parameter(negative=())] = None,
    no_cache: Annotated[bool, Parameter(negative=())] = False,
    workers: int = 0,
    confusion: Annotated[bool, Parameter(negative=())] = False,
    tensorboard: Annotated[Path | None, Parameter(negative=())] = None,
    time_limit: float | None = None,
    budget: float | None = None,
    images_per_class: int | None = None,
    shard: environment.Sharding = "data",
    timeout_seconds: float = 1800.0,
    settings: ModelFlags | None = None,
    rival: RivalFlags = None,  # pyright: ignore
) -> int:
    """Run methods through a class-incremental stream; a killed run resumes when the command is given again.

    Parameters
    ----------
    tasks
        Numbers of equal tasks, such as 10 20 50 100, or sizes such as 50+50x1. CIRCLE does all of them in one pass.
    dataset
        Name of a data set (`circle data list`).
    data
        Images of your own, as `circle learn` takes them; with --dataset: where that one is, if not in the cache folder.
    method
        circle (the default) and any of the registered methods.
    seeds
        Model seeds, such as 0-4 or 0,3,7.
    output
        Folder for the records: in it one for the data, in that one a run.
    label
        How reports call these runs.
    class_order_seed
        Seed of the class order; it never touches the model.
    cache
        Folder for cached features of frozen extractors (default: in the data folder).
    no_cache
        Compute features again for every task instead of keeping them on disk.
    workers
        Processes that decode image files; 0 decodes in this one.
    confusion
        Also keep who was taken for whom at the end, as confusion.csv.
    tensorboard
        Folder for TensorBoard logs (an extra).
    time_limit
        Seconds of learning after which a method is stopped; the record says how far it came.
    budget
        Seconds of learning that the rivals' epochs are fitted to, by timing their steps beforehand.
    images_per_class
        Learn from the first so many training images of each class only; the test images stay.
    shard
        What each process of torchrun takes: a shard of the images, or all images for a shard of CIRCLE's groups.
    timeout_seconds
        How long the processes of torchrun, which share CIRCLE's work, wait for each other before they give up.
    """
    flags = settings or ModelFlags()
    out = console.output()
    try:
        experiment.run(
            dataset,
            tasks=tasks,
            data=data,
            method=method or "circle",
            preset=flags.preset,
            classifier=lambda: flags.new_model(dataset),
            seeds=seeds,
            output=output,
            label=label,
            class_order_seed=class_order_seed,
            image_size=flags.image_size,
            images_per_class=images_per_class,
            rival=given(rival),
            budget=budget,
            time_limit=time_limit,
            confusion=confusion,
            tensorboard=tensorboard,
            cache=False if no_cache else cache or True,
            workers=workers,
            shard=shard,
            timeout_seconds=timeout_seconds,
            command=command_line(),
            progress=RunBars(out, console.messages()),
        )
    except experiment.StoppedError:
        if environment.is_rank_zero():
            out.print(STOPPED.format("tasks"))
        return 130
    return 0


@app.command
def report(*folders: Path, output: Path = Path("report")) -> int:
    """Write an HTML page, Markdown and figures of all runs in the folders, beside the published values.

    Parameters
    ----------
    folders
        Folders that `circle bench run` wrote; all below them are read.
    output
        Folder for the report.
    """
    from circle.report import write_report

    if not folders:
        raise CircleError("no folders given: expected folders that `circle bench run` wrote")
    files = write_report(read_runs(folders), output)
    console.output().print(f"report: {files.html}", soft_wrap=True)
    return 0
