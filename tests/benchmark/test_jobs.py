"""From a request to jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from circle import BiRC2DConfig, CircleClassifier
from circle.baselines import FineTuneConfig, LwFConfig
from circle.baselines.costs import Course
from circle.benchmark import jobs as planning
from circle.benchmark.features import FeatureStore, cache_features
from circle.benchmark.jobs import Estimate, Request
from circle.benchmark.runner import run_stream
from circle.data.datasets import load_dataset
from circle.data.images import Subset
from circle.data.tasks import Stream
from circle.errors import CircleError
from circle.extractors import ImageShape
from circle.method import CircleMethod

TINY = BiRC2DConfig(stem_channels=(2,), width=2, grid=1, moments=("mean",))


def request(*methods: str, tasks: tuple[str, ...] = ("2", "5"), label: str | None = None) -> Request:
    return Request(methods, tasks, (3, 4), label=label, command="circle bench run")


def new_classifier(seed: int) -> CircleClassifier:
    return CircleClassifier(TINY, groups=2, members=3, seed=seed)


def test_circle_does_all_splits_in_one_run_and_others_one_each(tmp_path: Path) -> None:
    digits = load_dataset("digits")
    made = list(planning.jobs(request("circle", "finetune"), digits, tmp_path, new_classifier))
    assert [(job.plan.method, job.plan.tasks, job.plan.seed) for job in made] == [
        ("circle", ("2", "5"), 3),
        ("circle", ("2", "5"), 4),
        *(("finetune", (split,), seed) for seed in (3, 4) for split in ("2", "5")),
    ]
    assert len({job.folder for job in made}) == 6
    method = made[0].build()
    assert isinstance(method, CircleMethod)
    assert method.classifier.seed == 3 * 2 * 3, "no two seeds share a member"
    assert made[0].plan.config["extractor"]["width"] == 2
    assert made[0].plan.config["image"]["channels"] == 1
    with pytest.raises(CircleError, match="expected one of 1, 2, 5, 10"):
        list(planning.jobs(request("circle", tasks=("3",)), digits, tmp_path, new_classifier))


def test_labels_name_parts_that_are_not_the_preset(tmp_path: Path) -> None:
    def label(**parts: Any) -> str:
        (job, *_) = planning.jobs(
            request("circle"), load_dataset("digits"), tmp_path, lambda seed: CircleClassifier(seed=seed, **parts)
        )
        return job.plan.label

    assert label() == "CIRCLE fast"
    assert label(head="qda") == "CIRCLE fast, qda"
    assert label(extractor="scattering", head="ncm") == "CIRCLE fast, scattering, ncm"


def test_odd_labels_make_plain_folder_names(tmp_path: Path) -> None:
    (job, *_) = planning.jobs(request("circle", label="../A b/é"), load_dataset("digits"), tmp_path, new_classifier)
    assert job.folder.parent == tmp_path / "digits"
    assert "/" not in job.folder.name.removeprefix("..")


def test_estimate_is_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load_dataset("digits").balanced_part(20)
    stream = Stream.of(replace(digits, test=Subset(digits.test, np.arange(100))), 0)
    store = FeatureStore(tmp_path)
    classifier = new_classifier(0)
    before = planning.circle_estimate(classifier, stream, store)
    method = CircleMethod(classifier.prepare(stream.dataset.image))
    size = method.classifier.groups_[0].members[0].size
    assert before.disk == 6 * size * (200 + 100)
    cache_features(method, stream.dataset, store, lambda what, done, total: None)
    assert sum(path.stat().st_size - 128 for path in tmp_path.glob("*.npy")) == before.disk
    assert planning.circle_estimate(classifier, stream, store).disk == 0
    assert before.memory > method.classifier.statistics_bytes
    shared = planning.circle_estimate(classifier, stream, store, group_shards=2)
    assert shared.memory < before.memory and shared.disk == 0, "of whole sets, whoever has the groups"
    assert planning.circle_estimate(classifier, stream, store, image_shards=2).disk == before.disk
    monkeypatch.setattr("circle.machine.available_memory", lambda: 10**10)
    with pytest.raises(CircleError, match="only 10.0 GB available; use fewer members"):
        Estimate(10**12, 0).check()
    monkeypatch.setattr("circle.machine.available_memory", lambda: None)
    Estimate(10**12, 0).check()  # where the system does not tell, nobody is stopped


def rivals(**more: Any) -> Request:
    return replace(request("lwf", "acil", tasks=("5",)), seeds=(0,), **more)


def test_settings_of_rivals_go_to_those_that_have_them(tmp_path: Path) -> None:
    wish = {"width": 8, "buffer_size": 99, "temperature": 3.0}
    lwf, acil = planning.jobs(rivals(rival=wish), load_dataset("digits"), tmp_path, new_classifier)
    assert (lwf.plan.config["width"], lwf.plan.config["temperature"]) == (8, 3.0)
    assert (acil.plan.config["width"], acil.plan.config["buffer_size"]) == (8, 99)
    with pytest.raises(CircleError, match="'alpha1' of a rival: none of lwf, acil has it"):
        list(planning.jobs(rivals(rival={"alpha1": 1.0}), load_dataset("digits"), tmp_path, new_classifier))


def test_the_preset_paper_brings_published_settings_of_rivals() -> None:
    cifar = SimpleNamespace(name="cifar100", origin="")
    wish: Any = {"preset": "paper", "rival": {"width": 16}}
    config = planning.rival_config(rivals(**wish), "lwf", "20", cifar)  # pyright: ignore[reportArgumentType]
    assert config.get_params()["initial_epochs"] == 110 and config.get_params()["width"] == 16
    with pytest.raises(CircleError, match="no published settings for 7 tasks"):
        planning.rival_config(rivals(**wish), "lwf", "7", cifar)  # pyright: ignore[reportArgumentType]
    digits = SimpleNamespace(name="digits", origin="")
    with pytest.raises(CircleError, match="no published settings for data set 'digits'"):
        planning.rival_config(rivals(**wish), "lwf", "5", digits)  # pyright: ignore[reportArgumentType]


def test_a_budget_fits_the_epochs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the command is given again, the record has a say, not the clock."""
    seen: list[Any] = []

    def fit(config: Any, course: Course, shape: ImageShape, seconds: float) -> Any:
        seen.append((course, shape, seconds))
        return config.replace(initial_epochs=len(seen), **({"epochs": 1} if config.name == "lwf" else {}))

    monkeypatch.setattr(planning, "fit_budget", fit)
    digits = load_dataset("digits")
    wish: Any = {"budget": 60.0, "rival": {"network": "convnet", "width": 2, "buffer_size": 20}}
    jobs = list(planning.jobs(rivals(**wish), digits, tmp_path, new_classifier))
    assert [job.plan.config["initial_epochs"] for job in jobs] == [1, 2]
    course, shape, seconds = seen[0]
    assert sum(course.images) == len(digits.train) and list(course.classes) == [2] * 5
    assert (shape, seconds) == (ImageShape(1, 32, 32), 60.0)
    run_stream(jobs[1].plan, Stream.of(digits, 0), jobs[1].build(), jobs[1].folder)
    again = list(planning.jobs(rivals(**wish), digits, tmp_path, new_classifier))
    assert [job.plan.config["initial_epochs"] for job in again] == [3, 2]


def test_labels_of_rivals_say_what_sets_them_apart() -> None:
    def label(name: str, width: int = 64, **more: Any) -> str:
        config = LwFConfig(width=width) if name == "lwf" else FineTuneConfig()
        return planning.rival_label(replace(rivals(), **more), name, config)

    assert label("lwf") == "LwF"
    assert label("lwf", 8, budget=180.0) == "LwF, width 8, 180 s"
    assert label("lwf", preset="paper") == "LwF, published settings"
    assert label("finetune", preset="paper") == "finetune"
    assert label("lwf", label="night") == "night, LwF", "two methods share no folder"
    assert label("lwf", label="night", methods=("lwf",)) == "night"
