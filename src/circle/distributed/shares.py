"""What one process of several takes of a lesson: some of the images, or some of the groups of the ensemble."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from circle import files
from circle.data.sources import Sample, Source
from circle.distributed import model_parts
from circle.distributed.mapped import mapped_in
from circle.distributed.team import Team, require_exact
from circle.learner import CircleClassifier


@dataclass(frozen=True)
class ModelChoice:
    """What the user's flags say about the model."""

    new: Callable[[], CircleClassifier]
    check: Callable[[CircleClassifier], None]  # refuse flags that contradict a model that is there already


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
    """A whole ensemble that has learned this process's images since the last save; the first one's also all before."""

    def __init__(self, team: Team, path: Path, choice: ModelChoice) -> None:
        self.team, self.path = team, path
        self.piles, self.pile = team.size, team.rank

        def opened() -> CircleClassifier:
            if not path.exists():
                model = choice.new().set_params(device=team.device)
                require_exact(model)
                return model.prepare(model.input_config())
            model = CircleClassifier.load(path, device=team.device)
            require_exact(model)
            choice.check(model)
            return model

        # The others take settings and grids from the first, so they need neither the file nor the same processor.
        model = team.together(lambda: opened() if team.first else None)
        header, tensors = files.blueprint(model) if model is not None else ({}, {})
        header = team.broadcast(header)
        for rank in range(1, team.size) if team.first else ():
            team.send(tensors, rank)
        tensors = tensors if team.first else team.receive(0)
        self.model: CircleClassifier = team.together(
            lambda: model or files.empty_learner(header, tensors, team.device, path)
        )

    def samples(self, source: Source) -> Iterator[Sample]:
        return source.share(self.team.rank, self.team.size)

    def save(self) -> None:
        total = self.team.summed(self.model.statistics_)
        # From here on the sum is the first process's, and the others start from nothing.
        self.model.replace_statistics(total if self.team.first else self.model.new_statistics())
        self.team.together(lambda: self.model.save(self.path) if self.team.first else None)


class GroupShare:
    """Some of the groups of an ensemble, which learn all images."""

    piles, pile = 1, 0

    def __init__(self, team: Team, path: Path, choice: ModelChoice) -> None:
        self.team, self.path = team, path

        def shares() -> list[model_parts.Contents]:
            header, tensors = self._contents(choice)
            bounds = model_parts.share_bounds(header["settings"]["groups"], team.size)
            return [model_parts.share_of(header, tensors, *each) for each in bounds]

        contents = team.together(lambda: shares() if team.first else [])
        headers = team.broadcast({"headers": [header for header, _ in contents]})["headers"]
        for rank, (_, tensors) in list(enumerate(contents))[1:]:
            team.send(tensors, rank)
        header, tensors = headers[team.rank], contents[0][1] if team.first else team.receive(0)
        make: Any = files.restored if tensors else files.empty_learner
        self.model: CircleClassifier = team.together(lambda: make(header, tensors, team.device, path))

    def _contents(self, choice: ModelChoice) -> model_parts.Contents:
        """Header and tensors of the whole model, which stay on disk; no tensors where it is new."""
        if self.path.exists():
            tensors, header = files.read(self.path)
            files.require_learning_kind(header, self.path)
            choice.check(files.described_learner(header, "cpu"))
            return header, tensors
        model = choice.new()
        settings = {**model.part_settings(), "image": model.input_config().to_dict()}
        return {"settings": settings, "resize_arrays": model.image_size is not None}, {}

    def samples(self, source: Source) -> Iterator[Sample]:
        return iter(source)

    def save(self) -> None:
        header, tensors = self.team.together(lambda: files.learning_contents(self.model))
        headers = self.team.exchange({"header": header})
        if not self.team.first:
            self.team.send(tensors, 0)
        contents, on_disk = [(header, tensors)], mapped_in(self.path.parent)
        if self.team.first:
            others = enumerate(headers[1:], start=1)
            contents += [(each["header"], self.team.receive(rank, on_disk)) for rank, each in others]
        whole, parts = model_parts.joined(contents)
        self.team.together(lambda: files.write(self.path, parts, whole) if self.team.first else None)
