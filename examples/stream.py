"""A stream without end: a generator yields images, the model first answers, then learns, and keeps none of them.

    python examples/stream.py

Classes appear as they come. Memory does not grow with the stream: what is learned are sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from circle import CircleClassifier

NAMES = ["stripes", "checks", "dots", "rings"]


def camera(seed: int = 0) -> Iterator[tuple[np.ndarray, str]]:
    """Textures uint8 [24, 24] with their names, one at a time, for ever; a new texture every 150 images."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:24, :24]
    for count in itertools.count():
        name = NAMES[random.integers(min(len(NAMES), 2 + count // 150))]
        frequency, phase = random.uniform(0.9, 1.3), random.uniform(0, 6.3, 2)
        across, down = np.sin(frequency * x + phase[0]), np.sin(frequency * y + phase[1])
        centre = random.uniform(8, 16, 2)
        pattern = {
            "stripes": across,
            "checks": np.sign(across * down),
            "dots": np.minimum(across, down),
            "rings": np.sin(frequency * np.hypot(x - centre[0], y - centre[1]) + phase[0]),
        }[name]
        noisy = 128 + 50 * pattern + random.normal(0, 40, pattern.shape)
        yield np.clip(noisy, 0, 255).astype(np.uint8), name


def main() -> None:
    model = CircleClassifier.from_preset("small", image_size=24, channels=1)
    stream = camera()
    print("images  classes  right before learning  memory of what was learned")
    for _ in range(6):
        right = total = 0
        for _ in range(5):
            images, names = zip(*itertools.islice(stream, 20), strict=True)
            if hasattr(model, "classes_"):
                right += int(np.sum(model.predict(np.stack(images)) == np.array(names)))
                total += len(names)
            model.partial_fit(np.stack(images), names)
        size = model.statistics_bytes / 1e6
        print(f"{model.samples_:6}  {len(model.classes_):7}  {right / total:21.0%}  {size:23.1f} MB")


if __name__ == "__main__":
    main()
