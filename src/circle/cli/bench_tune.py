"""circle bench tune"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.progress import TaskID

from circle.benchmark.experiment import StoppedError, feature_store, form_remark, open_dataset, run
from circle.benchmark.jobs import CIRCLE
from circle.benchmark.results import check_folder
from circle.benchmark.tuning.spaces import Stage
from circle.benchmark.tuning.tune import RESNET_18_PARAMETERS, TuneRequest, new_tuning
from circle.cli import command_line, console
from circle.cli.bench_shared import STOPPED, DatasetName, MethodName, RivalFlags, RunBars, stage_bars
from circle.cli.flags import ModelFlags, given
from circle.distributed import environment
from circle.report.tuning import write_all


def tune(
    *,
    tasks: str,
    dataset: DatasetName = None,  # pyright: ignore[reportInvalidTypeForm]
    data: Annotated[Path | None, Parameter(negative=())] = None,
    method: MethodName = CIRCLE,  # pyright: ignore[reportInvalidTypeForm]
    trials: int = 20,
    minutes: float | None = None,
    output: Path | None = None,
    search_seed: int = 0,
    sampler: Literal["tpe", "random"] = "tpe",
    search: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    share: float = 0.2,
    parameters: int = RESNET_18_PARAMETERS,
    tolerance: float = 0.05,
    budget: float | None = None,
    images_per_class: int | None = None,
    class_order_seed: int = 0,
    cache: Annotated[Path | None, Parameter(negative=())] = None,
    test: bool = True,
    settings: ModelFlags | None = None,
    rival: RivalFlags = None,  # pyright: ignore
) -> int:
    """Choose a method's settings on a fifth of the training images, then learn all of them and look at the test once.

    A stopped search resumes when the command is given again; several processes may work on one folder. It ends
    with tuned.toml, which `circle bench run --preset` takes, search.json with every trial, and search.html.

    Parameters
    ----------
    tasks
        Number of equal tasks, such as 10, or sizes such as 50+50x1.
    dataset
        Name of a data set (`circle data list`).
    data
        Images of your own, as `circle learn` takes them; with --dataset: where that one is, if not in the cache folder.
    method
        circle, or one of the registered methods.
    trials
        Trials of each of the two stages.
    minutes
        Time after which no further trial is begun.
    output
        Folder of the search (default: results/tuning/DATASET-METHOD-tTASKS).
    search_seed
        Seed of the search and of the models in it.
    sampler
        tpe learns from earlier trials; random is the paper's randomised grid.
    search
        Settings to search, such as rate_scale or leak; all others stay (default: all that search.json names).
    share
        Share of every class that is held back to choose on.
    parameters
        CIRCLE: learnable and fixed numbers of the model (default: a ResNet-18's); 0 for half to twice the preset's.
    tolerance
        By how much of them it may differ.
    budget
        Rivals: seconds of learning that the epochs of every trial are fitted to.
    images_per_class
        Use the first so many training images of each class only.
    class_order_seed
        Seed of the class order.
    cache
        Folder for cached features (default: in the data folder).
    test
        Learn all training images with the chosen settings at the end, and look at the test images.
    """
    environment.require_one_process("bench tune", "several searches started one by one share the work of a folder")
    out, err = console.output(), console.messages()
    flags = settings or ModelFlags()
    check_folder(output)
    asked = flags.new_model(dataset) if method == CIRCLE else None
    images = open_dataset(
        dataset, data, image_size=flags.image_size, images_per_class=images_per_class, classifier=asked
    )
    store = feature_store(cache or True)
    assert store is not None
    request = TuneRequest(
        method=method,
        tasks=tasks,
        folder=output or Path("results") / "tuning" / f"{images.name}-{method}-t{tasks}",
        share=share,
        class_order_seed=class_order_seed,
        seed=search_seed,
        sampler=sampler,
        parameters=parameters or None,
        tolerance=tolerance,
        budget=budget,
        only=search,
        trials=trials,
        minutes=minutes,
    )
    tuning = new_tuning(
        request, images, lambda: flags.new_model(dataset), store, preset=flags.preset, rival=given(rival)
    )
    remark = "" if asked is None else form_remark(asked, images.image)
    console.notes(filter(None, [images.note, remark]), err)
    try:
        with stage_bars(err) as bars:
            bar: dict[str, TaskID] = {}

            def report(stage: Stage, done: int, best: float | None) -> None:
                if stage.name not in bar:
                    bar[stage.name] = bars.add_task(f"stage {stage.name}", total=trials, note="")
                shown = "" if best is None else f"best {100 * best:.2f} %"
                bars.update(bar[stage.name], completed=min(done, trials), note=shown)
                if bars.disable:
                    err.print(f"stage {stage.name}: {done} of {trials} trials, {shown}", soft_wrap=True)

            trying, done = tuning.run(report)
    except StoppedError:
        out.print(STOPPED.format("trials"))
        return 130
    chosen = tuning.chosen(trying)
    preset = write_all(tuning, trying, chosen, command_line())
    first = trying.finished(trying.stages[0])[0]
    given_settings = "" if first.value is None else f" (as given: {100 * first.value:.2f} %)"
    out.print(f"chosen: {100 * (chosen.value or 0.0):.2f} % on held-back images{given_settings}", soft_wrap=True)
    if not done:
        out.print(f"the time was up before all {trials} trials of each stage; run the same command again to resume")
    out.print(f"preset: {preset}", soft_wrap=True)
    if not test:
        return 0
    try:
        run(
            images,
            tasks=tasks,
            method=method,
            preset=preset,
            seeds=search_seed,
            output=request.folder / "test",
            label=f"{method}, tuned",
            class_order_seed=class_order_seed,
            cache=cache or True if method == CIRCLE else False,
            command=command_line(),
            progress=RunBars(out, err),
        )
    except StoppedError:
        return 130
    return 0
