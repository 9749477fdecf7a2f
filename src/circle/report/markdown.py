"""A report as Markdown, for reading in a repository."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from circle.benchmark.results import Run
from circle.report.tables import Entry, Table

if TYPE_CHECKING:
    from circle.report.report import Report


def markdown_page(report: Report) -> str:
    """The whole page; figures are linked in the folder beside it."""
    parts = [f"# {report.title}", *map(escape, report.reading)]
    parts.append("\n".join(f"- **{escape(name)}**: {escape(text)}" for name, text in report.definitions.items()))
    for section in report.sections:
        parts.append(f"## {escape(section.title)}")
        parts += map(escape, section.notes)
        for table in section.tables:
            parts += _table(table)
        parts += [f"![{escape(p.caption)}](figures/{quote(p.name)}.png)" for p in section.pictures]
    if report.stopped:
        parts += _table(report.stopped)
    parts.append("## Where the numbers come from")
    parts += [_run(run) for run in report.runs]
    if report.repeated:
        folders = ", ".join(code(str(run.folder)) for run in report.repeated)
        parts.append(f"Left out, because another run has the same seed: {folders}.")
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that Markdown prints as it stands, also in a table."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|~#$!])", r"\\\1", text)


def code(text: str) -> str:
    """A code span, whatever is in it."""
    text = " ".join(text.split())
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{space}{text}{space}{fence}"


def _table(table: Table) -> list[str]:
    headings = list(table.headings)
    if table.spans:
        # Markdown has one line of headings: the upper one is written into the lower.
        upper = [text for text, columns in table.spans for _ in range(columns)]
        headings = [f"{above}, {below}" if above else below for above, below in zip(upper, headings, strict=True)]
    lines = [[escape(heading) for heading in headings], ["---"] * len(headings)]
    lines += [[_entry(entry, row.muted) for entry in row.entries] for row in table.rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    note = [escape(table.note)] if table.note else []
    return [f"### {escape(table.title)}", *note, text, *map(escape, table.footnotes)]


def _entry(entry: Entry, muted: bool) -> str:
    text = _marked(entry.text, entry.mark)
    parts = [f"*{text}*" if muted and text else text]
    if entry.note:
        parts.append(f"({escape(entry.note)})")
    if entry.paper:
        parts.append(f"paper {_marked(entry.paper, entry.paper_mark)}")
    return " ".join(part for part in parts if part)


def _marked(text: str, mark: str) -> str:
    text = escape(text)
    return f"**{text}**" if mark == "best" else f"<u>{text}</u>" if mark == "second" else text


def _run(run: Run) -> str:
    lines = [f"- **{escape(str(run.info['label']))}**, seed {escape(str(run.info['seed']))}: {code(str(run.folder))}"]
    return "\n".join([*lines, *(f"  - {name}: {code(text)}" for name, text in provenance(run).items())])


def provenance(run: Run) -> dict[str, str]:
    """What is known of how a run came about, as text."""
    info = run.info
    known: dict[str, Any] = {
        "command": info.get("command"),
        "data set": info["dataset"],
        "tasks": ", ".join(map(str, info["tasks"])),
        "seeds": f"model {info['seed']}, class order {info.get('class_order_seed', 'unknown')}",
        "preset": info.get("preset"),
        "commit": info.get("commit"),
        "versions": _listed(info.get("versions")),
        "machine": _listed(info.get("machine")),
        "time": " to ".join(str(info[name]) for name in ("started", "finished") if info.get(name)),
        "stopped": None if run.complete else info.get("stopped") or "not finished",
        "config": json.dumps(info["config"], ensure_ascii=False),
    }
    return {name: str(value) for name, value in known.items() if value not in (None, "")}


def _listed(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) if isinstance(values, dict) else ""
