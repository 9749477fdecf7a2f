"""From a model to a smaller one: step by step, every step measured, none taken that costs more than allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from circle.compression.measurement import Timing, Validation, file_bytes, time_models
from circle.compression.ranking import dropping_order
from circle.compression.variants import PartId, Variant, VariantBuilder
from circle.errors import CircleError
from circle.heads.scores import CODE_TYPES, Weights
from circle.heads.slda import SLDAConfig
from circle.heads.subspace_qda import SubspaceQDAConfig
from circle.predictor import ImageClassifier, Predictor
from circle.statistics.parts import parts_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Report = Callable[[str], None]
Way = Literal["weights", "groups", "parts", "rank"]
WAYS: tuple[Way, ...] = get_args(Way)
ONLY_PREDICTS = "this model only predicts: expected the learning model it was made from"
WAYS_IN_WORDS = {
    None: "as it is",
    "weights": "weights in fewer bits",
    "groups": "fewer groups",
    "parts": "fewer parts",
    "rank": "lower rank",
}


@dataclass(frozen=True)
class CompressionConfig:
    """Options of a search for a smaller model: what it may cost and which ways it may go.

    Parameters
    ----------
    ways : tuple of str or None
        Of "weights", "groups", "parts" and "rank", tried in this order; None: all that the model allows.
    weights : {"float32", "float16", "int8"} or None
        Format of the weights; None: the smallest whose loss is accepted.
    max_loss : float
        Points of accuracy on the validation images that the smaller model may lose.
    target_bytes : int or None
        Size of the file to stop at.
    shares : tuple of float
        Shares of the parts to keep that are tried.
    rank_shares : tuple of float
        Ranks of the weights of a linear head that are tried, as shares of the number of classes.
    direction_shares : tuple of float
        Numbers of directions of each class that are tried, as shares of those of a head with a subspace.
    timing_seconds : float
        About how long to measure times.
    """

    ways: tuple[Way, ...] | None = None
    weights: Weights | None = None
    max_loss: float = 0.5
    target_bytes: int | None = None
    shares: tuple[float, ...] = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
    rank_shares: tuple[float, ...] = (0.95, 0.9, 0.8, 0.65, 0.5, 0.25)
    direction_shares: tuple[float, ...] = (0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)
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
    """What came of :func:`explore`.

    Attributes
    ----------
    model : Predictor
        The model that was chosen.
    steps : list of Step
        All that was tried, the first being the model as it is.
    images : int
        Number of validation images.
    batch_size : int
        Number of images in the batch that was timed.
    unreadable : list of str
        Why validation images were left out, one reason each.
    refused : dict
        Ways that the model does not allow, with the reason of each.
    """

    model: Predictor
    steps: list[Step]
    images: int
    batch_size: int
    unreadable: list[str]
    refused: Mapping[Way, str] = field(default_factory=dict)

    @property
    def chosen(self) -> Step:
        return next(step for step in self.steps if step.chosen)


def compress(model: ImageClassifier, X: Any, y: Any, **config: Any) -> Predictor:
    """A smaller model for prediction, chosen on labelled images that ``model`` has not learned.

    Keywords are the fields of :class:`circle.compression.CompressionConfig`, such as ``max_loss=0.5``.

    Examples
    --------
    >>> from circle import CircleClassifier
    >>> from sklearn.datasets import load_digits
    >>> images, labels = load_digits(return_X_y=True)
    >>> model = CircleClassifier(image_size=16).partial_fit(images[:500] / 16, labels[:500])
    >>> compress(model, images[500:700] / 16, labels[500:700], ways=("weights",), max_loss=2.0)
    Predictor(10 classes, 500 images learned, 1 group)
    """
    settings = CompressionConfig(**{"timing_seconds": 0.0, **config})
    return explore(model, Validation.of_arrays(model, X, y), settings, timed=False).model


def compress_weights(model: ImageClassifier, weights: Weights = "float16") -> Predictor:
    """The same model for prediction with weights in another format: what needs no images, and no choice."""
    CompressionConfig(weights=weights)
    builder = VariantBuilder(model)
    return builder.build(builder.whole._replace(weights=weights))


def explore(
    model: ImageClassifier,
    validation: Validation,
    config: CompressionConfig | None = None,
    report: Report = lambda what: None,
    *,
    timed: bool = True,
) -> Compression:
    """Try the ways one after the other, each from the best step so far; measure all steps; choose."""
    config = config or CompressionConfig()
    search = _Search(VariantBuilder(model, validation), config, report)
    search.run()
    steps = search.steps
    if timed:
        report("timing")
        models = [search.builder.build(variant) for variant in search.variants]
        singles = time_models(models, validation.images[:1], config.timing_seconds / 2)
        batches = time_models(models, validation.images, config.timing_seconds / 2)
        steps = [
            replace(step, one_image=single, batch=batch)
            for step, single, batch in zip(steps, singles, batches, strict=True)
        ]
    steps[search.best] = replace(steps[search.best], chosen=True)
    result = search.builder.build(search.variants[search.best])
    return Compression(
        result, steps, len(validation), len(validation.images), validation.unreadable, _refused_ways(search.builder)
    )


class _Search:
    """The state of a search: what was tried, and which of it is the best so far."""

    def __init__(self, builder: VariantBuilder, config: CompressionConfig, report: Report) -> None:
        self.builder, self.config, self.report = builder, config, report
        self.ways = _possible_ways(builder, config)
        self.steps: list[Step] = []
        self.variants: list[Variant] = []
        self.best = 0

    def run(self) -> None:
        self._try(None, self.builder.whole)
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
                variant = max(fewer, key=self.builder.accuracy)
                yield variant
        elif way == "parts":
            order = self._dropping_order(variant)
            counts = [min(round((1.0 - share) * len(variant.parts)), len(order)) for share in self.config.shares]
            for count in sorted(set(counts) - {0}):
                left = set(variant.parts).difference(order[:count])
                yield variant._replace(parts=tuple(part for part in variant.parts if part in left))
        else:
            directions = self.builder.directions
            full = directions or len(self.builder.predictor.labels)
            shares = self.config.direction_shares if directions else self.config.rank_shares
            for rank in sorted({max(1, round(share * full)) for share in shares}, reverse=True):
                yield variant._replace(rank=rank)

    def _dropping_order(self, variant: Variant) -> list[PartId]:
        statistics, groups = self.builder.statistics, sorted({part.group for part in variant.parts})
        assert statistics is not None, "parts are only left out of learning models"
        head = self.builder.predictor.head_config()
        parts = [
            {part: self.builder.columns[part] for part in variant.parts if part.group == group} for group in groups
        ]
        config = head if isinstance(head, SLDAConfig) else SLDAConfig()
        return dropping_order([statistics[group] for group in groups], parts, config)

    def _try(self, way: Way | None, variant: Variant) -> int:
        """Measure a variant; its number."""
        accuracy = self.builder.accuracy(variant)
        loss = 100.0 * (self.steps[0].accuracy - accuracy) if self.steps else 0.0
        step = Step(
            way=way,
            weights=variant.weights,
            rank=variant.rank,
            groups=len({part.group for part in variant.parts}),
            parts=len(variant.parts),
            features=self.builder.features(variant.parts),
            accuracy=accuracy,
            loss=loss,
            file_bytes=file_bytes(self.builder.build(variant)),
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


def _refused_ways(builder: VariantBuilder) -> dict[Way, str]:
    """The ways that the model does not allow, and why."""
    model, statistics = builder.predictor, builder.statistics
    head = model.head_config()
    refused: dict[Way, str] = {}
    if not builder.packable:
        refused["weights"] = refused["rank"] = f"the head {head.name!r} is not linear"
    if len(model.groups_) == 1:
        refused["groups"] = "the model has one group"
    if statistics is None:
        refused["parts"] = ONLY_PREDICTS
    elif not all(part.selectable for part in parts_named(head.parts)):
        refused["parts"] = f"statistics of the head {head.name!r} cannot be cut"
        if builder.directions is not None:
            refused["parts"] += ", its subspace mixes all features; expected the head 'slda', as with --head slda"
    elif len(builder.columns) == len(model.groups_):
        refused["parts"] = f"every group is one indivisible {model.groups_[0].members[0].config.name!r}"
    if builder.directions is not None and statistics is None:
        refused["rank"] = ONLY_PREDICTS
    elif builder.directions is not None and not isinstance(head, SubspaceQDAConfig):
        refused["rank"] = f"directions of the head {head.name!r} cannot be chosen"
    elif builder.directions == 1:
        refused["rank"] = "every class has one direction"
    return refused


def _possible_ways(builder: VariantBuilder, config: CompressionConfig) -> list[Way]:
    """The ways asked for, or all that the model allows; to ask for one that it does not allow is an error."""
    refused = _refused_ways(builder)
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


# -- the picture ----------------------------------------------------------------------------------------------


def compression_figure(result: Compression, title: str) -> Figure:
    """Validation accuracy of every step against the work of one image alone, of one in a batch, and the file's size."""
    from circle.report.drawing import dress, new_figure, safe_text  # matplotlib takes a while to import

    figure = new_figure(9.6, 4.6)
    figure.suptitle(safe_text(title, 100), fontsize=11)
    alone, batch, size = figure.subplots(1, 3, sharey=True)
    _draw(alone, result, lambda step: _work(step.one_image))
    _draw(batch, result, lambda step: _work(step.batch))
    _draw(size, result, lambda step: step.file_bytes / 1000)
    alone.set_ylabel(f"accuracy on {result.images:,} validation images, %")
    for axes in (alone, batch):
        axes.set_xlabel("processor time, model as it is = 1")
    size.set_xlabel("kB")
    dress(alone, "One image")
    dress(batch, f"{result.batch_size} images at once")
    dress(size, "File")
    handles, names = alone.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, handlelength=4, fontsize=8.5)
    return figure


def _work(timing: Timing | None) -> float:
    assert timing is not None, "a picture shows times: explore with timed=True"
    return timing.work_ratio


def _draw(axes: Axes, result: Compression, place: Callable[[Step], float]) -> None:
    from circle.report.drawing import STYLES

    for number, (way, name) in enumerate(WAYS_IN_WORDS.items()):
        steps = [step for step in result.steps if step.way == way]
        if steps:
            style = STYLES[number]
            look: dict[str, Any] = {**style, "linewidth": 1.5, "markersize": 0.65 * style["markersize"]}
            axes.plot([place(step) for step in steps], [100 * step.accuracy for step in steps], label=name, **look)
    look = {"color": "#000000", "marker": "o", "markersize": 12, "markerfacecolor": "none", "linestyle": "none"}
    axes.plot(place(result.chosen), 100 * result.chosen.accuracy, label="chosen", **look)
    axes.set_xlim(left=0)
