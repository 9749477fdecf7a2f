"""Plain fine-tuning: a small convolutional network trained on each task in turn. The one that forgets."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.optim.adam import adam

from circle import parallel
from circle.benchmark.method import Images, Task
from circle.config import Config, option
from circle.errors import CircleError, NotLearnedError
from circle.extractors import ParameterCount
from circle.labels import plain_labels
from circle.registry import register

GRID = 4  # feature maps are averaged to 4 x 4, so that one network takes images of any size
SCORING_BATCH = 256
# torch.optim.Adam's defaults; foreach only pays on a GPU.
ADAM: dict[str, Any] = {
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "amsgrad": False,
    "maximize": False,
    "foreach": False,
}


@dataclass(frozen=True)
class FineTuneConfig(Config):
    """Settings of :class:`FineTune`."""

    name: ClassVar[str] = "finetune"
    width: int = option(16, "channels of the first convolution; the second has twice as many")
    epochs: int = option(10, "passes over each task's images")
    batch_size: int = option(16, "images per step")
    learning_rate: float = option(0.003, "step size of Adam")

    def check(self) -> None:
        for field in ("width", "epochs", "batch_size"):
            self.require(getattr(self, field) >= 1, field, "1 or more")
        self.require(self.learning_rate > 0, "learning_rate", "a positive number")


@register("method", FineTuneConfig)
class FineTune:
    """For each task, minimise over all weights w, on that task's images alone,

        - mean_i log softmax(W f_w(x_i) + b)[y_i]        (softmax over all classes seen so far)

    Nothing holds the weights where earlier tasks left them, so earlier classes are forgotten. The head W, b
    grows by one row per new class. Everything random comes from one generator of its own: config, seed and
    tasks determine the result, and the global generator is left alone.

    >>> method = FineTune(FineTuneConfig(epochs=1), seed=0)
    >>> method.learn(Task(np.zeros((4, 8, 8), dtype=np.uint8), np.array(["cat", "dog", "cat", "dog"])))
    >>> method.scores(np.zeros((3, 8, 8), dtype=np.uint8)).shape
    torch.Size([3, 2])
    """

    def __init__(self, config: FineTuneConfig | None = None, seed: int = 0) -> None:
        self.config = config or FineTuneConfig()
        self.seed = seed
        self._generator = torch.Generator().manual_seed(seed)
        self._classes: list[Hashable] = []
        self._parameters: dict[str, Tensor] = {}

    @property
    def classes(self) -> Sequence[Hashable]:
        """The classes in the order in which their rows of the head were added."""
        return tuple(self._classes)

    @property
    def parameter_bytes(self) -> int:
        """Size of the weights."""
        return sum(parameter.nbytes for parameter in self._parameters.values())

    def learn(self, task: Task) -> None:
        """Train on this task's images, uint8 [N, H, W] or [N, H, W, C], with a fresh optimiser."""
        images = _to_channels_first(np.asarray(task.images))
        self._check_channels(images)
        new = [label for label in task.classes if label not in self._classes]
        self._grow(images.shape[1], new)
        rows = {label: row for row, label in enumerate(self._classes)}
        targets = torch.tensor([rows[label] for label in plain_labels(task.labels)])
        # One thread: steps this small run no faster on two, and ten times slower when another program wants one.
        parallel.run([lambda: self._train(images, targets)])

    def scores(self, images: Images) -> Tensor:
        """Logits of all classes seen so far, [N, len(classes)]."""
        if not self._classes:
            raise NotLearnedError("the fine-tuned network has not learned anything yet")
        pixels = _to_channels_first(np.asarray(images))
        self._check_channels(pixels)
        with torch.no_grad():
            return torch.cat([self._forward(batch) for batch in pixels.split(SCORING_BATCH)])

    def state_dict(self) -> dict[str, Any]:
        """Weights, classes and the generator; the optimiser's memory does not outlive its task."""
        return {
            "parameters": {name: parameter.clone() for name, parameter in self._parameters.items()},
            "classes": list(self._classes),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._parameters = {name: parameter.clone() for name, parameter in state["parameters"].items()}
        self._classes = list(state["classes"])
        self._generator.set_state(state["generator"])

    def parameter_count(self) -> ParameterCount:
        return ParameterCount(learnable=sum(parameter.numel() for parameter in self._parameters.values()))

    def _train(self, images: Tensor, targets: Tensor) -> None:
        """Adam on images uint8 [N, C, H, W] and their rows of the head [N]."""
        weights = [parameter.requires_grad_() for parameter in self._parameters.values()]
        means = [torch.zeros_like(weight) for weight in weights]
        squares = [torch.zeros_like(weight) for weight in weights]
        steps = [torch.zeros(()) for _ in weights]
        for batch in self._batches(len(images)):
            loss = functional.cross_entropy(self._forward(images[batch]), targets[batch])
            gradients = list(torch.autograd.grad(loss, weights))
            # The function behind torch.optim.Adam: making the object first imports PyTorch's compiler, which
            # takes longer than a task of the demo.
            with torch.no_grad():
                adam(weights, gradients, means, squares, [], steps, lr=self.config.learning_rate, **ADAM)
        self._parameters = {name: parameter.detach() for name, parameter in self._parameters.items()}

    def _batches(self, images: int) -> Iterator[Tensor]:
        """Indices of the images of each step, in a new order every epoch."""
        for _ in range(self.config.epochs):
            yield from torch.randperm(images, generator=self._generator).split(self.config.batch_size)

    def _forward(self, pixels: Tensor) -> Tensor:
        """uint8 [N, C, H, W] to logits [N, len(classes)]: two strided convolutions, 4 x 4 means, the head."""
        weights = self._parameters
        maps = pixels.float() / 255 - 0.5
        for layer in ("first", "second"):
            weight, bias = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
            maps = functional.relu(functional.conv2d(maps, weight, bias, stride=2, padding=1))
        features = functional.adaptive_avg_pool2d(maps, GRID).flatten(1)
        return functional.linear(features, weights["head.weight"], weights["head.bias"])

    def _grow(self, channels: int, new: Sequence[Hashable]) -> None:
        """Make the network at the first task; append a row to the head for every new class."""
        width, features = self.config.width, 2 * self.config.width * GRID**2
        if not self._parameters:
            self._parameters = {
                "first.weight": self._random_weight(width, channels, 3, 3),
                "first.bias": torch.zeros(width),
                "second.weight": self._random_weight(2 * width, width, 3, 3),
                "second.bias": torch.zeros(2 * width),
                "head.weight": torch.zeros(0, features),
                "head.bias": torch.zeros(0),
            }
        weights = self._parameters
        # Small: rows of He size would begin with confident mistakes.
        rows = self._random_weight(len(new), features) * 0.1
        weights["head.weight"] = torch.cat([weights["head.weight"], rows])
        weights["head.bias"] = torch.cat([weights["head.bias"], torch.zeros(len(new))])
        self._classes.extend(new)

    def _random_weight(self, *shape: int) -> Tensor:
        """He initialisation: normal with variance 2 / (inputs of one output)."""
        inputs = int(np.prod(shape[1:]))
        return torch.randn(*shape, generator=self._generator) * (2 / inputs) ** 0.5

    def _check_channels(self, pixels: Tensor) -> None:
        found = pixels.shape[1]
        expected = self._parameters["first.weight"].shape[1] if self._parameters else found
        if found != expected:
            raise CircleError(f"images with {found} channels: expected {expected}, as in the first task")


def _to_channels_first(images: np.ndarray) -> Tensor:
    """uint8 [N, H, W] or [N, H, W, C] to uint8 [N, C, H, W]."""
    pixels = torch.from_numpy(np.ascontiguousarray(images))
    return pixels.unsqueeze(1) if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
