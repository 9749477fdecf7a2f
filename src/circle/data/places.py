"""Which data sets are on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from circle.data import fetching, imagenet


def place(name: str) -> tuple[bool, str]:
    """Whether a data set is on this machine, and where it is or how it gets there."""
    if name in fetching.DOWNLOADS:
        found = fetching.find(name)
        return (False, f"circle data fetch {name}") if found is None else (True, str(found))
    if name == "digits":
        return True, "comes with scikit-learn"
    if name == "folder":
        return False, "--path of your own"
    folder = os.environ.get(imagenet.ENVIRONMENT)
    return (True, folder) if folder and Path(folder).is_dir() else (False, f"{imagenet.ENVIRONMENT} or --path")
