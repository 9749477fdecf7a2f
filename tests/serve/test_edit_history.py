"""What a session remembers after pictures have left it: what it would if they had never come."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from circle.data.decode import ImageConfig
from circle.serve.edit_history import EditHistory, LabelledImage

SIDE = 2


def example(content: int, label: str, group: str, *, held_out: bool) -> LabelledImage:
    pixels = np.full((3, SIDE, SIDE), content, np.uint8)
    return LabelledImage(label, pixels, f"{label}{content}".encode(), bytes([content]), group, held_out)


def some_images(chance: random.Random, count: int) -> list[LabelledImage]:
    """Few files and classes, so that the same file comes again and again, to test and to be learned."""
    return [
        example(chance.randrange(3), chance.choice("ab"), chance.choice(["", "g", "h"]), held_out=chance.random() < 0.5)
        for _ in range(count)
    ]


def filled(images: Sequence[LabelledImage]) -> EditHistory:
    edit_history = EditHistory()
    edit_history.add(images)
    return edit_history


@pytest.mark.parametrize("seed", range(50))
def test_undo_leaves_what_the_other_pictures_would_have_made(seed: int) -> None:
    chance = random.Random(seed)
    images = some_images(chance, chance.randint(1, 12))
    edit_history = filled(images)
    while images:
        learn_request = edit_history.last_edit()
        group = images[-1].group
        left = [each for each in images if each.group != group] if group else images[:-1]
        assert len(learn_request) == len(images) - len(left)
        learned = edit_history.undo(edit_history.positions(learn_request))
        assert len(learned) == sum(not each.held_out for each in learn_request)
        images = left
        expected = filled(images)
        assert edit_history.state() == expected.state()
        assert edit_history.held_out_counts() == expected.held_out_counts()
    assert not edit_history.held_out


@pytest.mark.parametrize("seed", range(50))
def test_a_class_that_is_forgotten_leaves_what_the_others_would_have_made(seed: int) -> None:
    chance = random.Random(seed)
    images = some_images(chance, chance.randint(1, 12))
    edit_history = filled(images)
    edit_history.forget("a")
    expected = filled([each for each in images if each.label != "a"])
    assert edit_history.state() == expected.state()
    assert edit_history.held_out_counts() == expected.held_out_counts()


@pytest.mark.parametrize("seed", range(20))
def test_a_base_holds_everything_under_any_name(seed: int) -> None:
    chance = random.Random(seed)
    edit_history = filled(some_images(chance, 10))
    edit_history.rename("a", "c")
    edit_history.rename("b", "a")
    image = ImageConfig(height=SIDE, width=SIDE, channels=3)
    again = EditHistory.from_frame(edit_history.to_frame("x", 1), image)
    assert again.state() == edit_history.state()
    while edit_history.recent:
        for each in (edit_history, again):
            each.undo(each.positions(each.last_edit()))
        assert again.state() == edit_history.state()
    assert not again.held_out
