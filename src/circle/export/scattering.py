"""ONNX form of wavelet scattering. Fourier transforms are products with matrices of cosines and sines.

ONNX has a DFT operator, but the padded sides (48 for 32 pixels) are no powers of two, and products of such small
matrices are quick everywhere. Complex values are pairs of names, real part and imaginary part.
"""

from __future__ import annotations

import math

import torch

from circle.export.extractors import form_of, signed_power
from circle.export.graph import Graph
from circle.extractors import Scattering
from circle.extractors.scattering import WHOLE, LowPass, Wavelets

Complex = tuple[str, str]


@form_of(Scattering)
def scattering(graph: Graph, extractor: Scattering, images: str) -> str:
    for axis, places in ((2, extractor.rows), (3, extractor.columns)):
        images = graph.add("Gather", images, graph.constant(places, "places"), axis=axis)
    zeroth = low_pass(graph, extractor.low_passes[0], graph.add("Unsqueeze", images, graph.constant([2], "axes")))
    first, second = [], []
    sides = len(extractor.rows), len(extractor.columns)
    spectrum = fourier(graph, images, *sides)
    for fine in range(extractor.scales):
        with graph.scope(f"scale{fine}"):
            found = wavelets(graph, extractor.wavelets[f"0_{fine}"], spectrum, leading=2)  # [N, C, L, m, n]
            first.append(low_pass(graph, extractor.low_passes[fine], found))
            if extractor.config.order == 2 and fine + 1 < extractor.scales:
                inner = fourier(graph, found, sides[0] >> fine, sides[1] >> fine)
                pairs = []
                for coarse in range(fine + 1, extractor.scales):
                    maps = wavelets(graph, extractor.wavelets[f"{fine}_{coarse}"], inner, leading=3)
                    pairs.append(low_pass(graph, extractor.low_passes[coarse], maps))  # [N, C, L, L, h, w]
                second.append(merged(graph, pairs, extractor))
    maps = graph.concat([zeroth, *first, *second], 2)  # [N, C, paths, h, w]
    if extractor.grid != WHOLE:
        paths = extractor.config.paths(extractor.scales)
        flat = graph.reshape(maps, [0, extractor.shape.channels, paths, -1])
        maps = graph.add("MatMul", flat, graph.constant(extractor.regions.T, "regions"))
    length = extractor.projection.inputs if extractor.projection else extractor.size
    return signed_power(graph, graph.reshape(maps, [-1, length]), extractor.config.power)


def merged(graph: Graph, pairs: list[str], extractor: Scattering) -> str:
    """Maps [N, C, L, L, h, w] of several coarser scales -> [N, C, L paths, h, w]."""
    count = extractor.config.orientations**2 * len(pairs)
    height, width = extractor.shape.height >> extractor.scales, extractor.shape.width >> extractor.scales
    return graph.reshape(graph.concat(pairs, 3), [0, 0, count, height, width])


def wavelets(graph: Graph, layer: torch.nn.Module, spectrum: Complex, leading: int) -> str:
    """|x * psi|, subsampled by s: complex [..., M, N] with ``leading`` axes before M -> real [..., L, m, n]."""
    assert isinstance(layer, Wavelets)
    step, height, width = layer.step, layer.height, layer.width
    # [s s, L, 2 m n] with every value twice -> [L, s, m, s, n]
    filters = layer.filters[..., ::2].reshape(step, step, -1, height, width).permute(2, 0, 3, 1, 4)
    bank = graph.constant(filters, "wavelets")
    folded = []
    for part in spectrum:
        blocks = graph.reshape(part, [0] * leading + [1, step, height, step, width])
        product = graph.add("Mul", blocks, bank)
        # Subsampling folds a spectrum: cut into s x s blocks, their sum remains.
        folded.append(graph.sum(product, [leading + 1, leading + 3]))
    real, imaginary = inverse_fourier(graph, (folded[0], folded[1]), height, width)
    return graph.add("Sqrt", graph.add("Add", graph.square(real), graph.square(imaginary)))


def low_pass(graph: Graph, layer: torch.nn.Module, maps: str) -> str:
    """[..., m, n] -> [..., h, w]."""
    assert isinstance(layer, LowPass)
    smooth = graph.add("MatMul", graph.constant(layer.down, "down"), maps)
    return graph.add("MatMul", smooth, graph.constant(layer.across.T, "across"))


def fourier(graph: Graph, images: str, height: int, width: int) -> Complex:
    """Two-dimensional transform of real [..., M, N]: along the rows, then along the columns."""
    cosines, sines = waves(width)
    real = graph.add("MatMul", images, graph.constant(cosines, "cosines"))
    imaginary = graph.add("MatMul", images, graph.constant(-sines, "sines"))
    cosines, sines = waves(height)
    return turned(graph, graph.constant(cosines, "cosines"), graph.constant(-sines, "sines"), (real, imaginary))


def inverse_fourier(graph: Graph, spectrum: Complex, height: int, width: int) -> Complex:
    """Two-dimensional inverse transform of complex [..., m, n]."""
    cosines, sines = waves(height, 1.0 / height)
    columns = turned(graph, graph.constant(cosines, "cosines"), graph.constant(sines, "sines"), spectrum)
    cosines, sines = waves(width, 1.0 / width)
    return turned(graph, graph.constant(cosines, "cosines"), graph.constant(sines, "sines"), columns, left=False)


def turned(graph: Graph, cosines: str, sines: str, values: Complex, *, left: bool = True) -> Complex:
    """(C + i S)(a + i b), the matrix on the left (along columns) or on the right (along rows) of the values."""

    def product(matrix: str, value: str) -> str:
        return graph.add("MatMul", matrix, value) if left else graph.add("MatMul", value, matrix)

    real, imaginary = values
    return (
        graph.add("Sub", product(cosines, real), product(sines, imaginary)),
        graph.add("Add", product(cosines, imaginary), product(sines, real)),
    )


def waves(length: int, gain: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """gain cos(2 pi j k / length) and the same of sin, float32 [length, length]; whole turns are taken off first."""
    index = torch.arange(length, dtype=torch.float64)
    angles = torch.outer(index, index) % length * (2.0 * math.pi / length)
    return (gain * angles.cos()).float(), (gain * angles.sin()).float()
