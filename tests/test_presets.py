"""Presets by name and by file."""

from __future__ import annotations

from pathlib import Path

import pytest

from circle import BiRC2DConfig, CircleClassifier, list_presets
from circle.errors import CircleError
from circle.extractors import LocalContrastConfig


@pytest.mark.parametrize("name", list_presets())
def test_every_preset_makes_a_model(name: str) -> None:
    model = CircleClassifier.from_preset(name)
    assert isinstance(model.extractor, (BiRC2DConfig, LocalContrastConfig))
    assert model.groups >= 1


def test_the_default_is_the_preset_fast() -> None:
    model, fast = CircleClassifier(), CircleClassifier.from_preset("fast")
    assert model.part_settings() == fast.part_settings()


def test_changes_on_top() -> None:
    model = CircleClassifier.from_preset("reservoir", seed=9, extractor__width=7, head__ridge=0.5)
    assert (model.seed, model.extractor.width, model.head.ridge) == (9, 7, 0.5)  # pyright: ignore


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('groups = 3\n[extractor]\nname = "birc2d"\nwidth = 12\n')
    model = CircleClassifier.from_preset(path)
    assert (model.groups, model.extractor) == (3, BiRC2DConfig(width=12))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("groups = ", "not a valid TOML"),
        ("gruops = 3", "unknown setting 'gruops'"),
        ('[extractor]\nname = "birc3d"', "did you mean 'birc2d'"),
        ('[head]\nname = "slda"\nridge = "x"', "expected float"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(CircleError, match=words):
        CircleClassifier.from_preset(path)


def test_missing_presets() -> None:
    with pytest.raises(CircleError, match="did you mean 'small'"):
        CircleClassifier.from_preset("smal")
    with pytest.raises(CircleError, match="no such preset file"):
        CircleClassifier.from_preset("nowhere.toml")
