"""What the README shows must run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from circle.cli import app

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_python_quick_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0.9
    assert (tmp_path / "digits.circle").stat().st_size > (tmp_path / "digits-phone.circle").stat().st_size > 0


def test_commands_exist() -> None:
    named = set(re.findall(r"^circle (\w+)", README, re.MULTILINE)) | set(re.findall(r"`circle (\w+)", README))
    assert len(named) >= 7
    assert all(name in app for name in named), named


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (Path(__file__).parents[1] / target).is_file(), target
