"""What statistics keep, each part declared once: saving, loading, adding, sharding and checking loop over these.

For features z_i (size D) with labels y_i the parts are

    sums             T_c = sum_{y_i = c} z_i                         [C, D]
    triangle         M   = sum_i z_i z_i^T                           upper triangle, [D (D + 1) / 2]
    class_triangles  M_c = sum_{y_i = c} z_i z_i^T                   upper triangles, [C, D (D + 1) / 2]
    unit_sums        U_c = sum_{y_i = c} round(2^36 z_i / |z_i|)     [C, D]
    subspace_d       sum_{y_i = c} of u_i u_i^T, u_i and 2^s         [C, d (d + 1) / 2 + d + 1]

where u_i = round(P z_i / 2^s) are d coordinates of a fixed random subspace. The first two are always kept; a head names
the others that it needs in ``HeadConfig.parts``. A part is a sum over samples of whole numbers, so adding, subtracting
and an all_reduce across processes are exact in any order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from circle.config import check_names
from circle.errors import CircleError
from circle.runtime.subspace import SHIFTS, subspace_matrix
from circle.statistics.second_moment import SecondMoment

UNIT_SCALE = 2.0**36  # steps of the entries of a unit vector; int64 then holds the sums of 10^8 samples


class Samples(NamedTuple):
    """The samples of one update of all parts, few enough for exact float32 products."""

    features: Tensor  # float32 or float64 [B, D]
    present: Tensor  # rows of the classes among them, int64 [K]
    position: Tensor  # which of those each sample belongs to, int64 [B]


class Part(ABC):
    """One kind of sum that statistics keep. Subclasses declare it; an instance holds its numbers.

    Classes have rows in the order of their arrival, the same in all parts of one
    :class:`~circle.statistics.Statistics`, which calls every method below.

    Parameters
    ----------
    size : int
        Number of features D.
    device : torch.device
        Where the numbers are kept.

    Attributes
    ----------
    name : str
        What files call it and heads ask for it by.
    title : str
        What messages call it.
    by_class : bool
        Whether each class has a row of its own. Else the part is one sum over all classes.
    always : bool
        Whether it is kept whatever the head. Else only where a head names it.
    selectable : bool
        Whether numbers of some of the features can be had from those of all.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    by_class: ClassVar[bool] = True
    always: ClassVar[bool] = False
    selectable: ClassVar[bool] = True

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.device = device

    @classmethod
    def described(cls) -> str:
        """Its title and whether every class has one, for messages."""
        return f"{cls.title} of each class" if cls.by_class else cls.title

    # -- sizes -----------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def row_shape(cls, size: int) -> tuple[int, ...]:
        """Shape in a file: of one class's row, or of the whole where the part is not kept by class."""

    @classmethod
    @abstractmethod
    def row_bytes(cls, size: int) -> int:
        """Memory while learning: of one class, or of the whole where the part is not kept by class."""

    @classmethod
    def shape(cls, size: int, classes: int) -> tuple[int, ...]:
        """Shape in a file, with this number of classes."""
        return (classes, *cls.row_shape(size)) if cls.by_class else cls.row_shape(size)

    @classmethod
    def bytes_of(cls, size: int, classes: int) -> int:
        """Memory while learning, with this number of classes."""
        return cls.row_bytes(size) * (classes if cls.by_class else 1)

    @classmethod
    def triangle_size(cls, size: int) -> int:
        """D where a row begins with the upper triangle of a matrix [D, D], sum z z^T; 0 where it does not.

        A file holds such a matrix by some of its rows, where few samples decide it (:mod:`circle.statistics.low_rank`).
        """
        return 0

    # -- classes: what is not kept by class need not know of them --------------------------------------------

    def append_row(self, row: int) -> None:
        """Make room for a new class in ``row``, the first that is free; its numbers are zero."""
        return

    def drop_row(self, row: int, last: int) -> None:
        """Let a row go and move the last one into its place."""
        return

    def is_zero(self, row: int) -> bool:
        """Whether nothing is left in a row."""
        return True

    def forget(self, total: Tensor, count: int, *, whole: bool) -> None:
        """Take out what a part without rows should not keep of a class that is about to leave.

        ``total`` [D] is the sum of its ``count`` samples; ``whole`` asks for whole numbers.
        """
        return

    # -- sums ------------------------------------------------------------------------------------------------

    @abstractmethod
    def update(self, samples: Samples) -> None:
        """Add samples."""

    @abstractmethod
    def add(self, other: Any, sign: int, mine: Tensor, theirs: Tensor) -> None:
        """Add or subtract (``sign`` -1) another's rows ``theirs``, int64 [K], to the rows ``mine``."""

    @abstractmethod
    def select(self, columns: Tensor) -> Self:
        """The same part of some of the features: ``columns``, int64 [d], ascending."""

    @abstractmethod
    def copy(self) -> Self:
        """The same numbers in memory of their own."""

    @abstractmethod
    def equals(self, other: Any, mine: Tensor, theirs: Tensor) -> bool:
        """Whether the rows ``mine`` and another's rows ``theirs``, int64 [C], are the same to the last bit."""

    # -- files -----------------------------------------------------------------------------------------------

    @abstractmethod
    def to_file(self, rows: Tensor) -> Tensor:
        """What a file holds: a tensor of :meth:`shape` with these rows in this order."""

    @abstractmethod
    def load(self, values: Tensor) -> None:
        """Take over what :meth:`to_file` gave, of a shape that was checked."""


class ClassSums(Part):
    """S_c = sum_{y_i = c} v(z_i) with whole-numbered values v, a row for every class.

    A subclass adds the type that holds the sums without rounding and, where v is not the identity, :meth:`values`.

    Attributes
    ----------
    dtype : torch.dtype
        Of the sums.
    rows : Tensor
        The sums, with room for more classes after them.
    """

    dtype: ClassVar[torch.dtype] = torch.float64

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__(size, device)
        self.rows = torch.zeros(0, *self.row_shape(size), dtype=self.dtype, device=device)

    @classmethod
    def row_shape(cls, size: int) -> tuple[int, ...]:
        return (size,)

    @classmethod
    def row_bytes(cls, size: int) -> int:
        return torch.Size(cls.row_shape(size)).numel() * cls.dtype.itemsize

    @staticmethod
    def values(features: Tensor) -> Tensor:
        """v(z) for float features [B, D]; sums of 1,024 of them must be exact in the type returned."""
        return features

    def append_row(self, row: int) -> None:
        self.rows = with_row(self.rows, row)

    def drop_row(self, row: int, last: int) -> None:
        self.rows[row] = self.rows[last].clone()
        self.rows[last] = 0

    def is_zero(self, row: int) -> bool:
        return not bool(self.rows[row].any())

    def update(self, samples: Samples) -> None:
        values = self.values(samples.features)
        # First the samples' own sums: small enough to stay in cache, and few rows to add to the large ones.
        sums = values.new_zeros(len(samples.present), *values.shape[1:]).index_add_(0, samples.position, values)
        self.rows.index_add_(0, samples.present, sums.to(self.dtype))

    def add(self, other: Self, sign: int, mine: Tensor, theirs: Tensor) -> None:
        self.rows.index_add_(0, mine.to(self.device), other.rows[theirs].to(self.device), alpha=sign)

    def select(self, columns: Tensor) -> Self:
        result = type(self)(len(columns), self.device)
        result.rows = self.rows[:, columns]
        return result

    def copy(self) -> Self:
        result = type(self)(self.size, self.device)
        result.rows = self.rows.clone()
        return result

    def equals(self, other: Self, mine: Tensor, theirs: Tensor) -> bool:
        return torch.equal(self.rows[mine], other.rows[theirs])

    def to_file(self, rows: Tensor) -> Tensor:
        return self.rows[rows]

    def load(self, values: Tensor) -> None:
        self.rows = values.to(self.device, self.dtype, copy=True)


# -- the declarations ------------------------------------------------------------------------------------------

DECLARED: dict[str, type[Part]] = {}  # by name, in the order in which parts are updated and written

Declared = TypeVar("Declared", bound=Part)


def declare(part: type[Declared]) -> type[Declared]:
    """Class decorator: make a part available to heads by its name; nothing else has to know of it.

    Examples
    --------
    >>> class SquareSums(ClassSums):  # with @declare above it
    ...     name, title, dtype = "square_sums", "sums of squares", torch.int64
    ...
    ...     @staticmethod
    ...     def values(features):
    ...         return features.to(torch.int64).square()
    >>> SquareSums.shape(size=5, classes=3)
    (3, 5)
    """
    if part.name in DECLARED:
        raise TypeError(f"part {part.name!r} needs a name of its own")
    DECLARED[part.name] = part
    return part


def parts_named(names: Iterable[str]) -> list[type[Part]]:
    """The declarations of these parts and of those that are always kept, in their order."""
    names = set(names)
    check_names(sorted(names), DECLARED, "part of the statistics")
    return [part for name, part in DECLARED.items() if part.always or name in names]


@declare
class Sums(ClassSums):
    """T_c = sum_{y_i = c} z_i, float64 [C, D]."""

    name = "sums"
    title = "sums"
    always = True


@declare
class Triangle(Part):
    """M = sum_i z_i z_i^T of all classes together; a file holds the upper triangle row by row."""

    name = "triangle"
    title = "second moments"
    by_class = False
    always = True

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__(size, device)
        self.moment = SecondMoment(size, device)

    @classmethod
    def row_shape(cls, size: int) -> tuple[int, ...]:
        return (size * (size + 1) // 2,)

    @classmethod
    def triangle_size(cls, size: int) -> int:
        return size

    @classmethod
    def row_bytes(cls, size: int) -> int:
        return SecondMoment.bytes_of(size)

    def update(self, samples: Samples) -> None:
        self.moment.add_products(samples.features)

    def forget(self, total: Tensor, count: int, *, whole: bool) -> None:
        self.moment.subtract_outer(total, count, whole=whole)

    def add(self, other: Self, sign: int, mine: Tensor, theirs: Tensor) -> None:
        self.moment.add(other.moment, sign)

    def select(self, columns: Tensor) -> Self:
        return self._with(self.moment.select(columns))

    def copy(self) -> Self:
        return self._with(self.moment.copy())

    def _with(self, moment: SecondMoment) -> Self:
        result = type(self).__new__(type(self))
        result.size, result.device, result.moment = moment.size, self.device, moment
        return result

    def equals(self, other: Self, mine: Tensor, theirs: Tensor) -> bool:
        return self.moment == other.moment

    def to_file(self, rows: Tensor) -> Tensor:
        return self.moment.triangle()

    def load(self, values: Tensor) -> None:
        self.moment = SecondMoment.from_triangle(values, self.size, self.device)


@declare
class ClassTriangles(Part):
    """M_c = sum_{y_i = c} z_i z_i^T of every class; a file holds the upper triangles row by row."""

    name = "class_triangles"
    title = "second moments"

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__(size, device)
        self.moments: list[SecondMoment] = []

    @classmethod
    def row_shape(cls, size: int) -> tuple[int, ...]:
        return Triangle.row_shape(size)

    @classmethod
    def triangle_size(cls, size: int) -> int:
        return size

    @classmethod
    def row_bytes(cls, size: int) -> int:
        return SecondMoment.bytes_of(size)

    def append_row(self, row: int) -> None:
        self.moments.append(SecondMoment(self.size, self.device))

    def drop_row(self, row: int, last: int) -> None:
        self.moments[row] = self.moments[last]
        self.moments.pop()

    def is_zero(self, row: int) -> bool:
        return not any(bool(strip.any()) for strip in self.moments[row].strips)

    def update(self, samples: Samples) -> None:
        for index, row in enumerate(samples.present.tolist()):
            self.moments[row].add_products(samples.features[samples.position == index])

    def add(self, other: Self, sign: int, mine: Tensor, theirs: Tensor) -> None:
        for row, their_row in zip(mine.tolist(), theirs.tolist(), strict=True):
            self.moments[row].add(other.moments[their_row], sign)

    def select(self, columns: Tensor) -> Self:
        result = type(self)(len(columns), self.device)
        result.moments = [moment.select(columns) for moment in self.moments]
        return result

    def copy(self) -> Self:
        result = type(self)(self.size, self.device)
        result.moments = [moment.copy() for moment in self.moments]
        return result

    def equals(self, other: Self, mine: Tensor, theirs: Tensor) -> bool:
        rows = zip(mine.tolist(), theirs.tolist(), strict=True)
        return all(self.moments[row] == other.moments[their_row] for row, their_row in rows)

    def to_file(self, rows: Tensor) -> Tensor:
        triangles = [self.moments[row].triangle() for row in rows.tolist()]
        if not triangles:
            return torch.zeros(self.shape(self.size, 0), dtype=torch.float64, device=self.device)
        return torch.stack(triangles)

    def load(self, values: Tensor) -> None:
        self.moments = [SecondMoment.from_triangle(each, self.size, self.device) for each in values]


@declare
class UnitSums(ClassSums):
    """U_c = sum_{y_i = c} round(2^36 z_i / |z_i|), int64 [C, D].

    |z|^2 is an integer, its root and the quotient are rounded as IEEE prescribes, so every machine agrees. A part of a
    unit vector does not have length one: columns cannot be selected.
    """

    name = "unit_sums"
    title = "sums of unit vectors"
    dtype = torch.int64
    selectable = False

    @staticmethod
    def values(features: Tensor) -> Tensor:
        return fixed_point_units(features)

    def select(self, columns: Tensor) -> Self:
        raise CircleError(f"statistics with {self.described()} cannot be cut: learn the features wanted alone")


SUBSPACE_DIMENSIONS = (32, 64, 96, 128, 192, 256, 384, 448, 512, 768, 1024, 1536, 2048)


class SubspaceMoments(ClassSums):
    """Moments of every class in a fixed random subspace: sums of u u^T (upper triangle), of u, and of 2^s.

        u = round(P z / 2^s)        P, d columns of :func:`circle.runtime.subspace.subspace_matrix`

    s is 9 for features of 16 bits and 1 for those of 8, so that u has 16 bits. Its sum over the samples tells whoever
    reads the sums which of the two it was; it is additive like all the rest. Sums are kept as int32 for as long as that
    is provably enough, then as int64: no entry is larger than the largest sum of squares of a coordinate.

    Attributes
    ----------
    dimension : int
        d; statistics of fewer features have as many coordinates as features.
    """

    dtype = torch.int32
    selectable = False
    dimension: ClassVar[int]

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__(size, device)
        self._largest = 0  # no entry is larger

    @classmethod
    def coordinates_of(cls, size: int) -> int:
        """d for this number of features."""
        return min(cls.dimension, size)

    @classmethod
    def row_shape(cls, size: int) -> tuple[int, ...]:
        coordinates = cls.coordinates_of(size)
        return (coordinates * (coordinates + 1) // 2 + coordinates + 1,)

    @classmethod
    def triangle_size(cls, size: int) -> int:
        return cls.coordinates_of(size)

    def update(self, samples: Samples) -> None:
        # Features of 8 bits come as float32 and those of 16 bits as float64, and so do products that are exact.
        shift = SHIFTS[16 if samples.features.dtype == torch.float64 else 8]
        values = subspace_coordinates(samples.features, self.coordinates_of(self.size), shift).to(torch.float64)
        self._make_room(max(int(values.square().sum(0).max()), len(values) << shift))
        upper = upper_triangle(values.shape[1], self.device)
        for index, row in enumerate(samples.present.tolist()):
            own = values[samples.position == index]
            numbers = self.rows[row]
            numbers[: len(upper)] += (own.T @ own).view(-1)[upper].to(numbers.dtype)
            numbers[len(upper) : -1] += own.sum(0).to(numbers.dtype)
            numbers[-1] += len(own) << shift

    def _make_room(self, more: int) -> None:
        """Widen the sums before entries grow by up to ``more``, if they might not fit."""
        self._largest += more
        if self._largest >= 2**31 and self.rows.dtype == torch.int32:
            present = int(self.rows.to(torch.int64).abs().max()) if self.rows.numel() else 0
            self._largest = present + more
            if self._largest >= 2**31:
                self.rows = self.rows.to(torch.int64)

    def add(self, other: ClassSums, sign: int, mine: Tensor, theirs: Tensor) -> None:
        added = other.rows[theirs].to(self.device, torch.int64)
        self._make_room(int(added.abs().max()) if added.numel() else 0)
        self.rows.index_add_(0, mine.to(self.device), added.to(self.rows.dtype), alpha=sign)

    def select(self, columns: Tensor) -> Self:
        raise CircleError(f"statistics with {self.described()} cannot be cut: learn the features wanted alone")

    def copy(self) -> Self:
        result = super().copy()
        result._largest = self._largest
        return result

    def equals(self, other: ClassSums, mine: Tensor, theirs: Tensor) -> bool:
        return torch.equal(self.rows[mine].to(torch.int64), other.rows[theirs].to(torch.int64))

    def load(self, values: Tensor) -> None:
        self._largest = int(values.abs().max()) if values.numel() else 0
        self.rows = values.to(self.device, torch.int32 if self._largest < 2**31 else torch.int64, copy=True)


def _subspace_part(dimension: int) -> type[SubspaceMoments]:
    """The declaration for d = ``dimension``, reachable in this module by its name, as pickling asks for."""
    name = f"SubspaceMoments{dimension}"
    part = type(
        name,
        (SubspaceMoments,),
        {
            "name": f"subspace_{dimension}",
            "title": f"moments in {dimension} dimensions",
            "dimension": dimension,
            "__doc__": f"Moments of every class in {dimension} dimensions; see :class:`SubspaceMoments`.",
            "__module__": __name__,
        },
    )
    globals()[name] = part
    return part


for _dimension in SUBSPACE_DIMENSIONS:
    declare(_subspace_part(_dimension))


@lru_cache(maxsize=8)
def upper_triangle(size: int, device: torch.device) -> Tensor:
    """Positions of the upper triangle of a matrix [size, size] in its rows one after another, int64."""
    rows, columns = torch.triu_indices(size, size, device=device)
    return rows * size + columns


@lru_cache(maxsize=8)
def _subspace(size: int, dimension: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.from_numpy(subspace_matrix(size, dimension)).to(device, dtype)


def subspace_coordinates(features: Tensor, dimension: int, shift: int) -> Tensor:
    """u = round(P z / 2^s), float32 [B, d], whole numbers of 16 bits, of features [B, D]; exact in any order."""
    matrix = _subspace(features.shape[1], dimension, torch.float32, features.device)
    return (features.to(torch.float32) @ matrix).mul_(2.0**-shift).round_()


def unit_vectors(features: Tensor) -> Tensor:
    """z / |z| in float64, [B, D]; zero stays zero. Integers below 2^26 have an exact |z|^2, whatever the order."""
    values = features.to(torch.float64)
    return values / values.square().sum(1, keepdim=True).sqrt().clamp_min(1e-12)


def fixed_point_units(features: Tensor) -> Tensor:
    """round(2^36 z / |z|), int64 [B, D]."""
    return (unit_vectors(features) * UNIT_SCALE).round_().to(torch.int64)


def with_row(rows: Tensor, row: int) -> Tensor:
    """Rows with room for one more at ``row``: themselves, or a longer copy with zeros at the end."""
    if row < len(rows):
        return rows
    # By a quarter, so that a thousand classes arriving one by one cost some twenty copies, not a thousand, and the
    # memory that waits for more is little beside their sums.
    grown = rows.new_zeros(row + max(8, row // 4), *rows.shape[1:])
    grown[: len(rows)] = rows
    return grown
