"""circle advise"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

import circle
from circle.cli import command_line, console
from circle.cli.flags import ModelFlags
from circle.data.datasets import load_dataset
from circle.data.decode import ImageConfig
from circle.data.images import Images
from circle.data.user_images import open_images
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.paper.advise import (
    Advice,
    Allocation,
    Findings,
    PowerLaw,
    Request,
    study,
)
from circle.presets.published import DATASETS as PUBLISHED_DATASETS
from circle.presets.published import circle_preset
from circle.registry import resolve


def advise(
    data: Path | None = None,
    /,
    *,
    budget: int,
    dataset: str | None = None,
    members_measured: int | None = None,
    validation: float = 0.2,
    limit: int | None = None,
    seed_of_split: int = 0,
    partitions: int = 3,
    plot: Annotated[Path | None, Parameter(negative=())] = None,
    json_: Annotated[Path | None, Parameter(name="--json", negative=())] = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    workers: int = 0,
    device: str = "cpu",
    settings: ModelFlags | None = None,
) -> int:
    """Say how to spend a budget of n members: how many groups k (heads), and how many members m in each.

    Learns a part of the training images with many members at once and measures on the rest the squared bias B_m
    and the variance V_m of groups of m members. An ensemble of k groups then has the error B_m + V_m / k; the
    way to cut n = k m with the smallest one is recommended, beside the minimum of the paper's bound.

    Parameters
    ----------
    data
        Class folders, a zip of them, or an npz, as `circle learn` takes them; with --dataset: where that one is.
    budget
        n: members in all.
    dataset
        A data set of `circle data list`; its training part is used, its test images are not touched.
    members_measured
        Members to learn; more give better estimates and need more memory (default: the budget, at least 4).
    validation
        Share of each class that is held back to measure on.
    limit
        Use at most this many images.
    seed_of_split
        Seed of the choice of images; it never touches the model.
    partitions
        Ways of dividing the members into groups to average over, for each m.
    plot
        Write a picture, .png or .svg.
    json_
        Write all numbers.
    force
        Replace files that exist.
    workers
        Processes that decode a data set's image files; 0 decodes in this one.
    device
        Where PyTorch computes: cpu, cuda, ...
    """
    flags = settings or ModelFlags()
    for name in ("groups", "members"):
        if getattr(flags, name) is not None:
            raise CircleError(f"--{name}: leave it out, the budget is divided into groups and members here")
    request = Request(
        budget,
        max(budget, 4) if members_measured is None else members_measured,
        validation,
        limit,
        seed_of_split,
        partitions,
    )
    kind = console.picture_kind(plot)
    console.check_outputs([plot, json_], force=force)
    classifier = _new_classifier(flags, dataset).set_params(device=device)
    given = _open(data, dataset, flags, classifier, workers)
    out, err = console.output(), console.messages()
    console.notes(given.images.notes, err)
    started = time.perf_counter()
    with console.progress(err) as bar:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        findings = study(classifier, given.images, request, report, image=given.image, name=given.name)
    console.skipped(list(findings.unreadable), err)
    facts = {**_facts(findings, request, classifier, given), "seconds": time.perf_counter() - started}
    if json_ is not None:
        console.write_json(json_, facts)
    if plot is not None:
        from circle.report.advice import advice_figure  # matplotlib takes a while to import
        from circle.report.drawing import save

        save(advice_figure(findings.advice, f"{Path(given.name).name}: how to spend {budget} members"), plot, kind)
    out.print(_table(findings.advice))
    for line in _sentences(findings, request):
        out.print(line, soft_wrap=True)
    return 0


def _new_classifier(flags: ModelFlags, dataset: str | None) -> CircleClassifier:
    base = None
    if flags.preset == "paper" and dataset in PUBLISHED_DATASETS:
        # The published setting of this data set; it is the same for every number of tasks.
        base = CircleClassifier.from_settings(circle_preset(dataset, 10))
    return flags.new_model(base)


@dataclasses.dataclass(frozen=True)
class _Given:
    """The images to study, the shape that they are brought to, and what they are called."""

    images: Images
    image: ImageConfig
    name: str


def _open(
    data: Path | None, dataset: str | None, flags: ModelFlags, classifier: CircleClassifier, workers: int
) -> _Given:
    if dataset is not None:
        loaded = load_dataset(dataset, path=data, image_size=flags.image_size, workers=workers)
        return _Given(loaded.train, loaded.image, loaded.name)  # no image of its test part is ever read
    if data is None:
        raise CircleError("no images given: expected DATA, a path to labelled images, or --dataset NAME")
    return _Given(open_images(data), classifier.input_config(), str(data))


def _table(advice: Advice) -> Table:
    table = Table(title=f"{advice.budget} members: squared error of k groups of m", title_justify="left", box=None)
    for heading in ("m", "k", "B_m", "V_m", "predicted", "measured", "bound", "accuracy"):
        table.add_column(heading, justify="right")
    table.add_column("B_m, V_m")
    for each in advice.allocations:
        ensemble = each.ensemble
        table.add_row(
            *(str(each.members), str(each.groups)),
            *(f"{value:.4f}" for value in (each.bias, each.variance, each.predicted)),
            "-" if ensemble is None else f"{ensemble.error:.4f}",
            f"{each.bound:.4f}",
            "-" if ensemble is None else f"{100 * ensemble.accuracy:.2f} %",
            each.origin,
            style="bold" if each is advice.best else None,
        )
    return table


def _sentences(findings: Findings, request: Request) -> list[str]:
    advice, best = findings.advice, findings.advice.best
    lines = [
        f"judged on {findings.validated:,} images held back from {findings.validated + findings.learned:,} of "
        f"{findings.classes:,} classes, with {request.available} members of {findings.member_size:,} features",
        f"recommended: {_cut(best)} (--groups {best.groups} --members {best.members}), "
        f"predicted error {best.predicted:.4f} ({_origin(best)})",
    ]
    judged = [(each.ensemble.accuracy, each) for each in advice.allocations if each.ensemble is not None]
    if judged:
        accuracy, most = max(judged, key=lambda pair: pair[0])
        lines.append(f"most accurate on the images held back: {_cut(most)}, {100 * accuracy:.2f} %")
    lines += _paper(advice)
    if any(each.origin == "extrapolated" for each in advice.allocations) and advice.laws.bias is not None:
        lines.append(f"B_m where nothing was measured: the law with {_law(advice.laws.bias)}; {advice.laws.reason}")
    if advice.unknown:
        lines.append(f"nothing can be said of m = {', '.join(map(str, advice.unknown))}")
    return lines


def _paper(advice: Advice) -> list[str]:
    """What the paper's bound says, which takes V_m for 1."""
    if advice.laws.power is None:
        return [advice.laws.reason]
    largest = max(each.variance for each in advice.allocations)
    lines = [
        f"the paper's bound A m^(-2 alpha) + m/n with {_law(advice.laws.power)} is smallest at m* = "
        f"{advice.best_real_members:.2f}; it takes V_m for 1, here that is at most {largest:.3f}"
    ]
    if advice.laws.floor is not None and advice.laws.floor.floor:
        lines.append(
            f"with a floor added for the label noise, {_law(advice.laws.floor)}, it is smallest at m* = "
            f"{advice.best_real_members_above_floor:.2f}"
        )
    return lines


def _cut(allocation: Allocation) -> str:
    return f"k = {allocation.groups} group{'s' if allocation.groups > 1 else ''} of m = {allocation.members}"


def _origin(allocation: Allocation) -> str:
    return {
        "measured": "B_m and V_m measured",
        "sum measured": "B_m + V_m measured",
        "extrapolated": "B_m and V_m extrapolated",
    }[allocation.origin]


def _law(law: PowerLaw) -> str:
    floor = f"F = {law.floor:.3g}, " if law.floor else ""
    return f"{floor}A = {law.amplitude:.3g}, alpha = {law.alpha:.3g}"


def _facts(findings: Findings, request: Request, classifier: CircleClassifier, given: _Given) -> dict[str, Any]:
    """All numbers as plain data, with what it takes to get them again."""
    return {
        **findings.to_dict(),
        "data": given.name,
        "request": dataclasses.asdict(request),
        "extractor": resolve("extractor", classifier.extractor).to_dict(),
        "head": resolve("head", classifier.head).to_dict(),
        "image": given.image.to_dict(),
        "seed": classifier.seed,
        "quantise": classifier.quantise,
        "version": circle.__version__,
        "command": command_line(),
    }
