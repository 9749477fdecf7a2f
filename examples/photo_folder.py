"""A folder of photos, one sub-folder for each class: learn it, ask about new pictures, go on with a new class.

    python examples/photo_folder.py

draws its own photos of shapes into the current folder, in all sizes and formats, one of them broken. It does in Python
what `circle learn`, `circle evaluate` and `circle predict` do on the command line.
"""

from __future__ import annotations

import random
from pathlib import Path

from PIL import Image, ImageDraw

from circle import CircleClassifier
from circle.benchmark.evaluation import evaluate
from circle.data.user_images import open_images
from circle.learning import teach

CORNERS = {"triangle": 3, "square": 4, "disc": 60}


def draw(folder: Path, shapes: list[str], count: int, seed: int) -> None:
    """Pictures of one shape each, in any colours, sizes and places: folder/shape/number.(jpg, png, webp)."""
    dice = random.Random(seed)
    for shape in shapes:
        (folder / shape).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            width, height = dice.randint(60, 160), dice.randint(60, 160)
            photo = Image.new("RGB", (width, height), tuple(dice.randint(150, 255) for _ in range(3)))
            radius = dice.uniform(0.25, 0.4) * min(width, height)
            place = (width / 2 + dice.uniform(-6, 6), height / 2 + dice.uniform(-6, 6), radius)
            colour = tuple(dice.randint(0, 120) for _ in range(3))
            ImageDraw.Draw(photo).regular_polygon(place, CORNERS[shape], rotation=dice.randint(-10, 10), fill=colour)
            photo.save(folder / shape / f"{number:03}.{('jpg', 'png', 'webp')[number % 3]}")


def main() -> None:
    draw(Path("photos"), ["square", "disc"], 40, seed=0)
    Path("photos/disc/broken.jpg").write_bytes(b"not a picture")

    path = Path("shapes.circle")
    model = CircleClassifier.from_preset("fast")  # the photos decide for 32, 64 or 224 pixels, and are brought to it
    lesson = teach(path, open_images("photos"), model)
    print(
        f"learned {lesson.learned} photos of {', '.join(model.classes_)}; skipped {len(lesson.unreadable)} unreadable"
    )

    # Weeks later: the file has all that is needed to go on, and a new class is no trouble.
    draw(Path("more-photos"), ["triangle"], 40, seed=1)
    model = CircleClassifier.load(path)
    teach(path, open_images("more-photos"), model)
    again = teach(path, open_images("photos"), model)
    print(f"learned {', '.join(model.classes_)}; {again.known} photos came again and were not learned twice")

    draw(Path("new-photos"), ["square", "disc", "triangle"], 30, seed=2)
    result = evaluate(model, open_images("new-photos"))
    print(f"{result.accuracy:.1%} of {result.total} new photos are right")
    photo = Path("new-photos/triangle/000.jpg")
    with Image.open(photo) as picture:
        (probabilities,) = model.predict_proba([picture])
    answers = (f"{label} {value:.3f}" for label, value in zip(model.classes_, probabilities, strict=True))
    print(f"{photo}: {', '.join(answers)}")


if __name__ == "__main__":
    main()
