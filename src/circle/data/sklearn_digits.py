"""scikit-learn's handwritten digits as a data set: always there, nothing to download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from circle.config import Config, option
from circle.data.array_images import ArrayImages
from circle.data.datasets import Dataset
from circle.data.decode import ImageConfig
from circle.registry import register


@dataclass(frozen=True)
class DigitsConfig(Config):
    """Handwritten digits: 10 classes, 1,257 + 540 images, 8 x 8 enlarged to 32 x 32, grey."""

    name: ClassVar[str] = "digits"

    image_size: int = option(32, "height and width of the images in pixels")

    def check(self) -> None:
        self.require(1 <= self.image_size <= 4096, "image_size", "1 to 4096")


@register("dataset", DigitsConfig)
def load_digits(config: DigitsConfig, workers: int = 0) -> Dataset:
    """The split of :func:`circle.data.digits.load_digits_images`."""
    from circle.data.digits import load_digits_images  # scikit-learn's data sets take a while to import

    split = load_digits_images()
    shape = ImageConfig(height=config.image_size, width=config.image_size, channels=1)
    train = ArrayImages(split.train_images, split.train_labels, shape, "digits train")
    test = ArrayImages(split.test_images, split.test_labels, shape, "digits test")
    return Dataset("digits", [str(digit) for digit in range(10)], shape, train, test)
