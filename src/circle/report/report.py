"""The report of a set of runs: a self-contained HTML page, Markdown, and figures as PNG and SVG.

It has a section of tables and figures for each data set and for each study on it, and names the runs behind them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from circle.benchmark.metrics import DEFINITIONS
from circle.benchmark.results import Run
from circle.errors import CircleError
from circle.paper import published_results as published
from circle.report import drawing, figures
from circle.report.html import html_page
from circle.report.markdown import markdown_page
from circle.report.studies import (
    NAMES,
    StudyCells,
    ablation_tables,
    collect_studies,
    ensembling_tables,
    study_figure,
    study_of,
    study_table,
)
from circle.report.tables import (
    AVERAGE,
    FINAL,
    Cell,
    Table,
    check_runs,
    collect,
    cost_table,
    data_names,
    dataset_name,
    main_table,
    retention_table,
    same_but,
    stopped_table,
)
from circle.runtime.container import atomic_path

SHOWN_METRICS = {
    "accuracy_after_task": "accuracy over the stream",
    "average_incremental_accuracy": f"average incremental accuracy, {AVERAGE}",
    "final_accuracy": f"final accuracy, {FINAL}",
    "first_task_accuracy": "first-task accuracy",
    "forgetting": "forgetting",
}
STREAM_FIGURES = (
    ("stream", figures.stream_figure, "accuracy over the stream"),
    ("first-task", figures.first_task_figure, "first-task accuracy over the stream"),
    ("wall-clock", figures.wall_clock_figure, "accuracy against wall clock"),
)
READING = (
    "Values measured here are the mean over n seeds, ± their sample standard deviation where there are at least two. "
    "Among them the best of each column is bold and the second is underlined, where there are two to compare.",
    "“paper” marks the published value, with the paper's own marks; rows in grey (in Markdown with names in italics) "
    "hold published values only: nothing in them was measured here. The paper's means are over "
    f"{published.seeds('main')} seeds ({published.seeds('training_time')} for times).",
    "T is the number of tasks; a split such as 50+50x1 is a first task of 50 classes and 50 tasks of one.",
)


@dataclass(frozen=True, eq=False)
class Picture:
    """A drawn figure and its name, without ending, in the folder of figures."""

    name: str
    caption: str
    figure: Figure
    wide: bool = False  # it has two panels


@dataclass(eq=False)
class Section:
    """What a report says of one data set, or of a study on it."""

    title: str
    dataset: str
    tables: list[Table]
    pictures: list[Picture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, figure: Figure | None, caption: str, names: set[str], wide: bool = False) -> None:
        """Add a figure, if there was anything to draw, under a file name that no other figure has."""
        if figure:
            self.pictures.append(Picture(_file_name(name, names), caption, figure, wide))


@dataclass(eq=False)
class Report:
    """All that the page and the Markdown show, in this order."""

    sections: list[Section]
    stopped: Table | None
    runs: list[Run]
    repeated: list[Run]
    title: str = "Class-incremental benchmark"
    reading: tuple[str, ...] = READING  # how to read the tables

    @property
    def definitions(self) -> dict[str, str]:
        """What each metric means, by the name that the report gives it."""
        return {shown: DEFINITIONS[name] for name, shown in SHOWN_METRICS.items()}


def build_report(runs: Sequence[Run]) -> Report:
    """Everything that a report shows, before anything is written.

    Runs of a study have sections of their own: beside the methods of the main tables they would be clutter.
    """
    check_runs(runs)
    plain = [run for run in runs if study_of(run) is None]
    names = data_names(runs)
    cells, repeated = collect(plain, names)
    studies, repeated_studies = collect_studies(runs, names)
    repeated = repeated + repeated_studies
    datasets = dict.fromkeys([cell.dataset for cell in cells] + [study.dataset for study in studies])
    files: set[str] = set()
    sections: list[Section] = []
    for dataset in datasets:
        here = [cell for cell in cells if cell.dataset == dataset]
        sections += [_section(here, files)] if here else []
        sections += _study_sections([study for study in studies if study.dataset == dataset], files)
    left_out = {id(run) for run in repeated}
    return Report(sections, stopped_table([run for run in runs if id(run) not in left_out]), list(runs), repeated)


def _study_sections(studies: Sequence[StudyCells], names: set[str]) -> list[Section]:
    """A section for each kind of study on one data set."""
    sections: list[Section] = []
    for kind in dict.fromkeys(study.name for study in studies):
        here = [study for study in studies if study.name == kind]
        dataset = dataset_name(here[0].dataset)
        section = Section(f"{dataset}: {NAMES[kind]}", dataset, [study_table(study) for study in here])
        for study in here:
            name = f"{study.dataset}-T{study.tasks}-{kind}-study"
            section.add(name, study_figure(study), f"{study.title}.", names, wide=kind != "ensemble")
        sections.append(section)
    return sections


def _section(cells: list[Cell], names: set[str]) -> Section:
    """Tables and figures of one data set."""
    dataset = cells[0].dataset
    # Several sizes of one ensemble under one label are a sweep, not methods: the largest stands for it here.
    variants = _variants(cells)
    methods = [cell for cell in cells if cell.named or cell not in variants]
    name = dataset_name(dataset)
    section = Section(name, name, [main_table(methods), cost_table(methods), retention_table(methods)])
    section.tables += ablation_tables("extractor", cells) + ablation_tables("head", cells) + ensembling_tables(cells)
    for tasks in dict.fromkeys(cell.tasks for cell in cells):
        here = [cell for cell in methods if cell.tasks == tasks]
        shown = figures.choose(here, variants)
        rest = f" {len(shown)} of {len(here)} methods are drawn." if len(shown) < len(here) else ""
        for kind, draw, title in STREAM_FIGURES:
            title = f"{dataset_name(dataset)}, T = {tasks}: {title}"
            section.add(f"{dataset}-T{tasks}-{kind}", draw(shown, title), f"{title}.{rest}", names)
    for group in same_but(cells, "groups", "members"):
        title = f"{dataset_name(dataset)}, T = {group[0].tasks}: accuracy against k and m"
        figure = figures.ensembling_figure(group, title)
        section.add(f"{dataset}-T{group[0].tasks}-ensembling", figure, f"{title}.", names, wide=True)
    section.notes += _notes(cells)
    return section


def _variants(cells: list[Cell]) -> list[Cell]:
    """Cells that an ablation made: they have tables and figures of their own."""
    variants: list[Cell] = []
    for part, key_of, ours in (
        ("extractor", published.extractor_key, "birc2d_circle"),
        ("head", published.head_key, "slda_circle"),
    ):
        for group in same_but(cells, part):
            variants += [cell for cell in group if key_of(cell.config[part]) != ours]
    for group in same_but(cells, "groups", "members"):
        # The largest ensemble stands for the method; of equally large ones the most balanced.
        largest = max(group, key=_ensemble_size)
        variants += [cell for cell in group if cell is not largest]
    return variants


def _ensemble_size(cell: Cell) -> tuple[int, int]:
    groups, members = cell.config["groups"], cell.config["members"]
    return groups * members, -abs(groups - members)


def _notes(cells: list[Cell]) -> list[str]:
    """What the paper says in words only."""
    dataset = cells[0].dataset
    splits = {cell.tasks for cell in cells}
    notes: list[str] = []
    speedup = published.speedup_claim(dataset)
    if speedup and "20" in splits:
        notes.append(f"The paper's CIRCLE learned {speedup} times as fast as its second fastest method, at T = 20.")
    if dataset == "imagenet1k" and "500" in splits:
        claims = published.long_stream_claims()
        forgotten, days = claims["first_task_forgotten_after_tasks"], claims["stopped_after_days"]
        notes.append(
            "The paper shows T = 500 as curves without numbers. Its text says that first-task accuracy was zero after "
            f"about {forgotten['efc_plus_plus']} tasks for EFC++ and {forgotten['adagauss']} for AdaGauss, that EFC++ "
            f"was stopped after about {days['efc_plus_plus']} days, and that AdaGauss failed at about task "
            f"{claims['failed_at_task']['adagauss']}."
        )
    return notes


def _file_name(text: str, names: set[str]) -> str:
    """A file name that is safe everywhere and not yet taken."""
    plain = re.sub(r"[^A-Za-z0-9+_-]+", "-", text).strip("-")[:100] or "figure"
    name, number = plain, 2
    while name in names:
        name, number = f"{plain}-{number}", number + 1
    names.add(name)
    return name


@dataclass(frozen=True)
class ReportFiles:
    """What was written."""

    html: Path
    markdown: Path
    figures: tuple[Path, ...]


def write_report(runs: Sequence[Run], output: Path | str) -> ReportFiles:
    """Write ``report.html``, ``report.md`` and ``figures/`` into a folder, which is made where it is missing.

    Runs of the same data set, label and split are seeds of one method. Every file is replaced in one step; the
    page embeds its figures and asks for nothing from elsewhere.

    Parameters
    ----------
    runs
        What ``circle.benchmark.run`` or ``read_runs`` returned; at least one.
    output
        Folder for the report.

    Returns
    -------
    ReportFiles
        Paths of the page, the Markdown and the figures.

    Examples
    --------
    ``write_report(read_runs(["results"]), "report")``
    """
    report = build_report(runs)
    folder = Path(output)
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CircleError(f"{output}: cannot be the report's folder ({error.strerror})") from error
    paths: list[Path] = []
    for picture in (picture for section in report.sections for picture in section.pictures):
        for kind in ("png", "svg"):
            path = folder / "figures" / f"{picture.name}.{kind}"
            drawing.save(picture.figure, path, kind)
            paths.append(path)
    files = ReportFiles(folder / "report.html", folder / "report.md", tuple(paths))
    images = {path.stem: path.read_bytes() for path in paths if path.suffix == ".svg"}
    for path, text in ((files.html, html_page(report, images)), (files.markdown, markdown_page(report))):
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return files
