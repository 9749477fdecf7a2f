"""The ablation tables of a report: runs that differ in one choice and in nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from circle.paper import published
from circle.paper.published import PublishedValue
from circle.report.cells import Cell, comparable, same_but
from circle.report.tables import (
    AVERAGE,
    FINAL,
    METRICS,
    Entry,
    Table,
    TableRow,
    beside,
    dataset_name,
    measured,
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
            paper = [_value(ablation, cell, keys[cell.label], metric) for cell in group]
            entries = measured([cell.summary(value) for cell in group])
            columns.append([beside(*pair, form) for pair in zip(entries, paper, strict=True)])
        rows: list[TableRow] = []
        for cell, average, final in zip(group, *columns, strict=True):
            name = names.get(keys[cell.label] or "", str(cell.config[ablation].get("name")))
            rows.append(TableRow((Entry(name), Entry(cell.label), average, final)))
        for key in (key for key in names if key not in keys.values()):
            paper = [_value(ablation, first, key, metric) for metric, _ in METRICS]
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


def _value(
    ablation: published.Ablation, cell: Cell, key: str | None, metric: published.Metric
) -> PublishedValue | None:
    if key is None or not _as_published(ablation, cell):
        return None
    return published.ablation_result(ablation, cell.dataset, cell.tasks, key, metric)
