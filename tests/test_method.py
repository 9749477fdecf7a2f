"""Tasks, the method protocol, and CIRCLE behind it."""

import numpy as np
import pytest
import torch

from circle.baselines import FineTune
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.method import CircleMethod, Method, Task, predict


def stripes(count: int, label: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy horizontal or vertical stripes, uint8 [count, 16, 16]."""
    pattern = np.tile(np.repeat([40, 200], 2), 4)
    image = np.broadcast_to(pattern[:, None] if label == "horizontal" else pattern, (16, 16))
    noise = np.random.default_rng(seed).integers(-30, 30, (count, 16, 16))
    return (image + noise).astype(np.uint8), np.array([label] * count)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 8, 8)), [0, 1], "float64"),
        (np.zeros((8, 8), np.uint8), [0] * 8, r"\(8, 8\)"),
        (np.zeros((2, 8, 8), np.uint8), [0], "2 images and 1 label"),
        (np.zeros((0, 8, 8), np.uint8), [], "0 images"),
    ],
)
def test_task_refuses_what_is_no_task(images: np.ndarray, labels: list[int], message: str) -> None:
    with pytest.raises(CircleError, match=message):
        Task(images, np.array(labels))


def test_task_knows_its_classes() -> None:
    assert Task(np.zeros((4, 8, 8, 3), np.uint8), np.array([7, 2, 7, 2])).classes == [2, 7]


def test_predict_takes_the_largest_score_in_the_order_of_classes() -> None:
    class Fixed:
        classes = ("owl", "ant", "bee")

        def learn(self, task: Task) -> None: ...

        def scores(self, images: np.ndarray) -> torch.Tensor:
            return torch.tensor([[-3.0, -1.0, -2.0], [5.0, 4.0, 3.0]])

        def state_dict(self) -> dict[str, torch.Tensor]:
            return {}

    assert predict(Fixed(), np.zeros((2, 8, 8), np.uint8)) == ["ant", "owl"]


def test_circle_as_a_method() -> None:
    classifier = CircleClassifier(members=1, seed=3)
    method = CircleMethod(classifier)
    assert isinstance(method, Method) and isinstance(FineTune(), Method)
    assert list(method.classes) == []

    method.learn(Task(*stripes(20, "vertical", seed=0)))
    assert list(method.classes) == ["vertical"]
    method.learn(Task(*stripes(20, "horizontal", seed=1)))
    assert list(method.classes) == ["horizontal", "vertical"]

    images = np.concatenate([stripes(5, "vertical", seed=2)[0], stripes(5, "horizontal", seed=3)[0]])
    scores = method.scores(images)
    assert scores.shape == (10, 2)
    np.testing.assert_array_equal(scores.numpy(), classifier.predict_proba(images))
    assert predict(method, images) == classifier.predict(images).tolist()
    assert predict(method, images) == ["vertical"] * 5 + ["horizontal"] * 5
    state = method.state_dict()
    assert state["counts"].tolist() == [20, 20]
