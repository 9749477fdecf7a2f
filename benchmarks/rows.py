"""Lines of the table that `make bench` prints and keeps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from circle.runtime.container import atomic_path


@dataclass(frozen=True)
class Row:
    """One measurement: what, how much, against which limit or peer, and the ratio to it."""

    part: str
    what: str
    measured: str
    against: str = ""
    ratio: float | None = None
    bar: str = ""  # what was promised, such as ">= 0.6"

    @property
    def met(self) -> bool | None:
        """Whether the ratio keeps the promise, where there is one."""
        if self.ratio is None or not self.bar:
            return None
        sign, number = self.bar.split()
        return self.ratio >= float(number) if sign == ">=" else self.ratio <= float(number)


def show(rows: Sequence[Row], title: str) -> None:
    table = Table(title=title)
    for name in ("part", "what", "measured", "against", "ratio", "bar"):
        table.add_column(name, overflow="fold")
    part = ""
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        mark = {None: "", True: " met", False: " missed"}[row.met]
        table.add_row(row.part if row.part != part else "", row.what, row.measured, row.against, ratio, row.bar + mark)
        part = row.part
    Console().print(table)


def write(path: Path, rows: Sequence[Row], about: dict[str, Any]) -> None:
    """The rows as JSON and, beside it, as a Markdown table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    lines = ["| part | what | measured | against | ratio | bar |", "|---|---|---|---|---|---|"]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        mark = {None: "", True: " met", False: " missed"}[row.met]
        cells = [row.part, row.what, row.measured, row.against, ratio, row.bar + mark]
        lines.append("| " + " | ".join(cells) + " |")
    with atomic_path(path.with_suffix(".md")) as temporary:
        temporary.write_text("\n".join(lines) + "\n")
