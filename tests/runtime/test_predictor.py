"""The light runtime: a packed model predicts with NumPy and Pillow alone, the same as with PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from circle import CircleClassifier, CircleError, Predictor
from circle.compression.variants import Variant, VariantBuilder
from circle.heads.scores import Weights
from circle.runtime import container
from circle.runtime.facts import model_facts
from circle.runtime.noise import noise_images
from circle.runtime.predictor import NumPyPredictor

# Modules that an installation for predicting alone does not have.
BLOCKED = ("torch", "sklearn", "scipy", "matplotlib")
BLOCKER = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
MODELS = {
    "fast": CircleClassifier.from_preset("fast"),
    "two groups of two": CircleClassifier.from_preset("small", groups=2, members=2, head__temperature=2.0),
    "grey": CircleClassifier.from_preset("small", channels=1, extractor__mirror=False),
    "reservoir": CircleClassifier.from_preset("reservoir", extractor__width=6),
    "plain stem, projected": CircleClassifier.from_preset(
        "paper", groups=1, members=2, extractor__width=16, extractor__projection_size=40
    ),
}


def learned(model: CircleClassifier) -> CircleClassifier:
    pixels = noise_images(24, model.channels or 3, 32, 32, seed=5)
    return model.partial_fit(torch.from_numpy(pixels), [f"class {i % 3}" for i in range(24)])


@pytest.fixture(params=MODELS)
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "packed.circle"
    learned(MODELS[request.param]).save(path, for_prediction=True)
    return path


def test_says_what_pytorch_says(packed: Path) -> None:
    heavy, light = Predictor.load(packed), NumPyPredictor.load(packed)
    pixels = noise_images(20, heavy.image_.channels, 32, 32, seed=6)
    for mine, theirs in zip(light.features(pixels), heavy.features(torch.from_numpy(pixels)), strict=True):
        assert mine.dtype == theirs.numpy().dtype
        assert np.array_equal(mine, theirs.numpy())
    images = list(
        pixels.transpose(0, 2, 3, 1).squeeze(3) if heavy.image_.channels == 1 else pixels.transpose(0, 2, 3, 1)
    )
    probabilities = light.predict_proba(images)
    np.testing.assert_allclose(probabilities, heavy.predict_proba(torch.from_numpy(pixels)), atol=1e-12)
    assert light.predict(images).tolist() == heavy.predict(torch.from_numpy(pixels)).tolist()
    assert light.classes_.tolist() == heavy.classes_.tolist()
    assert light.predict_proba([]).shape == (0, 3)


def require_the_same_predictions(path: Path) -> None:
    heavy, light = Predictor.load(path), NumPyPredictor.load(path)
    pixels = noise_images(8, 3, 32, 32, seed=7)
    images = list(pixels.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(light.predict_proba(images), heavy.predict_proba(torch.from_numpy(pixels)), atol=1e-12)


@pytest.mark.parametrize("weights", ["int8", "float16"])
def test_compressed_models(tmp_path: Path, weights: Weights) -> None:
    model = learned(CircleClassifier.from_preset("small", groups=2, head="slda"))
    builder = VariantBuilder(model)
    some = tuple(part for part in builder.whole.parts if part.part % 3)
    builder.build(Variant(some, weights)).save(tmp_path / "tiny.circle")
    require_the_same_predictions(tmp_path / "tiny.circle")


@pytest.mark.parametrize(("weights", "rank"), [("int8", None), ("float16", 7), ("float32", 7)])
def test_compressed_models_with_a_subspace(tmp_path: Path, weights: Weights, rank: int | None) -> None:
    """One of two groups left, fewer bits and fewer directions."""
    builder = VariantBuilder(learned(CircleClassifier.from_preset("small", groups=2)))
    one = tuple(part for part in builder.whole.parts if part.group == 1)
    builder.build(Variant(one, weights, rank)).save(tmp_path / "tiny.circle")
    arrays, header = container.read(tmp_path / "tiny.circle")
    assert header["scores"] == "packed_subspace"
    assert arrays["group0.weight"].dtype == weights
    assert arrays["group0.codes"].shape[1] == (rank or 96)
    require_the_same_predictions(tmp_path / "tiny.circle")
    words = model_facts(tmp_path / "tiny.circle")["compressed"]
    assert words["weights"] == f"{weights}, rank {rank or 96}"


def test_paths_and_pictures(tmp_path: Path) -> None:
    learned(MODELS["fast"]).save(tmp_path / "m.circle", for_prediction=True)
    heavy, light = Predictor.load(tmp_path / "m.circle"), NumPyPredictor.load(tmp_path / "m.circle")
    picture = Image.fromarray(noise_images(1, 3, 50, 70)[0].transpose(1, 2, 0))
    picture.save(tmp_path / "a.png")
    for given in (tmp_path / "a.png", [str(tmp_path / "a.png")], picture, [picture, picture]):
        np.testing.assert_allclose(light.predict_proba(given), heavy.predict_proba(given), atol=1e-12)
    with pytest.raises(CircleError, match="missing.png"):
        light.predict(tmp_path / "missing.png")


def test_models_that_are_not_for_it(tmp_path: Path) -> None:
    learned(MODELS["fast"]).save(tmp_path / "learning.circle")
    network = CircleClassifier("vgg13", image_size=32, channels=3).set_params(extractor__base_channels=4)
    learned(network).save(tmp_path / "vgg.circle", for_prediction=True)
    for name in ("learning.circle", "vgg.circle"):
        with pytest.raises(CircleError, match="not for the light runtime; expected a model that `circle pack` made"):
            NumPyPredictor.load(tmp_path / name)


def light_circle(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line on a machine without PyTorch."""
    program = f"{BLOCKER}\nfrom circle.cli import main\nmain({list(arguments)!r})"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ)


def test_the_command_line_without_pytorch(tmp_path: Path) -> None:
    model = learned(MODELS["fast"])
    model.save(tmp_path / "m.circle", for_prediction=True)
    model.save(tmp_path / "learning.circle")
    picture = tmp_path / "a.png"
    Image.fromarray(noise_images(1, 3, 50, 70)[0].transpose(1, 2, 0)).save(picture)
    done = light_circle("predict", str(tmp_path / "m.circle"), str(picture), "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["predictions"][0]["label"] == model.predict(picture)[0]
    for name in ("m.circle", "learning.circle"):
        done = light_circle("info", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        assert "the same bits on every machine" in done.stdout
    for arguments in (
        ["learn", str(tmp_path / "new.circle"), str(tmp_path)],
        ["predict", str(tmp_path / "learning.circle"), str(picture)],
    ):
        done = light_circle(*arguments)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.endswith("is not installed: all but predicting needs it; pip install 'circle-cil[learn]'")
    program = (
        f"{BLOCKER}\ntry:\n    from circle import CircleClassifier\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "circle-cil[learn]" in done.stdout
