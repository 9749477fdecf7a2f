"""A random projection that no file ever holds: its entries come from the seed."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from circle.errors import CircleError
from circle.extractors.base import frozen, kaiming_uniform

MAXIMUM_DENSE = 2**27  # entries; half a GiB of float32 in memory


class RandomProjection(nn.Module):
    """y = activation(R x), R [outputs, inputs] random and fixed.

    ``fan_in = 0``: R is dense, Kaiming uniform, drawn from the generator. For inputs of a few thousand values.

    ``fan_in > 0``: R is sparse. Each output adds ``fan_in`` inputs with random signs, scaled to keep the variance;
    the inputs are dealt out from shuffled decks, so that all are used equally often. By the central limit theorem
    the outputs are distributed as with a dense R, at a fraction of the memory and work; it serves flattened maps
    of 100,000 values and more.
    """

    index: Tensor  # [outputs, fan_in]
    signs: Tensor  # [outputs, fan_in]
    dense: Tensor  # [outputs, inputs]

    def __init__(
        self, inputs: int, outputs: int, generator: torch.Generator, *, fan_in: int = 0, relu: bool = False
    ) -> None:
        super().__init__()
        self.inputs, self.outputs, self.relu = inputs, outputs, relu
        self.fan_in = min(fan_in, inputs)
        if self.fan_in:
            decks = math.ceil(outputs * self.fan_in / inputs)
            dealt = torch.cat([torch.randperm(inputs, generator=generator) for _ in range(decks)])
            signs = torch.randint(0, 2, (outputs, self.fan_in), generator=generator) * 2.0 - 1.0
            frozen(self, "index", dealt[: outputs * self.fan_in].view(outputs, self.fan_in).contiguous())
            frozen(self, "signs", signs * math.sqrt(2.0 / self.fan_in))
        else:
            if inputs * outputs > MAXIMUM_DENSE:
                raise CircleError(
                    f"a dense projection of {inputs:,} to {outputs:,} values is too large: "
                    "set projection_fan_in (1024, say) for a sparse one"
                )
            frozen(self, "dense", kaiming_uniform((outputs, inputs), inputs, generator, slope=0.0))

    @property
    def generated(self) -> int:
        """Numbers drawn from the seed (an index and a sign count as one)."""
        return self.outputs * (self.fan_in or self.inputs)

    def forward(self, values: Tensor) -> Tensor:
        """[B, inputs] -> [B, outputs]."""
        if self.fan_in:
            # Row i of the transposed input holds value i of all images, so a gather reads whole cache lines.
            result = nn.functional.embedding_bag(
                self.index, values.T.contiguous(), mode="sum", per_sample_weights=self.signs.to(values.dtype)
            ).T.contiguous()
        else:
            result = values @ self.dense.T.to(values.dtype)
        return result.relu() if self.relu else result
