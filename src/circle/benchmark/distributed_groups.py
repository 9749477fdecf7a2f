"""CIRCLE by several processes that share the groups, for ensembles that outgrow the memory of one machine.

Each process extracts, learns and materialises its own groups alone, with all images. Probabilities of all groups come
together in the first process, a tile of images at a time, and are averaged there as one process would:

    p(x) = 1/k sum_j p_j(x), from a tensor [k, B, C] with the groups in their order

State files are those of one process, too: the first one receives the others' part on disk.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circle.benchmark.distributed_method import JointCircle
from circle.benchmark.results import join_tensors, split_tensors
from circle.data.datasets import Dataset
from circle.data.views import ImageView
from circle.distributed.mapped import mapped_in
from circle.distributed.model_parts import share_bounds, share_settings
from circle.distributed.team import Team
from circle.extractors import ParameterCount
from circle.learner import CircleClassifier
from circle.method import CircleMethod, Images, Task


class GroupCircle(JointCircle):
    """Some of the groups of an ensemble and all images; ``folder`` has room for the state of all groups."""

    def __init__(self, classifier: CircleClassifier, team: Team, dataset: Dataset, folder: Path) -> None:
        self._bounds = share_bounds(classifier.groups, team.size)
        own = share_settings(classifier.part_settings(), *self._bounds[team.rank])
        share = CircleClassifier(**{**classifier.get_params(deep=False), **own})
        super().__init__(share.prepare(dataset.image), team, dataset)
        self._folder = folder

    # -- the first process, driven by the runner -------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        self.team.broadcast({"call": "state"})
        return self._state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.team.broadcast({"call": "restore"})
        self._restore(state)

    def parameter_count(self) -> ParameterCount:
        self.team.broadcast({"call": "count"})
        return self._count()

    # -- the others ------------------------------------------------------------------------------------------

    def _obey(self, order: dict[str, Any]) -> None:
        own = {"state": self._state, "restore": lambda: self._restore({}), "count": self._count}
        if order["call"] in own:
            own[order["call"]]()
        else:
            super()._obey(order)

    # -- all -------------------------------------------------------------------------------------------------

    def _learn(self, name: str, indices: np.ndarray) -> None:
        images = self._sets[name]
        self.team.together(lambda: CircleMethod.learn(self, Task(ImageView(images, indices), images.labels[indices])))
        # They extract at the same time, so that it takes as long as the one with the most groups takes.
        answers = self.team.exchange({"seconds": self.cached_seconds})
        self.cached_seconds = max(answer["seconds"] for answer in answers)

    def _scores(self, name: str, indices: np.ndarray) -> Tensor:
        return CircleMethod.scores(self, ImageView(self._sets[name], indices))

    def _head_probabilities(self, images: Images, part: slice) -> Tensor:
        """Probabilities [k, B, C] of all groups in the first process, of their own groups in the others."""
        ours = super()._head_probabilities
        mine = self.team.together(lambda: ours(images, part))
        if not self.team.first:
            self.team.send({"probabilities": mine}, 0)
            return mine
        theirs = [self.team.receive(rank)["probabilities"] for rank in range(1, self.team.size)]
        return torch.cat([mine.cpu(), *theirs])

    def _state(self) -> dict[str, Any]:
        """The state of all groups in the first process, of their own in the others."""
        own = super().state_dict
        state = self.team.together(own)
        plain, tensors = split_tensors(state)
        plains = [answer["plain"] for answer in self.team.exchange({"plain": plain})]
        if not self.team.first:
            self.team.send(tensors, 0)
            return state
        on_disk = mapped_in(self._folder)
        for rank, (first, last) in list(enumerate(self._bounds))[1:]:
            theirs = join_tensors(plains[rank], self.team.receive(rank, on_disk))
            state |= {f"group{group}": theirs[f"group{group - first}"] for group in range(first, last)}
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        """Give each process the state of its groups; what the others give is not looked at."""
        shares = [split_tensors(_share(state, *bounds)) for bounds in self._bounds] if self.team.first else []
        plains = self.team.broadcast({"plains": [plain for plain, _ in shares]})["plains"]
        for rank, (_, tensors) in list(enumerate(shares))[1:]:
            self.team.send(tensors, rank)
        mine = join_tensors(plains[self.team.rank], shares[0][1] if self.team.first else self.team.receive(0))
        own = super().load_state_dict
        self.team.together(lambda: own(mine))

    def _count(self) -> ParameterCount:
        answers = self.team.exchange(asdict(super().parameter_count()))
        return sum((ParameterCount(**answer) for answer in answers), ParameterCount())


def _share(state: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    """The state of groups ``first`` to ``last``, as a model of its own has it."""
    groups = {f"group{group - first}": state[f"group{group}"] for group in range(first, last)}
    return {"classes": state["classes"], "counts": state["counts"], **groups}
