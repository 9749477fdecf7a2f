"""One writer, bounded queues, "busy", checkpoints."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from factories import learn_request, open_store

from circle import CircleClassifier
from circle.serve import workers
from circle.serve.limits import BusyError, ConflictError, StorageError
from circle.serve.model_store import ModelStore
from circle.serve.snapshot import SnapshotUpdater
from circle.serve.workers import PredictionWorker, Writer


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return open_store(tmp_path / "m.circle")


def test_a_full_queue_says_so_and_loses_nothing(store: ModelStore) -> None:
    writer = Writer(store, SnapshotUpdater(store), 3)
    begun, go_on = threading.Event(), threading.Event()

    def block_writer(_: ModelStore) -> None:
        begun.set()
        assert go_on.wait(60)

    blocked = writer.submit(block_writer)
    assert begun.wait(60)
    waiting = [writer.submit(learn_request("ant", number)) for number in range(3)]
    with pytest.raises(BusyError, match="3 requests are waiting"):
        writer.submit(learn_request("ant", 3))
    go_on.set()
    assert blocked.result(60) is None
    assert [future.result(60) for future in waiting] == ["learned"] * 3
    assert store.sequence == 1, "those who waited together are one step"
    writer.close()
    with pytest.raises(BusyError, match="shutting down"):
        writer.submit(learn_request("ant", 3))


def test_one_refused_lesson_among_others(store: ModelStore) -> None:
    writer = Writer(store, SnapshotUpdater(store), 8)
    futures = [writer.submit(each) for each in (learn_request("ant", 0), learn_request("", 1), learn_request("bee", 0))]
    assert futures[0].result(60) == futures[2].result(60) == "learned"
    with pytest.raises(ValueError, match="label"):
        futures[1].result(60)
    with pytest.raises(ConflictError):
        writer.submit(lambda store: store.rename("nobody", "x")).result(60)
    assert writer.status.classes == {"ant": (1, 0), "bee": (1, 0)}
    assert writer.status.undo == (("bee",), 1)
    writer.close()


def test_checkpoints_come_by_size_and_by_rest(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CHECKPOINT_JOURNAL_BYTES", 2000)
    writer = Writer(store, SnapshotUpdater(store), 8)
    for number in range(4):
        writer.submit(learn_request("ant", number)).result(60)
    writer.submit(lambda _: None).result(60)
    assert CircleClassifier.load(store.path).samples_ >= 3
    monkeypatch.setattr(workers, "CHECKPOINT_JOURNAL_BYTES", 10**9)
    monkeypatch.setattr(workers, "CHECKPOINT_IDLE_SECONDS", 0.05)
    writer.submit(learn_request("ant", 9)).result(60)
    deadline = time.monotonic() + 30
    while store.journal_bytes and time.monotonic() < deadline:
        time.sleep(0.02)
    writer.close()
    assert CircleClassifier.load(store.path).samples_ == 5
    assert store.journal_bytes == 0


def test_a_checkpoint_that_fails_is_tried_again_later(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(store, SnapshotUpdater(store), 8)
    writer.submit(learn_request("ant", 0)).result(60)
    writer.close()

    def fail() -> None:
        raise StorageError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(store, "checkpoint", fail)
        writer.on_idle()
    writer.on_idle()
    assert store.journal_bytes > 0, "not at once"
    monkeypatch.setattr(writer, "_next_checkpoint", 0.0)
    writer.on_idle()
    assert store.journal_bytes == 0


def test_nothing_learned_is_an_answer(store: ModelStore) -> None:
    prediction_worker = PredictionWorker(SnapshotUpdater(store), 4)
    with pytest.raises(ConflictError, match="nothing was learned yet"):
        prediction_worker.submit(learn_request("ant").pixels).result(60)
    prediction_worker.close()


def test_a_worker_must_say_what_it_does() -> None:
    with pytest.raises(TypeError, match="can_batch.*run_batch"):
        workers.Worker("circle-idler", 1)
