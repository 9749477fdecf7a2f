"""The arithmetic that extrapolates to ImageNet; what it is fed with is measured by benchmarks/imagenet.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from benchmarks.imagenet_costs import Costs, Line, Surface, Workload
from circle import CircleClassifier
from circle.distributed.communicator import Communicator
from circle.statistics import Statistics

#: Every cost is another power of ten or so, and the fixed parts are there.
COSTS = Costs(
    heads=2,
    size=100,
    pixels=12,
    decoding=0.01,
    extraction=Line(0.002, 0.005),
    update=Line(0.03, 0.001),
    closed_form=Line(1.0, 0.01),
    scoring=Surface(0.001, 1e-5, 1e-4, 1e-6),
    summing=Line(0.1, 0.001),
    network=1e6,
)
#: 4,096 images and 80 test images of a task.
WORK = Workload(images=40_960, tests=800, classes=20, tasks=10)


def test_one_machine_by_hand() -> None:
    work = Workload(images=40, tests=10, classes=4, tasks=2)
    parts = COSTS.total(work)
    assert parts["decoding"] == pytest.approx(50 * 0.01)
    assert parts["extraction"] == pytest.approx(3 * 0.002 + 50 * 0.005)  # two tasks and the test images: three calls
    assert parts["update"] == pytest.approx(2 * (2 * 0.03 + 40 * 0.001))  # two heads, a product for each task
    assert parts["closed forms"] == pytest.approx(2 * (1.02 + 1.04))  # two classes, then four
    expected = (0.001 + 2e-5 + 5 * (1e-4 + 2e-6)) + (0.001 + 4e-5 + 10 * (1e-4 + 4e-6))
    assert parts["scoring"] == pytest.approx(expected)
    assert parts["summing"] == parts["network"] == 0.0


def test_machines_divide_what_they_share_and_nothing_else() -> None:
    without = replace(COSTS, extraction=Line(0.0, 0.005), update=Line(0.0, 0.001), scoring=Surface(0, 0, 1e-4, 1e-6))
    one, eight = without.total(WORK), without.total(WORK, 8)
    for part in ("decoding", "extraction", "update", "scoring"):
        assert eight[part] == pytest.approx(one[part] / 8), part
    assert eight["closed forms"] == one["closed forms"]
    assert eight["summing"] == pytest.approx(sum(0.1 + 0.001 * classes for classes in WORK.evaluated))
    shared = without.total(WORK, 8, heads_shared=True)
    assert shared["closed forms"] == pytest.approx(one["closed forms"] / 2), "two heads for two of the machines"
    assert {**shared, "closed forms": 0.0} == {**eight, "closed forms": 0.0}


def test_products_with_few_samples_do_not_get_cheaper_than_their_fixed_part() -> None:
    fixed = replace(COSTS, update=Line(0.03, 0.0))
    assert fixed.total(WORK)["update"] == pytest.approx(2 * 10 * 4 * 0.03)  # 4,096 samples are four products
    assert fixed.total(WORK, 4)["update"] == pytest.approx(2 * 10 * 0.03)
    assert fixed.total(WORK, 64)["update"] == pytest.approx(2 * 10 * 0.03)


def test_network_sends_statistics_round_a_ring_and_scores_to_the_first() -> None:
    work = replace(WORK, evaluate_every=10)
    statistics = 8 * (20 + 2 + 2 * (20 * 100 + 100 * 101 // 2))
    scores, numbers = 8 * 800 * 20, 8 * 800
    assert COSTS.total(work, 2)["network"] * 1e6 == pytest.approx(statistics + scores / 2 + numbers)
    assert COSTS.total(work, 64)["network"] * 1e6 == pytest.approx(63 * (statistics / 32 + scores / 64 + numbers))


def test_evaluations() -> None:
    assert WORK.evaluated == list(range(2, 21, 2))
    assert replace(WORK, evaluate_every=4).evaluated == [8, 16, 20], "and after the last task"
    assert len(Workload(1_281_167, 50_000, 1_000, 500, 50).evaluated) == 10
    few, many = COSTS.total(replace(WORK, evaluate_every=5)), COSTS.total(WORK)
    for part in ("decoding", "extraction", "update"):
        assert few[part] == many[part], "learning and the features of test images do not depend on them"
    assert few["closed forms"] < many["closed forms"] and few["scoring"] < many["scoring"]


@pytest.mark.parametrize("change", [{"images": 81_920}, {"tests": 1_600}, {"evaluate_every": 1}])
def test_more_work_never_takes_less(change: dict[str, int]) -> None:
    work = replace(WORK, evaluate_every=2)
    for machines in (1, 8, 64):
        less, more = COSTS.total(work, machines), COSTS.total(replace(work, **change), machines)
        assert all(more[part] >= less[part] for part in less)
        assert sum(more.values()) > sum(less.values())


def test_more_machines_never_take_longer_for_what_is_shared() -> None:
    totals = [COSTS.total(WORK, machines) for machines in (1, 2, 8, 64)]
    for part in ("decoding", "extraction", "update", "scoring"):
        seconds = [total[part] for total in totals]
        assert seconds == sorted(seconds, reverse=True), part


def test_lines_are_found_and_never_fall() -> None:
    line = Line.through({amount: 0.5 + 0.25 * amount for amount in (8, 64, 1024)})
    assert (line.fixed, line.each) == (pytest.approx(0.5), pytest.approx(0.25))
    assert Line.through({1: 2.0, 1000: 1.9}).each == 0.0, "noise is no reason to expect less time for more work"
    points = {(c, v): 1e-3 + 2e-6 * c + 3e-5 * v + 4e-9 * c * v for c in (2, 500, 1000) for v in (64, 1024)}
    surface = Surface.through(points)
    for (classes, images), seconds in points.items():
        assert surface.in_calls(classes, images, 1024) == pytest.approx(seconds)


def test_bytes_are_those_of_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept, and the vector that is summed over processes."""

    statistics = [Statistics(100) for _ in range(2)]
    for each in statistics:
        each.update(torch.ones(6, 100, dtype=torch.int16), [0, 1, 2, 3, 4, 5])
    assert sum(each.nbytes for each in statistics) == COSTS.statistics_bytes(6)
    sent: list[int] = []
    monkeypatch.setattr(dist, "all_reduce", lambda vector: sent.append(vector.numel() * vector.element_size()))
    monkeypatch.setattr(Communicator, "all_gather", lambda self, message: [message])
    Communicator(0, 1, "cpu", 1.0).all_reduce(statistics)
    assert sent == [COSTS.summed_bytes(6)]


def test_presets_are_those_of_the_page() -> None:
    """Sizes that docs/imagenet.md counts with."""
    for preset, heads in (("fast-224", 1), ("best-224", 2)):
        model = CircleClassifier.from_preset(preset)
        assert (model.groups, model.image_size) == (heads, 224)
    assert replace(COSTS, heads=1, size=2_304).test_bytes(Workload(0, 50_000, 1_000, 500)) == 230_400_000
    assert replace(COSTS, heads=2, size=9_216).test_bytes(Workload(0, 50_000, 1_000, 500)) == 1_843_200_000
