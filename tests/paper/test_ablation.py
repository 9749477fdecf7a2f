"""The studies: which variants there are, what they share, and what their runs record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from circle import BiRC2DConfig, CircleClassifier
from circle.benchmark import jobs, selection
from circle.benchmark.features import FeatureStore, cache_features
from circle.benchmark.results import read_runs
from circle.benchmark.runner import Plan, finished_run, run_stream
from circle.data.datasets import load_dataset
from circle.data.images import Images, Subset
from circle.data.tasks import Stream
from circle.errors import CircleError
from circle.heads import SLDAConfig
from circle.method import CircleMethod
from circle.paper import ablations
from circle.paper.ablations import (
    PUBLISHED_FORM,
    Study,
    StudyRequest,
    chosen_settings,
    ensemble_study,
    extractor_study,
    head_study,
    study_jobs,
    with_file,
)
from circle.registry import list_extractors, list_heads

TINY = BiRC2DConfig(stem_channels=(2,), width=2, grid=1, moments=("mean",))
BASE = CircleClassifier(TINY)


class Untouchable(Images):
    """Test images whose labels may be counted and whose pixels nobody may see."""

    def __init__(self, images: Images) -> None:
        self.labels = images.labels

    def _read(self, indices: np.ndarray) -> np.ndarray:
        raise AssertionError("a test image was read")

    def _fingerprint(self) -> str:
        return "untouchable"


def digits(count: int = 300) -> Stream:
    """Some of the digits: enough to learn from, quick to extract."""
    whole = load_dataset("digits")
    return Stream.of(replace(whole, train=Subset(whole.train, np.arange(count))), 0)


def request(study: Study, output: Path, replicates: tuple[int, ...] = (0, 1)) -> StudyRequest:
    return StudyRequest(study, ("5",), replicates, 0.2, None, 0, "circle bench ablation", output)


def nothing(*_: object) -> None: ...


def test_extractors_have_one_size_and_birc2d_is_there_in_both_forms() -> None:
    study = extractor_study("cifar100", BASE, "small", groups=2, members=4, head_size=64, projection="relu")
    assert {variant.key for variant in study.variants} == {*list_extractors(), PUBLISHED_FORM}
    for variant in study.variants:
        config = variant.extractor.to_dict()
        assert (config["projection"], config["projection_size"]) == ("relu", 16)
        assert (variant.groups, variant.members, variant.head) == (2, 4, BASE.head_config())
    by_key = {variant.key: variant for variant in study.variants}
    assert by_key["birc2d"].extractor == TINY.replace(projection="relu", projection_size=16)
    assert by_key["birc2d"].label == "BiRC2D (small)"
    form = by_key[PUBLISHED_FORM].extractor
    assert isinstance(form, BiRC2DConfig)
    assert (form.stem, form.width, form.patch_sizes, form.aggregation) == ("plain", 480, (2, 4), "pool")
    tiny_images = extractor_study("tinyimagenet", BASE, "small", groups=1, members=1, head_size=8, projection="linear")
    form = next(v.extractor for v in tiny_images.variants if v.key == PUBLISHED_FORM)
    assert isinstance(form, BiRC2DConfig)
    assert (form.width, form.layers, form.projection) == (384, 2, "linear")  # that data set's own


def test_more_variants_from_a_file(tmp_path: Path) -> None:
    study = extractor_study("digits", BASE, "small", groups=2, members=1, head_size=64, projection="relu")
    path = tmp_path / "more.toml"
    path.write_text(
        """[[variant]]
        key = "wide"
        label = "BiRC2D, wide"
        extractor = { name = "birc2d", width = 60, projection = "linear" }
        head = { name = "ncm" }
        [[variant]]
        key = "birc2d"
        label = "in its place"
        extractor = { name = "birc2d", width = 7, projection_size = 9 }
        """
    )
    more = with_file(study, path)
    by_key = {variant.key: variant for variant in more.variants}
    assert len(more.variants) == len(study.variants) + 1
    assert by_key["wide"].extractor == BiRC2DConfig(width=60, projection="linear", projection_size=64)
    assert (by_key["wide"].head.name, by_key["wide"].groups) == ("ncm", 2)
    assert by_key["birc2d"].label == "in its place"
    assert by_key["birc2d"].extractor == BiRC2DConfig(width=7, projection="relu", projection_size=64)
    for text, words in [
        ("", "tables"),
        ("[[variant]]\nkey = 'a'", "needs a plain key"),
        ("[[variant]]\nkey = '../a'\nlabel = 'a'\nextractor = {name = 'birc2d'}", "needs a plain key"),
        ("[[variant]]\nkeys = 'a'", "did you mean 'key'"),
    ]:
        path.write_text(text)
        with pytest.raises(CircleError, match=words):
            with_file(study, path)


def test_heads_share_the_extractor() -> None:
    base = CircleClassifier(TINY, SLDAConfig(ridge=0.5))
    study = head_study(base, groups=2, members=1, head_size=16, projection="linear")
    assert {variant.key for variant in study.variants} == set(list_heads())
    assert {variant.extractor for variant in study.variants} == {TINY.replace(projection="linear", projection_size=16)}
    assert next(v.head for v in study.variants if v.key == "slda") == SLDAConfig(ridge=0.5)
    assert next(v.label for v in study.variants if v.key == "ncm") == "Euclidean NCM"


def test_ensembles_share_out_the_same_extractors() -> None:
    study = ensemble_study(BASE, extractors=16, size=8, projection="relu")
    assert [(variant.members, variant.groups) for variant in study.variants] == [(1, 16), (4, 4), (16, 1)]
    every = ensemble_study(BASE, extractors=12, size=8, projection="relu", all_splits=True)
    assert [variant.members for variant in every.variants] == [1, 2, 3, 4, 6, 12]
    assert all(variant.members * variant.groups == 12 for variant in every.variants)
    assert [variant.members for variant in ensemble_study(BASE, extractors=1, size=8, projection="relu").variants] == [
        1
    ]


def test_no_two_replicates_share_a_member() -> None:
    (variant, *_) = head_study(BASE, groups=3, members=2, head_size=16, projection="relu").variants
    seeds = [set(range(model.seed, model.seed + 6)) for model in (variant.classifier(number) for number in range(4))]
    assert len(set.union(*seeds)) == 24


def test_impossible_studies() -> None:
    with pytest.raises(CircleError, match="expected a multiple of the members"):
        head_study(BASE, groups=1, members=3, head_size=16, projection="relu")
    with pytest.raises(CircleError, match="expected at least 1"):
        ensemble_study(BASE, extractors=0, size=8, projection="relu")
    with pytest.raises(CircleError, match="unknown variant of the head study 'sldb': did you mean 'slda'"):
        head_study(BASE, groups=1, members=1, head_size=16, projection="relu").only(["sldb"])


def test_choosing_settings_never_sees_a_test_image(tmp_path: Path) -> None:
    stream = digits()
    stream = replace(stream, dataset=replace(stream.dataset, test=Untouchable(stream.dataset.test)))
    store = FeatureStore(tmp_path / "features")
    study = head_study(BASE, groups=2, members=1, head_size=16, projection="relu").only(["slda", "ncm"])
    asked = request(study, tmp_path / "out")
    ablations.check(asked, stream, store)
    choices = [chosen_settings(asked, variant, stream, store, nothing) for variant in study.variants]
    for choice in choices:
        assert 0 < choice.accuracy <= 1
        assert sum(choice.images) == 300
    (job, *_) = study_jobs(asked, study.variants[0], choices[0], stream)
    with pytest.raises(AssertionError, match="a test image was read"):  # the dataset does notice
        cache_features(job.build(), stream.dataset, store, nothing)


def test_all_seeds_share_one_choice_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, store = digits(), FeatureStore(tmp_path / "features")
    study = head_study(BASE, groups=2, members=1, head_size=16, projection="relu").only(["slda"])
    (variant,) = study.variants
    asked = request(study, tmp_path / "out")
    choice = chosen_settings(asked, variant, stream, store, nothing)
    for job in study_jobs(asked, variant, choice, stream):
        method = job.build()
        cache_features(method, stream.dataset, store, nothing)
        run_stream(job.plan, stream, method, job.folder)
    runs = read_runs([tmp_path / "out"])
    assert [run.info["seed"] for run in runs] == [0, 2]
    assert len({str(run.info["config"]["head"]) for run in runs}) == 1
    for number, run in enumerate(runs):
        head = run.info["config"]["head"]
        assert {name: head[name] for name in choice.settings} == choice.settings
        assert run.info["study"] == {
            "name": "head",
            "variant": "slda",
            "budget": {"groups": 2, "members": 1, "head_size": 16, "projection": "relu"},
            "replicate": number,
            "selected": choice.settings,
            "at_the_edge": choice.at_the_edge,
            "validation_accuracy": choice.accuracy,
            "validation_share": 0.2,
        }

    def again(*_: object, **__: object) -> None:
        raise AssertionError("settings were chosen again")

    # Whoever comes back, with other seeds even, finds the choice; nobody finds it with another split.
    monkeypatch.setattr(selection, "choose_head", again)
    later = replace(asked, replicates=(7,))
    assert chosen_settings(later, variant, stream, store, nothing) == choice
    with pytest.raises(CircleError, match="another share"):
        chosen_settings(replace(asked, share=0.5), variant, stream, store, nothing)


def test_a_finished_run_is_found_without_building_anything(tmp_path: Path) -> None:
    stream = digits(100)
    classifier = CircleClassifier(TINY)
    plan = Plan("circle", "a", None, ("5",), 0, classifier.part_settings(), study={"name": "head"})
    assert finished_run(plan, stream, tmp_path / "run") is None
    method = CircleMethod(classifier.prepare(stream.dataset.image))
    stops = iter([False, False, True])
    run_stream(plan, stream, method, tmp_path / "run", should_stop=lambda: next(stops))
    assert finished_run(plan, stream, tmp_path / "run") is None
    run_stream(plan, stream, CircleMethod(CircleClassifier(TINY).prepare(stream.dataset.image)), tmp_path / "run")
    found = finished_run(plan, stream, tmp_path / "run")
    assert found is not None and found.complete
    with pytest.raises(CircleError, match="another seed"):
        finished_run(replace(plan, seed=1), stream, tmp_path / "run")
    # The study is a remark: a run is the same run without it.
    assert finished_run(replace(plan, study=None), stream, tmp_path / "run") is not None


def test_memory_counts_a_matrix_for_every_class(tmp_path: Path) -> None:
    stream, store = digits(100), FeatureStore(tmp_path)
    study = head_study(BASE, groups=2, members=1, head_size=64, projection="relu")
    needed = {v.key: jobs.circle_estimate(v.classifier(0), stream, None).memory for v in study.variants}
    assert needed["slda"] == needed["ncm"]
    # Ten classes, two groups: a triangle at least and a square of 64 x 64 float64 each.
    assert needed["qda"] - needed["slda"] >= 2 * 10 * 8 * (64 * 65 // 2 + 64 * 64)
    whole = ablations.check(request(study, tmp_path / "out"), stream, store)
    assert whole.memory == needed["qda"]
    # All heads have the same features: two groups, two replicates, of training and test images.
    assert whole.disk == 2 * 2 * 64 * (100 + 540)
    assert ablations.check(replace(request(study, tmp_path / "out"), replicates=()), stream, store).memory == 0
    huge = head_study(BASE, groups=2, members=1, head_size=2**20, projection="relu").only(["ncm"])
    with pytest.raises(CircleError, match="GB of memory|do not fit"):
        ablations.check(request(huge, tmp_path / "out"), stream, store)
    with pytest.raises(CircleError, match="expected one of 1, 2, 5, 10"):
        ablations.check(replace(request(study, tmp_path / "out"), tasks=("3",)), stream, store)
