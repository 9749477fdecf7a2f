"""What all trained rivals have in common: their settings, and the loop that goes through the stages of a task.

It resumes in the middle of a task.
"""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from circle.baselines.augmentation import KNOWN, augmenter
from circle.baselines.class_bank import ClassBank
from circle.baselines.networks import Backbone, GrowingHead, LinearHead, NetworkConfig, build_backbone
from circle.baselines.optimisers import Optimiser, Training
from circle.config import check_names, option
from circle.errors import CircleError
from circle.extractors import ParameterCount
from circle.labels import plain_labels
from circle.learner import NotLearnedError
from circle.machine import run_jobs, usable_device
from circle.method import Step, Task, TaskImages

SCORING_BATCH = 256
MIN_WIDTH_FOR_THREADS = 16  # channels of the first layer below which a step is too little work for several threads
# Pixels become (x / 255 - mean) / scale with constants, as for CIRCLE: nobody knows a data set's statistics beforehand.
PIXEL_MEAN, PIXEL_SCALE = 0.5, 0.25


@dataclass(frozen=True)
class TrainerConfig(NetworkConfig):
    """Settings of all methods that train a network. What the paper calls otherwise, or lists in vain, is noted here."""

    #: The paper's names of settings that have another one here.
    published_names: ClassVar[dict[str, str]] = {}
    #: Settings that the paper lists and that change nothing, with the reason.
    inert: ClassVar[dict[str, str]] = {}
    #: Stages that go over a task's images, and how many of the ``epochs`` each of them lasts.
    stage_epochs: ClassVar[dict[str, float]] = {"train": 1.0}
    #: Stages that go over features of all classes so far, and the setting that says how often.
    rehearsals: ClassVar[dict[str, str]] = {}
    #: Whether the task's own images pass the network in each of these; features that are drawn never do.
    rehearses_images: ClassVar[bool] = False
    #: Stages whose cost grows with the number of old classes.
    per_old_class: ClassVar[tuple[str, ...]] = ()
    #: What the data set decides in the published runs (PyCIL's rules): the network's first layer, and augmentation.
    by_dataset: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar100": {},
        "tinyimagenet": {"first_kernel": 7, "max_pool": True, "augmentations": ("crop", "flip")},
        "imagenet_subset": {"first_kernel": 7, "max_pool": True, "augmentations": ("resized_crop", "flip")},
    }

    augmentations: tuple[str, ...] = option(
        ("crop", "flip", "brightness"), "of training images, in this order: " + ", ".join(KNOWN)
    )
    device: str = option("cpu", "where the network is trained: cpu, or cuda for a GPU")

    @property
    def first_epochs(self) -> int:
        """Passes over the first task's images."""
        return getattr(self, "initial_epochs", getattr(self, "epochs", 0))

    def check(self) -> None:
        super().check()
        check_names(self.augmentations, KNOWN, f"{self.name} augmentation")
        for field in self.field_names():
            value = getattr(self, field)
            if field.endswith("batch_size"):
                self.require(value >= 1, field, "1 or more")
            elif field.endswith(("epochs", "weight_decay")):
                self.require(value >= 0, field, "zero or a positive number")
            elif field.endswith("learning_rate"):
                self.require(value > 0, field, "a positive number")


@dataclass(frozen=True)
class EvenConfig(TrainerConfig):
    """Settings of methods that are published with equally many epochs for every task."""

    epochs: int = option(100, "passes over each task's images")
    initial_epochs: int = option(0, "passes over the first task's images, where they are not to be as many as later")

    @property
    def first_epochs(self) -> int:
        return self.initial_epochs or self.epochs


Settings = TypeVar("Settings", bound=TrainerConfig)
Losses = Callable[[Tensor], dict[str, Tensor]]  # samples of a batch [B] -> named terms, weighted, to be added up
Moment = tuple[float, float]  # of the clock on the wall, and of the processors


@dataclass
class TaskData:
    """A task in memory: pixels uint8 [N, C, H, W], columns of ``scores`` int64 [N], and classes known before it."""

    pixels: Tensor
    columns: Tensor
    classes_before: int

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def present(self) -> Tensor:
        """The columns of this task's classes, ascending, [C_t]."""
        return self.columns.unique()

    @property
    def local(self) -> Tensor:
        """Targets [N] counted among this task's classes: y - K_t where all of them are new."""
        return torch.searchsorted(self.present, self.columns)


@dataclass
class Pending:
    """A task that was begun and not ended: its size, the stages that are done, and the place within a fit."""

    images: int
    classes_before: int
    stage: int = 0
    fit: dict[str, Any] | None = None  # epoch, step, order of the samples and, when loaded, the optimiser
    extra: dict[str, Tensor] | None = None  # weights of the task's own modules, when loaded


Stage = tuple[str, Callable[[TaskData], None]]


class TrainedMethod(ABC, Generic[Settings]):
    """Base of the rivals. A method says what its stages are; the loop runs them, in order, for every task:

        begin(task) -> stage 1 -> stage 2 -> ... -> scores

    A stage may call :meth:`fit`, which can be interrupted after any step: the state then holds the optimiser, the
    schedule's place, the order of the samples and the generator, and learning the same task again goes on from there.
    A diverged loss ends the run with an error that names task, epoch and term. Everything random comes from
    one generator, so that config, seed and tasks determine the result.

    Parameters
    ----------
    config : TrainerConfig
        Settings of the method; its defaults where None.
    seed : int
        Of the generator.

    Attributes
    ----------
    network, head : nn.Module
        The backbone f and the growing head on top of it, once a task was begun.
    bank : ClassBank
        Statistics of the features of each class, those that ``keeps`` names.
    extra : nn.ModuleDict
        Modules that a task needs and the next one does not: a teacher (the previous network), a distiller, an
        additional head.
    tasks : int
        Tasks that were learned.
    on_step : callable or None
        Called after every step of training; what it raises ends the task, which can be resumed.
    stage_seconds : dict
        Seconds of each stage of the latest task.
    """

    config_type: ClassVar[type[TrainerConfig]]
    keeps: ClassVar[Literal["nothing", "means", "covariances"]] = "nothing"  # of the features of each class
    rows_per_class: ClassVar[int] = 1  # of the head
    copies: ClassVar[int] = 1  # images that go through the network for each image of a batch, at most

    def __init__(self, config: Settings | None = None, seed: int = 0) -> None:
        self.config: Settings = config or self.config_type()  # pyright: ignore[reportAttributeAccessIssue]
        self.seed = seed
        self.device = usable_device(self.config.device)
        self.generator = torch.Generator().manual_seed(seed)
        self.on_step: Callable[[Step], None] | None = None
        self.tasks = 0
        self.bank = self._new_bank(0)
        self.extra = nn.ModuleDict()
        self.stage_seconds: dict[str, float] = {}  # of the latest task
        self._channels = 0
        self._backbone: Backbone | None = None
        self._head: GrowingHead | None = None
        self._classes: list[Hashable] = []
        self._pending: Pending | None = None
        self._optimiser: Optimiser | None = None

    # What a method defines.

    @abstractmethod
    def stages(self) -> Sequence[Stage]:
        """Names and functions of a task's stages. ``self.tasks`` counts the tasks before this one."""

    def begin(self, data: TaskData) -> None:
        """Prepare for a task: its new classes have columns, and the head has rows for them."""

    @property
    def turns_images(self) -> bool:
        """Whether images are turned by quarters, for which they must be square."""
        return False

    def extras(self, data: TaskData, generator: torch.Generator) -> dict[str, nn.Module]:
        """Modules for this task alone, found in ``extra`` until it ends; saved and restored with a task half done.

        When a task is taken up again they are made anew, from another generator, and given their saved weights.
        """
        return {}

    def new_network(self, channels: int, generator: torch.Generator) -> Backbone:
        """The backbone for images of this many channels."""
        return build_backbone(self.config, channels, generator)

    def new_head(self, size: int) -> GrowingHead:
        """A head without classes for features [B, size]."""
        return LinearHead(size)

    def scores_of(self, features: Tensor) -> Tensor:
        """Features [B, d] -> scores [B, len(classes)]; the largest wins."""
        return self.head(features)

    def own_state(self) -> dict[str, Any]:
        """What a method keeps besides backbone and head: tensors and plain data, nested."""
        return {}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`own_state`."""

    # What the runner asks for.

    @property
    def classes(self) -> Sequence[Hashable]:
        return tuple(self._classes)

    def learn(self, task: Task) -> None:
        """Learn one task, or go on with it where :meth:`load_state_dict` found it begun."""
        pixels = channels_first(np.asarray(task.images))
        self._check(pixels)
        pending = self._pending
        if pending is None:
            before = len(self._classes)
            self._add_classes([label for label in task.classes if label not in self._classes], pixels.shape[1])
        else:
            before = pending.classes_before
            new = set(self._classes[before:])
            if pending.images != len(pixels) or not new <= set(task.classes) <= set(self._classes):
                raise CircleError(f"a task of {pending.images} images was begun: expected it, to go on with it")
        column = {label: index for index, label in enumerate(self._classes)}
        data = TaskData(pixels, torch.tensor([column[label] for label in plain_labels(task.labels)]), before)
        self._run(data)

    @torch.no_grad()
    def scores(self, images: TaskImages) -> Tensor:
        """Scores of all classes seen so far, [N, len(classes)]."""
        if not self._classes:
            raise NotLearnedError(f"{self.config.name} has not learned anything yet")
        parts = [torch.zeros(0, len(self._classes))]
        for start in range(0, len(images), SCORING_BATCH):
            features = self.image_features(images, slice(start, start + SCORING_BATCH))
            parts.append(self.scores_of(features).cpu())
        return torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        """Network, head, classes, generator, what the method keeps, and how far a task has come."""
        state: dict[str, Any] = {
            "classes": list(self._classes),
            "tasks": self.tasks,
            "channels": self._channels,
            "generator": self.generator.get_state(),
            "own": self.own_state(),
        }
        if self.keeps != "nothing":
            state["bank"] = self.bank.state_dict()
        if self._backbone is not None and self._head is not None:
            state["backbone"] = copied(self._backbone.state_dict())
            state["head"] = copied(self._head.state_dict())
        if self._pending is not None:
            state["pending"] = {name: value for name, value in vars(self._pending).items() if value is not None}
            if len(self.extra):
                state["pending"]["extra"] = copied(self.extra.state_dict())
            if self._optimiser is not None and self._pending.fit is not None:
                state["pending"]["fit"] = {**self._pending.fit, "optimiser": self._optimiser.state_dict()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._classes, self.tasks, self._channels = list(state["classes"]), state["tasks"], state["channels"]
        self._backbone = self._head = self._optimiser = None
        if "backbone" in state:
            throwaway = torch.Generator()
            self._backbone = self.new_network(self._channels, throwaway).to(self.device)
            self._backbone.load_state_dict(state["backbone"])
            self._head = self.new_head(self._backbone.size)
            self._head.grow(len(state["head"]["weight"]), throwaway)
            self._head.load_state_dict(state["head"])
            self._head.to(self.device)
        if self.keeps != "nothing":
            self.bank = self._new_bank(state["bank"]["means"].shape[1])
            self.bank.load_state_dict(state["bank"])
        self.load_own_state(state["own"])
        self.extra = nn.ModuleDict()
        self._pending = Pending(**state["pending"]) if "pending" in state else None
        self.generator.set_state(state["generator"])

    def parameter_count(self) -> ParameterCount:
        """Weights of backbone and head; statistics, and networks to compare with, do not count."""
        return ParameterCount(learnable=count_parameters(self.network) + count_parameters(self.head))

    def kept_bytes(self, classes: int, size: int) -> int:
        """Bytes of what is kept of so many classes, for features of this size."""
        if self.keeps == "covariances":
            return 3 * 8 * classes * size**2  # and their factors, and a copy while a class is added
        return 8 * classes * size if self.keeps == "means" else 0

    # What methods use.

    @property
    def network(self) -> Backbone:
        """The backbone f, once there is one."""
        return self._there(self._backbone)

    @property
    def head(self) -> GrowingHead:
        """The head on top of it, once there is one."""
        return self._there(self._head)

    def parameters(self) -> list[nn.Parameter]:
        """All weights of backbone and head."""
        return [*self.network.parameters(), *self.head.parameters()]

    def previous_network(self) -> Backbone:
        """A copy of the backbone as it is, in evaluation mode, to be compared with."""
        return copy.deepcopy(self.network).eval()

    def inputs(self, pixels: Tensor, *, augmented: bool) -> Tensor:
        """uint8 [B, C, H, W] -> what the network takes, on its device; augmented anew at every call, if asked."""
        images = pixels.to(self.device, torch.float32).div_(255.0)
        if augmented:
            images = augmenter(self.config.augmentations, pixels.shape[2])(images, self.generator)
        return images.sub(PIXEL_MEAN).div_(PIXEL_SCALE)

    def augmented_copy(self, pixels: Tensor) -> Tensor:
        """One augmented copy of images, rounded to bytes again: uint8 [N, C, H, W], for passes that must agree."""
        augment = augmenter(self.config.augmentations, pixels.shape[2])
        result = torch.empty_like(pixels)
        # Part by part: the images of a task as floats would take four times as much memory, and more than once.
        for part, place in zip(pixels.split(SCORING_BATCH), result.split(SCORING_BATCH), strict=True):
            place.copy_(augment(part.to(torch.float32).div_(255.0), self.generator).mul_(255.0).round_())
        return result

    @torch.no_grad()
    def features(self, pixels: Tensor, network: nn.Module | None = None) -> Tensor:
        """f(x) of images as they are, in evaluation mode: uint8 [N, C, H, W] -> [N, d] on the device.

        ``network`` is another one to ask, such as f_old.
        """
        network = network if network is not None else self.network.eval()
        return torch.cat([network(self.inputs(part, augmented=False)) for part in pixels.split(SCORING_BATCH)])

    def image_features(self, images: TaskImages, part: slice) -> Tensor:
        """f(x) of a part of what is to be scored, [B, d]."""
        pixels = channels_first(np.asarray(images[part]))
        self._check(pixels)
        return self.features(pixels)

    def cross_entropy(self, data: TaskData) -> Losses:
        """- mean_i log softmax(z_i)[y_i] of augmented images, softmax over all classes so far."""
        targets = data.columns.to(self.device)

        def losses(batch: Tensor) -> dict[str, Tensor]:
            features = self.network.train()(self.inputs(data.pixels[batch], augmented=True))
            return {"cross entropy": functional.cross_entropy(self.head(features), targets[batch])}

        return losses

    def fit(
        self,
        losses: Losses,
        samples: int,
        parameters: Sequence[nn.Parameter],
        training: Training,
        scales: Sequence[float] | None = None,
    ) -> None:
        """Minimise the sum of named terms over ``samples`` samples; may be interrupted after any step and resumed."""
        pending = self._there(self._pending)
        optimiser = self._optimiser or Optimiser(parameters, training, scales)
        self._optimiser = optimiser
        if pending.fit and "optimiser" in pending.fit:
            optimiser.load_state_dict(pending.fit["optimiser"])
        if self.config.network == "convnet" or self.config.width < MIN_WIDTH_FOR_THREADS:
            one_thread(lambda: self._descend_all(losses, samples, optimiser, pending))
        else:
            self._descend_all(losses, samples, optimiser, pending)
        pending.fit = self._optimiser = None
        if not all(bool(torch.isfinite(parameter).all()) for parameter in optimiser.parameters):
            raise self._diverged("weights are no longer finite", training.epochs)

    def _descend_all(self, losses: Losses, samples: int, optimiser: Optimiser, pending: Pending) -> None:
        """All steps that are left of a fit."""
        training, start = optimiser.training, pending.fit or {"epoch": 0, "step": 0}
        step, order = start["step"], start.get("order")
        for epoch in range(start["epoch"], training.epochs):
            if order is None:
                order = torch.randperm(samples, generator=self.generator)
            batches = training.batches(order)
            for number in range(step, len(batches)):
                place = Step(
                    task=self.tasks + 1,
                    stage=self.stages()[pending.stage][0],
                    epoch=epoch + 1,
                    epochs=training.epochs,
                    step=number + 1,
                    steps=len(batches),
                    losses=self._descend(losses(batches[number]), optimiser, training.rate(epoch), epoch + 1),
                )
                pending.fit = {"epoch": epoch, "step": number + 1, "order": order}  # the state is that after the step
                if self.on_step is not None:
                    self.on_step(place)
            step, order = 0, None

    def _descend(self, terms: dict[str, Tensor], optimiser: Optimiser, rate: float, epoch: int) -> dict[str, float]:
        """One step down the sum of the terms; their values."""
        values = {name: float(term.detach()) for name, term in terms.items()}
        for name, value in values.items():
            if not math.isfinite(value):
                raise self._diverged(f"{name} loss is {value}", epoch)
        gradients = torch.autograd.grad(torch.stack(list(terms.values())).sum(), optimiser.parameters)
        optimiser.step(gradients, rate)
        return values

    def _diverged(self, what: str, epoch: int) -> CircleError:
        where = f"in task {self.tasks + 1}, epoch {epoch}"
        return CircleError(f"{self.config.name} diverged: {what} {where}: lower the learning rate")

    def _run(self, data: TaskData) -> None:
        """Begin the task unless it was begun before, and do the stages that are left."""
        if self._pending is None:
            self._pending = Pending(len(data), data.classes_before)
            self.extra = nn.ModuleDict(self.extras(data, self.generator)).to(self.device)
            self.begin(data)
        elif self._pending.extra is not None:
            self.extra = nn.ModuleDict(self.extras(data, torch.Generator())).to(self.device)
            self.extra.load_state_dict(self._pending.extra)
            self._pending.extra = None
        self.stage_seconds.clear()
        for index, (name, stage) in enumerate(self.stages()):
            if index >= self._pending.stage:
                started = now()
                stage(data)
                self.stage_seconds[name] = seconds_between(started, now(), self.config.device)
                self._pending.stage = index + 1
        self._pending, self.extra = None, nn.ModuleDict()
        self.tasks += 1

    def _add_classes(self, new: Sequence[Hashable], channels: int) -> None:
        """Make the network at the first task; give every new class a column and the head a row for it."""
        if self._backbone is None:
            self._channels = channels
            self._backbone = self.new_network(channels, self.generator).to(self.device)
            self._head = self.new_head(self._backbone.size).to(self.device)
            self.bank = self._new_bank(self._backbone.size)
        self.head.grow(self.rows_per_class * len(new), self.generator)
        self._classes.extend(new)

    def _new_bank(self, size: int) -> ClassBank:
        return ClassBank(size, covariances=self.keeps == "covariances", device=self.device)

    def _check(self, pixels: Tensor) -> None:
        found, expected = pixels.shape[1], self._channels or pixels.shape[1]
        if found != expected:
            raise CircleError(f"images with {found} channels: expected {expected}, as in the first task")
        height, width = pixels.shape[2:]
        if self.turns_images and height != width:
            raise CircleError(f"{self.config.name} turns images: expected square ones, got {height} x {width}")

    def _there(self, part: Part | None) -> Part:
        if part is None:
            raise NotLearnedError(f"{self.config.name} has not learned anything yet")
        return part


Part = TypeVar("Part")


def channels_first(images: np.ndarray) -> Tensor:
    """uint8 [N, H, W] or [N, H, W, C] to uint8 [N, C, H, W]."""
    pixels = torch.from_numpy(np.ascontiguousarray(images if images.ndim == 4 else images[..., None]))
    pixels = pixels.permute(0, 3, 1, 2)
    # Into fresh memory: an axis of one channel may keep odd strides, from which PyTorch chooses other kernels.
    return torch.empty(pixels.shape, dtype=pixels.dtype).copy_(pixels)


def one_thread(job: Callable[[], None]) -> None:
    """Run a job of many small operations: these are no faster on two threads, and slow where another program runs."""
    run_jobs([job])


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a module's state, on the CPU and independent of the module."""
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def now() -> Moment:
    return time.perf_counter(), time.process_time()


def seconds_between(start: Moment, stop: Moment, device: str) -> float:
    """Seconds on the wall; on a CPU no more than the processors worked, so that other programs' work is not counted."""
    wall, worked = stop[0] - start[0], stop[1] - start[1]
    return min(wall, worked) if device == "cpu" else wall
