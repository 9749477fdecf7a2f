"""Shared by the tests of trained methods: small networks, small tasks, one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from circle.method import Task
from circle.registry import entry

MakeMethod = Callable[..., Any]
MakeTasks = Callable[..., list[Task]]


@pytest.fixture
def one_thread() -> None:
    """Learning goes on one thread; what a test computes itself then adds up in the same order."""
    torch.set_num_threads(1)


@pytest.fixture
def make_method() -> MakeMethod:
    """Makes a registered method with a network of four channels and a training of a few steps."""

    def make(name: str, seed: int = 0, epochs: int = 2, **changes: Any) -> Any:
        registered = entry("method", name)
        settings = {
            "width": 4,
            "batch_size": 16,
            "epochs": epochs,
            "initial_epochs": epochs,
            "learning_rate": 0.003 if name == "finetune" else 0.05,
            "initial_learning_rate": 0.1,
            "milestones": (1,),
            "initial_milestones": (1,),
            "learning_rate_milestones": (1,),
            "buffer_size": 24,
            "augmentations": ("crop", "flip"),
        }
        known = registered.config.field_names()
        chosen = {setting: value for setting, value in settings.items() if setting in known}
        return registered.part(registered.config().replace(**{**chosen, **changes}), seed=seed)

    return make


@pytest.fixture
def make_tasks(make_stream: Any) -> MakeTasks:
    """Makes one task for each group of classes, of those among 0 to 3, with about ``count`` / 4 images of each."""

    def make(groups: Sequence[Sequence[int]] = ((0, 1), (2, 3)), count: int = 80, seed: int = 0) -> list[Task]:
        images, labels = make_stream(count, seed)
        images = images[:, ::2, ::2]
        return [Task(images[np.isin(labels, group)], labels[np.isin(labels, group)]) for group in groups]

    return make


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Gives a frozen method features that are pixels and, for its random layer, a product in float64.

    A network's features of an image depend, in the last bit, on the images beside it; these do not.
    """

    def exact(method: Any) -> Any:
        monkeypatch.setattr(method, "features", lambda pixels: pixels.flatten(1)[:, : method.network.size] / 256)
        if hasattr(method, "projected"):
            monkeypatch.setattr(method, "projected", lambda features: features.double() @ method.projection.double().T)
        return method

    return exact
