"""A report as one HTML page that needs nothing else: style inside, figures embedded, no script, no request."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from circle.benchmark.results import Run
from circle.errors import counted
from circle.report.markdown import provenance
from circle.report.tables import FINAL, Entry, Table, TableRow

if TYPE_CHECKING:
    from circle.report.report import Picture, Report, Section

STYLE = """
:root { color-scheme: light dark; --text: #1c2024; --soft: #60646c; --line: #d9dbe0; --page: #fcfcfd; --card: #ffffff;
  --stripe: #f3f4f6; --accent: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --soft: #a3a9b3; --line: #3a3f47; --page: #16181c;
  --card: #1d2025; --stripe: #23272e; --accent: #7db8f2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.4rem; margin: 3rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p, dl, ul { max-width: 52rem; margin: .4rem 0; }
.lead, .note, figcaption, dd { color: var(--soft); }
nav a { color: var(--accent); margin-right: 1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .8rem 0; }
dt { font-weight: 600; }
dd { margin: 0; min-width: 0; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .75rem; text-align: left; vertical-align: top; white-space: nowrap; }
thead th { border-bottom: 1px solid var(--line); font-weight: 600; background: var(--stripe); }
thead tr:first-child:not(:last-child) th { border-bottom: 0; padding-bottom: 0; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
tbody th { font-weight: 600; }
tr.muted > * { color: var(--soft); font-weight: 400; background: var(--stripe); }
td.words { white-space: normal; min-width: 8rem; }
.n, .paper { font-size: .8em; color: var(--soft); }
.paper { display: block; font-style: italic; }
strong { font-weight: 750; }
u { text-underline-offset: .2em; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: 1.2rem;
  margin-top: 1.5rem; }
figure { margin: 0; }
figure.wide { grid-column: 1 / -1; max-width: 58rem; }
figure img { display: block; width: 100%; background: #ffffff; border: 1px solid var(--line); border-radius: 8px;
  padding: .5rem; }
figcaption { font-size: .85rem; margin-top: .3rem; }
details { border-top: 1px solid var(--line); padding: .5rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
details dd, code { font: .85rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
@media print { body { max-width: none; } details, figure, tr { break-inside: avoid; } }
"""


def html_page(report: Report, images: Mapping[str, bytes]) -> str:
    """The whole page. ``images`` holds every figure as SVG, by its name."""
    links = [f'<a href="#data-{number}">{escape(s.title)}</a>' for number, s in enumerate(report.sections)]
    definitions = "".join(
        f"<dt>{_symbol(name)}</dt><dd>{escape(text)}</dd>" for name, text in report.definitions.items()
    )
    parts = [
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="lead">{escape(_lead(report))}</p>',
        f'<nav>{"".join(links)}<a href="#runs">Where the numbers come from</a></nav>',
        *(f"<p>{escape(text)}</p>" for text in report.reading),
        f"<dl>{definitions}</dl>",
        *(_section(section, number, images) for number, section in enumerate(report.sections)),
        _table(report.stopped) if report.stopped else "",
        '<h2 id="runs">Where the numbers come from</h2>',
        *map(_run, report.runs),
        _repeated(report),
    ]
    return whole_page(report.title, parts)


def whole_page(title: str, parts: Sequence[str]) -> str:
    """A page of these parts that needs nothing else."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def _lead(report: Report) -> str:
    """How much there is, and of what time."""
    moments = sorted(str(run.info["started"])[:10] for run in report.runs if run.info.get("started"))
    when = f", started {moments[0]}" + (f" to {moments[-1]}" if moments[-1] != moments[0] else "") if moments else ""
    count = len(report.runs)
    datasets = dict.fromkeys(section.dataset for section in report.sections)
    return f"{counted(count, 'run')} on {', '.join(datasets)}{when}."


def _section(section: Section, number: int, images: Mapping[str, bytes]) -> str:
    figures = [
        f'<figure{_wide(picture)}><img alt="{escape(picture.caption)}" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(images[picture.name]).decode()}"><figcaption>{escape(picture.caption)}</figcaption></figure>'
        for picture in section.pictures
    ]
    return "\n".join(
        [
            f'<h2 id="data-{number}">{escape(section.title)}</h2>',
            *(f"<p>{escape(note)}</p>" for note in section.notes),
            _table(section.tables[0]),
            f'<div class="figures">{"".join(figures)}</div>' if figures else "",
            *map(_table, section.tables[1:]),
        ]
    )


def _wide(picture: Picture) -> str:
    return ' class="wide"' if picture.wide else ""


def _table(table: Table) -> str:
    spans = "".join(f'<th colspan="{columns}">{escape(text)}</th>' for text, columns in table.spans)
    headings = "".join(f'<th scope="col">{_symbol(heading)}</th>' for heading in table.headings)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h3>{escape(table.title)}</h3>{note}<div class="scroll"><table><thead>'
        f"{f'<tr>{spans}</tr>' if spans else ''}<tr>{headings}</tr></thead>\n<tbody>"
        + "\n".join(map(_row, table.rows))
        + "</tbody></table></div>"
        + "".join(f'<p class="note">{_symbol(text)}</p>' for text in table.footnotes)
    )


def _row(row: TableRow) -> str:
    name, *fields = row.entries
    first = f'<th scope="row">{_entry(name)}</th>'
    columns = "".join(f"<td{_words(field)}>{_entry(field)}</td>" for field in fields)
    muted = ' class="muted"' if row.muted else ""
    return f"<tr{muted}>{first}{columns}</tr>"


def _words(entry: Entry) -> str:
    """Long texts may break into lines; numbers may not."""
    return ' class="words"' if len(entry.text) > 30 else ""


def _entry(entry: Entry) -> str:
    text = _marked(entry.text, entry.mark)
    note = f' <span class="n">{escape(entry.note)}</span>' if entry.note else ""
    paper = f'<span class="paper">paper {_marked(entry.paper, entry.paper_mark)}</span>' if entry.paper else ""
    return f"{text}{note}{paper}"


def _marked(text: str, mark: str) -> str:
    text = escape(text)
    return f"<strong>{text}</strong>" if mark == "best" else f"<u>{text}</u>" if mark == "second" else text


def _symbol(text: str) -> str:
    """Escaped text in which A_T is written with its index."""
    return escape(text).replace(FINAL, "A<sub>T</sub>")


def _run(run: Run) -> str:
    info = run.info
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in provenance(run).items())
    name, dataset, seed = (escape(str(info[key])) for key in ("label", "dataset", "seed"))
    head = f"<strong>{name}</strong>, {dataset}, seed {seed}"
    return f"<details><summary>{head}: <code>{escape(str(run.folder))}</code></summary><dl>{facts}</dl></details>"


def _repeated(report: Report) -> str:
    if not report.repeated:
        return ""
    folders = ", ".join(f"<code>{escape(str(run.folder))}</code>" for run in report.repeated)
    return f'<p class="note">Left out, because another run has the same seed: {folders}.</p>'
