"""Groups of members."""

from __future__ import annotations

import pytest
import torch

from circle import BiRC2DConfig
from circle.ensemble import build_groups
from circle.errors import CircleError
from circle.extractors import ImageShape, ScatteringConfig, calibration_images

CONFIG = BiRC2DConfig(stem_channels=(3,), width=3, grid=2)
SHAPE = ImageShape(3, 8, 8)


def test_consecutive_seeds_side_by_side() -> None:
    groups = build_groups(CONFIG, SHAPE, groups=2, members=3, seed=5)
    assert [[member.seed for member in group.members] for group in groups] == [[5, 6, 7], [8, 9, 10]]
    images = calibration_images(4, SHAPE)
    single = [build_groups(CONFIG, SHAPE, groups=1, members=1, seed=seed)[0] for seed in (8, 9, 10)]
    expected = torch.cat([group.features(images) for group in single], 1)
    assert torch.equal(groups[1].features(images), expected)
    assert groups[1].size == expected.shape[1] == 3 * single[0].size


def test_quantised_and_not() -> None:
    images = calibration_images(6, SHAPE)
    whole = build_groups(CONFIG, SHAPE, groups=1, members=1, seed=0)[0].features(images)
    real = build_groups(CONFIG, SHAPE, groups=1, members=1, seed=0, quantise=False)[0].features(images)
    assert whole.dtype == torch.int8
    assert real.dtype == torch.float32
    assert float((whole - real).abs().max()) <= 0.5


def test_members_are_shared_between_models() -> None:
    one, other = (build_groups(CONFIG, SHAPE, groups=1, members=2, seed=0)[0] for _ in range(2))
    assert one.members[0] is other.members[0]
    assert torch.equal(one.probe(), other.probe())


def test_parameters() -> None:
    group = build_groups(CONFIG, SHAPE, groups=1, members=2, seed=0)[0]
    assert group.parameter_count().fixed == 2 * group.members[0].parameter_count().fixed


@pytest.mark.parametrize("groups, members", [(2, 1), (1, 2)])
def test_copies_of_an_extractor_without_chance_are_refused(groups: int, members: int) -> None:
    shape = ImageShape(1, 16, 16)
    with pytest.raises(CircleError, match="'scattering' has nothing random, so 2 of it would all be the same"):
        build_groups(ScatteringConfig(), shape, groups=groups, members=members, seed=0)
    assert build_groups(ScatteringConfig(), shape, groups=1, members=1, seed=0)[0].size > 0
    drawn = ScatteringConfig(projection="linear", projection_size=20)
    first, second = build_groups(drawn, shape, groups=2, members=1, seed=0)
    assert not torch.equal(first.probe(), second.probe())
