"""What the tests of serving share: a small model, pictures, and a model store."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from circle import BiRC2DConfig, CircleClassifier
from circle.data.decode import read_pixels
from circle.serve.limits import Limits
from circle.serve.model_store import LearnRequest, ModelStore

TINY = BiRC2DConfig(stem_channels=(4,), patch_sizes=(2, 4), width=5, grid=2, moments=("mean",))
COLOURS = {"ant": (200, 60, 60), "bee": (60, 200, 60), "cat": (60, 60, 200)}


def tiny_model() -> CircleClassifier:
    return CircleClassifier(extractor=TINY, image_size=16, channels=3)


def png(name: str, number: int = 0) -> bytes:
    """A noisy picture in the colour of a class."""
    random = np.random.default_rng([number, *name.encode()])
    colour = np.array(COLOURS.get(name, (120, 120, 120)))
    pixels = np.clip(colour + random.normal(0, 50, (18, 20, 3)), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def learn_request(name: str, number: int = 0, group: str = "", hold: bool = False) -> LearnRequest:
    content = png(name, number)
    return LearnRequest(name, read_pixels(content, tiny_model().input_config(), "image"), content, hold, group)


def open_store(path: Path, **limits: int) -> ModelStore:
    return ModelStore(path, tiny_model, Limits(**limits))


def learn(store: ModelStore, name: str, *numbers: int, group: str = "", hold: bool = False) -> list:
    return store.learn([learn_request(name, number, group, hold) for number in numbers])


def learned(pairs: list[tuple[str, int]]) -> CircleClassifier:
    """The model that learned these pictures offline, all at once."""
    model = tiny_model()
    pixels = np.stack([learn_request(name, number).pixels.transpose(1, 2, 0) for name, number in pairs])
    return model.partial_fit(pixels, [name for name, _ in pairs])
