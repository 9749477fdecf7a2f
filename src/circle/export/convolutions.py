"""ONNX forms of the random convolutional networks: VGG-13 and both ResNets."""

from __future__ import annotations

from torch import nn

from circle.export.extractors import form_of, pool
from circle.export.graph import Graph
from circle.extractors import VGG13, ResNet18, resnet
from circle.extractors.vgg import MULTIPLES


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
