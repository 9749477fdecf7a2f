"""What the benchmark commands share: one run with its progress, lines on what came of it, lists of seeds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import Group, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from circle.benchmark import campaign, runner
from circle.benchmark.features import FeatureStore
from circle.benchmark.results import Row, Run
from circle.benchmark.tensorboard import TensorBoardLog
from circle.cli import console
from circle.cli.flags import ModelFlags, part_flags
from circle.distributed import environment
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.method import Method, Step, Steps
from circle.presets.published import DATASETS as PUBLISHED_DATASETS
from circle.presets.published import circle_preset
from circle.registry import list_methods

if TYPE_CHECKING:
    from circle.benchmark.distributed_method import DistributedCircle
    from circle.distributed.communicator import Communicator

RivalFlags = Annotated[
    part_flags("method", list_methods(), named=False) | None,
    Parameter(group=Group("Settings of the rivals", sort_key=13)),
]
LOG_SECONDS = 30.0
STOPPED = "stopped: finished tasks are kept; give the same command again to go on"


def base_model(flags: ModelFlags, dataset: str) -> CircleClassifier:
    """The model that the flags describe; the preset ``paper`` has settings of its own for each published data set."""
    base = None
    if flags.preset == "paper" and dataset in PUBLISHED_DATASETS:
        # The published setting of this data set; it is the same for every number of tasks.
        base = CircleClassifier.from_settings(circle_preset(dataset, 10))
    return flags.new_model(base)


def stage_bars(err: Console) -> Progress:
    """Bars with a note beside them; they show on terminals only."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=err,
        disable=not err.is_terminal,
    )


def _tell_needs(
    job: campaign.Job, stream: runner.Stream, store: FeatureStore | None, err: Console, shares: Mapping[str, int]
) -> None:
    """Say what a run will take, before it takes it; refuse what does not fit."""
    if job.classifier is not None:
        needed = campaign.estimate(job.classifier, stream, store, **shares)
    else:
        needed = campaign.rival_estimate(job, campaign.image_shape(stream.dataset))
    if needed is None:
        return
    available = f" of {console.size(needed.memory_available)}" if needed.memory_available else ""
    rest = f"{console.size(needed.disk)} of disk for features"
    if needed.seconds is not None:
        rest = f"about {console.duration(needed.seconds)} of learning"
    words = f"{job.plan.label}, seed {job.plan.seed}: about {console.size(needed.memory)}{available} of memory, {rest}"
    err.print(words, soft_wrap=True)
    needed.check()


def run_job(
    job: campaign.Job,
    stream: runner.Stream,
    store: FeatureStore | None,
    err: Console,
    *,
    confusion: bool = False,
    tensorboard: Path | None = None,
    time_limit: float | None = None,
    ranks: Communicator | None = None,
    sharding: environment.Sharding = "data",
) -> tuple[Run, bool]:
    """One run, and whether the user stopped it; with ``ranks``, rank zero's part, while the others ``follow_job``."""
    done = runner.finished_run(job.plan, stream, job.folder)
    if ranks is not None:
        ranks.broadcast({"run": done is None})
    if done is not None:
        return done, False
    log = None if tensorboard is None else TensorBoardLog(tensorboard / job.folder.parent.name / job.folder.name)
    bars = stage_bars(err)
    with bars:
        whole = bars.add_task(f"{job.plan.label}, seed {job.plan.seed}", total=None, note="")

        if ranks is None:
            _tell_needs(job, stream, store, err, {})
            method = job.build()
        else:
            divided = {"image_shards" if sharding == "data" else "group_shards": ranks.world_size}
            ranks.on_rank_zero(lambda: _tell_needs(job, stream, store, err, divided))
            method = distributed_method(job, stream, ranks, sharding)
        if store is not None:
            extraction = bars.add_task("features", total=1, note="")

            def on_images(what: str, done: int, total: int) -> None:
                bars.update(extraction, description=f"features of {what} images", completed=done, total=total)

            cache = partial(campaign.cache_features, method, stream, store, on_images)
            cache() if ranks is None else ranks.on_all_ranks(cache)
            bars.remove_task(extraction)

        spoken = [time.monotonic()]

        def speak(text: str) -> None:
            """No terminal, so somebody keeps a log: a line now and then, instead of a bar."""
            if bars.disable and time.monotonic() - spoken[0] > LOG_SECONDS:
                spoken[0] = time.monotonic()
                err.print(f"{job.plan.label}: {text}", soft_wrap=True)

        steps = bars.add_task("", total=None, visible=False, note="") if isinstance(method, Steps) else None

        def on_step(step: Step) -> None:
            losses = ", ".join(f"{name} {value:.3f}" for name, value in step.losses.items())
            where = f"task {step.task}, {step.stage}, epoch {step.epoch} of {step.epochs}"
            if steps is not None:
                done, total = (step.epoch - 1) * step.steps + step.step, step.epochs * step.steps
                bars.update(steps, description=where, completed=done, total=total, visible=True, note=losses)
            speak(f"{where}: {losses}")

        def on_row(row: Row, accuracy: float) -> None:
            bars.update(whole, note=f"{100 * accuracy:.2f} % on all classes seen")
            speak(f"{row.classes_seen} of {len(stream.order)} classes, {100 * accuracy:.2f} %")
            if log is not None:
                log.row(row, accuracy)

        progress = runner.Progress(
            stages=lambda done, total: bars.update(whole, completed=done, total=total), step=on_step, row=on_row
        )
        try:
            # Only here: before the first task an interruption may end the program at once, nothing is lost by it.
            with console.stop_requests() as stop, _leading(method, ranks, stop):
                finished = runner.run_stream(
                    job.plan,
                    stream,
                    method,
                    job.folder,
                    progress=progress,
                    confusion=confusion,
                    should_stop=lambda: bool(stop) or (ranks is not None and ranks.stop_requested),
                    time_limit=time_limit,
                )
            return finished, bool(stop) or (ranks is not None and ranks.stop_requested)
        finally:
            if log is not None:
                log.close()


@contextmanager
def bench_ranks(methods: Sequence[str], timeout_seconds: float) -> Iterator[Communicator | None]:
    """The processes that torchrun started, or None where this is the only one."""
    if environment.world_size() == 1:
        yield None
        return
    from circle.distributed.communicator import connect

    with connect("cpu", timeout_seconds) as ranks:
        rivals = [name for name in methods if name != campaign.CIRCLE]
        if rivals:
            ranks.fail(
                f"method {rivals[0]!r}: several processes run {campaign.CIRCLE} alone; start it without torchrun"
            )
        yield ranks


def distributed_method(
    job: campaign.Job, stream: runner.Stream, ranks: Communicator, sharding: environment.Sharding
) -> DistributedCircle:
    """This rank's part of CIRCLE; all ranks make it together."""
    from circle.benchmark.distributed_method import DistributedCircle

    assert job.classifier is not None
    return DistributedCircle.build(job.classifier, stream.dataset, ranks, sharding, job.folder / runner.STATE)


@contextmanager
def _leading(method: Method, ranks: Communicator | None, stop: list[int]) -> Iterator[None]:
    """Let the other ranks go when the run is over."""
    if ranks is not None:
        ranks.stop_requests = stop
    yield
    if ranks is not None:
        cast("DistributedCircle", method).end(stopped=bool(stop) or ranks.stop_requested)


def follow_job(
    job: campaign.Job,
    stream: runner.Stream,
    store: FeatureStore | None,
    ranks: Communicator,
    sharding: environment.Sharding,
) -> bool:
    """The part of all ranks but zero in :func:`run_job`, which print nothing; whether the user stopped it."""
    if not ranks.broadcast(None)["run"]:
        return False
    ranks.on_all_ranks(lambda: None)  # meanwhile rank zero finds out whether there is room for the run
    method = distributed_method(job, stream, ranks, sharding)
    if store is not None:
        ranks.on_all_ranks(lambda: campaign.cache_features(method, stream, store, lambda what, done, total: None))
    with console.stop_requests() as ranks.stop_requests:
        return method.follow()


def summaries(run: Run) -> list[str]:
    """A line for every split of a run that has got anywhere, and why it went no further."""
    lines = [_summary(run, split) for split in run.info["tasks"] if run.reached(split)]
    if "stopped" in run.info:
        seen = run.rows[-1].classes_seen if run.rows else 0
        where = f"{seen} of {len(run.info['class_order'])} classes learned and evaluated"
        lines.append(f"{run.info['label']}, seed {run.info['seed']}: stopped, {run.info['stopped']}; {where}")
    return lines


def _summary(run: Run, split: str) -> str:
    record = run.record(split)
    learning, evaluation = run.seconds(split)[-1]
    return (
        f"{run.info['label']}, seed {run.info['seed']}, T = {split}: "
        f"A_bar {100 * record.average_incremental_accuracy:.2f} %, A_T {100 * record.final_accuracy:.2f} %, "
        f"forgetting {100 * record.forgetting:.2f} %, {learning:.1f} s learning (an image in the last tenth of the "
        f"tasks took {run.cost_growth(split):.2f} x one in the first), {evaluation:.0f} s evaluating"
    )


def numbers(text: str) -> tuple[int, ...]:
    """ "0-2,5" -> (0, 1, 2, 5)."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            raise CircleError(f"seeds {text!r}: expected numbers such as 0-4 or 0,3,7")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
