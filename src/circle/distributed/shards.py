"""What one rank holds of a model that all ranks learn: some of the images, or some of the groups of the ensemble.

================  =========================  ==========================  ============================================
                  this rank's images         this rank's groups          how the model of all ranks comes about
================  =========================  ==========================  ============================================
DataShard         r, r + R, r + 2 R, ...     all                         one all_reduce of the statistics
GroupShard        all                        first_r to last_r           contents gathered on disk, group by group
================  =========================  ==========================  ============================================

Either way it is, bit for bit, the model that one process would have learned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circle import files
from circle.data.decode import ImageConfig
from circle.distributed.communicator import Communicator
from circle.distributed.environment import Sharding
from circle.distributed.model_groups import Contents, group_bounds, join_groups, select_groups
from circle.errors import CircleError
from circle.extractors import ParameterCount
from circle.labels import decode_labels, encode_labels
from circle.learner import CircleClassifier


def make_shard(sharding: Sharding, ranks: Communicator, contents: Callable[[], Contents], path: Path) -> Shard:
    """The :class:`DataShard` or :class:`GroupShard` of this rank."""
    return (DataShard if sharding == "data" else GroupShard)(ranks, contents, path)


def new_contents(model: CircleClassifier, image: ImageConfig) -> Contents:
    """Contents of a model with the settings of ``model`` that has learned nothing: every rank builds its own groups."""
    settings = {**model.part_settings(), "image": image.to_dict()}
    return {"settings": settings, "resize_arrays": model.image_size is not None}, {}


class Shard(ABC):
    """This rank's part of a model, and of the images that it learns.

    Parameters
    ----------
    ranks : Communicator
        All ranks make their shard, and call its methods, together.
    contents : callable
        Gives header and tensors of the whole model; called on rank zero alone. The others take all from there, so they
        need neither the file nor the same processor.
    path : Path
        The file that rank zero keeps the model in; beside it there is room for the groups of other ranks.

    Attributes
    ----------
    model : CircleClassifier
        The whole ensemble, or this rank's groups of it.
    image_parts, image_part : int
        Image i of a source is this rank's if i % image_parts == image_part.
    """

    model: CircleClassifier
    image_parts: int
    image_part: int

    def __init__(self, ranks: Communicator, path: Path) -> None:
        self.ranks, self.path = ranks, path

    @abstractmethod
    def learn(self, step: Callable[[], object]) -> None:
        """Run ``step``, which teaches :attr:`model` this rank's images of a task; then every rank is ready to score."""

    @abstractmethod
    def save(self) -> None:
        """Write what all ranks have learned to the model file."""

    @abstractmethod
    def gather_groups(self, compute: Callable[[], Tensor]) -> Tensor:
        """Probabilities [k, B, C] of the same images: of all groups on rank zero, of its own groups on any other."""

    @abstractmethod
    def gather_images(self, compute: Callable[[], Tensor], indices: np.ndarray) -> Tensor:
        """Scores [N, C] of the images at ``indices`` [N]: of all on rank zero, of its own images on any other."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What the whole model has learned, on rank zero."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give every rank its part of what :meth:`state_dict` gave on rank zero; the others' argument is ignored."""

    @abstractmethod
    def parameter_count(self) -> ParameterCount:
        """Numbers in the whole model."""

    def _build(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> CircleClassifier:
        if "classes" not in header:
            return files.empty_learner(header, tensors, self.ranks.device, self.path)
        model = files.restored(header, tensors, self.ranks.device, self.path)
        assert isinstance(model, CircleClassifier)
        return model


class DataShard(Shard):
    """This rank's images and the whole ensemble.

    Statistics are sums, so what was learned before counts once: it stays with rank zero while the others start from
    nothing, until the next all_reduce gives the sum to all.
    """

    def __init__(self, ranks: Communicator, contents: Callable[[], Contents], path: Path) -> None:
        super().__init__(ranks, path)
        self.image_parts, self.image_part = ranks.world_size, ranks.rank

        def build() -> CircleClassifier:
            model = self._build(*contents())
            if not model.quantise:
                raise CircleError(
                    "quantise = False: float sums depend on their order; several processes expect --quantise"
                )
            return model

        model = ranks.on_rank_zero(build)
        blueprint = ranks.scatter([] if model is None else [files.blueprint(model)] * ranks.world_size)
        self.model = ranks.on_all_ranks(lambda: model or self._build(*blueprint))

    def learn(self, step: Callable[[], object]) -> None:
        self._clear_copies()
        self.ranks.on_all_ranks(step)
        self._all_reduce()

    def save(self) -> None:
        self._all_reduce()
        self.ranks.on_rank_zero(lambda: self.model.save(self.path))
        self._clear_copies()

    def gather_groups(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()

    def gather_images(self, compute: Callable[[], Tensor], indices: np.ndarray) -> Tensor:
        own = self.ranks.on_all_ranks(compute)
        shards = self.ranks.gather(({}, {"scores": own}))
        if not shards:
            return own
        result = torch.empty(len(indices), own.shape[1], dtype=own.dtype)
        for rank, (_, tensors) in enumerate(shards):
            rows = torch.from_numpy(np.flatnonzero(indices % self.image_parts == rank))
            result[rows] = tensors["scores"].cpu()
        return result

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.ranks.on_rank_zero(lambda: self.model.load_state_dict(state))
        self._clear_copies()
        self._all_reduce()

    def parameter_count(self) -> ParameterCount:
        return self.model.parameter_count()

    def _all_reduce(self) -> None:
        self.model.replace_statistics(self.ranks.all_reduce(self.model.statistics_))

    def _clear_copies(self) -> None:
        """Let the ranks other than zero start from nothing."""
        if not self.ranks.is_rank_zero:
            self.model.replace_statistics(self.model.new_statistics())


class GroupShard(Shard):
    """All images and this rank's groups, for ensembles that outgrow the memory of one machine.

    Each rank extracts, learns and materialises its own groups alone. Probabilities of all groups meet on rank zero and
    are averaged there as one process would: p(x) = 1/k sum_j p_j(x), from a tensor [k, B, C] with the groups in order.
    """

    image_parts, image_part = 1, 0

    def __init__(self, ranks: Communicator, contents: Callable[[], Contents], path: Path) -> None:
        super().__init__(ranks, path)

        def divide() -> list[Contents]:
            header, tensors = contents()
            return self._divide(header, tensors)

        own = ranks.scatter(ranks.on_rank_zero(divide) or [])
        self.model = ranks.on_all_ranks(lambda: self._build(*own))

    def learn(self, step: Callable[[], object]) -> None:
        self.ranks.on_all_ranks(step)

    def save(self) -> None:
        contents = self.ranks.on_all_ranks(lambda: files.learning_contents(self.model))
        shards = self.ranks.gather(contents, self.path.parent)

        def write() -> None:
            header, tensors = join_groups(shards)
            files.write(self.path, tensors, header)

        self.ranks.on_rank_zero(write)

    def gather_groups(self, compute: Callable[[], Tensor]) -> Tensor:
        own = self.ranks.on_all_ranks(compute)
        shards = self.ranks.gather(({}, {"probabilities": own}))
        return torch.cat([tensors["probabilities"].cpu() for _, tensors in shards]) if shards else own

    def gather_images(self, compute: Callable[[], Tensor], indices: np.ndarray) -> Tensor:
        return compute()

    def state_dict(self) -> dict[str, Any]:
        state = self.ranks.on_all_ranks(self.model.state_dict)
        shards = self.ranks.gather(_state_to_contents(state, self.model.settings()), self.path.parent)
        return _state_from_contents(*join_groups(shards)) if shards else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        def divide() -> list[Contents]:
            groups = sum(name.startswith("group") for name in state)
            return self._divide(*_state_to_contents(state, {**self.model.settings(), "groups": groups}))

        own = self.ranks.scatter(self.ranks.on_rank_zero(divide) or [])
        self.ranks.on_all_ranks(lambda: self.model.load_state_dict(_state_from_contents(*own)))

    def parameter_count(self) -> ParameterCount:
        counts = self.ranks.all_gather(asdict(self.model.parameter_count()))
        return sum((ParameterCount(**count) for count in counts), ParameterCount())

    def _divide(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> list[Contents]:
        bounds = group_bounds(header["settings"]["groups"], self.ranks.world_size)
        return [select_groups(header, tensors, first, last) for first, last in bounds]


def _state_to_contents(state: Mapping[str, Any], settings: dict[str, Any]) -> Contents:
    """A classifier's ``state_dict`` as header and tensors that :mod:`circle.distributed.model_groups` can divide."""
    groups = [state[f"group{index}"] for index in range(settings["groups"])]
    header = {
        "settings": settings,
        "classes": encode_labels(state["classes"]),
        "orphan_degrees": [group["orphan_degrees"] for group in groups],
    }
    parts = {
        f"group{index}.{name}": values
        for index, group in enumerate(groups)
        for name, values in group.items()
        if name != "orphan_degrees"
    }
    return header, {"counts": state["counts"], **parts}


def _state_from_contents(header: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Inverse of :func:`_state_to_contents`."""
    state: dict[str, Any] = {"classes": decode_labels(header["classes"]), "counts": tensors["counts"]}
    for index, degrees in enumerate(header["orphan_degrees"]):
        prefix = f"group{index}."
        parts = {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
        state[f"group{index}"] = {**parts, "orphan_degrees": degrees}
    return state
