"""The runs of a study: settings chosen once for a variant, then an ordinary run for every seed.

A study's folder holds, for each variant, ``selection.json`` and one folder a seed. Whatever is there is not done
again, so a killed study goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from circle.benchmark import campaign, results, selection
from circle.benchmark.campaign import Estimate, Job, Report
from circle.benchmark.features import FeatureStore, check_disk
from circle.benchmark.runner import Plan, Stream
from circle.benchmark.selection import Choice
from circle.data.tasks import task_sizes
from circle.method import CircleMethod
from circle.paper.ablation import Study, Variant


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
    selection.validation_split(stream.dataset.train.labels, request.share)
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
