"""What statistics keep for every class: a row that appears with its first sample and leaves when it is forgotten."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from circle.errors import CircleError
from circle.labels import ordered
from circle.statistics.second_moment import SecondMoment
from circle.statistics.unit_vectors import fixed_point_units


class ClassRows:
    """Counts n_c and sums T_c of each class and, where asked for, second moments M_c and sums of unit vectors U_c.

    Rows stand in the order of arrival, with room for more after them; ``order`` leads to the canonical order.
    """

    def __init__(self, size: int, device: torch.device, *, class_moments: bool, unit_sums: bool) -> None:
        self.size = size
        self.device = device
        self.index: dict[Hashable, int] = {}
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.sums = torch.zeros(0, size, dtype=torch.float64, device=device)
        self.unit_sums = torch.zeros(0, size, dtype=torch.int64, device=device) if unit_sums else None
        self.moments: list[SecondMoment] | None = [] if class_moments else None

    @property
    def classes(self) -> list[Hashable]:
        return ordered(self.index)

    def order(self) -> Tensor:
        """Positions of the rows in the order of ``classes``, int64 [C]."""
        return torch.tensor([self.index[label] for label in self.classes], dtype=torch.int64)

    def kept_moments(self) -> list[SecondMoment]:
        if self.moments is None:
            raise CircleError("these statistics were kept without second moments of classes: learn with this head")
        return self.moments

    def add(self, label: Hashable) -> None:
        """A row of zeros for a new class."""
        row = len(self.index)
        if row == len(self.sums):
            # By a quarter, so that a thousand classes arriving one by one cost some twenty copies, not a thousand,
            # and the memory that waits for more is little beside their sums.
            capacity = row + max(8, row // 4)
            self.sums, self.counts = _grown(self.sums, capacity), _grown(self.counts, capacity)
            self.unit_sums = None if self.unit_sums is None else _grown(self.unit_sums, capacity)
        if self.moments is not None:
            self.moments.append(SecondMoment(self.size, self.device))
        self.index[label] = row

    def drop(self, label: Hashable) -> None:
        """Move the last row into the place of the one that leaves."""
        row, last = self.index.pop(label), len(self.index)
        if row != last:
            moved = next(name for name, index in self.index.items() if index == last)
            self.index[moved] = row
        for rows in (self.counts, self.sums, self.unit_sums):
            if rows is not None:
                rows[row] = rows[last].clone()
                rows[last] = 0
        if self.moments is not None:
            self.moments[row] = self.moments[last]
            self.moments.pop()

    def rename(self, label: Hashable, new: Hashable) -> None:
        """Give a row another label; no number changes."""
        self.index[new] = self.index.pop(label)

    def update(self, features: Tensor, rows: list[int]) -> None:
        """Add float32 or float64 features [B, D] of at most a tile, given the row of each."""
        present, position = torch.tensor(rows).unique(return_inverse=True)
        self.counts.index_add_(0, present, position.bincount(minlength=len(present)))
        # First the tile's own sums: exact in the features' type, and small enough to stay in cache.
        sums = features.new_zeros(len(present), self.size).index_add_(0, position.to(self.device), features)
        self.sums.index_add_(0, present.to(self.device), sums.to(torch.float64))
        if self.moments is not None:
            for index, row in enumerate(present.tolist()):
                self.moments[row].add_products(features[(position == index).to(self.device)])
        if self.unit_sums is not None:
            self.unit_sums.index_add_(0, present[position].to(self.device), fixed_point_units(features))

    def accumulate(self, other: ClassRows, sign: int) -> None:
        """Add or subtract another's rows; only what is there can be subtracted."""
        for label, row in other.index.items():
            if label not in self.index:
                if sign < 0:
                    raise CircleError(f"class {label!r} was never learned: it cannot be subtracted")
                self.add(label)
            mine = self.index[label]
            self.counts[mine] += sign * other.counts[row]
            self.sums[mine] += sign * other.sums[row]
            if self.moments is not None:
                self.moments[mine].add(other.kept_moments()[row], sign)
            if self.unit_sums is not None and other.unit_sums is not None:
                self.unit_sums[mine] += sign * other.unit_sums[row]

    def drop_empty(self, *, exact: bool) -> None:
        """Let classes leave of which nothing is left after a subtraction, and refuse what cannot be."""
        for label, row in self.index.items():
            if int(self.counts[row]) < 0:
                raise CircleError(f"class {label!r}: more samples to subtract than were learned")
        for label in [label for label, row in self.index.items() if not int(self.counts[row])]:
            if exact and float(self.sums[self.index[label]].abs().max()) != 0.0:
                raise CircleError(f"class {label!r}: these are not the samples that were learned; nothing was changed")
            self.drop(label)

    def bytes_for(self, labels: Iterable[Hashable]) -> int:
        """Memory that the second moments of those classes among ``labels`` that are new would take."""
        return 0 if self.moments is None else SecondMoment.bytes_of(self.size) * len(set(labels) - self.index.keys())

    @property
    def nbytes(self) -> int:
        rows = 8 * len(self.index) * (1 + self.size * (1 if self.unit_sums is None else 2))
        return rows + SecondMoment.bytes_of(self.size) * len(self.moments or ())

    def select(self, columns: Tensor) -> ClassRows:
        """Rows of some of the features."""
        result = ClassRows(len(columns), self.device, class_moments=False, unit_sums=False)
        result.index, result.counts, result.sums = dict(self.index), self.counts.clone(), self.sums[:, columns]
        if self.moments is not None:
            result.moments = [moment.select(columns) for moment in self.moments]
        return result

    def copy(self) -> ClassRows:
        result = ClassRows(self.size, self.device, class_moments=False, unit_sums=False)
        result.index, result.counts, result.sums = dict(self.index), self.counts.clone(), self.sums.clone()
        result.unit_sums = None if self.unit_sums is None else self.unit_sums.clone()
        result.moments = None if self.moments is None else [moment.copy() for moment in self.moments]
        return result

    def __eq__(self, other: object) -> bool:
        """Bitwise equality, whatever the order of arrival."""
        if not isinstance(other, ClassRows):
            return NotImplemented
        kinds = [(each.moments is None, each.unit_sums is None) for each in (self, other)]
        if kinds[0] != kinds[1] or self.classes != other.classes:
            return False
        mine, theirs = self.order(), other.order()
        pairs = [(self.counts, other.counts), (self.sums, other.sums), (self.unit_sums, other.unit_sums)]
        return all(torch.equal(a[mine], b[theirs]) for a, b in pairs if a is not None and b is not None) and all(
            self.kept_moments()[a] == other.kept_moments()[b]
            for a, b in zip(mine.tolist(), theirs.tolist(), strict=True)
            if self.moments is not None
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def _grown(rows: Tensor, capacity: int) -> Tensor:
    """The same rows with zeros after them."""
    grown = rows.new_zeros(capacity, *rows.shape[1:])
    grown[: len(rows)] = rows
    return grown
