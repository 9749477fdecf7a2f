"""circle merge"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from circle.cli import console
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
    if twice:
        console.remark(
            console.messages(), "note", f"{twice:,} images had been learned by more than one model and count twice now"
        )
    console.output().print(
        f"{output} knows {len(merged.classes_):,} classes from {merged.samples_:,} images", soft_wrap=True
    )
    return 0
