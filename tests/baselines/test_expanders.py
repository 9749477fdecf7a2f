"""Rotated copies and mixed pairs, image by image."""

from __future__ import annotations

import numpy as np
import torch

from circle.baselines.augmentation import mixed_pairs, rotated


def images(count: int, side: int = 5) -> torch.Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(count))


def test_every_turn_has_targets_of_its_own() -> None:
    pixels, targets = images(3), torch.tensor([2, 0, 1])
    made, labels = rotated(pixels, targets, lambda each, turns: each if turns == 0 else 3 + 3 * each + turns - 1)
    assert made.shape == (12, 3, 5, 5)
    for turns in range(4):
        for index in range(3):
            row = 3 * turns + index
            assert np.array_equal(made[row].numpy(), np.rot90(pixels[index].numpy(), turns, (1, 2)))
            label = int(targets[index])
            assert int(labels[row]) == (label if turns == 0 else 3 + 3 * label + turns - 1)


def test_mixtures_are_what_they_say() -> None:
    pixels, local = images(40), torch.arange(40) % 5
    made, targets, pairs, shares = mixed_pairs(pixels, local, torch.Generator().manual_seed(0), first_pair=100)
    assert 60 < len(made) == len(targets) == len(pairs) == len(shares) <= 160
    numbers = {}
    for high in range(5):
        for low in range(high):
            numbers[low, high] = 100 + len(numbers)
    for row, (i, j) in enumerate(pairs.tolist()):
        share = float(shares[row])
        assert 0.4 <= share <= 0.6
        assert torch.allclose(made[row], share * pixels[i] + (1 - share) * pixels[j], atol=1e-6)
        a, b = sorted((int(local[i]), int(local[j])))
        assert a != b and int(targets[row]) == numbers[a, b]
    assert sorted(set(targets.tolist())) == sorted(numbers.values()), "ten pairs of five classes"


def test_shares_are_those_of_a_narrow_beta_distribution() -> None:
    """Beta(20, 20) has a deviation of 0.0781 around 1/2; what falls outside of [0.4, 0.6] is set to 1/2."""
    local = torch.arange(20_000) % 2
    _, _, _, shares = mixed_pairs(torch.zeros(20_000, 1, 1, 1), local, torch.Generator().manual_seed(0), 2)
    reference = np.random.default_rng(0).beta(20, 20, 100_000)
    inside = (reference >= 0.4) & (reference <= 0.6)
    assert np.isclose(np.mean(shares.numpy() == 0.5), 1 - inside.mean(), atol=0.01)
    kept = shares.numpy()[shares.numpy() != 0.5]
    assert np.isclose(kept.std(), reference[inside].std(), rtol=0.02)
    assert np.isclose(kept.mean(), 0.5, atol=0.002)


def test_one_class_has_no_pairs() -> None:
    made, targets, pairs, shares = mixed_pairs(images(6), torch.zeros(6, dtype=torch.int64), torch.Generator(), 1)
    assert made.shape == (0, 3, 5, 5) and targets.shape == (0,) and pairs.shape == (0, 2) and shares.shape == (0,)
