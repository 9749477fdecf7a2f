"""Additive sufficient statistics of labelled features, exact to the last bit.

For features z_i (int8, size D) with labels y_i:

    n_c = |{i : y_i = c}|        T_c = sum_{y_i = c} z_i        M = sum_i z_i z_i^T

Why they are exact: a product of two int8 values is below 2^14, so the sum over a tile of 1,024 samples stays
below 2^24 and a float32 matrix product of that tile is exact in any order of summation. Tiles are added into
float64, which is exact below 2^53 (more than 5e11 samples). Every partial sum is therefore an integer without
rounding, and the result cannot depend on sample order, batch size, threads, shards or resume points.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from circle.errors import CircleError
from circle.labels import check_one_kind, ordered

TILE = 1024  # samples per exact float32 product; 1024 * 127 * 127 < 2^24
STRIP = 256  # rows of M per product: only blocks on and above the diagonal are computed


class Statistics:
    """Counts, sums and the second moment of a stream of labelled features.

    ``exact=True`` takes int8 features. ``exact=False`` takes float32 features, for comparison; its sums round.

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

    def __init__(self, size: int, *, exact: bool = True, device: torch.device | str = "cpu") -> None:
        self.size = size
        self.exact = exact
        self.device = torch.device(device)
        self.orphan_degrees = 0
        self.version = 0  # grows with every change, so that what was computed from the statistics can be kept
        self._rows: dict[Hashable, int] = {}
        self._counts = torch.zeros(0, dtype=torch.int64)
        self._sums = torch.zeros(0, size, dtype=torch.float64, device=self.device)
        self._strips = [
            torch.zeros(min(STRIP, size - start), size - start, dtype=torch.float64, device=self.device)
            for start in range(0, size, STRIP)
        ]
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

    def second_moment(self) -> Tensor:
        """M as a full symmetric matrix, float64 [D, D]."""
        self.flush()
        full = torch.empty(self.size, self.size, dtype=torch.float64, device=self.device)
        for start, strip in zip(range(0, self.size, STRIP), self._strips, strict=True):
            stop = start + strip.shape[0]
            full[start:stop, start:] = strip
            full[stop:, start:stop] = strip[:, stop - start :].T
        return full

    def triangle(self) -> Tensor:
        """The upper triangle of M row by row, float64 [D (D + 1) / 2]: what a file needs to hold."""
        self.flush()
        return torch.cat([row[index:] for strip in self._strips for index, row in enumerate(strip)])

    @classmethod
    def from_parts(
        cls,
        classes: Sequence[Hashable],
        counts: Tensor,
        sums: Tensor,
        triangle: Tensor,
        *,
        orphan_degrees: int = 0,
        exact: bool = True,
        device: torch.device | str = "cpu",
    ) -> Statistics:
        """Inverse of reading ``classes``, ``counts``, ``sums`` and ``triangle``."""
        size = sums.shape[1]
        if triangle.numel() != size * (size + 1) // 2 or len(counts) != len(classes) or len(sums) != len(classes):
            raise CircleError("statistics of inconsistent sizes: the file is damaged")
        result = cls(size, exact=exact, device=device)
        result.orphan_degrees = orphan_degrees
        result._rows = {label: row for row, label in enumerate(classes)}
        result._counts = counts.to(torch.int64).cpu().clone()
        result._sums = sums.to(result.device, torch.float64, copy=True)
        position = 0
        for strip in result._strips:
            for index, row in enumerate(strip):
                length = row.numel() - index
                row[index:] = triangle[position : position + length]
                position += length
            side = strip.shape[0]
            block = strip[:, :side].triu()
            strip[:, :side] = block + block.triu(1).T
        return result

    @property
    def nbytes(self) -> int:
        """Bytes held while learning: counts, sums, one triangle of M (in strips), the buffer."""
        strips = sum(strip.numel() for strip in self._strips)
        buffer = 0 if self._buffer is None else self._buffer.numel() * self._buffer.element_size()
        return 8 * (len(self._rows) * (1 + self.size) + strips) + buffer

    # -- learning --------------------------------------------------------------------------------------------

    def update(self, features: Tensor, labels: Sequence[Hashable]) -> None:
        """Add samples: features [B, D] (int8, or float32 where not exact), one label each."""
        self._check(features, labels)
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
            grown = torch.zeros(capacity, self.size, dtype=torch.float64, device=self.device)
            grown[:row] = self._sums
            self._sums = grown
            self._counts = torch.cat([self._counts, torch.zeros(capacity - row, dtype=torch.int64)])
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
        for start, strip in zip(range(0, self.size, STRIP), self._strips, strict=True):
            strip += features[:, start : start + strip.shape[0]].T @ features[:, start:]

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
        if (self.size, self.exact) != (other.size, other.exact):
            raise CircleError(
                f"statistics of size {self.size} (exact: {self.exact}) and {other.size} (exact: {other.exact}) "
                "do not combine: expected the same"
            )
        check_one_kind([*list(self._rows)[:1], *list(other._rows)[:1]])
        other.flush()
        self.version += 1
        for label, row in other._rows.items():
            if label not in self._rows:
                if sign < 0:
                    raise CircleError(f"class {label!r} was never learned: it cannot be subtracted")
                self._add_row(label)
            self._counts[self._rows[label]] += sign * other._counts[row]
            self._sums[self._rows[label]] += sign * other._sums[row]
        for mine, theirs in zip(self._strips, other._strips, strict=True):
            mine.add_(theirs, alpha=sign)
        self.orphan_degrees += sign * other.orphan_degrees
        if self.orphan_degrees < 0:
            raise CircleError("the scatter of forgotten classes cannot become negative: not the same statistics")

    def remove(self, label: Hashable) -> None:
        """Let a class leave: its count and sum go; of M, its mean's part goes and its scatter stays behind.

            M <- M - round(T_c T_c^T / n_c)

        The pooled covariance keeps the class's anonymous scatter with its n_c - 1 degrees of freedom. Rounding
        to integers keeps every later sum exact; it moves an entry of M by at most one half.
        """
        if label not in self._rows:
            raise CircleError(f"class {label!r} is not in the model")
        self.flush()
        self.version += 1
        row = self._rows[label]
        count, total = int(self._counts[row]), self._sums[row]
        for start, strip in zip(range(0, self.size, STRIP), self._strips, strict=True):
            part = torch.outer(total[start : start + strip.shape[0]], total[start:]) / count
            strip -= part.round() if self.exact else part
        self.orphan_degrees += count - 1
        self._drop_row(label)

    def _drop_row(self, label: Hashable) -> None:
        """Move the last row into the place of the one that leaves."""
        row, last = self._rows.pop(label), len(self._rows)
        if row != last:
            moved = next(name for name, index in self._rows.items() if index == last)
            self._rows[moved] = row
            self._counts[row], self._sums[row] = self._counts[last], self._sums[last].clone()
        self._counts[last] = 0
        self._sums[last] = 0.0

    def copy(self) -> Statistics:
        self.flush()
        result = Statistics.__new__(Statistics)
        result.__dict__.update(self.__dict__)
        result._rows = dict(self._rows)
        result._counts, result._sums = self._counts.clone(), self._sums.clone()
        result._strips = [strip.clone() for strip in self._strips]
        result._buffer, result._buffered = None, []
        return result

    def __eq__(self, other: object) -> bool:
        """Bitwise equality of everything learned, whatever the order of arrival."""
        if not isinstance(other, Statistics):
            return NotImplemented
        return (
            (self.size, self.exact, self.orphan_degrees) == (other.size, other.exact, other.orphan_degrees)
            and self.classes == other.classes
            and torch.equal(self.counts, other.counts)
            and torch.equal(self.sums, other.sums)
            and all(torch.equal(mine, theirs) for mine, theirs in zip(self._strips, other._strips, strict=True))
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _order(self) -> Tensor:
        return torch.tensor([self._rows[label] for label in self.classes], dtype=torch.int64)
