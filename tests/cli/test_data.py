"""circle data: list, fetch and info as a user calls them."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from calling import fails
from PIL import Image

from circle.cli import run
from circle.data.download import DOWNLOADS, Download


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CIRCLE_DATA", str(tmp_path / "cache"))
    monkeypatch.delenv("CIRCLE_IMAGENET", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "cache"


@pytest.fixture
def fashion(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fashion-MNIST in small, as archives that somebody has put into the cache folder."""
    cache.mkdir()
    files = {}
    for url, count in zip(list(DOWNLOADS["fashion_mnist"].files), (20, 20, 10, 10), strict=True):
        name = url.rpartition("/")[2]
        shape = (count, 28, 28) if "images" in name else (count,)
        values = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape) % 10
        content = gzip.compress(struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + values.tobytes())
        (cache / name).write_bytes(content)
        files[url] = f"md5:{hashlib.md5(content).hexdigest()}"
    monkeypatch.setitem(DOWNLOADS, "fashion_mnist", Download(files))
    return cache


def test_list(fashion: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "list", "--json"]) == 0
    facts = {fact["name"]: fact for fact in json.loads(capsys.readouterr().out)}
    assert len(facts) == 8
    assert facts["digits"]["present"]
    assert not facts["fashion_mnist"]["present"]
    assert run(["data", "fetch", "fashion_mnist"]) == 0
    assert capsys.readouterr().out == f"fashion_mnist: in {fashion / 'fashion_mnist'}\n"
    assert run(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [line] = [line for line in lines if line.strip().startswith("fashion_mnist")]
    assert " here " in line
    assert str(fashion) in line
    [line] = [line for line in lines if line.strip().startswith("cifar100")]
    assert " here " not in line
    assert "circle data fetch cifar100" in line


def test_list_of_data_put_there_by_hand(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (cache / "cifar-100-binary").mkdir(parents=True)
    (cache / "cifar-100-binary" / "train.bin").write_bytes(b"")
    monkeypatch.setenv("CIRCLE_IMAGENET", str(tmp_path))
    assert run(["data", "list", "--json"]) == 0
    here = {fact["name"] for fact in json.loads(capsys.readouterr().out) if fact["present"]}
    assert here == {"digits", "cifar100", "imagenet1k", "imagenet_subset"}
    assert run(["data", "fetch", "cifar100"]) == 0
    assert "put there by hand; not checked" in capsys.readouterr().out


def test_info(fashion: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "info", "fashion_mnist", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["train"] == {"images": 20, "fewest": 2, "most": 2}
    assert facts["test"]["images"] == 10
    assert facts["image"] == [28, 28, 1]
    assert facts["classes"][0] == "T-shirt/top"
    assert facts["path"] == str(fashion / "fashion_mnist")
    assert run(["data", "info", "fashion_mnist"]) == 0
    text = capsys.readouterr().out
    for part in ("20 images, 2 per class", "28 x 28, grey", "and 2 more", "instead of 60,000", str(fashion)):
        assert part in text


def test_info_of_ones_own_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, count in (("ant", 5), ("bee", 10)):
        (tmp_path / "mine" / name).mkdir(parents=True)
        for index in range(count):
            Image.new("RGB", (8, 8)).save(tmp_path / "mine" / name / f"{index}.png")
    assert run(["data", "info", "folder", "--data", str(tmp_path / "mine")]) == 0
    text = capsys.readouterr().out
    for part in ("2: ant, bee", "12 images, 4 to 8 per class", "3 images, 1 to 2 per class", "RGB", "held back"):
        assert part in text


def test_info_of_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "info", "digits"]) == 0
    assert "come with scikit-learn" in capsys.readouterr().out


def test_errors_are_one_line(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = fails(["data", "info", "cifar100"], capsys)
    assert "run `circle data fetch cifar100`, or download https://www.cs.toronto.edu/" in absent
    assert absent.endswith(f"and put it into {cache}")
    assert "unknown dataset 'cifar10': did you mean 'cifar100'?" in fails(["data", "fetch", "cifar10"], capsys)
    assert "digits: nothing to fetch: comes with scikit-learn" in fails(["data", "fetch", "digits"], capsys)
    assert "CIRCLE_IMAGENET" in fails(["data", "fetch", "imagenet1k"], capsys)
    assert "unknown digits setting 'classes'" in fails(["data", "info", "digits", "--classes", "x"], capsys)
    assert "nowhere" in fails(["data", "info", "folder", "--data", str(tmp_path / "nowhere")], capsys)
    assert "bogus" in fails(["data", "bogus"], capsys, code=2)
    assert "NAME" in fails(["data", "info"], capsys, code=2)


def test_loaded_when_needed_and_pooch_only_to_fetch() -> None:
    program = (
        "import sys; from circle.cli import run; run(['--help'])\n"
        "loaded = 'circle.cli.data' in sys.modules; run(['data', 'list'])\n"
        "sys.exit(loaded or 'pooch' in sys.modules or 'requests' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert process.returncode == 0
    assert "List, fetch and describe data sets." in process.stdout


@pytest.mark.real_data
def test_info_of_real_images(real_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "info", "tinyimagenet", "--data", str(real_data / "tinyimagenet-sample")]) == 0
    text = capsys.readouterr().out
    for part in ("200: n01443537", "10,000 images, 50 per class", "64 x 64, RGB", "instead of 100,000"):
        assert part in text
