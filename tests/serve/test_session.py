"""What a session remembers after pictures have left it: what it would if they had never come."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from circle.data.decode import ImageConfig
from circle.serve.session import Picture, Session

SIDE = 2


def picture(content: int, label: str, group: str, *, held: bool) -> Picture:
    pixels = np.full((3, SIDE, SIDE), content, np.uint8)
    return Picture(label, pixels, f"{label}{content}".encode(), bytes([content]), group, held)


def some_pictures(chance: random.Random, count: int) -> list[Picture]:
    """Few files and classes, so that the same file comes again and again, to test and to be learned."""
    return [
        picture(chance.randrange(3), chance.choice("ab"), chance.choice(["", "g", "h"]), held=chance.random() < 0.5)
        for _ in range(count)
    ]


def filled(pictures: Sequence[Picture]) -> Session:
    session = Session()
    session.add(pictures)
    return session


@pytest.mark.parametrize("seed", range(50))
def test_undo_leaves_what_the_other_pictures_would_have_made(seed: int) -> None:
    chance = random.Random(seed)
    pictures = some_pictures(chance, chance.randint(1, 12))
    session = filled(pictures)
    while pictures:
        lesson = session.last_lesson()
        group = pictures[-1].group
        left = [each for each in pictures if each.group != group] if group else pictures[:-1]
        assert len(lesson) == len(pictures) - len(left)
        learned = session.undo(session.places(lesson))
        assert len(learned) == sum(not each.held for each in lesson)
        pictures = left
        expected = filled(pictures)
        assert session.state() == expected.state()
        assert session.held_counts() == expected.held_counts()
    assert not session.held


@pytest.mark.parametrize("seed", range(50))
def test_a_class_that_is_forgotten_leaves_what_the_others_would_have_made(seed: int) -> None:
    chance = random.Random(seed)
    pictures = some_pictures(chance, chance.randint(1, 12))
    session = filled(pictures)
    session.forget("a")
    expected = filled([each for each in pictures if each.label != "a"])
    assert session.state() == expected.state()
    assert session.held_counts() == expected.held_counts()


@pytest.mark.parametrize("seed", range(20))
def test_a_base_holds_everything_under_any_name(seed: int) -> None:
    chance = random.Random(seed)
    session = filled(some_pictures(chance, 10))
    session.rename("a", "c")
    session.rename("b", "a")
    image = ImageConfig(height=SIDE, width=SIDE, channels=3)
    again = Session.from_base(session.base("x", 1), image)
    assert again.state() == session.state()
    while session.history:
        for each in (session, again):
            each.undo(each.places(each.last_lesson()))
        assert again.state() == session.state()
    assert not again.held
