"""From a request to classifiers and configs of trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from circle.benchmark.features import FeatureStore
from circle.benchmark.tuning.tune import CircleTuning, Held, TuneRequest, changed_classifier, parameters_of
from circle.data.datasets import Dataset, load_dataset
from circle.learner import CircleClassifier


@pytest.fixture
def digits() -> Dataset:
    return load_dataset("digits").balanced_part(20)


def tuning(preset: str, digits: Dataset, folder: Path, parameters: int | None = None) -> CircleTuning:
    request = TuneRequest("circle", "5", folder, 0.2, 0, 0, "tpe", parameters=parameters)
    base = CircleClassifier.from_preset(preset, channels=1)
    return CircleTuning(request, Held.of(digits, 0.2), base, FeatureStore(folder / "features"))


def test_members_compete_at_one_size(digits: Dataset, tmp_path: Path) -> None:
    search = tuning("small", digits, tmp_path)
    wanted = parameters_of(search.base, digits)
    for settings in ({"grid": 4, "colours": 16}, {"grid": 2, "colours": 4}, {}):
        changed = parameters_of(changed_classifier(search.base, dict(settings)), digits)
        found = parameters_of(search.classifier(settings), digits)
        assert abs(found - wanted) <= min(0.1 * wanted, abs(changed - wanted)), settings


def test_a_size_that_is_searched_is_left_to_the_search(digits: Dataset, tmp_path: Path) -> None:
    search = tuning("reservoir", digits, tmp_path)
    sizes = [parameters_of(search.classifier({"width": width}), digits) for width in (10, 20, 40)]
    assert sizes == sorted(set(sizes))
    assert search.classifier({"width": 10}).extractor.width == 10  # pyright: ignore[reportAttributeAccessIssue]


def test_an_ensemble_meets_the_parameters(digits: Dataset, tmp_path: Path) -> None:
    search = tuning("small", digits, tmp_path, parameters=40_000)
    ensemble = search.classifier({"grid": 3, "groups": 2, "members": 2})
    assert (ensemble.groups, ensemble.members) == (2, 2)
    assert abs(parameters_of(ensemble, digits) - 40_000) <= 2_000
    free = tuning("small", digits, tmp_path)
    half = free.classifier({"groups": 2, "members": 1, "size_scale": 0.5})
    assert parameters_of(half, digits) == pytest.approx(0.5 * parameters_of(free.base, digits), rel=0.1)
