"""Write a model as ONNX, compare the file with it in onnxruntime, image by image, and keep it only if they agree."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circle.data.decode import ImageConfig
from circle.data.images import Images
from circle.data.user_images import open_images, open_unlabelled
from circle.ensemble import LEVELS_PER_DEVIATION
from circle.errors import CircleError
from circle.export.graph import import_onnx
from circle.export.model import BEST, INPUT, PROBABILITIES, Layout, onnx_model, positions_name
from circle.extractors import ImageShape, extract
from circle.extractors.calibration import FINER
from circle.predictor import ImageClassifier, Predictor
from circle.runtime import container
from circle.runtime.noise import noise_images

TOLERANCE = 1e-4  # of a probability
#: How far from the boundary of two steps another runtime may round the other way, in deviations of the feature.
HAIR = 2.0**-12
BATCH = 32  # images in the timed batch, and at a time while comparing
RANDOM_IMAGES, RANDOM_SEED = 128, 1


@dataclass
class Agreement:
    """How the file did beside the model.

    Attributes
    ----------
    differences : list of float
        The largest difference among each image's probabilities.
    other_best : int
        Images with another best class.
    rounded_otherwise : int
        Images beyond the tolerance or with another best class that have a feature on a boundary.
    same_features : bool
        Whether all features were compared and were the same integers: so it must be where extractors are portable.
    """

    differences: list[float] = field(default_factory=list)
    other_best: int = 0
    rounded_otherwise: int = 0
    same_features: bool = False

    @property
    def images(self) -> int:
        return len(self.differences)

    @property
    def within(self) -> int:
        """Images whose probabilities all agree to the tolerance."""
        return sum(difference <= TOLERANCE for difference in self.differences)

    @property
    def largest(self) -> float:
        return max(self.differences)


@dataclass(frozen=True)
class Speed:
    """Images per second of the file in onnxruntime and of the model, with the same number of threads."""

    batch: int
    onnxruntime: float
    circle: float


@dataclass(frozen=True)
class Export:
    """What came of :func:`export_onnx`.

    Attributes
    ----------
    size : int
        Bytes of the file.
    agreement : Agreement
        How the file did beside the model.
    speeds : list of Speed
        Images per second of both.
    unreadable : list of str
        Why images to check with were skipped, one reason each.
    """

    size: int
    agreement: Agreement
    speeds: list[Speed]
    unreadable: list[str]


def export_onnx(
    model: ImageClassifier,
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
    predictor = model.for_prediction()
    try:
        proto = onnx_model(predictor, layout)
    except CircleError as error:
        raise CircleError(f"{path}: not written: {error}") from error
    unreadable: list[str] = []
    image = predictor.image_
    with container.atomic_path(path) as temporary:
        temporary.write_bytes(proto.SerializeToString())
        synthetic = random_images(ImageShape(image.channels, image.height, image.width))
        pixels = synthetic.numpy() if samples is None else readable(predictor.image_, samples, unreadable)
        try:
            found = agreement(predictor, temporary, counted(in_batches(pixels), report), layout)
        except CircleError as error:
            raise CircleError(f"{path}: not written: {error}") from error
        return Export(temporary.stat().st_size, found, speeds(predictor, temporary, synthetic, layout), unreadable)


def open_either(path: Path) -> Images:
    """Images from whatever holds them; labels are of no interest here."""
    return open_images(path) if path.suffix.lower() == ".npz" else open_unlabelled(path)


def readable(image: ImageConfig, images: Images, unreadable: list[str]) -> Iterator[np.ndarray]:
    """Pixels uint8 [C, H, W] in the model's shape; the reasons of those that have none go to ``unreadable``."""
    for _, pixels in images.readable_batches(image, BATCH, unreadable.append):
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


def import_onnxruntime() -> Any:
    """The onnxruntime package, which is an extra."""
    # It writes an identity of the machine to the user's cache folder and may report; nobody asked it to.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise CircleError("checking an export needs onnxruntime: pip install 'circle-cil[export]'") from error
    return onnxruntime


def open_session(file: Path | bytes) -> Any:
    """A session on the CPU with as many threads as PyTorch uses; ``file`` is a path or a file's content."""
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    content = str(file) if isinstance(file, Path) else file
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors share no class of their own
        raise CircleError(f"onnxruntime {runtime.__version__} refuses the graph: {error}") from error


def random_images(shape: ImageShape) -> Tensor:
    """Synthetic images uint8 [N, C, H, W] of 1/f noise, always the same; not those of the calibration."""
    return torch.from_numpy(noise_images(RANDOM_IMAGES, shape.channels, shape.height, shape.width, RANDOM_SEED))


def agreement(model: Predictor, path: Path, batches: Iterable[Tensor], layout: Layout) -> Agreement:
    """Compare the file at ``path`` with the model on images uint8 [B, C, H, W], or raise where they disagree.

    Features of portable extractors must be the same integers. Best class and probabilities must be the same, the latter
    to 1e-4. There is one excuse, for extractors that are not portable: float32 arithmetic in another order moves a
    feature by a hair, which may lie across the boundary of two steps of the grid. So an image that differs is then
    looked at once more, see :func:`rounds_otherwise`.
    """
    portable = all(group.portable for group in model.groups_)
    result = Agreement(same_features=portable)
    session = open_session(with_positions(model, path))
    names = [positions_name(index) for index in range(len(model.groups_))]
    for pixels in batches:
        features = model.features(pixels)
        expected = model.probabilities(features).cpu().numpy()
        found, best, *positions = session.run([PROBABILITIES, BEST, *names], {INPUT: arranged(pixels, layout)})
        differences = np.abs(found - expected).max(1)
        other = best != expected.argmax(1)
        if portable:
            pairs = zip(features, positions, strict=True)
            same = np.all([(mine.cpu().numpy() == theirs).all(1) for mine, theirs in pairs], axis=0)
            if not same.all():
                number = result.images + int(np.flatnonzero(~same)[0]) + 1
                raise CircleError(f"image {number} has other features in onnxruntime; expected the same integers")
        for index in np.flatnonzero(other | ~(differences <= TOLERANCE)):
            if portable or not rounds_otherwise(model, session, pixels[index : index + 1], layout):
                raise CircleError(
                    f"image {result.images + int(index) + 1} has probabilities up to {differences[index]:.1g} off in "
                    f"onnxruntime; expected {TOLERANCE:g} at most"
                    + ("" if portable else ", or a feature on the boundary of two steps of the grid")
                )
            result.rounded_otherwise += 1
        result.differences += differences.tolist()
        result.other_best += int(other.sum())
    if not result.images:
        raise CircleError("no readable image to check with")
    return result


def rounds_otherwise(model: Predictor, opened: Any, pixels: Tensor, layout: Layout) -> bool:
    """Whether the difference on one image comes from nothing but features within a hair of a boundary.

    Two things must hold: every position that the file finds is the model's unrounded one, rounded up or down after a
    move by less than a hair; and the model's own heads make the file's probabilities of these positions.
    """
    if not model.groups_[0].quantise:
        return False
    names = [positions_name(index) for index in range(len(model.groups_))]
    found, *positions = opened.run([PROBABILITIES, *names], {INPUT: arranged(pixels, layout)})
    device = model.groups_[0].grid.scale.device
    images = pixels.to(device)
    for group, values in zip(model.groups_, positions, strict=True):
        limit = torch.iinfo(group.grid.dtype).max
        unrounded = group.grid.positions(torch.cat(extract(group.members, images), 1)).clamp(-limit, limit)
        hair = HAIR * LEVELS_PER_DEVIATION * FINER[group.grid.bits]
        if float((torch.from_numpy(values) - unrounded.cpu()).abs().max()) > 0.5 + hair:
            return False
    expected = model.probabilities([torch.from_numpy(values).to(device) for values in positions])
    return bool(np.abs(found - expected.cpu().numpy()).max() <= TOLERANCE)


def with_positions(model: Predictor, path: Path) -> bytes:
    """The content of the file, opened up: positions on the grid are outputs, too."""
    onnx = import_onnx()
    proto = onnx.load(path)
    for index, group in enumerate(model.groups_):
        kind = onnx.TensorProto.FLOAT
        proto.graph.output.append(
            onnx.helper.make_tensor_value_info(positions_name(index), kind, ["batch", group.size])
        )
    return proto.SerializeToString()


def speeds(model: Predictor, path: Path, pixels: Tensor, layout: Layout) -> list[Speed]:
    """One image at a time and a batch, on images uint8 [N, C, H, W]: the fastest of runs for about a second each."""
    session, result = open_session(path), []
    for batch in (1, BATCH):
        given = pixels.repeat(-(-batch // len(pixels)), 1, 1, 1)[:batch]
        array = arranged(given, layout)
        result.append(
            Speed(
                batch,
                batch / fastest_seconds(lambda array=array: session.run([PROBABILITIES], {INPUT: array})),
                batch / fastest_seconds(lambda given=given: model.predict_proba(given)),
            )
        )
    return result


def fastest_seconds(work: Callable[[], Any], budget: float = 1.0) -> float:
    """The fastest of at least three runs, after one that does not count: what other programs take is not in it."""
    work()
    runs: list[float] = []
    while len(runs) < 3 or sum(runs) < budget:
        start = time.perf_counter()
        work()
        runs.append(time.perf_counter() - start)
    return min(runs)


def arranged(pixels: Tensor, layout: Layout) -> np.ndarray:
    """Images [B, C, H, W] in the file's layout."""
    return np.ascontiguousarray((pixels.permute(0, 2, 3, 1) if layout == "NHWC" else pixels).cpu().numpy())


def in_batches(pixels: Iterable[np.ndarray]) -> Iterator[Tensor]:
    """Images [C, H, W], one after the other, as batches [B, C, H, W]."""
    batch: list[np.ndarray] = []
    for each in pixels:
        batch.append(each)
        if len(batch) == BATCH:
            yield torch.from_numpy(np.stack(batch))
            batch = []
    if batch:
        yield torch.from_numpy(np.stack(batch))
