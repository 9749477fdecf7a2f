"""Costs of a stream: added up from timings, and timed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from circle.baselines.costs import Costs, Course, _probe, probe
from circle.baselines.trainer import TrainerConfig
from circle.extractors import ImageShape
from circle.method import Task
from circle.registry import entry, list_methods

SHAPE = ImageShape(1, 8, 8)
COURSE = Course([100, 50, 50], [2, 1, 1])


def small(name: str, **changes: Any) -> TrainerConfig:
    config = entry("method", name).config()
    settings = {"network": "convnet", "width": 4, "batch_size": 16, "buffer_size": 16, "feature_size": 4}
    settings |= {"draws": 100, "pulled_images": 20}
    known = {setting: value for setting, value in settings.items() if setting in config.field_names()}
    return config.replace(**{**known, **changes})  # pyright: ignore[reportReturnType]


def test_totals() -> None:
    lwf = entry("method", "lwf").config(initial_epochs=10, epochs=20)
    costs = Costs({"train": 0.01}, {"train": 0.03}, 0.5, rest_first=0.25)
    assert costs.total(lwf, COURSE) == pytest.approx(10 * 100 * 0.01 + 20 * 100 * 0.03 + 100 * 0.25 + 100 * 0.5)
    efc = entry("method", "efc_plus_plus").config(initial_epochs=1, epochs=1, balanced_epochs=3)
    costs = Costs({"train": 0.01}, {"train": 0.03, "balance": 0.002}, 0.0, drawn=0.0005)
    assert costs.total(efc, COURSE) == pytest.approx(1.0 + 3.0 + 3 * (100 * 0.002 + (100 + 150) * 0.0005))
    fetril = entry("method", "fetril").config(initial_epochs=1, epochs=3)
    costs = Costs({"train": 0.01}, {"head": 0.002}, 0.0)
    assert costs.total(fetril, COURSE) == pytest.approx(1.0 + 3 * (150 + 200) * 0.002)
    adagauss = entry("method", "adagauss").config(epochs=4)
    costs = Costs({"train": 0.01}, {"train": 0.03, "adapter": 0.02}, 0.0, old_class=0.5)
    assert costs.total(adagauss, COURSE) == pytest.approx(4 * (1.0 + 3.0) + 2 * 2.0 + (2 + 3) * 0.5)


class Operations(TorchDispatchMode):
    """Counts the multiplications and additions of products and convolutions, by PyTorch's own formulas."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.count += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=found)
        return found


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operations]:
    """The clock counts operations instead of seconds, so that no other program can disturb it."""
    _probe.cache_clear()
    with Operations() as counter:
        clock = SimpleNamespace(perf_counter=lambda: counter.count, process_time=lambda: counter.count)
        monkeypatch.setattr("circle.baselines.trainer.time", clock)
        yield counter
    _probe.cache_clear()


@pytest.mark.parametrize("name", list_methods())
def test_a_probe_times_what_a_method_does(name: str, operations: Operations) -> None:
    measured = probe(small(name), SHAPE)
    assert "train" in measured.first and measured.first["train"] > 0
    frozen = name in ("acil", "dsal", "fecam", "fetril")
    assert ("train" in measured.later) is not frozen
    assert measured.rest >= 0
    assert (measured.old_class > 0) is (name in ("adc", "adagauss"))
    for stage in entry("method", name).config.rehearsals:
        assert measured.later[stage] > 0


@pytest.mark.parametrize("name", ["lwf", "efc_plus_plus"])
def test_a_probe_counts_seconds(name: str) -> None:
    measured = probe(small(name), SHAPE)
    rates = [*measured.first.values(), *measured.later.values(), measured.rest, measured.old_class]
    assert all(0 <= rate < 60 for rate in rates)


def test_configs_that_differ_in_epochs_share_a_probe() -> None:
    assert probe(small("lwf", epochs=7, milestones=(3,)), SHAPE) is probe(small("lwf", epochs=9), SHAPE)
    assert probe(small("lwf", width=5), SHAPE) is not probe(small("lwf"), SHAPE)


def test_a_drawn_feature_costs_less_than_an_image(operations: Operations) -> None:
    config = small("efc_plus_plus", network="resnet18", width=8, max_pool=True)
    measured = probe(config, ImageShape(3, 32, 32))
    assert measured.drawn is not None and measured.drawn < measured.later["balance"] / 3


@pytest.mark.parametrize("name", list_methods())
def test_what_learning_takes_is_foreseen(name: str, operations: Operations) -> None:
    """Heads grow and last batches are small; a missing stage or a wrong unit is further off than that."""
    settings = {"initial_epochs": 2, "epochs": 2, "balanced_epochs": 4}
    known = entry("method", name).config.field_names()
    config, tasks = small(name, **{name: value for name, value in settings.items() if name in known}), 4
    method = entry("method", name).part(config, seed=0)
    expected = probe(config, ImageShape(1, 32, 32)).total(config, Course([100] * tasks, [2] * tasks))
    started = operations.count
    for task in range(tasks):
        images = np.random.default_rng(task).integers(0, 256, (100, 32, 32), dtype=np.uint8)
        method.learn(Task(images, np.arange(100) % 2 + 2 * task))
    assert (operations.count - started) / expected == pytest.approx(1, rel=0.2)
