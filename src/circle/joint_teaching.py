"""Teach one model file by several processes; the file is bitwise the one that :mod:`circle.teaching` would write.

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
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from circle import checkpoint, model_file, model_parts
from circle.distributed import Team
from circle.errors import CircleError, UnreadableImageError
from circle.learner import CircleClassifier
from circle.machinery import TILE
from circle.streams.decode import ImageConfig
from circle.streams.sources import Sample, Source, open_source
from circle.teaching import Lesson, check_lesson, check_outcome, learn_tile, numbered

Shard = Literal["data", "groups"]


@dataclass(frozen=True)
class ModelChoice:
    """What the user's flags say about the model."""

    new: Callable[[], CircleClassifier]
    check: Callable[[CircleClassifier], None]  # refuse flags that contradict a model that is there already


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
        team.together(lambda: stack.enter_context(checkpoint.exclusive(path)) if team.first else None)
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
    left = True
    while left:
        tile = list(islice(samples, TILE))
        team.together(lambda tile=tile: [sample.pixels(image) for sample in tile])
        left = any(answer["left"] for answer in team.exchange({"left": bool(tile)}))


# -- the two ways to share ---------------------------------------------------------------------------------------


class Share(Protocol):
    """One process's part of the work."""

    model: CircleClassifier
    piles: int  # different sets of images in a round
    pile: int  # which of them is this process's

    def samples(self, source: Source) -> Iterator[Sample]: ...

    def save(self) -> None:
        """Write what all processes have learned; all of them take part."""
        ...


class DataShare:
    """A whole ensemble that has learned this process's images since the last save; the first one's knows it all then."""

    def __init__(self, team: Team, path: Path, choice: ModelChoice) -> None:
        self.team, self.path = team, path
        self.piles, self.pile = team.size, team.rank

        def opened() -> CircleClassifier:
            if not path.exists():
                model = choice.new().set_params(device=team.device)
                return model.prepare(model.input_config())
            model = CircleClassifier.load(path, device=team.device)
            model._require_learning()
            choice.check(model)
            return model

        # The others take settings and grids from the first, so they need neither the file nor the same processor.
        model = team.together(lambda: opened() if team.first else None)
        header, tensors = model_file.blueprint(model) if model is not None else ({}, {})
        header = team.broadcast(header)
        for rank in range(1, team.size) if team.first else ():
            team.send(tensors, rank)
        tensors = tensors if team.first else team.receive(0)
        self.model: CircleClassifier = team.together(
            lambda: model or model_file.built(CircleClassifier, header, tensors, team.device, path)
        )

    def samples(self, source: Source) -> Iterator[Sample]:
        return source.share(self.team.rank, self.team.size)

    def save(self) -> None:
        total = self.team.summed(self.model.statistics_)
        # From here on the sum is the first process's, and the others start from nothing.
        self.model.statistics_ = total if self.team.first else [*map(self.model._new_statistics, self.model.groups_)]
        self.team.together(lambda: self.model.save(self.path) if self.team.first else None)


class GroupShare:
    """Some of the groups of an ensemble, which learn all images."""

    piles, pile = 1, 0

    def __init__(self, team: Team, path: Path, choice: ModelChoice) -> None:
        self.team, self.path = team, path

        def shares() -> list[model_parts.Contents]:
            header, tensors = self._contents(choice)
            groups = header["settings"]["groups"]
            if groups < team.size:
                raise CircleError(
                    f"{team.size} processes for {groups} groups: expected at least as many groups, or --shard data"
                )
            return [model_parts.share_of(header, tensors, *bounds) for bounds in model_parts.share_bounds(groups, team.size)]

        contents = team.together(lambda: shares() if team.first else [])
        headers = team.broadcast({"headers": [header for header, _ in contents]})["headers"]
        for rank, (_, tensors) in list(enumerate(contents))[1:]:
            team.send(tensors, rank)
        header, tensors = headers[team.rank], contents[0][1] if team.first else team.receive(0)
        make = model_file.restored if tensors else model_file.built
        self.model: CircleClassifier = team.together(
            lambda: make(CircleClassifier, header, tensors, team.device, path)
        )

    def _contents(self, choice: ModelChoice) -> model_parts.Contents:
        """Header and tensors of the whole model, which stay on disk; no tensors where it is new."""
        if self.path.exists():
            tensors, header = checkpoint.read(self.path)
            model = model_file.described(CircleClassifier, header, "cpu")
            model._prediction_only = header["kind"] == "prediction"
            model._require_learning()
            choice.check(model)
            return header, tensors
        model = choice.new()
        settings = {**model.part_settings(), "image": model.input_config().to_dict()}
        return {"settings": settings, "resize_arrays": model.image_size is not None}, {}

    def samples(self, source: Source) -> Iterator[Sample]:
        return iter(source)

    def save(self) -> None:
        header, tensors = self.team.together(lambda: model_file.learning_contents(self.model))
        headers = self.team.exchange({"header": header})
        if not self.team.first:
            self.team.send(tensors, 0)
        contents = [(header, tensors)]
        with contextlib.ExitStack() as files:

            def on_disk(shape: list[int], dtype: torch.dtype) -> Tensor:
                """What others send is mapped from a file without a name: it need not fit into memory."""
                array = np.empty(shape, str(dtype).removeprefix("torch."))
                if array.size:
                    file = files.enter_context(tempfile.TemporaryFile(dir=self.path.parent))
                    array = np.memmap(file, array.dtype, "w+", shape=tuple(shape))
                return torch.from_numpy(array)

            for rank in range(1, self.team.size) if self.team.first else ():
                contents.append((headers[rank]["header"], self.team.receive(rank, on_disk)))
            whole = model_parts.joined(contents)
            self.team.together(lambda: checkpoint.write(self.path, whole[1], whole[0]) if self.team.first else None)


# -- rounds ------------------------------------------------------------------------------------------------------


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
    codes = {label: code for code, label in enumerate(source.labels)}
    samples = share.samples(source)
    saved, wrong = time.monotonic(), None
    while True:
        tile: list[Sample] = []
        try:
            tile = list(islice(samples, TILE))
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
        learned = [entry for position, *entry in readable if str(position) not in reasons[share.pile]]
        try:
            if learned:
                learn_tile(share.model, [(pixels, sample) for pixels, sample in learned])
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
