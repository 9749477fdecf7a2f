"""circle merge, as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import FAST, fails, make_folder

from circle import CircleClassifier
from circle.cli import run
from circle.runtime import container

# --- changing -----------------------------------------------------------------------------------------------


def test_merge(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = make_folder(tmp_path / "more", 5, seed=1, classes={"white": (240, 240, 240)})
    other, merged = tmp_path / "other", tmp_path / "merged"
    assert run(["learn", str(other), str(more), *FAST]) == 0
    assert run(["merge", str(model), str(other), "-o", str(merged)]) == 0
    assert "knows 4 classes from 41 images" in capsys.readouterr().out
    assert run(["learn", str(model), str(more)]) == 0
    assert merged.read_bytes() == model.read_bytes()
    assert "exists already" in fails(["merge", model, other, "-o", merged], capsys)
    for output in (tmp_path / "no" / "merged", data):
        line = fails(["merge", model, other, "-o", output, "--force"], capsys)
        assert f"{output}: cannot be written; expected a file in a folder that exists" in line
    assert run(["merge", str(model), str(other), "-o", str(merged), "--force"]) == 0
    assert "5 images had been learned by more than one model" in " ".join(capsys.readouterr().err.split())


def test_merging_into_one_of_the_models(model: Path, tmp_path: Path) -> None:
    more = make_folder(tmp_path / "more", 5, seed=1, classes={"white": (240, 240, 240)})
    other, merged = tmp_path / "other", tmp_path / "merged"
    assert run(["learn", str(other), str(more), *FAST]) == 0
    journal = {"identity": "x", "sequence": 7, "follows": None}
    marked = CircleClassifier.load(other)
    marked.metadata_ = {"journal": journal}
    marked.save(other)
    assert run(["merge", str(model), str(other), "-o", str(merged)]) == 0
    assert not CircleClassifier.load(merged).metadata_, "the journal lies beside the other file"
    expected = CircleClassifier.load(merged).statistics_
    with container.exclusive(other):
        assert run(["merge", str(model), str(other), "-o", str(other), "--force"]) == 1, "somebody is teaching it"
    assert run(["merge", str(model), str(other), "-o", str(other), "--force"]) == 0
    found = CircleClassifier.load(other)
    assert found.statistics_ == expected, "nothing that either had learned is lost"
    assert found.metadata_ == {"journal": journal}, "and lessons in its journal still fit"


def test_what_to_expect_of_models_that_are_not_portable(
    model: Path, unportable_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, said in ((model, False), (unportable_model, True)):
        other = tmp_path / f"other-{path.name}"
        other.write_bytes(path.read_bytes())
        capsys.readouterr()
        assert run(["merge", str(path), str(other), "-o", str(tmp_path / f"both-{path.name}")]) == 0
        assert ("exact on one kind of machine" in " ".join(capsys.readouterr().err.split())) is said


# --- errors -------------------------------------------------------------------------------------------------


def test_models_that_do_not_merge(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    assert run(["learn", str(other), str(data), *FAST, "--seed", "1"]) == 0
    line = fails(["merge", model, other, "-o", tmp_path / "out"], capsys)
    assert "different seed do not combine: 0 and 1" in line
    wider = tmp_path / "wider"
    assert run(["learn", str(wider), str(data), *FAST, "--set", "extractor.patch_sizes=2,4,8"]) == 0
    line = fails(["merge", model, wider, "-o", tmp_path / "out"], capsys)
    assert "models with different extractor.patch_sizes do not combine: " in line and line.endswith(" and 2 4 8")
    assert run(["learn", str(tmp_path / "fast"), str(data), "--image-size", "16"]) == 0
    line = fails(["merge", model, tmp_path / "fast", "-o", tmp_path / "out"], capsys)
    assert line.endswith("models with different extractor.name do not combine: birc2d and local_contrast")
    assert not (tmp_path / "out").exists()
