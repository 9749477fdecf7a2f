"""From a model to a smaller one: step by step, every step measured, none taken that costs more than allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from circle.compression.measure import Timing, file_bytes, time_models
from circle.compression.ranking import dropping_order
from circle.compression.validation import Validation
from circle.compression.workshop import PartId, Variant, Workshop
from circle.errors import CircleError
from circle.heads.scores import CODE_TYPES, Weights
from circle.heads.slda import SLDAConfig
from circle.learner import CircleClassifier

Report = Callable[[str], None]
Way = Literal["weights", "groups", "parts", "rank"]
WAYS: tuple[Way, ...] = get_args(Way)


@dataclass(frozen=True)
class CompressionConfig:
    """Options of a search for a smaller model: what it may cost and which ways it may go.

    ``ways`` are tried in the order of ``WAYS`` whatever their order here; None: all that the model allows.
    """

    ways: tuple[Way, ...] | None = None
    weights: Weights | None = None  # None: the smallest format whose loss is accepted
    max_loss: float = 0.5  # points of accuracy on the validation images
    target_bytes: int | None = None  # no further than this
    shares: tuple[float, ...] = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the parts kept
    rank_shares: tuple[float, ...] = (0.95, 0.9, 0.8, 0.65, 0.5, 0.25)  # of the number of classes
    timing_seconds: float = 20.0

    def __post_init__(self) -> None:
        for way in self.ways or ():
            if way not in WAYS:
                raise CircleError(f"way {way!r}: expected {', '.join(WAYS)}")
        if self.weights is not None and self.weights not in CODE_TYPES:
            raise CircleError(f"weights {self.weights!r}: expected {', '.join(CODE_TYPES)}")
        if not 0 <= self.max_loss <= 100:
            raise CircleError(f"max loss {self.max_loss:g}: expected points of accuracy, from 0 to 100")
        if self.target_bytes is not None and self.target_bytes <= 0:
            raise CircleError(f"target size {self.target_bytes}: expected a positive number of bytes")
        if self.timing_seconds < 0:
            raise CircleError(f"timing seconds {self.timing_seconds:g}: expected 0 or more")


@dataclass(frozen=True)
class Step:
    """A variant that was tried, and what was measured of it."""

    way: Way | None  # None: the model as it is, packed for prediction
    weights: Weights
    rank: int | None
    groups: int
    parts: int
    features: int
    accuracy: float
    loss: float  # points below the first step
    file_bytes: int
    accepted: bool
    chosen: bool = False
    one_image: Timing | None = None
    batch: Timing | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Compression:
    """All steps, the first being the model as it is, and the model that was chosen."""

    model: CircleClassifier
    steps: list[Step]
    images: int
    batch_size: int
    unreadable: list[str]

    @property
    def chosen(self) -> Step:
        return next(step for step in self.steps if step.chosen)


def compress(model: CircleClassifier, X: Any, y: Any, **config: Any) -> CircleClassifier:
    """A smaller model for prediction, chosen on labelled images that ``model`` has not learned.

    Keywords are the fields of :class:`circle.compression.CompressionConfig`, such as ``max_loss=0.5``.
    """
    settings = CompressionConfig(**{"timing_seconds": 0.0, **config})
    return explore(model, Validation.of_arrays(model, X, y), settings, timed=False).model


def compress_weights(model: CircleClassifier, weights: Weights = "float16") -> CircleClassifier:
    """The same model for prediction with weights in another format: what needs no images, and no choice."""
    CompressionConfig(weights=weights)
    workshop = Workshop(model)
    return workshop.build(workshop.whole._replace(weights=weights))


def explore(
    model: CircleClassifier,
    validation: Validation,
    config: CompressionConfig | None = None,
    report: Report = lambda what: None,
    *,
    timed: bool = True,
) -> Compression:
    """Try the ways one after the other, each from the best step so far; measure all steps; choose."""
    config = config or CompressionConfig()
    search = _Search(Workshop(model, validation), config, report)
    search.run()
    steps = search.steps
    if timed:
        report("timing")
        models = [search.workshop.build(variant) for variant in search.variants]
        singles = time_models(models, validation.images[:1], config.timing_seconds / 2)
        batches = time_models(models, validation.images, config.timing_seconds / 2)
        steps = [
            replace(step, one_image=single, batch=batch)
            for step, single, batch in zip(steps, singles, batches, strict=True)
        ]
    steps[search.best] = replace(steps[search.best], chosen=True)
    result = search.workshop.build(search.variants[search.best])
    return Compression(result, steps, len(validation), len(validation.images), validation.unreadable)


class _Search:
    """The state of a search: what was tried, and which of it is the best so far."""

    def __init__(self, workshop: Workshop, config: CompressionConfig, report: Report) -> None:
        self.workshop, self.config, self.report = workshop, config, report
        self.ways = _possible_ways(workshop, config)
        self.steps: list[Step] = []
        self.variants: list[Variant] = []
        self.best = 0

    def run(self) -> None:
        self._try(None, self.workshop.whole)
        for way in self.ways:
            if self._small_enough(self.best):
                break
            self.report(way)
            tried = [self._try(way, variant) for variant in self._candidates(way)]
            self._choose(tried)
        self._check_result()

    def _candidates(self, way: Way) -> Iterator[Variant]:
        """Variants to try, the mildest first."""
        variant = self.variants[self.best]
        if way == "weights":
            formats: tuple[Weights, ...] = ("float16", "int8")
            for each in formats if self.config.weights is None else (self.config.weights,):
                yield variant._replace(weights=each)
        elif way == "groups":
            while len(groups := {part.group for part in variant.parts}) > 1:
                fewer = [_without_group(variant, group) for group in sorted(groups)]
                variant = max(fewer, key=self.workshop.accuracy)
                yield variant
        elif way == "parts":
            order = self._dropping_order(variant)
            counts = [min(round((1.0 - share) * len(variant.parts)), len(order)) for share in self.config.shares]
            for count in sorted(set(counts) - {0}):
                left = set(variant.parts).difference(order[:count])
                yield variant._replace(parts=tuple(part for part in variant.parts if part in left))
        else:
            classes = len(self.workshop.model._classes())
            ranks = {max(1, round(share * classes)) for share in self.config.rank_shares}
            for rank in sorted(ranks, reverse=True):
                yield variant._replace(rank=rank)

    def _dropping_order(self, variant: Variant) -> list[PartId]:
        model, groups = self.workshop.model, sorted({part.group for part in variant.parts})
        head = model._head_config()
        parts = [
            {part: self.workshop.columns[part] for part in variant.parts if part.group == group} for group in groups
        ]
        config = head if isinstance(head, SLDAConfig) else SLDAConfig()
        return dropping_order([model.statistics_[group] for group in groups], parts, config)

    def _try(self, way: Way | None, variant: Variant) -> int:
        """Measure a variant; its number."""
        accuracy = self.workshop.accuracy(variant)
        loss = 100.0 * (self.steps[0].accuracy - accuracy) if self.steps else 0.0
        step = Step(
            way=way,
            weights=variant.weights,
            rank=variant.rank,
            groups=len({part.group for part in variant.parts}),
            parts=len(variant.parts),
            features=self.workshop.features(variant.parts),
            accuracy=accuracy,
            loss=loss,
            file_bytes=file_bytes(self.workshop.build(variant)),
            accepted=loss <= self.config.max_loss + 1e-9,
        )
        self.steps.append(step)
        self.variants.append(variant)
        return len(self.steps) - 1

    def _choose(self, tried: list[int]) -> None:
        """The last accepted step that makes the file smaller; where a size is wanted, the first that reaches it."""
        for index in tried:
            if self.steps[index].accepted and self.steps[index].file_bytes < self.steps[self.best].file_bytes:
                self.best = index
                if self._small_enough(index):
                    return

    def _small_enough(self, index: int) -> bool:
        target = self.config.target_bytes
        return target is not None and self.steps[index].file_bytes <= target

    def _check_result(self) -> None:
        target, best = self.config.target_bytes, self.steps[self.best]
        if target is not None and best.file_bytes > target:
            raise CircleError(
                f"target of {target:,} bytes: the smallest model that loses at most {self.config.max_loss:g} points "
                f"has {best.file_bytes:,}; expected a larger target or a larger loss allowed"
            )
        if self.config.weights is not None and best.weights != self.config.weights:
            loss = next(step.loss for step in self.steps if step.weights == self.config.weights)
            raise CircleError(
                f"weights {self.config.weights}: they lose {loss:.2f} points, {self.config.max_loss:g} are allowed"
            )


def _without_group(variant: Variant, group: int) -> Variant:
    return variant._replace(parts=tuple(part for part in variant.parts if part.group != group))


def _possible_ways(workshop: Workshop, config: CompressionConfig) -> list[Way]:
    """The ways wished for, or all that the model allows; a wish that it does not allow is an error."""
    model = workshop.model
    head = model._head_config().name
    refused: dict[Way, str] = {}
    if not workshop.linear():
        refused["weights"] = refused["rank"] = f"the head {head!r} is not linear"
    if len(model.groups_) == 1:
        refused["groups"] = "the model has one group"
    if not workshop.learning:
        refused["parts"] = "this model only predicts: expected the learning model it was made from"
    elif not model.statistics_[0].selectable:
        refused["parts"] = f"statistics of the head {head!r} cannot be cut"
    elif len(workshop.columns) == len(model.groups_):
        refused["parts"] = f"every group is one indivisible {model.groups_[0].members[0].config.name!r}"
    for way in config.ways or ():
        if way in refused:
            raise CircleError(f"way {way!r}: {refused[way]}")
    chosen: list[Way] = [way for way in WAYS if way not in refused and way in (config.ways or WAYS)]
    if config.weights is not None and "weights" not in chosen:
        reason = refused.get("weights", "the ways given leave them as they are")
        raise CircleError(f"weights {config.weights}: {reason}")
    if not chosen:
        raise CircleError(f"nothing to compress: {'; '.join(dict.fromkeys(refused.values()))}")
    return chosen
