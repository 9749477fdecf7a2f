"""Images a second of every preset's extractors, against the least time that their work can take on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.limits import Machine, least_seconds
from benchmarks.rows import Row
from circle import CircleClassifier, list_presets
from circle.extractors import Extractor, ImageShape, LocalContrast, build_extractor
from circle.registry import resolve

BARRED = ("fast", "best")  # presets with a promise
SKIPPED = ("paper",)  # takes minutes to build


@dataclass(frozen=True)
class Stage:
    """Work on one image: products, and bytes that go through memory because a library call ends there."""

    name: str
    flops: float
    moved: float

    def bound(self, machine: Machine) -> str:
        return "compute" if self.flops / machine.gemm >= self.moved / machine.copy else "memory"


def local_contrast_stages(extractor: LocalContrast) -> list[Stage]:
    """Stages of one image, its mirror image included.

    ``filters``: every bank's filters, patch means and colours; the image is read and the maps written.
    ``signs``: of each map [H W, J] both signs are told apart and squared: it is read, and four maps are written.
    ``windows``: four products of windows [G, H W] and maps, which are read.
    """
    config, shape = extractor.config, extractor.shape
    views, windows = (2 if config.mirror else 1), config.grid**2
    powers = 2 * len(config.moments)  # of both signs
    totals = {"filters": [0.0, 0.0], "signs": [0.0, 0.0], "windows": [0.0, 0.0]}
    banks = list(zip(config.filters, config.kernels, config.reductions, strict=True))
    for bank, (count, kernel, reduction) in enumerate(banks):
        pixels = -(-shape.height // reduction) * -(-shape.width // reduction)
        colours = config.colours if bank == 0 else 0
        maps = 4.0 * pixels * (count + colours)
        channels = shape.channels
        filters = 2.0 * pixels * channels * (kernel**2 * (count + channels) + colours)
        totals["filters"][0] += filters
        totals["filters"][1] += 4.0 * pixels * channels + maps
        totals["signs"][1] += (1 + powers) * maps
        totals["windows"][0] += powers * 2.0 * windows * pixels * (count + colours)
        totals["windows"][1] += powers * maps
    return [Stage(name, views * flops, views * moved) for name, (flops, moved) in totals.items()]


def counted_flops(extractor: Extractor, images: torch.Tensor) -> float:
    """Floating-point operations of the products of one image, as PyTorch counts them."""
    with FlopCounterMode(display=False) as counter:
        extractor(images)
    return counter.get_total_flops() / len(images)


def rows(machine: Machine, presets: list[str] | None = None) -> Iterator[Row]:
    for preset in presets or [name for name in list_presets() if name not in SKIPPED]:
        model = CircleClassifier.from_preset(preset)
        side = model.image_size if isinstance(model.image_size, int) else 32
        extractor = build_extractor(resolve("extractor", model.extractor), ImageShape(3, side, side), 0)
        images = torch.rand(max(8, extractor.tile * machine.threads * 4), 3, side, side)
        seconds = least_seconds(lambda e=extractor, x=images: e.features(x), 5, 0.3) / len(images)
        members = model.groups * model.members
        measured = f"{1 / (seconds * members):,.0f} images/s ({side} x {side}, {members} x {extractor.size:,} values)"
        flops = counted_flops(extractor, images[: extractor.tile])
        against = f"{flops / 1e6:.1f} Mflop at the GEMM rate"
        yield Row("extraction", f"{preset}: one member", measured, against, machine.seconds(flops=flops) / seconds)
        if isinstance(extractor, LocalContrast):
            stages = local_contrast_stages(extractor)
            limit = sum(machine.seconds(flops=stage.flops, moved=stage.moved) for stage in stages)
            words = ", ".join(
                f"{stage.name}: {stage.bound(machine)}, "
                f"{1e6 * machine.seconds(flops=stage.flops, moved=stage.moved):.0f} us"
                for stage in stages
            )
            bar = ">= 0.6" if preset in BARRED else ""
            yield Row("extraction", f"{preset}: stage by stage", f"{1e6 * seconds:.0f} us", words, limit / seconds, bar)
