"""What is left of a search: a preset that can be run, all trials as JSON, and a page to look at."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from circle.benchmark.tuning.search import Search, Trial
from circle.benchmark.tuning.tune import CircleTuning, RivalTuning
from circle.errors import counted
from circle.report.drawing import new_figure
from circle.report.html import whole_page
from circle.runtime.container import atomic_path

PRESET, TRIALS, PAGE = "tuned.toml", "search.json", "search.html"


def write_all(tuning: CircleTuning | RivalTuning, search: Search, chosen: Trial, command: str) -> Path:
    """Preset, trials and page of a search in its folder; the preset's path."""
    request = tuning.request
    title = f"{request.method}, {tuning.held.dataset.name}, {request.tasks} tasks"
    count = sum(len(search.finished(stage)) for stage in search.stages)
    words = [
        f"{title}: {100 * (chosen.value or 0.0):.2f} % on held-back training images,",
        f"the best of {counted(count, 'trial')}; all are in {TRIALS}.",
        f"Made by: {command}",
    ]
    write_preset(request.folder / PRESET, tuning.preset(chosen), words)
    write_trials(request.folder / TRIALS, search, {**tuning.basis, "command": command}, chosen)
    write_page(request.folder / PAGE, title, search, chosen)
    return request.folder / PRESET


def write_preset(path: Path, values: Mapping[str, Any], words: Sequence[str]) -> None:
    """A preset file with a few words on top of it."""
    lines = [f"# {line}" for line in words]
    lines += _toml(values)
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n")


def _toml(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Plain settings first, then tables, nested ones by their whole names."""
    plain = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    lines = [f"{name} = {_toml_value(value)}" for name, value in plain.items()]
    for name, value in values.items():
        if isinstance(value, Mapping):
            if any(not isinstance(each, Mapping) for each in value.values()):
                lines += ["", f"[{prefix}{name}]"]
            lines += _toml(value, f"{prefix}{name}.")
    return lines


def _toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    # Texts, numbers and truth are written alike in JSON and TOML.
    return json.dumps(value)


def write_trials(path: Path, search: Search, basis: Mapping[str, Any], chosen: Trial) -> None:
    """The space, every trial and the choice, for whoever wants to know how a number came about."""
    values = {
        "basis": basis,
        "stages": [
            {
                "name": stage.name,
                "space": stage.to_dict(),
                "importances": search.importances(stage),
                "trials": [vars(trial) for trial in search.finished(stage)],
            }
            for stage in search.stages
        ],
        "chosen": vars(chosen),
    }
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(values, indent=1) + "\n")


def write_page(path: Path, title: str, search: Search, chosen: Trial) -> None:
    """One HTML page that needs nothing else: the course of the search, what mattered, and all trials."""
    parts = [f"<h1>{escape(title)}</h1>"]
    parts.append(
        f'<p class="lead">Accuracy on held-back training images; the test images had no say. Chosen: trial '
        f"{chosen.number} of stage {escape(chosen.stage)}, {100 * (chosen.value or 0.0):.2f} %.</p>"
    )
    for stage in search.stages:
        trials = search.finished(stage)
        parts.append(f"<h2>Stage {escape(stage.name)}: {counted(len(trials), 'trial')}</h2>")
        importances = search.importances(stage)
        if trials:
            picture = _picture(trials, importances)
            parts.append(
                f'<figure class="wide"><img alt="Course of the search" src="data:image/svg+xml;base64,{picture}">'
            )
            words = "Left: accuracy of each trial and the best so far. Right: share of each setting in the differences."
            parts.append(f"<figcaption>{words}</figcaption></figure>")
        parts.append(_table(trials, chosen))
    with atomic_path(path) as temporary:
        temporary.write_text(whole_page(title, parts), encoding="utf-8")


def _table(trials: Sequence[Trial], chosen: Trial) -> str:
    names = sorted({name for trial in trials for name in trial.settings})
    head = "".join(f"<th>{escape(name)}</th>" for name in ("trial", "accuracy, %", "seconds", *names))
    rows = []
    for trial in sorted(trials, key=lambda each: -(each.value if each.value is not None else -1.0)):
        shown = f"{100 * trial.value:.2f}" if trial.value is not None else "cut short"
        if (trial.stage, trial.number) == (chosen.stage, chosen.number):
            shown = f"<strong>{shown}</strong>"
        cells = [str(trial.number), shown, f"{trial.seconds:.1f}"]
        cells += [escape(_shown(trial.settings.get(name, ""))) for name in names]
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f'<tr class="muted">{row}</tr>' if trial.value is None else f"<tr>{row}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _picture(trials: Sequence[Trial], importances: Mapping[str, float]) -> str:
    """An SVG, base64."""
    figure = new_figure(10, 3.6)
    course, bars = figure.subplots(1, 2)
    complete = [(trial.number, 100 * trial.value) for trial in trials if trial.value is not None]
    course.plot(*zip(*complete, strict=True) if complete else ([], []), "o", markersize=4, label="trials")
    best, top = [], float("-inf")
    for _, value in complete:
        top = max(top, value)
        best.append(top)
    course.step([number for number, _ in complete], best, where="post", label="best so far")
    course.set(xlabel="trial", ylabel="accuracy, %")
    course.legend()
    ordered = sorted(importances.items(), key=lambda pair: pair[1])
    bars.barh([name for name, _ in ordered], [value for _, value in ordered])
    bars.set(xlabel="importance", xlim=(0, 1))
    if not ordered:
        bars.text(0.5, 0.5, "too few trials", ha="center", va="center", transform=bars.transAxes)
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return base64.b64encode(file.getvalue()).decode()
