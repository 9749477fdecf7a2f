"""Settings that the trained rivals share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from circle.baselines.augmentation import KNOWN
from circle.baselines.networks import NetworkConfig
from circle.baselines.optimisers import Training
from circle.config import check_names, option


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


@dataclass(frozen=True)
class FrozenConfig(TrainerConfig):
    """Settings of methods that train on the first task and then freeze the network."""

    batch_size: int = option(128, "images per step of the first task")
    initial_epochs: int = option(200, "passes over the first task's images")
    initial_learning_rate: float = option(0.1, "step size in the first task")
    initial_weight_decay: float = option(5e-4, "in the first task")
    scheduler: Literal["multi_step", "cosine"] = option("cosine", "how the step size falls in the first task")
    learning_rate_milestones: tuple[int, ...] = option((), "epochs at which multi_step lets it fall")
    decay: float = option(0.1, "factor of the step size at every milestone")
    warmup_epochs: int = option(0, "in which the step size rises from a thousandth")

    def initial_training(self) -> Training:
        """How the first task is trained."""
        return Training(
            self.initial_epochs,
            self.batch_size,
            self.initial_learning_rate,
            weight_decay=self.initial_weight_decay,
            milestones=self.learning_rate_milestones if self.scheduler == "multi_step" else (),
            decay=self.decay,
            cosine=self.scheduler == "cosine",
            warmup_epochs=self.warmup_epochs,
        )
