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

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

import circle
from circle.data.decode import ImageConfig
from circle.data.hold_out import hold_out
from circle.data.images import Images
from circle.errors import CircleError, counted
from circle.extractors import ImageShape, build_extractor
from circle.heads import HeadConfig, build_head
from circle.learner import CircleClassifier
from circle.machine import available_memory, require_memory
from circle.registry import resolve
from circle.statistics import SAMPLES_PER_PRODUCT, memory_of, parts_named

Origin = Literal["measured", "sum measured", "extrapolated"]
LARGEST_VARIANCE = 1.0  # of probability vectors: what the proposition's m/n stands on
ALPHA_RANGE = (0.02, 4.0)  # of a law with a floor: below, A cannot be told from the floor; above, only m = 1 would show
GRID_REFINEMENTS = 6  # each finds alpha twenty times more precisely


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

    (low, high), alpha = ALPHA_RANGE, ALPHA_RANGE[0]
    for _ in range(GRID_REFINEMENTS):
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


READ_BATCH = 256  # images read and learned at a time
SCORING_BATCH = 256  # images judged together
MAX_MEMBERS = 100_000  # members: nobody has more, and a slip of the finger should not count divisors for hours

Report = Callable[[str, int, int], None]  # told what is going on, how many images are done, and of how many


@dataclass(frozen=True)
class AdviceRequest:
    """What is asked: how to spend ``budget`` members, judged by ``available`` ones.

    Parameters
    ----------
    budget
        n: members in all.
    available
        Members that are learned to judge by; more give better estimates and need more memory.
    validation
        Share of each class that is held back to measure on.
    limit
        Use at most this many images; None for all.
    split_seed
        Seed of the choice of images; it never touches the model.
    partitions
        Ways of dividing the members into groups to average over, for each m.
    """

    budget: int
    available: int
    validation: float = 0.2
    limit: int | None = None
    split_seed: int = 0
    partitions: int = 3

    def __post_init__(self) -> None:
        checks = [
            ("budget", self.budget, 2 <= self.budget <= MAX_MEMBERS, f"2 to {MAX_MEMBERS:,} members to spend"),
            # Two disjoint groups of one member and two of two: a law needs two points.
            ("members measured", self.available, 4 <= self.available <= MAX_MEMBERS, f"4 to {MAX_MEMBERS:,}"),
            ("validation", self.validation, 0 < self.validation < 1, "a share above 0 and below 1"),
            ("limit", self.limit, self.limit is None or self.limit >= 1, "at least 1 image"),
            ("seed of the split", self.split_seed, self.split_seed >= 0, "0 or more"),
            ("partitions", self.partitions, self.partitions >= 1, "at least 1"),
        ]
        for name, value, fine, expected in checks:
            if not fine:
                raise CircleError(f"{name} = {value}: expected {expected}")

    def sizes(self) -> list[int]:
        """Group sizes to measure: all divisors of n, and 1, 2, 3, 4, 6, 8, 12, ... to fit laws to.

        The latter only where two disjoint groups exist: a single group does not tell bias from variance.
        """
        grown = {factor << power for factor in (1, 3) for power in range(self.budget.bit_length())}
        pairs = {size for size in grown if size <= min(self.available // 2, self.budget)}
        return sorted(pairs | {size for size in divisors(self.budget) if size <= self.available})


@dataclass(frozen=True)
class Findings:
    """The advice, and what it rests on."""

    advice: Advice
    learned: int
    validated: int
    classes: int
    member_size: int  # d, features of one member
    unreadable: tuple[str, ...] = ()  # why images were left out

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        facts = {name: value for name, value in vars(self).items() if name != "advice"}
        return {**self.advice.to_dict(), **facts, "unreadable": list(self.unreadable)}


def split_images(images: Images, request: AdviceRequest, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the images to learn and of those held back to judge by; what the limit leaves out is in neither."""
    counts = images.counts
    if len(counts) < 2:
        raise CircleError(f"{name}: {len(counts)} class; expected at least 2 to tell apart")
    lonely = [label for label, count in counts.items() if count < 2]
    if lonely:
        raise CircleError(f"{name}: class {lonely[0]!r} has one image; expected two, one of them to judge by")
    seed = (request.split_seed, 0)
    return hold_out(images.labels, request.validation, seed=seed, limit=request.limit, draw="rank")


def recommend_allocation(
    classifier: CircleClassifier,
    images: Images,
    request: AdviceRequest,
    report: Report = lambda what, done, total: None,
    *,
    image: ImageConfig,
    name: str = "images",
) -> Findings:
    """Measure groups of the classifier's kind of member and judge all ways to spend the budget.

    Parameters
    ----------
    classifier
        Its settings are taken, but for groups and members: those are what is to be found.
    images
        Labelled images; some are learned, the others judge.
    request
        The budget, and how to measure.
    report
        Told what is going on, how many images are done, and of how many.
    image
        The shape that the images are brought to.
    name
        What messages call the images.

    Returns
    -------
    Findings
        The advice with all allocations and laws; ``findings.advice.best`` is the recommendation.
    """
    learned, held = split_images(images, request, name)
    config = resolve("head", classifier.head)
    assert isinstance(config, HeadConfig)
    if not all(part.selectable for part in parts_named(config.parts)):
        raise CircleError(
            f"head {config.name!r} cannot be judged on groups of all sizes at once: choose another head "
            "(--head.name slda)"
        )
    shape = ImageShape(image.channels, image.height, image.width)
    member = build_extractor(resolve("extractor", classifier.extractor), shape, classifier.seed)
    member_size = member.size
    classes = len(images.counts)
    check_memory(member_size, classes, len(held) * (member.bits // 8 if classifier.quantise else 4), config, request)
    settings = {**classifier.get_params(deep=False), "groups": 1, "members": request.available}
    model = CircleClassifier(**settings).prepare(image)
    unreadable: list[str] = []
    features, labels = _learn(model, images, (learned, held), report, name, unreadable)
    judge = _Judge(model, features, labels, request, report)
    measured = {size: judge.measure(size) for size in request.sizes()}
    ensembles = {size: ensemble for size, (_, ensemble) in measured.items() if ensemble is not None}
    advice = advise(request.budget, [group for group, _ in measured.values()], ensembles)
    return Findings(advice, model.samples_, len(labels), classes, member_size, tuple(unreadable))


def explanation(findings: Findings, request: AdviceRequest) -> list[str]:
    """What was found, in sentences."""
    advice, best = findings.advice, findings.advice.best
    lines = [
        f"judged on {findings.validated:,} images held back from {findings.validated + findings.learned:,} of "
        f"{counted(findings.classes, 'class')}, with {request.available} members of {findings.member_size:,} features",
        f"recommended: {_allocation(best)} (--groups {best.groups} --members {best.members}), "
        f"predicted error {best.predicted:.4f} ({_origin(best)})",
    ]
    judged = [(each.ensemble.accuracy, each) for each in advice.allocations if each.ensemble is not None]
    if judged:
        accuracy, most = max(judged, key=lambda pair: pair[0])
        lines.append(f"most accurate on the images held back: {_allocation(most)}, {100 * accuracy:.2f} %")
    lines += _bound_sentences(advice)
    if any(each.origin == "extrapolated" for each in advice.allocations) and advice.laws.bias is not None:
        lines.append(f"B_m where nothing was measured: the law with {_law(advice.laws.bias)}; {advice.laws.reason}")
    if advice.unknown:
        lines.append(f"nothing can be said of m = {', '.join(map(str, advice.unknown))}")
    return lines


def _bound_sentences(advice: Advice) -> list[str]:
    """What the paper's bound says, which takes V_m for 1."""
    if advice.laws.power is None:
        return [advice.laws.reason]
    largest = max(each.variance for each in advice.allocations)
    lines = [
        f"the paper's bound A m^(-2 alpha) + m/n with {_law(advice.laws.power)} is smallest at m* = "
        f"{advice.best_real_members:.2f}; it takes V_m for 1, here that is at most {largest:.3f}"
    ]
    if advice.laws.floor is not None and advice.laws.floor.floor:
        lines.append(
            f"with a floor added for the label noise, {_law(advice.laws.floor)}, it is smallest at m* = "
            f"{advice.best_real_members_above_floor:.2f}"
        )
    return lines


def _allocation(allocation: Allocation) -> str:
    return f"k = {counted(allocation.groups, 'group')} of m = {allocation.members}"


def _origin(allocation: Allocation) -> str:
    return {
        "measured": "B_m and V_m measured",
        "sum measured": "B_m + V_m measured",
        "extrapolated": "B_m and V_m extrapolated",
    }[allocation.origin]


def _law(law: PowerLaw) -> str:
    floor = f"F = {law.floor:.3g}, " if law.floor else ""
    return f"{floor}A = {law.amplitude:.3g}, alpha = {law.alpha:.3g}"


def advice_record(
    findings: Findings,
    request: AdviceRequest,
    classifier: CircleClassifier,
    image: ImageConfig,
    name: str,
    command: str,
) -> dict[str, Any]:
    """All numbers as plain data, with what it takes to get them again."""
    return {
        **findings.to_dict(),
        "data": name,
        "request": asdict(request),
        "extractor": resolve("extractor", classifier.extractor).to_dict(),
        "head": resolve("head", classifier.head).to_dict(),
        "image": image.to_dict(),
        "seed": classifier.seed,
        "quantise": classifier.quantise,
        "version": circle.__version__,
        "command": command,
    }


def memory_needed(size: int, classes: int, held_bytes: int, head: HeadConfig, request: AdviceRequest) -> int:
    """Bytes: second moments of all members, those of the largest group with its matrices, held-back features."""
    whole, largest = request.available * size, max(request.sizes()) * size
    statistics = memory_of(whole, classes, head.parts) + SAMPLES_PER_PRODUCT * whole
    factors = classes * 8 * largest**2 if "class_triangles" in head.parts else 0
    # The covariance, its factor and two work spaces, besides the statistics that they are made from. Measured with 16
    # members of 864 features: 7.2 GB at the peak, of which 1.1 GB before anything was learned; this says 7.7 GB.
    matrices = memory_of(largest, classes, head.parts) + 4 * 8 * largest**2 + factors
    return statistics + matrices + held_bytes * whole


def check_memory(size: int, classes: int, held_bytes: int, head: HeadConfig, request: AdviceRequest) -> None:
    """Refuse what does not fit, with the largest number of members that does.

    size: features of one member; held_bytes: of one feature of all images held back.
    """

    def needed(available: int) -> int:
        return memory_needed(size, classes, held_bytes, head, replace(request, available=available))

    there = available_memory()
    if there is None or needed(request.available) <= there:
        return
    fits = bisect_right(range(request.available), there, lo=4, key=needed) - 1
    fewer = f"--members-measured {fits} would fit; or use" if fits >= 4 else "use"
    width = request.available * size
    require_memory(
        needed(request.available),
        f"{request.available} members of {size:,} features, a matrix of {width:,} x {width:,} and the heads on it",
        f"{fewer} a smaller preset, or a projection (--extractor.projection linear)",
    )


def _learn(
    model: CircleClassifier,
    images: Images,
    split: tuple[np.ndarray, np.ndarray],
    report: Report,
    name: str,
    unreadable: list[str],
) -> tuple[Tensor, np.ndarray]:
    """Learn what is to be learned; features [N, size] of the images held back, and their columns of probabilities."""
    used, done = np.union1d(*split), 0
    dtype = model.groups_[0].grid.dtype if model.quantise else torch.float32
    kept = torch.empty(len(split[1]), model.groups_[0].size, dtype=dtype, device=model.device)
    labels: list[Hashable] = []
    for positions, batch in images.readable_batches(model.input_config(), READ_BATCH, unreadable.append, used):
        pixels = torch.from_numpy(np.ascontiguousarray(batch))
        features = model.groups_[0].features(pixels.to(model.device))
        is_held = np.isin(positions, split[1])
        held_back = torch.from_numpy(is_held).to(features.device)
        learned = [images.label(position) for position in positions[~is_held]]
        if learned:
            model.learn_features([features[~held_back]], learned)
        kept[len(labels) : len(labels) + int(is_held.sum())] = features[held_back]
        labels += [images.label(position) for position in positions[is_held]]
        done += len(positions)
        report("learning", done, len(used))
    column = {label: index for index, label in enumerate(model.statistics_[0].classes)}
    missing = [label for label in labels if label not in column]
    if missing or not labels or len(column) < 2:
        what = f"of class {missing[0]!r} none to learn" if missing else "too few"
        raise CircleError(f"{name}: {what} of the images could be read; expected some of every class")
    return kept[: len(labels)], np.array([column[label] for label in labels])


class _Judge:
    """Errors and variances of groups, on images that were held back."""

    def __init__(
        self, model: CircleClassifier, features: Tensor, columns: np.ndarray, request: AdviceRequest, report: Report
    ) -> None:
        self._statistics = model.statistics_[0]
        self._config = model.head_config()
        self._features, self._columns = features, columns
        self._request, self._report = request, report
        self._member_size = features.shape[1] // request.available
        self._random = np.random.Generator(np.random.PCG64([request.split_seed, 1]))
        self._done = 0
        heads = sum(self._partitions(size) * (request.available // size) for size in request.sizes())
        self._total = heads * len(columns)

    def _partitions(self, size: int) -> int:
        """All members together make one group only; taken singly, they differ in nothing but who shares an ensemble."""
        available, budget = self._request.available, self._request.budget
        only = size == available or (size == 1 and budget >= available)
        return 1 if only else self._request.partitions

    def measure(self, size: int) -> tuple[GroupMeasurement, EnsembleMeasurement | None]:
        """Groups of ``size`` members, and ensembles of n members where there are as many.

        The first partition is the one that ``CircleClassifier`` makes of consecutive seeds, the others are random.
        Groups of one partition share no member, so that the estimates of each are unbiased; so is their mean.
        """
        budget, available = self._request.budget, self._request.available
        groups, partitions = available // size, self._partitions(size)
        heads_each = budget // size if budget % size == 0 and budget <= available else 0
        ensembles = groups // heads_each if heads_each else 0
        error = variance = ensemble_error = correct = 0.0
        for partition in range(partitions):
            order = np.arange(available) if partition == 0 else self._random.permutation(available)
            for probabilities, chosen in self._probabilities(order[: groups * size].reshape(groups, size)):
                targets = np.eye(probabilities.shape[2])[chosen]
                error += float(squared_error(probabilities, targets).mean(0).sum())
                variance += float(group_variance(probabilities).sum()) if groups > 1 else 0.0
                for index in range(ensembles):
                    mean = probabilities[index * heads_each : (index + 1) * heads_each].mean(0)
                    ensemble_error += float(squared_error(mean, targets).sum())
                    correct += int((mean.argmax(1) == chosen).sum())
        images = partitions * len(self._columns)
        measured = GroupMeasurement(size, error / images, variance / images if groups > 1 else None)
        if not ensembles:
            return measured, None
        judged = images * ensembles
        return measured, EnsembleMeasurement(ensemble_error / judged, correct / judged, partitions * ensembles)

    def _probabilities(self, groups: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Probabilities [R, B, C] of R groups of members, [R, m], and the right columns [B], a tile at a time."""
        head = build_head(self._config)
        chosen = [self._feature_columns(members) for members in groups]
        heads = [head.materialise(self._statistics.select(columns)).rounded() for columns in chosen]
        for start in range(0, len(self._columns), SCORING_BATCH):
            part = self._features[start : start + SCORING_BATCH]
            scores = [scored(part[:, columns]) for scored, columns in zip(heads, chosen, strict=True)]
            probabilities = self._config.probabilities(torch.stack(scores))
            self._done += len(groups) * len(part)
            self._report("judging", self._done, self._total)
            yield probabilities.cpu().numpy(), self._columns[start : start + SCORING_BATCH]

    def _feature_columns(self, members: np.ndarray) -> Tensor:
        """Where the features of some members are, ascending."""
        first = torch.from_numpy(np.sort(members)) * self._member_size
        return (first[:, None] + torch.arange(self._member_size)).flatten()
