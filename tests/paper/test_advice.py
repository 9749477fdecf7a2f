"""Estimators on groups whose bias and variance are known, laws on exact points, recommendations by brute force."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from circle.errors import CircleError
from circle.paper.advise import (
    Advice,
    EnsembleMeasurement,
    GroupMeasurement,
    PowerLaw,
    advise,
    best_real_members,
    bias_and_variance,
    divisors,
    fit_law_with_floor,
    fit_laws,
    fit_power_law,
    group_variance,
    squared_error,
)

DIRECTION = np.array([1.0, -1.0]) / np.sqrt(2)
LABEL = np.array([1.0, 0.0])


def draw_groups(bias: float, variance: float, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Probability vectors [*shape, 2] with mean at the squared distance ``bias`` from the label, and this variance."""
    mean = LABEL - np.sqrt(bias) * DIRECTION
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], shape)
    return mean + np.sqrt(variance) * signs[..., None] * DIRECTION


def measured(
    sizes: list[int], bias: PowerLaw, variance: PowerLaw, lonely: tuple[int, ...] = ()
) -> list[GroupMeasurement]:
    """Measurements without noise; of lonely sizes there was one group only."""
    return [
        GroupMeasurement(size, bias(size) + variance(size), None if size in lonely else variance(size))
        for size in sizes
    ]


# -- estimators ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [2, 3, 8])
def test_estimates_are_unbiased_and_the_naive_one_is_not(groups: int) -> None:
    """20,000 images serve as as many repetitions; four standard errors decide."""
    bias, variance, repetitions = 0.3, 0.05, 20_000
    probabilities = draw_groups(bias, variance, (groups, repetitions))
    targets = np.tile(LABEL, (repetitions, 1))
    biases, variances = bias_and_variance(probabilities, targets)
    tolerance = 4 * biases.std() / np.sqrt(repetitions)
    assert abs(biases.mean() - bias) < tolerance
    assert abs(variances.mean() - variance) < 4 * variances.std() / np.sqrt(repetitions)
    naive = squared_error(probabilities.mean(0), targets).mean()
    assert naive - bias > 2 * tolerance, "what the correction takes away is there"
    assert naive - bias == pytest.approx(variance / groups, rel=0.1)


@pytest.mark.parametrize("ensemble", [1, 2, 5])
def test_the_decomposition_predicts_other_ensembles(ensemble: int) -> None:
    """B + V / k from some groups is the error of ensembles of other groups, of any number k."""
    judged = draw_groups(0.2, 0.1, (3, 20_000), seed=1)
    others = draw_groups(0.2, 0.1, (ensemble, 20_000), seed=2)
    targets = np.tile(LABEL, (20_000, 1))
    biases, variances = bias_and_variance(judged, targets)
    errors = squared_error(others.mean(0), targets)
    noise = np.hypot((biases + variances / ensemble).std(), errors.std()) / np.sqrt(20_000)
    assert abs((biases + variances / ensemble).mean() - errors.mean()) < 4 * noise


def simplex(groups: int, images: int, classes: int) -> st.SearchStrategy[np.ndarray]:
    """Probability vectors, vertices among them."""
    sharpness = st.floats(0, 300)
    values = arrays(np.float64, (groups, images, classes), elements=st.floats(-1, 1, width=32))
    return st.builds(lambda each, sharp: np.exp(sharp * (each - each.max(-1, keepdims=True))), values, sharpness).map(
        lambda each: each / each.sum(-1, keepdims=True)
    )


@given(st.data(), st.integers(2, 6), st.integers(2, 5))
def test_proposition_1_holds_for_the_estimates(data: st.DataObject, groups: int, classes: int) -> None:
    """V <= 1, hence B + V / k <= B + m/n; and the sums that the estimates must give back by algebra."""
    probabilities = data.draw(simplex(groups, 3, classes))
    targets = np.eye(classes)[[0, 1, classes - 1]]
    biases, variances = bias_and_variance(probabilities, targets)
    assert (variances >= 0).all()
    assert (variances <= 1 + 1e-12).all()
    assert np.allclose(biases + variances / groups, squared_error(probabilities.mean(0), targets), atol=1e-12)
    assert np.allclose(biases + variances, squared_error(probabilities, targets).mean(0), atol=1e-12)


def test_the_largest_variance_is_reached() -> None:
    assert group_variance(np.eye(3)[:, None, :]) == pytest.approx(1.0), "three groups, each sure of another class"


def test_one_group_has_no_variance() -> None:
    with pytest.raises(CircleError, match="two disjoint groups"):
        bias_and_variance(np.ones((1, 2, 2)) / 2, np.eye(2))


# -- laws ----------------------------------------------------------------------------------------------------


@given(st.floats(0.01, 2), st.floats(0, 3))
def test_the_fit_recovers_the_law(amplitude: float, alpha: float) -> None:
    law = PowerLaw(amplitude, alpha)
    sizes = [1, 2, 3, 8]
    found = fit_power_law(sizes, [law(size) for size in sizes])
    assert found.amplitude == pytest.approx(amplitude, rel=1e-9)
    assert found.alpha == pytest.approx(alpha, abs=1e-9)
    assert found.floor == 0


@settings(max_examples=40)
@given(st.floats(0.05, 1), st.floats(0.15, 1.5), st.floats(0.05, 1))
def test_the_fit_recovers_the_floor(amplitude: float, alpha: float, floor: float) -> None:
    law = PowerLaw(amplitude, alpha, floor)
    sizes = [1, 2, 3, 4, 6, 8]
    found = fit_law_with_floor(sizes, [law(size) for size in sizes])
    assert (found.amplitude, found.alpha, found.floor) == pytest.approx((amplitude, alpha, floor), rel=1e-3)
    assert found(64) == pytest.approx(law(64), rel=1e-4)


def test_the_fit_from_noisy_groups() -> None:
    """All the way from drawn groups: B_m = 0.4 m^(-0.6) is found again."""
    law, sizes, biases = PowerLaw(0.4, 0.3), [1, 2, 4, 8], []
    for size in sizes:
        probabilities = draw_groups(law(size), 0.04 / size, (16 // size, 20_000), seed=size)
        biases.append(float(bias_and_variance(probabilities, np.tile(LABEL, (20_000, 1)))[0].mean()))
    found = fit_power_law(sizes, biases)
    assert found.amplitude == pytest.approx(0.4, rel=0.01)
    assert found.alpha == pytest.approx(0.3, rel=0.02)


def test_a_rising_bias_gives_alpha_zero_and_a_rising_variance_may_rise() -> None:
    flat = fit_power_law([1, 2, 4], [0.1, 0.2, 0.4])
    assert (flat.alpha, flat.amplitude) == (0, pytest.approx(0.2))
    assert best_real_members(flat, 16) == 1
    assert fit_power_law([1, 2, 4], [0.1, 0.2, 0.4], falling=False).alpha == pytest.approx(-0.5)


@pytest.mark.parametrize("values", [[0.1, 0.0], [0.1, -0.2], [0.1, float("nan")], [0.1, float("inf")]])
def test_values_that_no_law_fits(values: list[float]) -> None:
    with pytest.raises(CircleError, match="group size 2 is .* positive"):
        fit_power_law([1, 2], values)


def test_too_few_sizes() -> None:
    with pytest.raises(CircleError, match="1 group sizes.* at least 2"):
        fit_power_law([4, 4], [0.1, 0.2])
    with pytest.raises(CircleError, match="2 group sizes.* at least 3"):
        fit_law_with_floor([1, 2], [0.2, 0.1])


def test_the_law_that_would_have_been_right_is_used() -> None:
    sizes = [1, 2, 4, 8]
    with_floor, without = PowerLaw(0.3, 0.5, 0.5), PowerLaw(0.8, 0.2)
    noise = [1.001, 0.999, 1.001, 1.0]
    floored = fit_laws(sizes, [with_floor(size) for size in sizes], [0.1] * 4)
    assert (floored.used, floored.bias) == ("floor", floored.floor)
    assert "nearer to B_8: 0.00 % off, without a floor" in floored.reason
    plain = fit_laws(sizes, [without(size) * factor for size, factor in zip(sizes, noise, strict=True)], [0.1] * 4)
    assert (plain.used, plain.bias) == ("power", plain.power)
    assert fit_laws([1, 2, 4], [0.8, 0.6, 0.55], [0.1] * 3).used == "power", "three points cannot judge three numbers"
    assert fit_laws([8, 1, 4, 2], [with_floor(size) for size in (8, 1, 4, 2)], [0.1] * 4).reason == floored.reason


# -- recommendation ------------------------------------------------------------------------------------------


@given(st.floats(0.05, 2), st.floats(0.05, 2), st.integers(2, 256))
def test_m_star_is_the_minimum_of_the_bound(amplitude: float, alpha: float, budget: int) -> None:
    law = PowerLaw(amplitude, alpha)
    places = np.linspace(1, budget, 20_001)
    bounds = amplitude * places ** (-2 * alpha) + places / budget
    best = best_real_members(law, budget)
    assert 1 <= best <= budget
    assert law(best) + best / budget <= bounds.min() + 1e-12
    shifted = PowerLaw(amplitude, alpha, 0.5)
    assert best_real_members(shifted, budget) == best, "a constant moves no minimum"


@settings(max_examples=40)
@given(st.floats(0.05, 1), st.floats(0.05, 1.5), st.floats(0.01, 0.9), st.floats(-0.2, 1), st.integers(2, 96))
def test_the_recommendation_is_the_best_divisor(
    amplitude: float, alpha: float, variance: float, fall: float, budget: int
) -> None:
    bias, spread = PowerLaw(amplitude, alpha), PowerLaw(variance, fall)
    sizes = sorted({1, 2, *divisors(budget)})
    advice = advise(budget, measured(sizes, bias, spread), {})
    errors = {m: bias(m) + spread(m) * m / budget for m in range(1, budget + 1) if budget % m == 0}
    assert errors[advice.best.members] == pytest.approx(min(errors.values()), rel=1e-12)
    assert advice.best.groups * advice.best.members == budget
    assert [each.members for each in advice.allocations] == list(errors)
    assert {each.origin for each in advice.allocations} == {"measured"}
    for each in advice.allocations:
        assert each.predicted <= each.bound or each.variance > 1


def extrapolated() -> Advice:
    """Four members were there, sixteen are to be spent: 1 and 2 measured, 4 alone, 8 and 16 not at all."""
    bias, variance = PowerLaw(0.6, 0.25), PowerLaw(0.3, 0.5)
    return advise(16, measured([1, 2, 4], bias, variance, lonely=(4,)), {})


def test_what_is_not_measured_is_extrapolated_and_said() -> None:
    advice = extrapolated()
    origins = {each.members: each.origin for each in advice.allocations}
    assert origins == {1: "measured", 2: "measured", 4: "sum measured", 8: "extrapolated", 16: "extrapolated"}
    bias, variance = PowerLaw(0.6, 0.25), PowerLaw(0.3, 0.5)
    for each in advice.allocations:
        assert each.bias == pytest.approx(bias(each.members))
        assert each.variance == pytest.approx(variance(each.members))
    assert advice.best_real_members == pytest.approx((0.5 * 0.6 * 16) ** (1 / 1.5))
    assert advice.best.members == 16


def test_a_single_group_of_all_members_needs_no_law() -> None:
    """B_n + V_n is the error of the one group, however wrong the extrapolated V_n may be."""
    rising = [GroupMeasurement(1, 0.5, 0.1), GroupMeasurement(2, 0.55, 0.2), GroupMeasurement(4, 0.35, None)]
    last = advise(4, rising, {}).allocations[-1]
    assert (last.origin, last.groups) == ("sum measured", 1)
    assert last.predicted == pytest.approx(0.35)
    assert last.variance == pytest.approx(0.35), "0.4 by the law, but not more than the sum"
    assert last.bias == pytest.approx(0.0)


def test_no_extrapolated_variance_above_what_probabilities_can_have() -> None:
    steep = [GroupMeasurement(1, 0.9, 0.2), GroupMeasurement(2, 1.1, 0.6)]
    assert [each.variance for each in advise(16, steep, {}).allocations][2:] == [1.0, 1.0, 1.0]


def test_ensembles_and_equals() -> None:
    ensembles = {2: EnsembleMeasurement(0.31, 0.7, 3)}
    same = [GroupMeasurement(1, 0.4, 0.0), GroupMeasurement(2, 0.4, 0.0)]
    advice = advise(2, same, ensembles)
    assert [each.ensemble for each in advice.allocations] == [None, ensembles[2]]
    assert advice.best.members == 1, "of equals the smaller heads"


def test_nothing_to_fit() -> None:
    """A bias that is estimated as nothing or less: what was measured is judged, the rest is left open."""
    zero = [GroupMeasurement(1, 0.05, 0.06), GroupMeasurement(2, 0.02, 0.01)]
    advice = advise(8, zero, {})
    assert (advice.laws.power, advice.best_real_members, advice.laws.bias) == (None, None, None)
    assert "group size 1 is -0.01" in advice.laws.reason
    assert [each.members for each in advice.allocations] == [1, 2]
    assert advice.unknown == (4, 8)
    json.dumps(advice.to_dict(), allow_nan=False)
    with pytest.raises(CircleError, match="nothing was measured"):
        advise(8, [], {})


def test_plain_data() -> None:
    advice = extrapolated()
    plain = json.loads(json.dumps(advice.to_dict(), allow_nan=False))
    assert plain["recommended"] == {"members": 16, "groups": 1}
    assert [row["recommended"] for row in plain["allocations"]] == [False] * 4 + [True]
    assert plain["allocations"][1]["predicted"] == advice.allocations[1].predicted
    assert plain["laws"]["used"] == "power"
    assert plain["measurements"][2]["bias"] is None
