"""Features and statistics are the same on every machine: here on this one, told to be others.

Instruction sets are chosen for PyTorch's own kernels, for oneDNN and for MKL. What the processor lacks is not taken, so
that these tests pass, and show less, on a smaller one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from golden import machine
from golden.pictures import photographs
from portable import noise, specified

from circle import CircleClassifier
from circle.ensemble import CALIBRATION_IMAGES
from circle.extractors import ImageShape, integers, local_contrast
from circle.runtime.arithmetic import on_grid
from circle.statistics import Statistics

MACHINES: dict[str, dict[str, str]] = {
    "oldest": {
        "ATEN_CPU_CAPABILITY": "default",
        "DNNL_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OMP_NUM_THREADS": "1",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "DNNL_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OMP_NUM_THREADS": "2",
    },
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "OMP_NUM_THREADS": "3"},
    "compatible": {"MKL_CBWR": "COMPATIBLE", "DNNL_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"},
}
CHOSEN = {name for settings in MACHINES.values() for name in settings}
# PyTorch does as it is told, also where the processor lacks the instructions and would end the process: there a machine
# is the processor as it is.
for capability in ("avx2", "avx512"):
    if not getattr(torch.cpu, f"_is_{capability}_supported", lambda: False)():
        MACHINES[capability].pop("ATEN_CPU_CAPABILITY")


def run_on(name: str, *arguments: object) -> tuple[dict[str, Any], Any]:
    """What a process of that machine says of its processor, and its result."""
    tests = Path(__file__).parents[1]
    environment = {key: value for key, value in os.environ.items() if key not in CHOSEN}
    environment |= {**MACHINES[name], "PYTHONPATH": str(tests)}
    done = subprocess.run(
        [sys.executable, "-m", "golden.machine", *map(str, arguments)],
        env=environment,
        cwd=tests,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    processor, result = done.stdout.splitlines()[-2:]
    return json.loads(processor), json.loads(result)


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    """A digest for each config, by the NumPy specification; only the grid comes from the fast path."""
    images, labels = photographs(machine.COUNT, machine.SIDE)
    result = {}
    for name, config in machine.configs().items():
        group = machine.build(config)
        values = specified(config, images, machine.SEED)
        positions = on_grid(values, group.grid.scale.numpy(), group.grid.offset.numpy(), group.grid.bits)
        wide = positions.astype(np.int64)
        statistics = Statistics.from_parts(
            sorted(set(labels)),
            torch.tensor([labels.count(label) for label in sorted(set(labels))]),
            sums=torch.from_numpy(np.stack([wide[np.array(labels) == each].sum(0) for each in sorted(set(labels))])),
            triangle=torch.from_numpy((wide.T @ wide)[np.triu_indices(group.size)]),
        )
        result[name] = machine.combined(group, positions, statistics)
    return result


@pytest.mark.parametrize("name", MACHINES)
def test_one_digest_on_all_machines(name: str, expected: dict[str, str]) -> None:
    """Whatever instructions, threads and batches, and by the NumPy specification."""
    processor, found = run_on(name, "digests")
    assert len(found) == 3 * len(machine.VARIATIONS)
    differing = [case for case, digest in found.items() if digest != expected[case.split(",")[0]]]
    assert not differing, f"on a processor with {processor}"
    if name == "oldest":
        assert processor["capability"] == "DEFAULT", "the setting had no effect"


@pytest.mark.parametrize("bytes_too", [False, True])
def test_products_of_bytes_and_of_floats_are_alike(
    bytes_too: bool, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if bytes_too and not integers.multiplies_bytes():
        pytest.skip("this processor multiplies no bytes")
    used = []
    product = torch.ops.aten._int_mm.out
    counting = SimpleNamespace(out=lambda *arrays, **out: used.append(1) or product(*arrays, **out))
    monkeypatch.setattr(torch.ops.aten, "_int_mm", counting)
    monkeypatch.setattr(local_contrast, "multiplies_bytes", lambda: bytes_too)
    assert machine.digest(machine.build(machine.configs()["fast"]), 1000) == expected["fast"]
    assert bool(used) == bytes_too


def test_a_product_of_bytes_that_overflows_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older processors add pairs of products in 16 bits, which the largest bytes leave."""
    exact = torch.ops.aten._int_mm
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    monkeypatch.setattr(torch.ops.aten, "_int_mm", lambda *pair: exact(*pair).clamp(-(2**15), 2**15 - 1))
    assert not integers.multiplies_bytes.__wrapped__()
    monkeypatch.setattr(torch.ops.aten, "_int_mm", lambda left, right: left.int() @ right.int())
    assert integers.multiplies_bytes.__wrapped__()
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert not integers.multiplies_bytes.__wrapped__()


def test_the_grid_follows_from_the_specification() -> None:
    """floor(mean + 1/2), and a 1024th of the deviation from exact sums."""
    config = machine.PLAIN.replace(patch_sizes=(4,), stem_channels=(3,), stem_kernels=(3,))
    group = machine.build(config)
    shape = ImageShape(3, machine.SIDE, machine.SIDE)
    values = specified(config, noise(CALIBRATION_IMAGES, shape), machine.SEED)
    count = len(values)
    sums, squares = values.sum(0), np.square(values).sum(0)
    assert group.grid.offset.tolist() == ((2 * sums + count) // (2 * count)).tolist()
    scale = np.sqrt((count * squares - sums**2).astype(np.float64)) / (count * 1024)
    np.testing.assert_allclose(group.grid.scale.numpy(), scale, rtol=1e-7)


def test_learned_on_one_forgotten_on_another_and_merged(tmp_path: Path) -> None:
    """A class and single images that A learned leave A's model on B to the last bit, and both models add up."""
    path, own = tmp_path / "a.circle", tmp_path / "b.circle"
    run_on("oldest", "learn", path)
    run_on("avx512", "forget", path, own)
    images, labels = machine.labelled(0, 24)
    rest = labels != "ball"
    left = machine.model().partial_fit(images[rest][:-6], labels[rest][:-6])
    found = CircleClassifier.load(path)
    assert found.statistics_ == left.statistics_
    merged = found.merge(CircleClassifier.load(own))
    more, more_labels = machine.labelled(24, 12)
    together = machine.model().partial_fit(
        np.concatenate([more, images[rest][:-6]]), np.concatenate([more_labels, labels[rest][:-6]])
    )
    assert merged.statistics_ == together.statistics_
    assert merged.samples_ == 12 + int(rest.sum()) - 6
    for mine, theirs in zip(merged.groups_, together.groups_, strict=True):
        assert torch.equal(mine.grid.scale, theirs.grid.scale)
        assert torch.equal(mine.grid.offset, theirs.grid.offset)
