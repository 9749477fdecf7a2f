"""The random stems, most of all the contrast-normalised one."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional

from circle.extractors.stem import ContrastStem, PlainStem, patch_variance, same_convolution


def stem(kernel: int = 3, inputs: int = 3) -> ContrastStem:
    generator = torch.Generator().manual_seed(0)
    return ContrastStem(inputs, (5, 6), (kernel, 3), generator, epsilon=0.05).to(torch.float64)


def test_filters_have_mean_zero_and_norm_one() -> None:
    for weight in stem().buffers():
        assert float(weight.flatten(1).sum(1).abs().max()) < 1e-5
        assert torch.allclose(weight.flatten(1).norm(dim=1), torch.ones(len(weight), dtype=weight.dtype))


@pytest.mark.parametrize("kernel", [3, 4, 5])
def test_variance_is_that_of_the_patch(kernel: int) -> None:
    images = torch.rand(2, 3, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = patch_variance(images, kernel)
    start = 4 - (kernel - 1) // 2
    patch = images[:, :, start : start + kernel, start : start + kernel]
    assert torch.allclose(found[:, 0, 4, 4], patch.flatten(1).var(1, unbiased=False))


def test_brightness_does_not_matter_inside_and_contrast_hardly() -> None:
    images = torch.rand(1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    layer = ContrastStem(3, (8,), (3,), torch.Generator().manual_seed(0), epsilon=1e-9).to(torch.float64)
    reference = layer(images)[..., 1:-1, 1:-1]
    assert torch.allclose(layer(images + 3.0)[..., 1:-1, 1:-1], reference, atol=1e-5)
    assert torch.allclose(layer(images * 0.2)[..., 1:-1, 1:-1], reference, atol=1e-5)


def test_both_signs_are_kept() -> None:
    maps = stem()(torch.rand(1, 3, 8, 8, dtype=torch.float64))
    assert maps.shape == (1, 12, 8, 8)
    assert float(maps.min()) == 0.0
    assert float((maps[:, :6] * maps[:, 6:]).max()) == 0.0, "a response is positive or negative, never both"


def test_a_flat_image_gives_nothing() -> None:
    assert float(stem()(torch.zeros(1, 3, 8, 8, dtype=torch.float64)).abs().max()) == 0.0


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 7])
def test_padding_is_torch_s_own_without_its_warning(kernel: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 9, 7, generator=generator).contiguous(memory_format=torch.channels_last)
    weight, bias = torch.rand(5, 3, kernel, kernel, generator=generator), torch.rand(5, generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = functional.conv2d(images, weight, bias, padding="same")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(same_convolution(images, weight, bias), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_plain_layers_follow_each_other(bias: bool) -> None:
    layers = PlainStem(3, (5, 6), (3, 2), torch.Generator().manual_seed(0), slope=0.1, bias=bias)
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    expected = images
    for layer in range(2):
        own_bias = layers.get_buffer(f"bias_{layer}") if bias else None
        expected = functional.leaky_relu(same_convolution(expected, layers.weight(layer), own_bias), 0.1)
    assert torch.equal(layers(images), expected)
    assert layers.channels == 6
    assert layers.parameters_fixed() == 3 * 5 * 9 + 5 * 6 * 4 + 11 * bias
