"""circle data"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import App, Parameter
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from circle import registry
from circle.cli import console
from circle.cli.flags import named
from circle.data import download
from circle.data.datasets import load_dataset
from circle.errors import CircleError, counted

app = App(name="data", help="List, fetch and describe data sets.")
AsJson = Annotated[bool, Parameter(name="--json", negative=())]
Fetched = Annotated[named(download.DOWNLOADS), Parameter(show_choices=False)]
Described = Annotated[named(registry.list_datasets()), Parameter(show_choices=False)]


@app.command(name="list")
def list_(*, as_json: AsJson = False) -> int:
    """List the data sets, and which of them are on this machine.

    Parameters
    ----------
    as_json
        Write JSON instead of a table.
    """
    facts = [
        {"name": name, "description": _description(name), "present": present, "where": where}
        for name in registry.list_datasets()
        for present, where in [download.whereabouts(name)]
    ]
    if as_json:
        print(json.dumps(facts, indent=2))
        return 0
    table = Table(box=None)
    for heading in ("name", "", "what", "where"):
        table.add_column(heading, overflow="fold")
    for fact in facts:
        mark = Text("here", "green") if fact["present"] else ""
        table.add_row(fact["name"], mark, fact["description"], fact["where"])
    console.output().print(table)
    return 0


@app.command
def fetch(name: Fetched, /) -> int:
    """Download, check and unpack a data set into the cache folder (CIRCLE_DATA, or the platform's).

    One that is there is checked, and fetched again if it is damaged.

    Parameters
    ----------
    name
        A data set of `circle data list`.
    """
    registry.entry("dataset", name)
    if name not in download.DOWNLOADS:
        raise CircleError(
            f"{name}: nothing to fetch: {download.whereabouts(name)[1]}; expected {', '.join(download.DOWNLOADS)}"
        )
    out = console.messages()
    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=out,
        disable=not (out.is_terminal and sys.stderr.isatty()),
    )
    with shown:
        path = download.fetch(name, _Bar(shown, name))
    by_hand = "" if download.unpacked_here(path) else " (put there by hand; not checked, and left as it is)"
    print(f"{name}: in {path}{by_hand}")
    return 0


@app.command
def info(
    name: Described,
    /,
    *,
    data: Annotated[Path | None, Parameter(name=("--data", "--path"))] = None,
    classes: Path | None = None,
    as_json: AsJson = False,
) -> int:
    """Show the classes, numbers of images and image size of a data set, and where its files are.

    Parameters
    ----------
    name
        A data set of `circle data list`; `folder` with --data for your own images.
    data
        Where its files are, if not in the cache folder.
    classes
        For ImageNet: a file with the wnids of the classes to use, one per line.
    as_json
        Write JSON instead of a table.
    """
    facts = _facts(name, data, classes)
    if as_json:
        print(json.dumps(facts, indent=2))
        return 0
    table = Table(show_header=False, box=None)
    height, width, channels = facts["image"]
    table.add_row("data set", f"{facts['name']}: {facts['description']}")
    table.add_row("classes", f"{len(facts['classes']):,}: {_first(facts['classes'])}")
    for part in ("train", "test"):
        fewest, most = facts[part]["fewest"], facts[part]["most"]
        each = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        table.add_row(part, f"{counted(facts[part]['images'], 'image')}, {each} per class")
    table.add_row("image", f"{height} x {width}, {'grey' if channels == 1 else 'RGB'}")
    table.add_row("files", facts["path"] or "come with scikit-learn")
    if facts["note"]:
        table.add_row("note", facts["note"])
    console.output().print(table)
    return 0


class _Bar:
    """A progress bar of rich's with the methods that pooch calls."""

    def __init__(self, shown: Progress, name: str) -> None:
        self._shown = shown
        self._task = shown.add_task(name, total=None)

    @property
    def total(self) -> float | None:
        return self._shown.tasks[0].total

    @total.setter
    def total(self, value: int) -> None:
        self._shown.reset(self._task, total=value or None)

    def update(self, count: int) -> None:
        self._shown.advance(self._task, count)

    def reset(self) -> None:
        self._shown.reset(self._task, total=self.total)

    def close(self) -> None:
        self._shown.refresh()


def _description(name: str) -> str:
    """The first line of the config's documentation."""
    return (registry.entry("dataset", name).config.__doc__ or "").splitlines()[0]


def _facts(name: str, path: Path | None, classes: Path | None) -> dict[str, Any]:
    choice = {"name": name} if classes is None else {"name": name, "classes": str(classes)}
    dataset = load_dataset(choice, path=path)
    parts = {}
    for part, images in (("train", dataset.train), ("test", dataset.test)):
        counts = np.bincount(images.labels)
        parts[part] = {"images": len(images), "fewest": int(counts.min()), "most": int(counts.max())}
    return {
        "name": dataset.name,
        "description": _description(name),
        "classes": dataset.classes,
        **parts,
        "image": [dataset.image.height, dataset.image.width, dataset.image.channels],
        "path": None if dataset.path is None else str(dataset.path),
        "note": dataset.note,
    }


def _first(names: list[str], shown: int = 8) -> str:
    left = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {left:,} more" if left > 0 else "")
