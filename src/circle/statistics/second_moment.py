"""Sums of outer products, of which one triangle of blocks is kept."""

from __future__ import annotations

import torch
from torch import Tensor

from circle.errors import CircleError

STRIP_ROWS = 256  # rows that are kept together; only blocks on and above the diagonal are computed
MIN_FEATURES_FOR_BLOCKS = 4096  # from here on four strips share a product: less time, though more is computed in vain


class SecondMoment:
    """M = sum_i z_i z_i^T, float64 [D, D], as strips of rows that start at the diagonal.

    Parameters
    ----------
    size : int
        Number of features D.
    device : torch.device or str
        Where the strips are kept.

    Attributes
    ----------
    strips : list of Tensor
        Rows s to s + 255 from column s on, float64, for s = 0, 256, ...

    Examples
    --------
    >>> moment = SecondMoment(2)
    >>> moment.add_products(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> moment.full()
    tensor([[10., 14.],
            [14., 20.]], dtype=torch.float64)
    >>> moment.triangle()
    tensor([10., 14., 20.], dtype=torch.float64)
    """

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self.size = size
        self.device = torch.device(device)
        self.strips = [
            torch.zeros(min(STRIP_ROWS, size - start), size - start, dtype=torch.float64, device=self.device)
            for start in range(0, size, STRIP_ROWS)
        ]

    @staticmethod
    def bytes_of(size: int) -> int:
        """Memory that the strips of a moment of this size take."""
        return 8 * sum(min(STRIP_ROWS, size - start) * (size - start) for start in range(0, size, STRIP_ROWS))

    def add_products(self, features: Tensor) -> None:
        """Add the products of float features [B, D]; :mod:`circle.statistics.statistics` says why that is exact."""
        wide = (
            self.size >= MIN_FEATURES_FOR_BLOCKS and features.dtype == torch.float32
        )  # float64 is faster strip by strip (measured)
        rows, columns = (4 * STRIP_ROWS, 4 * STRIP_ROWS) if wide else (STRIP_ROWS, self.size)
        buffer = features.new_empty(rows * columns)
        for start in range(0, self.size, rows):
            left = features[:, start : start + rows].T
            for first in range(start, self.size, columns):
                right = features[:, first : first + columns]
                product = buffer[: len(left) * right.shape[1]].view(len(left), -1)
                torch.mm(left, right, out=product)
                self._add_block(product, start, first)

    def _add_block(self, block: Tensor, start: int, first: int) -> None:
        """Add a block [rows, columns] that begins in row ``start`` and column ``first``, as far as strips reach."""
        for row in range(start, start + len(block), STRIP_ROWS):
            strip, skipped = self.strips[row // STRIP_ROWS], max(0, row - first)
            if skipped < block.shape[1]:
                part = block[row - start : row - start + STRIP_ROWS, skipped:]
                begin = first + skipped - row
                strip[:, begin : begin + part.shape[1]] += part

    def add(self, other: SecondMoment, sign: int = 1) -> None:
        """Add another of the same size, or subtract it (``sign`` -1)."""
        for mine, theirs in zip(self.strips, other.strips, strict=True):
            mine.add_(theirs, alpha=sign)

    def subtract_outer(self, total: Tensor, count: int, *, whole: bool) -> None:
        """M <- M - T T^T / n for a sum T [D]; ``whole`` rounds what is subtracted to integers."""
        for start, strip in zip(range(0, self.size, STRIP_ROWS), self.strips, strict=True):
            part = torch.outer(total[start : start + strip.shape[0]], total[start:]) / count
            strip -= part.round() if whole else part

    def full(self) -> Tensor:
        """The whole symmetric matrix, [D, D]."""
        matrix = torch.empty(self.size, self.size, dtype=torch.float64, device=self.device)
        for start, strip in zip(range(0, self.size, STRIP_ROWS), self.strips, strict=True):
            stop = start + strip.shape[0]
            matrix[start:stop, start:] = strip
            matrix[stop:, start:stop] = strip[:, stop - start :].T
        return matrix

    def diagonal(self) -> Tensor:
        """q = sum_i z_i^2, [D]."""
        return torch.cat([strip.diagonal() for strip in self.strips])

    def triangle(self) -> Tensor:
        """The upper triangle row by row, [D (D + 1) / 2]: what a file needs to hold."""
        return torch.cat([row[index:] for strip in self.strips for index, row in enumerate(strip)])

    @classmethod
    def from_triangle(cls, triangle: Tensor, size: int, device: torch.device | str = "cpu") -> SecondMoment:
        """Inverse of :meth:`triangle`."""
        if triangle.shape != (size * (size + 1) // 2,):
            raise CircleError("statistics of inconsistent sizes: the file is damaged")
        result = cls(size, device)
        position = 0
        for strip in result.strips:
            for index, row in enumerate(strip):
                length = row.numel() - index
                row[index:] = triangle[position : position + length]
                position += length
            side = strip.shape[0]
            block = strip[:, :side].triu()
            strip[:, :side] = block + block.triu(1).T
        return result

    def select(self, columns: Tensor) -> SecondMoment:
        """The moment of some of the features: ``columns``, int64 [d], ascending. Reads only what it keeps."""
        matrix = torch.empty(len(columns), len(columns), dtype=torch.float64, device=self.device)
        for start, strip in zip(range(0, self.size, STRIP_ROWS), self.strips, strict=True):
            first, last = torch.searchsorted(columns, torch.tensor([start, start + strip.shape[0]])).tolist()
            if first < last:
                rows = strip[columns[first:last] - start]
                matrix[first:last, first:] = rows[:, columns[first:] - start]
        result = SecondMoment(len(columns), self.device)
        for start, strip in zip(range(0, len(columns), STRIP_ROWS), result.strips, strict=True):
            stop = start + strip.shape[0]
            upper = matrix[start:stop, start:].triu()
            upper[:, : stop - start] += upper[:, : stop - start].triu(1).T
            strip.copy_(upper)
        return result

    def copy(self) -> SecondMoment:
        """The same numbers in memory of their own."""
        result = SecondMoment.__new__(SecondMoment)
        result.size, result.device = self.size, self.device
        result.strips = [strip.clone() for strip in self.strips]
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SecondMoment):
            return NotImplemented
        pairs = zip(self.strips, other.strips, strict=True)
        return self.size == other.size and all(torch.equal(mine, theirs) for mine, theirs in pairs)

    __hash__ = None  # pyright: ignore[reportAssignmentType]
