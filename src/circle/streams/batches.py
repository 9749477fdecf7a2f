"""Images in any form that Python users have them, checked once and converted tile by tile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from circle.errors import CircleError
from circle.streams.decode import ImageConfig, to_pixels

TILE = 1024  # images looked at together while checking


@dataclass(frozen=True)
class ImageWish:
    """What the user's settings say of the image shape; the first batch decides the rest."""

    size: tuple[int, int] | None
    channels: int | None
    aspect: str
    background: int

    def decided(self, height: int, width: int, channels: int) -> ImageConfig:
        height, width = self.size or (height, width)
        values = {"height": height, "width": width, "channels": self.channels or channels}
        return ImageConfig.from_dict({**values, "aspect": self.aspect, "background": self.background})


class ImageBatch:
    """A view of the user's images: ``len``, ``check`` and ``tile``, nothing copied before it is needed.

    Accepted: NumPy arrays [N, H, W], [N, H, W, C] or [N, D] with D a flattened square image (rows of an
    [S, S] or [S, S, 3] image); tensors of the same shapes, but [N, C, H, W] where they have four axes, as
    PyTorch has it; sequences of PIL images or of arrays of different sizes. Integers run from 0 to 255 (uint16:
    to 65,535), floats from 0 to 1.
    """

    def __init__(self, images: Any, config: ImageConfig | ImageWish, *, resize: bool) -> None:
        """``config`` is the model's image shape, or what is known of it before the first batch has decided.

        ``resize`` says whether arrays of another size are brought to it, or refused.
        """
        images = _stacked(images)
        self._pictures = images if isinstance(images, list) else []
        self._values: Tensor | None = None
        if isinstance(images, list):
            self.config = config.decided(32, 32, 3) if isinstance(config, ImageWish) else config
            return
        values = images if isinstance(images, Tensor) else _tensor(images)
        known = config if isinstance(config, ImageConfig) else None
        self._values = _with_channels(values, known, channels_first=isinstance(images, Tensor))
        _, channels, height, width = self._values.shape
        self.config = known or config.decided(height, width, channels)  # pyright: ignore[reportAttributeAccessIssue]
        if channels != self.config.channels:
            raise CircleError(
                f"images with {channels} channels (shape {list(images.shape)}): the model takes {self.config.channels}"
            )
        self._resize = (height, width) != (self.config.height, self.config.width)
        if self._resize and not resize:
            raise CircleError(
                f"images of {height} x {width} pixels (shape {list(images.shape)}): the model takes "
                f"{self.config.height} x {self.config.width}; set image_size to have arrays resized"
            )

    def __len__(self) -> int:
        return len(self._pictures) if self._values is None else len(self._values)

    def check(self) -> None:
        """Look at every value before any is learned: a bad one rejects the whole batch."""
        if self._values is None:
            for index, picture in enumerate(self._pictures):
                self._picture(index, picture)
            return
        for start in range(0, len(self), TILE):
            _check_values(self._values[start : start + TILE])

    def tile(self, start: int, stop: int) -> Tensor:
        """Images start to stop as float32 [B, C, H, W] in [0, 1]."""
        if self._values is None:
            pictures = [self._picture(start + i, p) for i, p in enumerate(self._pictures[start:stop])]
            return torch.from_numpy(np.stack(pictures)).to(torch.float32).div_(255.0)
        values = self._values[start:stop]
        if self._resize:
            arrays = values.permute(0, 2, 3, 1).cpu().numpy()
            resized = np.stack([to_pixels(_uint8_or_float(array), self.config, "image") for array in arrays])
            return torch.from_numpy(resized).to(torch.float32).div_(255.0)
        scaled = values.to(torch.float32)
        return scaled if values.is_floating_point() else scaled.div(_full_scale(values.dtype))

    def _picture(self, index: int, picture: Any) -> np.ndarray:
        if not isinstance(picture, (Image.Image, np.ndarray)):
            raise CircleError(f"image {index} is a {type(picture).__name__}: expected a PIL image or an array")
        return to_pixels(picture, self.config, f"image {index}")


def _stacked(images: Any) -> np.ndarray | Tensor | list[Any]:
    """One array or tensor where the images allow it, else a list of pictures."""
    if isinstance(images, Image.Image):
        return [images]
    if isinstance(images, Tensor) or (isinstance(images, np.ndarray) and not images.dtype.hasobject):
        return images
    if hasattr(images, "toarray"):
        raise CircleError("sparse input: expected dense images, an array [N, H, W] or [N, H, W, C]")
    if not isinstance(images, (list, tuple, np.ndarray)):
        if not hasattr(images, "__array__"):
            raise CircleError(
                f"images of type {type(images).__name__}: expected an array, a tensor or a list of images"
            )
        return np.asarray(images)
    if isinstance(images, np.ndarray) and images.ndim > 1:  # objects that are numbers, one hopes
        return _numbers(images)
    pictures = list(images)
    if any(isinstance(picture, Image.Image) for picture in pictures):
        return pictures
    if pictures and all(isinstance(picture, Tensor) for picture in pictures):
        if len({picture.shape for picture in pictures}) > 1:
            raise CircleError("tensors of different shapes: expected one shape, or PIL images")
        return torch.stack(pictures)
    if pictures and all(isinstance(picture, np.ndarray) for picture in pictures):
        return np.stack(pictures) if len({picture.shape for picture in pictures}) == 1 else pictures
    return _numbers(pictures)


def _numbers(values: Any) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64)
    except TypeError as error:
        raise TypeError(f"images cannot be read as an array of numbers: {error}") from error
    except ValueError as error:
        raise CircleError(f"images cannot be read as an array of numbers ({error})") from error


def _tensor(array: np.ndarray) -> Tensor:
    if array.dtype.kind == "c":
        raise CircleError("Complex data not supported: expected real images")
    if array.dtype.kind not in "buif":
        raise CircleError(f"images of type {array.dtype}: expected numbers")
    if array.dtype == np.uint16:
        array = array.astype(np.int32)  # torch computes little with uint16
        return torch.from_numpy(array).to(torch.float32).div_(65535.0)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype in (np.uint32, np.uint64, np.float16, np.longdouble):
        native = native.astype(np.float64 if native.dtype.kind == "f" else np.int64)
    # torch cannot hold negative strides and warns about memory it may not write to; it never writes here.
    native = native if native.flags.writeable and min(native.strides, default=0) >= 0 else native.copy()
    return torch.from_numpy(native)


def _with_channels(values: Tensor, config: ImageConfig | None, *, channels_first: bool) -> Tensor:
    """Any accepted shape as [N, C, H, W]; a view, not a copy."""
    shape = list(values.shape)
    if values.ndim == 4:
        ordered = values if channels_first else values.permute(0, 3, 1, 2)
        if ordered.shape[1] > 16:
            hint = "tensors are [N, C, H, W]" if channels_first else "arrays are [N, H, W, C], tensors [N, C, H, W]"
            raise CircleError(f"images of shape {shape}: {hint}, with at most 16 channels")
        return _not_empty(ordered, shape)
    if values.ndim == 3:
        return _not_empty(values.unsqueeze(1), shape)
    if values.ndim != 2:
        raise CircleError(
            f"images of shape {shape}: expected [N, H, W], [N, H, W, C] or flattened [N, D]. "
            "Reshape your data: a single image is [1, H, W]"
        )
    length = shape[1]
    if not length:
        return _not_empty(values, shape)
    if config and length == config.height * config.width * config.channels:
        height, width, channels = config.height, config.width, config.channels
    else:
        channels = 1 if math.isqrt(length) ** 2 == length else 3
        height = width = math.isqrt(length // channels)
        if height * width * channels != length:
            raise CircleError(f"images of shape {shape}: {length} values are not a square image of 1 or 3 channels")
    return _not_empty(values.reshape(shape[0], height, width, channels).permute(0, 3, 1, 2), shape)


def _not_empty(values: Tensor, shape: list[int]) -> Tensor:
    if 0 in values.shape:
        what = "0 sample(s)" if not shape[0] else "0 feature(s)"
        raise CircleError(f"images: {what} (shape={tuple(shape)}) while a minimum of 1 is required.")
    return values


def _check_values(values: Tensor) -> None:
    if values.dtype == torch.bool or values.dtype == torch.uint8:
        return
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        raise CircleError("images contain NaN or infinity: expected finite values; nothing was learned")
    lowest, highest = float(values.min()), float(values.max())
    top = 1 if values.is_floating_point() else 255
    if lowest < 0 or highest > top:
        kind = "float" if values.is_floating_point() else "integer"
        sign = "Negative values in data: " if lowest < 0 else ""
        raise CircleError(f"{sign}{kind} images with values from {lowest:g} to {highest:g}: expected 0 to {top}")


def _full_scale(dtype: torch.dtype) -> float:
    return 1.0 if dtype == torch.bool else 255.0


def _uint8_or_float(array: np.ndarray) -> np.ndarray:
    """Integers of any width are 0 to 255 here, already checked."""
    return array.astype(np.uint8) if array.dtype.kind in "iu" else array
