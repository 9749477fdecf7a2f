"""Additive sufficient statistics of labelled features, exact to the last bit.

For features z_i (int8 or int16, size D) with labels y_i:

    n_c = |{i : y_i = c}|        T_c = sum_{y_i = c} z_i        M = sum_i z_i z_i^T

and, for the heads that need them and only for those:

    M_c = sum_{y_i = c} z_i z_i^T        U_c = sum_{y_i = c} round(2^36 z_i / |z_i|)

Why they are exact: a product of two int8 values is below 2^14, so the sum over a tile of 1,024 samples stays
below 2^24 and a float32 matrix product of that tile is exact in any order of summation. Tiles are added into
float64, which is exact below 2^53 (more than 5e11 samples). A product of two int16 values is below 2^30; it is added
up in float64 from the start, exactly for 8 million samples even if all of them lay at the end of the range, at half
the speed. Every partial sum is therefore an integer without rounding, and the result cannot depend on sample order,
batch size, threads, shards or resume points. U is kept in int64: |z|^2 is an integer, its root
and the quotient are rounded as IEEE prescribes, so every machine agrees.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import islice

import torch
from torch import Tensor

from circle.errors import CircleError
from circle.labels import check_one_kind
from circle.machine import require_memory
from circle.statistics.class_rows import ClassRows
from circle.statistics.second_moment import SecondMoment
from circle.statistics.unit_vectors import UNIT

TILE = 1024  # samples per exact float32 product; 1024 * 127 * 127 < 2^24


class Statistics:
    """Counts, sums and the second moment of a stream of labelled features.

    ``exact=True`` takes int8 or int16 features. ``exact=False`` takes float32 features, for comparison; its sums round.
    ``class_moments`` keeps a second moment for every class as well, ``unit_sums`` the sums of features of length one.

    Samples wait in a buffer of one tile before they are multiplied, so that learning one sample at a time costs
    little more than learning many at once. The sums being exact, nobody can tell.

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
        class_moments: bool = False,
        unit_sums: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.size = size
        self.exact = exact
        self.device = torch.device(device)
        self.orphan_degrees = 0
        self.version = 0  # grows with every change, so that what was computed from the statistics can be kept
        self._rows = ClassRows(size, self.device, class_moments=class_moments, unit_sums=unit_sums)
        self._moment = SecondMoment(size, self.device)
        self._buffer: Tensor | None = None
        self._buffered: list[int] = []

    # -- what was learned ------------------------------------------------------------------------------------

    @property
    def classes(self) -> list[Hashable]:
        """Observed classes in canonical order; the rows of ``counts`` and ``sums``."""
        return self._rows.classes

    @property
    def example(self) -> list[Hashable]:
        """One of the observed classes, whichever, or none: its kind is that of all, and nothing is sorted to tell."""
        return list(islice(self._rows.index, 1))

    @property
    def counts(self) -> Tensor:
        """n, int64 [C]."""
        self.flush()
        return self._rows.counts[self._rows.order()]

    @property
    def sums(self) -> Tensor:
        """T, float64 [C, D]."""
        self.flush()
        return self._rows.sums[self._rows.order()]

    @property
    def samples(self) -> int:
        return int(self._rows.counts.sum()) + len(self._buffered)

    @property
    def degrees_of_freedom(self) -> int:
        """N - C of the pooled scatter, the scatter of forgotten classes that stayed behind included."""
        return self.samples - len(self._rows.index) + self.orphan_degrees

    @property
    def has_class_moments(self) -> bool:
        return self._rows.moments is not None

    @property
    def has_unit_sums(self) -> bool:
        return self._rows.unit_sums is not None

    def second_moment(self) -> Tensor:
        """M as a full symmetric matrix, float64 [D, D]."""
        self.flush()
        return self._moment.full()

    def squares(self) -> Tensor:
        """The diagonal of M, float64 [D]."""
        self.flush()
        return self._moment.diagonal()

    def class_second_moment(self, label: Hashable) -> Tensor:
        """M_c as a full symmetric matrix, float64 [D, D]."""
        self.flush()
        return self._rows.kept_moments()[self._rows.index[label]].full()

    def unit_sums(self) -> Tensor:
        """Sums of the features scaled to length one, float64 [C, D]."""
        self.flush()
        if self._rows.unit_sums is None:
            raise CircleError("these statistics were kept without the sums of unit vectors: learn with this head")
        return self._rows.unit_sums[self._rows.order()].to(torch.float64) / UNIT

    def parts(self) -> dict[str, Tensor]:
        """All that was learned but classes and counts, as a file holds it: ``from_parts`` is the inverse.

        ``sums`` [C, D]; ``triangle`` [D (D + 1) / 2], the upper one of M row by row; where they are kept also
        ``class_triangles`` [C, D (D + 1) / 2] and ``unit_sums``, int64 [C, D]. The rows are ``classes``.
        """
        self.flush()
        parts = {"sums": self.sums, "triangle": self._moment.triangle()}
        if self._rows.moments is not None:
            triangles = [self._rows.moments[row].triangle() for row in self._rows.order().tolist()]
            parts["class_triangles"] = torch.stack(triangles) if triangles else parts["triangle"].new_zeros(0)
        if self._rows.unit_sums is not None:
            parts["unit_sums"] = self._rows.unit_sums[self._rows.order()]
        return parts

    @classmethod
    def from_parts(
        cls,
        classes: Sequence[Hashable],
        counts: Tensor,
        sums: Tensor,
        triangle: Tensor,
        *,
        class_triangles: Tensor | None = None,
        unit_sums: Tensor | None = None,
        orphan_degrees: int = 0,
        exact: bool = True,
        device: torch.device | str = "cpu",
    ) -> Statistics:
        """Inverse of reading ``classes``, ``counts`` and ``parts``."""
        size = sums.shape[1]
        for part in (counts, sums, class_triangles, unit_sums):
            if part is not None and len(part) != len(classes):
                raise CircleError("statistics of inconsistent sizes: the file is damaged")
        result = cls(size, exact=exact, device=device)
        result.orphan_degrees = orphan_degrees
        result._moment = SecondMoment.from_triangle(triangle, size, device)
        rows = result._rows
        rows.index = {label: row for row, label in enumerate(classes)}
        rows.counts = counts.to(torch.int64).cpu().clone()
        rows.sums = sums.to(result.device, torch.float64, copy=True)
        if class_triangles is not None:
            rows.moments = [SecondMoment.from_triangle(each, size, device) for each in class_triangles]
        if unit_sums is not None:
            if unit_sums.shape != sums.shape:
                raise CircleError("statistics of inconsistent sizes: the file is damaged")
            rows.unit_sums = unit_sums.to(result.device, torch.int64, copy=True)
        return result

    def select(self, columns: Tensor) -> Statistics:
        """Statistics of some of the features, ``columns`` int64 [d], ascending: as if only these had been learned.

        Of unit vectors nothing can be said: a part of one does not have length one.
        """
        if self.has_unit_sums:
            raise CircleError("statistics with sums of unit vectors cannot be cut: learn the features wanted alone")
        ascending = len(columns) > 0 and bool((columns.diff() > 0).all())
        if not ascending or int(columns[0]) < 0 or int(columns[-1]) >= self.size:
            raise CircleError(f"columns of statistics of size {self.size}: expected ascending numbers below it")
        self.flush()
        result = Statistics(len(columns), exact=self.exact, device=self.device)
        result._rows = self._rows.select(columns)
        result._moment = self._moment.select(columns)
        result.orphan_degrees = self.orphan_degrees
        return result

    @property
    def nbytes(self) -> int:
        """Bytes held while learning: counts, sums, one triangle of every second moment (in strips), the buffer."""
        buffer = 0 if self._buffer is None else self._buffer.numel() * self._buffer.element_size()
        return self._rows.nbytes + SecondMoment.bytes_of(self.size) + buffer

    def bytes_for(self, labels: Iterable[Hashable]) -> int:
        """Memory that the second moments of those classes among ``labels`` that are new would take."""
        return self._rows.bytes_for(labels)

    # -- learning --------------------------------------------------------------------------------------------

    def update(self, features: Tensor, labels: Sequence[Hashable]) -> None:
        """Add samples: features [B, D] (int8 or int16, or float32 where not exact), one label each."""
        self._check(features, labels)
        check_room([self], labels)
        self.version += 1
        for label in labels:
            if label not in self._rows.index:
                self._rows.add(label)
        rows = [self._rows.index[label] for label in labels]
        if self._buffer is None or self._buffer.dtype != features.dtype:
            self.flush()
            self._buffer = torch.empty(TILE, self.size, dtype=features.dtype, device=self.device)
        start = 0
        while start < len(rows):
            filled = len(self._buffered)
            take = min(TILE - filled, len(rows) - start)
            self._buffer[filled : filled + take] = features[start : start + take]
            self._buffered += rows[start : start + take]
            start += take
            if len(self._buffered) == TILE:
                self.flush()

    def _check(self, features: Tensor, labels: Sequence[Hashable]) -> None:
        expected = (torch.int8, torch.int16) if self.exact else (torch.float32,)
        if features.dtype not in expected or features.ndim != 2 or features.shape[1] != self.size:
            raise CircleError(
                f"features of type {features.dtype} and shape {list(features.shape)}: "
                f"expected {' or '.join(map(str, expected))} and [B, {self.size}]"
            )
        if len(labels) != len(features):
            raise CircleError(f"{len(labels)} labels for {len(features)} images: expected one each")
        check_one_kind([*self.example, *labels])

    def flush(self) -> None:
        """Multiply the waiting samples into the sums; reading does it anyway, timing may want it sooner."""
        if not self._buffered or self._buffer is None:
            return
        # Whoever allows PyTorch faster, shorter products elsewhere must not get them here.
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            wide = torch.float64 if self._buffer.dtype == torch.int16 else torch.float32
            features = self._buffer[: len(self._buffered)].to(wide)
            self._rows.update(features, self._buffered)
            self._moment.add_products(features)
        finally:
            torch.set_float32_matmul_precision(precision)
        self._buffered = []

    # -- algebra ---------------------------------------------------------------------------------------------

    def __add__(self, other: Statistics) -> Statistics:
        result = self.copy()
        result._accumulate(other, 1)
        return result

    def __sub__(self, other: Statistics) -> Statistics:
        """Statistics of a stream that never held ``other``'s samples; all of them must have been learned."""
        result = self.copy()
        result._accumulate(other, -1)
        result._rows.drop_empty(exact=self.exact)
        return result

    def _accumulate(self, other: Statistics, sign: int) -> None:
        if self._kind() != other._kind():
            raise CircleError(
                f"statistics of size {self.size} (exact: {self.exact}) and {other.size} (exact: {other.exact}) "
                "do not combine: expected the same size and the same parts"
            )
        check_one_kind([*self.example, *other.example])
        other.flush()
        check_room([self], other._rows.index)
        self.version += 1
        self._rows.accumulate(other._rows, sign)
        self._moment.add(other._moment, sign)
        self.orphan_degrees += sign * other.orphan_degrees
        if self.orphan_degrees < 0:
            raise CircleError("the scatter of forgotten classes cannot become negative: not the same statistics")

    def remove(self, label: Hashable) -> None:
        """Let a class leave: its count and sums go; of M, its mean's part goes and its scatter stays behind.

            M <- M - round(T_c T_c^T / n_c)

        The pooled covariance keeps the class's anonymous scatter with its n_c - 1 degrees of freedom. Rounding
        to integers keeps every later sum exact; it moves an entry of M by at most one half.
        """
        if label not in self._rows.index:
            raise CircleError(f"class {label!r} is not in the model")
        self.flush()
        self.version += 1
        row = self._rows.index[label]
        count = int(self._rows.counts[row])
        self._moment.subtract_outer(self._rows.sums[row], count, whole=self.exact)
        self.orphan_degrees += count - 1
        self._rows.drop(label)

    def rename(self, label: Hashable, new: Hashable) -> None:
        """Give a class another label; every count and sum stays as it is."""
        if label not in self._rows.index:
            raise CircleError(f"class {label!r} is not in the model")
        if new in self._rows.index:
            raise CircleError(f"class {new!r} is in the model already: expected a name that is free")
        check_one_kind([label, new])
        self.version += 1  # the order of the classes may be another
        self._rows.rename(label, new)

    def copy(self) -> Statistics:
        self.flush()
        result = Statistics.__new__(Statistics)
        result.__dict__.update(self.__dict__)
        result._rows, result._moment = self._rows.copy(), self._moment.copy()
        result._buffer, result._buffered = None, []
        return result

    def __eq__(self, other: object) -> bool:
        """Bitwise equality of everything learned, whatever the order of arrival."""
        if not isinstance(other, Statistics):
            return NotImplemented
        self.flush()
        other.flush()
        return (
            (self._kind(), self.orphan_degrees) == (other._kind(), other.orphan_degrees)
            and self._rows == other._rows
            and self._moment == other._moment
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _kind(self) -> tuple[int, bool, bool, bool]:
        return self.size, self.exact, self.has_class_moments, self.has_unit_sums


def check_room(statistics: Sequence[Statistics], labels: Iterable[Hashable]) -> None:
    """Refuse new classes whose second moments do not fit into memory, before any of them is allocated."""
    labels = set(labels)
    needed = sum(each.bytes_for(labels) for each in statistics)
    if needed:
        require_memory(
            needed,
            f"second moments of {len(labels)} classes with {statistics[0].size:,} features",
            "use a shorter feature (projection_size), or a head that needs none of each class (slda)",
        )
