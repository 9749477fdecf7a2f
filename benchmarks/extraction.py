"""Images a second of every preset's extractors, against the least time that their work can take on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.limits import Machine, least_seconds
from benchmarks.rows import Row
from circle import CircleClassifier, list_presets
from circle.extractors import Extractor, ImageShape, LocalContrast, build_extractor
from circle.extractors.local_contrast import ContrastBank
from circle.registry import resolve

BARRED = ("fast", "best")  # presets with a promise
SIDES = (32, 64, 224)  # of images
OWN, OTHER = 5.0, 1.0  # seconds of measuring, at most: at the size of a preset, and at the others
COUNTED = 8  # images whose products are counted: fewer are filled up by projections
LONGEST = 10.0  # seconds for a few images; what takes longer is left out, and the row says so


@dataclass(frozen=True)
class Stage:
    """Work on one image: products, and bytes that go through memory because a library call ends there."""

    name: str
    flops: float
    moved: float


def local_contrast_stages(extractor: LocalContrast) -> list[Stage]:
    """Stages of one image and its mirror image: of each, what it takes as long as it is made of library calls.

    ``patches``: the image is read, a scaled patch [C k k] of every pixel written.
    ``maps``: the product of patches and filters; products with zeros are not counted.
    ``signs``: the positive part of each map is written beside it, and both are squared where they lie.
    ``windows``: products of windows along columns [g, H] with these four, and along rows [g, W] with what is left.

    It is not the least that any program needs: a kernel of one's own would make signs and squares while it adds them
    up. Nor is it a limit where the processor multiplies int8, because products count at the rate of float32.
    """
    config = extractor.config
    powers = 2 * len(config.moments)
    stages = {name: [0.0, 0.0] for name in ("patches", "maps", "signs", "windows")}
    for bank in extractor.banks:
        assert isinstance(bank, ContrastBank)
        windows, width, pixels = len(bank.rows), bank.columns.shape[1], bank.pixels
        rows, maps = bank.weights.shape
        channels = extractor.shape.channels
        views = 1 if bank.folded or not bank.mirror else 2
        stages["patches"][1] += views * 4.0 * pixels * (channels + rows)
        useful = float((bank.weights != 0).sum())
        stages["maps"][0] += views * 2.0 * pixels * useful
        stages["maps"][1] += views * 4.0 * pixels * (rows + maps)
        stages["signs"][1] += views * (6 if "square" in config.moments else 2) * 4.0 * pixels * maps
        stages["windows"][0] += views * powers * 2.0 * windows * (pixels + windows * width) * maps
        stages["windows"][1] += views * powers * 4.0 * pixels * maps
    return [Stage(name, flops, moved) for name, (flops, moved) in stages.items()]


def counted_flops(extractor: Extractor, side: int) -> float:
    """Floating-point operations of the products of one image, as PyTorch counts them."""
    images = random_images(COUNTED, side)
    with FlopCounterMode(display=False) as counter:
        extractor(images)
    return counter.get_total_flops() / COUNTED


def random_images(count: int, side: int) -> Tensor:
    """Bytes [count, 3, side, side]."""
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)


def built(preset: str, side: int) -> Extractor:
    model = CircleClassifier.from_preset(preset)
    return build_extractor(resolve("extractor", model.extractor), ImageShape(3, side, side), 0)


def measured(extractor: Extractor, side: int, machine: Machine, *, own: bool) -> float | None:
    """Seconds of one image, or None where a few images take too long.

    Every thread has some tiles; there are fewer images where they are slow.
    """
    few = random_images(max(extractor.minimum_batch, machine.threads), side)
    first = least_seconds(lambda: extractor.features(few), 1, 0.0) / len(few)
    if first * len(few) > LONGEST:
        return None
    budget = OWN if own else OTHER
    most = max(2 * extractor.minimum_batch, extractor.tile * machine.threads * 4)
    count = max(len(few), min(most, int(budget / 4 / first)))
    rounds = max(2, min(30, int(budget / (first * count))))
    images = random_images(count, side)
    return least_seconds(lambda: extractor.features(images), rounds, 0.05) / count


def rows(machine: Machine) -> Iterator[Row]:
    for preset in list_presets():
        model = CircleClassifier.from_preset(preset)
        own = model.image_size if isinstance(model.image_size, int) else 32
        members = model.groups * model.members
        for side in sorted({own, *SIDES}):
            extractor = built(preset, side)
            what = f"{preset}, {side} x {side}: {members} x {extractor.size:,} values"
            seconds = measured(extractor, side, machine, own=side == own)
            if seconds is None:
                yield Row("extraction", what, f"left out: a few images take more than {LONGEST:.0f} s")
                continue
            flops = counted_flops(extractor, side)
            rate = 1 / (seconds * members)
            yield Row(
                "extraction",
                what,
                f"{rate:,.0f} images/s" if rate >= 10 else f"{rate:.2g} images/s",
                f"{flops / 1e6:.1f} Mflop of a member at the GEMM rate",
                machine.seconds(flops=flops) / seconds,
            )
            if side == own and isinstance(extractor, LocalContrast):
                yield from staged_rows(machine, preset, extractor, seconds)


def staged_rows(machine: Machine, preset: str, extractor: LocalContrast, seconds: float) -> Iterator[Row]:
    """Against the sum of the stages' limits: bytes at the rate of copies in memory, then at that within the cache.

    The promise is about the first. Maps of a few images stay in the cache, so the second is the stricter one, and
    says whether it is kept there, too.
    """
    stages = local_contrast_stages(extractor)
    for kind, rate in (("memory", machine.copy), ("cache", machine.cached_copy)):
        times = [max(stage.flops / machine.gemm, stage.moved / rate) for stage in stages]
        words = ", ".join(
            f"{stage.name} {1e6 * limit:.0f} ({'GEMM' if stage.flops / machine.gemm == limit else kind})"
            for stage, limit in zip(stages, times, strict=True)
        )
        what = f"{preset}: a member by stages, bytes at the copy rate of the {kind}"
        bar = ">= 0.6" if preset in BARRED else ""
        yield Row("extraction", what, f"{1e6 * seconds:.0f} us", words, sum(times) / seconds, bar)
