"""Teach one model file by several processes; the file is bitwise the one that :mod:`circle.learning` would write.

The source is gone through in rounds. In each, every process reads a tile of images and tells their digests; the first
process, which alone keeps the ledger, says which of them are new; these are learned. A copy of an image has its label
and content, so it makes no difference which process learns the first and which the second.

Two ways to share the work (``--shard``):

data    Process r of R learns images r, r + R, ...; statistics are sums, so they are added up when the model is saved.
groups  Process r holds some of the ensemble's groups and learns all images with these, so that no machine needs the
        memory of all. The file is put together on disk.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from circle import files
from circle.data.decode import ImageConfig
from circle.data.sources import Sample, Source, open_source
from circle.distributed.processes import Shard
from circle.distributed.shares import DataShare, GroupShare, ModelChoice, Share
from circle.distributed.team import Team
from circle.ensemble import IMAGES_PER_TILE
from circle.errors import CircleError, UnreadableImageError
from circle.learner import CircleClassifier
from circle.learning import Lesson, check_lesson, check_outcome, learn_tile, numbered


def learn_together(
    team: Team,
    path: Path,
    data: Path,
    choice: ModelChoice,
    *,
    shard: Shard = "data",
    strict: bool = False,
    checkpoint_seconds: float = 30.0,
    report: Callable[[Lesson], None] = lambda lesson: None,
) -> tuple[Lesson, CircleClassifier]:
    """Learn all images of ``data`` that the model at ``path``, or a new one, has not learned yet.

    Only the first process reads and writes ``path``; ``data`` must be the same for all. What was learned is known to
    the first process's lesson alone; all know whether it was stopped. The model is the whole one, or this process's
    share of its groups.
    """
    with contextlib.ExitStack() as stack:
        source = team.together(lambda: open_source(data))
        _check_same_source(team, source)
        team.together(lambda: stack.enter_context(files.exclusive(path)) if team.first else None)
        share = (DataShare if shard == "data" else GroupShare)(team, path, choice)
        image = team.together(lambda: check_lesson(source, share.model))
        if strict:
            _try_all(team, share.samples(source), image)
        lesson = _teach(team, source, share, image, checkpoint_seconds, report)
        team.together(lambda: check_outcome(lesson, source) if team.first else None)
    return lesson, share.model


def _check_same_source(team: Team, source: Source) -> None:
    answers = team.exchange({"listing": source.listing(), "images": len(source)})
    for rank, answer in enumerate(answers):
        if answer != answers[0]:
            error = (
                f"{source.path}: process {rank} of {team.size} finds other images ({answer['images']}) there than "
                f"process 0 ({answers[0]['images']}); expected the same on all machines, or models learned apart and "
                "`circle merge`"
            )
            team.check([error] * team.size)


def _try_all(team: Team, samples: Iterator[Sample], image: ImageConfig) -> None:
    """Read every image before the first is learned; the first that cannot be read is everybody's error."""

    def tried() -> bool:
        tile = list(islice(samples, IMAGES_PER_TILE))
        for sample in tile:
            sample.pixels(image)
        return bool(tile)

    left = True
    while left:  # in rounds, so that nobody waits for long
        mine = team.together(tried)
        left = any(answer["left"] for answer in team.exchange({"left": mine}))


class Conductor:
    """The first process's book-keeping: the ledger of the model, copies within the source, and what became of it."""

    def __init__(self, model: CircleClassifier, source: Source) -> None:
        self.lesson = Lesson(len(source))
        self.unsaved = 0
        self._ledger, self._labels = model.ledger_, source.labels
        self._occurrences: Counter[bytes] = Counter()
        self._chosen: list[dict[int, tuple[Any, bytes]]] = []

    def choose(self, piles: list[list[list[Any]]]) -> list[list[int]]:
        """Positions of the images to be learned in each pile of (index of the label, digest or None, reason)."""
        self._chosen = []
        for pile in piles:
            chosen: dict[int, tuple[Any, bytes]] = {}
            for position, (code, text, reason) in enumerate(pile):
                if text is None:
                    self.lesson.unreadable.append(reason)
                    continue
                label, digest = self._labels[code], numbered(bytes.fromhex(text), self._occurrences)
                if (label, digest) in self._ledger:
                    self.lesson.known += 1
                else:
                    chosen[position] = label, digest
            self._chosen.append(chosen)
        return [list(chosen) for chosen in self._chosen]

    def conclude(self, broken: list[dict[str, str]]) -> None:
        """The chosen images are learned, but for those, by position, that turned out to be broken."""
        for chosen, reasons in zip(self._chosen, broken, strict=True):
            self.lesson.unreadable += reasons.values()
            learned = [entry for position, entry in chosen.items() if str(position) not in reasons]
            for label, digest in learned:
                self._ledger.add(label, digest)
            self.lesson.learned += len(learned)
            self.unsaved += len(learned)


def _teach(
    team: Team,
    source: Source,
    share: Share,
    image: ImageConfig,
    checkpoint_seconds: float,
    report: Callable[[Lesson], None],
) -> Lesson:
    conductor = Conductor(share.model, source)  # the others' know nothing, and are not asked
    codes: dict[Any, int] = {label: code for code, label in enumerate(source.labels)}
    samples = share.samples(source)
    saved, wrong = time.monotonic(), None
    while True:
        tile: list[Sample] = []
        try:
            tile = list(islice(samples, IMAGES_PER_TILE))
        except CircleError as error:
            wrong = wrong or str(error)
        pile = [[codes[sample.label], *_digest(sample)] for sample in tile]
        answers = team.exchange({"pile": pile, "wrong": wrong})
        team.check([answer["wrong"] for answer in answers])
        piles = _agreed(team, [answer["pile"] for answer in answers], share.piles)
        end = not any(piles)
        leave = end or team.stopping
        due = leave or time.monotonic() - saved >= checkpoint_seconds
        if team.broadcast({"save": due and conductor.unsaved > 0})["save"]:
            share.save()
            saved, conductor.unsaved = time.monotonic(), 0
        if leave:
            conductor.lesson.stopped = team.stopping and not end
            return conductor.lesson
        chosen = team.broadcast({"chosen": conductor.choose(piles) if team.first else []})["chosen"][share.pile]
        readable, broken = _decoded([(position, tile[position]) for position in chosen], image)
        answers = team.exchange({"broken": broken})
        reasons: list[dict[str, str]] = [{} for _ in range(share.piles)]
        for rank, answer in enumerate(answers):
            reasons[rank % share.piles] |= answer["broken"]
        learned = [
            (pixels, sample) for position, pixels, sample in readable if str(position) not in reasons[share.pile]
        ]
        try:
            if learned:
                learn_tile(share.model, learned)
        except CircleError as error:
            wrong = str(error)  # told at the start of the next round, before anything is saved
        if team.first:
            conductor.conclude(reasons)
            report(conductor.lesson)


def _digest(sample: Sample) -> tuple[str | None, str]:
    try:
        return sample.digest().hex(), ""
    except UnreadableImageError as error:
        return None, str(error)


def _decoded(
    samples: list[tuple[int, Sample]], image: ImageConfig
) -> tuple[list[tuple[int, np.ndarray, Sample]], dict[int, str]]:
    """Positions, pixels and samples of those that can be read, and reasons of those that cannot."""
    readable, broken = [], {}
    for position, sample in samples:
        try:
            readable.append((position, sample.pixels(image), sample))
        except UnreadableImageError as error:
            broken[position] = str(error)
    return readable, broken


def _agreed(team: Team, piles: list[list[list[Any]]], different: int) -> list[list[list[Any]]]:
    """The piles of a round. Where all processes read the same, an image that one cannot read is nobody's."""
    if different > 1:
        return piles
    merged = piles[0]
    for rank, pile in enumerate(piles):
        for position, (mine, theirs) in enumerate(zip(merged, pile, strict=True)):
            if theirs[1] is None:
                merged[position] = theirs
            elif mine[1] not in (None, theirs[1]):
                error = f"process {rank} of {team.size} read other images than process 0"
                team.check([f"{error}: expected the same data on all machines"] * team.size)
    return [merged]
