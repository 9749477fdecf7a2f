"""Snapshots: consistent, coalesced, renamed at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from school import learned, lesson, open_room, teach

from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.serve.queues import Predictor, Writer
from circle.serve.snapshot import Refresher


def test_predictions_follow_and_stay_whole(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    refresher = Refresher(room)
    assert refresher.snapshot.model is None
    teach(room, "ant", 0, 1)
    teach(room, "bee", 0, 1)
    refresher.changed()
    assert refresher.wait(room.version, 60)
    pixels = lesson("ant", 7).pixels[None].transpose(0, 2, 3, 1)
    expected = learned([("ant", 0), ("ant", 1), ("bee", 0), ("bee", 1)]).predict_proba(pixels)
    assert refresher.snapshot.model is not None
    assert (refresher.snapshot.model.predict_proba(pixels) == expected).all()
    assert refresher.snapshot.labels == ("ant", "bee")
    refresher.close()


def test_a_rename_is_seen_at_once_and_makes_no_new_heads(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", *range(12), hold=True)
    teach(room, "bee", 0)
    refresher = Refresher(room)
    heads = refresher.snapshot.model
    refresher.close()
    room.rename("ant", "wasp")
    room.rename("bee", "ant")
    refresher.changed()
    assert refresher.snapshot.labels == ("wasp", "ant")
    assert set(refresher.snapshot.tested) == {"wasp"}
    assert refresher.snapshot.model is heads
    refresher.changed()
    assert refresher.snapshot.labels == ("wasp", "ant"), "and only once"


def test_renames_while_heads_are_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", 0)
    refresher = Refresher(room)
    begun, go_on, make = threading.Event(), threading.Event(), CircleClassifier.for_prediction

    def slow(model: CircleClassifier) -> CircleClassifier:
        begun.set()
        assert go_on.wait(60)
        return make(model)

    monkeypatch.setattr(CircleClassifier, "for_prediction", slow)
    teach(room, "bee", 0)
    refresher.changed()
    assert begun.wait(60)
    room.rename("ant", "zebra")
    refresher.changed()
    go_on.set()
    assert refresher.wait(room.version - 1, 60)
    assert refresher.snapshot.labels[0] == "zebra", "made of the old names, shown under the new ones"
    refresher.close()


def test_accuracy_on_images_held_back(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    for name in ("ant", "bee"):
        teach(room, name, *range(20), hold=True)
    refresher = Refresher(room)
    snapshot = refresher.snapshot
    refresher.close()
    assert snapshot.tested == room.session.held_counts()
    assert snapshot.accuracy == 1.0, "colours are easy"
    assert refresher.curve == [(snapshot.samples, 1.0)]


def test_heads_that_cannot_be_made_do_not_end_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", 0)
    refresher = Refresher(room)

    def fail(_: object) -> None:
        raise CircleError("cannot be factorised")

    with monkeypatch.context() as patch:
        patch.setattr(CircleClassifier, "for_prediction", fail)
        teach(room, "bee", 0)
        refresher.changed()
        assert refresher.wait(room.version, 60)
        assert refresher.failure == "cannot be factorised"
        assert refresher.snapshot.labels == ("ant",), "the last good ones go on"
    teach(room, "cat", 0)
    refresher.changed()
    assert refresher.wait(room.version, 60)
    assert refresher.snapshot.labels == ("ant", "bee", "cat")
    assert refresher.failure == ""
    refresher.close()


def test_learning_and_predicting_at_the_same_time(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    refresher = Refresher(room)
    writer, predictor = Writer(room, refresher, 64), Predictor(refresher, 64)
    first = [writer.submit(lesson(name, 0)) for name in ("ant", "bee")]
    assert [future.result(60) for future in first] == ["learned"] * 2
    assert refresher.wait(room.version, 60)
    lessons = [writer.submit(lesson(name, number)) for number in range(1, 12) for name in ("ant", "bee")]
    asked = [predictor.submit(lesson("ant", 50 + number).pixels) for number in range(20)]
    assert all(abs(future.result(60).probabilities.sum() - 1) < 1e-9 for future in asked)
    assert [future.result(60) for future in lessons] == ["learned"] * 22
    for worker in (predictor, writer, refresher):
        worker.close()
    expected = learned([(name, number) for number in range(12) for name in ("ant", "bee")])
    assert room.model.statistics_ == expected.statistics_
