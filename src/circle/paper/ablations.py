"""The paper's three studies: one choice varies, the rest of CIRCLE and its size stay the same.

What is not under study is held fixed, and the head's own settings are chosen for every variant on held-back
training images (:mod:`circle.benchmark.selection`), once, and then used for all seeds of the variant: an ordinary run
for each. A study's folder holds, for each variant, ``selection.json`` and one folder a seed. Whatever is there is not
done again, so a killed study goes on where it was.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from circle.benchmark import campaign, results, selection
from circle.benchmark.campaign import Estimate, Job, Report
from circle.benchmark.features import FeatureStore, check_disk
from circle.benchmark.runner import Plan
from circle.benchmark.selection import Choice
from circle.config import Config, check_names
from circle.data.hold_out import hold_out
from circle.data.tasks import Stream, task_sizes
from circle.errors import CircleError
from circle.heads import HeadConfig
from circle.learner import CircleClassifier
from circle.method import CircleMethod
from circle.paper import published
from circle.presets import read_preset
from circle.presets.published import DATASETS as PUBLISHED_DATASETS
from circle.presets.published import circle_preset
from circle.registry import list_extractors, list_heads, resolve

Name = Literal["extractor", "head", "ensemble"]
Projection = Literal["linear", "relu"]

PUBLISHED_FORM = "birc2d_published"
# Quick ones first, so that a long study has something to show early; others follow.
EXTRACTOR_ORDER = (
    *("local_contrast", "patch_rnn", "birc2d", "conv_patch_rnn", "scattering", "vgg13", PUBLISHED_FORM),
    *("resnet18_bn", "resnet18_ln"),
)
# How a folder's name puts what all variants of a study have: "head-k2-m1-d1024-relu-t20".
SHORT = {"extractors": "n", "groups": "k", "members": "m", "head_size": "d", "member_size": "d", "projection": ""}
HEAD_ORDER = ("ncm", "cosine_ncm", "diagonal_lda", "slda", "ridge", "mahalanobis", "qda")


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
    # The ablations are at 20 tasks; the extractor is the same for every number of them.
    settings = circle_preset(dataset, 20) if dataset in PUBLISHED_DATASETS else read_preset("paper")
    return resolve("extractor", settings["extractor"])


def _head(base: CircleClassifier) -> HeadConfig:
    head = resolve("head", base.head)
    assert isinstance(head, HeadConfig)
    return head


def _ordered(variants: dict[str, Variant], order: Sequence[str]) -> tuple[Variant, ...]:
    known = [variants[key] for key in order if key in variants]
    return (*known, *(variant for key, variant in variants.items() if key not in order))


@dataclass(frozen=True)
class StudyRequest:
    """What one call of ``circle bench ablation`` asks for."""

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
        return Estimate(0, None, 0)
    missing: dict[Path, int] = {}
    for classifier in to_do:
        missing |= campaign.missing_features(classifier, stream, store)
    largest = max((campaign.estimate(each, stream, None) for each in to_do), key=lambda each: each.memory)
    disk = sum(missing.values())
    check_disk(store.folder, disk)
    whole = Estimate(largest.memory, largest.memory_available, disk)
    whole.check()
    return whole


def chosen_settings(
    request: StudyRequest, variant: Variant, stream: Stream, store: FeatureStore, report: Report
) -> Choice:
    """The settings of a variant's head: those chosen before, or chosen now on the training images of the first seed."""
    path = request.folder(stream, variant) / selection.FILE
    basis = _basis(request, variant, stream)
    choice = selection.recall(path, basis)
    if choice is not None:
        return choice
    classifier = variant.classifier(request.replicates[0]).prepare(stream.dataset.image)
    images = stream.dataset.train

    def extracted(done: int, total: int) -> None:
        report("features of training images", done, total)

    features, _ = campaign.features_of(classifier, images, store, extracted)
    choice = selection.choose_head(
        classifier,
        features,
        images.labels,
        share=request.share,
        report=lambda done, total: report("settings on held-back images", done, total),
    )
    selection.remember(path, choice, basis)
    return choice


def study_jobs(request: StudyRequest, variant: Variant, choice: Choice, stream: Stream) -> Iterable[Job]:
    """A run for every seed, all with the chosen settings."""
    for replicate in request.replicates:
        classifier = variant.classifier(replicate, choice.head)
        plan = Plan(
            campaign.CIRCLE,
            variant.label,
            request.preset,
            request.tasks,
            classifier.seed,
            {**classifier.part_settings(), "image": stream.dataset.image.to_dict()},
            request.class_order_seed,
            request.command,
            {
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

        yield Job(plan, folder, build, classifier)


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
