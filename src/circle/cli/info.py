"""circle info"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from circle import files
from circle.cli import console
from circle.errors import CircleError, counted
from circle.predictor import Predictor
from circle.serve.recovery import JOURNAL, journal_path, pending_steps


def info(model: Path, /, *, as_json: Annotated[bool, Parameter(name="--json", negative=())] = False) -> int:
    """Show what a model has learned, its settings and its sizes.

    Parameters
    ----------
    model
        A model file.
    as_json
        Write JSON instead of tables.
    """
    facts = _facts(model)
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
    portable = "yes, the same bits on every machine" if facts["portable"] else "no, exact on one kind of machine"
    table.add_row("portable", portable)
    table.add_row("this file", console.size(facts["file_bytes"]))
    if facts["learning_bytes"] is not None:
        table.add_row("as a learning model", console.size(facts["learning_bytes"]))
        table.add_row("as a predicting model", f"{console.size(facts['prediction_bytes'])} (`circle pack` writes it)")
    if facts["compressed"] is not None:
        table.add_row("compressed", _compressed(facts["compressed"]))
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


def _facts(path: Path) -> dict[str, Any]:
    header = files.read_header(path)
    model = files.load(path)
    count = model.parameter_count()
    classes = model.classes_.tolist()
    learner = None if isinstance(model, Predictor) else model
    counts = learner.statistics_[0].counts.tolist() if learner else [None] * len(classes)
    return {
        "kind": header["kind"],
        "version": header.get("version", "unknown"),
        "samples": model.samples_,
        "classes": [{"label": label, "images": n} for label, n in zip(classes, counts, strict=True)],
        "journal": _journal(path, learner.metadata_) if learner else None,
        "portable": all(group.portable for group in model.groups_),
        "file_bytes": path.stat().st_size,
        "learning_bytes": files.learning_bytes(learner) if learner else None,
        "prediction_bytes": files.prediction_bytes(model),
        "compressed": files.compressed_facts(model) if isinstance(model, Predictor) else None,
        "parameters": {"learnable": count.learnable, "fixed": count.fixed, "generated": count.generated},
        "settings": header["settings"],
    }


def _journal(path: Path, metadata: dict[str, Any]) -> str | None:
    """What a server has kept beside the file and not yet written into it, in words."""
    try:
        steps = pending_steps(path, metadata.get(JOURNAL))
    except CircleError as error:
        return str(error)
    if not steps:
        return None
    verbs = ("waits", "is") if steps == 1 else ("wait", "are")
    return (
        f"{counted(steps, 'step')} {verbs[0]} in {journal_path(path).name} and {verbs[1]} not in this file yet; "
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
