"""Groups shared out to several processes, played by threads: what the runner gets is what one process gives.

Whole runs by real processes are in test_joint_method.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from circle.benchmark.distributed_groups import GroupCircle
from circle.benchmark.features import FeatureStore, cache_features
from circle.benchmark.results import same_state
from circle.benchmark.runner import Stream
from circle.data.datasets import Selection, load_dataset
from circle.distributed.team import Team
from circle.errors import CircleError
from circle.method import CircleMethod, Task


class ThreadTeam(Team):
    """Processes that are threads: everything goes through a queue for each pair of them."""

    def __init__(self, rank: int, size: int, queues: dict[tuple[int, int], Queue[Any]]) -> None:
        super().__init__(rank, size, "cpu", 60.0)
        self.queues = queues

    def exchange(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        for rank in range(self.size):
            self.queues[self.rank, rank].put(message)
        return [self.queues[rank, self.rank].get(timeout=self.seconds) for rank in range(self.size)]

    def broadcast(self, message: dict[str, Any] | None) -> dict[str, Any]:
        return self.exchange({"message": message})[0]["message"]

    def send(self, tensors: Any, rank: int) -> None:
        self.queues[self.rank, rank].put(tensors)

    def receive(self, rank: int, new: Callable[..., Tensor] = torch.empty) -> dict[str, Tensor]:
        tensors = self.queues[rank, self.rank].get(timeout=self.seconds)
        return {name: new(list(each.shape), dtype=each.dtype).copy_(each) for name, each in tensors.items()}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Processes have their own number of threads for an operation, threads share a part of it: so there is one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def several(tmp_path: Path) -> Any:
    """Calls something of the first of several processes while the others follow."""

    def call(methods: list[GroupCircle], step: Callable[[GroupCircle], Any]) -> Any:
        with ThreadPoolExecutor(len(methods), initializer=torch.set_num_threads, initargs=(1,)) as threads:
            others = [threads.submit(method.follow) for method in methods[1:]]
            result = step(methods[0])
            methods[0].end(stopped=False)
            assert [other.result() for other in others] == [False] * len(others)
        return result

    return call


@pytest.fixture
def make(tiny: Any, tmp_path: Path) -> Any:
    """Makes the method of each process, all with the groups of one whole classifier."""

    def methods(size: int, stream: Stream, **settings: Any) -> list[GroupCircle]:
        queues: dict[tuple[int, int], Queue[Any]] = {(a, b): Queue() for a in range(size) for b in range(size)}
        teams = [ThreadTeam(rank, size, queues) for rank in range(size)]
        return [GroupCircle(tiny(members=1, **settings), team, stream.dataset, tmp_path) for team in teams]

    return methods


@pytest.fixture(scope="module")
def digits() -> Stream:
    dataset = load_dataset("digits").balanced_part(20)
    return Stream.of(replace(dataset, test=Selection(dataset.test, np.arange(100))), 0)


@pytest.mark.parametrize(
    ("groups", "head", "cached"),
    [(3, "slda", True), (5, "qda", False), (18, "cosine_ncm", False)],  # so many are not just added up from the left
)
def test_scores_state_and_counts_are_those_of_one_process(
    several: Any, make: Any, tiny: Any, digits: Stream, tmp_path: Path, groups: int, head: str, cached: bool
) -> None:
    whole = CircleMethod(tiny(members=1, groups=groups, head=head).prepare(digits.dataset.image))
    shared = make(2, digits, groups=groups, head=head)
    assert [len(each.classifier.groups_) for each in shared] == [groups // 2, groups - groups // 2]
    if cached:
        for each in (whole, *shared):
            cache_features(each, digits.dataset, FeatureStore(tmp_path), lambda what, done, total: None)
    tests, _ = digits.view(digits.dataset.test, 0, 4)

    def run(method: CircleMethod) -> tuple[Tensor, dict[str, Any], Any]:
        for start in (0, 2):
            method.learn(Task(*digits.view(digits.dataset.train, start, start + 2)))
        return method.scores(tests), method.state_dict(), method.parameter_count()

    expected, state, count = run(whole)
    scores, shared_state, shared_count = several(shared, run)
    assert torch.equal(scores, expected)
    assert same_state(shared_state, state) and list(shared_state) == list(state)
    assert shared_count == count
    assert (shared[0].cached_seconds > 0) == cached
    assert len({each.cached_seconds for each in shared}) == 1

    resumed = make(3, digits, groups=groups, head=head)  # another number of processes
    several(resumed, lambda method: method.load_state_dict(shared_state))
    assert all(each.classifier.statistics_bytes < whole.classifier.statistics_bytes for each in resumed)
    again, restored = several(resumed, lambda method: (method.scores(tests), method.state_dict()))
    assert torch.equal(again, expected) and same_state(restored, state)
    assert np.array_equal(resumed[0].classes, whole.classes)


def test_too_few_groups(make: Any, digits: Stream) -> None:
    with pytest.raises(CircleError, match="4 processes for 3 groups: expected at least as many groups"):
        make(4, digits, groups=3)
