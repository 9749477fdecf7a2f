"""Does an ONNX file say what the model says? Compared in onnxruntime, image by image, and timed."""

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

from circle.errors import CircleError
from circle.export.model import BEST, INPUT, PROBABILITIES, Layout
from circle.extractors import ImageShape, pink_noise
from circle.learner import CircleClassifier

TOLERANCE = 1e-4  # of a probability
BATCH = 32  # images in the timed batch, and at a time while comparing
RANDOM_IMAGES, RANDOM_SEED = 128, 1


@dataclass
class Agreement:
    """How the file did beside the model."""

    differences: list[float] = field(default_factory=list)  # largest of each image's probabilities
    other_best: int = 0  # images with another best class

    @property
    def images(self) -> int:
        return len(self.differences)

    @property
    def largest(self) -> float:
        return max(self.differences)


@dataclass(frozen=True)
class Speed:
    """Images per second of the file in onnxruntime and of the model, with the same number of threads."""

    batch: int
    onnxruntime: float
    circle: float


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
    return pink_noise(RANDOM_IMAGES, shape, RANDOM_SEED).mul(255.0).round().to(torch.uint8)


def agreement(model: CircleClassifier, path: Path, batches: Iterable[Tensor], layout: Layout) -> Agreement:
    """Compare the file at ``path`` with the model on images uint8 [B, C, H, W], or raise where they disagree.

    Probabilities must be the same to 1e-4. The best class then is the same, too, but where two are as probable as that
    to each other: such images are counted.
    """
    session, result = open_session(path), Agreement()
    for pixels in batches:
        expected = model.predict_proba(pixels)
        found, best = session.run([PROBABILITIES, BEST], {INPUT: arranged(pixels, layout)})
        differences = np.abs(found - expected).max(1)
        wrong = ~(differences <= TOLERANCE)  # also where they are not numbers
        if wrong.any():
            index = int(wrong.argmax())
            raise CircleError(
                f"image {result.images + index + 1} has probabilities up to {differences[index]:.1g} off in "
                f"onnxruntime; expected {TOLERANCE:g} at most"
            )
        result.differences += differences.tolist()
        result.other_best += int((best != expected.argmax(1)).sum())
    if not result.images:
        raise CircleError("no readable image to check with")
    return result


def speeds(model: CircleClassifier, path: Path, pixels: Tensor, layout: Layout) -> list[Speed]:
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
