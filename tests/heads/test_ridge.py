"""Ridge regression: scikit-learn, the recursion, and each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge as SklearnRidge

from circle.heads import RecursiveRidge, RidgeHeadConfig


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("ridge", [0.5, 300.0])
def test_equals_scikit_learn(sample: Any, scored: Any, ridge: float, intercept: bool) -> None:
    values, labels = sample(1, [30, 50, 12], 8)
    queries = sample(2, [20, 20, 20], 8)[0]
    found = scored(RidgeHeadConfig(ridge=ridge, ridge_rule="absolute", intercept=intercept), values, labels, queries)
    reference = SklearnRidge(alpha=ridge, fit_intercept=intercept).fit(values.astype(float), np.eye(3)[labels])
    assert np.abs(found - reference.predict(queries.astype(float))).max() < 1e-6


@pytest.mark.parametrize("intercept", [False, True])
def test_a_relative_ridge_is_a_multiple_of_the_mean_diagonal(sample: Any, scored: Any, intercept: bool) -> None:
    values, labels = sample(3, [30, 50], 5)
    centred = values - values.mean(0) if intercept else values.astype(float)
    amount = 0.2 * (centred**2).sum() / 5
    relative = scored(RidgeHeadConfig(ridge=0.2, intercept=intercept), values, labels, values)
    absolute = RidgeHeadConfig(ridge=amount, ridge_rule="absolute", intercept=intercept)
    assert np.abs(relative - scored(absolute, values, labels, values)).max() < 1e-9


@given(seed=st.integers(0, 200), batch=st.integers(1, 40), ridge=st.sampled_from([0.1, 10.0, 1000.0]))
def test_the_recursion_equals_the_direct_solve(sample: Any, scored: Any, seed: int, batch: int, ridge: float) -> None:
    """Whatever the batches and the order of classes: Woodbury's identity, in numbers."""
    values, labels = sample(seed, [9, 14, 21], 6)
    order = np.random.default_rng(seed).permutation(len(labels))
    recursion = RecursiveRidge(6, ridge)
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        recursion.learn(torch.from_numpy(values[part]), labels[part].tolist())
    columns = [recursion.classes.index(label) for label in range(3)]
    found = values.astype(float) @ recursion.weight.numpy()[:, columns]
    direct = scored(RidgeHeadConfig(ridge=ridge, ridge_rule="absolute"), values, labels, values)
    assert np.abs(found - direct).max() < 1e-6


def test_the_recursion_meets_new_classes_later(sample: Any, scored: Any) -> None:
    """Class by class, as a class-incremental stream comes: old columns learn that new samples are not theirs."""
    values, labels = sample(7, [40, 40, 40, 40], 10)
    recursion = RecursiveRidge(10, 5.0)
    for label in range(4):
        recursion.learn(torch.from_numpy(values[labels == label]), [label] * 40)
    direct = scored(RidgeHeadConfig(ridge=5.0, ridge_rule="absolute"), values, labels, values)
    assert np.abs(values.astype(float) @ recursion.weight.numpy() - direct).max() < 1e-6
