"""Teach one model file by several ranks; the file is bitwise the one that :mod:`circle.learning` would write.

The source is gone through in rounds. In each, every rank reads a batch of images and sends their digests; rank zero,
which alone keeps the ledger, answers which of them are new; these are learned. A copy of an image has its label and
content, so it makes no difference which rank learns the first and which the second.

What is divided among the ranks (``--shard``), images or groups, is the matter of :mod:`circle.distributed.shards`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from circle import files
from circle.data.decode import ImageConfig
from circle.data.folders import check_none_ignored
from circle.data.images import Images, Sample
from circle.data.user_images import open_images
from circle.distributed.communicator import Communicator
from circle.distributed.environment import Sharding
from circle.distributed.model_groups import Contents
from circle.distributed.shards import Shard, make_shard, new_contents
from circle.ensemble import IMAGES_PER_TILE
from circle.errors import CircleError, UnreadableImageError
from circle.learner import CircleClassifier
from circle.learning import Bookkeeper, LearningProgress, check_learnable, check_outcome, learn_batch, suited
from circle.runtime import container

Entry = list[Any]  # of an image in a round: number of its label, digest as hex or None, why it is unreadable


def learn_on_all_ranks(
    ranks: Communicator,
    path: Path,
    data: Path,
    *,
    new_model: Callable[[], CircleClassifier],
    check_model: Callable[[CircleClassifier], None],
    sharding: Sharding = "data",
    strict: bool = False,
    checkpoint_seconds: float = 30.0,
    report: Callable[[LearningProgress], None] = lambda progress: None,
) -> tuple[LearningProgress, CircleClassifier]:
    """Learn all images of ``data`` that the model at ``path``, or a new one, has not learned yet.

    Rank zero alone reads and writes ``path``; ``data`` must be the same for all.

    Parameters
    ----------
    new_model : callable
        Makes the model where there is no file at ``path``.
    check_model : callable
        Refuses a model at ``path`` that contradicts what the user asked for.
    sharding, strict, checkpoint_seconds, report
        What is divided among the ranks; the others as in :func:`circle.learning.teach`.

    Returns
    -------
    progress : LearningProgress
        What was learned, complete on rank zero alone; all ranks know whether it was stopped.
    model : CircleClassifier
        The whole model, or this rank's groups of it.
    """

    notes: list[str] = []

    def contents() -> Contents:
        if not path.exists():
            model, why = suited(new_model(), source)
            notes.extend(why)
            return new_contents(model, model.input_config())
        tensors, header = files.read(path)
        files.require_learning_kind(header, path)
        check_model(files.described_learner(header, "cpu"))
        return header, tensors

    with contextlib.ExitStack() as stack:
        source = ranks.on_all_ranks(lambda: open_images(data))
        ranks.require_equal(
            {"listing": source.listing(), "images": len(source)},
            lambda rank, found: (
                f"{source.path}: process {rank} of {ranks.world_size} finds other images ({found[rank]['images']}) "
                f"there than process 0 ({found[0]['images']}); expected the same on all machines, or models learned "
                "apart and `circle merge`"
            ),
        )
        ranks.on_rank_zero(lambda: stack.enter_context(container.exclusive(path)))
        shard = make_shard(sharding, ranks, contents, path)
        image = ranks.on_all_ranks(lambda: check_learnable(source, shard.model))
        if strict:
            ranks.on_all_ranks(lambda: check_none_ignored(source))
            _try_all(ranks, iter(source.shard(shard.image_part, shard.image_parts)), image)
        progress = _learn_in_rounds(shard, source, image, checkpoint_seconds, report)
        ranks.on_rank_zero(lambda: check_outcome(progress, source))
        progress.notes = [*progress.notes, *notes]
    return progress, shard.model


def _try_all(ranks: Communicator, samples: Iterator[Sample], image: ImageConfig) -> None:
    """Read every image before the first is learned; the first that cannot be read is an error on all ranks."""

    def try_batch() -> bool:
        batch = list(islice(samples, IMAGES_PER_TILE))
        for sample in batch:
            sample.pixels(image)
        return bool(batch)

    some_left = True
    while some_left:  # in rounds, so that no rank waits for long
        own = ranks.on_all_ranks(try_batch)
        some_left = any(answer["left"] for answer in ranks.all_gather({"left": own}))


def _learn_in_rounds(
    shard: Shard,
    source: Images,
    image: ImageConfig,
    checkpoint_seconds: float,
    report: Callable[[LearningProgress], None],
) -> LearningProgress:
    ranks = shard.ranks
    book = Bookkeeper(shard.model.ledger_, source)  # kept on rank zero alone
    numbers: dict[Any, int] = {label: number for number, label in enumerate(source.classes)}
    samples = iter(source.shard(shard.image_part, shard.image_parts))
    saved, error = time.monotonic(), None
    while True:
        batch: list[Sample] = []
        try:
            batch = list(islice(samples, IMAGES_PER_TILE))
        except CircleError as caught:
            error = error or str(caught)
        entries: list[Entry] = [[numbers[sample.label], *_digest(sample)] for sample in batch]
        answers = ranks.all_gather({"entries": entries, "error": error})
        ranks.raise_first([answer["error"] for answer in answers])
        batches = [answer["entries"] for answer in answers]
        if shard.image_parts == 1:
            batches = [_agree(ranks, batches)]
        end = not any(batches)
        leave = end or ranks.stop_requested
        due = leave or time.monotonic() - saved >= checkpoint_seconds
        if ranks.broadcast({"save": due and book.unsaved > 0})["save"]:
            shard.save()
            saved, book.unsaved = time.monotonic(), 0
        if leave:
            book.progress.stopped = ranks.stop_requested and not end
            return book.progress
        new = [_choose(book, source, entries) for entries in batches] if ranks.is_rank_zero else []
        chosen = ranks.broadcast({"chosen": [list(each) for each in new]})["chosen"][shard.image_part]
        readable, unreadable = _decode([(position, batch[position]) for position in chosen], image)
        reasons: list[dict[str, str]] = [{} for _ in batches]
        for rank, answer in enumerate(ranks.all_gather({"unreadable": unreadable})):
            reasons[rank % shard.image_parts] |= answer["unreadable"]
        tile = [
            (pixels, sample) for position, pixels, sample in readable if str(position) not in reasons[shard.image_part]
        ]
        try:
            if tile:
                learn_batch(shard.model, tile)
        except CircleError as caught:
            error = str(caught)  # raised at the start of the next round, before anything is saved
        if ranks.is_rank_zero:
            for each, broken in zip(new, reasons, strict=True):
                book.progress.unreadable += broken.values()
                book.add([entry for position, entry in each.items() if str(position) not in broken])
            report(book.progress)


def _digest(sample: Sample) -> tuple[str | None, str]:
    try:
        return sample.digest().hex(), ""
    except UnreadableImageError as error:
        return None, str(error)


def _choose(book: Bookkeeper, source: Images, entries: list[Entry]) -> dict[int, tuple[Any, bytes]]:
    """Label and digest of the images of a batch that are to be learned, by their positions in it."""
    chosen: dict[int, tuple[Any, bytes]] = {}
    for position, (number, digest, reason) in enumerate(entries):
        if digest is None:
            book.progress.unreadable.append(reason)
            continue
        label = source.classes[number]
        new = book.new_digest(label, bytes.fromhex(digest))
        if new is not None:
            chosen[position] = label, new
    return chosen


def _decode(
    samples: list[tuple[int, Sample]], image: ImageConfig
) -> tuple[list[tuple[int, np.ndarray, Sample]], dict[str, str]]:
    """Positions, pixels and samples of those that can be read, and reasons of those that cannot."""
    readable, unreadable = [], {}
    for position, sample in samples:
        try:
            readable.append((position, sample.pixels(image), sample))
        except UnreadableImageError as error:
            unreadable[str(position)] = str(error)
    return readable, unreadable


def _agree(ranks: Communicator, batches: list[list[Entry]]) -> list[Entry]:
    """The one batch of a round in which all ranks read the same images; what one rank cannot read, none learns."""
    merged = batches[0]
    for rank, entries in enumerate(batches):
        for position, (mine, theirs) in enumerate(zip(merged, entries, strict=True)):
            if theirs[1] is None:
                merged[position] = theirs
            elif mine[1] not in (None, theirs[1]):
                found = f"process {rank} of {ranks.world_size} read other images than process 0"
                ranks.fail(f"{found}: expected the same data on all machines")
    return merged
