"""Why portable extractors cannot round differently anywhere: which operations they use, and how large their sums get.

GPUs run the same operations. None of them may be one whose result the standard leaves open (exp, pow, rsqrt, ...), or
an algorithm that takes detours through fractions (convolutions); and every sum of products must be of whole numbers,
times one power of two, that the type holds exactly. Both are seen here on ordinary and on extreme images.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from circle.config import Config
from circle.extractors import ImageShape, build_extractor, integers
from circle.presets import read_preset
from circle.registry import resolve
from circle.runtime.noise import noise_images

# Single IEEE operations with a fixed result, comparisons, and what only moves values.
FIXED = {
    *("abs", "add", "add_", "ceil", "clamp", "clamp_", "clamp_min", "clamp_min_", "copysign", "div", "div_", "floor"),
    *("floor_", "leaky_relu_", "mul", "mul_", "neg_", "round_", "sqrt_", "sub", "sub_", "pow", "pow_"),
    *("bitwise_right_shift", "bitwise_right_shift_"),
}
MOVING = {
    *(
        "_to_copy",
        "_unsafe_view",
        "alias",
        "arange",
        "as_strided",
        "cat",
        "clone",
        "constant_pad_nd",
        "copy_",
        "detach",
        "empty",
    ),
    *("clone", "expand", "fill_", "flip", "full", "index", "lift_fresh", "narrow", "new_empty", "new_zeros", "permute"),
    *("replication_pad2d", "select", "slice", "split", "squeeze", "stack", "t", "transpose", "unsqueeze", "view"),
    *("zeros_like", "_reshape_alias", "unfold", "reshape", "unbind", "split_with_sizes", "ones_like", "zeros"),
}
# Sums of products; of an embedding bag and a pooled sum too, whose factors are signs and ones.
PRODUCTS = {"mm", "bmm", "baddbmm", "_int_mm"}
SUMS = {"avg_pool2d", "_embedding_bag_forward_only", "_embedding_bag"}
LIMITS = {torch.float32: 2.0**24, torch.float64: 2.0**53, torch.int8: 2.0**31}


def lowest_bit(values: Tensor) -> float:
    """The largest power of two that all values are multiples of."""
    whole, unit = values.double(), 1.0
    while bool((whole != whole.floor()).any()):
        whole, unit = whole * 2.0, unit / 2.0
    return unit


class Inspector(TorchDispatchMode):
    """Looks at every operation; products must have exact sums, whatever the order of their terms."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0.0  # sum of sizes of terms, as a share of what the type holds
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.names.add(name)
        assert name in FIXED | MOVING | PRODUCTS | SUMS, f"{name}: is its result the same everywhere?"
        if name.startswith("pow"):
            assert args[1] == 2, "only squares"
        if name in PRODUCTS:
            added = [args[0]] if name == "baddbmm" else []
            left, right = args[1:3] if added else args[:2]
            units = lowest_bit(left) * lowest_bit(right)
            sizes = left.double().abs() @ right.double().abs()
            for each in added:
                units, sizes = min(units, lowest_bit(each)), sizes + each.double().abs()
            share = float(sizes.max()) / units / LIMITS[left.dtype]
            assert share <= 1.0, f"{name} of {list(left.shape)} and {list(right.shape)}: {share:.2f} of what is exact"
            self.largest = max(self.largest, share)
        return func(*args, **(kwargs or {}))


def extreme_images(shape: ImageShape) -> np.ndarray:
    generator = np.random.default_rng(0)
    size = (shape.channels, shape.height, shape.width)
    board = np.indices(size).sum(0) % 2 * 255
    stripes = np.broadcast_to(np.arange(shape.width) % 2 * 255, size)
    noise = noise_images(1, *size)[0]
    images = [np.full(size, 255), board, stripes, generator.integers(0, 256, size), noise]
    return np.stack(images).astype(np.uint8)


def configs() -> dict[str, Config]:
    names = ("small", "reservoir", "paper")
    found = {name: resolve("extractor", read_preset(name)["extractor"]) for name in names}
    sparse = {"projection": "relu", "projection_size": 30, "projection_fan_in": 50}
    return {
        **found,
        "two banks": found["small"].replace(filters=(6, 6), kernels=(5, 7), reductions=(1, 2)),
        "reduced": found["small"].replace(reductions=(3,), power=1.0, **sparse),
        "deep": found["reservoir"].replace(stem_channels=(4, 5), stem_kernels=(3, 4), layers=2, width=8, leak=1.0),
        "flat": found["paper"].replace(aggregation="flatten", width=16, patch_sizes=(3,), projection="none"),
    }


@pytest.mark.parametrize("bytes_multiplied", [False, True])
@pytest.mark.parametrize("name", configs())
def test_operations(name: str, bytes_multiplied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if bytes_multiplied and not integers.multiplies_bytes():
        pytest.skip("this processor has no instruction for products of int8")
    monkeypatch.setattr("circle.extractors.local_contrast.multiplies_bytes", lambda: bytes_multiplied)
    shape = ImageShape(3, 32, 32)
    extractor = build_extractor(configs()[name], shape, seed=1)
    images = torch.from_numpy(extreme_images(shape))
    with Inspector() as inspector:
        found = extractor(images)
    assert torch.equal(found, found.round())
    assert float(found.abs().max()) < 2**24
    assert 0.0 < inspector.largest <= 1.0
    assert ("_int_mm" in inspector.names) == (bytes_multiplied and extractor.config.name == "local_contrast")
