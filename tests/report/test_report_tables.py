"""The report's tables: numbers against hand-computed ones, marks and published values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made_runs import CIRCLE, make, row, steps, table

from circle.benchmark.results import Run
from circle.report.report import build_report
from circle.report.tables import Entry


def test_means_deviations_and_marks_by_hand(tmp_path: Path) -> None:
    runs = [make(tmp_path / f"c{seed}", steps(last), seed=seed) for seed, last in enumerate((40, 42, 47))]
    runs += [
        make(tmp_path / f"e{seed}", steps(last), seed=seed, method="efc_plus_plus", label="efc_plus_plus", config={})
        for seed, last in enumerate((50, 52))
    ]
    runs.append(make(tmp_path / "f", steps(3), method="finetune", label="fine-tuned", config={}))
    main = table(build_report(runs), "accuracy (%)")
    assert main.headings == ("method", "Ā", "A_T")
    assert main.spans == (("", 1), ("T = 10", 2))
    # Ends 40, 42, 47: mean 43, deviation sqrt((9 + 1 + 16) / 2) = 3.61; every average is the end + 18 - 9.
    assert row(main, "CIRCLE paper").entries[1:] == (
        Entry("52.00 ± 3.61", "second", "n = 3", "55.32 ± 0.3", ""),
        Entry("43.00 ± 3.61", "second", "n = 3", "45.34 ± 0.3", ""),
    )
    assert row(main, "EFC++").entries[1:] == (
        Entry("60.00 ± 1.41", "best", "n = 2", "66.61 ± 0.2", "best"),
        Entry("51.00 ± 1.41", "best", "n = 2", "52.68 ± 0.4", "best"),
    )
    assert row(main, "fine-tuned").entries[1:] == (Entry("12.00", "", "n = 1"), Entry("3.00", "", "n = 1"))
    labels = [found.entries[0].text for found in main.rows]
    assert labels[:3] == ["EFC++", "fine-tuned", "CIRCLE paper"]  # the paper's order, CIRCLE last
    published = [found for found in main.rows if found.muted]
    assert len(published) == 9 and not any(entry.text for found in published for entry in found.entries[1:])
    assert row(main, "AdaGauss").entries[1] == Entry(paper="62.53 ± 0.2", paper_mark="second")


def test_a_single_method_is_not_the_best_of_one(tmp_path: Path) -> None:
    main = table(build_report([make(tmp_path / "c", steps(40))]), "accuracy (%)")
    assert row(main, "CIRCLE paper").entries[1].mark == ""


def test_equal_as_printed_is_marked_alike(tmp_path: Path) -> None:
    runs = [make(tmp_path / name, steps(40), method=name, label=name, config={}) for name in ("one", "two")]
    runs.append(make(tmp_path / "three", steps(30), method="three", label="three", config={}))
    main = table(build_report(runs), "accuracy (%)")
    assert [row(main, name).entries[2].mark for name in ("one", "two", "three")] == ["best", "best", "second"]


def test_time_memory_and_parameters(tmp_path: Path) -> None:
    accuracies = [50] * 20
    runs = [make(tmp_path / f"c{s}", accuracies, tasks=("20",), seed=s, seconds=s + 1.0) for s in range(2)]
    runs.append(make(tmp_path / "a", accuracies, tasks=("20",), method="acil", label="ACIL", config={}, seconds=9.0))
    costs = table(build_report(runs), "time, memory")
    ours = row(costs, "CIRCLE paper").entries
    # 20 tasks of 1 and of 2 seconds: 20 and 40, mean 30, deviation 10 sqrt(2).
    assert ours[2] == Entry("30.00 ± 14.14", "best", "n = 2", "2.04 ± 0.03 min", "best")
    assert [entry.text for entry in ours[3:]] == ["40.00 ± 0.00", "1000 ± 0", "7.04 M", "4.65 M", "11.69 M", "0"]
    assert (ours[5].paper, ours[7].paper) == ("7.04 M", "11.69 M")
    assert row(costs, "ACIL").entries[2] == Entry("180.00", "second", "n = 1", "9.27 ± 0.05 min", "second")
    assert row(costs, "FeCAM").muted


def test_what_is_left_of_earlier_tasks(tmp_path: Path) -> None:
    left = table(build_report([make(tmp_path / "c", steps(40))]), "earlier tasks")
    # Every class falls from 58 to 40 in steps of 2; each task k < 9 was best when learned: mean of 18, 16, ..., 2.
    assert [entry.text for entry in left.rows[0].entries] == ["T = 10", "CIRCLE paper", "58.00", "40.00", "10.00"]


def test_one_run_serves_several_splits(tmp_path: Path) -> None:
    runs = [make(tmp_path / "c", [50] * 20, tasks=("20", "10"))]
    runs.append(make(tmp_path / "l", [30] * 10, tasks=("10",), method="lwf", label="lwf", config={"epochs": 3}))
    main = table(build_report(runs), "accuracy (%)")
    assert main.spans == (("", 1), ("T = 10", 2), ("T = 20", 2))
    assert [entry.text for entry in row(main, "CIRCLE paper").entries[1:]] == ["50.00"] * 4
    lwf = row(main, "LwF").entries
    assert [entry.text for entry in lwf[1:]] == ["30.00", "30.00", "", ""]
    assert lwf[3].paper == "37.15 ± 0.5"  # not measured at T = 20, but published


def test_stopped_runs_are_named_and_enter_no_mean(tmp_path: Path) -> None:
    runs = [make(tmp_path / f"c{seed}", steps(40), seed=seed) for seed in range(2)]
    runs.append(make(tmp_path / "c2", steps(40)[:3], seed=2, stopped="out of memory"))
    runs.append(make(tmp_path / "p", [70, 60], method="pass", label="pass", config={}))
    report = build_report(runs)
    main = table(report, "accuracy (%)")
    assert row(main, "CIRCLE paper").entries[1].note == "n = 2, 1 stopped"
    assert row(main, "PASS").entries[1].text == "stopped"
    assert report.stopped is not None
    assert [[entry.text for entry in found.entries[3:]] for found in report.stopped.rows] == [
        ["2", "30 of 100 classes", "54.00", "out of memory"],
        ["0", "20 of 100 classes", "60.00", "not finished"],
    ]


def test_a_run_stopped_before_the_first_task_of_a_split_ended(tmp_path: Path) -> None:
    run = make(tmp_path / "c", [50, 50], tasks=("100", "10"), stopped="interrupted")
    report = build_report([run])
    assert [entry.text for entry in row(table(report, "accuracy (%)"), "CIRCLE paper").entries[1:]] == ["stopped"] * 4
    assert {picture.name for picture in report.sections[0].pictures} == {
        f"cifar100-T100-{kind}" for kind in ("stream", "first-task", "wall-clock")
    }


def test_extractor_and_head_ablations(tmp_path: Path) -> None:
    def variant(name: str, last: int, **changes: Any) -> Run:
        accuracies = [last] * 20
        return make(tmp_path / name, accuracies, tasks=("20",), label=f"CIRCLE {name}", config={**CIRCLE, **changes})

    runs = [variant("own", 45), variant("vgg", 20, extractor={"name": "vgg13", "depth": 13})]
    runs += [
        variant("ncm", 10, head={"name": "ncm"}),
        variant("both", 9, head={"name": "ncm"}, extractor={"name": "x"}),
    ]
    report = build_report(runs)
    extractors = table(report, "extractor ablation")
    assert row(extractors, "Random VGG-13").entries[2:] == (
        Entry("20.00", "second", "n = 1", "40.0 ± 0.2"),
        Entry("20.00", "second", "n = 1", "28.3 ± 0.2"),
    )
    assert row(extractors, "BiRC2D (CIRCLE)").entries[2].paper_mark == "best"
    assert row(extractors, "Scattering transform").muted
    under_ncm = [found for found in report.sections[0].tables if "extractor" in found.title][1]
    assert not any(entry.paper for found in under_ncm.rows for entry in found.entries) and "head: ncm" in under_ncm.note
    heads = table(report, "head ablation")
    assert row(heads, "Euclidean NCM").entries[3] == Entry("10.00", "second", "n = 1", "14.96 ± 0.1")
    assert "CIRCLE vgg" not in [entry.text for found in heads.rows for entry in found.entries]
    # In the main table, CIRCLE with another extractor or head has no published value beside it.
    main = table(report, "accuracy (%)")
    assert row(main, "CIRCLE vgg").entries[1].paper == ""
    assert row(main, "CIRCLE own").entries[1].paper == "55.90 ± 0.3"


def test_ablations_need_two_runs(tmp_path: Path) -> None:
    runs = [make(tmp_path / "one", steps(40)), make(tmp_path / "two", steps(40), seed=1)]
    titles = [found.title for found in build_report(runs).sections[0].tables]
    assert not [title for title in titles if "ablation" in title or "ensembling" in title]


def test_other_methods_may_have_settings_of_the_same_name(tmp_path: Path) -> None:
    runs = [
        make(tmp_path / name, steps(40), method="other", label=name, config={"head": name, "groups": "a", "members": 1})
        for name in ("linear", "cosine")
    ]
    assert len(build_report(runs).sections[0].tables) == 3


def test_ensembling(tmp_path: Path) -> None:
    runs = [
        make(tmp_path / f"{k}-{m}", [last] * 20, tasks=("20",), config={**CIRCLE, "groups": k, "members": m})
        for k, m, last in ((4, 4, 50), (16, 1, 40), (1, 16, 30), (4, 1, 20))
    ]
    report = build_report(runs)
    sweep = table(report, "ensembling")
    fields = [[entry.text for entry in found.entries[:4]] for found in sweep.rows]
    assert fields == [
        ["4", "1", "4", "20.00"],
        ["1", "16", "16", "30.00"],
        ["4", "4", "16", "50.00"],
        ["16", "1", "16", "40.00"],
    ]
    assert [found.entries[3].paper for found in sweep.rows] == ["", "45.37 ± 0.99", "52.97 ± 0.31", "49.35 ± 0.11"]
    # A sweep under one label is one method: its largest and most balanced member is in the main table.
    measured = [found.entries[0].text for found in table(report, "accuracy (%)").rows if not found.muted]
    assert measured == ["CIRCLE paper (groups 4, members 4)"]
    assert report.sections[0].pictures[-1].name == "cifar100-T20-ensembling"


def test_part_of_a_data_set_gets_no_published_values(tmp_path: Path) -> None:
    main = table(build_report([make(tmp_path / "c", steps(40), images=50)]), "accuracy (%)")
    assert not any(entry.paper for found in main.rows for entry in found.entries)
    assert len(main.rows) == 1
    assert "100 classes and 5,000 test images, the paper's 100 and 10,000" in main.note
