"""Studies in a report, as tables and figures: variants of one choice beside the paper's, and whether orders agree."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circle.benchmark.results import Run
from circle.paper import published_results as published
from circle.paper.published_results import Metric, PublishedValue
from circle.report.drawing import STYLES, dress, new_figure, safe_text
from circle.report.tables import (
    AVERAGE,
    FINAL,
    METRICS,
    MISSING,
    Cell,
    Entry,
    Summary,
    Table,
    TableRow,
    beside,
    comparable,
    count_stopped,
    data_names,
    dataset_name,
    measured,
    same_but,
    summarise,
)

NAMES = {"extractor": "extractor ablation", "head": "head ablation", "ensemble": "ensembling"}
SYMBOLS: dict[published.Metric, str] = {"average": AVERAGE, "final": FINAL}


@dataclass(frozen=True, eq=False)
class StudyCells:
    """The variants of one study at one size, on one split of one data set, in the order of the paper's table."""

    name: str
    dataset: str
    tasks: str
    budget: dict[str, Any]
    cells: tuple[Cell, ...]

    @property
    def title(self) -> str:
        size = ", ".join(_BUDGET.get(name, name + " {}").format(value) for name, value in self.budget.items())
        return f"{dataset_name(self.dataset)}, T = {self.tasks}: {NAMES[self.name]} with {size}"

    def summaries(self, metric: published.Metric) -> list[Summary | None]:
        return [cell.summary(dict(METRICS)[metric]) for cell in self.cells]

    def paper(self, metric: published.Metric) -> list[PublishedValue | None]:
        """The published value of each variant, where there is one."""
        return [_paper_value(self, cell, metric) for cell in self.cells]


_BUDGET = {
    "groups": "k = {}",
    "members": "m = {}",
    "head_size": "{} values a head",
    "extractors": "k m = {}",
    "member_size": "{} values a member",
    "projection": "{} projection",
}


def study_of(run: Run) -> dict[str, Any] | None:
    """What a run's record says of the study it belongs to, if it belongs to one that is known here."""
    study = run.info.get("study")
    known = isinstance(study, dict) and study.get("name") in NAMES and isinstance(study.get("budget"), dict)
    return study if known else None


def collect_studies(runs: Sequence[Run], names: Mapping[int, str] | None = None) -> tuple[list[StudyCells], list[Run]]:
    """All studies among the runs, and the runs left out because another repeats their seed.

    A study is one name, size, data set and split; head and ensembling also have one extractor. Within it the
    runs of one variant with one config are its seeds. ``names`` has the data sets'.
    """
    names = names or data_names(runs)
    found: dict[tuple[str, ...], dict[str, dict[Any, Run]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        study = study_of(run)
        if study is None:
            continue
        config = {name: value for name, value in run.info["config"].items() if name != "seed"}
        shared = None if study["name"] == "extractor" else config.get("extractor")
        variant = json.dumps([study.get("variant"), config], sort_keys=True)
        for tasks in map(str, run.info["tasks"]):
            place = (study["name"], names[id(run)], tasks)
            seeds = found[*place, json.dumps(study["budget"]), json.dumps(shared, sort_keys=True)][variant]
            seed = (run.info["seed"], run.info.get("class_order_seed"))
            other = seeds.setdefault(seed, run)
            if len(run.rows) > len(other.rows):
                seeds[seed] = run
    studies: list[StudyCells] = []
    for (name, dataset, tasks, budget, _), variants in found.items():
        cells = [
            Cell(dataset, tasks, str(next(iter(seeds.values())).info["label"]), tuple(seeds.values()))
            for seeds in variants.values()
        ]
        cells.sort(key=lambda cell: _rank(name, cell))
        studies.append(StudyCells(name, dataset, tasks, json.loads(budget), tuple(cells)))
    studies.sort(key=lambda study: (list(NAMES).index(study.name), study.tasks))
    used = {id(run) for study in studies for cell in study.cells for run in cell.runs}
    return studies, [run for run in runs if study_of(run) and id(run) not in used]


def study_table(study: StudyCells) -> Table:
    """Accuracies, the settings that were chosen, and where the order of the variants is not the paper's."""
    forms = {"extractor": "{:.1f} ± {:.1f}", "head": "{:.2f} ± {:.1f}", "ensemble": "{:.2f} ± {:.2f}"}
    columns: list[list[Entry]] = []
    for metric, _ in METRICS:
        entries = [
            count_stopped(entry, cell)
            for entry, cell in zip(measured(study.summaries(metric)), study.cells, strict=True)
        ]
        papers = study.paper(metric)
        columns.append([beside(entry, paper, forms[study.name]) for entry, paper in zip(entries, papers, strict=True)])
    seconds = measured([cell.seconds()[0] for cell in study.cells], lowest=True, notes=False)
    rows = [
        TableRow((Entry(cell.label), average, final, *_choice(cell), time))
        for cell, average, final, time in zip(study.cells, *columns, seconds, strict=True)
    ]
    rows += _unmeasured_variants(study, forms[study.name])
    return Table(
        title=f"{study.title} (%)",
        headings=(
            "variant",
            AVERAGE,
            FINAL,
            "chosen settings",
            "accuracy on held-back training images",
            "learning (s)",
        ),
        rows=tuple(rows),
        note=_study_note(study),
        footnotes=tuple(order_notes(study)),
    )


def order_notes(study: StudyCells) -> list[str]:
    """For each metric that the paper has: which neighbours stand the other way round than in the paper."""
    notes: list[str] = []
    for metric, symbol in SYMBOLS.items():
        rows = [
            (cell.label, ours.mean, paper.mean)
            for cell, ours, paper in zip(study.cells, study.summaries(metric), study.paper(metric), strict=True)
            if ours and paper
        ]
        if len(rows) < 2:
            continue
        swapped = swapped_neighbours(rows)
        shown = "; ".join(
            f"{above[0]} above {below[0]} ({above[1]:.2f} against {below[1]:.2f}, paper {above[2]} against {below[2]})"
            for above, below in swapped
        )
        notes.append(
            f"Order by {symbol}: differs from the paper's order: {shown}."
            if swapped
            else f"Order by {symbol}: as in the paper."
        )
    return notes


Ranked = tuple[str, float, float]  # variant, value measured here, published value


def swapped_neighbours(rows: Sequence[Ranked]) -> list[tuple[Ranked, Ranked]]:
    """Pairs that follow each other in our order, best first, and stand the other way round in the paper.

    There are none exactly if the whole order is compatible with the paper's.

    >>> swapped_neighbours([("a", 3.0, 30.0), ("b", 2.0, 10.0), ("c", 1.0, 20.0)])
    [(('b', 2.0, 10.0), ('c', 1.0, 20.0))]
    """
    # Equal ones among ours are put in the paper's order: a tie is no difference.
    ranked = sorted(rows, key=lambda row: (-row[1], -row[2]))
    return [(above, below) for above, below in pairwise(ranked) if above[2] < below[2]]


def _choice(cell: Cell) -> tuple[Entry, Entry]:
    """The settings that were chosen, and how well they did on held-back training images."""
    study = study_of(cell.runs[0]) or {}
    settings = shown_settings(study.get("selected") or {}, study.get("at_the_edge") or ())
    values = {accuracy for run in cell.runs if (accuracy := (study_of(run) or {}).get("validation_accuracy"))}
    (accuracy,) = measured([summarise([100 * value for value in values])], notes=False)
    return Entry(settings or MISSING), accuracy


def shown_settings(settings: Mapping[str, Any], at_the_edge: Sequence[str] = ()) -> str:
    """Settings in words: numbers without needless digits, switches as yes or no, and whether others may do better.

    >>> shown_settings({"ridge": 0.0001, "intercept": True}, ["ridge"])
    'ridge 0.0001 (edge), intercept yes'
    """
    texts: list[str] = []
    for name, value in settings.items():
        shown = ("yes" if value else "no") if isinstance(value, bool) else f"{value:g}"
        texts.append(f"{name} {shown}" + (" (edge)" if name in at_the_edge else ""))
    return ", ".join(texts)


def _rank(name: str, cell: Cell) -> tuple[Any, ...]:
    """The paper's order; what it lacks comes after, ensembles by the size of their groups."""
    if name == "ensemble":
        return (cell.config["members"],)
    names = list(published.EXTRACTORS if name == "extractor" else published.HEADS)
    key = _key(name, cell)
    return (names.index(key) if key in names else len(names), cell.label)


def _key(name: str, cell: Cell) -> str | None:
    config = cell.config.get(name) or {}
    return published.extractor_key(config) if name == "extractor" else published.head_key(config)


def _paper_value(study: StudyCells, cell: Cell, metric: published.Metric) -> PublishedValue | None:
    if not comparable(cell):
        return None
    if study.name == "ensemble":
        k, m = cell.config["groups"], cell.config["members"]
        return published.ensembling_result(study.dataset, study.tasks, k, m) if metric == "average" else None
    key = _key(study.name, cell)
    ablation: published.Ablation = "extractor" if study.name == "extractor" else "head"
    return published.ablation_result(ablation, study.dataset, study.tasks, key, metric) if key else None


def _unmeasured_variants(study: StudyCells, form: str) -> list[TableRow]:
    """Variants of the paper that were not measured here."""
    if study.name == "ensemble" or not comparable(study.cells[0]):
        return []
    ablation: published.Ablation = "extractor" if study.name == "extractor" else "head"
    known = {_key(study.name, cell) for cell in study.cells}
    rows: list[TableRow] = []
    for key, label in (published.EXTRACTORS if study.name == "extractor" else published.HEADS).items():
        values = [published.ablation_result(ablation, study.dataset, study.tasks, key, metric) for metric, _ in METRICS]
        if key not in known and any(values):
            fields = (beside(Entry(), value, form) for value in values)
            rows.append(TableRow((Entry(label), *fields, Entry(), Entry(), Entry()), muted=True))
    return rows


def _study_note(study: StudyCells) -> str:
    """What is the same for all variants, and what differs from the paper."""
    first = study_of(study.cells[0].runs[0]) or {}
    share = first.get("validation_share")
    held = f" on {100 * share:g} % of the training images, held back," if share else ""
    return (
        f"All variants have the same size. The head's settings were chosen for each variant{held} with the first seed, "
        "and serve all its seeds; the test images had no part in it (“edge”: the smallest or largest value that was "
        "tried, so that others might do better still). The paper tuned sizes and settings for each "
        "variant, so its values are of other sizes: what can be compared is the order."
    )


def ablation_tables(ablation: published.Ablation, cells: Sequence[Cell]) -> list[Table]:
    """A table for every group of cells that differ in nothing but the extractor, or the head."""
    if ablation == "extractor":
        names, key_of, form, other = published.EXTRACTORS, published.extractor_key, "{:.1f} ± {:.1f}", "head"
    else:
        names, key_of, form, other = published.HEADS, published.head_key, "{:.2f} ± {:.1f}", "extractor"
    order = list(names)
    tables: list[Table] = []
    for group in sorted(same_but(cells, ablation), key=lambda group: not _as_published(ablation, group[0])):
        keys = {cell.label: key_of(cell.config[ablation]) for cell in group}
        group.sort(key=lambda cell: order.index(keys[cell.label] or order[-1]))
        first = group[0]
        columns: list[list[Entry]] = []
        for metric, value in METRICS:
            paper = [_ablation_value(ablation, cell, keys[cell.label], metric) for cell in group]
            entries = measured([cell.summary(value) for cell in group])
            columns.append([beside(*pair, form) for pair in zip(entries, paper, strict=True)])
        rows: list[TableRow] = []
        for cell, average, final in zip(group, *columns, strict=True):
            name = names.get(keys[cell.label] or "", str(cell.config[ablation].get("name")))
            rows.append(TableRow((Entry(name), Entry(cell.label), average, final)))
        for key in (key for key in names if key not in keys.values()):
            paper = [_ablation_value(ablation, first, key, metric) for metric, _ in METRICS]
            if any(paper):
                fields = (beside(Entry(), value, form) for value in paper)
                rows.append(TableRow((Entry(names[key]), Entry(), *fields), muted=True))
        kept = first.config.get(other, {}).get("name")
        note = f"The runs measured here differ in the {ablation} alone" + (f"; {other}: {kept}." if kept else ".")
        if ablation == "extractor":
            note += " The paper tuned the other settings for each of its extractors."
        tables.append(
            Table(
                title=f"{dataset_name(first.dataset)}, T = {first.tasks}: {ablation} ablation (%)",
                headings=(ablation, "label", AVERAGE, FINAL),
                rows=tuple(rows),
                note=note,
            )
        )
    return tables


def ensembling_tables(cells: Sequence[Cell]) -> list[Table]:
    """A table for every group of cells that differ in nothing but k (groups) and m (members)."""
    tables: list[Table] = []
    for group in same_but(cells, "groups", "members"):
        group.sort(key=lambda cell: (cell.config["groups"] * cell.config["members"], cell.config["groups"]))
        columns = [measured([cell.summary(value) for cell in group]) for _, value in METRICS]
        seconds = measured([cell.seconds()[0] for cell in group], lowest=True, notes=False)
        rows: list[TableRow] = []
        for cell, average, final, time in zip(group, *columns, seconds, strict=True):
            k, m = cell.config["groups"], cell.config["members"]
            paper = published.ensembling_result(cell.dataset, cell.tasks, k, m) if comparable(cell) else None
            average = beside(average, paper, "{:.2f} ± {:.2f}")
            rows.append(TableRow((Entry(str(k)), Entry(str(m)), Entry(str(k * m)), average, final, time)))
        tables.append(
            Table(
                title=f"{dataset_name(group[0].dataset)}, T = {group[0].tasks}: ensembling (%)",
                headings=("k (heads)", "m (members of a head)", "k m", AVERAGE, FINAL, "learning (s)"),
                rows=tuple(rows),
                note="The runs measured here differ in k and m alone.",
            )
        )
    return tables


def _as_published(ablation: published.Ablation, cell: Cell) -> bool:
    """Whether the paper's ablation applies: it varies the extractor under SLDA, and the head on BiRC2D."""
    if ablation == "extractor":
        kept = published.head_key(cell.config.get("head", {})) == "slda_circle"
    else:
        kept = published.extractor_key(cell.config.get("extractor", {})) == "birc2d_circle"
    return kept and comparable(cell)


def _ablation_value(
    ablation: published.Ablation, cell: Cell, key: str | None, metric: published.Metric
) -> PublishedValue | None:
    if key is None or not _as_published(ablation, cell):
        return None
    return published.ablation_result(ablation, cell.dataset, cell.tasks, key, metric)


PANELS: tuple[tuple[Metric, str], ...] = (
    ("average", "average incremental accuracy (%)"),
    ("final", "final accuracy (%)"),
)
OURS, PAPER = STYLES[0], STYLES[1]


def study_figure(study: StudyCells) -> Figure | None:
    """The picture of a study, or None where no variant has got to the end."""
    if not any(study.summaries("average")):
        return None
    return _allocations(study) if study.name == "ensemble" else _variants(study)


def _variants(study: StudyCells) -> Figure:
    """A line for every variant, a dot for its mean, bars for the deviation; the paper's value as a square."""
    figure = new_figure(9.2, 1.6 + 0.42 * len(study.cells))
    figure.suptitle(safe_text(study.title, 110), fontsize=11)
    panels = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(study.cells), dtype=float)
    for axes, (metric, what) in zip(panels, PANELS, strict=True):
        ours, paper = study.summaries(metric), study.paper(metric)
        apart = 0.12 if any(paper) else 0.0
        _points(axes, places - apart, paper, PAPER, "paper", horizontal=True)
        _points(axes, places + apart, ours, OURS, "measured here", horizontal=True)
        dress(axes)
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x", color="#DDDDDD", linewidth=0.8)
        axes.set_xlabel(what)
        ends = [value.mean + (value.std or 0.0) for value in (*ours, *paper) if value]
        axes.set_xlim(0, 1.07 * max(ends))  # whole markers, and zero in sight
    panels[0].set_yticks(places, [safe_text(cell.label, 40) for cell in study.cells])
    panels[0].set_ylim(len(study.cells) - 0.5, -0.5)  # the first variant on top
    _legend(figure, panels[0])
    return figure


def _allocations(study: StudyCells) -> Figure:
    """Accuracy against m while k m stays the same."""
    figure = new_figure(7.2, 4.8)
    figure.suptitle(safe_text(study.title, 110), fontsize=10)
    axes = figure.subplots()
    dress(axes)
    places = np.array([cell.config["members"] for cell in study.cells], dtype=float)
    for (metric, what), style in zip(PANELS, (OURS, STYLES[2]), strict=True):
        _points(axes, places, study.summaries(metric), style, f"{what}, measured here", line=True)
    _points(axes, places, study.paper("average"), PAPER, f"{PANELS[0][1]}, paper", line=True)
    axes.set_xscale("log", base=2)
    names = [f"{cell.config['members']}\nk = {cell.config['groups']}" for cell in study.cells]
    axes.set_xticks(places, names)
    axes.minorticks_off()
    axes.set_xlabel("m (members of a head)")
    axes.set_ylabel("accuracy (%)")
    _legend(figure, axes)
    return figure


def _points(
    axes: Axes,
    places: np.ndarray,
    values: Sequence[Summary | PublishedValue | None],
    style: dict,
    label: str,
    *,
    horizontal: bool = False,
    line: bool = False,
) -> None:
    """Means with bars of one standard deviation, where there are any."""
    shown = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
    if not shown:
        return
    at = [place for place, _ in shown]
    means = [value.mean for _, value in shown]
    bars = [value.std or 0.0 for _, value in shown]
    look = {
        "color": style["color"],
        "marker": style["marker"],
        "markersize": 0.8 * style["markersize"],
        "markerfacecolor": "white" if style is PAPER else style["color"],
        "linestyle": style["linestyle"] if line else "none",
        "linewidth": 1.5,
        "capsize": 3,
        "label": label,
        "zorder": style["zorder"],
    }
    if horizontal:
        axes.errorbar(means, at, xerr=bars, **look)
    else:
        axes.errorbar(at, means, yerr=bars, **look)


def _legend(figure: Figure, axes: Axes) -> None:
    """Below the panels, where it covers nothing."""
    handles, names = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, names)) < 30 else 1
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5)
