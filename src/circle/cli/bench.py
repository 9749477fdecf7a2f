"""circle bench: run the benchmark and report it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from circle.benchmark import campaign, runner
from circle.benchmark.features import FeatureStore
from circle.benchmark.results import Row, Run, read_runs
from circle.benchmark.tensorboard import TensorBoardLog
from circle.cli import command_line, console
from circle.cli.flags import ModelFlags
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.presets.published import DATASETS as PUBLISHED_DATASETS
from circle.presets.published import circle_preset
from circle.registry import list_methods
from circle.streams.datasets import load_dataset
from circle.streams.fetching import cache_folder

LOG_SECONDS = 30.0

app = App(name="bench", help="Run class-incremental experiments and report them.")


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
    settings: ModelFlags | None = None,
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
    """
    out, err = console.output(), console.messages()
    flags = settings or ModelFlags()
    methods = tuple(method or [campaign.CIRCLE])
    known = [campaign.CIRCLE, *list_methods()]
    for name in methods:
        if name not in known:
            raise CircleError(f"unknown method {name!r}: known are {', '.join(known)}")
    request = campaign.Request(
        methods, tuple(tasks), _numbers(seeds), flags.preset, label, class_order_seed, command_line()
    )
    images = load_dataset(dataset, path=data_path, image_size=flags.image_size, workers=workers)
    stream = runner.Stream.of(images, class_order_seed)
    store = None if no_cache else FeatureStore(cache or cache_folder() / "features")

    def new_classifier(seed: int) -> CircleClassifier:
        base = None
        if flags.preset == "paper" and dataset in PUBLISHED_DATASETS:
            # The published setting of this data set; it is the same for every number of tasks.
            base = CircleClassifier.from_settings(circle_preset(dataset, 10))
        return flags.new_model(base).set_params(seed=seed)

    for job in campaign.jobs(request, images, output, new_classifier):
        finished, stopped = _run_job(job, stream, store, err, confusion, tensorboard)
        for split in finished.info["tasks"]:
            if finished.rows:
                out.print(_summary(finished, split), soft_wrap=True)
        if stopped:
            out.print("stopped: finished tasks are kept; give the same command again to go on")
            return 130
    return 0


def _run_job(
    job: campaign.Job,
    stream: runner.Stream,
    store: FeatureStore | None,
    err: console.Console,
    confusion: bool,
    tensorboard: Path | None,
) -> tuple[Run, bool]:
    """One run, and whether the user stopped it."""
    log = None if tensorboard is None else TensorBoardLog(tensorboard / job.folder.parent.name / job.folder.name)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bars = Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=err,
        disable=not err.is_terminal,
    )
    with bars:
        whole = bars.add_task(f"{job.plan.label}, seed {job.plan.seed}", total=None, note="")
        if job.classifier is not None:
            needed = campaign.estimate(job.classifier, stream, store)
            available = f" of {console.size(needed.memory_available)}" if needed.memory_available else ""
            err.print(
                f"{job.plan.label}, seed {job.plan.seed}: about {console.size(needed.memory)}{available} of memory, "
                f"{console.size(needed.disk)} of disk for features",
                soft_wrap=True,
            )
            needed.check()
        method = job.build()
        if store is not None:
            extraction = bars.add_task("features", total=1, note="")
            campaign.cache_features(
                method,
                stream,
                store,
                lambda what, done, total: bars.update(
                    extraction, description=f"features of {what} images", completed=done, total=total
                ),
            )
            bars.remove_task(extraction)

        spoken = [time.monotonic()]

        def on_row(row: Row, accuracy: float) -> None:
            bars.update(whole, note=f"{100 * accuracy:.2f} % on all classes seen")
            if bars.disable and time.monotonic() - spoken[0] > LOG_SECONDS:
                # No terminal, so somebody keeps a log: a line now and then, instead of a bar.
                spoken[0] = time.monotonic()
                total = len(stream.order)
                err.print(
                    f"{job.plan.label}: {row.classes_seen} of {total} classes, {100 * accuracy:.2f} %", soft_wrap=True
                )
            if log is not None:
                log.row(row, accuracy)

        progress = runner.Progress(
            stages=lambda done, total: bars.update(whole, completed=done, total=total), row=on_row
        )
        try:
            # Only here: before the first task an interruption may end the program at once, nothing is lost by it.
            with console.stop_requests() as stop:
                finished = runner.run_stream(
                    job.plan,
                    stream,
                    method,
                    job.folder,
                    progress=progress,
                    confusion=confusion,
                    should_stop=lambda: bool(stop),
                )
            return finished, bool(stop)
        finally:
            if log is not None:
                log.close()


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
    from circle.benchmark.report import write_report

    if not folders:
        raise CircleError("no folders given: expected folders that `circle bench run` wrote")
    files = write_report(read_runs(folders), output)
    console.output().print(f"report: {files.html}", soft_wrap=True)
    return 0


def _summary(run: Run, split: str) -> str:
    record = run.record(split)
    learning, evaluation = run.seconds(split)[-1]
    return (
        f"{run.info['label']}, seed {run.info['seed']}, T = {split}: "
        f"A_bar {100 * record.average_incremental_accuracy:.2f} %, A_T {100 * record.final_accuracy:.2f} %, "
        f"forgetting {100 * record.forgetting:.2f} %, {learning:.1f} s learning (an image in the last tenth of the "
        f"tasks took {run.cost_growth(split):.2f} x one in the first), {evaluation:.0f} s evaluating"
    )


def _numbers(text: str) -> tuple[int, ...]:
    """ "0-2,5" -> (0, 1, 2, 5)."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise CircleError(f"seeds {text!r}: expected numbers such as 0-4 or 0,3,7")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
