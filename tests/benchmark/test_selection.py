"""Settings chosen on held-back training images: the split, the choice, and the file that keeps it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from circle import BiRC2DConfig, CircleClassifier
from circle.benchmark import selection
from circle.benchmark.selection import Choice, Trial, choose_head, recall, remember
from circle.data.decode import ImageConfig
from circle.data.hold_out import hold_out
from circle.errors import CircleError
from circle.heads import MahalanobisConfig, SLDAConfig
from circle.labels import plain_labels

SIZE = 24
IMAGE = ImageConfig(height=8, width=8, channels=1)


def fresh(groups: int = 1, members: int = 1, head: Any = "slda") -> CircleClassifier:
    """A prepared classifier whose members give ``SIZE`` values."""
    extractor = BiRC2DConfig(
        stem_channels=(2,), width=2, grid=1, moments=("mean",), projection="linear", projection_size=SIZE
    )
    return CircleClassifier(extractor, head, groups=groups, members=members).prepare(IMAGE)


def nuisance(count: int = 240, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes a few steps apart in one direction, and a second direction that swamps it for the nearest mean."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    features = random.normal(0, 2, (count, SIZE))
    shared = random.normal(0, 40, count)
    features[:, 0] = shared + 6 * labels
    features[:, 1] = shared
    return np.clip(features.round(), -127, 127).astype(np.int8), labels


def scarce(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Ten times as many held-back images as there are degrees of freedom: the covariance is mostly chance."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), 90)
    features = random.normal(0, 12, (270, SIZE)) + 21 * np.eye(3, SIZE)[labels]
    return np.clip(features.round(), -127, 127).astype(np.int8), labels


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5, 0.9])
def test_split_holds_back_a_share_of_every_class(share: float) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 7], [40, 2, 10, 1]))
    train, validation = hold_out(labels, share, seed=3)
    assert np.array_equal(np.sort(np.concatenate([train, validation])), np.arange(len(labels)))
    for part in (train, validation):
        assert all(first < second for first, second in pairwise(part))
    assert (labels[validation] == 0).sum() == round(40 * share)
    assert (labels[validation] == 1).sum() == 1  # one on either side
    assert (labels[validation] == 7).sum() == 0  # an only image is learned
    assert 1 <= (labels[validation] == 2).sum() <= 9


def test_split_depends_on_its_seed_alone() -> None:
    labels = np.arange(100) % 5
    assert np.array_equal(hold_out(labels, 0.2, seed=1)[1], hold_out(labels, 0.2, seed=1)[1])
    assert not np.array_equal(hold_out(labels, 0.2, seed=1)[1], hold_out(labels, 0.2, seed=2)[1])


def test_impossible_splits() -> None:
    for share in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(CircleError, match="expected more than 0 and less than 1"):
            hold_out(np.zeros(10, dtype=np.int64), share)
    for labels in (np.arange(4), np.zeros(0, dtype=np.int64)):
        with pytest.raises(CircleError, match="no class has two images"):
            hold_out(labels, 0.2)


def test_a_planted_better_ridge_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # From "all covariance" to "nearest mean": the swamped classes need the one, scarce samples the other.
    monkeypatch.setattr(SLDAConfig, "candidates", classmethod(lambda cls: {"ridge": (1e-4, 1e4)}))
    features, labels = nuisance()
    chosen = choose_head(fresh(), [[features]], labels)
    assert chosen.settings == {"ridge": 1e-4}
    assert chosen.head == SLDAConfig(ridge=1e-4)
    small, large = chosen.trials
    assert small.accuracy > large.accuracy + 0.2
    features, labels = scarce()
    chosen = choose_head(fresh(), [[features]], labels, share=0.9)
    assert chosen.settings == {"ridge": 1e4}
    assert chosen.trials[1].accuracy > chosen.trials[0].accuracy + 0.05


def test_every_trial_is_what_a_classifier_would_get() -> None:
    features, labels = nuisance()
    other, _ = scarce(seed=2)
    groups = [[features, other[: len(labels)]], [other[: len(labels)], features]]
    chosen = choose_head(fresh(2, 2), groups, labels, share=0.3, seed=5)
    train, validation = hold_out(labels, 0.3, seed=5)
    assert chosen.images == (len(train), len(validation))
    assert {trial.settings["temperature"] for trial in chosen.trials} == set(SLDAConfig.temperatures())
    for trial in chosen.trials[::5]:
        model = fresh(2, 2, SLDAConfig().replace(**trial.settings))
        parts = [torch.from_numpy(np.concatenate(group, 1)) for group in groups]
        model.learn_features([part[train] for part in parts], plain_labels(labels[train]))
        found = model.probabilities([part[validation] for part in parts]).argmax(1).numpy()
        assert trial.accuracy == (model.classes_[found] == labels[validation]).mean()
    assert chosen.accuracy == max(trial.accuracy for trial in chosen.trials)
    assert chosen.settings == next(t.settings for t in chosen.trials if t.accuracy == chosen.accuracy)


def test_tiles_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = nuisance()
    whole = choose_head(fresh(), [[features]], labels)
    monkeypatch.setattr(selection, "MAX_BATCH", 7)
    assert choose_head(fresh(), [[features]], labels) == whole


def test_features_may_lie_in_files(tmp_path: Path) -> None:
    features, labels = nuisance()
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    assert choose_head(fresh(), [[mapped]], labels) == choose_head(fresh(), [[features]], labels)


def test_one_group_keeps_its_temperature() -> None:
    features, labels = nuisance()
    chosen = choose_head(fresh(head=SLDAConfig(temperature=3.0)), [[features]], labels)
    assert list(chosen.settings) == ["ridge"]
    assert chosen.head.temperature == 3.0
    assert len(chosen.trials) == len(SLDAConfig().candidates()["ridge"])


def test_a_head_without_candidates_and_ties() -> None:
    features, labels = nuisance()
    chosen = choose_head(fresh(head="ncm"), [[features]], labels)
    assert chosen.settings == {} and len(chosen.trials) == 1
    # The same features for both groups: no temperature changes the answer, so the first one is kept.
    chosen = choose_head(fresh(2, head="ncm"), [[features], [features]], labels)
    assert len({trial.accuracy for trial in chosen.trials}) == 1
    assert chosen.settings == chosen.trials[0].settings


def test_the_classifier_stays_fresh_and_must_be() -> None:
    features, labels = nuisance()
    model = fresh()
    told: list[tuple[int, int]] = []
    choose_head(model, [[features]], labels, report=lambda done, total: told.append((done, total)))
    assert model.samples_ == 0
    assert told[0][0] == 0 and told[-1][0] == told[-1][1]
    model.learn_features([torch.from_numpy(features)], plain_labels(labels))
    with pytest.raises(CircleError, match="fresh classifier"):
        choose_head(model, [[features]], labels)


def test_values_at_the_edge_are_named() -> None:
    trials = tuple(Trial({"ridge": ridge, "switch": switch}, ridge) for ridge in (1.0, 2.0, 3.0) for switch in (0, 1))
    choice = Choice(SLDAConfig(ridge=3.0), {"ridge": 3.0, "switch": 0}, 3.0, trials, 0.2, 0, (8, 2))
    assert choice.at_the_edge == ["ridge"]  # a switch has no middle
    choice = Choice(SLDAConfig(ridge=2.0), {"ridge": 2.0, "switch": 0}, 2.0, trials, 0.2, 0, (8, 2))
    assert choice.at_the_edge == []


def test_kept_in_a_file(tmp_path: Path) -> None:
    features, labels = nuisance()
    chosen = choose_head(fresh(2), [[features], [features]], labels)
    path = tmp_path / "new" / selection.FILE
    assert recall(path, {"share": 0.2}) is None
    remember(path, chosen, {"share": 0.2, "data": "abc"})
    assert recall(path, {"share": 0.2, "data": "abc"}) == chosen
    assert json.loads(path.read_text())["settings"] == chosen.settings
    with pytest.raises(CircleError, match="another data"):
        recall(path, {"share": 0.2, "data": "other"})
    for text in ("{", "{}", '{"basis": {}, "head": {"name": "slda"}}'):
        path.write_text(text)
        with pytest.raises(CircleError, match="not a readable choice"):
            recall(path, {})


def test_settings_that_are_refused_do_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feature that never varies and shrinkage off the diagonal alone leave nothing to factorise."""
    features, labels = nuisance()
    features[:, 5] = 3
    head = MahalanobisConfig(shrink_diagonal=0.0, shrink_off_diagonal=3.0)
    choice = {"shrink_diagonal": (0.0, 1.0)}
    monkeypatch.setattr(MahalanobisConfig, "candidates", classmethod(lambda cls: choice))
    found = choose_head(fresh(2, head=head), [[features], [features]], labels)
    assert found.head.shrink_diagonal == 1.0  # pyright: ignore[reportAttributeAccessIssue]
    refused = [trial for trial in found.trials if trial.refused]
    assert [(trial.settings, trial.accuracy) for trial in refused] == [({"shrink_diagonal": 0.0}, 0.0)]
    assert "not positive definite" in refused[0].refused
    assert Choice.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    choice["shrink_diagonal"] = (0.0,)
    with pytest.raises(CircleError, match="none of the settings to be tried works .covariance"):
        choose_head(fresh(head=head), [[features]], labels)
