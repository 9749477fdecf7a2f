"""The report's files: they stand alone, escape what they must, and are the same every time."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_runs import CIRCLE, make, steps

from circle.benchmark.results import Run, read_runs
from circle.errors import CircleError
from circle.report.report import ReportFiles, write_report

ODD = 'a|b <script>alert("1")</script> *x* $y_1$ `z` & [link](http://there)'


class Page(HTMLParser):
    """Checks that tags are balanced and collects what a browser would fetch."""

    VOID = ("meta", "img", "br", "hr", "link", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[ReportFiles, list[Run]]:
    """A report with everything in it: two data sets, a sweep, a stopped run, and a label that breaks what it can."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        make(folder / f"circle-{seed}", [50 + seed] * 20, tasks=("20",), seed=seed)
    make(folder / "small", [40] * 20, tasks=("20",), config={**CIRCLE, "groups": 1})
    make(
        folder / "odd",
        [30, 20, 10],
        tasks=("4",),
        method="m",
        label=ODD,
        dataset="mine <i>",
        classes=4,
        config={"x": ODD},
    )
    runs = read_runs([folder])
    return write_report(runs, folder / "report"), runs


def test_the_page_stands_alone(written: tuple[ReportFiles, list[Run]]) -> None:
    files, runs = written
    text = files.html.read_text()
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert all(reference.startswith(("#", "data:image/svg+xml;base64,")) for reference in page.references)
    assert not re.search(r"url\(|@import", text)
    assert page.tags.count("img") == len(files.figures) / 2
    words = "".join(page.text)
    assert all(str(run.folder) in words for run in runs)
    assert all(str(run.info["command"]) in words for run in runs)
    assert ODD in words and "not finished" in words and "mine <i>" in words
    assert "prefers-color-scheme: dark" in text


def test_markdown_tables_are_well_formed(written: tuple[ReportFiles, list[Run]]) -> None:
    files, runs = written
    text = files.markdown.read_text()
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(tables) >= 8
    for found in tables:
        lines = found.splitlines()
        columns = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
        assert len(set(columns)) == 1 and re.fullmatch(r"\|( --- \|)+", lines[1])
    assert "<script>" not in re.sub(r"(`+).*?\1", "", text)
    assert all(str(run.folder) in text and run.info["command"] in text for run in runs)
    links = re.findall(r"!\[.*\]\((.*)\)", text)
    assert len(links) == len(files.figures) / 2
    assert all((files.markdown.parent / link).is_file() for link in links)
    assert "paper <u>55.90 ± 0.3</u>" in text


def test_definitions_stand_once(written: tuple[ReportFiles, list[Run]]) -> None:
    files, _ = written
    for text in (files.html.read_text(), files.markdown.read_text()):
        assert text.count("mean over the tasks of the accuracy after each") == 1
        assert text.count("minus the final one") == 1


def test_files_and_nothing_else(written: tuple[ReportFiles, list[Run]]) -> None:
    files, _ = written
    folder = files.html.parent
    assert sorted(path.name for path in folder.iterdir()) == ["figures", "report.html", "report.md"]
    assert sorted(files.figures) == sorted((folder / "figures").iterdir())
    assert {path.suffix for path in files.figures} == {".png", ".svg"}


def test_the_same_runs_give_the_same_report(tmp_path: Path) -> None:
    runs = [make(tmp_path / "c", steps(40))]
    first = write_report(runs, tmp_path / "one")
    again = write_report(runs, tmp_path / "two")
    assert first.html.read_bytes() == again.html.read_bytes()
    assert first.markdown.read_bytes() == again.markdown.read_bytes()


def test_bad_input(tmp_path: Path) -> None:
    good = make(tmp_path / "good", steps(40))
    with pytest.raises(CircleError, match="no results to report"):
        write_report([], tmp_path / "report")
    (tmp_path / "file").write_text("")
    with pytest.raises(CircleError, match="file: cannot be the report's folder"):
        write_report([good], tmp_path / "file")
    without = Run(tmp_path / "w", {name: value for name, value in good.info.items() if name != "label"}, good.rows)
    with pytest.raises(CircleError, match="no 'label'"):
        write_report([without], tmp_path / "report")
    with pytest.raises(CircleError, match="no usable tasks"):
        write_report([Run(tmp_path / "w", {**good.info, "tasks": []}, good.rows)], tmp_path / "report")
    with pytest.raises(CircleError, match="no rows"):
        write_report([Run(tmp_path / "w", good.info)], tmp_path / "report")
    other = make(tmp_path / "other", steps(40), images=50, seed=1)
    with pytest.raises(CircleError, match="different classes or test images under the name 'cifar100'"):
        write_report([good, other], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_folders_of_the_user_share_a_report(tmp_path: Path) -> None:
    """Even two of one name: their classes or test images tell them apart."""
    runs = [
        make(tmp_path / "cats", steps(40), dataset="cats", classes=10),
        make(tmp_path / "one", steps(30), dataset="photos", classes=10),
        make(tmp_path / "two", steps(20), dataset="photos", classes=20),
        make(tmp_path / "three", steps(10), dataset="photos", classes=20, seed=1),
    ]
    text = write_report(runs, tmp_path / "report").markdown.read_text()
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles == [
        "## cats",
        "## photos (10 classes, 1,000 test images)",
        "## photos (20 classes, 2,000 test images)",
        "## Where the numbers come from",
    ]
    assert "| CIRCLE paper | 24.00 ± 7.07 (n = 2) |" in text, "seeds of one data set are one row"
