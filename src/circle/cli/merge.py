"""circle merge"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from circle.cli import console
from circle.errors import counted
from circle.learning import merge_files


def merge(
    first: Path,
    second: Path,
    /,
    *more: Path,
    output: Annotated[Path, Parameter(name=("--output", "-o"))],
    force: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Add up what several models have learned: the same as one model that learned it all.

    Parameters
    ----------
    first, second
        Learning models with the same settings.
    more
        Further models.
    output
        The file for the merged model; with --force it may be one of those that are merged, which then holds all.
    force
        Replace the output file where it exists.
    """
    console.check_writable(output, force=force)
    merged, twice = merge_files([first, second, *more], output)
    if not all(group.portable for group in merged.groups_):
        console.remark(
            console.messages(),
            "note",
            "these models are exact on one kind of machine: learned on different kinds, they add up to nearly, "
            "not exactly, the model that learned it all",
        )
    if twice:
        console.remark(
            console.messages(),
            "note",
            f"{counted(twice, 'image')} had been learned by more than one model; each counts twice now",
        )
    console.output().print(console.knowledge(output, merged), soft_wrap=True)
    return 0
