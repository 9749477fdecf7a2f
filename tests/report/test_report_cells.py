"""Runs gathered into cells: repeated seeds, labels, means and deviations."""

from __future__ import annotations

from pathlib import Path

from made_runs import CIRCLE, make, steps

from circle.report.report import write_report
from circle.report.tables import Summary, collect, summarise


def test_a_repeated_seed_counts_once(tmp_path: Path) -> None:
    runs = [make(tmp_path / "first", steps(40)), make(tmp_path / "again", steps(44))]
    cells, repeated = collect(runs)
    assert len(cells) == 1 and cells[0].runs == (runs[0],)
    assert repeated == [runs[1]]
    files = write_report(runs, tmp_path / "report")
    assert "same seed" in files.html.read_text() and "same seed" in files.markdown.read_text()


def test_one_label_for_several_configs(tmp_path: Path) -> None:
    runs = [
        make(tmp_path / f"{ridge}", steps(40), config={**CIRCLE, "head": {"name": "slda", "ridge": ridge}})
        for ridge in (0.1, 1)
    ]
    labels = [cell.label for cell in collect(runs)[0]]
    assert labels == ["CIRCLE paper (head.ridge 0.1)", "CIRCLE paper (head.ridge 1)"]
    # A config for every split is one method all the same.
    runs = [
        make(tmp_path / f"lwf{t}", [30] * int(t), tasks=(t,), method="lwf", label="LwF", config={"e": t})
        for t in ("10", "20")
    ]
    assert [cell.label for cell in collect(runs)[0]] == ["LwF", "LwF"]


def test_epochs_that_were_fitted_to_a_budget_are_no_difference(tmp_path: Path) -> None:
    for budget, labels in ((60.0, ["LwF"]), (None, ["LwF (epochs 0)", "LwF (epochs 1)"])):
        runs = [
            make(tmp_path / f"{budget}{seed}", [30] * 10, method="lwf", label="LwF", seed=seed, config={"epochs": seed})
            for seed in (0, 1)
        ]
        for run in runs:
            run.info |= {} if budget is None else {"budget": budget}
        assert [cell.label for cell in collect(runs)[0]] == labels


def test_summaries() -> None:
    assert summarise([]) is None
    assert summarise([3.0]) == Summary(3.0, None, 1)
    assert summarise([2.0, 4.0]) == Summary(3.0, 2**0.5, 2)
