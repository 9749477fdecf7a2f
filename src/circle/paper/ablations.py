"""The paper's three studies: one choice varies, the rest of CIRCLE and its size stay the same.

What is not under study is held fixed, and the head's own settings are chosen for every variant on held-back
training images (:mod:`circle.benchmark.selection`), once, and then used for all seeds of the variant: an ordinary run
for each. A study's folder holds, for each variant, ``selection.json`` and one folder a seed. Whatever is there is not
done again, so a killed study resumes where it was.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from circle.benchmark import jobs, results, selection
from circle.benchmark.experiment import run_job
from circle.benchmark.features import FeatureStore, check_disk, features_of
from circle.benchmark.jobs import CIRCLE, Estimate, Job
from circle.benchmark.results import Run
from circle.benchmark.runner import Plan, Progress
from circle.benchmark.selection import Choice
from circle.config import Config, check_names
from circle.data.hold_out import hold_out
from circle.data.tasks import Stream, task_sizes
from circle.errors import CircleError
from circle.heads import HeadConfig
from circle.learner import CircleClassifier
from circle.method import CircleMethod
from circle.paper import published_results as published
from circle.presets.published_settings import settings_for
from circle.registry import list_extractors, list_heads, resolve

Name = Literal["extractor", "head", "ensemble"]
Projection = Literal["linear", "relu"]

PUBLISHED_FORM = "birc2d_published"
# Quick ones first, so that a long study has something to show early; others follow.
EXTRACTOR_ORDER = (
    "local_contrast",
    "patch_rnn",
    "birc2d",
    "conv_patch_rnn",
    "scattering",
    "vgg13",
    PUBLISHED_FORM,
    "resnet18_bn",
    "resnet18_ln",
)
# How a folder's name puts what all variants of a study have: "head-k2-m1-d1024-relu-t20".
SHORT = {"extractors": "n", "groups": "k", "members": "m", "head_size": "d", "member_size": "d", "projection": ""}
HEAD_ORDER = ("ncm", "cosine_ncm", "diagonal_lda", "slda", "ridge", "mahalanobis", "qda", "subspace_qda")


@dataclass(frozen=True)
class Variant:
    """One row of a study."""

    key: str
    label: str
    extractor: Config
    head: HeadConfig
    groups: int
    members: int

    def classifier(self, replicate: int, head: HeadConfig | None = None) -> CircleClassifier:
        """The classifier of one replicate, not prepared yet.

        Members take consecutive seeds, so replicate r starts at seed r k m: no two replicates share a member.
        """
        seed = replicate * self.groups * self.members
        return CircleClassifier(self.extractor, head or self.head, groups=self.groups, members=self.members, seed=seed)


@dataclass(frozen=True)
class Study:
    """Variants that differ in one choice, and the size that all of them have."""

    name: Name
    budget: dict[str, Any]
    variants: tuple[Variant, ...]

    def only(self, keys: Sequence[str]) -> Study:
        """The study with some of its variants."""
        check_names(keys, [variant.key for variant in self.variants], f"variant of the {self.name} study")
        return replace(self, variants=tuple(variant for variant in self.variants if variant.key in keys))

    def folder(self, output: Path, dataset: str, tasks: Sequence[str], variant: Variant) -> Path:
        """Where a variant's choice of settings is kept, and below it a folder for every seed."""
        size = "-".join(f"{SHORT[name]}{value}" for name, value in self.budget.items())
        return output / dataset / f"{self.name}-{size}-t{'_'.join(tasks)}" / variant.key


def make_study(
    name: Name,
    base: CircleClassifier,
    *,
    dataset: str,
    preset: str,
    sizes: Mapping[str, int],
    projection: Projection = "linear",
    budget: int = 16,
    member_size: int = 512,
    all_splits: bool = False,
    variants: Path | None = None,
    only: Sequence[str] = (),
) -> Study:
    """One of the paper's studies.

    Parameters
    ----------
    name
        ``"extractor"``, ``"head"`` or ``"ensemble"``.
    base
        The model of which one choice varies; ``preset`` is the name that it was made from.
    dataset
        Name of the data set, for the form of BiRC2D that the paper published for it.
    sizes
        ``groups``, ``members`` and ``head_size`` of the extractor and head studies.
    projection
        Last step of every extractor.
    budget, member_size, all_splits
        Extractors in all, values that each gives, and whether to take all divisors, for the ensemble study.
    variants
        A TOML file with more variants for the extractor study.
    only
        Some of the variants, by their keys; empty for all.
    """
    if variants is not None and name != "extractor":
        raise CircleError("--variants is for the extractor study")
    if name == "ensemble":
        study = ensemble_study(base, extractors=budget, size=member_size, projection=projection, all_splits=all_splits)
    elif name == "head":
        study = head_study(base, **sizes, projection=projection)
    else:
        study = extractor_study(dataset, base, preset, **sizes, projection=projection)
        study = study if variants is None else with_file(study, variants)
    return study.only(only) if only else study


def extractor_study(
    dataset: str,
    base: CircleClassifier,
    preset: str,
    *,
    groups: int,
    members: int,
    head_size: int,
    projection: Projection,
) -> Study:
    """Every registered extractor under the same head, projected to the same number of values.

    BiRC2D is there twice: as the base model, made from ``preset``, has it, and in the form that the paper published.
    """
    size = member_size(head_size, members)
    head = _head(base)
    variants: dict[str, Variant] = {}
    for name in list_extractors():
        own = resolve("extractor", base.extractor)
        config = projected(own if own.name == name else resolve("extractor", name), projection, size)
        label = published.EXTRACTORS.get(published.extractor_key(config.to_dict()) or "", name)
        if name == "birc2d":
            label = f"BiRC2D ({preset})"
            form = projected(published_form(dataset), projection, size)
            variants[PUBLISHED_FORM] = Variant(PUBLISHED_FORM, "BiRC2D (published form)", form, head, groups, members)
        variants[name] = Variant(name, label, config, head, groups, members)
    budget = {"groups": groups, "members": members, "head_size": head_size, "projection": projection}
    return Study("extractor", budget, _ordered(variants, EXTRACTOR_ORDER))


def with_file(study: Study, path: Path) -> Study:
    """An extractor study with more variants from a TOML file; one of the same key takes the other's place.

    Each ``[[variant]]`` has ``key``, ``label`` and a table ``extractor``, and may have a table ``head``. The size is
    the study's; its kind of projection too, unless the table names one.
    """
    try:
        given = tomllib.loads(path.read_text())["variant"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise CircleError(f"{path}: expected a TOML file with tables [[variant]] ({error})") from error
    variants = {variant.key: variant for variant in study.variants}
    pattern = study.variants[0]
    for values in given:
        check_names(values, ["key", "label", "extractor", "head"], f"{path} setting")
        if not {"key", "label", "extractor"} <= set(values) or not str(values["key"]).replace("_", "").isalnum():
            raise CircleError(f"{path}: every [[variant]] needs a plain key, a label and an extractor")
        table = {"projection": study.budget["projection"], **values["extractor"]}
        size = member_size(study.budget["head_size"], study.budget["members"])
        extractor = projected(resolve("extractor", table), table["projection"], size)
        head = resolve("head", values.get("head", pattern.head))
        assert isinstance(head, HeadConfig)
        made = replace(pattern, key=values["key"], label=values["label"], extractor=extractor, head=head)
        variants[made.key] = made
    return replace(study, variants=tuple(variants.values()))


def head_study(base: CircleClassifier, *, groups: int, members: int, head_size: int, projection: Projection) -> Study:
    """Every registered head on the same features."""
    extractor = projected(resolve("extractor", base.extractor), projection, member_size(head_size, members))
    variants: dict[str, Variant] = {}
    for name in list_heads():
        own = _head(base)
        config = own if own.name == name else resolve("head", name)
        assert isinstance(config, HeadConfig)
        label = published.HEADS.get(published.head_key(config.to_dict()) or "", name).removesuffix(" (CIRCLE)")
        variants[name] = Variant(name, label, extractor, config, groups, members)
    budget = {"groups": groups, "members": members, "head_size": head_size, "projection": projection}
    return Study("head", budget, _ordered(variants, HEAD_ORDER))


def ensemble_study(
    base: CircleClassifier, *, extractors: int, size: int, projection: Projection, all_splits: bool = False
) -> Study:
    """A fixed number n of extractors, shared out as m members for each of k heads with k m = n.

    All allocations have the very same extractors, so their features are computed once. By default m is 1, n, and
    the divisor nearest to the root of n, as in the paper; ``all_splits`` takes all divisors.
    """
    if extractors < 1:
        raise CircleError(f"{extractors} extractors to share out: expected at least 1")
    divisors = [number for number in range(1, extractors + 1) if extractors % number == 0]
    balanced = min(divisors, key=lambda number: abs(number - extractors / number))
    chosen = divisors if all_splits else sorted({1, balanced, extractors})
    config, head = projected(resolve("extractor", base.extractor), projection, size), _head(base)
    variants = tuple(
        Variant(f"m{m}k{extractors // m}", f"m = {m}, k = {extractors // m}", config, head, extractors // m, m)
        for m in chosen
    )
    budget = {"extractors": extractors, "member_size": size, "projection": projection}
    return Study("ensemble", budget, variants)


def member_size(head_size: int, members: int) -> int:
    """Values that each of m members gives to a head of this size."""
    if members < 1 or head_size < 1 or head_size % members:
        raise CircleError(f"a head of {head_size} values for {members} members: expected a multiple of the members")
    return head_size // members


def projected(config: Config, projection: Projection, size: int) -> Config:
    """The extractor with a random projection to this many values at its end; whether it is sparse stays as it is."""
    if "projection_size" not in config.field_names():
        raise CircleError(f"extractor {config.name!r} has no random projection: it cannot be brought to {size} values")
    return config.replace(projection=projection, projection_size=size)


def published_form(dataset: str) -> Config:
    """BiRC2D with the settings that the paper states for a data set; for others, with those for CIFAR-100."""
    return resolve("extractor", settings_for("paper", dataset)["extractor"])


def _head(base: CircleClassifier) -> HeadConfig:
    head = resolve("head", base.head)
    assert isinstance(head, HeadConfig)
    return head


def _ordered(variants: dict[str, Variant], order: Sequence[str]) -> tuple[Variant, ...]:
    known = [variants[key] for key in order if key in variants]
    return (*known, *(variant for key, variant in variants.items() if key not in order))


@dataclass(frozen=True)
class StudyRequest:
    """What one call of ``circle bench ablation`` asks for.

    Parameters
    ----------
    study
        The variants and their size (:func:`make_study`).
    tasks
        Splits, such as ``"20"``; all are done in one pass.
    replicates
        Replicate r has the model seed r k m, so that no two of them share an extractor.
    share
        Share of the training images of every class that is held back to choose the head's settings.
    preset, command
        For the record.
    class_order_seed
        Seed of the class order; it never touches the model.
    output
        Folder for the records.
    """

    study: Study
    tasks: tuple[str, ...]
    replicates: tuple[int, ...]
    share: float
    preset: str | None
    class_order_seed: int
    command: str
    output: Path

    def folder(self, stream: Stream, variant: Variant) -> Path:
        return self.study.folder(self.output, stream.dataset.name, self.tasks, variant)


class StudyProgress(Progress):
    """What a display of a study is told, besides what its runs tell; does nothing unless overridden."""

    def study(self, study: Study, needed: Estimate) -> None:
        """What the whole study will take at most."""

    def choosing(self, variant: Variant, what: str, done: int, total: int) -> None:
        """The settings of a variant's head are being chosen."""

    def chosen(self, variant: Variant, choice: Choice) -> None:
        """The settings that all seeds of a variant have."""


def run_study(
    request: StudyRequest, stream: Stream, store: FeatureStore, progress: StudyProgress | None = None
) -> list[Run]:
    """All variants of a study, one after the other: settings are chosen, then every seed is run.

    Parameters
    ----------
    request
        The study, its splits and replicates, and where the records go.
    stream
        The data set in its class order.
    store
        Where features are kept: variants share many of them.
    progress
        Told how it goes.

    Returns
    -------
    list of Run
        The runs of all variants and seeds; those that were on record already among them.
    """
    progress = progress or StudyProgress()
    progress.study(request.study, check(request, stream, store))
    if stream.dataset.note:
        progress.note(stream.dataset.note)
    runs: list[Run] = []
    for variant in request.study.variants:
        choice = chosen_settings(request, variant, stream, store, partial(progress.choosing, variant))
        progress.chosen(variant, choice)
        runs += [run_job(job, stream, store, progress) for job in study_jobs(request, variant, choice, stream)]
    return runs


def check(request: StudyRequest, stream: Stream, store: FeatureStore) -> Estimate:
    """What the largest variant takes of memory, and all of them of disk; refused at once where it is too much.

    Runs that are finished take nothing.
    """
    for split in request.tasks:
        task_sizes(split, len(stream.order))
    hold_out(stream.dataset.train.labels, request.share)
    to_do = [
        variant.classifier(replicate)
        for variant in request.study.variants
        for replicate in request.replicates
        if not _finished(request.folder(stream, variant) / _seed_folder(variant.classifier(replicate).seed))
    ]
    if not to_do:
        return Estimate(memory=0, disk=0)
    missing: dict[Path, int] = {}
    for classifier in to_do:
        missing |= jobs.missing_features(classifier, stream, store)
    disk = sum(missing.values())
    check_disk(store.folder, disk)
    whole = Estimate(memory=max(jobs.circle_estimate(each, stream, None).memory for each in to_do), disk=disk)
    whole.check()
    return whole


def chosen_settings(
    request: StudyRequest,
    variant: Variant,
    stream: Stream,
    store: FeatureStore,
    report: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Choice:
    """The settings of a variant's head: those chosen before, or chosen now on the training images of the first seed."""
    path = request.folder(stream, variant) / selection.FILE
    basis = _basis(request, variant, stream)
    choice = selection.recall(path, basis)
    if choice is not None:
        return choice
    classifier = variant.classifier(request.replicates[0]).prepare(stream.dataset.image)
    images = stream.dataset.train

    features, _ = features_of(classifier, images, store, partial(report, "features of training images"))
    choice = selection.choose_head(
        classifier,
        features,
        images.labels,
        share=request.share,
        report=partial(report, "settings on held-back images"),
    )
    selection.remember(path, choice, basis)
    return choice


def study_jobs(request: StudyRequest, variant: Variant, choice: Choice, stream: Stream) -> Iterable[Job]:
    """A run for every seed, all with the chosen settings."""
    for replicate in request.replicates:
        classifier = variant.classifier(replicate, choice.head)
        plan = Plan(
            method=CIRCLE,
            label=variant.label,
            preset=request.preset,
            tasks=request.tasks,
            seed=classifier.seed,
            config={**classifier.part_settings(), "image": stream.dataset.image.to_dict()},
            class_order_seed=request.class_order_seed,
            command=request.command,
            study={
                "name": request.study.name,
                "variant": variant.key,
                "budget": request.study.budget,
                "replicate": replicate,
                "selected": choice.settings,
                "at_the_edge": choice.at_the_edge,
                "validation_accuracy": choice.accuracy,
                "validation_share": choice.share,
            },
        )
        folder = request.folder(stream, variant) / _seed_folder(plan.seed)

        def build(classifier=classifier) -> CircleMethod:
            return CircleMethod(classifier.prepare(stream.dataset.image))

        yield Job(plan=plan, folder=folder, build=build, classifier=classifier)


def _seed_folder(seed: int) -> str:
    return f"seed{seed}"


def _finished(folder: Path) -> bool:
    return (folder / results.INFO).exists() and results.read_run(folder).complete


def _basis(request: StudyRequest, variant: Variant, stream: Stream) -> dict[str, Any]:
    """All that a choice depends on but for the seed: it is made once, with whichever seed came first."""
    return {
        "extractor": variant.extractor.to_dict(),
        "head": variant.head.to_dict(),
        "groups": variant.groups,
        "members": variant.members,
        "data": stream.dataset.train.fingerprint,
        "share": request.share,
    }
