"""Shards of images and of groups on several ranks that are threads: what the runner gets is what one process gives.

Whole runs by real processes are in test_learning.py and benchmark/test_distributed_method.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from circle.benchmark.distributed_method import DistributedCircle
from circle.benchmark.features import FeatureStore, cache_features
from circle.benchmark.results import same_state
from circle.data.datasets import load_dataset
from circle.data.images import Subset
from circle.data.tasks import Stream
from circle.distributed.communicator import Communicator
from circle.distributed.environment import Sharding
from circle.errors import CircleError
from circle.method import CircleMethod, Task
from circle.statistics import Statistics


class ThreadCommunicator(Communicator):
    """Ranks that are threads: everything goes through a queue for each pair of them."""

    def __init__(self, rank: int, world_size: int, queues: dict[tuple[int, int], Queue[Any]]) -> None:
        super().__init__(rank, world_size, "cpu", 60.0)
        self.queues = queues

    def all_gather(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        for rank in range(self.world_size):
            self.queues[self.rank, rank].put(message)
        return [self.queues[rank, self.rank].get(timeout=self.timeout_seconds) for rank in range(self.world_size)]

    def broadcast(self, message: dict[str, Any] | None) -> dict[str, Any]:
        return self.all_gather({"message": message})[0]["message"]

    def send(self, contents: Any, rank: int) -> None:
        self.queues[self.rank, rank].put(contents)

    def receive(self, rank: int, new: Callable[..., Tensor] = torch.empty) -> Any:
        header, tensors = self.queues[rank, self.rank].get(timeout=self.timeout_seconds)
        return header, {name: new(list(each.shape), dtype=each.dtype).copy_(each) for name, each in tensors.items()}

    def all_reduce(self, statistics: Sequence[Statistics]) -> list[Statistics]:
        shards = [
            message["statistics"] for message in self.all_gather({"statistics": [each.copy() for each in statistics]})
        ]
        return [sum(groups[1:], groups[0]) for groups in zip(*shards, strict=True)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Processes have their own number of threads for an operation, threads share a part of it: so there is one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def several(tmp_path: Path) -> Any:
    """Calls something of rank zero while the others follow."""

    def call(methods: list[DistributedCircle], step: Callable[[DistributedCircle], Any]) -> Any:
        with ThreadPoolExecutor(len(methods), initializer=torch.set_num_threads, initargs=(1,)) as threads:
            others = [threads.submit(method.follow) for method in methods[1:]]
            result = step(methods[0])
            methods[0].end(stopped=False)
            assert [other.result() for other in others] == [False] * len(others)
        return result

    return call


@pytest.fixture
def make(tiny: Any, tmp_path: Path) -> Any:
    """Makes the method of each rank, all with the settings of one whole classifier."""

    def methods(sharding: Sharding, size: int, stream: Stream, **settings: Any) -> list[DistributedCircle]:
        queues: dict[tuple[int, int], Queue[Any]] = {(a, b): Queue() for a in range(size) for b in range(size)}

        def method(rank: int) -> DistributedCircle:
            model, ranks = tiny(members=1, **settings), ThreadCommunicator(rank, size, queues)
            return DistributedCircle.build(model, stream.dataset, ranks, sharding, tmp_path / "state")

        with ThreadPoolExecutor(size, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            return list(threads.map(method, range(size)))

    return methods


@pytest.fixture(scope="module")
def digits() -> Stream:
    dataset = load_dataset("digits").balanced_part(20)
    return Stream.of(replace(dataset, test=Subset(dataset.test, np.arange(100))), 0)


@pytest.mark.parametrize(
    ("sharding", "groups", "head", "cached"),
    [
        ("groups", 3, "slda", True),
        ("groups", 5, "qda", False),
        ("groups", 18, "cosine_ncm", False),  # so many are not just added up from the left
        ("data", 2, "slda", True),
        ("data", 1, "qda", False),
    ],
)
def test_scores_state_and_counts_are_those_of_one_process(
    several: Any,
    make: Any,
    tiny: Any,
    digits: Stream,
    tmp_path: Path,
    sharding: Sharding,
    groups: int,
    head: str,
    cached: bool,
) -> None:
    whole = CircleMethod(tiny(members=1, groups=groups, head=head).prepare(digits.dataset.image))
    divided = make(sharding, 2, digits, groups=groups, head=head)
    own_groups = [groups // 2, groups - groups // 2] if sharding == "groups" else [groups, groups]
    assert [len(each.classifier.groups_) for each in divided] == own_groups
    if cached:
        for each in (whole, *divided):
            cache_features(each, digits.dataset, FeatureStore(tmp_path), lambda what, done, total: None)
    tests, _ = digits.view(digits.dataset.test, 0, 4)

    def run(method: CircleMethod) -> tuple[Tensor, dict[str, Any], Any]:
        for start in (0, 2):
            method.learn(Task(*digits.view(digits.dataset.train, start, start + 2)))
        return method.scores(tests), method.state_dict(), method.parameter_count()

    expected, state, count = run(whole)
    scores, divided_state, divided_count = several(divided, run)
    assert same_scores(scores, expected, sharding)
    assert same_state(divided_state, state) and list(divided_state) == list(state)
    assert divided_count == count
    assert (divided[0].cached_seconds > 0) == cached
    assert len({each.cached_seconds for each in divided}) == 1

    resumed = make(sharding, 3, digits, groups=groups, head=head)  # another number of ranks
    several(resumed, lambda method: method.load_state_dict(divided_state))
    if sharding == "groups":
        assert all(each.classifier.statistics_bytes < whole.classifier.statistics_bytes for each in resumed)
    again, restored = several(resumed, lambda method: (method.scores(tests), method.state_dict()))
    assert same_scores(again, expected, sharding) and same_state(restored, state)
    assert np.array_equal(resumed[0].classes, whole.classes)


def same_scores(scores: Tensor, expected: Tensor, sharding: Sharding) -> bool:
    """To the bit where every rank scores all images; a product of fewer images may round its last bits otherwise."""
    return torch.equal(scores, expected) if sharding == "groups" else torch.allclose(scores, expected)


def test_too_few_groups(make: Any, digits: Stream) -> None:
    with pytest.raises(CircleError, match="4 processes for 3 groups: expected at least as many groups"):
        make("groups", 4, digits, groups=3)
