"""Snapshots: consistent, coalesced, renamed at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from factories import learn, learn_request, learned, open_store

from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.serve.snapshot import SnapshotUpdater
from circle.serve.workers import PredictionWorker, Writer


def test_predictions_follow_and_stay_whole(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    snapshot_updater = SnapshotUpdater(store)
    assert snapshot_updater.snapshot.model is None
    learn(store, "ant", 0, 1)
    learn(store, "bee", 0, 1)
    snapshot_updater.notify()
    assert snapshot_updater.wait(store.version, 60)
    pixels = learn_request("ant", 7).pixels[None].transpose(0, 2, 3, 1)
    expected = learned([("ant", 0), ("ant", 1), ("bee", 0), ("bee", 1)]).predict_proba(pixels)
    assert snapshot_updater.snapshot.model is not None
    assert (snapshot_updater.snapshot.model.predict_proba(pixels) == expected).all()
    assert snapshot_updater.snapshot.labels == ("ant", "bee")
    snapshot_updater.close()


def test_a_rename_is_seen_at_once_and_makes_no_new_heads(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", *range(12), hold=True)
    learn(store, "bee", 0)
    snapshot_updater = SnapshotUpdater(store)
    heads = snapshot_updater.snapshot.model
    snapshot_updater.close()
    store.rename("ant", "wasp")
    store.rename("bee", "ant")
    snapshot_updater.notify()
    assert snapshot_updater.snapshot.labels == ("wasp", "ant")
    assert set(snapshot_updater.snapshot.tested) == {"wasp"}
    assert snapshot_updater.snapshot.model is heads
    snapshot_updater.notify()
    assert snapshot_updater.snapshot.labels == ("wasp", "ant"), "and only once"


def test_renames_while_heads_are_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", 0)
    snapshot_updater = SnapshotUpdater(store)
    begun, go_on, make = threading.Event(), threading.Event(), CircleClassifier.for_prediction

    def slow(model: CircleClassifier) -> CircleClassifier:
        begun.set()
        assert go_on.wait(60)
        return make(model)

    monkeypatch.setattr(CircleClassifier, "for_prediction", slow)
    learn(store, "bee", 0)
    snapshot_updater.notify()
    assert begun.wait(60)
    store.rename("ant", "zebra")
    snapshot_updater.notify()
    go_on.set()
    assert snapshot_updater.wait(store.version - 1, 60)
    assert snapshot_updater.snapshot.labels[0] == "zebra", "made of the old names, shown under the new ones"
    snapshot_updater.close()


def test_accuracy_on_images_held_back(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    for name in ("ant", "bee"):
        learn(store, name, *range(20), hold=True)
    snapshot_updater = SnapshotUpdater(store)
    snapshot = snapshot_updater.snapshot
    snapshot_updater.close()
    assert snapshot.tested == store.edit_history.held_out_counts()
    assert snapshot.accuracy == 1.0, "colours are easy"
    assert snapshot_updater.curve == [(snapshot.samples, 1.0)]


def test_heads_that_cannot_be_made_do_not_end_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", 0)
    snapshot_updater = SnapshotUpdater(store)

    def fail(_: object) -> None:
        raise CircleError("cannot be factorised")

    with monkeypatch.context() as patch:
        patch.setattr(CircleClassifier, "for_prediction", fail)
        learn(store, "bee", 0)
        snapshot_updater.notify()
        assert snapshot_updater.wait(store.version, 60)
        assert snapshot_updater.failure == "cannot be factorised"
        assert snapshot_updater.snapshot.labels == ("ant",), "the last good ones go on"
    learn(store, "cat", 0)
    snapshot_updater.notify()
    assert snapshot_updater.wait(store.version, 60)
    assert snapshot_updater.snapshot.labels == ("ant", "bee", "cat")
    assert snapshot_updater.failure == ""
    snapshot_updater.close()


def test_learning_and_predicting_at_the_same_time(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    snapshot_updater = SnapshotUpdater(store)
    writer, prediction_worker = Writer(store, snapshot_updater, 64), PredictionWorker(snapshot_updater, 64)
    first = [writer.submit(learn_request(name, 0)) for name in ("ant", "bee")]
    assert [future.result(60) for future in first] == ["learned"] * 2
    assert snapshot_updater.wait(store.version, 60)
    requests = [writer.submit(learn_request(name, number)) for number in range(1, 12) for name in ("ant", "bee")]
    asked = [prediction_worker.submit(learn_request("ant", 50 + number).pixels) for number in range(20)]
    assert all(abs(future.result(60).probabilities.sum() - 1) < 1e-9 for future in asked)
    assert [future.result(60) for future in requests] == ["learned"] * 22
    for worker in (prediction_worker, writer, snapshot_updater):
        worker.close()
    expected = learned([(name, number) for number in range(12) for name in ("ant", "bee")])
    assert store.model.statistics_ == expected.statistics_
