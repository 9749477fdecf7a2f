"""Tiny ImageNet from its official archive or the folder that it unpacks to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from circle.data.archives import open_zip, split_archive
from circle.data.datasets import Dataset, DatasetConfig, number_classes
from circle.data.download import locate
from circle.data.folders import FileImages, list_images
from circle.errors import CircleError, printable, reason
from circle.registry import register

SIDE = 64
OFFICIAL = (100_000, 10_000)
ANNOTATIONS = "val/val_annotations.txt"


@dataclass(frozen=True)
class TinyImageNetConfig(DatasetConfig):
    """Tiny ImageNet: 200 classes of 500 + 50 photographs, 64 x 64, RGB."""

    name: ClassVar[str] = "tinyimagenet"


@register("dataset", TinyImageNetConfig)
def load_tinyimagenet(config: TinyImageNetConfig, workers: int = 0) -> Dataset:
    """``train/<wnid>/images/*.JPEG``, and ``val/images`` with its annotations as the test part, as everybody does.

    The official test images have no labels. Folders ``val/<wnid>`` or ``test/<wnid>`` serve as well. ``path`` is
    the folder, the folder around it, or the zip archive, which is read as it is.
    """
    path = locate("tinyimagenet", config.path)
    shape = config.shape(SIDE, 3)
    root, names = list_images(path).files()
    # Whatever is above the folder train: nothing, tiny-imagenet-200/, or an archive and that.
    places = (f"/{name}".find("/train/") for name in names)
    top = next((name[:place] for name, place in zip(names, places, strict=True) if place >= 0), None)
    if top is None:
        raise CircleError(f"{printable(path)}: no images in a folder train; expected Tiny ImageNet's layout")
    inside = [name.removeprefix(top) for name in names if name.startswith(top)]
    train = [(name.split("/")[1], name) for name in inside if name.startswith("train/") and name.count("/") > 1]
    test = _annotated(root, top, inside) or _in_class_folders(inside)
    if not test:
        raise CircleError(f"{printable(path)}: no labelled test images; expected {ANNOTATIONS}, or val/<class>/")
    classes, *labels = number_classes([wnid for wnid, _ in train], [wnid for wnid, _ in test], path)
    parts = [
        FileImages(root, [top + name for _, name in pairs], numbers, shape, workers, classes)
        for pairs, numbers in zip((train, test), labels, strict=True)
    ]
    counts = len(train), len(test)
    note = "" if counts == OFFICIAL else f"{counts[0]:,} + {counts[1]:,} images instead of 100,000 + 10,000"
    return Dataset("tinyimagenet", classes, shape, *parts, path=path, note=note)


def _annotated(root: Path, top: str, inside: list[str]) -> list[tuple[str, str]]:
    """(wnid, name) of the validation images by the official list; nothing if there is no such list."""
    text = _read_text(root, f"{top}{ANNOTATIONS}")
    if text is None:
        return []
    present = set(inside)
    labelled = []
    for line in text.splitlines():
        image, _, rest = line.partition("\t")
        name = f"val/images/{image}"
        wnid = rest.partition("\t")[0]
        if not wnid or name not in present:
            raise CircleError(
                f"{printable(root / top)}: {ANNOTATIONS} lists {printable(image)!r}, which is not there: damaged, "
                "`circle data fetch tinyimagenet` repairs the copy in the cache folder"
            )
        labelled.append((wnid, name))
    return sorted(labelled)


def _in_class_folders(inside: list[str]) -> list[tuple[str, str]]:
    for part in ("val/", "test/"):
        labelled = [(name.split("/")[1], name) for name in inside if name.startswith(part) and name.count("/") > 1]
        if {wnid for wnid, _ in labelled} - {"images"}:
            return labelled
    return []


def _read_text(root: Path, name: str) -> str | None:
    """A text file in the folder or archive, or nothing if it is not there."""
    archived = split_archive(f"{root}/{name}")
    try:
        if archived is None:
            return (root / name).read_text(encoding="utf-8")
        with open_zip(Path(archived[0])) as archive:
            return archive.read(archived[1]).decode() if archived[1] in archive.namelist() else None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CircleError(f"{printable(root / name)}: cannot be read ({reason(error)})") from error
