"""Priors as learned, uniform and as given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from circle import CircleClassifier, load
from circle.cli import run
from circle.config import Config
from circle.errors import CircleError
from circle.heads import DiagonalLDAConfig, QDAConfig, SLDAConfig, SubspaceQDAConfig, build_head
from circle.heads.priors import PriorConfig, read_weights, weights_text
from circle.registry import resolve
from circle.statistics import Statistics

HEADS = [SLDAConfig(), DiagonalLDAConfig(), QDAConfig(), SubspaceQDAConfig(dimension=32)]
LABELS = ["cat"] * 30 + ["dog"] * 10 + [7] * 20


def learned(config: PriorConfig) -> Statistics:
    generator = torch.Generator().manual_seed(0)
    statistics = Statistics(4, parts=config.parts)
    features = torch.randint(-50, 51, (len(LABELS), 4), generator=generator)
    statistics.update(features.to(torch.int8), [str(label) for label in LABELS])
    return statistics


@pytest.mark.parametrize("config", HEADS, ids=lambda config: config.name)
def test_a_prior_moves_scores_by_its_logarithm(config: Any) -> None:
    """Of calibrated heads all scores are divided by one number, the logarithms of the prior with them."""
    if isinstance(config, SLDAConfig):
        config = config.replace(calibrated=False)
    statistics = learned(config)
    classes = statistics.classes
    queries = torch.randint(-50, 51, (9, 4), generator=torch.Generator().manual_seed(1)).to(torch.int8)

    def scores(prior: Any) -> torch.Tensor:
        return build_head(config.replace(prior=prior)).materialise(statistics)(queries).to(torch.float64)

    counts = torch.tensor([{"cat": 30.0, "dog": 10.0, "7": 20.0}[label] for label in classes], dtype=torch.float64)
    assert torch.equal(build_head(config).materialise(statistics)(queries).to(torch.float64), scores("counts"))
    given = torch.tensor([{"cat": 0.5, "dog": 3.0}.get(label, 1.0) for label in classes], dtype=torch.float64)
    for prior, weights in (("uniform", torch.ones(3)), ({"cat": 0.5, "dog": 3}, given), ("dog=30,cat=5,7=10", given)):
        expected = (weights / weights.sum()).log() - (counts / counts.sum()).log()
        # Scores are float32 of size 10 or so; a bound of a hundred of their units.
        assert torch.allclose(scores(prior) - scores("counts"), expected.expand(9, 3), atol=1e-3, rtol=0)


def test_weights_are_one_text_in_any_order() -> None:
    config = SLDAConfig(prior={"dog": 1, 7: 0.25})  # pyright: ignore[reportArgumentType]
    assert config.prior == "7=0.25,dog=1"
    assert config == SLDAConfig(prior="dog=1.0, 7=0.25") == SLDAConfig.from_dict(config.to_dict())
    assert len({config, SLDAConfig(prior="7=0.25,dog=1")}) == 1
    assert SLDAConfig.from_dict({"ridge": 1.5}).prior == "counts", "files from before"
    (log_cat,) = SLDAConfig(prior="cat=9").log_priors(one_class()).tolist()
    assert log_cat == 0.0


def one_class() -> Statistics:
    statistics = Statistics(2)
    statistics.update(torch.ones(1, 2, dtype=torch.int8), ["cat"])
    return statistics


@given(
    st.dictionaries(st.text(min_size=1).filter(lambda text: text == text.strip()), st.floats(1e-300, 1e300), min_size=1)
)
def test_any_label_and_weight_come_back(weights: dict[str, float]) -> None:
    text = weights_text(weights, "prior")
    assert read_weights(text, "prior") == weights
    assert SLDAConfig(prior=text).prior in (text, "counts", "uniform")


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        ("count", "slda.prior = 'count': expected counts, uniform, or weights such as cat=2,dog=0.5"),
        ("", "expected counts, uniform"),
        ("cat=", "expected counts, uniform"),
        ("cat=two", "expected counts, uniform"),
        ("cat=1,,dog=2", "expected counts, uniform"),
        ("cat=1,cat=2", "class 'cat' twice"),
        ("cat=0", "weight 0 of class 'cat'; expected a positive number"),
        ("cat=nan", "weight nan of class 'cat'"),
        ("cat=inf", "weight inf of class 'cat'"),
        ({}, "no weights"),
        ({"cat": "2"}, "weight '2' of class 'cat'"),
        ({"7": 1, 7: 2}, "class '7' twice"),
        (3, "slda.prior = 3: expected str"),
    ],
)
def test_wrong_priors(prior: Any, words: str) -> None:
    with pytest.raises(CircleError, match=words):
        SLDAConfig(prior=prior)


def test_heads_without_a_prior_refuse_one() -> None:
    for name in ("ncm", "ridge", "mahalanobis"):
        with pytest.raises(CircleError, match="unknown .* setting 'prior'"):
            resolve("head", name).replace(prior="uniform")


def test_presets_files_python_and_flags_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    labels = np.array(["cat"] * 8 + ["dog"] * 4)
    np.savez(tmp_path / "pets.npz", x=images, y=labels)
    preset = tmp_path / "mine.toml"
    preset.write_text(
        'image_size = 8\n[extractor]\nname = "local_contrast"\nfilters = [4]\n'
        '[head]\nname = "slda"\nprior = {dog = 2, cat = 1}\n'
    )
    base = ["learn", str(tmp_path / "a.circle"), str(tmp_path / "pets.npz"), "--preset", str(preset)]
    assert run(base) == 0
    model = load(tmp_path / "a.circle")
    assert isinstance(model, CircleClassifier)
    config = model.head_config()
    assert isinstance(config, PriorConfig) and config.prior == "cat=1,dog=2"
    assert run([*base, "--head.prior", "dog=2,cat=1"]) == 0, "the order makes no difference"
    assert run([*base, "--head.prior", "uniform"]) == 1
    assert "exists with head.prior = cat=1,dog=2, not uniform" in capsys.readouterr().err
    flags = ["--image-size", "8", "--set", "extractor.filters=4", "--head.name", "slda"]
    for number, prior in enumerate((["--head.prior", "cat=1,dog=2"], ["--set", "head.prior=dog=2,cat=1"])):
        other = tmp_path / f"{number}.circle"
        assert run(["learn", str(other), str(tmp_path / "pets.npz"), *flags, *prior]) == 0
        assert load(other).head_config() == config  # pyright: ignore[reportAttributeAccessIssue]
    python = CircleClassifier.from_preset(preset, head__prior={"cat": 1, "dog": 2}).fit(images, labels)
    assert np.array_equal(python.predict_proba(images), model.predict_proba(images))
    uniform = model.with_head(config.replace(prior="uniform"))
    assert not np.array_equal(uniform.predict_proba(images), model.predict_proba(images))


def test_a_renamed_class_has_the_weight_of_its_new_name() -> None:
    statistics, config = one_class(), SLDAConfig(prior="dog=4")
    statistics.update(torch.zeros(1, 2, dtype=torch.int8), ["bird"])
    statistics.rename("cat", "dog")
    priors = dict(zip(statistics.classes, config.log_priors(statistics).exp().tolist(), strict=True))
    assert priors["dog"] == pytest.approx(0.8) and priors["bird"] == pytest.approx(0.2)
    assert isinstance(config, Config)
