"""Someone asks to be forgotten: the class leaves the model, and the proof is that nothing tells the two models apart.

    python examples/forget_on_request.py

With its images a class leaves without a trace: the file is, byte for byte, that of a model that never saw them.
Other images than the ones that were learned are refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from circle import CircleClassifier, CircleError

LEAVING = 3


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    images, test, labels, test_labels = images[:700] / 16, images[700:1000] / 16, labels[:700], labels[700:1000]
    theirs = labels == LEAVING

    model = CircleClassifier(image_size=16).fit(images, labels)
    never_saw = CircleClassifier(image_size=16).fit(images[~theirs], labels[~theirs])
    print(f"before: {model.samples_} images, classes {' '.join(map(str, model.classes_))}")

    try:
        model.forget(LEAVING, np.roll(images[theirs], 1, axis=1))
    except CircleError as error:
        print(f"other images are refused: {error}")

    model.forget(LEAVING, images[theirs])
    print(f"after:  {model.samples_} images, classes {' '.join(map(str, model.classes_))}")

    model.save("forgot.circle")
    never_saw.save("never-saw.circle")
    same_file = Path("forgot.circle").read_bytes() == Path("never-saw.circle").read_bytes()
    same_answers = np.array_equal(model.predict_proba(test), never_saw.predict_proba(test))
    print(f"the same statistics, bit for bit: {model.statistics_ == never_saw.statistics_}")
    print(f"the same model file, byte for byte: {same_file}")
    print(f"the same probabilities for {len(test)} images, bit for bit: {same_answers}")
    others = test_labels != LEAVING
    print(f"accuracy on the other classes: {model.score(test[others], test_labels[others]):.2%}")
    assert model.statistics_ == never_saw.statistics_ and same_file and same_answers


if __name__ == "__main__":
    main()
