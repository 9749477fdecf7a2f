"""circle bench ablation: the paper's studies of extractor, head and ensembling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from circle.benchmark.experiment import StoppedError, feature_store, open_dataset, seed_numbers
from circle.benchmark.jobs import Estimate
from circle.benchmark.results import check_folder
from circle.benchmark.selection import VALIDATION_SHARE, Choice
from circle.cli import command_line, console
from circle.cli.bench_shared import STOPPED, DatasetName, RunBars, stage_bars
from circle.cli.flags import ModelFlags
from circle.data.tasks import Stream
from circle.errors import CircleError, counted
from circle.paper import ablations
from circle.report import tables as report_tables
from circle.report.studies import collect_studies, shown_settings, study_table

LOG_WIDTH = 150  # columns of a table in a file, which has no edge that it could hit
STUDY_PRESET = "reservoir"  # the paper's studies are of BiRC2D, whatever the default model is


def ablation(
    study: ablations.Name,
    /,
    *,
    tasks: Annotated[list[str], Parameter(consume_multiple=True, negative=())],
    dataset: DatasetName = None,  # pyright: ignore[reportInvalidTypeForm]
    data: Annotated[Path | None, Parameter(negative=())] = None,
    seeds: str = "0",
    output: Path = Path("results"),
    variants: Annotated[Path | None, Parameter(negative=())] = None,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())] = None,
    head_size: int = 1024,
    projection: ablations.Projection = "linear",
    budget: int = 16,
    member_size: int = 512,
    all_splits: Annotated[bool, Parameter(negative=())] = False,
    validation: float = VALIDATION_SHARE,
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
    tasks
        Numbers of equal tasks, such as 20, or sizes such as 50+50x1.
    dataset
        Name of a data set (`circle data list`).
    data
        Images of your own, as `circle learn` takes them; with --dataset: where that one is, if not in the cache folder.
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
    class_order_seed
        Seed of the class order; it never touches the model.
    cache
        Folder for cached features (default: in the data folder).
    workers
        Processes that decode image files; 0 decodes in this one.
    """
    flags = settings or ModelFlags()
    flags = replace(flags, preset=flags.preset or STUDY_PRESET)
    if flags.seed is not None or flags.quantise is False:
        raise CircleError("a study takes its model seeds from --seeds, and quantised features: leave out --seed")
    if study == "ensemble" and (flags.groups or flags.members):
        raise CircleError("the ensemble study varies --groups and --members itself: give --budget instead")
    check_folder(output)
    made = ablations.make_study(
        study,
        flags.new_model(dataset),
        dataset=dataset or "",
        preset=str(flags.preset),
        sizes={"groups": flags.groups or 2, "members": flags.members or 1, "head_size": head_size},
        projection=projection,
        budget=budget,
        member_size=member_size,
        all_splits=all_splits,
        variants=variants,
        only=only or (),
    )
    request = ablations.StudyRequest(
        study=made,
        tasks=tuple(tasks),
        replicates=seed_numbers(seeds),
        share=validation,
        preset=flags.preset,
        class_order_seed=class_order_seed,
        command=command_line(),
        output=output,
    )
    images = open_dataset(dataset, data, image_size=flags.image_size, workers=workers)
    store = feature_store(cache or True)
    assert store is not None
    bars = StudyBars(console.output(), console.messages())
    try:
        runs = ablations.run_study(request, Stream.of(images, class_order_seed), store, bars)
    except StoppedError:
        bars.out.print(STOPPED.format("tasks"))
        return 130
    if not bars.out.is_terminal:
        bars.out.width = max(bars.out.width, LOG_WIDTH)
    for found in collect_studies(runs)[0]:
        table = study_table(found)
        bars.out.print(_printed(table))
        for note in table.footnotes:
            bars.out.print(note, soft_wrap=True)
    return 0


class StudyBars(RunBars, ablations.StudyProgress):
    """The bars of a study's runs, and of the choice of settings before them."""

    def study(self, study: ablations.Study, needed: Estimate) -> None:
        text = f"{study.name} study, {counted(len(study.variants), 'variant')}: about {console.size(needed.memory)}"
        self.err.print(f"{text} of memory, {console.size(needed.disk)} of disk for features", soft_wrap=True)

    def choosing(self, variant: ablations.Variant, what: str, done: int, total: int) -> None:
        if not self.bars.live.is_started:
            self.bars = stage_bars(self.err)
            self.bars.start()
            self.part = self.bars.add_task("", total=None, note="")
        self.bars.update(self.part, description=f"{variant.label}: {what}", completed=done, total=total)

    def chosen(self, variant: ablations.Variant, choice: Choice) -> None:
        self.bars.stop()
        settings = shown_settings(choice.settings, choice.at_the_edge) or "nothing to choose"
        text = f"{variant.label}: {settings}; {100 * choice.accuracy:.2f} % of held-back images"
        self.err.print(text, soft_wrap=True)


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
