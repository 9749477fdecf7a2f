"""EFC++: features may move where the answers do not notice; means follow the drift, and all heads are balanced anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.baselines.augmentation import ROTATIONS, rotated
from circle.baselines.class_bank import covariance_of
from circle.baselines.networks import GrowingHead, LinearHead, norm_parameters, train_mode
from circle.baselines.optimisers import Training
from circle.baselines.trainer import Stage, TaskData, TrainedMethod, TrainerConfig
from circle.config import option
from circle.registry import register

COVARIANCE_FLOOR = 1e-5  # added to the variances of the draws, as in the official code


@dataclass(frozen=True)
class EFCPlusPlusConfig(TrainerConfig):
    """Settings of :class:`EFCPlusPlus`; defaults as in the official code for CIFAR-100.

    The paper's "prototype update" is sigma; it enters squared, so that -0.2 means 0.2; only -1 turns the update off.
    """

    name: ClassVar[str] = "efc_plus_plus"
    published_names: ClassVar[dict[str, str]] = {
        "lambda": "distillation_weight",
        "first_task_epochs": "initial_epochs",
        "later_task_epochs": "epochs",
        "later_lr": "by_dataset",
        "prototype_update": "drift_sigma",
    }
    rehearsals: ClassVar[dict[str, str]] = {"balance": "balanced_epochs"}
    rehearses_images: ClassVar[bool] = True
    by_dataset: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar100": {},
        "tinyimagenet": {"augmentations": ("crop", "flip")},
        "imagenet_subset": {
            "first_kernel": 7,
            "max_pool": True,
            "augmentations": ("resized_crop", "flip"),
            "initial_optimiser": "sgd",
            "initial_learning_rate": 0.1,
            "initial_weight_decay": 5e-4,
            "initial_milestones": (80, 120, 150),
            "backbone_scale": 0.1,
        },
    }

    augmentations: tuple[str, ...] = option(("padded_resized_crop", "flip"), "of training images, in this order")
    batch_size: int = option(64, "images per step, before they are turned in the first task")
    initial_epochs: int = option(100, "passes over the first task's images")
    initial_optimiser: Literal["sgd", "adam"] = option("adam", "rule of the steps in the first task")
    initial_learning_rate: float = option(1e-3, "step size in the first task")
    initial_learning_rate_decay: float = option(0.1, "factor of it at every milestone")
    initial_milestones: tuple[int, ...] = option((45, 90), "epochs of the first task at which it falls")
    initial_weight_decay: float = option(2e-4, "in the first task")
    epochs: int = option(100, "passes over each later task's images")
    learning_rate: float = option(1e-4, "step size of Adam in later tasks, which stays")
    backbone_scale: float = option(1.0, "factor of it for the backbone")
    weight_decay: float = option(2e-4, "in later tasks, added to the gradient")
    distillation_weight: float = option(10.0, "lambda: of the feature matrix in the distance to the previous features")
    damping: float = option(0.1, "eta: of the identity in that distance")
    drift_sigma: float = option(0.2, "width of the weights with which drifts of images move a mean; -1: means stay")
    balanced_epochs: int = option(50, "passes over real and drawn features that balance the heads")
    balanced_learning_rate: float = option(1e-3, "step size of SGD there")
    balanced_batch_size: int = option(256, "features per step there")
    balanced_weight_decay: float = option(5e-4, "added to the gradient there")

    def check(self) -> None:
        super().check()
        self.require(self.distillation_weight >= 0, "distillation_weight", "zero or a positive number")
        self.require(self.damping >= 0, "damping", "zero or a positive number")
        self.require(self.drift_sigma != 0, "drift_sigma", "anything but zero")
        self.require(self.backbone_scale > 0, "backbone_scale", "a positive number")


@register("method", EFCPlusPlusConfig)
class EFCPlusPlus(TrainedMethod[EFCPlusPlusConfig]):
    """First task: cross-entropy over 4 C outputs, of images (y) and of those turned k = 1 .. 3 times (C + 3 y + k - 1).

    Later, with batch norms standing still for good, old rows of the head left alone and d = f - f_old,

        L = CE(W_t f, y among the task's classes) + mean_i d_i^T (lambda E + eta I) d_i

    After it, in this order: means follow the drift (:func:`drift_weights`); all rows of the head are trained on the
    task's features and on n_c draws from N(p_c, S_c) of each old class; E is made anew (:func:`feature_matrix`); the
    new classes are described, from one augmented pass. Covariances of old classes stay as they were.

    >>> import numpy as np
    >>> from circle.method import Task
    >>> pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    >>> method = EFCPlusPlus(EFCPlusPlusConfig(network="convnet", width=4, initial_epochs=1, epochs=1))
    >>> for labels in (["cat", "dog"], ["emu", "fox"]):
    ...     method.learn(Task(pixels, np.array(labels * 4)))
    >>> method.scores(pixels).shape
    torch.Size([8, 4])
    """

    config_type = EFCPlusPlusConfig
    copies = ROTATIONS
    keeps = "covariances"

    def __init__(self, config: EFCPlusPlusConfig | None = None, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.matrix = torch.zeros(0, 0, dtype=torch.float64)  # E, [d, d]

    @property
    def turns_images(self) -> bool:
        return True

    def new_head(self, size: int) -> GrowingHead:
        return LinearHead(size, bias=False)

    def extras(self, data: TaskData, generator: torch.Generator) -> dict[str, nn.Module]:
        """The head of turned images in the first task; then f_old, and the rows of this task's classes by themselves.

        Rows in one tensor with the old ones would let weight decay move those.
        """
        rows = LinearHead(self.network.size, bias=False)
        if self.tasks == 0:
            rows.grow((ROTATIONS - 1) * len(data.present), generator)
            return {"turned": rows}
        rows.weight = nn.Parameter(self.head.weight.detach()[data.present].clone())
        return {"network": self.previous_network(), "rows": rows}

    def stages(self) -> Sequence[Stage]:
        last = ("statistics", self._describe)
        if self.tasks == 0:
            return [("train", self._train_first), last]
        drift = [("drift", self._follow_drift)] if self.config.drift_sigma != -1 else []
        return [("train", self._train_later), *drift, ("balance", self._balance), last]

    def _train_first(self, data: TaskData) -> None:
        config, targets, classes = self.config, data.columns.to(self.device), len(data.present)

        def relabel(labels: Tensor, turns: int) -> Tensor:
            return classes + (ROTATIONS - 1) * labels + turns - 1 if turns else labels

        def losses(batch: Tensor) -> dict[str, Tensor]:
            images, labels = rotated(self.inputs(data.pixels[batch], augmented=True), targets[batch], relabel)
            features = self.network.train()(images)
            logits = torch.cat([self.head(features), self.extra["turned"](features)], 1)
            return {"cross entropy": functional.cross_entropy(logits, labels)}

        training = Training(
            epochs=config.initial_epochs,
            batch_size=config.batch_size,
            learning_rate=config.initial_learning_rate,
            optimiser=config.initial_optimiser,
            weight_decay=config.initial_weight_decay,
            milestones=config.initial_milestones,
            decay=config.initial_learning_rate_decay,
        )
        self.fit(losses, len(data), [*self.parameters(), *self.extra["turned"].parameters()], training)

    def _train_later(self, data: TaskData) -> None:
        config, local = self.config, data.local.to(self.device)
        damped = (config.distillation_weight * self.matrix).to(torch.float32)
        damped.diagonal().add_(config.damping)

        def losses(batch: Tensor) -> dict[str, Tensor]:
            images = self.inputs(data.pixels[batch], augmented=True)
            train_mode(self.network, batch_statistics=False)
            features = self.network(images)
            with torch.no_grad():
                before = self.extra["network"](images)
            return {
                "cross entropy": functional.cross_entropy(self.extra["rows"](features), local[batch]),
                "distillation": quadratic_distance(features, before, damped),
            }

        still = {id(parameter) for parameter in norm_parameters(self.network)}
        backbone = [parameter for parameter in self.network.parameters() if id(parameter) not in still]
        rows = list(self.extra["rows"].parameters())
        training = Training(
            epochs=config.epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            optimiser="adam",
            weight_decay=config.weight_decay,
        )
        scales = [config.backbone_scale] * len(backbone) + [1.0] * len(rows)
        self.fit(losses, len(data), [*backbone, *rows], training, scales)
        with torch.no_grad():
            self.head.weight[data.present.to(self.device)] = rows[0]

    @torch.no_grad()
    def _follow_drift(self, data: TaskData) -> None:
        copies = self.augmented_copy(data.pixels)
        before = self.features(copies, self.extra["network"]).double()
        drift = self.features(copies).double() - before
        old = self.bank.means[: data.classes_before]
        weights = drift_weights(before, old, self.matrix, self.config.drift_sigma)
        self.bank.means[: data.classes_before] += weights @ drift

    def _balance(self, data: TaskData) -> None:
        config = self.config
        present = set(data.present.tolist())
        old = [column for column in range(data.classes_before) if column not in present]
        counts = torch.tensor([self.bank.counts[column] for column in old], dtype=torch.long)
        drawn = torch.repeat_interleave(torch.tensor(old, dtype=torch.long), counts)
        targets = torch.cat([data.columns, drawn])

        def losses(batch: Tensor) -> dict[str, Tensor]:
            batch = batch[targets[batch].argsort(stable=True)]
            real, made = batch[batch < len(data)], targets[batch[batch >= len(data)]]
            with torch.no_grad():
                parts = [self.network.eval()(self.inputs(data.pixels[real], augmented=True))] if len(real) else []
                columns, each = made.unique_consecutive(return_counts=True)
                for column, count in zip(columns.tolist(), each.tolist(), strict=True):
                    parts.append(self.bank.sample(column, count, self.generator).to(torch.float32))
            labels = torch.cat([targets[real], made]).to(self.device)
            return {"cross entropy": functional.cross_entropy(self.head(torch.cat(parts)), labels)}

        training = Training(
            epochs=config.balanced_epochs,
            batch_size=config.balanced_batch_size,
            learning_rate=config.balanced_learning_rate,
            weight_decay=config.balanced_weight_decay,
        )
        self.fit(losses, len(targets), list(self.head.parameters()), training)

    @torch.no_grad()
    def _describe(self, data: TaskData) -> None:
        features = self.features(self.augmented_copy(data.pixels))
        self.matrix = feature_matrix(features.double(), self.head.weight.double())
        for column in data.present.tolist():
            own = features[(data.columns == column).to(self.device)].double()
            covariance = covariance_of(own)
            covariance.diagonal().add_(COVARIANCE_FLOOR)
            self.bank.put(column, len(own), own.mean(0), covariance)

    def own_state(self) -> dict[str, Any]:
        return {"matrix": self.matrix.cpu().clone()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.matrix = state["matrix"].to(self.device, copy=True)


def quadratic_distance(features: Tensor, teacher: Tensor, matrix: Tensor) -> Tensor:
    """mean_i d_i^T E d_i with d_i = f_i - f_old,i, features [B, d] and a symmetric matrix E [d, d]."""
    away = features - teacher
    return ((away @ matrix) * away).sum(1).mean()


def feature_matrix(features: Tensor, weight: Tensor) -> Tensor:
    """E = (1/N) sum_i sum_c pi_ic g_ic g_ic^T with g_ic = W^T (e_c - pi_i), pi = softmax(W f), [d, d]:

        E = W^T (diag(mean_i pi_i) - (1/N) Pi^T Pi) W

    features [N, d], weight W [S, d]: the directions in which moving the features changes the answers.
    """
    chances = torch.softmax(features @ weight.T, 1)
    inner = torch.diag(chances.mean(0)) - chances.T @ chances / len(chances)
    matrix = weight.T @ inner @ weight
    return (matrix + matrix.T) / 2


def drift_weights(features: Tensor, means: Tensor, matrix: Tensor, sigma: float) -> Tensor:
    """How much the drift of each sample moves each mean, [K, N], rows with sum one.

    With q_ji = -(f_i - p_j)^T E (f_i - p_j), scaled to [0, 1] over all j and i, w_ji ~ exp(q_ji / (2 sigma^2));
    previous features f [N, d], means p [K, d], E [d, d]. Multiplied out, so that E is met once and not once a class.
    """
    own = ((features @ matrix) * features).sum(1) - 2 * means @ matrix @ features.T  # E is symmetric
    nearness = -(own + ((means @ matrix) * means).sum(1, keepdim=True))
    lowest, highest = nearness.min(), nearness.max()
    scaled = (nearness - lowest) / (highest - lowest) if float(highest) > float(lowest) else nearness - lowest
    return torch.softmax(scaled / (2 * sigma**2), 1)
