"""Studies in the report: their tables beside the paper's, the order of the variants, and no clutter elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from circle.benchmark.results import Row, Run
from circle.data.tasks import task_sizes
from circle.report.report import Report, build_report, write_report
from circle.report.studies import collect_studies, study_figure, swapped_neighbours
from circle.report.tables import Entry, Table, TableRow

BIRC2D = {"name": "birc2d", "width": 30}
BUDGET = {"groups": 2, "members": 1, "head_size": 1024, "projection": "relu"}
CHOSEN = {"ridge": 0.003, "temperature": 2.0}


def make(
    last: float,
    *,
    label: str = "variant",
    study: dict[str, Any] | None = None,
    seed: int = 0,
    images: int = 100,
    stopped: bool = False,
    tasks: str = "20",
    **config: Any,
) -> Run:
    """A run in memory on all of CIFAR-100 that ends at ``last`` percent, and was 10 above in the first half."""
    sizes = task_sizes(tasks, 100)
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    info = {
        "method": "circle",
        "label": label,
        "dataset": "cifar100",
        "tasks": [tasks],
        "seed": seed,
        "class_order_seed": 0,
        "class_order": [f"class {number}" for number in range(100)],
        "test_images": [images] * 100,
        "config": {"extractor": BIRC2D, "head": {"name": "slda"}, "groups": 2, "members": 1, "seed": seed, **config},
        **({} if study is None else {"study": study}),
    }
    rows = []
    for number, end in enumerate(ends[:3] if stopped else ends):
        right = round((last + (10 if number < len(ends) / 2 else 0)) * images / 100)
        rows.append(Row(end, [right] * end + [0] * (100 - end), 500 * end, 2.0 * end, 1.0 * end))
    return Run(Path(f"{label}-{seed}"), info, rows)


def study(name: str = "extractor", variant: str = "v", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "variant": variant,
        "budget": BUDGET,
        "selected": CHOSEN,
        "at_the_edge": ["temperature"],
        "validation_accuracy": 0.4567,
        "validation_share": 0.2,
        **more,
    }


def extractors(accuracies: dict[str, int], seeds: int = 2) -> list[Run]:
    """Runs of the extractor study; the second seed is two points above the first."""
    return [
        make(last + 2 * seed, label=name, study=study(variant=name), seed=2 * seed, extractor={"name": name})
        for name, last in accuracies.items()
        for seed in range(seeds)
    ]


def tables(report: Report, title: str) -> list[Table]:
    return [table for section in report.sections for table in section.tables if title in table.title]


def row(table: Table, label: str) -> TableRow:
    return next(row for row in table.rows if row.entries[0].text == label)


def test_values_beside_the_papers() -> None:
    runs = extractors({"vgg13": 20, "patch_rnn": 10, "birc2d": 40})
    report = build_report(runs)
    (table,) = tables(report, "extractor ablation")
    assert table.title == (
        "CIFAR-100, T = 20: extractor ablation with k = 2, m = 1, 1024 values a head, relu projection (%)"
    )
    # Ends at 20 and 22, half of the stream 10 above: averages 25 and 27.
    assert row(table, "vgg13").entries == (
        Entry("vgg13"),
        Entry("26.00 ± 1.41", "second", "n = 2", "40.0 ± 0.2"),
        Entry("21.00 ± 1.41", "second", "n = 2", "28.3 ± 0.2"),
        Entry("ridge 0.003, temperature 2 (edge)"),
        Entry("45.67"),
        Entry("200.00 ± 0.00", "best"),
    )
    assert row(table, "birc2d").entries[1].paper == "55.9 ± 0.3"
    assert [found.entries[0].text for found in table.rows if not found.muted] == ["vgg13", "patch_rnn", "birc2d"]
    assert row(table, "Scattering transform").muted
    assert row(table, "Scattering transform").entries[2].paper == "22.9 ± 0.0"
    assert "20 % of the training images" in table.note
    assert table.footnotes == ("Order by Ā: as in the paper.", "Order by A_T: as in the paper.")


def test_both_forms_of_birc2d_stand_beside_the_papers_one() -> None:
    runs = [
        make(30, label=label, study=study(variant=label), extractor={"name": "birc2d", "stem": stem})
        for label, stem in (("BiRC2D (small)", "contrast"), ("BiRC2D (published form)", "plain"))
    ]
    (table,) = tables(build_report(runs), "extractor ablation")
    assert [row(table, run.info["label"]).entries[1].paper for run in runs] == ["55.9 ± 0.3"] * 2


def test_where_the_order_differs_is_said() -> None:
    # The paper: VGG 40.0 and 28.3, ResNet (BN) 39.5 and 31.0, scattering 34.7 and 22.9.
    runs = extractors({"scattering": 30, "resnet18_bn": 25, "vgg13": 20}, seeds=1)
    (table,) = tables(build_report(runs), "extractor ablation")
    average, final = table.footnotes
    assert average == (
        "Order by Ā: differs from the paper's order: scattering above resnet18_bn (35.00 against 30.00, paper 34.7 "
        "against 39.5); resnet18_bn above vgg13 (30.00 against 25.00, paper 39.5 against 40.0)."
    )
    assert "scattering above resnet18_bn" in final and "vgg13" not in final
    # One variant has no order, and a part of the data set nothing to be compared with.
    assert tables(build_report(runs[:1]), "extractor ablation")[0].footnotes == ()
    part = [make(30, images=50, label=name, study=study(variant=name), extractor={"name": name}) for name in ("vgg13",)]
    (table,) = tables(build_report(part), "extractor ablation")
    assert table.footnotes == () and len(table.rows) == 1 and not table.rows[0].entries[1].paper


@pytest.mark.parametrize(
    ("ours", "paper", "swapped"),
    [
        ([3, 2, 1], [9, 8, 7], []),
        ([1, 2, 3], [9, 8, 7], ["cb", "ba"]),
        ([3, 2, 1], [9, 9, 7], []),
        ([2, 2, 1], [7, 9, 8], ["ac"]),
        ([], [], []),
    ],
)
def test_swapped_neighbours(ours: Sequence[float], paper: Sequence[float], swapped: list[str]) -> None:
    rows = list(zip("abc", ours, paper, strict=False))
    assert [above[0] + below[0] for above, below in swapped_neighbours(rows)] == swapped


def test_heads() -> None:
    runs = [
        make(last, label=name, study=study("head", name), head={"name": name, "ridge": ridge})
        for name, last, ridge in (("qda", 42, 0.1), ("slda", 40, 0.01), ("cosine_ncm", 10, 1.0))
    ]
    (table,) = tables(build_report(runs), "head ablation")
    assert row(table, "qda").entries[1] == Entry("47.00", "best", "n = 1", "48.04 ± 0.1")
    assert row(table, "cosine_ncm").entries[2].paper == "14.90 ± 0.1"
    assert [found.entries[0].text for found in table.rows][:3] == ["cosine_ncm", "qda", "slda"]
    assert row(table, "Ridge RLS").muted
    assert "qda above slda" in table.footnotes[0]


def test_ensembling() -> None:
    budget = {"extractors": 16, "member_size": 512, "projection": "relu"}
    runs = [
        make(
            last,
            label=f"m = {m}, k = {k}",
            study=study("ensemble", f"m{m}k{k}", budget=budget),
            groups=k,
            members=m,
            head={"name": "slda", "ridge": m},
        )
        for m, k, last in ((16, 1, 45), (1, 16, 30), (4, 4, 40))
    ]
    (table,) = tables(build_report(runs), "ensembling")
    assert [found.entries[0].text for found in table.rows] == ["m = 1, k = 16", "m = 4, k = 4", "m = 16, k = 1"]
    assert [found.entries[1].paper for found in table.rows] == ["49.35 ± 0.11", "52.97 ± 0.31", "45.37 ± 0.99"]
    assert table.rows[1].entries[1].paper_mark == "best"
    assert table.rows[2].entries[1].mark == "best"
    assert table.footnotes == (
        "Order by Ā: differs from the paper's order: m = 16, k = 1 above m = 4, k = 4 (50.00 against 45.00, paper "
        "45.37 against 52.97).",
    )


def test_studies_keep_out_of_the_main_tables() -> None:
    main = make(44, label="CIRCLE medium", groups=8, members=8)
    runs = [main, *extractors({"vgg13": 20, "birc2d": 40})]
    report = build_report(runs)
    assert [section.title for section in report.sections] == ["CIFAR-100", "CIFAR-100: extractor ablation"]
    first, second = report.sections
    measured = [found.entries[0].text for found in first.tables[0].rows if not found.muted]
    assert measured == ["CIRCLE medium"]
    assert not [table for table in first.tables if "ablation" in table.title]
    assert [picture.name for picture in second.pictures] == ["cifar100-T20-extractor-study"]
    assert len(report.runs) == 5


def test_runs_without_a_study_are_grouped_as_before() -> None:
    runs = [make(20, label="other", extractor={"name": "vgg13"}), make(40, label="ours")]
    (table,) = tables(build_report(runs), "extractor ablation")
    assert table.headings[:2] == ("extractor", "label")
    assert row(table, "Random VGG-13").entries[2].paper == "40.0 ± 0.2"


def test_other_sizes_splits_and_extractors_are_other_studies() -> None:
    runs = [
        make(40, study=study("head", "slda")),
        make(41, study=study("head", "slda", budget={**BUDGET, "head_size": 2048})),
        make(42, study=study("head", "slda"), extractor={"name": "birc2d", "width": 60}),
        make(43, study=study("head", "slda"), tasks="10"),
    ]
    studies, repeated = collect_studies(runs)
    assert len(studies) == 4 and not repeated
    report = build_report(runs)
    (section,) = report.sections
    assert len(section.tables) == 4
    assert len({picture.name for picture in section.pictures}) == 4


def test_a_repeated_seed_counts_once_and_a_stopped_run_not_at_all() -> None:
    runs = [make(40, study=study()), make(50, study=study()), make(40, study=study(), seed=2, stopped=True)]
    report = build_report(runs)
    assert report.repeated == [runs[1]]
    (table,) = tables(report, "extractor ablation")
    assert table.rows[0].entries[1].text == "45.00"
    assert table.rows[0].entries[1].note == "n = 1, 1 stopped"
    assert report.stopped is not None and len(report.stopped.rows) == 1
    (only,) = collect_studies([runs[2]])[0]
    assert study_figure(only) is None


def test_figures_show_both_and_cut_nothing() -> None:
    (found,) = collect_studies(extractors({"vgg13": 20, "patch_rnn": 10, "birc2d": 60}))[0]
    figure = study_figure(found)
    assert figure is not None
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["vgg13", "patch_rnn", "birc2d"]
    drawn = {str(line.get_marker()): np.asarray(line.get_xdata()).tolist() for line in left.get_lines()}
    papers, ours = drawn["s"], drawn["o"]
    assert papers == [40.0, 21.4, 55.9]
    assert ours == pytest.approx([26, 16, 66])
    assert right.get_xlim()[0] == 0 and right.get_xlim()[1] > 61
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["paper", "measured here"]


def test_nothing_lies_outside_the_picture() -> None:
    budget = {"extractors": 16, "member_size": 512, "projection": "linear"}
    runs = [
        make(40, study=study("ensemble", f"m{m}", budget=budget), groups=16 // m, members=m, label=f"m = {m}")
        for m in (1, 4, 16)
    ]
    for found in (*collect_studies(runs)[0], *collect_studies(extractors({"vgg13": 20, "birc2d": 60}))[0]):
        figure = study_figure(found)
        assert figure is not None
        figure.draw_without_rendering()
        title = figure.texts[0].get_window_extent()
        assert title.x0 >= 0 and title.x1 <= figure.bbox.x1
        drawn = {str(line.get_marker()): np.asarray(line.get_ydata()).tolist() for line in figure.axes[0].get_lines()}
        if found.name == "ensemble":
            assert drawn["s"] == [49.35, 52.97, 45.37]


def test_in_both_pages(tmp_path: Path) -> None:
    runs = extractors({"scattering": 30, "resnet18_bn": 25, "odd|<b>": 5}, seeds=1)
    files = write_report(runs, tmp_path / "report")
    html, markdown = files.html.read_text(), files.markdown.read_text()
    for text in (html, markdown):
        plain = re.sub(r"\\(.)", r"\1", text)
        assert "differs from the paper's order" in plain.replace("&#x27;", "'")
        assert "paper 39.5 ± 0.2" in text
        assert "ridge 0.003" in text
    assert "3 runs on CIFAR-100." in html
    assert "<b>" not in html
    assert (tmp_path / "report" / "figures" / "cifar100-T20-extractor-study.svg").is_file()
