"""Counting right and wrong answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from circle.benchmark.evaluation import Evaluation, evaluate, probabilities
from circle.data.user_images import open_images
from circle.errors import CircleError
from circle.method import CircleMethod, predict


def test_counts() -> None:
    result = Evaluation()
    for true, predicted, count in [("a", "a", 8), ("a", "b", 2), ("b", "b", 3), ("b", "c", 5), ("c", "b", 1)]:
        result.confusion[true, predicted] = count
    assert (result.total, result.correct) == (19, 11)
    assert result.accuracy == 11 / 19
    assert result.per_class() == [("c", 0, 1), ("b", 3, 8), ("a", 8, 10)]
    assert result.worst_pairs(2) == [("b", "c", 5), ("a", "b", 2)]


def test_evaluate_equals_score(tmp_path: Path, tiny: Any, make_stream: Any) -> None:
    images, labels = make_stream(700)
    model = tiny(groups=1).fit(images[:40], labels[:40])
    np.savez(tmp_path / "data.npz", x=images, y=labels)
    source = open_images(tmp_path / "data.npz")
    result = evaluate(model, source)
    assert result.total == 700
    assert result.accuracy == model.score(images, labels)
    found = np.stack([values for _, values in probabilities(model, source, print)])
    assert np.allclose(found, model.predict_proba(images), atol=1e-12)


def test_the_benchmark_and_evaluate_answer_alike_image_by_image(tmp_path: Path, tiny: Any, make_stream: Any) -> None:
    images, labels = make_stream(700)
    model = tiny(groups=2).fit(images[:40], labels[:40])
    np.savez(tmp_path / "data.npz", x=images, y=labels)
    answers = [values for _, values in probabilities(model, open_images(tmp_path / "data.npz"), print)]
    method = CircleMethod(model)
    assert np.array_equal(method.scores(images).numpy(), np.stack(answers))
    assert predict(method, images) == model.predict(images).tolist()


def test_nothing_readable(tmp_path: Path, tiny: Any, stream: Any) -> None:
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "x.png").write_bytes(b"x")
    with pytest.raises(CircleError, match="none of 1 image is readable"):
        evaluate(tiny(groups=1).fit(*stream), open_images(tmp_path / "data"))
