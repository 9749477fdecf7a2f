"""circle bench tune"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from circle.baselines.trainer import TrainerConfig
from circle.benchmark import campaign, runner
from circle.benchmark.features import FeatureStore
from circle.benchmark.tuning.spaces import Stage
from circle.benchmark.tuning.tune import RESNET_18, TuneRequest, new_tuning
from circle.cli import command_line, console
from circle.cli.bench_runs import RivalFlags, base_model, run_job, stage_bars, summaries
from circle.cli.flags import ModelFlags, given
from circle.config import check_names
from circle.data.datasets import load_dataset
from circle.data.download import cache_folder
from circle.distributed import environment
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.registry import list_methods
from circle.report import tuning as record


def tune(
    *,
    dataset: str,
    tasks: str,
    method: str = campaign.CIRCLE,
    trials: int = 20,
    minutes: float | None = None,
    output: Path | None = None,
    search_seed: int = 0,
    sampler: Literal["tpe", "random"] = "tpe",
    search: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    share: float = 0.2,
    parameters: int = RESNET_18,
    tolerance: float = 0.05,
    budget: float | None = None,
    images_per_class: int | None = None,
    class_order_seed: int = 0,
    data_path: Path | None = None,
    cache: Annotated[Path | None, Parameter(negative=())] = None,
    test: bool = True,
    settings: ModelFlags | None = None,
    rival: RivalFlags = None,  # pyright: ignore
) -> int:
    """Choose a method's settings on a fifth of the training images, then learn all of them and look at the test once.

    A stopped search goes on when the command is given again; several processes may work on one folder. It ends
    with tuned.toml, which `circle bench run --preset` takes, search.json with every trial, and search.html.

    Parameters
    ----------
    dataset
        Name of a data set (`circle data list`).
    tasks
        Number of equal tasks, such as 10, or sizes such as 50+50x1.
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
    data_path
        Where the data set is, if not in the cache folder.
    cache
        Folder for cached features (default: in the data folder).
    test
        Learn all training images with the chosen settings at the end, and look at the test images.
    """
    environment.require_one_process("bench tune", "several searches started one by one share the work of a folder")
    out, err = console.output(), console.messages()
    flags = settings or ModelFlags()
    check_names([method], [campaign.CIRCLE, *list_methods()], "method")
    for name, value in (("trials", trials), ("minutes", minutes), ("budget", budget)):
        if value is not None and value <= 0:
            raise CircleError(f"{name} {value:g}: expected more than 0")
    console.check_folder(output)
    console.check_folder(cache)
    images = load_dataset(dataset, path=data_path, image_size=flags.image_size)
    if images_per_class is not None:
        images = images.balanced_part(images_per_class)
    folder = output or Path("results") / "tuning" / f"{images.name}-{method}-t{tasks}"
    request = TuneRequest(
        *(method, tasks, folder, share, class_order_seed, search_seed, sampler),
        parameters=parameters or None,
        tolerance=tolerance,
        budget=budget,
        only=search,
    )
    store = FeatureStore(cache or cache_folder() / "features")
    asked = campaign.Request(
        *((method,), (tasks,), (search_seed,), flags.preset, None, class_order_seed, ""), rival=given(rival)
    )
    if method == campaign.CIRCLE:
        tuning = new_tuning(request, images, classifier=base_model(flags, dataset), store=store)
    else:
        config = campaign.rival_config(asked, method, tasks, images)
        tuning = new_tuning(request, images, rival=config if isinstance(config, TrainerConfig) else None)
    trying = tuning.start()
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    bars = stage_bars(err)
    with bars, console.stop_requests() as stop:
        bar = {stage.name: bars.add_task(f"stage {stage.name}", total=trials, note="") for stage in trying.stages}

        def report(stage: Stage, done: int, best: float | None) -> None:
            shown = "" if best is None else f"best {100 * best:.2f} %"
            bars.update(bar[stage.name], completed=min(done, trials), note=shown)
            if bars.disable:
                err.print(f"stage {stage.name}: {done} of {trials} trials, {shown}", soft_wrap=True)

        done = trying.run(trials, deadline=deadline, should_stop=lambda: bool(stop), report=report)
        stopped = bool(stop)
    if stopped:
        out.print("stopped: finished trials are kept; give the same command again to go on")
        return 130
    chosen = tuning.chosen(trying)
    preset = record.write_all(tuning, trying, chosen, command_line())
    first = trying.finished(trying.stages[0])[0]
    begun = "" if first.value is None else f" (as given: {100 * first.value:.2f} %)"
    out.print(f"chosen: {100 * (chosen.value or 0.0):.2f} % on held-back images{begun}", soft_wrap=True)
    if not done:
        out.print(f"the time was up before all {trials} trials of each stage; give the command again to go on")
    out.print(f"preset: {preset}", soft_wrap=True)
    if not test:
        return 0
    final = campaign.Request(
        *((method,), (tasks,), (search_seed,), str(preset), f"{method}, tuned", class_order_seed, command_line())
    )
    stream = runner.Stream.of(images, class_order_seed)

    def new_classifier(seed: int) -> CircleClassifier:
        return CircleClassifier.from_preset(preset).set_params(seed=seed)

    for job in campaign.jobs(final, images, folder / "test", new_classifier):
        finished, stopped = run_job(job, stream, store if method == campaign.CIRCLE else None, err)
        for line in summaries(finished):
            out.print(line, soft_wrap=True)
        if stopped:
            return 130
    return 0
