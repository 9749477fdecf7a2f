"""The report of a set of runs: a self-contained HTML page, Markdown, and figures as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from circle.benchmark.results import Run
from circle.errors import CircleError
from circle.files import atomic_path
from circle.report import drawing
from circle.report.content import build_report
from circle.report.html import html_page
from circle.report.markdown import markdown_page


@dataclass(frozen=True)
class ReportFiles:
    """What was written."""

    html: Path
    markdown: Path
    figures: tuple[Path, ...]


def write_report(runs: Sequence[Run], output: Path, console: Console | None = None) -> ReportFiles:
    """Write ``report.html``, ``report.md`` and ``figures/`` into a folder, which is made where it is missing.

    Runs of the same data set, label and split are seeds of one method. Every file is replaced in one step; the
    page embeds its figures and asks for nothing from elsewhere. ``console`` is told where the files are.
    """
    report = build_report(runs)
    folder = _folder(Path(output))
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
    if console:
        for path in (files.html, files.markdown):
            console.print("Report:", str(path), soft_wrap=True, markup=False, highlight=False)
    return files


def _folder(output: Path) -> Path:
    """The folder for the report, with one for its figures."""
    try:
        (output / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CircleError(f"{output}: cannot be the report's folder ({error.strerror})") from error
    return output
