"""From a request ("these methods, splits and seeds on that data set") to jobs, one a run, and what each will need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from circle.baselines.costs import Course, fit_budget, memory_needed, probe
from circle.baselines.trainer import TrainerConfig
from circle.benchmark.features import FeatureStore, check_disk
from circle.benchmark.results import INFO, read_run
from circle.benchmark.runner import Plan
from circle.config import Config
from circle.data.datasets import Dataset
from circle.data.image_sizes import SIDES
from circle.data.tasks import Stream, task_sizes
from circle.errors import CircleError
from circle.extractors import Extractor, ImageShape, build_extractor
from circle.heads import HeadConfig
from circle.learner import CircleClassifier
from circle.machine import require_memory
from circle.method import CircleMethod, Method
from circle.presets import DEFAULT, read_preset
from circle.presets.forms import preset_for
from circle.presets.published_settings import METHODS, method_key, rival_settings
from circle.registry import entry, resolve
from circle.statistics import SAMPLES_PER_PRODUCT, memory_of

CIRCLE, PAPER = "circle", "paper"
PUBLISHED_WIDTH = 64  # of the ResNets


@dataclass(frozen=True)
class Request:
    """What to run: every method with every seed on every split.

    Parameters
    ----------
    methods
        ``"circle"`` and any of the registered methods.
    tasks
        Splits, such as ``"20"`` (equal tasks) or ``"50+50x1"`` (sizes).
    seeds
        Model seeds.
    preset
        A preset's name or TOML file; None for the defaults.
    label
        How reports call the runs; None for the method's own name.
    class_order_seed
        Seed of the class order; it never touches the model.
    command
        The command line, for the record.
    rival
        Settings of methods other than CIRCLE.
    budget
        Seconds of learning that the rivals' epochs are fitted to.
    """

    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    preset: str | None = None
    label: str | None = None
    class_order_seed: int = 0
    command: str = ""
    rival: dict[str, Any] = field(default_factory=dict)
    budget: float | None = None


@dataclass(frozen=True)
class Job:
    """One run to be done: its plan, its folder and how to make its method."""

    plan: Plan
    folder: Path
    build: Callable[[], Method]
    classifier: CircleClassifier | None = None  # CIRCLE's, not prepared yet, so that its needs can be estimated
    rival: TrainerConfig | None = None  # what a rival's needs are estimated from, with the course of its stream
    course: Course | None = None


def jobs(
    request: Request, dataset: Dataset, output: Path, new_classifier: Callable[[int], CircleClassifier]
) -> Iterator[Job]:
    """The runs of a request. A method that does not care how the stream is cut does all splits in one run."""
    for split in request.tasks:
        task_sizes(split, len(dataset.classes))  # says at once which splits are impossible
    _check_rival_settings(request)
    for name in request.methods:
        for seed in request.seeds:
            if name == CIRCLE:
                yield _circle_job(request, seed, dataset, output, new_classifier)
            else:
                for split in request.tasks:
                    yield _method_job(request, name, split, seed, dataset, output)


def _check_rival_settings(request: Request) -> None:
    """Every setting must belong to one of the methods that are run."""
    rivals = [name for name in request.methods if name != CIRCLE]
    for setting in request.rival:
        if not any(setting in entry("method", name).config.field_names() for name in rivals):
            raise CircleError(f"setting {setting!r} of a rival: none of {', '.join(request.methods)} has it")


def _circle_job(
    request: Request, seed: int, dataset: Dataset, output: Path, new_classifier: Callable[[int], CircleClassifier]
) -> Job:
    asked, image = new_classifier(seed), dataset.image
    classifier = asked.with_form(image.height, image.width)
    # Members take consecutive seeds: runs of different seeds share none.
    classifier.set_params(seed=seed * classifier.groups * classifier.members)
    config = {**classifier.part_settings(), "image": dataset.image.to_dict()}
    # Whoever asks for other parts than the preset's wants to tell the runs apart.
    preset = request.preset or DEFAULT
    own = CircleClassifier.from_preset(preset).part_settings()
    if classifier.image_size != asked.image_size and classifier.image_size != SIDES[0]:
        preset = preset_for(preset, image.height, image.width)
    names = [config[kind]["name"] for kind in ("extractor", "head") if config[kind]["name"] != own[kind]["name"]]
    label = request.label or ", ".join([f"CIRCLE {preset}", *names])
    plan = _plan(request, method=CIRCLE, label=label, tasks=request.tasks, seed=seed, config=config)
    return Job(
        plan=plan,
        folder=_folder(output, dataset, plan),
        build=lambda: CircleMethod(classifier.prepare(dataset.image)),
        classifier=classifier,
    )


def _method_job(request: Request, name: str, split: str, seed: int, dataset: Dataset, output: Path) -> Job:
    registered = entry("method", name)
    config = rival_config(request, name, split, dataset)
    label = rival_label(request, name, config)
    plan = _plan(request, method=name, label=label, tasks=(split,), seed=seed, config=config.to_dict())
    folder = _folder(output, dataset, plan)
    course = course_of(dataset, split, request.class_order_seed)
    if request.budget is not None and isinstance(config, TrainerConfig):
        if (folder / INFO).exists():
            # Epochs were fitted when the run began; timed again they might come out differently.
            config = registered.config.from_dict(read_run(folder).info["config"])
        else:
            config = fit_budget(config, course, image_shape(dataset), request.budget)
        plan = replace(plan, config=config.to_dict(), budget=request.budget)
    trained = config if isinstance(config, TrainerConfig) else None
    return Job(plan=plan, folder=folder, build=lambda: registered.part(config, seed=seed), rival=trained, course=course)


def course_of(dataset: Dataset, split: str, class_order_seed: int) -> Course:
    """Images and classes of each task of a split."""
    counts = np.bincount(dataset.train.labels, minlength=len(dataset.classes))
    classes = task_sizes(split, len(dataset.classes))
    ordered = counts[Stream.of(dataset, class_order_seed).order]
    return Course([int(part.sum()) for part in np.split(ordered, np.cumsum(classes)[:-1])], classes)


def rival_label(request: Request, name: str, config: Config) -> str:
    """How reports call a rival: its name, and what sets these runs apart from the published ones."""
    shown = METHODS.get(method_key(name) or "", name)
    if request.label:
        return request.label if len(request.methods) == 1 else f"{request.label}, {shown}"
    settings = config.get_params()
    remarks = [shown]
    if settings.get("network") == "resnet18" and settings["width"] != PUBLISHED_WIDTH:
        remarks.append(f"width {settings['width']}")
    if request.preset == PAPER and method_key(name) is not None:
        remarks.append("published settings")
    if request.budget is not None:
        remarks.append(f"{request.budget:g} s")
    return ", ".join(remarks)


def rival_config(request: Request, name: str, split: str, dataset: Dataset) -> Config:
    """A rival's settings: published ones with the preset ``paper``, else its defaults, and the given ones on top."""
    config = entry("method", name).config
    base: dict[str, Any] = {}
    if request.preset == PAPER and method_key(name) is not None:
        base = rival_settings(dataset.origin or dataset.name, split, name)
    elif request.preset is not None and request.preset.endswith(".toml"):
        base = read_preset(request.preset).get("methods", {}).get(name, {})
    return config(**base).replace(**{key: value for key, value in request.rival.items() if key in config.field_names()})


def _plan(request: Request, **own: Any) -> Plan:
    return Plan(preset=request.preset, class_order_seed=request.class_order_seed, command=request.command, **own)


def _folder(output: Path, dataset: Dataset, plan: Plan) -> Path:
    name = "-".join([plan.label.lower().replace(" ", "-"), "t" + "_".join(plan.tasks), f"seed{plan.seed}"])
    return output / dataset.name / "".join(letter if letter.isalnum() or letter in "-_+" else "-" for letter in name)


@dataclass(frozen=True)
class Estimate:
    """What a run will take at most: bytes of memory and disk, and seconds of learning where they were timed."""

    memory: int
    disk: int
    seconds: float | None = None

    def check(self) -> None:
        """Refuse what does not fit into memory."""
        advice = "use fewer members or groups, a smaller preset, or a narrower network"
        require_memory(self.memory, "this run", advice)


def estimate(job: Job, stream: Stream, store: FeatureStore | None, **shards: int) -> Estimate | None:
    """What a job will need; None for a method of which nothing is known."""
    if job.classifier is not None:
        return circle_estimate(job.classifier, stream, store, **shards)
    if job.rival is None or job.course is None:
        return None
    # Memory follows from the settings; seconds are found by a few steps on noise.
    shape = image_shape(stream.dataset)
    return Estimate(
        memory=memory_needed(job.rival, shape, job.course),
        disk=0,
        seconds=probe(job.rival, shape).total(job.rival, job.course),
    )


def circle_estimate(
    classifier: CircleClassifier,
    stream: Stream,
    store: FeatureStore | None,
    *,
    image_shards: int = 1,
    group_shards: int = 1,
) -> Estimate:
    """What a run of CIRCLE will need, from its settings alone: nothing large is built for it.

    The images or the groups may be divided into shards. Memory is that of the shard with the most groups, disk that
    of all, should they have the same one.
    """
    classes = len(stream.order)
    size = classifier.members * member_of(classifier, stream.dataset).size
    head = resolve("head", classifier.head)
    parts = head.parts if isinstance(head, HeadConfig) else ()
    statistics = memory_of(size, classes, parts) + SAMPLES_PER_PRODUCT * size
    if "class_triangles" in parts:
        statistics += 8 * classes * size**2  # a square factor for every class while it predicts
    groups = -(-classifier.groups // group_shards)
    memory = groups * statistics + 3 * 8 * size**2  # the covariance, its factor, a work space
    disk = 0
    if store is not None:
        disk = sum(missing_features(classifier, stream, store, image_shards).values())
        check_disk(store.folder, disk)
    return Estimate(memory, disk)


def missing_features(
    classifier: CircleClassifier, stream: Stream, store: FeatureStore, image_shards: int = 1
) -> dict[Path, int]:
    """Files of features that a run will have to make, and their bytes."""
    config, shape = resolve("extractor", classifier.extractor), image_shape(stream.dataset)
    member = _member(config, shape)
    seeds = range(classifier.seed, classifier.seed + classifier.groups * classifier.members)
    paths = {
        store.path(config, shape, seed, images): len(images) * member.size * member.bits // 8
        for whole in (stream.dataset.train, stream.dataset.test)
        for images in (whole.shard(rank, image_shards) for rank in range(image_shards))
        for seed in seeds
    }
    return {path: needed for path, needed in paths.items() if not path.exists()}


def member_of(classifier: CircleClassifier, dataset: Dataset) -> Extractor:
    """One of a classifier's members, to be asked for its sizes."""
    return _member(resolve("extractor", classifier.extractor), image_shape(dataset))


def image_shape(dataset: Dataset) -> ImageShape:
    image = dataset.image
    return ImageShape(image.channels, image.height, image.width)


@lru_cache(maxsize=1)  # it may hold large weights
def _member(config: Config, shape: ImageShape) -> Extractor:
    """An extractor to ask for its size and bits: the seed makes no difference to them."""
    return build_extractor(config, shape, 0)
