"""CircleClassifier: exactness end to end, algebra, forgetting, scikit-learn's tools."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

from circle import BiRC2DConfig, CircleClassifier, CircleError, NCMConfig, Predictor
from circle.ensemble import Group
from circle.heads import SLDAConfig
from circle.learner import MAX_WAITING_IMAGES

Stream = tuple[np.ndarray, np.ndarray]


def same(one: CircleClassifier, other: CircleClassifier) -> bool:
    return one.statistics_ == other.statistics_


# -- exactness -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 7, 1024])
@pytest.mark.parametrize("threads", [1, 2])
def test_order_batches_and_threads_do_not_matter(tiny: Any, stream: Stream, batch: int, threads: int) -> None:
    images, labels = (values[:60] for values in stream)
    reference = tiny().fit(images, labels)
    torch.set_num_threads(threads)
    order = np.random.default_rng(batch).permutation(len(labels))
    model = tiny()
    for start in range(0, len(labels), batch):
        part = order[start : start + batch]
        model.partial_fit(images[part], labels[part])
    assert same(model, reference)
    assert np.array_equal(model.predict_proba(images), reference.predict_proba(images))


def test_two_shards_merged(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    whole = tiny().fit(images, labels)
    first, second = tiny().fit(images[:47], labels[:47]), tiny().fit(images[47:], labels[47:])
    assert same(first + second, whole)
    assert same(second + first, whole)
    assert same((first + second) - second, first)
    assert same(first.merge(second), whole)


def test_interrupted_and_resumed(tiny: Any, stream: Stream, tmp_path: Path) -> None:
    images, labels = stream
    model = tiny()
    for start in range(0, len(labels), 31):
        model.partial_fit(images[start : start + 31], labels[start : start + 31])
        model.save(tmp_path / "model")
        model = CircleClassifier.load(tmp_path / "model")
    assert same(model, tiny().fit(images, labels))


def test_learned_then_forgotten(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    model = tiny().fit(images, labels)
    model.forget(2, images[labels == 2])
    never = tiny().fit(images[labels != 2], labels[labels != 2])
    assert same(model, never)
    assert np.array_equal(model.predict_proba(images), never.predict_proba(images))


def test_unlearn_is_undo(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    model = tiny().fit(images[:100], labels[:100])
    before = model.copy()
    model.partial_fit(images[100:], labels[100:]).unlearn(images[100:], labels[100:])
    assert same(model, before)


# -- learning ------------------------------------------------------------------------------------------------


def test_renaming_retrains_nothing(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    words = np.array(["ant", "bee", "cat", "dog"])[labels]
    model = tiny().partial_fit(images, words)
    model.ledger_.add("ant", b"x" * 16)
    before = model.predict_proba(images[:5])
    model.rename("ant", "wasp")
    other = tiny().partial_fit(images, np.where(words == "ant", "wasp", words))
    assert model.statistics_ == other.statistics_
    assert model.classes_.tolist() == ["bee", "cat", "dog", "wasp"]
    assert np.allclose(model.predict_proba(images[:5]), before[:, [1, 2, 3, 0]], rtol=1e-6), "in another order"
    assert ("wasp", b"x" * 16) in model.ledger_
    with pytest.raises(CircleError, match="'bee' is in the model already"):
        model.rename("cat", "bee")
    with pytest.raises(CircleError, match="only predicts"):
        model.for_prediction().rename("cat", "lion")


def test_features_are_what_learning_and_predicting_use(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    model, other = tiny().partial_fit(images, labels), tiny().partial_fit(images[:1], labels[:1])
    features = other.features(images[1:])
    assert [len(values) for values in features] == [len(images) - 1] * 2
    other.learn_features(features, labels[1:].tolist())
    assert other.statistics_ == model.statistics_
    assert np.array_equal(model.probabilities(features).numpy(), model.predict_proba(images[1:]))


def test_a_snapshot_for_prediction_stays_as_it_was(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    model = tiny().partial_fit(images[:60], labels[:60])
    snapshot, expected = model.for_prediction(), model.predict_proba(images)
    model.partial_fit(images[60:], labels[60:])
    assert np.array_equal(snapshot.predict_proba(images), expected)
    assert not np.array_equal(model.predict_proba(images), expected)
    assert snapshot.samples_ == 60
    with pytest.raises(CircleError, match="only predicts"):
        snapshot.partial_fit(images, labels)


def test_learns(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    model = tiny().fit(images[:80], labels[:80])
    assert model.score(images[80:], labels[80:]) > 0.9


def test_new_classes_at_any_time(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    names = np.array(["red", "green", "blue", "yellow"])[labels]
    model = tiny()
    for count, name in enumerate(["yellow", "red", "green"], start=1):
        model.partial_fit(images[names == name], names[names == name])
        assert model.predict_proba(images).shape == (len(images), count)
    assert model.classes_.tolist() == ["green", "red", "yellow"]
    assert set(model.predict(images)) <= {"green", "red", "yellow"}


def test_probabilities_are_the_average_of_the_groups(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    both = tiny().fit(images, labels)
    alone = [tiny(groups=1, seed=seed).fit(images, labels).predict_proba(images) for seed in (0, 2)]
    assert np.allclose(both.predict_proba(images), (alone[0] + alone[1]) / 2, atol=1e-12)
    assert np.allclose(both.predict_proba(images).sum(1), 1.0)


def test_temperature_softens(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    model = tiny().fit(images, labels)
    soft = model.with_head(SLDAConfig(temperature=1e4))
    assert soft.predict_proba(images).max() < model.predict_proba(images).max()


def test_another_head_on_the_same_statistics(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    model = tiny().fit(images[:60], labels[:60])
    view = model.with_head("ncm")
    model.partial_fit(images[60:], labels[60:])
    reference = tiny(head=NCMConfig()).fit(images, labels)
    assert np.array_equal(view.predict_proba(images), reference.predict_proba(images))
    assert model.head == "subspace_qda"
    with pytest.raises(NotFittedError):
        tiny().with_head("ncm")


def test_float_option_is_close(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    exact, rounded = tiny().fit(images, labels), tiny(quantise=False).fit(images, labels)
    assert (exact.predict(images) == rounded.predict(images)).mean() > 0.95
    with pytest.raises(CircleError, match="different quantise"):
        exact + rounded


def test_labels_of_any_hashable_kind(tiny: Any, stream: Stream, tmp_path: Path) -> None:
    images, labels = stream
    for names in ([(int(label), "x") for label in labels], [str(label) for label in labels], labels > 1):
        model = tiny().fit(images, list(names))
        model.save(tmp_path / "model")
        loaded = CircleClassifier.load(tmp_path / "model")
        assert loaded.predict(images).tolist() == model.predict(images).tolist()
        assert loaded.classes_.tolist() == sorted(set(names))


def test_every_form_of_the_same_images_teaches_the_same(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    reference = tiny().fit(images, labels)
    assert same(tiny().fit(images.reshape(len(images), -1), labels), reference)
    assert same(tiny().fit(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)), reference)
    assert same(tiny(image_size=16).fit([Image.fromarray(image) for image in images], labels), reference)


def test_working_set_is_bounded() -> None:
    """12,000 images that take no memory themselves (one image, repeated by reference) are learned in a few MB.

    As an array they would have 37 MB, as floats 147 MB. A process of its own, because memory that was once taken
    is not given back.
    """
    script = """
import resource, numpy as np
from circle import BiRC2DConfig, CircleClassifier
images = np.broadcast_to(np.arange(3072, dtype=np.uint8).reshape(32, 32, 3), (12_000, 32, 32, 3))
model = CircleClassifier(BiRC2DConfig(stem_channels=(2,), width=2, grid=1))
model.partial_fit(images[:1500], [0] * 1500)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model.partial_fit(images, [0] * len(images))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 20_000, "kilobytes"


def test_parameters_are_counted_as_in_the_paper(tiny: Any, stream: Stream) -> None:
    model = tiny(head="slda").fit(*stream)
    member = model.groups_[0].members[0]
    count = model.parameter_count()
    assert count.learnable == 2 * 2 * member.size * 4
    assert count.fixed == 4 * member.parameter_count().fixed


# -- forgetting ----------------------------------------------------------------------------------------------


def test_forgetting_without_samples(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    model = tiny().fit(images, labels)
    model.forget(2)
    assert model.classes_.tolist() == [0, 1, 3]
    assert model.samples_ == int((labels != 2).sum())
    kept = labels != 2
    assert model.score(images[kept], labels[kept]) > 0.9


def test_other_images_are_not_mistaken_for_the_class(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    model = tiny().fit(images, labels)
    before = model.copy()
    wrong = images[labels == 2].copy()
    wrong[0] = 255 - wrong[0]
    for given, words in [
        (wrong, "not the samples"),
        (wrong[:-1], "images given"),
        (images[labels != 2], "images given"),
    ]:
        with pytest.raises(CircleError, match=words):
            model.forget(2, given)
        assert same(model, before)
    with pytest.raises(CircleError, match="class 9 is not in the model; it has 0, 1, 2, 3"):
        model.forget(9)


# -- rejected batches ----------------------------------------------------------------------------------------


def test_rejected_batches_change_nothing(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    model = tiny().fit(images, labels)
    before = model.copy()
    floats = images[:3] / 255
    floats[2, 0, 0, 0] = np.nan
    for bad_images, bad_labels, words in [
        (floats, labels[:3], "NaN"),
        (images[..., :1], labels, "1 channels"),
        (images[:, :8], labels, "8 x 16 pixels"),
        (images[:2], labels[:3], "3 labels for 2 images"),
        (images[:2], ["a", "b"], "mixed types"),
        (images[:2], [0, "b"], "mixed types"),
        ([Image.new("RGB", (16, 16)), 7], [0, 1], "image 1 is a int"),
        ([Image.new("RGB", (16, 16)), "text"], [0, 1], "text: No such file"),
        (images[:2], None, "y is None"),
    ]:
        with pytest.raises(CircleError, match=words):
            model.partial_fit(bad_images, bad_labels)
        assert same(model, before)
    with pytest.raises(CircleError, match="not among the classes"):
        model.partial_fit(images[:1], [9], classes=[0, 1])
    assert same(model, before)


def test_a_rejected_first_batch_leaves_an_unlearned_model(tiny: Any) -> None:
    model = tiny()
    with pytest.raises(CircleError):
        model.partial_fit(np.full((2, 16, 16), np.nan), [0, 1])
    assert not hasattr(model, "classes_")


def test_predicting_before_learning(tiny: Any, stream: Stream, tmp_path: Path) -> None:
    for call in (lambda m: m.predict(stream[0]), lambda m: m.save(tmp_path / "x"), lambda m: m.forget(1)):
        with pytest.raises(NotFittedError, match="not learned anything yet"):
            call(tiny())
    assert not list(tmp_path.iterdir())


def test_a_model_that_was_never_fitted(tiny: Any, stream: Stream, tmp_path: Path) -> None:
    images, labels = stream
    other = tiny().fit(images, labels)
    for call in (
        lambda m: m.predict(images),
        lambda m: m.predict_proba(images),
        lambda m: m.score(images, labels),
        lambda m: m.features(images),
        lambda m: m.probabilities([]),
        lambda m: m.head_probabilities([]),
        lambda m: m.head_scores([]),
        lambda m: m.learn_features([], []),
        lambda m: m.unlearn(images, labels),
        lambda m: m.forget(1),
        lambda m: m.rename(1, 2),
        lambda m: m.merge(other),
        lambda m: other.merge(m),
        lambda m: m + other,
        lambda m: other - m,
        lambda m: m.with_head("ncm"),
        lambda m: m.for_prediction(),
        lambda m: m.save(tmp_path / "x"),
        lambda m: m.save(tmp_path / "x", for_prediction=True),
        lambda m: m.parameter_count(),
        lambda m: m.state_dict(),
        lambda m: m.load_state_dict(other.state_dict()),
        lambda m: m.settings(),
        lambda m: m.require_learned(),
        check_is_fitted,
    ):
        with pytest.raises(NotFittedError):
            call(tiny())
    assert not list(tmp_path.iterdir())
    model = tiny(seed=7)
    for name in ("classes_", "samples_", "statistics_", "groups_", "image_", "ledger_", "metadata_", "n_features_in_"):
        assert not hasattr(model, name)
    assert repr(model).startswith("CircleClassifier(") and "seed=7" in repr(model)
    for same_settings in (clone(model), model.copy(), copy.copy(model), copy.deepcopy(model)):
        assert same_settings is not model
        assert same_settings.get_params() == model.get_params()
        same_settings.partial_fit(images[:5], labels[:5])
        assert not hasattr(model, "classes_")
    assert same(model.partial_fit(images[:5], labels[:5]), same_settings)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, CircleClassifier.copy])
def test_a_copy_does_not_teach_the_original(tiny: Any, stream: Stream, duplicate: Any) -> None:
    images, labels = stream
    model = tiny().partial_fit(images[:60], labels[:60])
    model.ledger_.add(0, b"x" * 16)
    model.metadata_["note"] = "mine"
    expected, before = model.predict_proba(images), tiny().partial_fit(images[:60], labels[:60])
    other = duplicate(model)
    assert same(other, model)
    other.partial_fit(images[60:], labels[60:]).rename(0, 9).forget(1)
    other.ledger_.add(2, b"y" * 16)
    other.metadata_["note"] = "its own"
    other.set_params(head__ridge=0.5)
    assert same(model, before)
    assert np.array_equal(model.predict_proba(images), expected)
    assert (len(model.ledger_), model.metadata_, model.head) == (1, {"note": "mine"}, "subspace_qda")
    model.fit(images[:2], labels[:2])
    assert other.samples_ > 60 - (labels[:60] == 1).sum()


def test_a_refused_fit_keeps_what_was_learned(tiny: Any, stream: Stream) -> None:
    model = tiny().fit(*stream)
    before = model.copy()
    with pytest.raises(CircleError, match="NaN"):
        model.fit(np.full((2, 16, 16), np.nan), [0, 1])
    assert same(model, before)
    assert same(model.fit(stream[0][:9], stream[1][:9]), tiny().fit(stream[0][:9], stream[1][:9]))


def test_refused_features_change_no_group(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    model = tiny().fit(images, labels)
    before, features = model.copy(), model.features(images[:3])
    with pytest.raises(CircleError, match="expected torch.int8"):
        model.learn_features([features[0], features[1].float()], labels[:3].tolist())
    assert same(model, before)


def test_large_batches_are_one_step(tiny: Any, make_stream: Any) -> None:
    """More images than wait for each other: summed aside, and added to what is there or put in its place."""
    images, labels = make_stream(2 * MAX_WAITING_IMAGES + 1)
    reference = tiny()
    for start in range(0, len(labels), 400):
        reference.partial_fit(images[start : start + 400], labels[start : start + 400])
    assert same(tiny().partial_fit(images, labels), reference)
    half = len(labels) // 2
    model = tiny().partial_fit(images[: half - 20], labels[: half - 20])
    assert same(model.partial_fit(images[half - 20 :], labels[half - 20 :]), reference)


# -- threads -------------------------------------------------------------------------------------------------


def test_readers_see_whole_batches_while_one_thread_learns(make_stream: Any, tmp_path: Path) -> None:
    """Eight threads predict, score, save and compare; whatever they see holds a whole number of batches everywhere."""
    rounds, size = 200, 3
    images, labels = make_stream(rounds * size)
    config = BiRC2DConfig(stem_channels=(2,), patch_sizes=(4,), width=2, grid=1, moments=("mean",))
    settings: dict[str, Any] = {"extractor": config, "head": NCMConfig(), "groups": 2}
    model = CircleClassifier(**settings).partial_fit(images[:size], labels[:size])
    alone = CircleClassifier(**settings).partial_fit(images, labels)
    finished, failures = threading.Event(), []
    probe, answers = images[:2], labels[:2]

    def whole(found: CircleClassifier) -> None:
        counts = [statistics.counts.tolist() for statistics in found.statistics_]
        learned = sum(counts[0])
        assert counts[0] == counts[1]
        assert learned % size == 0
        assert sum(counts[0]) == found.samples_
        expected = np.unique(labels[:learned], return_counts=True)[1].tolist()
        assert counts[0] == expected, "the batches learned first"
        sums = [float(statistics.sums.sum()) for statistics in found.statistics_]
        assert sums == [total[learned] for total in totals], "and not their counts alone"

    def predict(_: int) -> None:
        rows = model.predict_proba(probe)
        assert rows.shape[0] == 2
        assert np.allclose(rows.sum(1), 1.0)
        model.predict(probe)

    def score(_: int) -> None:
        assert 0.0 <= model.score(probe, answers) <= 1.0

    def save(number: int) -> None:
        path = tmp_path / f"{number}.circle"
        model.save(path)
        whole(CircleClassifier.load(path))
        model.save(path, for_prediction=True)
        assert Predictor.load(path).samples_ % size == 0

    def compare(_: int) -> None:
        found = model.copy()
        whole(found)
        equal = [mine == theirs for mine, theirs in zip(found.statistics_, alone.statistics_, strict=True)]
        assert equal == [found.samples_ == rounds * size] * 2
        assert same(found, found.copy())

    features = model.features(images)
    totals = [np.concatenate([[0.0], values.double().sum(1).cumsum(0).numpy()]) for values in features]

    def read(number: int) -> None:
        work = (predict, score, save, compare)[number % 4]
        try:
            while not finished.is_set():
                work(number)
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for reader in readers:
        reader.start()
    try:
        for start in range(size, rounds * size, size):
            model.partial_fit(images[start : start + size], labels[start : start + size])
    finally:
        finished.set()
        for reader in readers:
            reader.join()
    assert not failures, failures[0]
    assert same(model, alone)
    assert np.array_equal(model.predict_proba(images), alone.predict_proba(images))


def test_no_lock_is_held_while_features_are_computed(
    tiny: Any, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that extracts features, to learn or to predict, lets others read and learn."""
    images, labels = stream
    model = tiny().fit(images[:60], labels[:60])
    extract, begun, go_on = Group.features, threading.Event(), threading.Event()
    waiting = threading.current_thread()

    def slow(self: Group, pixels: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is not waiting:
            begun.set()
            assert go_on.wait(60)
        return extract(self, pixels)

    monkeypatch.setattr(Group, "features", slow)
    for work in (lambda: model.partial_fit(images[60:61], labels[60:61]), lambda: model.predict(images[:1])):
        begun.clear()
        go_on.clear()
        thread = threading.Thread(target=work)
        thread.start()
        assert begun.wait(60)
        before = model.samples_
        model.partial_fit(images[61:63], labels[61:63])
        assert model.samples_ == before + 2
        assert model.predict(images[:1]).shape == (1,)
        assert thread.is_alive()
        go_on.set()
        thread.join()
    assert model.samples_ == 65


def test_models_with_different_settings_do_not_merge(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    model = tiny().fit(images, labels)
    before = model.copy()
    for changes, words in [
        ({"seed": 1}, "different seed"),
        ({"groups": 1}, "different groups"),
        ({"extractor": BiRC2DConfig(width=3)}, "different extractor"),
    ]:
        with pytest.raises(CircleError, match=words):
            model.merge(tiny(**changes).fit(images, labels))
        assert same(model, before)
    with pytest.raises(CircleError, match="mixed types"):
        model.merge(tiny().fit(images, labels.astype(str)))
    assert same(model, before)


def test_settings_are_checked(tiny: Any, stream: Stream) -> None:
    for changes, words in [
        ({"groups": 0}, "groups = 0"),
        ({"extractor": "birc3d"}, "did you mean 'birc2d'"),
        ({"aspect": "round"}, "crop, pad, stretch"),
        ({"device": "quantum"}, "device 'quantum' is not usable"),
    ]:
        with pytest.raises(CircleError, match=words):
            tiny(**changes).fit(*stream)
    with pytest.raises(CircleError, match="did you mean 'filters'"):
        CircleClassifier().set_params(extractor__filtres=3)


# -- scikit-learn --------------------------------------------------------------------------------------------


def test_clone_and_parameters(tiny: Any) -> None:
    model = tiny(seed=3)
    assert clone(model).get_params() == model.get_params()
    assert model.get_params()["extractor__width"] == 5
    model.set_params(extractor__width=6, head__ridge=0.5, seed=4)
    assert (model.extractor.width, model.head.ridge, model.seed) == (6, 0.5, 4)
    with pytest.raises(ValueError, match="Invalid parameter 'sede'"):
        model.set_params(sede=1)


def test_pipeline_cross_validation_and_grid_search(tiny: Any, stream: Stream) -> None:
    images, labels = stream
    pipeline = Pipeline([("scale", FunctionTransformer(lambda X: X / 255.0)), ("circle", tiny(groups=1))])
    assert cross_val_score(pipeline, images, labels, cv=3).mean() > 0.8
    search = GridSearchCV(tiny(groups=1), {"extractor__width": [3, 5], "head__ridge": [0.01, 1.0]}, cv=2)
    search.fit(images, labels)
    assert set(search.best_params_) == {"extractor__width", "head__ridge"}
    assert search.best_score_ > 0.8
