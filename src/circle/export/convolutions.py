"""ONNX forms of the extractors that are convolutions and means: ``local_contrast``, VGG-13, both ResNets."""

from __future__ import annotations

from torch import Tensor, nn

from circle.export.extractors import form_of, pool, signed_power
from circle.export.graph import Graph
from circle.extractors import VGG13, LocalContrast, ResNet18, resnet
from circle.extractors.vgg import MULTIPLES


@form_of(LocalContrast)
def local_contrast(graph: Graph, extractor: LocalContrast, images: str) -> str:
    config = extractor.config
    parts: list[str] = []
    for bank, (kernel, reduction) in enumerate(zip(config.kernels, config.reductions, strict=True)):
        if not extractor.counts[bank]:
            continue
        with graph.scope(f"bank{bank}"):
            smaller = reduced(graph, images, reduction)
            responses = contrast_responses(graph, extractor, smaller, extractor.get_buffer(f"weight_{bank}"), kernel)
            parts += both_signs(
                graph, extractor, responses, extractor.counts[bank], extractor.get_buffer(f"windows_{bank}")
            )
    if extractor.counts[-1]:
        with graph.scope("colours"):
            directions, offsets = extractor.get_buffer("colour_directions"), extractor.get_buffer("colour_offsets")
            smaller = reduced(graph, images, config.finest)
            weight = graph.constant(directions.T[:, :, None, None], "directions")
            colours = graph.add("Conv", smaller, weight, graph.constant(offsets, "offsets"))
            parts += both_signs(graph, extractor, colours, extractor.counts[-1], extractor.get_buffer("colour_windows"))
    return signed_power(graph, graph.concat(parts, 1), config.power)


def reduced(graph: Graph, images: str, factor: int) -> str:
    """Means over factor x factor pixels, fewer at the far edges."""
    if factor == 1:
        return images
    sides = [factor, factor]
    return graph.add("AveragePool", images, kernel_shape=sides, strides=sides, ceil_mode=1, count_include_pad=0)


def contrast_responses(graph: Graph, extractor: LocalContrast, images: str, weight: Tensor, kernel: int) -> str:
    """Contrast-normalised responses [N, filters, H, W]; the last filters of ``weight`` are means over patches."""
    channels = extractor.shape.channels
    before, after = (kernel - 1) // 2, kernel // 2
    images = graph.pad(images, [0, 0, before, before], [0, 0, after, after], mode="edge")
    raw = graph.add("Conv", images, graph.constant(weight, "filters"))
    sizes = graph.constant([len(weight) - channels, channels], "sizes")
    responses, means = graph.add_many("Split", raw, sizes, names=[graph.name("responses"), graph.name("means")], axis=1)
    square = graph.mean(graph.square(images), [1], keep=True)
    square = graph.add("AveragePool", square, kernel_shape=[kernel, kernel])
    variance = graph.add("Sub", square, graph.mean(graph.square(means), [1], keep=True))
    variance = graph.add(
        "Add", graph.add("Relu", variance), graph.constant(extractor.config.contrast_epsilon, "epsilon")
    )
    return graph.add("Mul", responses, graph.add("Reciprocal", graph.add("Sqrt", variance)))


def both_signs(graph: Graph, extractor: LocalContrast, responses: str, count: int, windows: Tensor) -> list[str]:
    """Responses [N, J, H, W] -> pooled max(r, 0), pooled max(-r, 0)."""
    flat = graph.reshape(responses, [0, count, -1])
    signs = graph.add("Relu", flat), graph.add("Relu", graph.add("Neg", flat))
    return [pool(graph, maps, windows, count, extractor.config.moments, channels_last=False) for maps in signs]


@form_of(VGG13)
def vgg13(graph: Graph, extractor: VGG13, images: str) -> str:
    for stage in range(len(MULTIPLES)):
        with graph.scope(f"stage{stage}"):
            for layer in range(2):
                weight = graph.constant(extractor.get_buffer(f"weight_{stage}_{layer}"), "filters")
                images = graph.add("Relu", graph.add("Conv", images, weight, pads=[1, 1, 1, 1]))
            images = graph.add("MaxPool", images, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    channels = MULTIPLES[-1] * extractor.config.base_channels
    return pool(
        graph, graph.reshape(images, [0, channels, -1]), extractor.regions, channels, ("mean",), channels_last=False
    )


@form_of(ResNet18)
def resnet18(graph: Graph, extractor: ResNet18, images: str) -> str:
    maps = graph.add("Relu", residual_layer(graph, extractor.first, images))
    if extractor.config.first_kernel == 7:
        maps = graph.add("MaxPool", maps, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for index, block in enumerate(extractor.blocks):
        with graph.scope(f"block{index}"):
            maps = residual_block(graph, block, maps)
    return graph.mean(maps, [2, 3])


def residual_block(graph: Graph, block: nn.Module, maps: str) -> str:
    """relu(second(relu(first(x))) + shortcut(x))."""
    assert isinstance(block, resnet.Block)
    inner = residual_layer(graph, block.second, graph.add("Relu", residual_layer(graph, block.first, maps)))
    shortcut = maps if isinstance(block.shortcut, nn.Identity) else residual_layer(graph, block.shortcut, maps)
    return graph.add("Relu", graph.add("Add", inner, shortcut))


def residual_layer(graph: Graph, layer: nn.Module, maps: str) -> str:
    """N(K * x), N one of the three normalisations."""
    assert isinstance(layer, resnet.Layer)
    strides, pads = [layer.stride] * 2, [layer.padding] * 4
    maps = graph.add("Conv", maps, graph.constant(layer.weight, "filters"), strides=strides, pads=pads)
    if layer.normalise is resnet.initial_batch_norm:
        return graph.add("Mul", maps, graph.constant((1.0 + resnet.EPSILON) ** -0.5, "batch_norm"))
    axes = [1, 2, 3] if layer.normalise is resnet.layer_norm else [1]
    centred = graph.add("Sub", maps, graph.mean(maps, axes, keep=True))
    variance = graph.mean(graph.square(centred), axes, keep=True)
    deviation = graph.add("Sqrt", graph.add("Add", variance, graph.constant(resnet.EPSILON, "epsilon")))
    return graph.add("Div", centred, deviation)
