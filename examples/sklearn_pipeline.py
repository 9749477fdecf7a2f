"""CIRCLE inside scikit-learn: a pipeline, a grid search over settings of its parts, and a held-out test.

python examples/sklearn_pipeline.py
"""

from __future__ import annotations

from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from circle import CircleClassifier


def main() -> None:
    images, labels = load_digits(return_X_y=True)  # rows of 64 numbers, 8 x 8 pixels
    train, test, train_labels, test_labels = train_test_split(
        images, labels, train_size=400, test_size=200, stratify=labels, random_state=0
    )

    # The classifier takes values from 0 to 1. "extractor__mirror" is a setting of the extractor, "head__ridge" one of
    # the head: digits are not the same in a mirror, and the search finds that out.
    pipeline = make_pipeline(MinMaxScaler(clip=True), CircleClassifier("local_contrast", "slda", image_size=16))
    grid = {
        "circleclassifier__extractor__mirror": [True, False],
        "circleclassifier__head__ridge": [0.1, 10.0],
    }
    search = GridSearchCV(pipeline, grid, cv=2).fit(train, train_labels)

    for settings, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
        shown = ", ".join(f"{name.removeprefix('circleclassifier__')} = {value}" for name, value in settings.items())
        print(f"{score:7.2%}  {shown}")
    print(f"{search.score(test, test_labels):7.2%}  on {len(test)} digits that the search never saw")


if __name__ == "__main__":
    main()
