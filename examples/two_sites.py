"""Two sites that may not share images share models: added up, they are the model that saw everything, bit for bit.

python examples/two_sites.py
"""

from __future__ import annotations

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from circle import CircleClassifier
from circle.extractors import LocalContrastConfig


def new_model() -> CircleClassifier:
    """The sites agree on settings and seed beforehand: then their features mean the same."""
    return CircleClassifier(LocalContrastConfig(mirror=False), image_size=16, seed=7)


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(
        images / 16, labels, train_size=700, test_size=300, random_state=0
    )

    # One site has the digits 0 to 5, the other 4 to 9 and images of its own of the two that both have.
    first = (train_labels <= 3) | ((train_labels <= 5) & (train[:, 20] > 0.5))
    new_model().fit(train[first], train_labels[first]).save("first.circle")
    new_model().fit(train[~first], train_labels[~first]).save("second.circle")

    # Only the two model files travel.
    one, two = CircleClassifier.load("first.circle"), CircleClassifier.load("second.circle")
    both = one + two
    for name, model in (("first site", one), ("second site", two), ("both", both)):
        known = " ".join(map(str, model.classes_))
        print(f"{name:12} {model.samples_:5} images of {known:20} {model.score(test, test_labels):7.2%} of all digits")

    together = new_model().fit(train, train_labels)
    same = both.statistics_ == together.statistics_
    print(f"equal, bit for bit, to one model that saw all images: {same}")
    back = (both - two).statistics_ == one.statistics_
    print(f"and without the second site's part it is the first site's model again: {back}")
    assert same and back


if __name__ == "__main__":
    main()
