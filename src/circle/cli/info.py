"""circle info"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from circle.cli import console
from circle.errors import CircleError, counted
from circle.runtime import container
from circle.runtime.facts import model_facts

EXACT_HERE = "no: exact on one kind of machine"


def info(model: Path, /, *, as_json: Annotated[bool, Parameter(name="--json", negative=())] = False) -> int:
    """Show what a model has learned, its settings and its sizes.

    Parameters
    ----------
    model
        A model file.
    as_json
        Write JSON instead of tables.
    """
    facts = {**model_facts(model), "journal": _journal(model)}
    if as_json:
        print(json.dumps(facts, indent=2))
        return 0
    out = console.output()
    table = Table(show_header=False, box=None)
    kind = "learns and predicts" if facts["kind"] == "learning" else "predicts only"
    table.add_row("model", f"{model} ({kind}, written by circle {facts['version']})")
    table.add_row("learned", f"{counted(facts['samples'], 'image')} of {counted(len(facts['classes']), 'class')}")
    table.add_row("classes", _listed(facts))
    if facts["journal"]:
        table.add_row("journal", facts["journal"])
    table.add_row("this file", console.size(facts["file_bytes"]))
    if facts["learning_bytes"] is not None:
        table.add_row("as a learning model", console.size(facts["learning_bytes"]))
        table.add_row("as a predicting model", f"{console.size(facts['prediction_bytes'])} (`circle pack` writes it)")
    if facts["compressed"] is not None:
        table.add_row("compressed", _compressed(facts["compressed"]))
    table.add_row("portable", "yes: the same bits on every machine" if facts["portable"] else EXACT_HERE)
    count = facts["parameters"]
    table.add_row(
        "parameters",
        f"{count['learnable']:,} learnable, {count['fixed']:,} fixed, {count['generated']:,} generated",
    )
    for name, value in facts["settings"].items():
        shown = ", ".join(f"{k} = {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name, shown)
    out.print(table)
    return 0


def _journal(path: Path) -> str | None:
    """What a server has kept beside the file and not yet written into it, in words."""
    journal = path.with_name(f"{path.name}.journal")
    if not journal.exists():
        return None
    from circle.serve.recovery import JOURNAL, pending_steps  # PyTorch takes seconds to import

    try:
        steps = pending_steps(path, container.read_header(path).get(JOURNAL))
    except CircleError as error:
        return str(error)
    if not steps:
        return None
    verbs = ("waits", "is") if steps == 1 else ("wait", "are")
    return (
        f"{counted(steps, 'step')} {verbs[0]} in {journal.name} and {verbs[1]} not in this file yet; "
        f"`circle serve` adds {'it' if steps == 1 else 'them'}"
    )


def _compressed(facts: dict[str, Any]) -> str:
    kept = (
        "all parts of all groups"
        if facts["parts"] is None
        else f"{counted(facts['groups'], 'group')} of {counted(facts['parts'], 'part')}"
    )
    return f"weights {facts['weights']}, {kept}, {facts['features']:,} features"


def _listed(facts: dict[str, Any], shown: int = 12) -> str:
    entries = [
        f"{entry['label']}" + ("" if entry["images"] is None else f" ({entry['images']:,})")
        for entry in facts["classes"][:shown]
    ]
    left = len(facts["classes"]) - shown
    return ", ".join(entries) + (f" and {left:,} more" if left > 0 else "")
