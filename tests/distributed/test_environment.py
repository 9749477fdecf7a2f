"""What the environment says about the job that this process is part of."""

from __future__ import annotations

import pytest

from circle.cli import run
from circle.distributed.environment import is_rank_zero, local_rank, rank, world_size
from circle.errors import CircleError


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_alone_where_nobody_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (world_size(), rank(), local_rank(), is_rank_zero()) == (1, 0, 0, True)
    monkeypatch.setenv("RANK", "3")
    assert rank() == 0, "a rank without a size is somebody else's"


def test_one_of_several(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("WORLD_SIZE", "4"), ("RANK", "3"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert (world_size(), rank(), local_rank(), is_rank_zero()) == (4, 3, 1, False)
    assert run(["learn", "--wrong"]) == 2
    assert capsys.readouterr().err == "", "rank zero says it"


@pytest.mark.parametrize(
    ("size", "number", "message"),
    [
        ("two", "0", "WORLD_SIZE = 'two'"),
        ("0", "0", "WORLD_SIZE = '0' .* from 1"),
        ("2", None, "WORLD_SIZE = 2, but RANK is not set"),
        ("2", "2", "RANK = 2 of 2 processes: expected 0 to 1"),
        ("2", "-1", "RANK = '-1'"),
    ],
)
def test_nonsense_is_named(monkeypatch: pytest.MonkeyPatch, size: str, number: str | None, message: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    if number is not None:
        monkeypatch.setenv("RANK", number)
    with pytest.raises(CircleError, match=message):
        rank()
    assert is_rank_zero(), "better twice than never"


@pytest.mark.parametrize(
    "command",
    [
        *("advise", "bench ablation", "bench report", "bench tune", "completion show", "compress", "data fetch"),
        *("demo", "doctor", "evaluate", "export", "forget", "info", "merge", "pack", "predict", "serve"),
    ],
)
def test_commands_that_do_not_share_their_work(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--dataset", "digits", "--tasks", "5"] if command == "bench tune" else []  # the one that asks itself
    for number, said in ((0, f"circle: error: {command}: 2 processes started by torchrun, expected one; "), (1, "")):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", str(number))
        assert run([*command.split(), *flags]) == 1
        written = capsys.readouterr()
        assert written.out == ""
        assert written.err.startswith(said) and written.err.count("\n") == bool(said)


def test_wrong_usage_and_help_are_what_they_are_for_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert run(["lern"]) == 2
    assert "lern" in capsys.readouterr().err
    assert run(["merge", "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: circle merge")
