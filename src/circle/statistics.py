"""Additive sufficient statistics of labelled features, exact to the last bit.

For features z_i (int8, size D) with labels y_i:

    n_c = |{i : y_i = c}|        T_c = sum_{y_i = c} z_i        M = sum_i z_i z_i^T

and, for the heads that need them and only for those:

    M_c = sum_{y_i = c} z_i z_i^T        U_c = sum_{y_i = c} round(2^36 z_i / |z_i|)

Why they are exact: a product of two int8 values is below 2^14, so the sum over a tile of 1,024 samples stays
below 2^24 and a float32 matrix product of that tile is exact in any order of summation. Tiles are added into
float64, which is exact below 2^53 (more than 5e11 samples). Every partial sum is therefore an integer without
rounding, and the result cannot depend on sample order, batch size, threads, shards or resume points. U is kept
in int64: |z|^2 is an integer, its root and the quotient are rounded as IEEE prescribes, so every machine agrees.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

from circle.errors import CircleError
from circle.labels import check_one_kind, ordered
from circle.second_moment import SecondMoment, check_room
from circle.unit_vectors import UNIT, fixed_point_units

TILE = 1024  # samples per exact float32 product; 1024 * 127 * 127 < 2^24


class Statistics:
    """Counts, sums and the second moment of a stream of labelled features.

    ``exact=True`` takes int8 features. ``exact=False`` takes float32 features, for comparison; its sums round.
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
        self._rows: dict[Hashable, int] = {}
        self._counts = torch.zeros(0, dtype=torch.int64)
        self._sums = torch.zeros(0, size, dtype=torch.float64, device=self.device)
        self._moment = SecondMoment(size, self.device)
        self._class_moments: list[SecondMoment] | None = [] if class_moments else None
        self._unit_sums = torch.zeros(0, size, dtype=torch.int64, device=self.device) if unit_sums else None
        self._buffer: Tensor | None = None
        self._buffered: list[int] = []

    # -- what was learned ------------------------------------------------------------------------------------

    @property
    def classes(self) -> list[Hashable]:
        """Observed classes in canonical order; the rows of ``counts`` and ``sums``."""
        return ordered(self._rows)

    @property
    def counts(self) -> Tensor:
        """n, int64 [C]."""
        self.flush()
        return self._counts[self._order()]

    @property
    def sums(self) -> Tensor:
        """T, float64 [C, D]."""
        self.flush()
        return self._sums[self._order()]

    @property
    def samples(self) -> int:
        return int(self._counts.sum()) + len(self._buffered)

    @property
    def degrees_of_freedom(self) -> int:
        """N - C of the pooled scatter, the scatter of forgotten classes that stayed behind included."""
        return self.samples - len(self._rows) + self.orphan_degrees

    @property
    def has_class_moments(self) -> bool:
        return self._class_moments is not None

    @property
    def has_unit_sums(self) -> bool:
        return self._unit_sums is not None

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
        return self._kept_class_moments()[self._rows[label]].full()

    def unit_sums(self) -> Tensor:
        """Sums of the features scaled to length one, float64 [C, D]."""
        self.flush()
        if self._unit_sums is None:
            raise CircleError("these statistics were kept without the sums of unit vectors: learn with this head")
        return self._unit_sums[self._order()].to(torch.float64) / UNIT

    def parts(self) -> dict[str, Tensor]:
        """All that was learned but classes and counts, as a file holds it: ``from_parts`` is the inverse.

        ``sums`` [C, D]; ``triangle`` [D (D + 1) / 2], the upper one of M row by row; where they are kept also
        ``class_triangles`` [C, D (D + 1) / 2] and ``unit_sums``, int64 [C, D]. The rows are ``classes``.
        """
        self.flush()
        parts = {"sums": self.sums, "triangle": self._moment.triangle()}
        if self._class_moments is not None:
            triangles = [self._class_moments[row].triangle() for row in self._order().tolist()]
            parts["class_triangles"] = torch.stack(triangles) if triangles else parts["triangle"].new_zeros(0)
        if self._unit_sums is not None:
            parts["unit_sums"] = self._unit_sums[self._order()]
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
        for rows in (counts, sums, class_triangles, unit_sums):
            if rows is not None and len(rows) != len(classes):
                raise CircleError("statistics of inconsistent sizes: the file is damaged")
        result = cls(size, exact=exact, device=device)
        result.orphan_degrees = orphan_degrees
        result._rows = {label: row for row, label in enumerate(classes)}
        result._counts = counts.to(torch.int64).cpu().clone()
        result._sums = sums.to(result.device, torch.float64, copy=True)
        result._moment = SecondMoment.from_triangle(triangle, size, device)
        if class_triangles is not None:
            result._class_moments = [SecondMoment.from_triangle(each, size, device) for each in class_triangles]
        if unit_sums is not None:
            if unit_sums.shape != sums.shape:
                raise CircleError("statistics of inconsistent sizes: the file is damaged")
            result._unit_sums = unit_sums.to(result.device, torch.int64, copy=True)
        return result

    def select(self, columns: Tensor) -> Statistics:
        """Statistics of some of the features, ``columns`` int64 [d], ascending: as if only these had been learned.

        Of unit vectors nothing can be said: a part of one does not have length one.
        """
        if self._unit_sums is not None:
            raise CircleError("statistics with sums of unit vectors cannot be cut: learn the features wanted alone")
        if (
            len(columns) == 0
            or bool((columns.diff() <= 0).any())
            or not 0 <= int(columns[0]) <= columns[-1] < self.size
        ):
            raise CircleError(f"columns of statistics of size {self.size}: expected ascending numbers below it")
        self.flush()
        result = Statistics(len(columns), exact=self.exact, device=self.device)
        result._rows, result._counts = dict(self._rows), self._counts.clone()
        result._sums = self._sums[:, columns]
        result._moment = self._moment.select(columns)
        if self._class_moments is not None:
            result._class_moments = [moment.select(columns) for moment in self._class_moments]
        result.orphan_degrees = self.orphan_degrees
        return result

    @property
    def nbytes(self) -> int:
        """Bytes held while learning: counts, sums, one triangle of every second moment (in strips), the buffer."""
        moments = SecondMoment.bytes_of(self.size) * (1 + len(self._class_moments or ()))
        units = 8 * len(self._rows) * self.size if self.has_unit_sums else 0
        buffer = 0 if self._buffer is None else self._buffer.numel() * self._buffer.element_size()
        return 8 * len(self._rows) * (1 + self.size) + moments + units + buffer

    def bytes_for(self, labels: Iterable[Hashable]) -> int:
        """Memory that the second moments of those classes among ``labels`` that are new would take."""
        if self._class_moments is None:
            return 0
        return SecondMoment.bytes_of(self.size) * len(set(labels) - self._rows.keys())

    # -- learning --------------------------------------------------------------------------------------------

    def update(self, features: Tensor, labels: Sequence[Hashable]) -> None:
        """Add samples: features [B, D] (int8, or float32 where not exact), one label each."""
        self._check(features, labels)
        check_room([self], labels)
        self.version += 1
        for label in labels:
            if label not in self._rows:
                self._add_row(label)
        rows = [self._rows[label] for label in labels]
        if self._buffer is None:
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
        expected = torch.int8 if self.exact else torch.float32
        if features.dtype != expected or features.ndim != 2 or features.shape[1] != self.size:
            raise CircleError(
                f"features of type {features.dtype} and shape {list(features.shape)}: "
                f"expected {expected} and [B, {self.size}]"
            )
        if len(labels) != len(features):
            raise CircleError(f"{len(labels)} labels for {len(features)} images: expected one each")
        check_one_kind([*list(self._rows)[:1], *labels])

    def _add_row(self, label: Hashable) -> None:
        row = len(self._rows)
        if row == len(self._sums):
            # Capacity doubles, so that a thousand classes arriving one by one cost ten copies, not a thousand.
            capacity = max(8, 2 * row)
            self._sums = _grown(self._sums, capacity)
            self._counts = _grown(self._counts, capacity)
            if self._unit_sums is not None:
                self._unit_sums = _grown(self._unit_sums, capacity)
        if self._class_moments is not None:
            self._class_moments.append(SecondMoment(self.size, self.device))
        self._rows[label] = row

    def flush(self) -> None:
        """Multiply the waiting samples into the sums; reading does it anyway, timing may want it sooner."""
        if not self._buffered or self._buffer is None:
            return
        # Whoever allows PyTorch faster, shorter products elsewhere must not get them here.
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            self._multiply(self._buffer)
        finally:
            torch.set_float32_matmul_precision(precision)
        self._buffered = []

    def _multiply(self, buffer: Tensor) -> None:
        features = buffer[: len(self._buffered)].to(torch.float32)
        rows, position = torch.tensor(self._buffered).unique(return_inverse=True)
        membership = torch.zeros(len(rows), len(features))
        membership[position, torch.arange(len(features))] = 1.0
        self._counts[rows] += membership.sum(1).to(torch.int64)
        self._sums[rows.to(self.device)] += (membership.to(self.device) @ features).to(torch.float64)
        self._moment.add_products(features)
        if self._class_moments is not None:
            for index, row in enumerate(rows.tolist()):
                self._class_moments[row].add_products(features[(position == index).to(self.device)])
        if self._unit_sums is not None:
            self._unit_sums.index_add_(0, rows[position].to(self.device), fixed_point_units(features))

    # -- algebra ---------------------------------------------------------------------------------------------

    def __add__(self, other: Statistics) -> Statistics:
        result = self.copy()
        result._accumulate(other, 1)
        return result

    def __sub__(self, other: Statistics) -> Statistics:
        """Statistics of a stream that never held ``other``'s samples; all of them must have been learned."""
        result = self.copy()
        result._accumulate(other, -1)
        gone = [label for label, row in result._rows.items() if not int(result._counts[row])]
        for label in result._rows:
            if int(result._counts[result._rows[label]]) < 0:
                raise CircleError(f"class {label!r}: more samples to subtract than were learned")
        for label in gone:
            remainder = result._sums[result._rows[label]].abs().max()
            if result.exact and float(remainder) != 0.0:
                raise CircleError(f"class {label!r}: these are not the samples that were learned; nothing was changed")
            result._drop_row(label)
        return result

    def _accumulate(self, other: Statistics, sign: int) -> None:
        if self._kind() != other._kind():
            raise CircleError(
                f"statistics of size {self.size} (exact: {self.exact}) and {other.size} (exact: {other.exact}) "
                "do not combine: expected the same size and the same parts"
            )
        check_one_kind([*list(self._rows)[:1], *list(other._rows)[:1]])
        other.flush()
        check_room([self], other._rows)
        self.version += 1
        for label, row in other._rows.items():
            if label not in self._rows:
                if sign < 0:
                    raise CircleError(f"class {label!r} was never learned: it cannot be subtracted")
                self._add_row(label)
            mine = self._rows[label]
            self._counts[mine] += sign * other._counts[row]
            self._sums[mine] += sign * other._sums[row]
            if self._class_moments is not None:
                self._class_moments[mine].add(other._kept_class_moments()[row], sign)
            if self._unit_sums is not None and other._unit_sums is not None:
                self._unit_sums[mine] += sign * other._unit_sums[row]
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
        if label not in self._rows:
            raise CircleError(f"class {label!r} is not in the model")
        self.flush()
        self.version += 1
        row = self._rows[label]
        count = int(self._counts[row])
        self._moment.subtract_outer(self._sums[row], count, whole=self.exact)
        self.orphan_degrees += count - 1
        self._drop_row(label)

    def _drop_row(self, label: Hashable) -> None:
        """Move the last row into the place of the one that leaves."""
        row, last = self._rows.pop(label), len(self._rows)
        if row != last:
            moved = next(name for name, index in self._rows.items() if index == last)
            self._rows[moved] = row
        for rows in (self._counts, self._sums, self._unit_sums):
            if rows is not None:
                rows[row] = rows[last].clone()
                rows[last] = 0
        if self._class_moments is not None:
            self._class_moments[row] = self._class_moments[last]
            self._class_moments.pop()

    def copy(self) -> Statistics:
        self.flush()
        result = Statistics.__new__(Statistics)
        result.__dict__.update(self.__dict__)
        result._rows = dict(self._rows)
        result._counts, result._sums, result._moment = self._counts.clone(), self._sums.clone(), self._moment.copy()
        if self._class_moments is not None:
            result._class_moments = [moment.copy() for moment in self._class_moments]
        if self._unit_sums is not None:
            result._unit_sums = self._unit_sums.clone()
        result._buffer, result._buffered = None, []
        return result

    def __eq__(self, other: object) -> bool:
        """Bitwise equality of everything learned, whatever the order of arrival."""
        if not isinstance(other, Statistics):
            return NotImplemented
        if (self._kind(), self.orphan_degrees, self.classes) != (other._kind(), other.orphan_degrees, other.classes):
            return False
        mine, theirs = self._order(), other._order()
        self.flush()
        other.flush()
        rows = [(self._counts, other._counts), (self._sums, other._sums), (self._unit_sums, other._unit_sums)]
        return (
            all(torch.equal(a[mine], b[theirs]) for a, b in rows if a is not None and b is not None)
            and self._moment == other._moment
            and all(
                self._kept_class_moments()[a] == other._kept_class_moments()[b]
                for a, b in zip(mine.tolist(), theirs.tolist(), strict=True)
                if self.has_class_moments
            )
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _kind(self) -> tuple[int, bool, bool, bool]:
        return self.size, self.exact, self.has_class_moments, self.has_unit_sums

    def _kept_class_moments(self) -> list[SecondMoment]:
        if self._class_moments is None:
            raise CircleError("these statistics were kept without second moments of classes: learn with this head")
        return self._class_moments

    def _order(self) -> Tensor:
        return torch.tensor([self._rows[label] for label in self.classes], dtype=torch.int64)


def _grown(rows: Tensor, capacity: int) -> Tensor:
    """The same rows with zeros after them."""
    grown = rows.new_zeros(capacity, *rows.shape[1:])
    grown[: len(rows)] = rows
    return grown
