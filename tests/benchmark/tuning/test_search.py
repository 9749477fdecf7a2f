"""Searches that can be stopped, resumed and shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from circle.benchmark.tuning import search as searching
from circle.benchmark.tuning.search import Search, check_basis
from circle.benchmark.tuning.spaces import Stage
from circle.benchmark.tuning.tune import Outcome, Watch
from circle.errors import CircleError

pytest.importorskip("optuna")

FIRST = Stage("first", {"a": tuple(range(1, 11)), "b": (0.0, 1.0)}, {"a": 1, "b": 0.0})
SECOND = Stage("second", {"c": ("low", "high"), "d": (1, 2, 3, 4)}, {"c": "low", "d": 1})


def value(settings: dict[str, Any]) -> float:
    return settings["a"] / 10 + 0.1 * settings["b"] + (0.05 if settings.get("c") == "high" else 0.0)


class Judge:
    """Counts what it is asked; may be told to die at some question."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self.dies_at = dies_at

    def __call__(self, settings: dict[str, Any], watch: Watch) -> Outcome:
        if self.dies_at == len(self.asked):
            raise KeyboardInterrupt
        self.asked.append(settings)
        for step in range(4):
            watch(step, value(settings))
        return Outcome(value(settings), [value(settings)] * 4, {"found": 7})


def new(folder: Path, judge: Judge, seed: int = 0) -> Search:
    return Search(folder, [FIRST, SECOND], judge, sampler="tpe", seed=seed)


def test_the_first_trial_is_what_was_given_and_the_best_wins(tmp_path: Path) -> None:
    judge = Judge()
    search = new(tmp_path, judge)
    assert search.run(12)
    assert judge.asked[0] == {"a": 1, "b": 0.0}
    first, second = search.finished(FIRST), search.finished(SECOND)
    assert len(first) == len(second) == 12
    best = search.best()
    assert best.stage == "second" and best.settings["c"] == "high" and best.settings["found"] == 7
    assert best.value == max(trial.value or 0 for trial in (*first, *second))
    assert best.value == pytest.approx(value(best.settings))
    tops = sorted({round(trial.value, 6) for trial in first if trial.value is not None}, reverse=True)[:3]
    starts = {round(value({**trial.settings, "c": "low"}), 6) for trial in second}
    assert starts <= set(tops), "the second stage starts from the best three of the first"
    importances = search.importances(FIRST)
    assert set(importances) == {"a", "b"} and importances["a"] > importances["b"]


def test_killed_twice_and_nothing_is_lost(tmp_path: Path) -> None:
    asked = 0
    for dies_at in (3, 4, None):
        judge = Judge(dies_at)
        search = new(tmp_path, judge)
        if dies_at is None:
            assert search.run(6)
        else:
            with pytest.raises(KeyboardInterrupt):
                search.run(6)
        asked += len(judge.asked)
        assert len(search.finished(FIRST)) + len(search.finished(SECOND)) == asked, "every finished trial counts"
    assert asked == 12, "and none is done again"
    assert new(tmp_path, Judge()).run(6), "a finished search has nothing left to do"


def test_nothing_is_tried_twice(tmp_path: Path) -> None:
    small = Stage("first", {"a": (1, 2), "b": (0.0, 1.0)}, {"a": 1, "b": 0.0})
    judge = Judge()
    search = Search(tmp_path, [small], judge, sampler="random", seed=0)
    assert search.run(50), "a space of four settings is exhausted, which is no reason to go on for ever"
    assert sorted(json.dumps(each) for each in judge.asked) == sorted({json.dumps(each) for each in judge.asked})
    assert len(judge.asked) == 4
    assert [trial.value for trial in search.finished(small)] == [value(each) for each in judge.asked]


def test_poor_trials_are_cut_short(tmp_path: Path) -> None:
    search = new(tmp_path, Judge())
    search.run(20)
    states = [trial.state for trial in search.finished(FIRST)]
    assert states[: searching.STARTUP_TRIALS] == ["complete"] * searching.STARTUP_TRIALS and "pruned" in states
    cut = [value(trial.settings) for trial in search.finished(FIRST) if trial.value is None]
    assert max(cut) < search.best_value(FIRST)  # pyright: ignore[reportOperatorIssue]


def test_settings_that_do_not_work_are_an_answer(tmp_path: Path) -> None:
    def refuse(settings: dict[str, Any], watch: Watch) -> Outcome:
        if settings["a"] > 1:
            raise CircleError("diverged")
        return Outcome(value(settings), [])

    search = Search(tmp_path, [FIRST], refuse, sampler="random", seed=0)
    assert search.run(6)
    assert {trial.settings["a"] for trial in search.finished(FIRST) if trial.value is not None} == {1}


def test_two_searches_on_one_folder_share_their_trials(tmp_path: Path) -> None:
    one, two = Judge(), Judge()
    searches = new(tmp_path, one), new(tmp_path, two, seed=5)
    for count in range(1, 6):
        searches[count % 2].run(count)
    assert len(one.asked) > 0 and len(two.asked) > 0
    assert len(one.asked) + len(two.asked) == 10


def test_no_trial_in_time(tmp_path: Path) -> None:
    search = new(tmp_path, Judge())
    assert not search.run(5, deadline=0.0)
    with pytest.raises(CircleError, match="no trial of the search was completed"):
        search.best()


def test_a_folder_belongs_to_one_search(tmp_path: Path) -> None:
    check_basis(tmp_path, {"data": "abc", "tasks": "10"})
    check_basis(tmp_path, {"data": "abc", "tasks": "10"})
    with pytest.raises(CircleError, match="a search with another tasks was begun here"):
        check_basis(tmp_path, {"data": "abc", "tasks": "20"})
    assert json.loads((tmp_path / searching.BASIS).read_text())["tasks"] == "10"
