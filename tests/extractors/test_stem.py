"""The random stems in integers, most of all the contrast-normalised one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from circle.extractors import ImageShape
from circle.extractors.calibration import calibration_images
from circle.extractors.stem import ContrastStem, PlainStem, same_box_sums, shifted_copies
from circle.runtime import birc2d as specification
from circle.runtime.weights import FILTER_NORM, centred_filters

IMAGES = calibration_images(2, ImageShape(3, 16, 16)).float() * 2 - 255  # as the extractor passes them on


def stem(kernel: int = 3, inputs: int = 3, epsilon: float = 0.05) -> ContrastStem:
    return ContrastStem(inputs, (5, 6), (kernel, 3), 0, epsilon=epsilon)


def test_filters_have_mean_zero_and_norm_one() -> None:
    for size in (2, 12, 27, 250):
        filters = centred_filters(0, "filters", 20, size)
        assert not filters.sum(1).any()
        np.testing.assert_allclose(np.sqrt(np.square(filters).sum(1)), FILTER_NORM, rtol=0.02)
    for layer, shape in enumerate(stem().shapes):
        weight = stem().get_buffer(f"weight_{layer}") * 64
        assert torch.equal(
            weight, torch.from_numpy(centred_filters(0, f"stem filters {layer}", shape[0], 27 + 63 * layer))
        )


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_neighbours_are_those_of_the_patch(kernel: int) -> None:
    """Even kernels reach further right and down; there are zeros around the image."""
    copies = shifted_copies(IMAGES, kernel).view(3, kernel, kernel, 2, 16, 16)
    sums = same_box_sums(IMAGES[:, 0], kernel)
    start = 4 - (kernel - 1) // 2
    patch = IMAGES[:, :, start : start + kernel, start : start + kernel]
    assert torch.equal(copies[..., 4, 4].permute(3, 0, 1, 2), patch)
    assert torch.equal(sums[:, 4, 4], patch[:, 0].sum((1, 2)))
    assert float(copies[:, 0, 0, :, 0, 0].abs().max()) == (float(IMAGES[:, :, 0, 0].abs().max()) if kernel < 3 else 0)
    expected = specification.neighbours(IMAGES.permute(0, 2, 3, 1).numpy().astype(np.int64), kernel)
    found = copies.permute(3, 4, 5, 0, 1, 2).reshape(2, 16, 16, 3, -1)
    assert np.array_equal(found.numpy(), expected)


@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_responses_are_those_of_the_equation(kernel: int) -> None:
    """(f * x) / sqrt(variance of the patch + epsilon), 32 levels to a deviation, within about a level."""
    layer = ContrastStem(3, (8,), (kernel,), 0, epsilon=0.05)
    weight = (layer.get_buffer("weight_0").double() * 64 / FILTER_NORM).view(8, 3, kernel, kernel)
    before, after = (kernel - 1) // 2, kernel // 2
    padded = functional.pad(IMAGES.double() / 128, (before, after, before, after))
    patches = functional.unfold(padded, kernel)  # [B, C k k, H W]
    expected = (weight.flatten(1) @ patches) / (patches.var(1, correction=0, keepdim=True) + 0.05).sqrt() * 32
    maps = layer(IMAGES).permute(0, 3, 1, 2).flatten(2)
    errors = (maps[:, :8] - maps[:, 8:] - expected).abs()
    assert float(expected.abs().max()) > 64
    bound = weight.abs().sum((1, 2, 3)) * FILTER_NORM / 64 / 2 + 0.51
    assert bool((errors <= bound[:, None]).all())
    assert float(errors.mean()) < 0.5


def test_brightness_does_not_matter_inside_and_contrast_hardly() -> None:
    layer = ContrastStem(3, (8,), (3,), 0, epsilon=1e-9)
    images = calibration_images(2, ImageShape(3, 16, 16)).float() // 4
    reference = layer(images)[:, 1:-1, 1:-1]
    assert torch.equal(layer(images + 190.0)[:, 1:-1, 1:-1], reference)
    stronger = layer(images * 4.0)[:, 1:-1, 1:-1]
    assert float((stronger - reference).abs().max()) <= 1, "one level, where a rounding falls otherwise"
    assert float((stronger - reference).abs().mean()) < 0.01


def test_both_signs_are_kept() -> None:
    maps = stem()(IMAGES)
    assert maps.shape == (2, 16, 16, 12)
    assert float(maps.min()) == 0.0
    assert float((maps[..., :6] * maps[..., 6:]).max()) == 0.0, "a response is positive or negative, never both"


def test_a_flat_image_gives_nothing() -> None:
    assert float(stem()(torch.zeros(1, 3, 8, 8)).abs().max()) == 0.0


@pytest.mark.parametrize("bias", [True, False])
def test_plain_layers_follow_each_other(bias: bool) -> None:
    """Within a level and a half of a layer that rounds before and after its leaky ReLU, 64 levels to a deviation."""
    layers = PlainStem(3, (5, 6), (3, 2), 0, slope=0.1, bias=bias)
    maps = IMAGES.double()
    for layer, shape in enumerate(layers.shapes):
        weight = layers.get_buffer(f"weight_{layer}").double().view(shape)
        own_bias = layers.get_buffer(f"bias_{layer}").double() if bias else None
        before, after = (shape[-1] - 1) // 2, shape[-1] // 2
        maps = functional.conv2d(functional.pad(maps, (before, after, before, after)), weight, own_bias)
        maps = functional.leaky_relu(maps, 0.1)
    found = layers(IMAGES).permute(0, 3, 1, 2)
    assert torch.equal(found, found.round())
    assert float(maps.abs().max()) > 64
    assert float((found - maps).abs().max()) < 4
    assert float((found - maps).abs().mean()) < 0.6
    assert layers.channels == 6
    assert layers.parameters_fixed() == 3 * 5 * 9 + 5 * 6 * 4 + 11 * bias


def test_no_layers_pass_pixels_on() -> None:
    for empty in (PlainStem(3, (), (), 0, slope=0.1, bias=True), ContrastStem(3, (), (), 0, epsilon=0.05)):
        assert torch.equal(empty(IMAGES), IMAGES.permute(0, 2, 3, 1))
        assert (empty.level_bits, empty.limit, empty.channels) == (7, 255, 3)
