"""Plain fine-tuning: learns the task at hand, forgets the others, and repeats itself exactly."""

import numpy as np
import pytest
import torch

from circle.baselines import FineTune, FineTuneConfig
from circle.data.digits import load_digits_images
from circle.data.tasks import split_tasks
from circle.errors import CircleError
from circle.learner import NotLearnedError
from circle.method import Task, predict
from circle.registry import entry, list_methods

TASKS = split_tasks(range(6), 3)


def noise_task(labels: list, shape: tuple[int, ...] = (8, 8), seed: int = 0) -> Task:
    images = np.random.default_rng(seed).integers(0, 256, (20 * len(labels), *shape), dtype=np.uint8)
    return Task(images, np.array(labels * 20))


@pytest.fixture(scope="module")
def accuracy() -> np.ndarray:
    """[T, T]: accuracy on the classes of task k after learning task t of half of the smaller digits."""
    digits, method = load_digits_images(), FineTune(seed=0)
    result = np.full((len(TASKS), len(TASKS)), np.nan)
    for t, classes in enumerate(TASKS):
        chosen = np.flatnonzero(np.isin(digits.train_labels, classes))[::2]
        method.learn(Task(digits.train_images[chosen], digits.train_labels[chosen]))
        for k in range(t + 1):
            held_out = np.isin(digits.test_labels, TASKS[k])
            right = np.array(predict(method, digits.test_images[held_out])) == digits.test_labels[held_out]
            result[t, k] = right.mean()
    return result


def test_learns_the_current_task(accuracy: np.ndarray) -> None:
    assert (accuracy.diagonal() > 0.9).all()


def test_forgets_the_first_task(accuracy: np.ndarray) -> None:
    assert accuracy[0, 0] > 0.9 and accuracy[-1, 0] < 0.1


def learned(seed: int) -> FineTune:
    method = FineTune(FineTuneConfig(epochs=2), seed=seed)
    method.learn(noise_task([0, 1]))
    method.learn(noise_task([2, 3], seed=1))
    return method


def test_a_seed_determines_everything_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = learned(seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = learned(seed=5), learned(seed=6)
    images = noise_task([0], seed=2).images
    assert torch.equal(first.scores(images), again.scores(images))
    assert not torch.equal(first.scores(images), other.scores(images))


@pytest.mark.parametrize("shape", [(8, 8), (1, 1), (33, 20), (12, 10, 3), (9, 9, 5)])
def test_any_size_and_channels(shape: tuple[int, ...]) -> None:
    method = FineTune(FineTuneConfig(epochs=1))
    method.learn(noise_task(["owl", "ant"], shape))
    method.learn(noise_task(["bee", "ant"], shape))
    assert list(method.classes) == ["ant", "owl", "bee"]  # rows stay where they were when a class is added
    scores = method.scores(noise_task(["ant"], shape).images)
    assert scores.shape == (20, 3) and scores.isfinite().all() and not scores.requires_grad


def test_the_state_is_complete_and_a_copy() -> None:
    method = learned(seed=0)
    state = method.state_dict()
    assert state["classes"] == [0, 1, 2, 3]
    width, features = 16, 32 * 4 * 4
    weights = (9 * width + width) + (9 * width * 32 + 32) + (features + 1) * 4
    stored = [*state["backbone"].values(), *state["head"].values()]
    assert sum(tensor.numel() for tensor in stored) == weights == method.parameter_count().learnable
    assert method.parameter_bytes == 4 * weights
    images = noise_task([0]).images
    before = method.scores(images)
    state["head"]["weight"].zero_()
    assert torch.equal(method.scores(images), before)


def test_other_channels_are_refused_and_change_nothing() -> None:
    method = learned(seed=0)
    images = noise_task([0]).images
    before = method.scores(images)
    with pytest.raises(CircleError, match="3 channels: expected 1"):
        method.learn(noise_task([7, 8], (8, 8, 3)))
    assert list(method.classes) == [0, 1, 2, 3]
    assert torch.equal(method.scores(images), before)


def test_scores_before_learning_are_refused() -> None:
    with pytest.raises(NotLearnedError):
        FineTune().scores(noise_task([0]).images)


def test_registered_with_checked_settings() -> None:
    assert "finetune" in list_methods()
    assert entry("method", "finetune").part is FineTune
    with pytest.raises(CircleError, match=r"finetune.epochs = 0"):
        FineTuneConfig(epochs=0)
    with pytest.raises(CircleError, match=r"finetune.learning_rate"):
        FineTuneConfig(learning_rate=-1.0)
