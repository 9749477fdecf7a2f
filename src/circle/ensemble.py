"""Groups of extractors: m members side by side make one head's features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from circle.config import Config
from circle.errors import CircleError
from circle.extractors import Extractor, Grid, ImageShape, ParameterCount, build_extractor, calibrate, extract
from circle.extractors.calibration import pink_noise

CALIBRATION_IMAGES = 128
LEVELS_PER_DEVIATION = 8.0

# Extractors are frozen and determined by their key, so all models of a process share them.
_cached_extractor = lru_cache(maxsize=128)(build_extractor)


@lru_cache(maxsize=128)
def _cached_grid(config: Config, shape: ImageShape, seed: int) -> Grid:
    return calibrate(_cached_extractor(config, shape, seed), CALIBRATION_IMAGES, LEVELS_PER_DEVIATION)


@dataclass(frozen=True)
class Group:
    """m extractors with consecutive seeds, concatenated: Phi_G(x) = phi_s(x) || phi_{s+1}(x) || ..."""

    members: tuple[Extractor, ...]
    grid: Grid
    quantise: bool

    @property
    def size(self) -> int:
        return sum(member.size for member in self.members)

    def features(self, images: Tensor) -> Tensor:
        """Images [B, C, H, W] -> [B, size]: integer positions on the grid, or float32 ones where not quantised."""
        values = torch.cat(extract(self.members, images), 1)
        return self.grid.quantise(values) if self.quantise else self.grid.positions(values)

    def probe(self) -> Tensor:
        """Raw features of one synthetic image [size]: two groups with the same weights agree on them."""
        shape = self.members[0].shape
        device = self.grid.scale.device
        return torch.cat(extract(self.members, pink_noise(1, shape).to(device, torch.float32)), 1)[0]

    def parameter_count(self) -> ParameterCount:
        return sum((member.parameter_count() for member in self.members), ParameterCount())


def build_groups(
    config: Config,
    shape: ImageShape,
    *,
    groups: int,
    members: int,
    seed: int,
    quantise: bool = True,
    device: torch.device | str = "cpu",
    grids: Sequence[Grid] | None = None,
) -> list[Group]:
    """k groups of m members with the seeds seed, seed + 1, ..., seed + k m - 1.

    ``grids`` (one per group) come from a saved model; without them every member is calibrated.
    """
    result = []
    for index in range(groups):
        seeds = range(seed + index * members, seed + (index + 1) * members)
        extractors = tuple(_cached_extractor(config, shape, each) for each in seeds)
        if groups * members > 1 and not extractors[0].seeded:
            raise CircleError(
                f"extractor {config.name!r} has nothing random, so {groups * members} of it would all be the same: "
                "expected groups = members = 1, or a projection"
            )
        if grids is None:
            parts = [_cached_grid(config, shape, each) for each in seeds]
            scale, offset = torch.cat([part.scale for part in parts]), torch.cat([part.offset for part in parts])
        else:
            scale, offset = grids[index].scale, grids[index].offset
        if torch.device(device).type != "cpu":
            extractors = tuple(build_extractor(config, shape, each).to(device) for each in seeds)
        grid = Grid(scale.to(device), offset.to(device), extractors[0].bits)
        result.append(Group(extractors, grid, quantise))
    return result
