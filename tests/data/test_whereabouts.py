"""Which data sets are here."""

from __future__ import annotations

from pathlib import Path

import pytest

from circle.data.download import whereabouts
from circle.registry import list_datasets


def test_whereabouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIRCLE_DATA", str(tmp_path))
    monkeypatch.delenv("CIRCLE_IMAGENET", raising=False)
    assert {name for name in list_datasets() if whereabouts(name)[0]} == {"digits"}
    assert whereabouts("omniglot") == (False, "circle data fetch omniglot")
    (tmp_path / "cifar100").mkdir()
    assert not whereabouts("cifar100")[0], "an empty folder is no data set"
    (tmp_path / "cifar100" / "train.bin").touch()
    assert whereabouts("cifar100") == (True, str(tmp_path / "cifar100"))
    monkeypatch.setenv("CIRCLE_IMAGENET", str(tmp_path))
    assert any(whereabouts(name) == (True, str(tmp_path)) for name in list_datasets())
