"""An experiment: methods, splits and seeds on one data set, run one after the other, by one process or by several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from circle.benchmark import runner
from circle.benchmark.features import FeatureStore, cache_features
from circle.benchmark.jobs import CIRCLE, Job, Request, estimate, jobs
from circle.benchmark.results import STATE, Run, TensorBoardLog, check_folder
from circle.benchmark.runner import Progress, Stream
from circle.config import check_names
from circle.data.datasets import Dataset, load_dataset
from circle.data.decode import ImageConfig
from circle.data.download import cache_folder
from circle.data.image_sizes import AUTO, SIDES, side_for
from circle.data.user_images import kind_of, open_images
from circle.distributed import environment
from circle.distributed.model_groups import group_bounds
from circle.errors import CircleError
from circle.learner import CircleClassifier
from circle.machine import stop_requests
from circle.presets import DEFAULT
from circle.presets.forms import family_of, form_note
from circle.presets.published_settings import settings_for
from circle.registry import list_methods, resolve

if TYPE_CHECKING:
    from circle.benchmark.distributed_method import DistributedCircle
    from circle.distributed.communicator import Communicator

USER_DATA = "folder"  # the registered name of images of the user's own


class StoppedError(KeyboardInterrupt):
    """An experiment was interrupted: finished tasks are kept, and the same call resumes from them."""


def run(
    dataset: str | Dataset | None = None,
    *,
    tasks: int | str | Sequence[int | str],
    data: Path | str | None = None,
    method: str | Sequence[str] = CIRCLE,
    preset: str | Path | None = None,
    classifier: CircleClassifier | Callable[[], CircleClassifier] | None = None,
    seeds: int | str | Sequence[int] = 0,
    output: Path | str = "results",
    label: str | None = None,
    class_order_seed: int = 0,
    image_size: int | None = None,
    images_per_class: int | None = None,
    rival: Mapping[str, Any] | None = None,
    budget: float | None = None,
    time_limit: float | None = None,
    confusion: bool = False,
    tensorboard: Path | str | None = None,
    cache: Path | str | bool = True,
    workers: int = 0,
    shard: environment.Sharding = "data",
    timeout_seconds: float = 1800.0,
    command: str = "",
    progress: Progress | None = None,
) -> list[Run]:
    """Run methods through a class-incremental stream and keep the record; a killed run resumes when called again.

    Parameters
    ----------
    dataset
        Name of a data set (``circle.list_datasets()``), or one that was loaded.
    tasks
        Number of equal tasks, or sizes such as ``"50+50x1"``; or several of these, which CIRCLE does in one pass.
    data
        Images of your own, as ``circle learn`` takes them; with ``dataset``: where that one is.
    method
        ``"circle"`` and any of ``circle.list_methods()``.
    preset
        A preset's name or TOML file, for CIRCLE and, with ``"paper"``, for its rivals.
    classifier
        CIRCLE's settings instead of a preset's: a classifier that has learned nothing, or what makes one.
    seeds
        Model seeds: a number, several, or text such as ``"0-4"`` or ``"0,3,7"``.
    output
        Folder for the records: in it one for the data set, in that one for each run.
    label
        How reports call these runs.
    class_order_seed
        Seed of the class order; it never touches the model.
    image_size
        Side in pixels that images are brought to.
    images_per_class
        Learn from the first so many training images of each class only; the test images stay.
    rival
        Settings of methods other than CIRCLE.
    budget
        Seconds of learning that the rivals' epochs are fitted to, by timing their steps beforehand.
    time_limit
        Seconds of learning after which a method is stopped; the record says how far it came.
    confusion
        Also keep who was taken for whom at the end, as ``confusion.csv``.
    tensorboard
        Folder for TensorBoard logs (an extra).
    cache
        Folder for cached features of frozen extractors; True for one in the data folder, False for none.
    workers
        Processes that decode image files; 0 decodes in this one.
    shard
        What each process of torchrun takes: a shard of the images, or all images for a shard of CIRCLE's groups.
    timeout_seconds
        How long the processes of torchrun wait for each other before they give up.
    command
        The command line, for the record.
    progress
        Told how it goes.

    Returns
    -------
    list of Run
        A run for each method and seed (for rivals: and split), in this order. In a process of torchrun other than
        rank zero, which alone keeps records: none.

    Raises
    ------
    StoppedError
        A KeyboardInterrupt, after Ctrl-C or SIGTERM; the task under way is finished and kept.

    Examples
    --------
    >>> import tempfile
    >>> from circle.benchmark import run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (digits,) = run("digits", tasks=[2, 5], preset="small", output=folder, cache=False)
    >>> digits.info["label"], digits.complete
    ('CIRCLE small', True)
    >>> digits.record("5").final_accuracy > 0.95, len(digits.record("5").accuracy_after_task)
    (True, 5)
    """
    progress = progress or Progress()
    methods = tuple([method] if isinstance(method, str) else method)

    def new_classifier(seed: int) -> CircleClassifier:
        name = dataset.origin or dataset.name if isinstance(dataset, Dataset) else dataset
        if classifier is None:
            made = CircleClassifier.from_settings(settings_for(str(preset or DEFAULT), name), f"preset {preset}")
        elif isinstance(classifier, CircleClassifier):
            made = CircleClassifier(**classifier.get_params(deep=False))
        else:
            made = classifier()
        if made.image_size == AUTO and image_size is not None:
            made.set_params(image_size=image_size)
        return made.set_params(seed=seed)

    def prepared() -> tuple[Stream, FeatureStore | None, Iterator[Job]]:
        """All that can be wrong with the request is found here, where several processes say it once."""
        check_names(methods, [CIRCLE, *list_methods()], "method")
        for name, value in (("time-limit", time_limit), ("budget", budget)):
            if value is not None and value <= 0:
                raise CircleError(f"{name} {value:g}: expected seconds, more than 0")
        request = Request(
            methods=methods,
            tasks=tuple(map(str, [tasks] if isinstance(tasks, int | str) else tasks)),
            seeds=seed_numbers(seeds),
            preset=None if preset is None else str(preset),
            label=label,
            class_order_seed=class_order_seed,
            command=command,
            rival=dict(rival or {}),
            budget=budget,
        )
        for folder in (output, tensorboard) if environment.is_rank_zero() else ():  # it alone writes records
            check_folder(folder)
        images = open_dataset(
            dataset,
            data,
            image_size=image_size,
            images_per_class=images_per_class,
            workers=workers,
            classifier=new_classifier(0) if CIRCLE in methods else None,
        )
        store = feature_store(cache)
        planned = jobs(request, images, Path(output), new_classifier)
        first = next(planned)  # what is wrong with the request is said here
        if shard == "groups" and first.classifier is not None:
            group_bounds(first.classifier.groups, environment.world_size())  # all of a request have as many groups
        return Stream.of(images, class_order_seed), store, chain([first], planned)

    runs: list[Run] = []
    with _connected(methods, timeout_seconds) as ranks:
        stream, store, planned = prepared() if ranks is None else ranks.on_all_ranks(prepared)
        if ranks is not None:
            from circle.benchmark.distributed_method import check_same_data

            check_same_data(ranks, stream.dataset)
        if stream.dataset.note and (ranks is None or ranks.is_rank_zero):
            progress.note(stream.dataset.note)
        note = form_remark(new_classifier(0), stream.dataset.image) if CIRCLE in methods else ""
        if note and (ranks is None or ranks.is_rank_zero):
            progress.note(note)
        for job in planned:
            if ranks is not None and not ranks.is_rank_zero:
                _follow_job(job, stream, store, ranks, shard)
                continue
            finished = run_job(
                job,
                stream,
                store,
                progress,
                confusion=confusion,
                tensorboard=None if tensorboard is None else Path(tensorboard),
                time_limit=time_limit,
                ranks=ranks,
                sharding=shard,
            )
            runs.append(finished)
    return runs


def open_dataset(
    dataset: str | Dataset | None,
    data: Path | str | None = None,
    *,
    image_size: int | None = None,
    images_per_class: int | None = None,
    workers: int = 0,
    classifier: CircleClassifier | None = None,
) -> Dataset:
    """A data set by its name, or images of the user's own by their path alone; perhaps a balanced part of it.

    Where nobody gave an image size, pictures of the user's own come in that of ``classifier``, or in the one that suits
    them where it leaves this to the images. Data sets and arrays have sizes of their own.
    """
    if dataset is None and data is None:
        raise CircleError("no data given: expected --data, a path to labelled images, or --dataset with a name")
    if classifier is not None and image_size is None and data is not None and dataset in (None, USER_DATA):
        image_size = _picture_side(classifier, Path(data).expanduser())
    if isinstance(dataset, Dataset):
        images = dataset
    else:
        images = load_dataset(dataset or USER_DATA, path=data, image_size=image_size, workers=workers)
    return images if images_per_class is None else images.balanced_part(images_per_class)


def _picture_side(classifier: CircleClassifier, data: Path) -> int | None:
    """The side that a user's pictures are brought to for this classifier; None: as they are, or as by default."""
    if classifier.image_size == AUTO and kind_of(data) in ("folder", "zip"):
        suited = classifier.with_form(*(open_images(data).typical_size() or (SIDES[0], SIDES[0])))
        assert isinstance(suited.image_size, int)
        return suited.image_size
    fixed = classifier.image_size
    return fixed if isinstance(fixed, int) and kind_of(data) in ("folder", "zip") else None


def form_remark(classifier: CircleClassifier, image: ImageConfig) -> str:
    """What to say of the form that images of a data set decide for; nothing of the plain one, which results are of."""
    family = family_of(resolve("extractor", classifier.extractor)) if classifier.image_size == AUTO else None
    side = side_for(image.height, image.width)
    return "" if family is None or side == SIDES[0] else form_note(family, image.height, image.width)


def feature_store(cache: Path | str | bool = True) -> FeatureStore | None:
    """The folder of cached features: this one, the usual one (True), or none (False)."""
    if cache is False:
        return None
    folder = cache_folder() / "features" if cache is True else Path(cache)
    check_folder(folder)
    return FeatureStore(folder)


def seed_numbers(seeds: int | str | Sequence[int]) -> tuple[int, ...]:
    """
    >>> seed_numbers("0-2,5"), seed_numbers(3), seed_numbers([1, 2])
    ((0, 1, 2, 5), (3,), (1, 2))
    """
    if not isinstance(seeds, str):
        return (seeds,) if isinstance(seeds, int) else tuple(seeds)
    found: list[int] = []
    for part in seeds.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            raise CircleError(f"seeds {seeds!r}: expected numbers such as 0-4 or 0,3,7")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def run_job(
    job: Job,
    stream: Stream,
    store: FeatureStore | None,
    progress: Progress,
    *,
    confusion: bool = False,
    tensorboard: Path | None = None,
    time_limit: float | None = None,
    ranks: Communicator | None = None,
    sharding: environment.Sharding = "data",
) -> Run:
    """One run, unless it is done already; with several processes, rank zero's part in it."""
    done = runner.finished_run(job.plan, stream, job.folder)
    if ranks is not None:
        ranks.broadcast({"run": done is None})
    if done is not None:
        progress.finished(done)
        return done
    log = None if tensorboard is None else TensorBoardLog(tensorboard / job.folder.parent.name / job.folder.name)
    progress.begin(job.plan.label, job.plan.seed)
    try:
        if ranks is None:
            _check_needs(job, stream, store, progress, {})
            method = job.build()
        else:
            shards = {"image_shards" if sharding == "data" else "group_shards": ranks.world_size}
            ranks.on_rank_zero(lambda: _check_needs(job, stream, store, progress, shards))
            method = _distributed_method(job, stream, ranks, sharding)
        if store is not None:
            extract = partial(cache_features, method, stream.dataset, store, progress.features)
            extract() if ranks is None else ranks.on_all_ranks(extract)
        # Only here: before the first task an interruption may end the program at once, nothing is lost by it.
        with stop_requests() as stop:
            if ranks is not None:
                ranks.stop_requests = stop

            def stopping() -> bool:
                return bool(stop) or (ranks is not None and ranks.stop_requested)

            finished = runner.run_stream(
                job.plan,
                stream,
                method,
                job.folder,
                progress=progress,
                confusion=confusion,
                should_stop=stopping,
                time_limit=time_limit,
                log=log,
            )
            if ranks is not None:
                cast("DistributedCircle", method).end(stopped=stopping())
            stopped = stopping()
    finally:
        progress.end()
        if log is not None:
            log.close()
    progress.finished(finished)
    if stopped:
        raise StoppedError
    return finished


def _check_needs(
    job: Job, stream: Stream, store: FeatureStore | None, progress: Progress, shards: Mapping[str, int]
) -> None:
    """Say what a run will take, before it takes it; refuse what does not fit."""
    needed = estimate(job, stream, store, **shards)
    if needed is not None:
        progress.needs(needed.memory, needed.disk, needed.seconds)
        needed.check()


# -- several ranks -------------------------------------------------------------------------------------------


@contextmanager
def _connected(methods: Sequence[str], timeout_seconds: float) -> Iterator[Communicator | None]:
    """The processes that torchrun started, or None where this is the only one."""
    if environment.world_size() == 1:
        yield None
        return
    from circle.distributed.communicator import connect

    with connect("cpu", timeout_seconds) as ranks:
        rivals = [name for name in methods if name != CIRCLE]
        if rivals:
            ranks.fail(f"method {rivals[0]!r}: several processes run {CIRCLE} alone; start it without torchrun")
        yield ranks


def _distributed_method(
    job: Job, stream: Stream, ranks: Communicator, sharding: environment.Sharding
) -> DistributedCircle:
    """This rank's part of CIRCLE; all ranks make it together."""
    from circle.benchmark.distributed_method import DistributedCircle

    assert job.classifier is not None
    return DistributedCircle.build(job.classifier, stream.dataset, ranks, sharding, job.folder / STATE)


def _follow_job(
    job: Job, stream: Stream, store: FeatureStore | None, ranks: Communicator, sharding: environment.Sharding
) -> None:
    """The part of every rank but zero in :func:`run_job`, which prints nothing."""
    if not ranks.broadcast(None)["run"]:
        return
    ranks.on_all_ranks(lambda: None)  # meanwhile rank zero finds out whether there is room for the run
    method = _distributed_method(job, stream, ranks, sharding)
    if store is not None:
        ranks.on_all_ranks(lambda: cache_features(method, stream.dataset, store, lambda what, done, total: None))
    with stop_requests() as ranks.stop_requests:
        stopped = method.follow()
    if stopped:
        raise StoppedError
