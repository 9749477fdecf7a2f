"""Models in files: small ones for prediction, the same bytes for the same lessons, and weights that changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

import circle
from circle import CircleClassifier, CircleError, Predictor, files
from circle.runtime import container

Stream = tuple[np.ndarray, np.ndarray]


def test_a_predicting_model_is_small_and_says_the_same(tiny: Any, stream: Stream, tmp_path: Path) -> None:
    images, labels = stream
    model = tiny(head="slda").fit(images, labels)
    model.save(tmp_path / "learning")
    model.save(tmp_path / "predicting", for_prediction=True)
    small = circle.load(tmp_path / "predicting")
    assert isinstance(small, Predictor)
    assert np.array_equal(small.predict_proba(images), model.predict_proba(images))
    assert (tmp_path / "predicting").stat().st_size < (tmp_path / "learning").stat().st_size / 4
    assert small.samples_ == len(labels)
    for call in (lambda: small.partial_fit(images, labels), lambda: small.forget(1), lambda: small + model):
        with pytest.raises(CircleError, match="only predicts"):
            call()
    small.save(tmp_path / "again")
    assert Predictor.load(tmp_path / "again").classes_.tolist() == [0, 1, 2, 3]


def test_the_mark_of_a_journal_travels_with_the_learning_model(tiny: Any, stream: Stream, tmp_path: Path) -> None:
    images, labels = stream
    model = tiny().partial_fit(images, labels)
    model.metadata_["journal"] = {"identity": "abc", "sequence": 7}
    model.save(tmp_path / "a.circle")
    again = CircleClassifier.load(tmp_path / "a.circle").partial_fit(images, labels)
    again.save(tmp_path / "b.circle")
    assert CircleClassifier.load(tmp_path / "b.circle").metadata_ == {"journal": {"identity": "abc", "sequence": 7}}
    again.save(tmp_path / "c.circle", for_prediction=True)
    assert "journal" not in container.read_header(tmp_path / "c.circle")
    assert not again.fit(images, labels).metadata_


def test_metadata_cannot_pass_for_the_models_own(tiny: Any, stream: Stream, tmp_path: Path) -> None:
    model = tiny().partial_fit(*stream)
    model.metadata_ = {"note": "mine", "settings": {}}
    with pytest.raises(CircleError, match="metadata 'settings': the model file has an entry of this name"):
        model.save(tmp_path / "a.circle")
    assert not list(tmp_path.iterdir())


def test_saving_does_not_depend_on_history(tiny: Any, stream: Stream, tmp_path: Path) -> None:
    """Models that learned the same have the same file, byte for byte."""
    images, labels = stream
    order = np.random.default_rng(1).permutation(len(labels))
    tiny().fit(images, labels).save(tmp_path / "a")
    tiny().fit(images[order], labels[order]).save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_changed_random_weights_are_noticed(
    tiny: Any, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A future torch may draw other numbers from the same seed: then the model must not pretend."""
    import circle.ensemble

    tiny().fit(*stream).save(tmp_path / "model")
    build = circle.ensemble.build_extractor
    monkeypatch.setattr(
        circle.ensemble, "_cached_extractor", lambda config, shape, seed: build(config, shape, seed + 1)
    )
    with pytest.raises(CircleError, match="other random weights"):
        CircleClassifier.load(tmp_path / "model")


def forged(source: Path, target: Path, header: object) -> Path:
    """The same tensors under another header of ours."""
    tensors, _ = files.read(source)
    save_file(
        tensors, target, metadata={"circle": header if isinstance(header, str) else container.header_text(header)}
    )
    return target


def test_a_flipped_bit_of_the_header_is_found(tiny: Any, stream: Stream, tmp_path: Path) -> None:
    """Every bit of some bytes of it, and a bit of every byte."""
    model, flipped = tmp_path / "model", tmp_path / "flipped"
    tiny().fit(*stream).save(model)
    whole = model.read_bytes()
    length = 8 + int.from_bytes(whole[:8], "little")
    # Spaces at its end fill it up to a multiple of eight bytes, and mean nothing.
    length -= len(whole[:length]) - len(whole[:length].rstrip(b" "))
    places = [(place, place % 8) for place in range(8, length, 7)] + [
        (place, bit) for place in (60, 99) for bit in range(8)
    ]
    for place, bit in places:
        content = bytearray(whole)
        content[place] ^= 1 << bit
        flipped.write_bytes(content)
        with pytest.raises(CircleError, match="flipped: (damaged|truncated|not a CIRCLE)"):
            CircleClassifier.load(flipped)


def test_headers_that_no_model_has(tiny: Any, stream: Stream, tmp_path: Path) -> None:
    """The tensors have checksums; a damaged header must not end in an error of Python's own."""
    model = tmp_path / "model"
    tiny().fit(*stream).save(model)
    header = container.read_header(model)
    for whole in ("no JSON", "[]", "{}", "null", {**header, "format": "x"}, {**header, "checksums": None}):
        with pytest.raises(CircleError, match="forged: damaged model file .unreadable header."):
            CircleClassifier.load(forged(model, tmp_path / "forged", whole))
    for name in ("settings", "classes", "orphan_degrees"):
        for value in (None, "x", 3):
            with pytest.raises(CircleError, match="forged: damaged model file"):
                CircleClassifier.load(forged(model, tmp_path / "forged", {**header, name: value}))
    for name in ("groups", "members", "seed", "image"):
        settings = {**header["settings"], name: "x"}
        with pytest.raises(CircleError, match="forged: damaged model file"):
            CircleClassifier.load(forged(model, tmp_path / "forged", {**header, "settings": settings}))
