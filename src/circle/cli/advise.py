"""circle advise"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from circle.benchmark.experiment import form_remark
from circle.cli import command_line, console
from circle.cli.bench_shared import DatasetName
from circle.cli.flags import ModelFlags
from circle.data.datasets import load_dataset
from circle.data.decode import ImageConfig
from circle.data.images import Images
from circle.data.user_images import open_images
from circle.errors import CircleError
from circle.heads import SubspaceQDAConfig
from circle.learner import CircleClassifier
from circle.learning import suited
from circle.paper.advise import (
    Advice,
    AdviceRequest,
    advice_record,
    explanation,
    recommend_allocation,
)


def advise(
    data: Path | None = None,
    *,
    budget: int,
    dataset: DatasetName = None,  # pyright: ignore[reportInvalidTypeForm]
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
    request = AdviceRequest(
        budget=budget,
        available=max(budget, 4) if members_measured is None else members_measured,
        validation=validation,
        limit=limit,
        split_seed=seed_of_split,
        partitions=partitions,
    )
    kind = console.picture_kind(plot)
    console.check_outputs([plot, json_], force=force)
    classifier = flags.new_model(dataset).set_params(device=device)
    given = _open(data, dataset, flags, classifier, workers)
    classifier = given.classifier
    out, err = console.output(), console.messages()
    console.notes([*given.images.notes, *given.notes], err)
    head = classifier.head_config()
    if isinstance(head, SubspaceQDAConfig) and "name" not in flags.given().get("head", {}):
        # Its statistics mix all features, so those of a group cannot be had from those of all members.
        classifier.set_params(head=head.without_class_covariances())
    started = time.perf_counter()
    with console.progress(err) as bar:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        findings = recommend_allocation(classifier, given.images, request, report, image=given.image, name=given.name)
    if classifier.head_config() != head:
        console.remark(err, "note", f"groups were judged with the head slda, which {head.name} only corrects")
    console.skipped(list(findings.unreadable), err)
    if json_ is not None:
        record = advice_record(findings, request, classifier, given.image, given.name, command_line())
        console.write_json(json_, {**record, "seconds": time.perf_counter() - started})
    if plot is not None:
        from circle.report.advice import advice_figure  # matplotlib takes a while to import
        from circle.report.drawing import save

        save(advice_figure(findings.advice, f"{Path(given.name).name}: how to spend {budget} members"), plot, kind)
    out.print(_table(findings.advice))
    for line in explanation(findings, request):
        out.print(line, soft_wrap=True)
    return 0


@dataclass(frozen=True)
class _Given:
    """The images to study, the shape they are brought to, what they are called, and the settings that suit them."""

    images: Images
    image: ImageConfig
    name: str
    classifier: CircleClassifier
    notes: list[str]


def _open(
    data: Path | None, dataset: str | None, flags: ModelFlags, classifier: CircleClassifier, workers: int
) -> _Given:
    if dataset is not None:
        loaded = load_dataset(dataset, path=data, image_size=flags.image_size, workers=workers)
        suited_to = classifier.with_form(loaded.image.height, loaded.image.width)
        note = form_remark(classifier, loaded.image)
        # No image of its test part is ever read.
        return _Given(loaded.train, loaded.image, loaded.name, suited_to, [note] if note else [])
    if data is None:
        raise CircleError("no data given: expected --data, a path to labelled images, or --dataset with a name")
    images = open_images(data)
    classifier, notes = suited(classifier, images)
    return _Given(images, classifier.input_config(), str(data), classifier, notes)


def _table(advice: Advice) -> Table:
    table = Table(title=f"{advice.budget} members: squared error of k groups of m", title_justify="left", box=None)
    for heading in ("m", "k", "B_m", "V_m", "predicted", "measured", "bound", "accuracy"):
        table.add_column(heading, justify="right")
    table.add_column("B_m, V_m")
    for each in advice.allocations:
        ensemble = each.ensemble
        table.add_row(
            str(each.members),
            str(each.groups),
            f"{each.bias:.4f}",
            f"{each.variance:.4f}",
            f"{each.predicted:.4f}",
            "-" if ensemble is None else f"{ensemble.error:.4f}",
            f"{each.bound:.4f}",
            "-" if ensemble is None else f"{100 * ensemble.accuracy:.2f} %",
            each.origin,
            style="bold" if each is advice.best else None,
        )
    return table
