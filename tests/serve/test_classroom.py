"""Lessons, undo, rename, forget, merge and load; and that all of it is on the disk before it is acknowledged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from school import learned, lesson, open_room, png, teach, tiny_model

from circle import CircleClassifier
from circle.errors import CircleError
from circle.serve import classroom, session
from circle.serve.classroom import Classroom, Lesson
from circle.serve.errors import ConflictError, StorageError
from circle.serve.journal import Frame
from circle.serve.recovery import journal_path


def reopened(room: Classroom) -> Classroom:
    """What a new process finds after a kill: nobody has closed anything."""
    again = open_room(room.path)
    assert again.model.statistics_ == room.model.statistics_
    assert again.session.state() == room.session.state()
    assert len(again.model.ledger_) == len(room.model.ledger_)
    assert again.labels() == room.labels()
    return again


def test_lessons_are_exact_and_survive(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    assert teach(room, "ant", 0, 1, 2) == ["learned"] * 3
    assert teach(room, "bee", 0, 1) == ["learned"] * 2
    assert teach(room, "ant", 1, 9, 9) == ["known", "learned", "known"], "no image twice"
    expected = learned([("ant", 0), ("ant", 1), ("ant", 2), ("ant", 9), ("bee", 0), ("bee", 1)])
    assert room.model.statistics_ == expected.statistics_
    again = reopened(room)
    assert teach(again, "ant", 1) == ["known"]
    assert any("steps read again" in note for note in again.notes)
    again.close()
    assert CircleClassifier.load(room.path).statistics_ == expected.statistics_, "an ordinary model file"
    assert not reopened(again).notes


def test_every_fifth_image_is_held_back_by_its_content(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    outcomes = dict(enumerate(teach(room, "ant", *range(40), hold=True)))
    held = [number for number, outcome in outcomes.items() if outcome == "held"]
    assert held
    assert 0 not in held, "the first image of a class is learned, whatever its content"
    assert set(held) == {n for n in range(1, 40) if lesson("ant", n).picture("ant").content[0] % 5 == 0}
    assert room.counts() == {"ant": 40 - len(held)}
    assert room.session.held_counts() == {"ant": len(held)}
    assert room.model.statistics_ == learned([("ant", n) for n in range(40) if n not in held]).statistics_
    assert teach(room, "ant", held[0], hold=True) == ["known"]
    assert teach(room, "ant", held[0]) == ["learned"], "a correction always teaches"
    assert room.session.held_counts() == {"ant": len(held) - 1}, "and what was taught no longer tests"
    reopened(room)


def test_held_back_images_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "HELD_PER_CLASS", 2)
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", *range(40), hold=True)
    assert room.session.held_counts() == {"ant": 2}
    assert room.counts() == {"ant": 38}


def test_undo_takes_the_last_lesson_back_exactly(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", 0, 1)
    before, session_before = room.model.copy(), room.session.state()
    teach(room, "bee", *range(12), group="drop-1", hold=True)
    room = reopened(room)
    undone = room.undo()
    assert len(undone) == 12
    assert room.model.statistics_ == before.statistics_
    assert room.session.state() == session_before
    assert teach(room, "bee", 3) == ["learned"], "what was undone is not known"
    room = reopened(room)
    for expected in (1, 1, 1):
        assert len(room.undo()) == expected, "lessons without a group are undone one by one"
    assert room.counts() == {}
    with pytest.raises(ConflictError, match="no lesson to undo"):
        reopened(room).undo()


def test_undo_takes_back_a_whole_group_though_another_came_between(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", 0)
    for number in range(1, 4):
        teach(room, "bee", number, group="first")
        teach(room, "cat", number, group="second")
    room = reopened(room)
    assert {picture.label for picture in room.undo()} == {"cat"}
    assert room.model.statistics_ == learned([("ant", 0), *(("bee", number) for number in range(1, 4))]).statistics_
    room = reopened(room)
    teach(room, "cat", 9, group="third")
    teach(room, "bee", 9, group="first")
    assert [picture.label for picture in room.undo()] == ["bee"] * 4, "across the lesson in between"
    assert room.model.statistics_ == learned([("ant", 0), ("cat", 9)]).statistics_
    room.checkpoint()
    assert len(reopened(room).undo()) == 1


def test_a_journal_of_the_older_form_is_read(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", 0, 1, 2, group="drop")
    assert room._journal is not None
    room._journal.append(Frame({"sequence": room.sequence + 1, "kind": "undo", "pictures": 2}))
    again = open_room(room.path)
    assert again.model.statistics_ == learned([("ant", 0)]).statistics_
    assert len(again.session.history) == 1


def held_ant(room: Classroom) -> int:
    """Teach ants, some of which are held back; the number of one of those."""
    outcomes = teach(room, "ant", *range(20), hold=True)
    return outcomes.index("held")


def test_what_tested_tests_again_when_its_correction_is_undone(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    held = held_ant(room)
    before = room.session.state()
    correction = lesson("ant", held)
    room.teach([replace(correction, name="bee", group="wrong")])
    assert correction.picture("ant").content not in room.session.held
    room.rename("ant", "emmet")
    room = reopened(room)
    room.undo()
    room.rename("emmet", "ant")
    assert room.session.state() == before
    room.teach([correction])
    room.undo()
    assert reopened(room).session.state() == before


def test_what_tested_tests_again_though_it_left_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = open_room(tmp_path / "m.circle")
    held = held_ant(room)
    counts = room.session.held_counts()
    monkeypatch.setattr(session, "HISTORY_BYTES", 2 * 16 * 16 * 3)
    teach(room, "ant", held)
    assert room.session.held_counts()["ant"] == counts["ant"] - 1
    room.checkpoint()
    room = reopened(room)
    room.undo()
    assert room.session.held_counts() == counts
    (picture,) = [
        each for each in room.session.held.values() if each.digest == lesson("ant", held).picture("ant").digest
    ]
    assert (picture.pixels == lesson("ant", held).pixels).all()
    reopened(room)


def test_what_is_still_taught_does_not_test(tmp_path: Path) -> None:
    """Lessons of one file may be undone in another order than they came in."""
    room = open_room(tmp_path / "m.circle")
    held = held_ant(room)
    content = lesson("ant", held).picture("ant").content
    room.teach([replace(lesson("ant", held), name="bee", group="first")])
    room.teach([replace(lesson("ant", held), name="cat", group="second")])
    teach(room, "bee", 50, group="first")
    room.undo()
    room = reopened(room)
    assert content not in room.session.held, "it is taught as a cat"
    room.undo()
    room = reopened(room)
    assert content in room.session.held
    room.teach([replace(lesson("ant", held), name="cat")])
    room.forget("ant")
    room.undo()
    assert content not in reopened(room).session.held, "the class that it tested is gone"


def test_history_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "HISTORY_BYTES", 3 * 16 * 16 * 3)
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", *range(5), group="drop")
    assert len(room.session.last_lesson()) == 3
    room.undo()
    assert room.model.statistics_ == learned([("ant", 0), ("ant", 1)]).statistics_


def test_rename_changes_no_number(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", *range(20), hold=True)
    room.make_class("empty")
    room.rename("ant", " wasp ")
    room.rename("empty", "void")
    assert room.labels() == ["wasp", "void"]
    assert set(room.session.held_counts()) == {"wasp"}
    room = reopened(room)
    for name, to, message in (("ant", "x", "not in the model"), ("void", "wasp", "there already")):
        with pytest.raises(ConflictError, match=message):
            room.rename(name, to)
    room.undo()
    assert room.labels()[0] == "wasp", "lessons under the old name are undone under the new one"
    reopened(room)


def test_forget_without_a_trace_while_the_images_are_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", 0, 1)
    expected = room.model.copy()
    teach(room, "bee", *range(10), hold=True)
    room = reopened(room)
    assert room.forget("bee") is True
    assert room.model.statistics_ == expected.statistics_
    assert room.labels() == ["ant"]
    assert teach(room, "bee", 0, 1) == ["learned"] * 2
    monkeypatch.setattr(session, "HISTORY_BYTES", 16 * 16 * 3)
    teach(room, "bee", 2)
    assert room.forget("bee") is False, "its anonymous scatter stays"
    assert room.model.statistics_[0].orphan_degrees == 2
    assert room.labels() == ["ant"]
    assert reopened(room).labels() == ["ant"]


def test_the_journal_forgets_as_well(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", 0)
    teach(room, "bee", *range(10), hold=True)
    room.checkpoint()
    teach(room, "bee", 10)
    pictures = [lesson("bee", number).pixels.tobytes() for number in range(11)]
    journal = journal_path(room.path)
    assert all(pixels in journal.read_bytes() for pixels in pictures)
    assert room.forget("bee") is True
    content = journal.read_bytes()
    assert not any(pixels in content for pixels in pictures)
    assert lesson("ant", 0).pixels.tobytes() in content, "what stays can still be undone"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.circle", "m.circle.journal"]
    reopened(room)


def test_a_full_disk_does_not_stop_forgetting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", 0)
    teach(room, "bee", 0)

    def fail(*_: object, **__: object) -> None:
        raise CircleError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(classroom, "save_model", fail)
        assert room.forget("bee") is True
    assert (room.warning, room.journal_bytes > 0) == ("no room", True)
    assert reopened(room).labels() == ["ant"], "the step is in the journal"


def test_classes_made_by_hand(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle", classes=2)
    room.make_class("bee")
    with pytest.raises(ConflictError, match="there already"):
        room.make_class("bee")
    teach(room, "ant", 0)
    with pytest.raises(ConflictError, match="takes 2 classes"):
        room.make_class("cat")
    (refused,) = teach(room, "cat", 0)
    assert isinstance(refused, ConflictError)
    assert room.forget("bee") is True
    assert teach(room, "cat", 0) == ["learned"]
    reopened(room)


def test_one_bad_lesson_does_not_harm_the_others(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    wrong_shape = Lesson("ant", lesson("ant").pixels[:, :8], png("ant"))
    outcomes = room.teach([lesson("ant", 0), wrong_shape, lesson(" ", 1), lesson("ant", 2)])
    assert outcomes[::3] == ["learned", "learned"]
    assert isinstance(outcomes[1], ConflictError)
    assert isinstance(outcomes[2], CircleError)
    assert room.model.statistics_ == learned([("ant", 0), ("ant", 2)]).statistics_


def test_merge(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    room.merge(learned([("cat", 5)]))
    teach(room, "ant", 0, 1)
    assert room.merge(learned([("bee", 0), ("ant", 7)])) == 0
    everything = [("ant", 0), ("ant", 1), ("ant", 7), ("bee", 0), ("cat", 5)]
    assert room.model.statistics_ == learned(everything).statistics_
    room = reopened(room)
    room.undo()
    assert room.counts() == {"ant": 2, "bee": 1, "cat": 1}, "the last lesson, not the merge"
    other = tiny_model().set_params(seed=5).partial_fit([lesson("ant").pixels.transpose(1, 2, 0)], ["ant"])
    before = room.model.copy()
    with pytest.raises(ConflictError, match="different settings"):
        room.merge(other)
    assert room.model.statistics_ == before.statistics_


def test_load_goes_on_with_another_model(tmp_path: Path) -> None:
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", *range(10), hold=True)
    room.load(learned([("bee", 0)]))
    assert room.labels() == ["bee"]
    room = reopened(room)
    with pytest.raises(ConflictError):
        room.undo()
    teach(room, "cat", 0)
    assert reopened(room).counts() == {"bee": 1, "cat": 1}


def test_models_with_numbers_for_labels(tmp_path: Path) -> None:
    path = tmp_path / "digits.circle"
    tiny_model().partial_fit([lesson("ant").pixels.transpose(1, 2, 0)], [3]).save(path)
    room = open_room(path)
    assert room.teach([lesson("3", 1), lesson("4", 1)]) == ["learned"] * 2
    (refused,) = room.teach([lesson("four", 1)])
    assert "whole numbers" in str(refused)
    assert reopened(room).counts() == {3: 2, 4: 1}


def test_a_change_that_fails_after_it_was_kept_stops_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = open_room(tmp_path / "m.circle")
    teach(room, "ant", 0)

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(CircleClassifier, "learn_features", fail)
        with pytest.raises(MemoryError):
            teach(room, "ant", 1)
    with pytest.raises(StorageError, match="restart"):
        teach(room, "ant", 2)
    room.close()
    assert open_room(room.path).model.statistics_ == learned([("ant", 0), ("ant", 1)]).statistics_
    assert journal_path(room.path).exists()
