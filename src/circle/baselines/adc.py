"""ADC: LwF with class means that follow the drift of the features, seen on new images pulled towards old classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from circle.baselines.lwf import DistilledMethod, LwFConfig
from circle.baselines.networks import CosineHead, GrowingHead, unit_rows
from circle.baselines.trainer import Stage, TaskData
from circle.config import option
from circle.registry import register


@dataclass(frozen=True)
class ADCConfig(LwFConfig):
    """Settings of :class:`ADC`; defaults as in the official code. The paper gives no milestones."""

    name: ClassVar[str] = "adc"
    published_names: ClassVar[dict[str, str]] = {
        **LwFConfig.published_names,
        "lr_decay": "learning_rate_decay",
        "adv_alpha": "pull",
        "adv_iterations": "pulls",
        "sample_limit": "pulled_images",
    }
    inert: ClassVar[dict[str, str]] = {"cosine_head": "there is no other head here"}
    per_old_class: ClassVar[tuple[str, ...]] = ("drift",)
    by_dataset: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar100": {},
        "tinyimagenet": {"augmentations": ("crop", "flip"), "learning_rate": 0.001},
        "imagenet_subset": {"max_pool": True, "augmentations": ("resized_crop", "flip")},
    }

    augmentations: tuple[str, ...] = option(
        ("crop", "flip", "brightness", "auto_augment"), "of training images, in this order"
    )
    epochs: int = option(100, "passes over each later task's images")
    learning_rate: float = option(0.05, "step size in later tasks")
    milestones: tuple[int, ...] = option((45, 90), "epochs of a later task at which it falls")
    distillation_weight: float = option(10.0, "lambda: weight of the distillation loss")
    pull: float = option(25.0, "length of each move of all images of a class together")
    pulls: int = option(3, "moves towards an old class")
    pulled_images: int = option(100, "images nearest to an old class that are moved towards it")
    compensation: Literal["drift", "none"] = option("drift", "whether old means follow the drift of the features")

    def check(self) -> None:
        super().check()
        self.require(self.pull > 0, "pull", "a positive number")
        self.require(self.pulls >= 1, "pulls", "1 or more")
        self.require(self.pulled_images >= 1, "pulled_images", "1 or more")


@register("method", ADCConfig)
class ADC(DistilledMethod[ADCConfig]):
    """LwF with cosine logits, and one mean mu_c of the features of each class. After a later task, for every old class:

        take the 100 images x of the task nearest to mu_c under f_old;
        three times  x <- clip(x - 25 g / |g|),  g = grad_x mean((f_old(x) - mu_c)^2),  one norm for all 100;
        keep those whose nearest old mean is mu_c;  mu_c += mean(f(x) - f_old(x)) over them, or over the unmoved 100

    The images are one augmented copy of the task's, kept as bytes, and clipped to its smallest and largest pixel.
    A sample is given to the nearest mean, features and means of length one.

    >>> import numpy as np
    >>> from circle.method import Task
    >>> pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    >>> method = ADC(ADCConfig(network="convnet", width=4, initial_epochs=1, epochs=1))
    >>> for labels in (["cat", "dog"], ["emu", "fox"]):
    ...     method.learn(Task(pixels, np.array(labels * 4)))
    >>> method.scores(pixels).shape
    torch.Size([8, 4])
    """

    config_type = ADCConfig
    keeps = "means"

    def new_head(self, size: int) -> GrowingHead:
        return CosineHead(size)

    def stages(self) -> Sequence[Stage]:
        drift = [("drift", self._follow_drift)] if self.tasks and self.config.compensation == "drift" else []
        return [*super().stages(), ("means", self._describe), *drift]

    def scores_of(self, features: Tensor) -> Tensor:
        # |a - b|^2 of unit vectors falls as their cosine grows.
        return unit_rows(features.double()) @ unit_rows(self.bank.means).T

    def _describe(self, data: TaskData) -> None:
        self.bank.describe(data.columns, self.features(data.pixels))

    def _follow_drift(self, data: TaskData) -> None:
        config, previous, network = self.config, self.extra["network"], self.network.eval()
        copies = self.augmented_copy(data.pixels)
        bounds = self.inputs(torch.stack([copies.min(), copies.max()]), augmented=False)
        features = self.features(copies, previous)
        old = self.bank.means[: data.classes_before]
        present = set(data.present.tolist())
        for column in range(data.classes_before):
            if column in present:
                continue  # seen again: its mean was just measured
            mean = old[column].to(features)
            nearest = (features - mean).square().sum(1).argsort(stable=True)[: config.pulled_images]
            unmoved = self.inputs(copies[nearest.cpu()], augmented=False)
            moved = pulled(previous, unmoved, mean, config.pull, config.pulls, bounds)
            with torch.no_grad():
                before = previous(moved)
                kept = torch.cdist(before.double(), old).argmin(1) == column
                if not bool(kept.any()):
                    moved, before, kept = unmoved, previous(unmoved), torch.ones_like(kept)
                self.bank.means[column] += (network(moved) - before)[kept].double().mean(0)


def pulled(network: nn.Module, images: Tensor, mean: Tensor, length: float, times: int, bounds: Tensor) -> Tensor:
    """Images [B, C, H, W] moved down the distance of their features to a mean, ``times`` times by ``length`` together.

    They stay between the two ``bounds`` [2].
    """
    for _ in range(times):
        moving = images.detach().requires_grad_()
        distance = (network(moving) - mean).square().mean()
        (gradient,) = torch.autograd.grad(distance, moving)
        norm = torch.linalg.vector_norm(gradient)
        step = length * gradient / norm if float(norm) > 0 else gradient
        images = (images - step).clamp(bounds[0], bounds[1])
    return images
