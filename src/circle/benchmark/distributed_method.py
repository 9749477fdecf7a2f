"""CIRCLE run through the benchmark by several ranks: the same rows, and the same model, as by one process.

Rank zero has the runner, the record and the clock; to the runner its method is one like any other. Each call that the
others take part in is broadcast to them, who :meth:`DistributedCircle.follow`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circle.data.datasets import Dataset
from circle.data.images import Images, Subset
from circle.distributed.communicator import Communicator
from circle.distributed.environment import Sharding
from circle.distributed.shards import Shard, make_shard, new_contents
from circle.errors import CircleError
from circle.extractors import ParameterCount
from circle.learner import CircleClassifier
from circle.method import CircleMethod, Task, TaskImages


class DistributedCircle(CircleMethod):
    """This rank's part of CIRCLE: a shard of the model, and the images of a data set that are this rank's.

    Parameters
    ----------
    shard : DataShard or GroupShard
        Holds the model and does what the ranks do together.
    dataset : Dataset
        Image i of its sets belongs to one rank for good, which extracts its features, keeps them in its own cache,
        learns it and scores it; with a GroupShard every rank does so for its own groups.
    """

    def __init__(self, shard: Shard, dataset: Dataset) -> None:
        super().__init__(shard.model)
        self.shard, self.ranks = shard, shard.ranks
        self._sets = {"train": dataset.train, "test": dataset.test}
        self._own = {name: images.shard(shard.image_part, shard.image_parts) for name, images in self._sets.items()}
        for name, images in self._sets.items():
            if len(images) < shard.image_parts:
                self.ranks.fail(f"{dataset.name}: {len(images)} {name} images for {self.ranks.world_size} processes")

    def own_images(self, dataset: Dataset) -> tuple[Images, Images]:
        return self._own["train"], self._own["test"]

    @classmethod
    def build(
        cls, classifier: CircleClassifier, dataset: Dataset, ranks: Communicator, sharding: Sharding, path: Path
    ) -> DistributedCircle:
        """The method of this rank for a classifier that has learned nothing; all ranks make theirs together.

        Beside ``path``, the file of the run's state, rank zero finds room for the groups of other ranks.
        """
        return cls(make_shard(sharding, ranks, lambda: new_contents(classifier, dataset.image), path), dataset)

    # -- rank zero, driven by the runner ---------------------------------------------------------------------

    def learn(self, task: Task) -> None:
        self._on_all_ranks("learn", task.images)

    def scores(self, images: TaskImages) -> Tensor:
        return self._on_all_ranks("scores", images)

    def state_dict(self) -> dict[str, Any]:
        return self._on_all_ranks("state_dict")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._on_all_ranks("load_state_dict", state=state)

    def parameter_count(self) -> ParameterCount:
        return self._on_all_ranks("parameter_count")

    def end(self, *, stopped: bool) -> None:
        """Let the other ranks go."""
        self._send({"call": "end", "stopped": stopped}, {})

    def _on_all_ranks(self, call: str, images: TaskImages | None = None, state: Mapping[str, Any] | None = None) -> Any:
        """Have all ranks do their part of a call; rank zero's result."""
        header, tensors = {"call": call}, {}
        if images is not None:
            if not isinstance(images, Subset):
                raise CircleError("images that are in no data set: several processes know those of the data set alone")
            header["set"] = next(name for name, each in self._sets.items() if each is images.source)
            tensors["indices"] = torch.from_numpy(images.indices)
        self._send(header, tensors)
        return self._take_part(header, tensors, state or {})

    def _send(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.ranks.scatter([(header, tensors)] * self.ranks.world_size)

    # -- the other ranks -------------------------------------------------------------------------------------

    def follow(self) -> bool:
        """Take part in what rank zero is asked to do, until the run ends; whether it ended by a request to stop."""
        while True:
            header, tensors = self.ranks.scatter([])
            if header["call"] == "end":
                return header["stopped"]
            self._take_part(header, tensors, {})

    # -- all ranks -------------------------------------------------------------------------------------------

    def _take_part(self, header: dict[str, Any], tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Any:
        """This rank's part in a call; the ``state`` is rank zero's."""
        match header["call"]:
            case "learn":
                return self._learn(header["set"], tensors["indices"].numpy())
            case "scores":
                return self._scores(header["set"], tensors["indices"].numpy())
            case "load_state_dict":
                return self.shard.load_state_dict(state)
            case "state_dict":
                return self.shard.state_dict()
            case _:
                return self.shard.parameter_count()

    def _view(self, name: str, indices: np.ndarray) -> Subset:
        """This rank's images among those at ``indices`` of a set."""
        parts, part = self.shard.image_parts, self.shard.image_part
        return Subset(self._own[name], indices[indices % parts == part] // parts)

    def _learn(self, name: str, indices: np.ndarray) -> None:
        view = self._view(name, indices)
        task = Task(view, self._own[name].labels[view.indices]) if len(view) else None
        self.shard.learn(lambda: None if task is None else CircleMethod.learn(self, task))
        # The ranks extract at the same time, so that it takes as long as the one with the most of it.
        seconds = self.ranks.all_gather({"seconds": self.cached_seconds})
        self.cached_seconds = max(each["seconds"] for each in seconds)

    def _scores(self, name: str, indices: np.ndarray) -> Tensor:
        view = self._view(name, indices)
        none = torch.zeros(0, len(self.classes), dtype=torch.float64)
        return self.shard.gather_images(lambda: CircleMethod.scores(self, view) if len(view) else none, indices)

    def _head_probabilities(self, images: TaskImages, part: slice) -> Tensor:
        own = super()._head_probabilities
        return self.shard.gather_groups(lambda: own(images, part))


def check_same_data(ranks: Communicator, dataset: Dataset) -> None:
    """Refuse other images on another machine: every rank would learn from what it finds."""
    ranks.require_equal(
        {"data": ranks.on_all_ranks(lambda: [images.fingerprint for images in (dataset.train, dataset.test)])},
        lambda rank, _: (
            f"{dataset.name}: process {rank} of {ranks.world_size} finds other images than process 0; "
            "expected the same on all machines"
        ),
    )
