"""Groups of extractors: m members side by side make one head's features."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from circle.config import Config
from circle.data.batches import ImageBatch
from circle.errors import CircleError
from circle.extractors import Extractor, Grid, ImageShape, ParameterCount, build_extractor, calibrate, extract
from circle.extractors.calibration import calibration_images

CALIBRATION_IMAGES = 128
LEVELS_PER_DEVIATION = 8.0
IMAGES_PER_TILE = 256  # in the working set while learning or predicting, however many are given

# Extractors are frozen and determined by their key, so all models of a process share them.
_cached_extractor = lru_cache(maxsize=128)(build_extractor)


@lru_cache(maxsize=128)
def _cached_grid(config: Config, shape: ImageShape, seed: int) -> Grid:
    return calibrate(_cached_extractor(config, shape, seed), CALIBRATION_IMAGES, LEVELS_PER_DEVIATION)


@dataclass(frozen=True)
class KeptMember:
    """A member of which only some parts are computed: ascending numbers of its extractor's ``parts``."""

    seed: int
    parts: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "parts": list(self.parts)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KeptMember:
        return cls(int(values["seed"]), tuple(int(part) for part in values["parts"]))


#: For each group that is left, the members that are.
Kept = Sequence[Sequence[KeptMember]]


@dataclass(frozen=True)
class Group:
    """m extractors with consecutive seeds, concatenated: Phi_G(x) = phi_s(x) || phi_{s+1}(x) || ...

    Parameters
    ----------
    members : tuple of Extractor
        The extractors, frozen; models of one process share them.
    grid : Grid
        Origin and unit of each feature.
    quantise : bool
        True: features are integers on the grid. False: float32 positions, for comparison.
    kept : tuple of KeptMember or None
        What a compressed model has left of the group; None: all of it.
    """

    members: tuple[Extractor, ...]
    grid: Grid
    quantise: bool
    kept: tuple[KeptMember, ...] | None = None

    @property
    def size(self) -> int:
        return sum(member.size for member in self.members)

    @property
    def portable(self) -> bool:
        """Whether all machines compute the same features, to the bit."""
        return self.quantise and all(member.portable for member in self.members)

    def features(self, images: Tensor) -> Tensor:
        """Images [B, C, H, W] -> [B, size]: integer positions on the grid, or float32 ones where not quantised."""
        values = self._values(images)
        return self.grid.quantise(values) if self.quantise else self.grid.positions(values)

    def _values(self, images: Tensor) -> Tensor:
        return torch.cat(extract(self.members, images), 1)

    def probe(self) -> Tensor:
        """Raw features of one synthetic image [size]: two groups with the same weights agree on them."""
        shape = self.members[0].shape
        device = self.grid.scale.device
        return self._values(calibration_images(1, shape).to(device))[0]

    def parameter_count(self) -> ParameterCount:
        return sum((member.parameter_count() for member in self.members), ParameterCount())


def feature_tiles(groups: Sequence[Group], batch: ImageBatch) -> Iterator[tuple[slice, list[Tensor]]]:
    """Features of images, a working set at a time: its place in the batch, and a tensor [B, size] for each group."""
    device = groups[0].grid.scale.device
    for start in range(0, len(batch), IMAGES_PER_TILE):
        images = batch.tile(start, start + IMAGES_PER_TILE).to(device)
        yield slice(start, start + len(images)), [group.features(images) for group in groups]


def all_features(groups: Sequence[Group], batch: ImageBatch) -> list[Tensor]:
    """Features of all images of a batch, one tensor [N, size] for each group."""
    return [torch.cat(parts) for parts in zip(*(tile for _, tile in feature_tiles(groups, batch)), strict=True)]


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
    kept: Kept | None = None,
) -> list[Group]:
    """k groups of m members with the seeds seed, seed + 1, ..., seed + k m - 1.

    ``grids`` (one per group) come from a saved model; without them every member is calibrated. ``kept`` says what a
    compressed model has left of these groups, whose grids are cut to the same parts.
    """
    if kept is not None:
        assert grids is not None, "the grids of a compressed model come with it"
        return [
            _kept_group(config, shape, each, grid, quantise, device) for each, grid in zip(kept, grids, strict=True)
        ]
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


def _kept_group(
    config: Config,
    shape: ImageShape,
    kept: Sequence[KeptMember],
    grid: Grid,
    quantise: bool,
    device: torch.device | str,
) -> Group:
    """What is left of a group."""
    extractors = tuple(_cached_extractor(config, shape, member.seed).keep(member.parts) for member in kept)
    if torch.device(device).type != "cpu":
        extractors = tuple(copy.deepcopy(extractor).to(device) for extractor in extractors)
    grid = Grid(grid.scale.to(device), grid.offset.to(device), extractors[0].bits)
    return Group(extractors, grid, quantise, tuple(kept))
