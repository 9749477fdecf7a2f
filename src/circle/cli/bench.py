"""circle bench: run the benchmark and report it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from circle.benchmark import campaign, runner
from circle.benchmark.features import FeatureStore
from circle.benchmark.results import read_runs
from circle.cli import command_line, console
from circle.cli.bench_runs import (
    STOPPED,
    RivalFlags,
    base_model,
    bench_ranks,
    follow_job,
    numbers,
    run_job,
    summaries,
)
from circle.cli.flags import ModelFlags, given
from circle.data.datasets import load_dataset
from circle.data.download import cache_folder
from circle.distributed import environment
from circle.distributed.model_groups import group_bounds
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.registry import list_methods

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
    dataset: str,
    tasks: Annotated[list[str], Parameter(consume_multiple=True, negative=())],
    method: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    seeds: str = "0",
    output: Path = Path("results"),
    label: str | None = None,
    data_path: Path | None = None,
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
    """Run methods through a class-incremental stream; a killed run goes on when the command is given again.

    Parameters
    ----------
    dataset
        Name of a data set (`circle data list`).
    tasks
        Numbers of equal tasks, such as 10 20 50 100, or sizes such as 50+50x1. CIRCLE does all of them in one pass.
    method
        circle (the default) and any of the registered methods.
    seeds
        Model seeds, such as 0-4 or 0,3,7.
    output
        Folder for the records, one folder a run.
    label
        How reports call these runs.
    data_path
        Where the data set is, if not in the cache folder.
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
        How long the processes of torchrun, which divide CIRCLE's work, wait for each other before they give up.
    """
    out, err = console.output(), console.messages()
    flags = settings or ModelFlags()
    methods = tuple(method or [campaign.CIRCLE])

    def new_classifier(seed: int) -> CircleClassifier:
        return base_model(flags, dataset).set_params(seed=seed)

    def prepared() -> tuple[runner.Stream, FeatureStore | None, Iterator[campaign.Job]]:
        """All that can be wrong with the command is found here, where several processes say it once."""
        known = [campaign.CIRCLE, *list_methods()]
        for name in methods:
            if name not in known:
                raise CircleError(f"unknown method {name!r}: known are {', '.join(known)}")
        for name, value in (("time-limit", time_limit), ("budget", budget)):
            if value is not None and value <= 0:
                raise CircleError(f"{name} {value:g}: expected seconds, more than 0")
        request = campaign.Request(
            *(methods, tuple(tasks), numbers(seeds), flags.preset, label, class_order_seed, command_line()),
            rival=given(rival),
            budget=budget,
        )
        for folder in (output, tensorboard) if environment.is_rank_zero() else ():  # it alone writes records
            console.check_folder(folder)
        console.check_folder(cache)
        images = load_dataset(dataset, path=data_path, image_size=flags.image_size, workers=workers)
        if images_per_class is not None:
            images = images.balanced_part(images_per_class)
        store = None if no_cache else FeatureStore(cache or cache_folder() / "features")
        jobs = campaign.jobs(request, images, output, new_classifier)
        first = next(jobs)  # what is wrong with the request is said here
        if shard == "groups" and first.classifier is not None:
            group_bounds(first.classifier.groups, environment.world_size())  # all of a request have as many groups
        return runner.Stream.of(images, class_order_seed), store, chain([first], jobs)

    with bench_ranks(methods, timeout_seconds) as ranks:
        stream, store, jobs = prepared() if ranks is None else ranks.on_all_ranks(prepared)
        if ranks is not None:
            from circle.benchmark.distributed_method import check_same_data

            check_same_data(ranks, stream.dataset)
        for job in jobs:
            if ranks is not None and not ranks.is_rank_zero:
                if follow_job(job, stream, store, ranks, shard):
                    return 130
                continue
            finished, stopped = run_job(
                job,
                stream,
                store,
                err,
                confusion=confusion,
                tensorboard=tensorboard,
                time_limit=time_limit,
                ranks=ranks,
                sharding=shard,
            )
            for line in summaries(finished):
                out.print(line, soft_wrap=True)
            if stopped:
                out.print(STOPPED)
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
    from circle.report.writing import write_report

    if not folders:
        raise CircleError("no folders given: expected folders that `circle bench run` wrote")
    files = write_report(read_runs(folders), output)
    console.output().print(f"report: {files.html}", soft_wrap=True)
    return 0
