"""Patch-RNN against its equation in a NumPy loop, one image and one patch at a time."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional

from circle.errors import CircleError
from circle.extractors import (
    ConvPatchRNNConfig,
    ImageShape,
    PatchRNN,
    PatchRNNConfig,
    build_extractor,
    calibration_images,
)
from circle.extractors.patch_rnn import ConvolutionStem, same_convolution

PLAIN = PatchRNNConfig(width=20, sparsity=0.5)
CONVOLUTIONAL = ConvPatchRNNConfig(width=20, sparsity=0.5, stem_channels=(3, 4), stem_kernels=(3, 5))


def build(config: PatchRNNConfig, shape: ImageShape) -> PatchRNN:
    extractor = build_extractor(config, shape, seed=1)
    assert isinstance(extractor, PatchRNN)
    return extractor


def last_state(extractor: PatchRNN, maps: np.ndarray, side: int) -> np.ndarray:
    """Maps [H, W, C], sides divisible by ``side`` -> h_L."""
    config = extractor.config
    weight_in, recurrent = extractor.weight_in.numpy().T, extractor.recurrent.numpy().T
    state = np.zeros(config.width)
    for top in range(0, maps.shape[0], side):
        for left in range(0, maps.shape[1], side):
            patch = maps[top : top + side, left : left + side].reshape(-1)
            drive = weight_in @ patch + recurrent @ state
            active = np.tanh(drive) if config.activation == "tanh" else np.maximum(drive, 0.0)
            state = (1.0 - config.leak) * state + config.leak * active
    return state


@pytest.mark.parametrize("changes", [{}, {"leak": 1.0}, {"activation": "relu"}, {"patch_size": 2, "leak": 0.3}])
@pytest.mark.parametrize("shape", [ImageShape(3, 32, 32), ImageShape(1, 16, 24)])
def test_equals_the_equation(shape: ImageShape, changes: dict) -> None:
    extractor = build(PLAIN.replace(**changes), shape).double()
    images = calibration_images(3, shape)
    features = extractor.features(images).numpy()
    side = changes.get("patch_size", 4 if shape.height == 32 else 2)
    for image, found in zip(images.numpy(), features, strict=True):
        expected = last_state(extractor, (image.transpose(1, 2, 0) / 255 - 0.5) / 0.25, side)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("changes", [{}, {"stem_bias": False}, {"stem_channels": (), "stem_kernels": ()}])
def test_convolutions_come_first(changes: dict) -> None:
    shape = ImageShape(3, 16, 16)
    extractor = build(CONVOLUTIONAL.replace(**changes), shape).double()
    images = calibration_images(3, shape)
    maps = (images.double() / 255 - 0.5) / 0.25
    for layer, kernel in enumerate(extractor.config.to_dict()["stem_kernels"]):
        weight = extractor.stem.get_buffer(f"weight_{layer}")
        bias = extractor.stem.get_buffer(f"bias_{layer}") if not changes else None
        maps = functional.leaky_relu(functional.conv2d(maps, weight, bias, padding=kernel // 2), 0.01)
    for one, found in zip(maps, extractor.features(images), strict=True):
        expected = last_state(extractor, one.permute(1, 2, 0).numpy(), 2)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_images_that_patches_do_not_fill_are_padded() -> None:
    shape = ImageShape(1, 17, 23)
    extractor = build(PLAIN.replace(patch_size=4), shape).double()
    image = calibration_images(1, shape)
    maps = np.zeros((20, 24, 1))
    maps[1:18, 0:23, 0] = (image[0, 0].numpy() / 255 - 0.5) / 0.25
    np.testing.assert_allclose(extractor.features(image)[0].numpy(), last_state(extractor, maps, 4), rtol=1e-9)


@pytest.mark.parametrize(
    ("height", "width", "side"), [(32, 32, 4), (64, 64, 8), (17, 23, 2), (64, 32, 4), (5, 9, 1), (224, 224, 28)]
)
def test_patches_suit_the_image(height: int, width: int, side: int) -> None:
    assert PLAIN.patch_for(ImageShape(3, height, width)) == side
    assert PLAIN.replace(patch_size=3).patch_for(ImageShape(3, height, width)) == 3


def test_recurrent_weights_have_the_sparsity_and_radius_asked_for() -> None:
    extractor = build(PLAIN.replace(width=40, sparsity=0.8, radius=0.7), ImageShape(3, 8, 8))
    assert int((extractor.recurrent != 0).sum()) == 320
    assert float(torch.linalg.eigvals(extractor.recurrent.double()).abs().max()) == pytest.approx(0.7, rel=1e-5)


def test_parameters_are_counted() -> None:
    shape = ImageShape(3, 32, 32)
    plain = build(PLAIN, shape).parameter_count()
    assert plain.fixed == 4 * 4 * 3 * 20 + 200
    assert plain.generated == 0
    both = build(CONVOLUTIONAL.replace(projection="relu", projection_size=9), shape).parameter_count()
    assert both.fixed == (3 * 3 * 9 + 3) + (3 * 4 * 25 + 4) + 4 * 4 * 4 * 20 + 200
    assert both.generated == 20 * 9


def test_defaults_are_those_of_circle() -> None:
    for config in (PatchRNNConfig(), ConvPatchRNNConfig()):
        assert (config.leak, config.sparsity, config.radius) == (0.8, 0.9, 0.9)
        assert (config.width, config.activation, config.patch_size) == (512, "tanh", 0)
    assert (ConvPatchRNNConfig().stem_channels, ConvPatchRNNConfig().stem_kernels) == ((16, 32), (3, 3))


@pytest.mark.parametrize("config", [PLAIN, CONVOLUTIONAL], ids=lambda config: config.name)
def test_a_relu_that_diverges_is_refused(config: PatchRNNConfig) -> None:
    shape = ImageShape(3, 32, 32)
    for radius in (8.0, 1e30):
        with pytest.raises(CircleError, match=f"{config.name}.radius = .* expected at most 1e.06") as error:
            build(config.replace(activation="relu", radius=radius), shape)
        assert "\n" not in str(error.value)
    images = calibration_images(64, shape)
    bounded = build(config.replace(activation="tanh", radius=8.0), shape).features(images)
    assert float(bounded.abs().max()) <= 1.0
    harmless = build(config.replace(activation="relu"), shape).features(images)
    assert float(harmless.abs().max()) < 100.0


def test_large_images_come_in_small_tiles() -> None:
    wide = CONVOLUTIONAL.replace(stem_channels=(32,), stem_kernels=(3,))
    assert build(PLAIN, ImageShape(3, 32, 32)).tile == 128
    assert build(wide, ImageShape(3, 32, 32)).tile == 64
    assert build(PLAIN, ImageShape(3, 224, 224)).tile == 64
    assert build(wide, ImageShape(3, 224, 224)).tile == 16


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (PatchRNNConfig, {"leak": 0.0}, "patch_rnn.leak = 0.0: expected above 0, at most 1"),
        (PatchRNNConfig, {"sparsity": 1.0}, "patch_rnn.sparsity = 1.0: expected at least 0, below 1"),
        (PatchRNNConfig, {"radius": -0.1}, "patch_rnn.radius = -0.1: expected zero or a positive number"),
        (PatchRNNConfig, {"width": 0}, "patch_rnn.width = 0: expected at least 1"),
        (PatchRNNConfig, {"patch_size": -1}, "patch_rnn.patch_size = -1: expected at least 1, or 0"),
        (PatchRNNConfig, {"activation": "sine"}, "patch_rnn.activation = 'sine': expected one of tanh, relu"),
        (PatchRNNConfig, {"stem_bias": True}, "unknown patch_rnn setting 'stem_bias'"),
        (ConvPatchRNNConfig, {"stem_kernels": (3,)}, "conv_patch_rnn.stem_kernels = .* each of the 2 stem_channels"),
        (ConvPatchRNNConfig, {"input_scale": 0}, "conv_patch_rnn.input_scale = 0.0: expected a positive number"),
        (ConvPatchRNNConfig, {"width": -3}, "conv_patch_rnn.width = -3: expected at least 1"),
    ],
)
def test_settings_are_checked(config: type[PatchRNNConfig], changes: dict, words: str) -> None:
    with pytest.raises(CircleError, match=words) as error:
        config.from_dict(changes)
    assert "\n" not in str(error.value)


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
    layers = ConvolutionStem(3, (5, 6), (3, 2), torch.Generator().manual_seed(0), slope=0.1, bias=bias)
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    expected = images
    for layer in range(2):
        own_bias = layers.get_buffer(f"bias_{layer}") if bias else None
        expected = functional.leaky_relu(same_convolution(expected, layers.weight(layer), own_bias), 0.1)
    assert torch.equal(layers(images), expected)
    assert layers.channels == 6
    assert layers.parameters_fixed() == 3 * 5 * 9 + 5 * 6 * 4 + 11 * bias
