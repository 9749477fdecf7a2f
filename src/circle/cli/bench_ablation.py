"""circle bench ablation: the paper's studies of extractor, head and ensembling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from circle.benchmark.features import FeatureStore
from circle.benchmark.results import Run
from circle.benchmark.selection import VALIDATION_SHARE, Choice
from circle.cli import command_line, console
from circle.cli.bench_runs import STOPPED, base_model, numbers, run_job, stage_bars, summaries
from circle.cli.flags import ModelFlags
from circle.data.datasets import load_dataset
from circle.data.download import cache_folder
from circle.data.tasks import Stream
from circle.errors import CircleError
from circle.paper import ablations
from circle.paper.ablations import (
    Projection,
    StudyRequest,
    Variant,
    ensemble_study,
    extractor_study,
    head_study,
    with_file,
)
from circle.report import tables as report_tables
from circle.report.studies import collect_studies, shown_settings, study_table

LOG_WIDTH = 150
STUDY_PRESET = "reservoir"  # the paper's studies are of BiRC2D, whatever the default model is


def ablation(
    study: Literal["extractor", "head", "ensemble"],
    /,
    *,
    dataset: str,
    tasks: Annotated[list[str], Parameter(consume_multiple=True, negative=())],
    seeds: str = "0",
    output: Path = Path("results"),
    variants: Annotated[Path | None, Parameter(negative=())] = None,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    head_size: int = 1024,
    projection: Projection = "linear",
    budget: int = 16,
    member_size: int = 512,
    all_splits: Annotated[bool, Parameter(negative=())] = False,
    validation: float = VALIDATION_SHARE,
    data_path: Path | None = None,
    class_order_seed: int = 0,
    cache: Annotated[Path | None, Parameter(negative=())] = None,
    workers: int = 0,
    settings: ModelFlags | None = None,
) -> int:
    """Vary one choice and keep the rest; the head's settings are chosen on held-back training images.

    Parameters
    ----------
    study
        extractor (all of them under SLDA), head (all of them on BiRC2D) or ensemble (k heads of m members, k m fixed).
    dataset
        Name of a data set (`circle data list`).
    tasks
        Numbers of equal tasks, such as 20, or sizes such as 50+50x1.
    seeds
        Replicates, such as 0-4. Replicate r has the model seed r k m, so that no two of them share an extractor.
    output
        Folder for the records: a folder for the study, in it one for each variant, in it one a seed.
    variants
        TOML file with more variants for the extractor study: [[variant]] with key, label, extractor and perhaps head.
    only
        Some variants, by the names of their folders.
    head_size
        Values that each head sees, for the extractor and head studies; --groups (2) and --members (1) go with it.
    projection
        Last step of every extractor: a linear random projection, or one with a ReLU.
    budget
        Extractors in all, for the ensemble study.
    member_size
        Values that each of them gives, for the ensemble study.
    all_splits
        In the ensemble study all ways to share out the extractors instead of three.
    validation
        Share of the training images of every class that is held back to choose the head's settings.
    data_path
        Where the data set is, if not in the cache folder.
    class_order_seed
        Seed of the class order; it never touches the model.
    cache
        Folder for cached features (default: in the data folder).
    workers
        Processes that decode image files; 0 decodes in this one.
    """
    out, err = console.output(), console.messages()
    console.check_folder(output)
    console.check_folder(cache)
    flags = settings or ModelFlags()
    flags = replace(flags, preset=flags.preset or STUDY_PRESET)
    base = base_model(flags, dataset)
    if flags.seed is not None or flags.quantise is False:
        raise CircleError("a study takes its model seeds from --seeds, and quantised features: leave out --seed")
    if variants and study != "extractor":
        raise CircleError("--variants is for the extractor study")
    sizes = {"groups": flags.groups or 2, "members": flags.members or 1, "head_size": head_size}
    if study == "ensemble":
        if flags.groups or flags.members:
            raise CircleError("the ensemble study varies --groups and --members itself: give --budget instead")
        made = ensemble_study(base, extractors=budget, size=member_size, projection=projection, all_splits=all_splits)
    elif study == "head":
        made = head_study(base, **sizes, projection=projection)
    else:
        made = extractor_study(dataset, base, str(flags.preset), **sizes, projection=projection)
        made = with_file(made, variants) if variants else made
    request = StudyRequest(
        made.only(only) if only else made,
        tuple(tasks),
        numbers(seeds),
        validation,
        flags.preset,
        class_order_seed,
        command_line(),
        output,
    )
    images = load_dataset(dataset, path=data_path, image_size=flags.image_size, workers=workers)
    return _run(
        request, Stream.of(images, class_order_seed), FeatureStore(cache or cache_folder() / "features"), out, err
    )


def _run(request: StudyRequest, stream: Stream, store: FeatureStore, out: Console, err: Console) -> int:
    """All variants of a study, one after the other."""
    needed = ablations.check(request, stream, store)
    err.print(
        f"{request.study.name} study, {len(request.study.variants)} variants: about {console.size(needed.memory)} of "
        f"memory, {console.size(needed.disk)} of disk for features",
        soft_wrap=True,
    )
    runs: list[Run] = []
    for variant in request.study.variants:
        choice = _choose(request, variant, stream, store, err)
        chosen = shown_settings(choice.settings, choice.at_the_edge) or "nothing to choose"
        err.print(f"{variant.label}: {chosen}; {100 * choice.accuracy:.2f} % of held-back images", soft_wrap=True)
        for job in ablations.study_jobs(request, variant, choice, stream):
            finished, stopped = run_job(job, stream, store, err)
            for line in summaries(finished):
                out.print(line, soft_wrap=True)
            if stopped:
                out.print(STOPPED)
                return 130
            runs.append(finished)
    if not out.is_terminal:
        out.width = max(out.width, LOG_WIDTH)  # a file has no edge that a table could hit
    for found in collect_studies(runs)[0]:
        table = study_table(found)
        out.print(_printed(table))
        for note in table.footnotes:
            out.print(note, soft_wrap=True)
    return 0


def _printed(table: report_tables.Table) -> Table:
    """A report's table on the terminal."""
    printed = Table(title=table.title)
    for heading in table.headings:
        printed.add_column(heading, overflow="fold")
    for row in table.rows:
        printed.add_row(*map(_field, row.entries), style="dim" if row.muted else None)
    return printed


def _field(entry: report_tables.Entry) -> Text:
    """A field as rich writes it, the paper's value on a line of its own."""
    styles = {"best": "bold", "second": "underline", "": ""}
    own = Text.assemble((entry.text, styles[entry.mark]), f" ({entry.note})" if entry.note else "")
    paper = Text(f"paper {entry.paper}" if entry.paper else "")
    return Text("\n").join(part for part in (own, paper) if part)


def _choose(request: StudyRequest, variant: Variant, stream: Stream, store: FeatureStore, err: Console) -> Choice:
    """The settings of a variant, with a bar while they are sought."""
    with stage_bars(err) as bars:
        bar = bars.add_task(variant.label, total=None, note="")
        return ablations.chosen_settings(
            request,
            variant,
            stream,
            store,
            lambda what, done, total: bars.update(
                bar, description=f"{variant.label}: {what}", completed=done, total=total
            ),
        )
