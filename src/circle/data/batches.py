"""Images in any form that Python users have them, checked once and converted tile by tile."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from circle.data.decode import ImageConfig, read_pixels, to_pixels
from circle.data.image_sizes import picture_size, sampled_positions, side_for, typical_size
from circle.errors import CircleError, UnreadableImageError

CHECK_BATCH = 1024  # images whose values are looked at at a time


@dataclass(frozen=True)
class ImageOptions:
    """What the user's settings say of the image shape; the first batch decides the rest.

    ``size`` is None where arrays keep their own, and "auto" where the batch decides for one of the sides that presets
    are made for.

    >>> ImageOptions(size=(16, 16), channels=None, aspect="crop", background=255).decided(28, 28, 1).to_dict()["width"]
    16
    """

    size: tuple[int, int] | Literal["auto"] | None
    channels: int | None
    aspect: str
    background: int

    def decided(self, height: int, width: int, channels: int) -> ImageConfig:
        if self.size == "auto":
            height = width = side_for(height, width)
        elif self.size is not None:
            height, width = self.size
        values = {"height": height, "width": width, "channels": self.channels or channels}
        return ImageConfig.from_dict({**values, "aspect": self.aspect, "background": self.background})


class ImageBatch:
    """A view of the user's images: ``len``, ``check`` and ``tile``, nothing copied before it is needed.

    Accepted: NumPy arrays [N, H, W], [N, H, W, C] or [N, D] with D a flattened square image (rows of an
    [S, S] or [S, S, 3] image); tensors of the same shapes, but [N, C, H, W] where they have four axes, as
    PyTorch has it; sequences of PIL images, of paths to image files or of arrays of different sizes. Integers run from
    0 to 255 (uint16: to 65,535), floats from 0 to 1.

    One PIL image and one path are batches of one. So is one array without the axis N, where the model's image shape
    leaves no doubt: [H, W, C] (a tensor [C, H, W]) for models of several channels, [H, W] of just the model's size for
    those of one channel that resize no arrays.
    """

    def __init__(self, images: Any, config: ImageConfig | ImageOptions, *, resize: bool) -> None:
        """``config`` is the model's image shape, or what is known of it before the first batch has decided.

        ``resize`` says whether arrays of another size are brought to it, or refused.
        """
        known = config if isinstance(config, ImageConfig) else None
        if known is not None and _is_single(images, known, resize=resize):
            images = images[None]
        self._source, self._pictures = _sorted_out(images)
        if self._pictures:
            self.config = config if isinstance(config, ImageConfig) else config.decided(*self._picture_size(config), 3)
            return
        shape = _shape(_real(self._source))
        self._layout = _layout(shape, known, channels_first=_is_tensors(self._source))
        channels, height, width = self._layout
        self.config = known or config.decided(height, width, channels)  # pyright: ignore[reportAttributeAccessIssue]
        if channels != self.config.channels:
            raise CircleError(
                f"images with {channels} channels (shape {shape}): the model takes {self.config.channels}; "
                "a single image is written image[None]"
            )
        self._resize = (height, width) != (self.config.height, self.config.width)
        if self._resize and not resize:
            raise CircleError(
                f"images of {height} x {width} pixels (shape {shape}): the model takes "
                f"{self.config.height} x {self.config.width}; set image_size to have arrays resized"
            )

    def __len__(self) -> int:
        return len(self._source)

    def check(self) -> None:
        """Look at every value before any is learned: a bad one rejects the whole batch."""
        if self._pictures:
            for index, picture in enumerate(self._source):
                self._picture(index, picture)
            return
        for start in range(0, len(self), CHECK_BATCH):
            _check_values(self._values(start, start + CHECK_BATCH))

    def tile(self, start: int, stop: int) -> Tensor:
        """Images start to stop as uint8 [B, C, H, W]; numbers from 0 to 1 become the nearest of 256 levels."""
        if self._pictures:
            pictures = [self._picture(start + index, each) for index, each in enumerate(self._source[start:stop])]
            return torch.from_numpy(np.stack(pictures))
        values = self._values(start, stop)
        if self._resize:
            arrays = values.permute(0, 2, 3, 1).cpu().numpy()
            resized = np.stack([to_pixels(_uint8_or_float(array), self.config, "image") for array in arrays])
            return torch.from_numpy(resized)
        if values.dtype == torch.uint8:
            return values
        levels = values.to(torch.float64) * 255.0
        return (levels if values.is_floating_point() else levels / _full_scale(values.dtype)).round_().to(torch.uint8)

    def _values(self, start: int, stop: int) -> Tensor:
        """Images start to stop as they were given, [B, C, H, W]; the only part of them that is ever copied."""
        part = self._source[start:stop]
        if isinstance(part, list):
            part = torch.stack(part) if _is_tensors(part) else np.stack(part)
        channels_first = isinstance(part, Tensor)
        values = part if isinstance(part, Tensor) else _tensor(part)
        if values.ndim == 4:
            return values if channels_first else values.permute(0, 3, 1, 2)
        channels, height, width = self._layout
        return values.reshape(len(values), height, width, channels).permute(0, 3, 1, 2)

    def _picture_size(self, options: ImageOptions) -> tuple[int, int]:
        """The size that stands for those of the pictures where they decide; 32 x 32 where they do not."""
        sizes: list[tuple[int, int]] = []
        for index in sampled_positions(len(self)) if options.size == "auto" else ():
            picture = self._source[int(index)]
            picture = Path(picture) if isinstance(picture, str) else picture
            if isinstance(picture, (Path, Image.Image, np.ndarray)):  # of anything else `check` says what is wrong
                with contextlib.suppress(UnreadableImageError):
                    sizes.append(picture_size(picture, f"image {index}"))
        return typical_size(sizes) or (32, 32)

    def _picture(self, index: int, picture: Any) -> np.ndarray:
        if isinstance(picture, (str, Path)):
            return read_pixels(Path(picture), self.config, str(picture))
        if not isinstance(picture, (Image.Image, np.ndarray)):
            raise CircleError(
                f"image {index} is a {type(picture).__name__}: expected a PIL image, an array or the path of a file"
            )
        return to_pixels(picture, self.config, f"image {index}")


def _sorted_out(images: Any) -> tuple[np.ndarray | Tensor | list[Any], bool]:
    """The images as something that can be sliced, and whether they are pictures of their own sizes."""
    if isinstance(images, (Image.Image, str, Path)):
        return [images], True
    if isinstance(images, np.ndarray) and images.ndim == 1 and images.dtype.kind == "U":
        return images.tolist(), True
    if isinstance(images, Tensor) or (isinstance(images, np.ndarray) and not images.dtype.hasobject):
        return images, False
    if hasattr(images, "toarray"):
        raise CircleError("sparse input: expected dense images, an array [N, H, W] or [N, H, W, C]")
    if not isinstance(images, (list, tuple, np.ndarray)):
        if not hasattr(images, "__array__"):
            raise CircleError(
                f"images of type {type(images).__name__}: expected an array, a tensor or a list of images"
            )
        return np.asarray(images), False
    if isinstance(images, np.ndarray) and images.ndim > 1:  # objects that are numbers, one hopes
        return _numbers(images), False
    pictures = list(images)
    if any(isinstance(picture, (Image.Image, str, Path)) for picture in pictures):
        return pictures, True
    if pictures and all(isinstance(picture, (Tensor, np.ndarray)) for picture in pictures):
        alike = len({(type(picture), tuple(picture.shape)) for picture in pictures}) == 1
        if not alike and any(isinstance(picture, Tensor) for picture in pictures):
            raise CircleError("tensors of different shapes: expected one shape, or PIL images")
        return pictures, not alike
    return _numbers(pictures), False


def _is_single(images: Any, config: ImageConfig, *, resize: bool) -> bool:
    """Whether an array can only be one image without an axis for the batch."""
    if not isinstance(images, (np.ndarray, Tensor)):
        return False
    shape, own = tuple(images.shape), (config.height, config.width)
    if config.channels == 1:
        # [N, H, W] and flattened [N, D] are batches of grey images: only the very size of the model's is one image.
        return not resize and ((shape == own and config.height > 1) or (shape == (*own, 1) and config.width > 1))
    channels = shape[0 if isinstance(images, Tensor) else -1] if len(shape) == 3 else 0
    return channels == config.channels


def _is_tensors(images: np.ndarray | Tensor | list[Any]) -> bool:
    return isinstance(images[0] if isinstance(images, list) else images, Tensor)


def _shape(images: np.ndarray | Tensor | list[Any]) -> list[int]:
    return [len(images), *images[0].shape] if isinstance(images, list) else list(images.shape)


def _numbers(values: Any) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64)
    except TypeError as error:
        raise TypeError(f"images cannot be read as an array of numbers: {error}") from error
    except ValueError as error:
        raise CircleError(f"images cannot be read as an array of numbers ({error})") from error


def _real(images: Any) -> Any:
    """The images, or a refusal of arrays that are not of real numbers."""
    dtype = images[0].dtype if isinstance(images, list) else images.dtype
    if isinstance(dtype, np.dtype) and dtype.kind == "c":
        raise CircleError("Complex data not supported: expected real images")
    if isinstance(dtype, np.dtype) and dtype.kind not in "buif":
        raise CircleError(f"images of type {dtype}: expected numbers")
    return images


def _tensor(array: np.ndarray) -> Tensor:
    if array.dtype == np.uint16:
        array = array.astype(np.int32)  # torch computes little with uint16
        return torch.from_numpy(array).to(torch.float32).div_(65535.0)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype in (np.uint32, np.uint64, np.float16, np.longdouble):
        native = native.astype(np.float64 if native.dtype.kind == "f" else np.int64)
    if not native.flags.writeable or min(native.strides, default=0) < 0:
        native = native.copy()  # torch warns of memory that it may not write to, and has no negative strides
    return torch.from_numpy(native)


def _layout(shape: list[int], config: ImageConfig | None, *, channels_first: bool) -> tuple[int, int, int]:
    """Channels, height and width of images of this shape."""
    if 0 in shape:
        what = "0 sample(s)" if not shape[0] else "0 feature(s)"
        raise CircleError(f"images: {what} (shape={tuple(shape)}) while a minimum of 1 is required.")
    if len(shape) == 4:
        channels, height, width = shape[1:] if channels_first else (shape[3], shape[1], shape[2])
        if channels > 16:
            hint = "tensors are [N, C, H, W]" if channels_first else "arrays are [N, H, W, C], tensors [N, C, H, W]"
            raise CircleError(f"images of shape {shape}: {hint}, with at most 16 channels")
        return channels, height, width
    if len(shape) == 3:
        return 1, shape[1], shape[2]
    if len(shape) != 2:
        raise CircleError(
            f"images of shape {shape}: expected [N, H, W], [N, H, W, C] or flattened [N, D]. "
            "Reshape your data: a single image is [1, H, W]"
        )
    length = shape[1]
    if config and length == config.height * config.width * config.channels:
        return config.channels, config.height, config.width
    channels = 1 if math.isqrt(length) ** 2 == length else 3
    side = math.isqrt(length // channels)
    if side * side * channels != length:
        raise CircleError(f"images of shape {shape}: {length} values are not a square image of 1 or 3 channels")
    return channels, side, side


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
