"""Write a model as ONNX, compare the file with the model, and keep it only if the two agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from circle import checkpoint
from circle.data.images import Images
from circle.data.user_images import open_images, open_unlabelled
from circle.errors import CircleError
from circle.export.checking import Agreement, Speed, agreement, import_onnxruntime, in_batches, random_images, speeds
from circle.export.model import Layout, onnx_model
from circle.extractors import ImageShape
from circle.learner import IMAGES_PER_TILE, CircleClassifier


@dataclass(frozen=True)
class Export:
    """What came of :func:`export_onnx`."""

    size: int  # bytes of the file
    agreement: Agreement
    speeds: list[Speed]
    unreadable: list[str]  # why images to check with were skipped


def export_onnx(
    model: CircleClassifier,
    path: str | Path,
    *,
    layout: Layout = "NHWC",
    check: str | Path | None = None,
    report: Callable[[int], None] = lambda images: None,
) -> Export:
    """Write ``model`` to ``path`` as ONNX, compare the file with it, and time both.

    ``check`` names images to compare on (a file, folder, zip archive or npz); without it they are synthetic. A file
    that disagrees is not kept: ``path`` is then as it was before. ``report`` hears how many images have been compared.
    """
    path = Path(path)
    import_onnxruntime()  # what is missing is said before the work begins
    samples = None if check is None else open_either(Path(check))
    model._require_learned()
    try:
        proto = onnx_model(model, layout)
    except CircleError as error:
        raise CircleError(f"{path}: not written: {error}") from error
    unreadable: list[str] = []
    image = model.image_
    with checkpoint.atomic_path(path) as temporary:
        temporary.write_bytes(proto.SerializeToString())
        synthetic = random_images(ImageShape(image.channels, image.height, image.width))
        pixels = synthetic.numpy() if samples is None else readable(model, samples, unreadable)
        try:
            found = agreement(model, temporary, counted(in_batches(pixels), report), layout)
        except CircleError as error:
            raise CircleError(f"{path}: not written: {error}") from error
        return Export(temporary.stat().st_size, found, speeds(model, temporary, synthetic, layout), unreadable)


def open_either(path: Path) -> Images:
    """Images from whatever holds them; labels are of no interest here."""
    return open_images(path) if path.suffix.lower() == ".npz" else open_unlabelled(path)


def readable(model: CircleClassifier, images: Images, unreadable: list[str]) -> Iterator[np.ndarray]:
    """Pixels uint8 [C, H, W] in the model's shape; the reasons of those that have none go to ``unreadable``."""
    for _, pixels in images.readable_batches(model.image_, IMAGES_PER_TILE, unreadable.append):
        yield from pixels
    if len(unreadable) == len(images):
        raise CircleError(f"no readable image to check with ({unreadable[0]})")


def counted(batches: Iterable[Tensor], report: Callable[[int], None]) -> Iterator[Tensor]:
    """The same batches; ``report`` hears how many images are done."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch)
        report(done)
