"""The paper's algorithms in plain PyTorch, as one would write them down at first: nothing is clever here.

Algorithm 1 (training), 2 (prediction) and 3 (closed form), with BiRC2D as the text describes it. The weights are those
of our own extractors, so that both compute the same features; what they are is up to the config.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from circle.extractors import BiRC2D
from circle.extractors.reservoir import DIRECTIONS, ReservoirLayer
from circle.extractors.stem import PlainStem


class PlainExtractor:
    """phi_s: random convolutions, patches, reservoirs in four directions, one vector, a fixed random upscaling."""

    def __init__(self, ours: BiRC2D) -> None:
        assert isinstance(ours.stem, PlainStem) and not ours.config.join_stem and ours.config.layers == 1
        assert ours.config.moments == ("mean",) and ours.config.power == 1.0 and not ours.config.mirror
        self.config = ours.config
        self.kernels = [ours.stem.weight(layer).contiguous() for layer in range(len(ours.stem.shapes))]
        self.biases = [ours.stem.get_buffer(f"bias_{layer}") for layer in range(len(ours.stem.shapes))]
        self.inputs: list[list[Tensor]] = []  # W_in [r, inputs] of each patch size and direction
        self.recurrent: list[list[Tensor]] = []  # W [r, r]
        for (layer,) in ours.stacks:  # pyright: ignore[reportGeneralTypeIssues]
            assert isinstance(layer, ReservoirLayer)
            self.inputs.append([weight.T.contiguous() for weight in layer.weight_in.chunk(DIRECTIONS, 1)])
            self.recurrent.append([weight.T.contiguous() for weight in layer.recurrent])
        pooled = self.config.aggregation == "pool"
        self.windows = [ours.get_buffer(f"grid_{index}") if pooled else None for index in range(ours.maps)]
        self.upscaling = ours.projection.dense if ours.projection else None

    def __call__(self, images: Tensor) -> Tensor:
        """Images [B, C, H, W] -> features [B, size]."""
        maps = (images - self.config.input_mean) / self.config.input_scale
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            maps = functional.leaky_relu(functional.conv2d(maps, kernel, bias, padding="same"), self.config.slope)
        vectors = []
        for stack, patch in enumerate(self.config.patch_sizes):
            states = self._layer(self._patches(maps, patch), self.inputs[stack], self.recurrent[stack])
            windows = self.windows[stack]
            # All locations side by side; or, as the preset reads the text, their means over windows [G, H W].
            vectors.append(states.flatten(1) if windows is None else (windows @ states.flatten(1, 2)).flatten(1))
        vector = torch.cat(vectors, 1)
        return vector if self.upscaling is None else vector @ self.upscaling.T

    @staticmethod
    def _patches(maps: Tensor, side: int) -> Tensor:
        """[B, C, H, W] -> [B, H / p, W / p, p p C]: the pixels of a patch become one vector."""
        return maps.unfold(2, side, side).unfold(3, side, side).permute(0, 2, 3, 4, 5, 1).flatten(3)

    def _layer(self, grid: Tensor, inputs: Sequence[Tensor], recurrent: Sequence[Tensor]) -> Tensor:
        """[B, H, W, inputs] -> [B, H, W, 4 r]: left to right, right to left, top to bottom, bottom to top."""
        found = []
        for direction in range(DIRECTIONS):
            down, back = direction >= 2, direction % 2 == 1
            lines = grid.transpose(1, 2) if down else grid
            lines = lines.flip(2) if back else lines
            states = self._reservoir(lines, inputs[direction], recurrent[direction])
            states = states.flip(2) if back else states
            found.append(states.transpose(1, 2) if down else states)
        return torch.cat(found, 3)

    def _reservoir(self, lines: Tensor, inputs: Tensor, recurrent: Tensor) -> Tensor:
        """h_t = (1 - a) h_{t-1} + a leaky_relu(W_in x_t + W h_{t-1}) along the lines of [B, lines, steps, inputs]."""
        leak, states = self.config.leak, []
        state = lines.new_zeros(*lines.shape[:2], len(recurrent))
        for step in range(lines.shape[2]):
            drive = lines[:, :, step] @ inputs.T + state @ recurrent.T
            state = (1 - leak) * state + leak * functional.leaky_relu(drive, self.config.slope)
            states.append(state)
        return torch.stack(states, 2)


class PlainCircle:
    """Groups of extractors, each a function to features [B, size]; running sums; the mean of heads' probabilities."""

    def __init__(self, groups: Sequence[Callable[[Tensor], Tensor]], size: int, classes: int, ridge: float) -> None:
        self.groups, self.ridge = groups, ridge
        self.counts = torch.zeros(classes)
        self.sums = [torch.zeros(classes, size) for _ in groups]
        self.moments = [torch.zeros(size, size) for _ in groups]

    @torch.inference_mode()
    def learn(self, images: Tensor, labels: Tensor, batch: int) -> None:
        """Algorithm 1: N_c, T_c and M, a minibatch at a time, as the paper says is done in practice."""
        for part, known in zip(images.split(batch), labels.split(batch), strict=True):
            members = functional.one_hot(known, len(self.counts)).to(torch.float32)
            self.counts += members.sum(0)
            for index, group in enumerate(self.groups):
                features = group(part)
                self.sums[index] += members.T @ features
                self.moments[index] += features.T @ features

    @torch.inference_mode()
    def materialise(self) -> None:
        """Algorithm 3, and what Algorithm 2 makes of it: weights Sigma^-1 mu_c and a constant for each class.

        lambda is a share of the mean variance, as in the preset; the paper does not tell it.
        """
        total, classes = self.counts.sum(), len(self.counts)
        self.heads = []
        for sums, moment in zip(self.sums, self.moments, strict=True):
            means = sums / self.counts[:, None]
            covariance = (moment - (self.counts[:, None] * means).T @ means) / (total - classes)
            covariance += self.ridge * covariance.diagonal().mean() * torch.eye(len(covariance))
            weights = torch.linalg.solve(covariance, means.T)
            self.heads.append((weights, (self.counts / total).log() - (means * weights.T).sum(1) / 2))

    @torch.inference_mode()
    def probabilities(self, images: Tensor, batch: int) -> Tensor:
        """Algorithm 2, [N, C]."""
        found = []
        for part in images.split(batch):
            heads = []
            for group, (weights, constants) in zip(self.groups, self.heads, strict=True):
                heads.append(torch.softmax(group(part) @ weights + constants, 1))
            found.append(torch.stack(heads).mean(0))
        return torch.cat(found)
