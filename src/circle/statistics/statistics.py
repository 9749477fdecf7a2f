"""Additive sufficient statistics of labelled features, exact to the last bit.

For features z_i (int8 or int16, size D) with labels y_i they hold

    n_c = |{i : y_i = c}|        T_c = sum_{y_i = c} z_i        M = sum_i z_i z_i^T

and what else a head needs: :mod:`circle.statistics.parts` declares all of it.

Why they are exact: a product of two int8 values is below 2^14, so the sum over 1,024 samples stays below 2^24 and a
float32 matrix product of them is exact in any order of summation. Such products are added into float64, which is exact
below 2^53 (more than 5e11 samples). A product of two int16 values is below 2^30; it is added up in float64 from the
start, exactly for 8 million samples even if all of them lay at the end of the range, at half the speed. Every partial
sum is therefore an integer without rounding, and the result cannot depend on sample order, batch size, threads, shards
or resume points.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from circle.errors import CircleError, counted
from circle.labels import check_one_kind, ordered
from circle.machine import full_precision, require_memory
from circle.runtime.subspace import SHIFTS
from circle.statistics import low_rank
from circle.statistics.parts import (
    DECLARED,
    UNIT_SCALE,
    ClassTriangles,
    Part,
    Samples,
    SubspaceMoments,
    Sums,
    Triangle,
    UnitSums,
    parts_named,
    with_row,
)

Kind = TypeVar("Kind", bound=Part)

_versions = itertools.count()
SAMPLES_PER_PRODUCT = 1024  # of which a float32 product is exact: 1024 * 127 * 127 < 2^24
EXACT_LIMIT = 2.0**53  # sums of whole numbers in float64 are exact up to here
LARGEST_SQUARE = 32767.0**2  # of a feature of 16 bits


class Statistics:
    """Counts, sums and second moments of a stream of labelled features.

    Samples wait in a buffer before they are multiplied, so that learning one sample at a time costs little more than
    learning many at once. The sums are exact, so the buffer makes no difference to them.

    Any number of threads may read while one learns: every method is one step that another thread sees done or not
    begun. For several readings of the same moment, see :func:`held`.

    Parameters
    ----------
    size : int
        Number of features D.
    exact : bool
        True: features are int8 or int16 and every sum is exact. False: float32 features, for comparison; sums round.
    parts : iterable of str
        Names of parts to keep besides ``sums`` and ``triangle``, which always are; see :mod:`circle.statistics.parts`.
    device : torch.device or str
        Where sums are kept and products computed.

    Attributes
    ----------
    classes : list
        Observed classes in canonical order; the rows of ``counts`` and ``sums``.
    counts : Tensor
        n, int64 [C].
    sums : Tensor
        T, float64 [C, D].
    kept : tuple of str
        Names of all parts kept.
    orphan_degrees : int
        Degrees of freedom of the scatter that classes forgotten without their images left behind.
    version : int
        Another one after every change, and never that of other statistics of this process: what was computed from
        the statistics can be kept for as long as it stays.

    Examples
    --------
    >>> a, b = Statistics(2), Statistics(2)
    >>> a.update(torch.tensor([[1, 2], [3, 4]], dtype=torch.int8), ["cat", "dog"])
    >>> b.update(torch.tensor([[5, 6]], dtype=torch.int8), ["cat"])
    >>> (a + b).second_moment()
    tensor([[35., 44.],
            [44., 56.]], dtype=torch.float64)
    >>> (a + b) - b == a
    True
    """

    def __init__(
        self,
        size: int,
        *,
        exact: bool = True,
        parts: Iterable[str] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        self.size = size
        self.exact = exact
        self.device = torch.device(device)
        self.orphan_degrees = 0
        self.version = next(_versions)
        self._index: dict[Hashable, int] = {}  # class -> row; rows stand in the order of arrival, with room after them
        self._counts = torch.zeros(0, dtype=torch.int64)
        self._parts: dict[str, Part] = {part.name: part(size, self.device) for part in parts_named(parts)}
        self._buffer: Tensor | None = None
        self._buffered: list[int] = []  # rows of the samples in the buffer
        self._lock = threading.RLock()

    # -- what was learned ------------------------------------------------------------------------------------

    @property
    def classes(self) -> list[Hashable]:
        """Observed classes in canonical order; the rows of ``counts`` and ``sums``."""
        with self._lock:
            return ordered(self._index)

    @property
    def example(self) -> list[Hashable]:
        """Any one of the observed classes, or none: all labels are of its type, and nothing has to be sorted."""
        with self._lock:
            return list(islice(self._index, 1))

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the parts kept, in the order of their declarations."""
        return tuple(self._parts)

    @property
    def counts(self) -> Tensor:
        """n, int64 [C]."""
        with self._lock:
            self.flush()
            return self._counts[self._order()]

    @property
    def sums(self) -> Tensor:
        """T, float64 [C, D]."""
        return self.part(Sums.name)

    @property
    def samples(self) -> int:
        """N, the number of samples of all classes."""
        with self._lock:
            return int(self._counts.sum()) + len(self._buffered)

    @property
    def degrees_of_freedom(self) -> int:
        """N - C of the pooled scatter, with what forgotten classes left behind."""
        with self._lock:
            return self.samples - len(self._index) + self.orphan_degrees

    def second_moment(self) -> Tensor:
        """M as a full symmetric matrix, float64 [D, D]."""
        with self._lock:
            self.flush()
            return self._kept(Triangle).moment.full()

    def squares(self) -> Tensor:
        """The diagonal of M, float64 [D]."""
        with self._lock:
            self.flush()
            return self._kept(Triangle).moment.diagonal()

    def class_second_moment(self, label: Hashable) -> Tensor:
        """M_c as a full symmetric matrix, float64 [D, D]."""
        with self._lock:
            self.flush()
            return self._kept(ClassTriangles).moments[self._index[label]].full()

    def subspace_moments(self, name: str) -> tuple[Tensor, Tensor, int]:
        """Sums of u u^T [C, d (d + 1) / 2] and of u [C, d], float64, in the subspace of a part, and its shift s."""
        with self._lock:
            self.flush()
            kept, counts = DECLARED[name], self.counts
            rows = self._kept(kept).to_file(self._order())
        assert issubclass(kept, SubspaceMoments)
        triangles, sums, units = rows.split(
            [rows.shape[1] - kept.coordinates_of(self.size) - 1, kept.coordinates_of(self.size), 1], 1
        )
        shifts = [shift for shift in SHIFTS.values() if torch.equal(units[:, 0].cpu().to(torch.int64), counts << shift)]
        if not shifts:
            raise CircleError(f"{kept.title} of features of 8 and of 16 bits: expected one kind")
        return triangles, sums.to(torch.float64), shifts[0]

    def unit_sums(self) -> Tensor:
        """Sums of the features scaled to length one, float64 [C, D]."""
        return self.part(UnitSums.name).to(torch.float64) / UNIT_SCALE

    def part(self, name: str) -> Tensor:
        """One part as a file holds it; the rows of a part that is kept by class are ``classes``."""
        with self._lock:
            self.flush()
            return self._kept(DECLARED[name]).to_file(self._order())

    def parts(self) -> dict[str, Tensor]:
        """All that was learned but classes and counts, as a file holds it: ``from_parts`` is the inverse."""
        with self._lock:
            return {name: self.part(name) for name in self._parts}

    def packed_parts(self) -> dict[str, Tensor]:
        """As :meth:`parts`, with the matrices of few samples by their pivot rows, where that takes less space.

        :meth:`unpacked_parts` is the inverse. Which form is taken follows from the sums alone.
        """
        with self._lock:
            found: dict[str, Tensor] = {}
            for name, part in self._parts.items():
                values, size = self.part(name), part.triangle_size(self.size)
                if not self.exact or not size:
                    found[name] = values
                    continue
                # What a class that was forgotten without its images leaves behind is rounded, and of any rank.
                all_samples = [self.samples if not self.orphan_degrees else size]
                bounds = self.counts.tolist() if part.by_class else all_samples
                packed = low_rank.packed(values.view(len(bounds), -1), size, bounds) if bounds else {"": values}
                whole = len(packed) == 1
                found |= {f"{name}{suffix}": values if whole else each for suffix, each in packed.items()}
            return found

    def unpacked_parts(self, tensors: Mapping[str, Tensor], classes: int) -> dict[str, Tensor]:
        """The parts of statistics like these from what :meth:`packed_parts` gave, with this number of classes.

        Raises:
            KeyError: a part is missing.
            CircleError: pivot rows that no statistics can have given.
        """
        found: dict[str, Tensor] = {}
        for name, part in self._parts.items():
            if f"{name}{low_rank.RANKS}" not in tensors or not part.triangle_size(self.size):
                found[name] = tensors[name]
                continue
            of_part = {key.removeprefix(name): each for key, each in tensors.items() if key.partition(".")[0] == name}
            values = low_rank.unpacked(of_part, part.triangle_size(self.size), self._flat_shape(part, classes))
            found[name] = values.view(part.shape(self.size, classes))
        return found

    def packed_shapes(self, shapes: Mapping[str, tuple[int, ...]], classes: int) -> dict[str, tuple[int, ...]]:
        """Shapes of :meth:`packed_parts` with this number of classes, in the form that a file with ``shapes`` has.

        Raises:
            CircleError: a number of rows that no statistics can have.
        """
        expected: dict[str, tuple[int, ...]] = {}
        for name, part in self._parts.items():
            if f"{name}{low_rank.RANKS}" not in shapes or not part.triangle_size(self.size):
                expected[name] = part.shape(self.size, classes)
                continue
            of_part = {key.removeprefix(name): each for key, each in shapes.items() if key.partition(".")[0] == name}
            flat = self._flat_shape(part, classes)
            found = low_rank.packed_shapes(of_part, part.triangle_size(self.size), flat)
            expected |= {f"{name}{suffix}": shape for suffix, shape in found.items()}
        return expected

    def _flat_shape(self, part: Part, classes: int) -> tuple[int, int]:
        """Triangles and what follows them in rows, also of a part that is not kept by class."""
        return (classes if part.by_class else 1, part.row_shape(self.size)[0])

    def part_shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """Shapes of :meth:`parts` with this number of classes."""
        return {name: part.shape(self.size, classes) for name, part in self._parts.items()}

    @classmethod
    def from_parts(
        cls,
        classes: Sequence[Hashable],
        counts: Tensor,
        *,
        orphan_degrees: int = 0,
        exact: bool = True,
        device: torch.device | str = "cpu",
        **parts: Tensor,
    ) -> Statistics:
        """Inverse of reading ``classes``, ``counts`` and ``parts``; those that are always kept must be among them."""
        size = parts[Sums.name].shape[-1]
        result = cls(size, exact=exact, parts=parts, device=device)
        shapes = result.part_shapes(len(classes))
        if len(counts) != len(classes) or any(parts[name].shape != shape for name, shape in shapes.items()):
            raise CircleError("statistics of inconsistent sizes: the file is damaged")
        result.orphan_degrees = orphan_degrees
        result._index = {label: row for row, label in enumerate(classes)}
        result._counts = counts.to(torch.int64).cpu().clone()
        for name, part in result._parts.items():
            part.load(parts[name])
        return result

    def select(self, columns: Tensor, parts: Iterable[str] | None = None) -> Statistics:
        """Statistics of some of the features, ``columns`` int64 [d], ascending: as if only these had been learned.

        Of the parts that not every head needs, those called ``parts`` are in the result; None: all of them.
        """
        ascending = len(columns) > 0 and bool((columns.diff() > 0).all())
        if not ascending or int(columns[0]) < 0 or int(columns[-1]) >= self.size:
            raise CircleError(f"columns of statistics of size {self.size}: expected ascending numbers below it")
        with self._lock:
            self.flush()
            kept = self._parts if parts is None else {part.name for part in parts_named(parts)}
            selected = {name: part.select(columns) for name, part in self._parts.items() if name in kept}
            return self._with(selected, size=len(columns))

    @property
    def selectable(self) -> bool:
        """Whether :meth:`select` can tell what some of the features alone would have given."""
        return all(part.selectable for part in self._parts.values())

    @property
    def nbytes(self) -> int:
        """Bytes held while learning: counts, all parts, the buffer."""
        with self._lock:
            classes = len(self._index)
            buffer = 0 if self._buffer is None else self._buffer.nbytes
            return 8 * classes + memory_of(self.size, classes, self._parts) + buffer

    def bytes_for(self, labels: Iterable[Hashable]) -> int:
        """Memory that those classes among ``labels`` that are new would take in parts that only some heads keep."""
        optional = [part for part in self._parts.values() if not part.always and part.by_class]
        if not optional:
            return 0
        with self._lock:
            new = len(set(labels) - self._index.keys())
        return sum(part.bytes_of(self.size, new) for part in optional) if new else 0

    def _order(self) -> Tensor:
        """Rows in the order of ``classes``, int64 [C]."""
        return torch.tensor([self._index[label] for label in ordered(self._index)], dtype=torch.int64)

    def _kept(self, kind: type[Kind]) -> Kind:
        part = self._parts.get(kind.name)
        if not isinstance(part, kind):
            raise CircleError(f"these statistics were kept without {kind.described()}: learn with a head that needs it")
        return part

    # -- learning --------------------------------------------------------------------------------------------

    def update(self, features: Tensor, labels: Sequence[Hashable]) -> None:
        """Add samples: features [B, D] (int8 or int16, or float32 where not exact), one label each."""
        with self._lock:
            self.check(features, labels)
            check_room([self], labels)
            self.version = next(_versions)
            for label in labels:
                if label not in self._index:
                    self._append(label)
            rows = [self._index[label] for label in labels]
            if self._buffer is None or self._buffer.dtype != features.dtype:
                self.flush()
                self._buffer = torch.empty(SAMPLES_PER_PRODUCT, self.size, dtype=features.dtype, device=self.device)
            start = 0
            while start < len(rows):
                filled = len(self._buffered)
                take = min(SAMPLES_PER_PRODUCT - filled, len(rows) - start)
                self._buffer[filled : filled + take] = features[start : start + take]
                self._buffered += rows[start : start + take]
                start += take
                if len(self._buffered) == SAMPLES_PER_PRODUCT:
                    self.flush()

    def check(self, features: Tensor, labels: Sequence[Hashable]) -> None:
        """Refuse samples that :meth:`update` would refuse."""
        expected = (torch.int8, torch.int16) if self.exact else (torch.float32,)
        if features.dtype not in expected or features.ndim != 2 or features.shape[1] != self.size:
            raise CircleError(
                f"features of type {features.dtype} and shape {list(features.shape)}: "
                f"expected {' or '.join(map(str, expected))} and [B, {self.size}]"
            )
        if len(labels) != len(features):
            raise CircleError(
                f"{counted(len(labels), 'label')} for {counted(len(features), 'image')}: expected one each"
            )
        check_one_kind([*self.example, *labels])
        if self.exact:
            self._check_exact(len(features) * LARGEST_SQUARE)

    def _check_exact(self, new: float) -> None:
        """Refuse samples whose squares add up to at most ``new`` where sums might no longer be exact with them.

        No sum of products is larger than the largest sum of squares. For eight million samples of 16 bits that cannot
        reach the limit, so that until then there is nothing to look at.
        """
        if self._samples_at_most * LARGEST_SQUARE + new <= EXACT_LIMIT:
            return
        if float(self.squares().max()) + new > EXACT_LIMIT:
            raise CircleError(
                f"{counted(self.samples, 'sample')} learned: with these, sums might exceed 2^53 and would no longer be "
                "exact; expected fewer samples, or features of 8 bits"
            )

    @property
    def _samples_at_most(self) -> int:
        """Samples learned, those of classes forgotten without their images included."""
        return int(self._counts.sum()) + len(self._buffered) + self.orphan_degrees

    def _append(self, label: Hashable) -> None:
        """A row of zeros for a new class."""
        row = len(self._index)
        self._counts = with_row(self._counts, row)
        for part in self._parts.values():
            part.append_row(row)
        self._index[label] = row

    def flush(self) -> None:
        """Multiply the waiting samples into the sums; reading does it anyway, timing may want it sooner."""
        with self._lock:
            if not self._buffered or self._buffer is None:
                return
            with full_precision():
                wide = torch.float64 if self._buffer.dtype == torch.int16 else torch.float32
                features = self._buffer[: len(self._buffered)].to(wide)
                present, position = torch.tensor(self._buffered).unique(return_inverse=True)
                self._counts.index_add_(0, present, position.bincount(minlength=len(present)))
                samples = Samples(features, present.to(self.device), position.to(self.device))
                for part in self._parts.values():
                    part.update(samples)
            self._buffered = []

    # -- algebra ---------------------------------------------------------------------------------------------

    def __add__(self, other: Statistics) -> Statistics:
        result = self.copy()
        result += other
        return result

    def __iadd__(self, other: Statistics) -> Self:
        self._accumulate(other, 1)
        return self

    def __sub__(self, other: Statistics) -> Statistics:
        """Statistics of a stream that never held ``other``'s samples; all of them must have been learned."""
        result = self.copy()
        result._accumulate(other, -1)
        result._drop_empty()
        return result

    def _accumulate(self, other: Statistics, sign: int) -> None:
        """Add or subtract all that another has learned; only what is there can be subtracted."""
        if self._kind() != other._kind():
            raise CircleError(
                f"statistics of size {self.size} (exact: {self.exact}) and {other.size} (exact: {other.exact}) "
                "do not combine: expected the same size and the same parts"
            )
        with held(self, other):
            check_one_kind([*self.example, *other.example])
            other.flush()
            check_room([self], other._index)
            if self.exact and sign > 0:
                new = other._samples_at_most * LARGEST_SQUARE
                if new > EXACT_LIMIT:
                    new = float(other.squares().max())
                self._check_exact(new)
            self.version = next(_versions)
            for label in other._index:
                if label not in self._index:
                    if sign < 0:
                        raise CircleError(f"class {label!r} was never learned: it cannot be subtracted")
                    self._append(label)
            mine = torch.tensor([self._index[label] for label in other._index], dtype=torch.int64)
            theirs = torch.tensor(list(other._index.values()), dtype=torch.int64)
            self._counts.index_add_(0, mine, other._counts[theirs], alpha=sign)
            for name, part in self._parts.items():
                part.add(other._parts[name], sign, mine, theirs)
            self.orphan_degrees += sign * other.orphan_degrees
            if self.orphan_degrees < 0:
                raise CircleError("the scatter of forgotten classes cannot become negative: not the same statistics")

    def _drop_empty(self) -> None:
        """Let classes leave of which nothing is left after a subtraction, and refuse what cannot be."""
        for label, row in self._index.items():
            if int(self._counts[row]) < 0:
                raise CircleError(f"class {label!r}: more samples to subtract than were learned")
        for label in [label for label, row in self._index.items() if not int(self._counts[row])]:
            row = self._index[label]
            if self.exact and not all(part.is_zero(row) for part in self._parts.values()):
                raise CircleError(f"class {label!r}: these are not the samples that were learned; nothing was changed")
            self._drop(label)

    def _drop(self, label: Hashable) -> None:
        """Let the row of a class go and move the last one into its place."""
        row, last = self._index.pop(label), len(self._index)
        if row != last:
            moved = next(name for name, index in self._index.items() if index == last)
            self._index[moved] = row
        self._counts[row] = self._counts[last].clone()
        self._counts[last] = 0
        for part in self._parts.values():
            part.drop_row(row, last)

    def remove(self, label: Hashable) -> None:
        """Let a class leave: its count and sums go; of M, its mean's part goes and its scatter stays behind.

            M <- M - round(T_c T_c^T / n_c)

        The pooled covariance keeps the class's anonymous scatter with its n_c - 1 degrees of freedom. Rounding
        to integers keeps every later sum exact; it moves an entry of M by at most one half.
        """
        with self._lock:
            if label not in self._index:
                raise CircleError(f"class {label!r} is not in the model")
            self.flush()
            self.version = next(_versions)
            row = self._index[label]
            count, total = int(self._counts[row]), self._kept(Sums).rows[row]
            for part in self._parts.values():
                part.forget(total, count, whole=self.exact)
            self.orphan_degrees += count - 1
            self._drop(label)

    def rename(self, label: Hashable, new: Hashable) -> None:
        """Give a class another label; every count and sum stays as it is."""
        with self._lock:
            if label not in self._index:
                raise CircleError(f"class {label!r} is not in the model")
            if new in self._index:
                raise CircleError(f"class {new!r} is in the model already: expected a name that is free")
            check_one_kind([label, new])
            self.version = next(_versions)  # the order of the classes may be another
            self._index[new] = self._index.pop(label)

    # -- copies and comparison -------------------------------------------------------------------------------

    def copy(self) -> Statistics:
        """The same statistics in memory of their own; ``copy.copy`` gives the same."""
        with self._lock:
            self.flush()
            return self._with({name: part.copy() for name, part in self._parts.items()})

    __copy__ = copy

    def _with(self, parts: dict[str, Part], **changes: Any) -> Statistics:
        """The same classes, counts and settings but for ``changes``, with these parts and nothing in the buffer."""
        result = Statistics.__new__(Statistics)
        result.__setstate__({**self.__getstate__(), "_parts": parts, **changes})
        result._index, result._counts = dict(self._index), self._counts.clone()
        return result

    def __getstate__(self) -> dict[str, Any]:
        """For pickling and ``copy.deepcopy``: locks cannot be copied, and the buffer is not worth it."""
        with self._lock:
            self.flush()
            return {name: value for name, value in vars(self).items() if name not in ("_lock", "_buffer", "_buffered")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, version=next(_versions), _lock=threading.RLock(), _buffer=None, _buffered=[])

    def __eq__(self, other: object) -> bool:
        """Bitwise equality of everything learned, whatever the order of arrival."""
        if not isinstance(other, Statistics):
            return NotImplemented
        with held(self, other):
            self.flush()
            other.flush()
            if (self._kind(), self.orphan_degrees) != (other._kind(), other.orphan_degrees):
                return False
            if self.classes != other.classes:
                return False
            mine, theirs = self._order(), other._order()
            return torch.equal(self._counts[mine], other._counts[theirs]) and all(
                part.equals(other._parts[name], mine, theirs) for name, part in self._parts.items()
            )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _kind(self) -> tuple[int, bool, tuple[str, ...]]:
        return self.size, self.exact, self.kept


@contextmanager
def held(*statistics: Statistics) -> Iterator[None]:
    """Let no other thread change these statistics during a block, so that all that is read in it belongs together."""
    with ExitStack() as stack:
        for each in sorted(statistics, key=id):  # in one order everywhere, so that no two threads wait for each other
            stack.enter_context(each._lock)
        yield


def memory_of(size: int, classes: int, parts: Iterable[str] = ()) -> int:
    """Bytes that these parts, and those that are always kept, take while learning; counts and buffer aside."""
    return sum(part.bytes_of(size, classes) for part in parts_named(parts))


def check_room(statistics: Sequence[Statistics], labels: Iterable[Hashable]) -> None:
    """Refuse new classes for which a head keeps more than memory holds, before any of it is allocated."""
    labels = set(labels)
    needed = sum(each.bytes_for(labels) for each in statistics)
    if needed:
        size = statistics[0].size
        optional = [part for part in parts_named(statistics[0].kept) if part.by_class and not part.always]
        largest = max(optional, key=lambda part: part.row_bytes(size))
        require_memory(
            needed,
            f"{largest.title} of {counted(len(labels), 'class')} with {size:,} features",
            "use a shorter feature (projection_size), or a head that needs none of each class (slda)",
        )


def sum_across(
    statistics: Sequence[Statistics],
    gather: Callable[[list[Hashable]], list[list[Hashable]]],
    all_reduce: Callable[[Tensor], object],
    device: torch.device | str,
) -> list[Statistics]:
    """The sum of what several processes have learned, one of each group: bitwise that of one process.

        n, T_j, M_j, ... = sum_r n^(r), T_j^(r), M_j^(r), ...

    All of it is whole numbers, so one all_reduce of an int64 vector is exact in any order. The classes that the
    processes have seen may differ: their union in canonical order gives the rows.

    Parameters
    ----------
    statistics : sequence of Statistics
        This process's, one of each group, all of the same samples.
    gather : callable
        Gives the classes of all processes for those of this one.
    all_reduce : callable
        Adds up a vector, int64 on ``device``, over all processes, in place.
    device : torch.device or str
        Where that vector is.
    """
    mine = statistics[0].classes
    classes = ordered({label for theirs in gather(mine) for label in theirs})
    position = {label: row for row, label in enumerate(classes)}
    rows = torch.tensor([position[label] for label in mine], dtype=torch.int64)
    shapes = [each.part_shapes(len(classes)) for each in statistics]
    sizes = [torch.Size(shape).numel() for each in shapes for shape in each.values()]
    vector = torch.zeros(len(classes) + len(statistics) + sum(sizes), dtype=torch.int64, device=device)
    counts, orphans, *views = vector.split([len(classes), len(statistics), *sizes])
    flat = iter(views)
    sums = [{name: next(flat).view(shape) for name, shape in each.items()} for each in shapes]
    counts[rows] = statistics[0].counts.to(device)
    orphans.copy_(torch.tensor([each.orphan_degrees for each in statistics]))
    for each, targets in zip(statistics, sums, strict=True):
        for name, values in each.parts().items():
            if DECLARED[name].by_class:
                targets[name][rows] = values.to(device, torch.int64)
            else:
                targets[name].copy_(values)
    all_reduce(vector)
    return [
        Statistics.from_parts(classes, counts, orphan_degrees=orphan, exact=True, device=each.device, **targets)
        for each, orphan, targets in zip(statistics, orphans.tolist(), sums, strict=True)
    ]
