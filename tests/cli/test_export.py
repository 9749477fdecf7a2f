"""circle export as a user calls it, and the example that runs what it wrote."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from browser import drop, image_file, needs_chromium, opened_page
from PIL import Image

from circle import CircleClassifier
from circle.cli import run
from circle.cli.export import agreed
from circle.data.decode import to_pixels
from circle.export import Agreement, Export, checking, onnx_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "run_onnx.py"


@pytest.fixture
def model(tiny: Any, stream: tuple[np.ndarray, np.ndarray], soften: Any, tmp_path: Path) -> Path:
    images, labels = stream
    names = np.array(["sea", "tree", "sun", "<b>brick</b>"])[labels]
    learned = soften(tiny(groups=1, members=1, image_size=16).partial_fit(images[:80], names[:80]), images[80:])
    learned.save(tmp_path / "model.circle")
    return tmp_path / "model.circle"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    once = checking.fastest_seconds
    monkeypatch.setattr(checking, "fastest_seconds", lambda work: once(work, budget=0.0))


@pytest.fixture
def photos(stream: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(4):
        Image.fromarray(stream[0][80 + index]).save(folder / f"{index}.png")
    return folder


@pytest.fixture
def exported(model: Path) -> Path:
    output = model.with_suffix(".onnx")
    assert run(["export", str(model), str(output)]) == 0
    return output


def test_both_kinds_of_model(model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pack", str(model), str(tmp_path / "phone.circle")]) == 0
    capsys.readouterr()
    assert run(["export", str(model), str(tmp_path / "a.onnx"), "--check", str(photos)]) == 0
    text = capsys.readouterr().out
    assert "images uint8 [batch, 16, 16, 3] -> probabilities float32 [batch, 4], best int64 [batch]" in text
    assert f"compared on 4 images of {photos}: the same features and the same best class on all, " in text
    assert "one image at a time" in text
    assert "32 at a time" in text
    assert run(["export", str(tmp_path / "phone.circle"), str(tmp_path / "b.onnx"), "--layout", "NCHW"]) == 0
    text = capsys.readouterr().out
    assert "images uint8 [batch, 3, 16, 16]" in text
    assert "compared on 128 synthetic images (give your own with --check): " in text


def test_errors(model: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, learned = exported.read_bytes(), model.read_bytes()
    for arguments, expected in [
        ([model, exported], "exists already"),
        ([tmp_path / "none.circle", tmp_path / "new.onnx"], "no such model file"),
        ([model, tmp_path / "new.onnx", "--check", tmp_path / "none"], "expected a folder, a zip archive or a file"),
        ([model, tmp_path / "nowhere" / "new.onnx"], "cannot be written; expected a file in a folder that exists"),
        ([model, tmp_path, "--force"], "cannot be written; expected a file in a folder that exists"),
        ([model, tmp_path], "cannot be written; expected a file in a folder that exists"),
        ([model, model, "--force"], "model.circle: is the model itself, which would be lost"),
    ]:
        capsys.readouterr()
        assert run(["export", *map(str, arguments)]) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert expected in line
    assert exported.read_bytes() == before
    assert model.read_bytes() == learned
    assert not (tmp_path / "new.onnx").exists()


def test_the_agreement_in_words() -> None:
    good = Export(1, Agreement([1e-7, 2e-7]), [], [])
    assert agreed(good) == "the same best class on all, probabilities to 2e-07"
    exact = Export(1, Agreement([1e-7, 2e-7], same_features=True), [], [])
    assert agreed(exact) == "the same features and the same best class on all, probabilities to 2e-07"
    rounded = Export(1, Agreement([1e-7, 3e-4], other_best=1, rounded_otherwise=1), [], [])
    assert agreed(rounded).startswith(
        "another best class on 1, probabilities to 0.0001 on 1 and to 0.0003 on the others,"
    )


# -- the example -------------------------------------------------------------------------------------------------


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_onnx", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def page(example: ModuleType, exported: Path) -> Iterator[str]:
    """The address of the example's page."""
    server = example.make_server(example.Classifier(str(exported)), 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@needs_chromium
def test_the_example_page_in_a_browser(page: str, model: Path, photos: Path) -> None:
    """An image by the picker, another by a drop, and a file that is no image."""
    from playwright.sync_api import expect

    paths = sorted(photos.iterdir())[:2]
    pictures = [Image.open(path) for path in paths]
    expected = CircleClassifier.load(model).predict(pictures).tolist()
    with opened_page(allowed="status of 400") as browser:
        browser.goto(page)
        best = browser.locator("#classes li").first.locator("span")
        browser.locator("#file").set_input_files(paths[0])
        expect(best).to_have_text(expected[0])
        expect(browser.locator("#classes li")).to_have_count(4)
        drop(browser, browser.locator("#place"), [image_file("other.png", pictures[1], "PNG")])
        expect(best).to_have_text(expected[1])
        junk = {"name": "junk.png", "mimeType": "image/png", "buffer": b"no image at all"}
        with browser.expect_response("**/classify") as answer:
            browser.locator("#file").set_input_files(junk)
        assert answer.value.status == 400
        expect(browser.locator("#message")).to_contain_text("not a readable image")
        expect(browser.locator("#classes li")).to_have_count(0)


def test_the_example_needs_nothing_of_circle(model: Path, exported: Path, photos: Path) -> None:
    names = [str(path) for path in sorted(photos.iterdir())]
    hidden = "import sys, runpy; sys.modules['torch'] = sys.modules['circle'] = None; "
    code = f"{hidden} runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, str(exported), *names, "--top", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = CircleClassifier.load(model).predict([Image.open(name) for name in names])
    found = [line.removeprefix(f"{name}: ") for name, line in zip(names, result.stdout.splitlines(), strict=True)]
    assert [text.split()[0] for text in found] == expected.tolist()
    assert all(text.endswith(" %") for text in found)


def test_the_example_fails_in_one_line(
    example: ModuleType, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    junk = tmp_path / "junk.png"
    junk.write_bytes(b"no image")
    for arguments, expected in (
        ([tmp_path / "none.onnx", junk], "none.onnx: not a model that `circle export` wrote ("),
        ([junk, junk], "junk.png: not a model that `circle export` wrote ("),
        ([exported, junk], "junk.png: not a readable image ("),
        ([exported, tmp_path / "none.png"], "none.png: not a readable image ("),
    ):
        monkeypatch.setattr(sys, "argv", ["run_onnx.py", *map(str, arguments)])
        capfd.readouterr()
        assert example.main() == 1
        (line,) = capfd.readouterr().err.strip().splitlines()
        assert expected in line


@pytest.mark.parametrize("aspect", ["crop", "pad", "stretch"])
def test_the_example_sees_what_the_model_sees(
    aspect: str, example: ModuleType, tiny: Any, stream: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    images, labels = stream
    model = tiny(groups=1, members=1, image_size=16, aspect=aspect, background=100).partial_fit(images, labels)
    (tmp_path / "model.onnx").write_bytes(onnx_model(model).SerializeToString())
    classifier = example.Classifier(str(tmp_path / "model.onnx"))
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 61, 4), np.uint8), "RGBA")
    seen = classifier.pixels(picture).astype(int)
    true = to_pixels(picture, model.image_, "picture").transpose(1, 2, 0).astype(int)
    assert seen.shape == true.shape
    assert np.abs(seen - true).mean() < 2.0, "of 255; borders of the crop may lie half a pixel apart"


def test_the_page(page: str, model: Path, photos: Path) -> None:
    html = urllib.request.urlopen(page).read().decode()
    assert "Drop an image here" in html
    assert "//" not in html, "no address: no request leaves this machine"
    name = photos / "0.png"
    answer = json.load(urllib.request.urlopen(f"{page}/classify", data=name.read_bytes()))
    loaded = CircleClassifier.load(model)
    probabilities = loaded.predict_proba([Image.open(name)])[0]
    best = answer["predictions"][0]
    assert best["label"] == loaded.classes_[probabilities.argmax()]
    assert best["probability"] == pytest.approx(probabilities.max(), abs=1e-6)
    assert sum(each["probability"] for each in answer["predictions"]) == pytest.approx(1.0)


def test_the_page_refuses(page: str) -> None:
    for where, content in (("classify", b"no image"), ("classify", b""), ("elsewhere", b"x")):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"{page}/{where}", data=content)
        assert error.value.code == 400
        assert "image" in json.load(error.value)["error"]
