"""In which order parts of the features are given up: the one that separates the classes least goes first."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from circle import linalg
from circle.heads.covariance import class_means, pooled_covariance
from circle.heads.slda import SLDAConfig
from circle.statistics import Statistics

Part = TypeVar("Part", bound=Hashable)


class Separation:
    """How well the features of one group tell the classes apart, J = tr(S^{-1} B), as parts leave them.

    S is the pooled covariance with the ridge of an SLDA head, B = sum_c n_c/N (mu_c - mu)(mu_c - mu)^T. With P = S^{-1}
    and w = P (mu_c - mu) sqrt(n_c/N), column by column, giving up the features b and solving again costs exactly

        J - J' = tr(w_b^T (P_bb)^{-1} w_b)

    and leaves P' = P - P_:b (P_bb)^{-1} P_b:, w' = w - P_:b (P_bb)^{-1} w_b, so no solution is ever repeated. Only the
    statistics are looked at; images held back are left to say how far to go.
    """

    def __init__(self, statistics: Statistics, config: SLDAConfig) -> None:
        means = class_means(statistics)
        covariance = pooled_covariance(statistics, means)
        per_class = statistics.samples / len(means)
        covariance.diagonal().add_(config.ridge_for_covariance(covariance, statistics.degrees_of_freedom, per_class))
        shares = statistics.counts.to(means.device, torch.float64) / statistics.samples
        centred = (means - shares @ means) * shares.sqrt()[:, None]
        factor = linalg.cholesky(covariance)
        self.inverse = factor.inverse()
        self.weight = factor.solve(centred.T)  # [D, C]

    def cost(self, columns: Tensor) -> float:
        """J - J' for giving up these columns."""
        block = self.inverse[columns[:, None], columns]
        return float(linalg.cholesky(block).whiten(self.weight[columns]).square().sum())

    def give_up(self, columns: Tensor) -> None:
        """Solve again without these columns; their own rows are left as they are and must not be asked for."""
        across = self.inverse[:, columns]
        factor = linalg.cholesky(across[columns].clone())
        self.weight -= across @ factor.solve(self.weight[columns])
        self.inverse.addmm_(across, factor.solve(across.T), alpha=-1.0)


def dropping_order(
    statistics: Sequence[Statistics], parts: Sequence[Mapping[Part, Tensor]], config: SLDAConfig
) -> list[Part]:
    """Parts of all groups (name -> columns) in the order in which to give them up; the last of a group stays."""
    separations = [Separation(each, config) for each in statistics]
    left = [dict(each) for each in parts]
    costs = [_costs(separation, each) for separation, each in zip(separations, left, strict=True)]
    order: list[Part] = []
    while any(len(each) > 1 for each in left):
        cheapest = [(min(each.values()), group) for group, each in enumerate(costs) if len(each) > 1]
        group = min(cheapest)[1]
        part = min(costs[group], key=lambda name: costs[group][name])
        separations[group].give_up(left[group].pop(part))
        costs[group] = _costs(separations[group], left[group])
        order.append(part)
    return order


def _costs(separation: Separation, parts: Mapping[Part, Tensor]) -> dict[Part, float]:
    return {part: separation.cost(columns) for part, columns in parts.items()}
