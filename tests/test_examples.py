"""The examples run, in an empty folder, and show what they say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

EXAMPLES = Path(__file__).parents[1] / "examples"
# nearest_mean.py is a plug-in: tests/test_plugins.py runs it.
ELSEWHERE = {"nearest_mean.py", "run_onnx.py"}


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs an example as a script and returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> str:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def percentages(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+)%", text)]


def test_sklearn_pipeline(shown) -> None:
    *tried, final = percentages(shown("sklearn_pipeline.py"))
    assert len(tried) == 4
    assert max(tried[2:]) > max(tried[:2]), "digits differ from their mirror images"
    assert final > 95


def test_photo_folder(shown) -> None:
    text = shown("photo_folder.py")
    assert "learned 80 photos of disc, square; skipped 1 unreadable" in text
    assert "learned disc, square, triangle; 80 photos came again" in text
    assert percentages(text)[0] > 90
    assert float(re.findall(r"triangle ([\d.]+)$", text, re.MULTILINE)[0]) > 0.5


def test_two_sites(shown) -> None:
    text = shown("two_sites.py")
    assert text.count(": True") == 2 and "False" not in text
    first, second, both = percentages(text)
    assert max(first, second) < 70 and both > 95


def test_stream(shown) -> None:
    rows = [line.split() for line in shown("stream.py").splitlines()[1:]]
    assert [int(row[0]) for row in rows] == [100, 200, 300, 400, 500, 600]
    assert [int(row[1]) for row in rows] == [2, 3, 3, 4, 4, 4]
    assert float(rows[-1][2].rstrip("%")) > 85
    sizes = [float(row[3]) for row in rows]
    assert max(sizes) < 1.2 * min(sizes), "the sums of two more classes, not the images"


def test_forget_on_request(shown) -> None:
    text = shown("forget_on_request.py")
    assert text.count(": True") == 3 and "False" not in text
    assert "other images are refused: class 3: these are not the samples that were learned" in text
    others = int(np.sum(load_digits().target[:700] != 3))
    assert f"after:  {others} images, classes 0 1 2 4 5 6 7 8 9" in text
    assert percentages(text)[0] > 90


def test_cifar100_to_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fine_label_names.txt").write_text("apple\nbear\n")
    records = np.arange(3 * 3074, dtype=np.uint32).astype(np.uint8).reshape(3, 3074)
    records[:, 1] = [1, 0, 1]
    for part in ("train", "test"):
        records.tofile(tmp_path / f"{part}.bin")
    monkeypatch.setattr("sys.argv", ["cifar100_to_npz.py", str(tmp_path), str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "cifar100_to_npz.py"), run_name="__main__")
    with np.load(tmp_path / "cifar100-test.npz") as written:
        assert written["y"].tolist() == ["bear", "apple", "bear"]
        assert written["x"].shape == (3, 32, 32, 3)
        assert written["x"][2, 5, 7, 1] == records[2, 2 + 1024 + 5 * 32 + 7]


def test_every_example_is_run() -> None:
    tested = {name.removeprefix("test_") + ".py" for name in globals() if name.startswith("test_")}
    assert {path.name for path in EXAMPLES.glob("*.py")} <= tested | ELSEWHERE
