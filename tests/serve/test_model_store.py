"""Lessons, undo, rename, forget, merge and load; and that all of it is on the disk before it is acknowledged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from factories import learn, learn_request, learned, open_store, png, tiny_model

from circle import CircleClassifier
from circle.errors import CircleError
from circle.serve import edit_history, model_store
from circle.serve.journal import Frame
from circle.serve.limits import ConflictError, StorageError
from circle.serve.model_store import LearnRequest, ModelStore
from circle.serve.recovery import journal_path


def reopened(store: ModelStore) -> ModelStore:
    """What a new process finds after a kill: nobody has closed anything."""
    again = open_store(store.path)
    assert again.model.statistics_ == store.model.statistics_
    assert again.edit_history.state() == store.edit_history.state()
    assert len(again.model.ledger_) == len(store.model.ledger_)
    assert again.labels() == store.labels()
    return again


def test_lessons_are_exact_and_survive(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    assert learn(store, "ant", 0, 1, 2) == ["learned"] * 3
    assert learn(store, "bee", 0, 1) == ["learned"] * 2
    assert learn(store, "ant", 1, 9, 9) == ["known", "learned", "known"], "no image twice"
    expected = learned([("ant", 0), ("ant", 1), ("ant", 2), ("ant", 9), ("bee", 0), ("bee", 1)])
    assert store.model.statistics_ == expected.statistics_
    again = reopened(store)
    assert learn(again, "ant", 1) == ["known"]
    assert any("steps read again" in note for note in again.notes)
    again.close()
    assert CircleClassifier.load(store.path).statistics_ == expected.statistics_, "an ordinary model file"
    assert not reopened(again).notes


def test_every_fifth_image_is_held_back_by_its_content(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    outcomes = dict(enumerate(learn(store, "ant", *range(40), hold=True)))
    held_out = [number for number, outcome in outcomes.items() if outcome == "held"]
    assert held_out
    assert 0 not in held_out, "the first image of a class is learned, whatever its content"
    assert set(held_out) == {n for n in range(1, 40) if learn_request("ant", n).example("ant").content[0] % 5 == 0}
    assert store.counts() == {"ant": 40 - len(held_out)}
    assert store.edit_history.held_out_counts() == {"ant": len(held_out)}
    assert store.model.statistics_ == learned([("ant", n) for n in range(40) if n not in held_out]).statistics_
    assert learn(store, "ant", held_out[0], hold=True) == ["known"]
    assert learn(store, "ant", held_out[0]) == ["learned"], "a correction always teaches"
    assert store.edit_history.held_out_counts() == {"ant": len(held_out) - 1}, "and what was taught no longer tests"
    reopened(store)


def test_held_back_images_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_history, "MAX_HELD_OUT_PER_CLASS", 2)
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", *range(40), hold=True)
    assert store.edit_history.held_out_counts() == {"ant": 2}
    assert store.counts() == {"ant": 38}


def test_undo_takes_the_last_lesson_back_exactly(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", 0, 1)
    before, session_before = store.model.copy(), store.edit_history.state()
    learn(store, "bee", *range(12), group="drop-1", hold=True)
    store = reopened(store)
    undone = store.undo()
    assert len(undone) == 12
    assert store.model.statistics_ == before.statistics_
    assert store.edit_history.state() == session_before
    assert learn(store, "bee", 3) == ["learned"], "what was undone is not known"
    store = reopened(store)
    for expected in (1, 1, 1):
        assert len(store.undo()) == expected, "lessons without a group are undone one by one"
    assert store.counts() == {}
    with pytest.raises(ConflictError, match="nothing to undo"):
        reopened(store).undo()


def test_undo_takes_back_a_whole_group_though_another_came_between(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", 0)
    for number in range(1, 4):
        learn(store, "bee", number, group="first")
        learn(store, "cat", number, group="second")
    store = reopened(store)
    assert {example.label for example in store.undo()} == {"cat"}
    assert store.model.statistics_ == learned([("ant", 0), *(("bee", number) for number in range(1, 4))]).statistics_
    store = reopened(store)
    learn(store, "cat", 9, group="third")
    learn(store, "bee", 9, group="first")
    assert [example.label for example in store.undo()] == ["bee"] * 4, "across the lesson in between"
    assert store.model.statistics_ == learned([("ant", 0), ("cat", 9)]).statistics_
    store.checkpoint()
    assert len(reopened(store).undo()) == 1


def test_a_journal_of_the_older_form_is_read(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", 0, 1, 2, group="drop")
    assert store._journal is not None
    store._journal.append(Frame({"sequence": store.sequence + 1, "kind": "undo", "pictures": 2}))
    again = open_store(store.path)
    assert again.model.statistics_ == learned([("ant", 0)]).statistics_
    assert len(again.edit_history.recent) == 1


def held_ant(store: ModelStore) -> int:
    """Teach ants, some of which are held back; the number of one of those."""
    outcomes = learn(store, "ant", *range(20), hold=True)
    return outcomes.index("held")


def test_what_tested_tests_again_when_its_correction_is_undone(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    held_out = held_ant(store)
    before = store.edit_history.state()
    correction = learn_request("ant", held_out)
    store.learn([replace(correction, name="bee", group="wrong")])
    assert correction.example("ant").content not in store.edit_history.held_out
    store.rename("ant", "emmet")
    store = reopened(store)
    store.undo()
    store.rename("emmet", "ant")
    assert store.edit_history.state() == before
    store.learn([correction])
    store.undo()
    assert reopened(store).edit_history.state() == before


def test_what_tested_tests_again_though_it_left_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "m.circle")
    held_out = held_ant(store)
    counts = store.edit_history.held_out_counts()
    monkeypatch.setattr(edit_history, "MAX_HISTORY_BYTES", 2 * 16 * 16 * 3)
    learn(store, "ant", held_out)
    assert store.edit_history.held_out_counts()["ant"] == counts["ant"] - 1
    store.checkpoint()
    store = reopened(store)
    store.undo()
    assert store.edit_history.held_out_counts() == counts
    (example,) = [
        each
        for each in store.edit_history.held_out.values()
        if each.digest == learn_request("ant", held_out).example("ant").digest
    ]
    assert (example.pixels == learn_request("ant", held_out).pixels).all()
    reopened(store)


def test_what_is_still_taught_does_not_test(tmp_path: Path) -> None:
    """Lessons of one file may be undone in another order than they came in."""
    store = open_store(tmp_path / "m.circle")
    held_out = held_ant(store)
    content = learn_request("ant", held_out).example("ant").content
    store.learn([replace(learn_request("ant", held_out), name="bee", group="first")])
    store.learn([replace(learn_request("ant", held_out), name="cat", group="second")])
    learn(store, "bee", 50, group="first")
    store.undo()
    store = reopened(store)
    assert content not in store.edit_history.held_out, "it is taught as a cat"
    store.undo()
    store = reopened(store)
    assert content in store.edit_history.held_out
    store.learn([replace(learn_request("ant", held_out), name="cat")])
    store.forget("ant")
    store.undo()
    assert content not in reopened(store).edit_history.held_out, "the class that it tested is gone"


def test_history_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_history, "MAX_HISTORY_BYTES", 3 * 16 * 16 * 3)
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", *range(5), group="drop")
    assert len(store.edit_history.last_edit()) == 3
    store.undo()
    assert store.model.statistics_ == learned([("ant", 0), ("ant", 1)]).statistics_


def test_rename_changes_no_number(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", *range(20), hold=True)
    store.create_class("empty")
    store.rename("ant", " wasp ")
    store.rename("empty", "void")
    assert store.labels() == ["wasp", "void"]
    assert set(store.edit_history.held_out_counts()) == {"wasp"}
    store = reopened(store)
    for name, to, message in (("ant", "x", "not in the model"), ("void", "wasp", "exists already")):
        with pytest.raises(ConflictError, match=message):
            store.rename(name, to)
    store.undo()
    assert store.labels()[0] == "wasp", "lessons under the old name are undone under the new one"
    reopened(store)


def test_forget_without_a_trace_while_the_images_are_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", 0, 1)
    expected = store.model.copy()
    learn(store, "bee", *range(10), hold=True)
    store = reopened(store)
    assert store.forget("bee") is True
    assert store.model.statistics_ == expected.statistics_
    assert store.labels() == ["ant"]
    assert learn(store, "bee", 0, 1) == ["learned"] * 2
    monkeypatch.setattr(edit_history, "MAX_HISTORY_BYTES", 16 * 16 * 3)
    learn(store, "bee", 2)
    assert store.forget("bee") is False, "its anonymous scatter stays"
    assert store.model.statistics_[0].orphan_degrees == 2
    assert store.labels() == ["ant"]
    assert reopened(store).labels() == ["ant"]


def test_the_journal_forgets_as_well(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", 0)
    learn(store, "bee", *range(10), hold=True)
    store.checkpoint()
    learn(store, "bee", 10)
    images = [learn_request("bee", number).pixels.tobytes() for number in range(11)]
    journal = journal_path(store.path)
    assert all(pixels in journal.read_bytes() for pixels in images)
    assert store.forget("bee") is True
    content = journal.read_bytes()
    assert not any(pixels in content for pixels in images)
    assert learn_request("ant", 0).pixels.tobytes() in content, "what stays can still be undone"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.circle", "m.circle.journal"]
    reopened(store)


def test_a_full_disk_does_not_stop_forgetting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", 0)
    learn(store, "bee", 0)

    def fail(*_: object, **__: object) -> None:
        raise CircleError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(model_store.files, "save_learner", fail)
        assert store.forget("bee") is True
    assert (store.warning, store.journal_bytes > 0) == ("no room", True)
    assert reopened(store).labels() == ["ant"], "the step is in the journal"


def test_classes_made_by_hand(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle", classes=2)
    store.create_class("bee")
    with pytest.raises(ConflictError, match="exists already"):
        store.create_class("bee")
    learn(store, "ant", 0)
    with pytest.raises(ConflictError, match=r"class limit reached \(2\): 3 classes asked for"):
        store.create_class("cat")
    (refused,) = learn(store, "cat", 0)
    assert isinstance(refused, ConflictError)
    assert store.forget("bee") is True
    assert learn(store, "cat", 0) == ["learned"]
    reopened(store)


def test_one_bad_lesson_does_not_harm_the_others(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    wrong_shape = LearnRequest("ant", learn_request("ant").pixels[:, :8], png("ant"))
    outcomes = store.learn([learn_request("ant", 0), wrong_shape, learn_request(" ", 1), learn_request("ant", 2)])
    assert outcomes[::3] == ["learned", "learned"]
    assert isinstance(outcomes[1], ConflictError)
    assert isinstance(outcomes[2], CircleError)
    assert store.model.statistics_ == learned([("ant", 0), ("ant", 2)]).statistics_


def test_merge(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    store.merge(learned([("cat", 5)]))
    learn(store, "ant", 0, 1)
    assert store.merge(learned([("bee", 0), ("ant", 7)])) == 0
    everything = [("ant", 0), ("ant", 1), ("ant", 7), ("bee", 0), ("cat", 5)]
    assert store.model.statistics_ == learned(everything).statistics_
    store = reopened(store)
    store.undo()
    assert store.counts() == {"ant": 2, "bee": 1, "cat": 1}, "the last lesson, not the merge"
    other = tiny_model().set_params(seed=5).partial_fit([learn_request("ant").pixels.transpose(1, 2, 0)], ["ant"])
    before = store.model.copy()
    with pytest.raises(ConflictError, match="different settings"):
        store.merge(other)
    assert store.model.statistics_ == before.statistics_


def test_load_goes_on_with_another_model(tmp_path: Path) -> None:
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", *range(10), hold=True)
    store.load(learned([("bee", 0)]))
    assert store.labels() == ["bee"]
    store = reopened(store)
    with pytest.raises(ConflictError):
        store.undo()
    learn(store, "cat", 0)
    assert reopened(store).counts() == {"bee": 1, "cat": 1}


def test_models_with_numbers_for_labels(tmp_path: Path) -> None:
    path = tmp_path / "digits.circle"
    tiny_model().partial_fit([learn_request("ant").pixels.transpose(1, 2, 0)], [3]).save(path)
    store = open_store(path)
    assert store.learn([learn_request("3", 1), learn_request("4", 1)]) == ["learned"] * 2
    (refused,) = store.learn([learn_request("four", 1)])
    assert "whole numbers" in str(refused)
    assert reopened(store).counts() == {3: 2, 4: 1}


def test_a_change_that_fails_after_it_was_kept_stops_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "m.circle")
    learn(store, "ant", 0)

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(CircleClassifier, "learn_features", fail)
        with pytest.raises(MemoryError):
            learn(store, "ant", 1)
    with pytest.raises(StorageError, match="restart"):
        learn(store, "ant", 2)
    store.close()
    assert open_store(store.path).model.statistics_ == learned([("ant", 0), ("ant", 1)]).statistics_
    assert journal_path(store.path).exists()
