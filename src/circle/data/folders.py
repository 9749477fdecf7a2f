"""Images in folders: which files count, in which order, and which class each belongs to.

The rules about names are shared with zip archives, which are folders by other means.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from circle.data.guard import printable, read_bytes, reason
from circle.errors import CircleError, UnreadableImageError

EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".gif", ".bmp", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".pfm"),
)
SPLITS = ("train", "test", "val", "valid", "validation")


def is_image_name(name: str) -> bool:
    """Whether a relative path looks like an image: a known extension and nothing hidden on the way.

    >>> is_image_name("cat/IMG_1.JPG"), is_image_name("cat/.thumbnails/1.jpg"), is_image_name("cat/notes.txt")
    (True, False, False)
    """
    parts = name.split("/")
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return not hidden and name.lower().endswith(EXTENSIONS)


def assign_labels(names: Iterable[str], path: Path) -> list[tuple[str, str]]:
    """(label, name) of every image below a class folder, sorted.

    A class folder is one right below ``path``, after stepping into folders that merely wrap all others, as
    unpacked archives have them. Images outside of any class folder have no label and are left out.

    Raises:
        CircleError: no images, no class folders, or splits (``train``, ``test``) in their place.
    """
    names = sorted(names)
    if not names:
        raise CircleError(f"{printable(path)}: no images in it; expected one folder of images per class")
    parts = [name.split("/") for name in names if "/" in name]
    if not parts:
        raise CircleError(f"{printable(path)}: images, but no class folders; expected one folder of images per class")
    wrapped = 0
    while all(len(part) > wrapped + 2 for part in parts) and len({part[wrapped] for part in parts}) == 1:
        wrapped += 1
    inside = path.joinpath(*parts[0][:wrapped])
    labelled = [(part[wrapped], "/".join(part)) for part in parts if len(part) > wrapped + 1]
    _refuse_splits([part[wrapped:] for part in parts], inside)
    return sorted(labelled)


def _refuse_splits(parts: list[list[str]], path: Path) -> None:
    """Refuse ``train`` and ``test`` as class names if they hold class folders of their own.

    One such name alone may well be a class: a train among cars and ships.
    """
    splits = sorted({part[0] for part in parts if len(part) > 1 and part[0].lower() in SPLITS})
    hold_classes = any(len(part) > 2 and part[0] in splits for part in parts)
    if len(splits) > 1 and hold_classes:
        proposal = next((split for split in splits if split.lower() == "train"), splits[0])
        raise CircleError(
            f"{printable(path)}: holds splits ({', '.join(splits)}), not classes: give {printable(path / proposal)}"
        )


def list_images(path: Path) -> list[str]:
    """Relative names of all images below a folder, sorted; symbolic links are followed, but never in circles.

    A dangling link counts: it is reported as unreadable when loaded, rather than silently left out.
    """
    home = path.resolve()
    names, folders = _entries(path, "")
    for folder in folders:
        # Once per folder right below the root, not once in all: two classes may link to the same images.
        seen = {home}
        pending = [folder]
        while pending:
            current = pending.pop()
            real = (path / current).resolve()
            if real not in seen:
                seen.add(real)
                inner_names, inner_folders = _entries(path / current, f"{current}/")
                names += inner_names
                pending += reversed(inner_folders)
    return sorted(names)


def read_images(path: Path, names: Iterable[str]) -> Iterator[bytes | UnreadableImageError]:
    """The content of each named file below a folder, or why it cannot be read; one at a time."""
    for name in names:
        try:
            yield read_bytes(path / name, str(path / name))
        except UnreadableImageError as error:
            yield error


def _entries(folder: Path, prefix: str) -> tuple[list[str], list[str]]:
    """Names of the images right inside a folder, and of its own folders, those that are links last."""
    names: list[str] = []
    folders: list[tuple[bool, str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _holds(entry, "folder"):
                    folders.append((entry.is_symlink(), prefix + entry.name))
                elif is_image_name(entry.name) and (entry.is_symlink() or _holds(entry, "file")):
                    names.append(prefix + entry.name)
    except OSError as error:
        raise CircleError(f"{printable(folder)}: {reason(error)}; expected a readable folder") from error
    return names, [name for _, name in sorted(folders)]


def _holds(entry: os.DirEntry[str], kind: str) -> bool:
    try:
        return entry.is_dir() if kind == "folder" else entry.is_file()
    except OSError:  # a link to itself
        return False
