"""One writer, bounded queues, "busy", checkpoints."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from school import lesson, open_room

from circle import CircleClassifier
from circle.serve import queues
from circle.serve.classroom import Classroom
from circle.serve.errors import BusyError, ConflictError, StorageError
from circle.serve.queues import Predictor, Writer
from circle.serve.snapshot import Refresher


@pytest.fixture
def room(tmp_path: Path) -> Classroom:
    return open_room(tmp_path / "m.circle")


def test_a_full_queue_says_so_and_loses_nothing(room: Classroom) -> None:
    writer = Writer(room, Refresher(room), 3)
    begun, go_on = threading.Event(), threading.Event()

    def hold_up(_: Classroom) -> None:
        begun.set()
        assert go_on.wait(60)

    blocked = writer.submit(hold_up)
    assert begun.wait(60)
    waiting = [writer.submit(lesson("ant", number)) for number in range(3)]
    with pytest.raises(BusyError, match="3 requests are waiting"):
        writer.submit(lesson("ant", 3))
    go_on.set()
    assert blocked.result(60) is None
    assert [future.result(60) for future in waiting] == ["learned"] * 3
    assert room.sequence == 1, "those who waited together are one step"
    writer.close()
    with pytest.raises(BusyError, match="ending"):
        writer.submit(lesson("ant", 3))


def test_one_refused_lesson_among_others(room: Classroom) -> None:
    writer = Writer(room, Refresher(room), 8)
    futures = [writer.submit(each) for each in (lesson("ant", 0), lesson("", 1), lesson("bee", 0))]
    assert futures[0].result(60) == futures[2].result(60) == "learned"
    with pytest.raises(ValueError, match="label"):
        futures[1].result(60)
    with pytest.raises(ConflictError):
        writer.submit(lambda room: room.rename("nobody", "x")).result(60)
    assert writer.published.classes == {"ant": (1, 0), "bee": (1, 0)}
    assert writer.published.undo == (("bee",), 1)
    writer.close()


def test_checkpoints_come_by_size_and_by_rest(room: Classroom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "CHECKPOINT_BYTES", 2000)
    writer = Writer(room, Refresher(room), 8)
    for number in range(4):
        writer.submit(lesson("ant", number)).result(60)
    writer.submit(lambda _: None).result(60)
    assert CircleClassifier.load(room.path).samples_ >= 3
    monkeypatch.setattr(queues, "CHECKPOINT_BYTES", 10**9)
    monkeypatch.setattr(queues, "CHECKPOINT_SECONDS", 0.05)
    writer.submit(lesson("ant", 9)).result(60)
    deadline = time.monotonic() + 30
    while room.journal_bytes and time.monotonic() < deadline:
        time.sleep(0.02)
    writer.close()
    assert CircleClassifier.load(room.path).samples_ == 5
    assert room.journal_bytes == 0


def test_a_checkpoint_that_fails_is_tried_again_later(room: Classroom, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(room, Refresher(room), 8)
    writer.submit(lesson("ant", 0)).result(60)
    writer.close()

    def fail() -> None:
        raise StorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(room, "checkpoint", fail)
        writer.idle()
    writer.idle()
    assert room.journal_bytes > 0, "not at once"
    monkeypatch.setattr(writer, "_not_before", 0.0)
    writer.idle()
    assert room.journal_bytes == 0


def test_nothing_learned_is_an_answer(room: Classroom) -> None:
    predictor = Predictor(Refresher(room), 4)
    with pytest.raises(ConflictError, match="nothing was learned yet"):
        predictor.submit(lesson("ant").pixels).result(60)
    predictor.close()


def test_a_worker_must_say_what_it_does() -> None:
    with pytest.raises(TypeError, match="do.*together"):
        queues.Worker("circle-idler", 1)
