"""Networks against ones put together from PyTorch's layers; heads that grow; what the generator decides."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from circle.baselines.finetune import FineTuneConfig
from circle.baselines.lwf import LwFConfig
from circle.baselines.networks import (
    ConvNet,
    ConvolutionNorm,
    CosineHead,
    LinearHead,
    Narrowed,
    NetworkConfig,
    ResNet18,
    build_backbone,
    norm_parameters,
    train_mode,
    unit_rows,
)
from circle.errors import CircleError

pytestmark = pytest.mark.usefixtures("one_thread")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class ReferenceBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(inputs, outputs, 3, stride)
        self.second = convolution(outputs, outputs, 3, 1)
        self.shortcut = convolution(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        return functional.relu(self.second(functional.relu(self.first(maps))) + self.shortcut(maps))


class Reference(nn.Module):
    def __init__(self, channels: int, width: int, first_kernel: int, max_pool: bool) -> None:
        super().__init__()
        self.first = convolution(channels, width, first_kernel, 2 if first_kernel == 7 else 1)
        self.pool = nn.MaxPool2d(3, 2, 1) if max_pool else nn.Identity()
        sizes = [width, width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
        strides = [1, 1, 2, 1, 2, 1, 2, 1]
        self.blocks = nn.Sequential(*(map(ReferenceBlock, sizes[:-1], sizes[1:], strides)))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.blocks(self.pool(functional.relu(self.first(images))))
        return functional.adaptive_avg_pool2d(maps, 1).flatten(1)


def pair(width: int, first_kernel: int, max_pool: bool) -> tuple[ResNet18, Reference]:
    """A network and its reference with the same random weights, those of batch norm included, in float64."""
    network = ResNet18(3, seeded(), width=width, first_kernel=first_kernel, max_pool=max_pool).double()
    reference = Reference(3, width, first_kernel, max_pool).double()
    with torch.no_grad():
        for index, (mine, theirs) in enumerate(zip(network.parameters(), reference.parameters(), strict=True)):
            assert mine.shape == theirs.shape
            if mine.ndim == 1:
                mine.add_(0.3 * normal(len(mine), seed=index))
            theirs.copy_(mine)
    return network, reference


@pytest.mark.parametrize("size", [(8, 8), (17, 20)])
@pytest.mark.parametrize(("first_kernel", "max_pool"), [(3, False), (3, True), (7, False), (7, True)])
def test_residual_network(first_kernel: int, max_pool: bool, size: tuple[int, int]) -> None:
    network, reference = pair(8, first_kernel, max_pool)
    images, direction = 2 * normal(5, 3, *size), normal(5, 64, seed=1)
    mine, theirs = network.train()(images), reference.train()(images)
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    mine_gradients = torch.autograd.grad((mine * direction).sum(), list(network.parameters()))
    gradients = torch.autograd.grad((theirs * direction).sum(), list(reference.parameters()))
    for one, other in zip(mine_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9 * float(other.abs().max()) + 1e-12)
    for one, other in zip(network.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(network.eval()(images), reference.eval()(images), rtol=1e-10, atol=1e-10)


def test_numbers_of_parameters() -> None:
    for first_kernel, max_pool, expected in ((3, False, 11_168_832), (7, True, 11_176_512)):
        network = ResNet18(3, seeded(), width=64, first_kernel=first_kernel, max_pool=max_pool)
        assert sum(parameter.numel() for parameter in network.parameters()) == expected


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_narrowing_is_a_convolution_of_one_pixel_before_the_maps_are_averaged(mode: str) -> None:
    network = Narrowed(ResNet18(3, seeded(), width=4, max_pool=False), 5, seeded(1)).double()
    inner, reference = network.network, nn.Conv2d(32, 5, 1).double()
    assert isinstance(inner, ResNet18) and reference.bias is not None
    with torch.no_grad():
        reference.weight.copy_(network.weight[:, :, None, None])
        reference.bias.copy_(network.bias)
        images = 2 * normal(6, 3, 19, 16)
        for module in (inner, network):
            module.train(mode == "train")
        maps = inner.blocks(inner.first(images).relu())
        features = network(images)
    assert maps.shape == (6, 32, 3, 2), "more than one pixel to average"
    expected = functional.adaptive_avg_pool2d(reference(maps), 1).flatten(1)
    assert torch.allclose(features, expected, atol=1e-10)
    assert network.size == 5 and float(features.min()) < 0.0 < float(features.max()), "signed"


def test_parameters_of_a_narrowed_network() -> None:
    """11.20 million in the paper's table: ResNet-18 and a convolution 512 -> 64 with biases."""
    network = Narrowed(ResNet18(3, seeded(), width=64, max_pool=False), 64, seeded())
    assert sum(parameter.numel() for parameter in network.parameters()) == 11_201_664
    for values in (network.weight, network.bias):
        assert float(values.detach().abs().max()) <= 512**-0.5
    assert math.isclose(float(network.weight.detach().std()), (3 * 512) ** -0.5, rel_tol=0.05)
    again = Narrowed(ConvNet(1, seeded(), width=2), 3, seeded(7))
    assert again(torch.zeros(2, 1, 9, 12)).shape == (2, 3)
    assert torch.equal(again.weight, Narrowed(ConvNet(1, seeded(), width=2), 3, seeded(7)).weight)


@given(width=st.integers(1, 6), batch=st.integers(2, 4), channels=st.integers(1, 4), side=st.integers(4, 12))
@settings(max_examples=15)
def test_features_have_a_size_and_are_never_negative(width: int, batch: int, channels: int, side: int) -> None:
    network = build_backbone(NetworkConfig(width=width), channels, seeded(width)).eval()
    with torch.no_grad():
        features = network(3 * torch.randn(batch, channels, side, side, generator=seeded(1)))
    assert features.shape == (batch, 8 * width) == (batch, network.size)
    assert float(features.min()) >= 0.0 and float(features.max()) > 0.0


def test_small_network() -> None:
    network = ConvNet(2, seeded(), width=3)
    first, second = nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Conv2d(3, 6, 3, stride=2, padding=1)
    with torch.no_grad():
        for index, layer in enumerate((first, second)):
            network.biases[index].copy_(normal(len(network.biases[index]), seed=index))
            layer.weight.copy_(network.weights[index])
            layer.bias.copy_(network.biases[index]) if layer.bias is not None else None
        images = torch.randn(4, 2, 32, 32, generator=seeded(3))
        maps = functional.relu(second(functional.relu(first(images / 4)))).numpy()  # [4, 6, 8, 8]
        expected = maps.reshape(4, 6, 4, 2, 4, 2).mean((3, 5)).reshape(4, 96)
        assert np.allclose(network(images).numpy(), expected, atol=1e-5)
    assert network.size == 96


@pytest.mark.parametrize(("inputs", "side"), [(1, 8), (4, 8), (4, 7), (7, 16)])
def test_gradient_of_a_strided_filter_of_one_pixel(inputs: int, side: int) -> None:
    """PyTorch 2.13 gets that of its own layer wrong with fewer than eight channels in float32; float64 is right."""
    layer = ConvolutionNorm(inputs, 2 * inputs, 1, 2, seeded()).eval()
    reference = convolution(inputs, 2 * inputs, 1, 2).double().eval()
    with torch.no_grad():
        for mine, theirs in zip(layer.parameters(), reference.parameters(), strict=True):
            theirs.copy_(mine)
    for seed in range(5):
        values, direction = normal(16, inputs, side, side, seed=seed), normal(16, 2 * inputs, 1, 1, seed=9)
        maps = values.float().contiguous(memory_format=torch.channels_last).requires_grad_()
        values = maps.detach().double().requires_grad_()
        direction = direction * torch.linspace(-1, 2, -(-side // 2), dtype=torch.float64)
        mine = torch.autograd.grad((layer(maps) * direction.float()).sum(), [maps, *layer.parameters()])
        theirs = torch.autograd.grad((reference(values) * direction).sum(), [values, *reference.parameters()])
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))


def test_filters_are_kaiming_normal_with_fan_out() -> None:
    weight = ConvolutionNorm(64, 128, 3, 1, seeded()).weight.detach()
    assert math.isclose(float(weight.var()), 2 / (128 * 9), rel_tol=0.05)
    assert abs(float(weight.mean())) < 4 * math.sqrt(2 / (128 * 9) / weight.numel())


@given(growths=st.lists(st.integers(0, 4), min_size=1, max_size=4), bias=st.booleans(), size=st.integers(1, 9))
def test_growing_keeps_old_rows(growths: list[int], bias: bool, size: int) -> None:
    generator = seeded(size)
    for head in (LinearHead(size, bias=bias, gain=0.5), CosineHead(size)):
        bound = math.sqrt(1.5 / size) if isinstance(head, LinearHead) else size**-0.5
        rows = 0
        for more in growths:
            before = {name: value.clone() for name, value in head.state_dict().items()}
            head.grow(more, generator)
            for name, value in head.state_dict().items():
                assert torch.equal(value[: len(before[name])] if value.ndim else value, before[name])
            added = head.weight.detach()[rows:]
            assert bool((added.abs() <= bound).all())
            if isinstance(head, LinearHead):
                assert (head.bias is not None) == bias
                assert head.bias is None or not head.bias.detach()[rows:].any()
            rows += more
            assert head(torch.ones(3, size)).shape == (3, rows)
            assert all(parameter.requires_grad for parameter in head.parameters())


def test_variance_of_new_rows() -> None:
    for gain in (1.0, 0.02):
        head = LinearHead(50, gain=gain)
        head.grow(200, seeded())
        assert math.isclose(float(head.weight.detach().var()), gain / 50, rel_tol=0.05)


def test_linear_and_cosine_heads() -> None:
    features = normal(6, 5).float()
    linear, cosine = LinearHead(5), CosineHead(5)
    for head in (linear, cosine):
        head.grow(4, seeded(2))
    with torch.no_grad():
        assert linear.bias is not None
        linear.bias.copy_(torch.arange(4.0))
        cosine.scale.fill_(3.5)
        values, weight = features.numpy(), cosine.weight.numpy()
        assert np.allclose(linear(features).numpy(), values @ linear.weight.numpy().T + np.arange(4), atol=1e-6)
        norms = np.outer(np.sqrt((values**2).sum(1)), np.sqrt((weight**2).sum(1)))
        assert np.allclose(cosine(features).numpy(), 3.5 * (values @ weight.T) / norms, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1.0, 1e15])
def test_rows_of_any_size_become_unit_vectors(dtype: torch.dtype, size: float) -> None:
    values = (normal(4, 7) * size).to(dtype)
    expected = values.double().numpy() / np.sqrt((values.double().numpy() ** 2).sum(1, keepdims=True))
    assert np.allclose(unit_rows(values).double().numpy(), expected, atol=1e-4)


def test_rows_of_zeros_stay_and_have_a_finite_gradient() -> None:
    values = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    units = unit_rows(values)
    assert torch.allclose(units, torch.tensor([[0.0, 0.0], [0.6, 0.8]]))
    (gradient,) = torch.autograd.grad(units.sum(), values)
    assert bool(gradient.isfinite().all())


def test_the_given_generator_decides_and_the_global_one_is_left_alone() -> None:
    before = torch.get_rng_state()
    built = []
    for seed in (3, 3, 4):
        generator = seeded(seed)
        for network in ("resnet18", "convnet"):
            backbone = build_backbone(NetworkConfig(network=network, width=4), 3, generator)
            head = LinearHead(backbone.size)
            head.grow(3, generator)
            built.append([*backbone.parameters(), *head.parameters()])
    assert torch.equal(torch.get_rng_state(), before)
    first, again, other = built[:2], built[2:4], built[4:]
    for one, same in zip([*first[0], *first[1]], [*again[0], *again[1]], strict=True):
        assert torch.equal(one, same)
    assert not torch.equal(first[0][0], other[0][0]) and not torch.equal(first[1][0], other[1][0])


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(CircleError, match="finetune.width = 0: expected 1 or more"):
        FineTuneConfig(width=0)
    with pytest.raises(CircleError, match="lwf.first_kernel = 5: expected 3 or 7"):
        LwFConfig(first_kernel=5)
    with pytest.raises(CircleError, match="lwf.network = 'vgg'"):
        LwFConfig.from_dict({"network": "vgg"})


def test_batch_norm_can_stand_still_while_the_rest_is_trained() -> None:
    network = ResNet18(3, torch.Generator().manual_seed(0), width=4, max_pool=False)
    images = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    train_mode(network, batch_statistics=False)
    before = {name: value.clone() for name, value in network.named_buffers()}
    standing = network(images)
    assert all(torch.equal(value, before[name]) for name, value in network.named_buffers())
    assert torch.allclose(standing, network.eval()(images)), "running statistics, as in evaluation"
    train_mode(network, batch_statistics=True)
    assert not torch.allclose(standing, network(images), rtol=1e-2)
    assert not torch.equal(network.first.norm.running_mean, before["first.norm.running_mean"])  # pyright: ignore
    counted = sum(parameter.numel() for parameter in norm_parameters(network))
    # Two numbers a channel: the first layer and four of each stage have 4, 8, 16, 32 channels; three shortcuts.
    assert counted == 2 * (4 + 4 * (4 + 8 + 16 + 32) + 8 + 16 + 32)


def test_a_single_value_per_channel_is_normalised_by_the_running_statistics() -> None:
    network = ResNet18(3, torch.Generator().manual_seed(0), width=4, max_pool=False).train()
    image = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    assert bool(torch.isfinite(network(image)).all()), "the last maps have one pixel"
