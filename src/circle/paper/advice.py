"""How to spend a budget of n members: bias and variance of groups, their laws, and a recommendation.

n = k m members make k groups of m. With p_j the class probabilities of group j, mu_m their mean over seeds and eta
the true class probabilities of an image, Proposition 1 of the paper says

    E ||1/k sum_j p_j - eta||^2  =  B_m + V_m / k  <=  B_m + m/n

    B_m = ||mu_m - eta||^2 (squared bias)        V_m = E ||p_j - mu_m||^2 <= 1 (variance)

for independent groups, and B_m <= A m^(-2 alpha) puts the bound's minimum at m* = (2 alpha A n)^(1 / (2 alpha + 1)).

What is measured has the one-hot label y in the place of eta. Averaged over images this adds the label noise
1 - E ||eta||^2 to every B_m: a constant, so it does not move the minimum of the measured B_m + V_m m/n, but it makes
A m^(-2 alpha) flatter, and its m* smaller, than the bias alone would have them. A law with a floor,
B_m = F + A m^(-2 alpha), leaves room for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import nnls

from circle.errors import CircleError

Origin = Literal["measured", "sum measured", "extrapolated"]
LARGEST_VARIANCE = 1.0  # of probability vectors: what the proposition's m/n stands on
ALPHAS = (0.02, 4.0)  # of a law with a floor: below, A cannot be told from the floor; above, only m = 1 would show
ZOOMS = 6  # each finds alpha twenty times more precisely


# -- estimators ----------------------------------------------------------------------------------------------


def squared_error(probabilities: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """||p - y||^2 along the last axis: [..., N, C] and [N, C] give [..., N]."""
    return ((probabilities - targets) ** 2).sum(-1)


def group_variance(probabilities: np.ndarray) -> np.ndarray:
    """V = 1/(R - 1) sum_j ||p_j - pbar||^2 of R disjoint groups, [R, N, C] -> [N]; unbiased, and at most 1."""
    groups = len(probabilities)
    if groups < 2:
        raise CircleError("the variance of one group is unknown: expected two disjoint groups or more")
    return ((probabilities - probabilities.mean(0)) ** 2).sum((0, 2)) / (groups - 1)


def bias_and_variance(probabilities: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unbiased estimates of B and V for every image, [N] each, from R disjoint groups [R, N, C] and targets [N, C].

        B = ||pbar - y||^2 - V / R

    The mean of R groups still varies, by V / R, which ||pbar - y||^2 alone would put down to the bias. Note that
    B + V / R is ||pbar - y||^2 again: for ensembles of exactly the groups that were measured, the decomposition
    agrees with the measured error by algebra, and B + V is the mean error of one group.
    """
    variance = group_variance(probabilities)
    return squared_error(probabilities.mean(0), targets) - variance / len(probabilities), variance


# -- laws ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PowerLaw:
    """F + A m^(-2 alpha)."""

    amplitude: float
    alpha: float
    floor: float = 0.0

    def __call__(self, members: float) -> float:
        return self.floor + self.amplitude * float(members) ** (-2 * self.alpha)


def fit_power_law(sizes: Sequence[int], values: Sequence[float], *, falling: bool = True) -> PowerLaw:
    """A m^(-2 alpha) by least squares in log space; ``falling`` keeps alpha from becoming negative.

    >>> law = fit_power_law([1, 2, 4], [0.8, 0.4, 0.2])
    >>> round(law.amplitude, 9), round(law.alpha, 9), round(law(8), 9)
    (0.8, 0.5, 0.1)
    """
    _check_points(sizes, values, 2)
    across, up = np.log(np.asarray(sizes, dtype=float)), np.log(np.asarray(values, dtype=float))
    slope = float(((across - across.mean()) * (up - up.mean())).sum() / ((across - across.mean()) ** 2).sum())
    slope = min(slope, 0.0) if falling else slope
    return PowerLaw(float(np.exp(up.mean() - slope * across.mean())), abs(slope) / 2 if falling else -slope / 2)


def fit_law_with_floor(sizes: Sequence[int], values: Sequence[float]) -> PowerLaw:
    """F + A m^(-2 alpha), all three at least 0, by least squares of the relative residuals.

    For a given alpha the best F and A are a non-negative linear least squares problem, so only one number is left to
    search for: a fine grid, then finer ones around the best point. No starting point can lead it astray.
    """
    _check_points(sizes, values, 3)
    places, weights = np.asarray(sizes, dtype=float), 1 / np.asarray(values, dtype=float)

    def solve(alpha: float) -> tuple[np.ndarray, float]:
        design = np.stack([np.ones_like(places), places ** (-2 * alpha)], 1) * weights[:, None]
        coefficients, residual = nnls(design, np.ones_like(places))
        return coefficients, float(residual)

    (low, high), alpha = ALPHAS, ALPHAS[0]
    for _ in range(ZOOMS):
        alphas = np.geomspace(low, high, 40)
        best = int(np.argmin([solve(each)[1] for each in alphas]))
        low, high = alphas[max(0, best - 1)], alphas[min(len(alphas) - 1, best + 1)]
        alpha = float(alphas[best])
    (floor, amplitude), _ = solve(alpha)
    return PowerLaw(float(amplitude), alpha, float(floor))


def _check_points(sizes: Sequence[int], values: Sequence[float], least: int) -> None:
    if len(set(sizes)) < least:
        raise CircleError(f"{len(set(sizes))} group sizes: a fit needs at least {least}")
    for size, value in zip(sizes, values, strict=True):
        if not (np.isfinite(value) and value > 0):
            raise CircleError(f"the value at group size {size} is {value:.3g}: a power law needs positive ones")


@dataclass(frozen=True)
class Laws:
    """The laws that were fitted to the measured B_m and V_m; None where the numbers allow none."""

    power: PowerLaw | None  # the paper's
    floor: PowerLaw | None
    variance: PowerLaw | None
    used: Literal["power", "floor"]  # for B_m beyond what was measured
    reason: str

    @property
    def bias(self) -> PowerLaw | None:
        return self.floor if self.used == "floor" else self.power


def fit_laws(sizes: Sequence[int], biases: Sequence[float], variances: Sequence[float]) -> Laws:
    """All laws, and which of the two for B_m is trusted beyond the largest size: the one that would have been right.

    Both are fitted to all sizes but the largest and asked for that one; the law that comes nearer is used.
    """
    try:
        power = fit_power_law(sizes, biases)
    except CircleError as error:
        return Laws(None, None, _variance_law(sizes, variances), "power", f"no law fits B_m: {error}")
    variance = _variance_law(sizes, variances)
    floor = fit_law_with_floor(sizes, biases) if len(sizes) >= 3 else None
    if floor is None or len(sizes) < 4:
        return Laws(power, floor, variance, "power", f"{len(sizes)} group sizes are too few to judge a floor by")
    order = np.argsort(sizes)
    sizes, biases = [sizes[index] for index in order], [biases[index] for index in order]
    without = fit_power_law(sizes[:-1], biases[:-1]), fit_law_with_floor(sizes[:-1], biases[:-1])
    misses = [abs(law(sizes[-1]) / biases[-1] - 1) for law in without]
    used = "floor" if misses[1] < misses[0] else "power"
    reason = (
        f"from the smaller sizes it comes nearer to B_{sizes[-1]}: {100 * min(misses):.2f} % off, "
        f"{'without' if used == 'floor' else 'with'} a floor {100 * max(misses):.2f} %"
    )
    return Laws(power, floor, variance, used, reason)


def _variance_law(sizes: Sequence[int], variances: Sequence[float]) -> PowerLaw | None:
    """V_m may rise with m as well as fall: a large head is surer of itself."""
    try:
        return fit_power_law(sizes, variances, falling=False)
    except CircleError:
        return None


def best_real_members(law: PowerLaw, budget: int) -> float:
    """m* = (2 alpha A n)^(1 / (2 alpha + 1)), where F + A m^(-2 alpha) + m/n is smallest, within 1 and n."""
    exponent = 1 / (2 * law.alpha + 1)
    return float(np.clip((2 * law.alpha * law.amplitude * budget) ** exponent, 1.0, budget))


# -- recommendation ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupMeasurement:
    """What was measured of groups of m members: means over images, groups and partitions."""

    members: int
    error: float  # E ||p_j - y||^2 of one group, which is B_m + V_m
    variance: float | None  # None where there were no two disjoint groups

    @property
    def bias(self) -> float | None:
        return None if self.variance is None else self.error - self.variance


@dataclass(frozen=True)
class EnsembleMeasurement:
    """What was measured of whole ensembles of n members."""

    error: float
    accuracy: float
    ensembles: int


@dataclass(frozen=True)
class Allocation:
    """One way to spend the budget: k groups of m members."""

    members: int
    groups: int
    bias: float
    variance: float
    origin: Origin
    ensemble: EnsembleMeasurement | None

    @property
    def predicted(self) -> float:
        """B_m + V_m / k."""
        return self.bias + self.variance / self.groups

    @property
    def bound(self) -> float:
        """B_m + m/n."""
        return self.bias + 1 / self.groups


@dataclass(frozen=True)
class Advice:
    """All ways to spend a budget that the measurements allow to judge, the laws, and the best choice."""

    budget: int
    measurements: tuple[GroupMeasurement, ...]
    laws: Laws
    allocations: tuple[Allocation, ...]
    unknown: tuple[int, ...]  # divisors of n about which nothing can be said

    @property
    def best(self) -> Allocation:
        """The smallest predicted error; of equals the one with the smallest heads."""
        return min(self.allocations, key=lambda each: (each.predicted, each.members))

    @property
    def best_real_members(self) -> float | None:
        """The paper's m*, from A m^(-2 alpha)."""
        return None if self.laws.power is None else best_real_members(self.laws.power, self.budget)

    @property
    def best_real_members_above_floor(self) -> float | None:
        """m* from the part of F + A m^(-2 alpha) that falls: the constant F, label noise included, moves no minimum."""
        return None if self.laws.floor is None else best_real_members(self.laws.floor, self.budget)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        rows = [
            {**asdict(each), "predicted": each.predicted, "bound": each.bound, "recommended": each is self.best}
            for each in self.allocations
        ]
        return {
            "budget": self.budget,
            "recommended": {"members": self.best.members, "groups": self.best.groups},
            "best_real_members": self.best_real_members,
            "best_real_members_above_floor": self.best_real_members_above_floor,
            "allocations": rows,
            "unknown": list(self.unknown),
            "laws": asdict(self.laws),
            "measurements": [{**asdict(each), "bias": each.bias} for each in self.measurements],
        }


def divisors(number: int) -> list[int]:
    """
    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [each for each in range(1, number + 1) if number % each == 0]


def advise(
    budget: int, measurements: Sequence[GroupMeasurement], ensembles: Mapping[int, EnsembleMeasurement]
) -> Advice:
    """Judge all ways to spend ``budget`` members; ``ensembles`` by m, where n members were there to be measured."""
    measured = sorted(measurements, key=lambda each: each.members)
    whole = [
        (each.members, each.error - each.variance, each.variance) for each in measured if each.variance is not None
    ]
    laws = fit_laws(*map(list, zip(*whole, strict=True))) if whole else fit_laws([], [], [])
    by_size = {each.members: each for each in measured}
    allocations, unknown = [], []
    for members in divisors(budget):
        known = _bias_variance(members, by_size.get(members), laws)
        if known is None:
            unknown.append(members)
        else:
            allocations.append(Allocation(members, budget // members, *known, ensembles.get(members)))
    if not allocations:
        raise CircleError(f"nothing was measured that says anything about {budget} members")
    return Advice(budget, tuple(measured), laws, tuple(allocations), tuple(unknown))


def _bias_variance(members: int, measured: GroupMeasurement | None, laws: Laws) -> tuple[float, float, Origin] | None:
    """B_m, V_m and where they come from: what was measured goes before what a law says."""
    if measured is not None and measured.variance is not None:
        return measured.error - measured.variance, measured.variance, "measured"
    if laws.variance is None:
        return None
    variance = min(laws.variance(members), LARGEST_VARIANCE)
    if measured is not None:
        # One group tells B_m + V_m. For k = 1 that sum is the error itself, whatever the law says of its parts.
        variance = min(variance, measured.error)
        return measured.error - variance, variance, "sum measured"
    return None if laws.bias is None else (laws.bias(members), variance, "extrapolated")
