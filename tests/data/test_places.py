"""Which data sets are here."""

from __future__ import annotations

from pathlib import Path

import pytest

from circle.data.places import place
from circle.registry import list_datasets


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIRCLE_DATA", str(tmp_path))
    monkeypatch.delenv("CIRCLE_IMAGENET", raising=False)
    assert {name for name in list_datasets() if place(name)[0]} == {"digits"}
    assert place("omniglot") == (False, "circle data fetch omniglot")
    (tmp_path / "cifar100").mkdir()
    assert not place("cifar100")[0], "an empty folder is no data set"
    (tmp_path / "cifar100" / "train.bin").touch()
    assert place("cifar100") == (True, str(tmp_path / "cifar100"))
    monkeypatch.setenv("CIRCLE_IMAGENET", str(tmp_path))
    assert any(place(name) == (True, str(tmp_path)) for name in list_datasets())
