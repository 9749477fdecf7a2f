"""Presets under a plain name take the form for 32, 64 or 224 pixels that suits the images."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone

from circle import CircleClassifier, load
from circle.benchmark import Progress, run
from circle.cli import run as command
from circle.data.images import ArrayImages, ImageConfig
from circle.data.user_images import open_images
from circle.errors import CircleError
from circle.extractors import LocalContrastConfig
from circle.presets import list_presets, read_preset
from circle.presets.forms import FAMILIES, FORM_SETTINGS

SMALL = LocalContrastConfig(filters=(28,), kernels=(3,), reductions=(1,), colours=4)


def pictures(folder: Path, *sizes: tuple[int, int], classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    """Two pictures of each size (width, height) in the folder of each class."""
    random = np.random.default_rng(0)
    for label in classes:
        (folder / label).mkdir(parents=True)
        for number, (width, height) in enumerate(sizes * 2):
            pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_forms_differ_in_the_filters_alone(family: str) -> None:
    plain = read_preset(family)
    assert plain["image_size"] == "auto"
    assert read_preset(f"{family}-32") == {**plain, "image_size": 32}
    for side in (64, 224):
        form = read_preset(f"{family}-{side}")
        assert form["image_size"] == side
        assert {**form["extractor"], **{name: plain["extractor"][name] for name in FORM_SETTINGS}} == plain["extractor"]
        for name in ("groups", "members", "channels", "head"):
            assert form[name] == plain[name]


def test_only_presets_with_forms_have_the_short_form_under_a_name_of_its_own() -> None:
    assert "best-32" not in list_presets(), "another name of a preset, not another preset"
    for name in ("reservoir-32", "best-64-32", "bets-32"):
        with pytest.raises(CircleError, match="unknown preset"):
            read_preset(name)


@pytest.mark.parametrize(
    ("shape", "form"),
    [((8, 8), "small-32"), ((48, 300), "small-32"), ((49, 60), "small-64"), ((129, 200), "small-224")],
)
def test_the_first_arrays_decide(shape: tuple[int, int], form: str) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, *shape, 3), dtype=np.uint8)
    model = CircleClassifier.from_preset("small").partial_fit(images, [0, 1, 0, 1])
    named = CircleClassifier.from_preset(form).partial_fit(images, [0, 1, 0, 1])
    assert model.settings() == named.settings()
    assert model.statistics_ == named.statistics_
    assert model.image_size == "auto", "parameters stay as they were given"


def test_fit_and_clone_decide_anew() -> None:
    large, few = np.zeros((2, 200, 200, 3), np.uint8), np.zeros((2, 32, 32, 3), np.uint8)
    model = CircleClassifier.from_preset("small").fit(large, [0, 1])
    assert model.image_.height == 224
    assert clone(model).fit(few, [0, 1]).image_.height == 32
    assert model.fit(few, [0, 1]).image_.height == 32
    assert model.part_settings() == CircleClassifier.from_preset("small-32").part_settings()


def test_files_and_pil_images_decide_by_a_sample_of_their_sizes(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos", (30, 40), (90, 80), (400, 100))
    paths = sorted(folder.rglob("*.png"))
    labels = [path.parent.name for path in paths]
    of_paths = CircleClassifier.from_preset("small").fit(paths, labels)
    opened = CircleClassifier.from_preset("small").fit([Image.open(path) for path in paths], labels)
    arrays = CircleClassifier.from_preset("small").fit([np.asarray(Image.open(path)) for path in paths], labels)
    assert of_paths.image_.height == 64
    assert of_paths.statistics_ == opened.statistics_ == arrays.statistics_


def test_a_saved_model_keeps_its_form_and_other_changes(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 70, 70, 3), dtype=np.uint8)
    model = CircleClassifier.from_preset("small", extractor__mirror=False, head__ridge=2.0).fit(images, [0, 1] * 3)
    assert model.part_settings()["extractor"]["mirror"] is False
    model.save(tmp_path / "m.circle")
    again = CircleClassifier.load(tmp_path / "m.circle")
    assert again.settings() == model.settings() and again.image_size == (64, 64)
    assert again.statistics_ == model.statistics_
    assert np.array_equal(again.predict_proba(images), model.predict_proba(images))
    assert (again + model).samples_ == 12
    assert again.partial_fit(np.zeros((1, 9, 9, 3), np.uint8), [0]).image_.height == 64


def test_an_image_size_or_filters_of_ones_own_decide() -> None:
    large = np.zeros((2, 200, 200, 3), np.uint8)
    own = CircleClassifier.from_preset("small", image_size=100).fit(large, [0, 1])
    assert (own.image_.height, own.part_settings()["extractor"]["reductions"]) == (100, [1])
    for changes in ({"extractor__filters": (9,)}, {"extractor": LocalContrastConfig(filters=(9,))}):
        assert CircleClassifier.from_preset("small", **changes).fit(large, [0, 1]).image_.height == 32


def test_wrong_uses_are_refused() -> None:
    large = np.zeros((2, 200, 200, 3), np.uint8)
    model = CircleClassifier(SMALL.replace(filters=(9,)), image_size="auto")
    with pytest.raises(CircleError, match="of none; expected an image_size, such as 32"):
        model.fit(large, [0, 1])
    assert not hasattr(model, "image_"), "a refused batch changes nothing"
    assert model.fit(large[:, :40, :40], [0, 1]).image_.height == 32
    with pytest.raises(CircleError, match="image_size = 'large': expected pixels"):
        CircleClassifier(image_size="large").fit(large, [0, 1])  # pyright: ignore[reportArgumentType]


def test_typical_sizes_of_all_kinds_of_images(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos", (30, 40), (90, 80), (400, 100))
    assert open_images(folder).typical_size() == (80, 90)
    (folder / "cat" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    assert open_images(folder).typical_size() == (80, 90), "the next step says what is wrong with it"
    np.savez(tmp_path / "some.npz", x=np.zeros((3, 50, 60), np.uint8), y=[0, 1, 1])
    assert open_images(tmp_path / "some.npz").typical_size() == (50, 60)
    shape = ImageConfig(height=4, width=4)
    assert ArrayImages(np.zeros((2, 9, 7, 3), np.uint8), [0, 1], shape).typical_size() == (9, 7)
    assert ArrayImages(np.zeros((0, 9, 7, 3), np.uint8), [], shape).typical_size() is None


def learned(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    assert command(["learn", *map(str, words)]) == 0
    return capsys.readouterr().err


def test_learn_takes_the_form_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pictures(tmp_path / "photos", (60, 50))
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in sorted(folder.rglob("*.png")):
            archive.write(path, path.relative_to(folder))
    files = sorted(folder.rglob("*.png"))
    x = np.stack([np.asarray(Image.open(path)) for path in files])
    np.savez(tmp_path / "photos.npz", x=x, y=[path.parent.name for path in files])
    named = tmp_path / "named.circle"
    assert learned(capsys, named, folder, "--preset", "small-64") == "", "whoever names a form needs no remark"
    for data in ("photos", "photos.zip", "photos.npz"):
        said = learned(capsys, tmp_path / f"{data}.circle", tmp_path / data, "--preset", "small")
        assert said == "note images of about 60 x 50: preset small-64; --image-size 32 takes the small form\n"
        assert load(tmp_path / f"{data}.circle").statistics_ == load(named).statistics_
    plain, other = tmp_path / "plain.circle", tmp_path / "other.circle"
    assert learned(capsys, plain, folder, "--preset", "small", "--image-size", 32) == ""
    assert learned(capsys, other, folder, "--preset", "small-32") == ""
    assert load(plain).statistics_ == load(other).statistics_
    said = learned(capsys, tmp_path / "own.circle", folder, "--preset", "small", "--set", "extractor.filters=9")
    assert "note images of about 60 x 50: brought to 32 x 32, because the extractor's settings are your own" in said


def test_a_model_is_continued_by_the_command_that_made_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large, small = pictures(tmp_path / "large", (60, 50)), pictures(tmp_path / "small", (20, 20))
    model = tmp_path / "m.circle"
    assert "preset small-64" in learned(capsys, model, large, "--preset", "small")
    for preset in ("small", "small-64"):
        for data in (large, small):  # whatever the images, the model keeps its form
            assert learned(capsys, model, data, "--preset", preset) == ""
    assert command(["learn", str(model), str(large), "--preset", "small-32"]) == 1
    assert "was made with preset small-64; --preset small-32 cannot be changed later" in capsys.readouterr().err
    assert command(["learn", str(model), str(large), "--preset", "fast"]) == 1
    assert command(["learn", str(model), str(large), "--preset", "small", "--image-size", "32"]) == 1
    assert capsys.readouterr().err.count("was made with preset small-64") == 2
    plain = tmp_path / "plain.circle"
    learned(capsys, plain, large, "--preset", "small", "--image-size", 60)
    assert learned(capsys, plain, large, "--preset", "small") == "", "nobody has to repeat the size"


def test_several_processes_take_the_form_of_one(tmp_path: Path, launcher_of_jobs: Any) -> None:
    data = pictures(tmp_path / "photos", (60, 50))
    words = ["--preset", "small", "--extractor.colours", "1"]
    alone = launcher_of_jobs.alone(["learn", tmp_path / "one", data, *words])
    ended = launcher_of_jobs.run(2, ["learn", tmp_path / "two", data, *words])
    assert [alone.code, *(each.code for each in ended)] == [0, 0, 0]
    assert (
        ended[0].err
        == alone.err
        == ("note images of about 60 x 50: preset small-64; --image-size 32 takes the small form\n")
    )
    assert ended[1].err == ""
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


class Notes(Progress):
    """Remembers remarks."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_the_benchmark_takes_the_form_of_the_pictures(tmp_path: Path) -> None:
    data = pictures(tmp_path / "photos", (60, 50), (60, 50))
    notes = Notes()
    (auto,) = run(data=data, tasks=2, preset="small", output=tmp_path / "auto", cache=False, progress=notes)
    (named,) = run(data=data, tasks=2, preset="small-64", output=tmp_path / "named", cache=False)
    assert auto.info["label"] == named.info["label"] == "CIRCLE small-64"
    assert auto.info["config"] == named.info["config"]
    assert auto.info["config"]["image"]["height"] == 64
    assert notes.said[-1] == "images of about 64 x 64: preset small-64; --image-size 32 takes the small form"
    (plain,) = run(data=data, tasks=2, preset="small", image_size=32, output=tmp_path / "plain", cache=False)
    assert (plain.info["label"], plain.info["config"]["image"]["height"]) == ("CIRCLE small", 32)


def test_data_sets_of_small_images_keep_the_plain_form(tmp_path: Path) -> None:
    notes = Notes()
    (digits,) = run("digits", tasks=2, preset="small", output=tmp_path, cache=False, progress=notes)
    assert (digits.info["label"], notes.said) == ("CIRCLE small", [])
    assert digits.info["config"]["extractor"]["reductions"] == [1]
