"""The ONNX forms of the portable extractors give the same integers as the extractors, whatever runs them: ``==``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from circle.config import Config
from circle.export.integers import box_sums, cut_patches, neighbours, powered
from circle.extractors import BiRC2DConfig, Extractor, ImageShape, LocalContrastConfig, build_extractor
from circle.extractors.reservoir import patches
from circle.presets import list_presets, read_preset
from circle.presets.forms import side_of
from circle.registry import entry, resolve
from circle.runtime.arithmetic import root

Require = Callable[[Extractor], None]
RunGraph = Callable[..., np.ndarray]


def portable_presets() -> list[str]:
    """One preset of each extractor and image size; the others differ in groups, members and head alone."""
    found: dict[str, str] = {}
    for preset in list_presets():
        settings = read_preset(preset)
        if entry("extractor", settings["extractor"]["name"]).part.portable:
            found.setdefault(repr((settings["extractor"], side_of(settings), settings["channels"])), preset)
    return list(found.values())


@pytest.mark.parametrize("preset", portable_presets())
def test_presets(preset: str, require_same_integers: Require) -> None:
    settings = read_preset(preset)
    shape = ImageShape(settings["channels"], side_of(settings), side_of(settings))
    require_same_integers(build_extractor(resolve("extractor", settings["extractor"]), shape, 0))


CONTRAST = [
    LocalContrastConfig(filters=(4, 3, 5), kernels=(3, 4, 2), reductions=(2, 3, 1), colours=2),
    LocalContrastConfig(filters=(4,), kernels=(5,), reductions=(2,), colours=0, windows="box", moments=("mean",)),
    LocalContrastConfig(filters=(), kernels=(), reductions=(), colours=3, mirror=False, power=1.0),
    LocalContrastConfig(filters=(6,), kernels=(3,), moments=("square", "mean"), power=1.0),
    LocalContrastConfig(filters=(6,), kernels=(3,), projection="relu", projection_size=9),
    LocalContrastConfig(filters=(6,), kernels=(3,), mirror=False, projection="linear", projection_fan_in=4),
]
RESERVOIRS = [
    BiRC2DConfig(stem_channels=(4, 3), stem_kernels=(3, 2), patch_sizes=(2, 3), width=3, layers=2, leak=1.0),
    BiRC2DConfig(stem_channels=(3,), stem_kernels=(3,), patch_sizes=(2,), width=3, slope=0.0),
    BiRC2DConfig(stem="plain", stem_channels=(3,), stem_kernels=(4,), width=2, aggregation="flatten", join_stem=False),
    BiRC2DConfig(stem="plain", stem_bias=False, stem_channels=(3,), width=2, windows="gaussian", power=1.0),
    BiRC2DConfig(stem="plain", stem_channels=(3, 4), stem_kernels=(3, 5), width=2, power=0.5),
    BiRC2DConfig(stem="plain", stem_channels=(), stem_kernels=(), width=2, projection="relu", projection_fan_in=9),
    BiRC2DConfig(stem_channels=(), stem_kernels=(), width=2, power=0.5),
]


@pytest.mark.parametrize("shape", [ImageShape(1, 17, 23), ImageShape(3, 12, 12)], ids=["grey", "colour"])
@pytest.mark.parametrize("config", [*CONTRAST, *RESERVOIRS], ids=lambda config: config.name)
def test_settings(config: Config, shape: ImageShape, require_same_integers: Require) -> None:
    require_same_integers(build_extractor(config, shape, 3))


def test_wide_reservoirs_in_float64(require_same_integers: Require) -> None:
    """Sums of many inputs that float32 does not hold."""
    config = BiRC2DConfig(stem="plain", stem_channels=(140, 70), stem_kernels=(3, 5), patch_sizes=(4,), width=4)
    extractor = build_extractor(config, ImageShape(3, 12, 12), 0)
    wide = [name for name, buffer in extractor.named_buffers() if buffer.dtype == torch.float64]
    assert {"stem.weight_1", "stacks.0.0.weight_in"} <= set(wide)
    require_same_integers(extractor)


def test_what_compression_leaves(require_same_integers: Require) -> None:
    whole = build_extractor(CONTRAST[0], ImageShape(3, 12, 12), 3)
    for parts in ([0, 2, 8, 13], [1, 3], [12]):  # of three banks and colours; without the last bank; a colour alone
        require_same_integers(whole.keep(parts))


# -- parts -----------------------------------------------------------------------------------------------------


def test_cut_patches(run_graph: RunGraph) -> None:
    maps = torch.randint(0, 256, (2, 5, 7, 3)).float()
    found = run_graph(lambda graph, x: cut_patches(graph, x, 3, (5, 7, 3)), maps.numpy(), 4)
    assert np.array_equal(found, patches(maps, 3).numpy())


@pytest.mark.parametrize("mode", ["edge", "constant"])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
def test_box_sums_are_sums_of_neighbours(kernel: int, mode: str, run_graph: RunGraph) -> None:
    maps = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 7)).astype(np.float32)
    around = run_graph(lambda graph, x: neighbours(graph, x, kernel, (5, 7), mode), maps, 5)
    before, after = (kernel - 1) // 2, kernel // 2
    padded = np.pad(maps, ((0, 0), (0, 0), (before, after), (before, after)), mode=mode)
    assert np.array_equal(around[:, -1], padded[:, :, kernel - 1 :, kernel - 1 :])
    sums = run_graph(lambda graph, x: box_sums(graph, x, kernel, (5, 7), mode), maps, 4)
    assert np.array_equal(sums, around.sum(1))


@pytest.mark.parametrize(("power", "signed"), [(0.5, True), (0.5, False), (1.0, True)])
def test_powered(power: float, signed: bool, run_graph: RunGraph) -> None:
    """Around squares, where a root that is not correctly rounded would be one too small."""
    numbers = np.arange(1, 4096, 5) ** 2
    values = np.concatenate([numbers - 1, numbers, numbers + 1, [0, 2**24 - 1]])
    values = np.concatenate([values, -values]) if signed else values
    found = run_graph(lambda graph, x: powered(graph, x, power, signed=signed), values.astype(np.float32)[None], 2)
    assert np.array_equal(found[0], root(values, power))
