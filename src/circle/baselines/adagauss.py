"""AdaGauss: each class is a Gaussian, carried along by a learned map whenever the features move."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from circle import linalg
from circle.baselines.augmentation import ROTATIONS, rotated
from circle.baselines.class_bank import ClassBank, covariance_of
from circle.baselines.networks import Backbone, LinearHead, Narrowed, build_backbone, unit_rows
from circle.baselines.optimisers import Training
from circle.baselines.trainer import EvenConfig, Losses, Stage, TaskData, TrainedMethod
from circle.config import option
from circle.heads.mahalanobis import correlations
from circle.registry import register

logger = logging.getLogger(__name__)

LATER_SCALE = 0.1  # of the learning rate after the first task
MILESTONES = (0.3, 0.6, 0.9)  # shares of the epochs at which the step size falls
WARMUP_SHARE = 0.01  # of the epochs, in which the head learns alone
ADAPTER_SHARE = 0.5  # of the epochs, for the map of old features to new ones
MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class AdaGaussConfig(EvenConfig):
    """Settings of :class:`AdaGauss`; defaults as in the official scripts."""

    name: ClassVar[str] = "adagauss"
    published_names: ClassVar[dict[str, str]] = {
        "lambda": "distillation_weight",
        "alpha": "spread_weight",
        "beta": "spread_limit",
        "s": "feature_size",
        "n_samples": "draws",
        "rotation": "turned",
        "normalize": "normalise",
    }
    inert: ClassVar[dict[str, str]] = {
        "tau": "for the distillation of logits, which the method does not use",
        "singular_value_fraction": "for a line that the official code prints",
        "backbone_learning_rate": "for pretrained networks only",
        "distiller": "an MLP, the only kind here",
        "adapter": "an MLP, the only kind here",
        "shrink": "stored covariances are never shrunk (0 in the official scripts)",
        "use_224": "the data set decides the size of its images",
    }
    stage_epochs: ClassVar[dict[str, float]] = {"train": 1.0, "adapter": ADAPTER_SHARE}
    per_old_class: ClassVar[tuple[str, ...]] = ("drift",)
    by_dataset: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar100": {},
        "tinyimagenet": {"augmentations": ("crop", "flip")},
        "imagenet_subset": {"first_kernel": 7, "max_pool": True, "augmentations": ("resized_crop", "flip")},
    }

    augmentations: tuple[str, ...] = option(("crop", "flip", "trivial_augment"), "of training images, in this order")
    batch_size: int = option(256, "images per step, in the first task with their turned copies")
    epochs: int = option(200, "passes over each task's images")
    learning_rate: float = option(0.1, "step size in the first task; a tenth of it later")
    weight_decay: float = option(5e-4, "added to the gradient, times the weights")
    feature_size: int = option(64, "s: values of a feature vector")
    turned: bool = option(True, "whether turned images are classes of their own in the first task")
    distillation_weight: float = option(10.0, "lambda: weight of the distance to the previous features, through a map")
    spread_weight: float = option(1.0, "alpha: weight of the term that keeps the features from collapsing")
    spread_limit: float = option(1.0, "beta: deviation from which on it asks for no more")
    multiplier: int = option(32, "hidden units of the maps, per value of a feature vector")
    adapter_learning_rate: float = option(0.01, "step size of the map of old features to new ones")
    adapter_milestones: tuple[int, ...] = option((30, 60, 90), "epochs at which it falls to a tenth")
    draws: int = option(10_000, "of each old class, that are sent through the map")
    inference_shrink: float = option(3.0, "share of the mean variance added to each variance when scoring")
    normalise: bool = option(True, "whether features and means are brought to length one when scoring")
    compensation: Literal["drift", "none"] = option("drift", "whether old classes follow the drift of the features")

    def check(self) -> None:
        super().check()
        for field in ("feature_size", "multiplier"):
            self.require(getattr(self, field) >= 1, field, "1 or more")
        self.require(self.draws >= 2, "draws", "2 or more")
        for field in ("distillation_weight", "spread_weight", "inference_shrink"):
            self.require(getattr(self, field) >= 0, field, "zero or a positive number")
        self.require(self.spread_limit > 0, "spread_limit", "a positive number")


@register("method", AdaGaussConfig)
class AdaGauss(TrainedMethod[AdaGaussConfig]):
    """The network ends in s signed values; every task has a head of its own, which is dropped after it:

        L = CE(head(f), y among the task's classes) + lambda mean((D(f) - f_old)^2) + alpha L_AC(f)

    with a learned map D, and L_AC of :func:`collapse`. In the first task the middle term is missing, and the head
    tells turned images apart, y + k C for k quarters. For the first hundredth of the epochs the head learns alone.

    After a later task a map A from f_old(x) to f(x) is learned; 10,000 draws from N(m_c, S_c) of each old class go
    through it, and their mean and covariance take the places of m_c and S_c. New classes are described by the task's
    images and their mirror images.

        score_c(x) = -(u - v_c)^T R_c^{-1} (u - v_c),    u = f / |f|,    v_c = m_c / |m_c|

    R_c the correlations of S_c + 3 mean(diag S_c) I. Diagnostics of the official code that read the images of earlier
    tasks are left out.

    >>> import numpy as np
    >>> from circle.method import Task
    >>> pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    >>> method = AdaGauss(AdaGaussConfig(network="convnet", width=4, epochs=1))
    >>> for labels in (["cat", "dog"], ["emu", "fox"]):
    ...     method.learn(Task(pixels, np.array(labels * 4)))
    >>> method.scores(pixels).shape
    torch.Size([8, 4])
    """

    config_type = AdaGaussConfig
    keeps = "covariances"
    rows_per_class = 0

    def __init__(self, config: AdaGaussConfig | None = None, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.mended = 0  # batches of this task whose covariance was singular
        self._scorer: ClassBank | None = None

    @property
    def turns_images(self) -> bool:
        return self.config.turned

    def new_network(self, channels: int, generator: torch.Generator) -> Backbone:
        return Narrowed(build_backbone(self.config, channels, generator), self.config.feature_size, generator)

    def extras(self, data: TaskData, generator: torch.Generator) -> dict[str, nn.Module]:
        config = self.config
        head = LinearHead(config.feature_size)
        turned = self.tasks == 0 and config.turned
        head.grow(len(data.present) * (ROTATIONS if turned else 1), generator)
        if self.tasks == 0:
            return {"head": head}
        maps = [FeatureMap(config.feature_size, generator, config.multiplier) for _ in range(2)]
        return {"head": head, "network": self.previous_network(), "distiller": maps[0], "adapter": maps[1]}

    def stages(self) -> Sequence[Stage]:
        stages: list[Stage] = [("warm-up", self._warm_up), ("train", self._train)]
        if self.tasks and self.config.compensation == "drift":
            stages += [("adapter", self._train_adapter), ("drift", self._carry_along)]
        return [*stages, ("statistics", self._describe)]

    def _warm_up(self, data: TaskData) -> None:
        training = self.training(self.warmup_epochs, ())
        self.fit(self._losses(data, alone=True), len(data), self._others(), training)

    def _train(self, data: TaskData) -> None:
        epochs, warmup = self.epochs, self.warmup_epochs
        milestones = tuple(max(1, int(share * epochs) - warmup) for share in MILESTONES)
        parameters = [*self.network.parameters(), *self._others()]
        self.fit(self._losses(data, alone=False), len(data), parameters, self.training(epochs - warmup, milestones))

    def _losses(self, data: TaskData, *, alone: bool) -> Losses:
        config, local, classes = self.config, data.local.to(self.device), len(data.present)
        turned = self.tasks == 0 and config.turned

        def losses(batch: Tensor) -> dict[str, Tensor]:
            images, labels = self.inputs(data.pixels[batch], augmented=True), local[batch]
            if turned:
                images, labels = rotated(images, labels, lambda each, turns: each + turns * classes)
            features = self.network.train()(images)
            if alone:
                features = features.detach()
            terms = {"cross entropy": functional.cross_entropy(self.extra["head"](features), labels)}
            if self.tasks:
                with torch.no_grad():
                    before = self.extra["network"](images)
                distance = functional.mse_loss(self.extra["distiller"](features), before)
                terms["distillation"] = config.distillation_weight * distance
            if not alone:
                terms["collapse"] = self._collapse(features)
            return terms

        return losses

    def _collapse(self, features: Tensor) -> Tensor:
        """The weighted term; batches whose covariance had to be mended are counted."""
        term, mended = collapse(features, self.config.spread_limit)
        self.mended += mended
        return self.config.spread_weight * term

    def _others(self) -> list[nn.Parameter]:
        """The weights that are trained beside the network's."""
        modules = [self.extra[name] for name in ("head", "distiller") if name in self.extra]
        return [parameter for module in modules for parameter in module.parameters()]

    @property
    def epochs(self) -> int:
        """Of the task at hand."""
        return self.config.epochs if self.tasks else self.config.first_epochs

    @property
    def warmup_epochs(self) -> int:
        return int(WARMUP_SHARE * self.epochs)

    def training(self, epochs: int, milestones: tuple[int, ...]) -> Training:
        """SGD; turned copies count as images of a batch."""
        config, first = self.config, self.tasks == 0
        return Training(
            epochs=epochs,
            batch_size=max(1, config.batch_size // ROTATIONS) if first and config.turned else config.batch_size,
            learning_rate=config.learning_rate * (1.0 if first else LATER_SCALE),
            weight_decay=config.weight_decay,
            milestones=milestones,
            drop_last=True,
            clip=MAX_GRADIENT_NORM,
        )

    def _train_adapter(self, data: TaskData) -> None:
        config = self.config

        def losses(batch: Tensor) -> dict[str, Tensor]:
            images = self.inputs(data.pixels[batch], augmented=True)
            with torch.no_grad():
                before, now = self.extra["network"](images), self.network.eval()(images)
            mapped = self.extra["adapter"](before)
            return {
                "adapter": functional.mse_loss(mapped, now),
                "collapse": self._collapse(mapped),
            }

        training = Training(
            epochs=max(1, int(ADAPTER_SHARE * config.epochs)),
            batch_size=config.batch_size,
            learning_rate=config.adapter_learning_rate,
            weight_decay=config.weight_decay,
            milestones=config.adapter_milestones,
            drop_last=True,
            clip=MAX_GRADIENT_NORM,
        )
        self.fit(losses, len(data), list(self.extra["adapter"].parameters()), training)

    @torch.no_grad()
    def _carry_along(self, data: TaskData) -> None:
        present = set(data.present.tolist())
        for column in range(data.classes_before):
            if column not in present:
                drawn = self.bank.sample(column, self.config.draws, self.generator)
                mapped = self.extra["adapter"](drawn.to(torch.float32)).double()
                self.bank.put(column, self.bank.counts[column], mapped.mean(0), covariance_of(mapped))

    def _describe(self, data: TaskData) -> None:
        features = torch.cat([self.features(data.pixels), self.features(data.pixels.flip(3))])
        self.bank.describe(torch.cat([data.columns, data.columns]), features)
        self._scorer = None
        if self.mended:
            logger.warning("adagauss: covariances of %d batches were singular in task %d", self.mended, self.tasks + 1)
            self.mended = 0

    def scores_of(self, features: Tensor) -> Tensor:
        values = unit_rows(features.double()) if self.config.normalise else features.double()
        return -self.scorer().distances(values)

    def scorer(self) -> ClassBank:
        """Means of length one and correlations of the shrunk covariances, with factors that are made once a task."""
        if self._scorer is None:
            scorer = ClassBank(self.config.feature_size, covariances=True, device=self.device)
            means = unit_rows(self.bank.means) if self.config.normalise else self.bank.means
            for column, mean in enumerate(means):
                scorer.put(column, self.bank.counts[column], mean, self._correlations(column))
            self._scorer = scorer
        return self._scorer

    def _correlations(self, column: int) -> Tensor:
        covariance = self.bank.covariance(column).clone()
        added = self.config.inference_shrink * float(self.bank.spreads[column])
        if float(self.bank.spreads[column]) == 0:
            return torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
        covariance.diagonal().add_(added)
        return correlations(covariance)

    def kept_bytes(self, classes: int, size: int) -> int:
        return 2 * super().kept_bytes(classes, size)  # also as correlations, for scoring

    def own_state(self) -> dict[str, Any]:
        return {"mended": self.mended}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.mended, self._scorer = state["mended"], None


class FeatureMap(nn.Module):
    """g(f) = W_2 gelu(W_1 f + b_1) + b_2, [B, d] -> [B, d] through ``multiplier`` d hidden units.

    It learns to lead from one network's features to another's. Weights and biases are uniform on +-1/sqrt(inputs).
    """

    def __init__(self, size: int, generator: torch.Generator, multiplier: int = 32) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in ((size, multiplier * size), (multiplier * size, size)):
            bound = 1.0 / math.sqrt(inputs)
            for kept, shape in ((self.weights, (outputs, inputs)), (self.biases, (outputs,))):
                kept.append(nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator)))

    def forward(self, features: Tensor) -> Tensor:
        hidden = functional.gelu(functional.linear(features, self.weights[0], self.biases[0]))
        return functional.linear(hidden, self.weights[1], self.biases[1])


def collapse(features: Tensor, limit: float) -> tuple[Tensor, bool]:
    """L_AC = -(1/s) sum_j min(L_jj, beta), L L^T the covariance of a batch [B, s]: falls as the batch spreads out.

    A batch of no more samples than values has a singular covariance; whether something had to be added to its
    diagonal is returned, too. Values that are not finite give a loss that is not, for the trainer to report.
    """
    values = features.double()
    centred = values - values.mean(0)
    covariance = centred.T @ centred / max(1, len(values) - 1)
    if not bool(torch.isfinite(covariance).all()):
        return covariance.sum().to(features.dtype), False
    singular = len(values) <= len(covariance)
    if singular:
        # Rounding may leave its zeros positive: it would be factorised then, with a gradient of noise.
        unit = covariance.detach().diagonal().mean()
        covariance = covariance + linalg.JITTER_START * unit * torch.eye(len(covariance)).to(covariance)
    factor = linalg.cholesky_with_gradient(covariance)
    return -factor.lower.diagonal().clamp_max(limit).mean().to(features.dtype), singular or factor.tries > 0
