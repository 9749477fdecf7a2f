"""Second moments of few samples in little space: as many rows of the matrix as its rank, and the rest from these.

A symmetric positive semidefinite matrix M of integers and of rank r is decided by r of its rows, the pivots P:

    M = M[:, P] M[P, P]^-1 M[P, :]

A file holds P and M[P, :], r (D + 1) numbers instead of D (D + 1) / 2. Nothing is rounded on the way back: modulo a
prime p the right side is a sum of products of whole numbers, M = W^T diag(d)^-1 W with the rows W that elimination
leaves and their pivots d, and the remainders modulo some primes decide every number up to the bound that Cauchy and
Schwarz give, |M_ij|^2 <= M_ii M_jj. The first pivot has the largest M_ii, so that the rows tell the bound.

Primes are below 2^22 and remainders lie around zero, so a product is below 2^42, and sums of 2,048 of them are exact in
float64 whatever the order: BLAS computes them, on every machine the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from circle.errors import CircleError
from circle.machine import run_jobs

PRIME_LIMIT = 2**22
MAX_PRIMES = 16  # that are tried; three are enough, but one of them may divide a pivot
TERMS = 2048  # of a sum of products of two remainders that is exact in float64
WINDOW = 64  # pivots that are eliminated together
STRIP = 256  # rows that are rebuilt together
LARGEST_SHARE = 4  # rows are kept only where they are at most a quarter of the triangle: work grows with them


class PivotRows(NamedTuple):
    """A matrix by its pivots.

    Attributes
    ----------
    pivots : Tensor
        P, int64 [r]; the first has the largest number on the diagonal.
    rows : Tensor
        M[P, :], float64 [r, D].
    """

    pivots: Tensor
    rows: Tensor


def largest_rank(size: int) -> int:
    """The rank up to which the rows of a matrix of this size take little enough space to be kept instead of it.

    >>> largest_rank(9216), largest_rank(7)
    (1152, 1)
    """
    return (size + 1) // (2 * LARGEST_SHARE)


def pivot_rows(triangle: Tensor, size: int, rank_bound: int) -> PivotRows | None:
    """The pivots of a matrix and their rows; None where these do not decide it, or would take too much space.

    Parameters
    ----------
    triangle : Tensor
        The upper triangle row by row, float64 [D (D + 1) / 2], whole numbers.
    size : int
        D.
    rank_bound : int
        A matrix whose rank is known to be no larger than this: the number of samples. Larger ones are not tried.

    Examples
    --------
    >>> z = torch.tensor([1.0, 0.0, 2.0, 0.0, 0.0, 3.0, 0.0])
    >>> rows = torch.triu_indices(7, 7)
    >>> pivot_rows(torch.outer(z, z)[rows[0], rows[1]], 7, 1)
    PivotRows(pivots=tensor([5]), rows=tensor([[3., 0., 6., 0., 0., 9., 0.]], dtype=torch.float64))
    """
    limit = min(rank_bound, largest_rank(size))
    if rank_bound > limit:
        return None
    triangle = triangle.to("cpu", torch.float64)
    pivots = _find_pivots(triangle, size, limit)
    if pivots is None:
        return None
    found = PivotRows(pivots, matrix_rows(triangle, size, pivots))
    bound = _bound(found)
    if triangle.numel() and float(triangle.abs().max()) > bound:
        return None  # of no sum of z z^T
    # Numbers that are equal modulo all primes, and both within the bound, are equal.
    for elimination in _eliminations(found, bound):
        if elimination is None:
            return None
        wrong: list[int] = []
        run_jobs([partial(_compare, elimination, triangle[part], *rows, wrong) for *rows, part in _strips(size)])
        if wrong:
            return None
    return found


def _compare(elimination: _Elimination, part: Tensor, start: int, stop: int, wrong: list[int]) -> None:
    """Note a strip whose numbers are not those of the triangle modulo the prime."""
    rebuilt = elimination.product(start, stop)
    if not wrong and bool(elimination.reduced(_unpacked(part, rebuilt).sub_(rebuilt).triu_()).any()):
        wrong.append(start)


def rebuilt_triangle(found: PivotRows) -> Tensor:
    """The upper triangle row by row, float64 [D (D + 1) / 2], of the matrix that :func:`pivot_rows` was given.

    Raises:
        CircleError: rows that are no rows of such a matrix.

    >>> rebuilt_triangle(PivotRows(torch.tensor([5]), torch.tensor([[3.0, 0.0, 6.0, 0.0, 0.0, 9.0, 0.0]])))[:7]
    tensor([1., 0., 2., 0., 0., 3., 0.], dtype=torch.float64)
    """
    pivots, rows = found.pivots.to("cpu", torch.int64), found.rows.to("cpu", torch.float64)
    found = PivotRows(pivots, rows)
    size = _check(found)
    bound = _bound(found)
    triangle = torch.empty(size * (size + 1) // 2, dtype=torch.float64)
    modulus = 1
    for elimination in _eliminations(found, bound):
        if elimination is None:
            raise _damaged("its pivots decide nothing")
        run_jobs([partial(_refine, elimination, triangle[part], *rows, modulus) for *rows, part in _strips(size)])
        modulus *= elimination.prime
    if bool((triangle.abs() > bound).any()):
        raise _damaged("its rows belong to no sum of products")
    return triangle


def _refine(elimination: _Elimination, part: Tensor, start: int, stop: int, modulus: int) -> None:
    """x <- x + m t, with t such that the remainder modulo the next prime is right: numbers below 2^53."""
    rest = elimination.product(start, stop)
    if modulus > 1:
        known, prime = _unpacked(part, rest), elimination.prime
        rest = elimination.reduced(elimination.reduced(rest - known) * _centred(pow(modulus, -1, prime), prime))
        rest = known.add_(rest, alpha=float(modulus))
    _pack(rest, part)


def matrix_rows(triangle: Tensor, size: int, rows: Tensor) -> Tensor:
    """Whole rows [r, D] of a symmetric matrix, from its upper triangle row by row."""
    return _entries(triangle, size, rows[:, None], torch.arange(size)[None])


def _entries(triangle: Tensor, size: int, rows: Tensor, columns: Tensor) -> Tensor:
    low, high = torch.minimum(rows, columns), torch.maximum(rows, columns)
    return triangle[low * size - low * (low - 1) // 2 + high - low]


def _strips(size: int) -> Iterator[tuple[int, int, slice]]:
    """First row and the one after the last of every strip, and where its part of the triangle lies."""
    for start in range(0, size, STRIP):
        stop = min(start + STRIP, size)
        yield start, stop, slice(*(row * size - row * (row - 1) // 2 for row in (start, stop)))


def _pack(strip: Tensor, part: Tensor) -> None:
    """Write a strip that begins at the diagonal to its part of the triangle."""
    rows, packed, position = strip.numpy(), part.numpy(), 0
    for index, row in enumerate(rows):
        packed[position : position + len(row) - index] = row[index:]
        position += len(row) - index


def _unpacked(part: Tensor, like: Tensor) -> Tensor:
    """A part of the triangle as the strip that it is, with zeros below the diagonal."""
    strip = torch.zeros_like(like)
    rows, packed, position = strip.numpy(), part.numpy(), 0
    for index, row in enumerate(rows):
        row[index:] = packed[position : position + len(row) - index]
        position += len(row) - index
    return strip


# -- modulo a prime ------------------------------------------------------------------------------------------


@cache
def _primes() -> tuple[int, ...]:
    """The largest primes below 2^22, the same ones for whoever writes and whoever reads."""
    found: list[int] = []
    candidate = PRIME_LIMIT - 1
    while len(found) < MAX_PRIMES:
        if all(candidate % divisor for divisor in range(3, math.isqrt(candidate) + 1, 2)):  # all are odd
            found.append(candidate)
        candidate -= 2
    return tuple(found)


def _centred(number: int, prime: int) -> float:
    """The remainder of a number that is nearest to zero."""
    rest = number % prime
    return float(rest - prime if rest > prime // 2 else rest)


def _reduced(values: Tensor, prime: int) -> Tensor:
    """Remainders around zero, in place, of whole numbers below 2^53: at most 2^21, whichever way a quotient rounds."""
    return values.sub_((values * (1.0 / prime)).round_(), alpha=float(prime))


class _Elimination:
    """W [r, D] and 1 / d [r] modulo a prime: M = W^T diag(d)^-1 W."""

    def __init__(self, size: int, prime: int) -> None:
        self.prime = prime
        self.rows = torch.empty(0, size, dtype=torch.float64)
        self.inverses = torch.empty(0, dtype=torch.float64)

    def reduced(self, values: Tensor) -> Tensor:
        """Remainders; the values are no longer needed."""
        return _reduced(values, self.prime)

    def product(self, start: int, stop: int) -> Tensor:
        """Remainders of the rows ``start`` to ``stop`` of M from column ``start`` on."""
        return self._times(self.rows[:, start:stop] * self.inverses[:, None], slice(start, None))

    def _times(self, left: Tensor, columns: slice) -> Tensor:
        """left^T W for numbers below 2^53 left [r, B], as many terms at a time as a sum may have."""
        left = self.reduced(left)
        total = self.reduced(left[:TERMS].T @ self.rows[:TERMS, columns])
        for first in range(TERMS, len(left), TERMS):
            part = slice(first, first + TERMS)
            total = self.reduced(total + self.reduced(left[part].T @ self.rows[part, columns]))
        return total

    def add(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Eliminate with rows [B, D] of M, whose indices are ``positions``; which of them became pivots, in order.

        One whose diagonal is zero by then depends on those before it.
        """
        left = self.rows[:, positions] * self.inverses[:, None]
        rows = self.reduced(self.reduced(rows.clone()) - self._times(left, slice(None)))
        steps, taken, inverses = _steps(rows[:, positions].numpy(), self.prime)
        self.rows = torch.cat([self.rows, self.reduced(torch.from_numpy(steps) @ rows)])
        self.inverses = torch.cat([self.inverses, torch.tensor(inverses, dtype=torch.float64)])
        return torch.tensor(taken, dtype=torch.int64)


def _steps(block: np.ndarray, prime: int) -> tuple[np.ndarray, list[int], list[float]]:
    """Elimination within a symmetric block [B, B]: what makes rows of W of its rows [K, B], the K pivots, and 1 / d."""

    def reduced(values: np.ndarray) -> np.ndarray:
        return values - np.rint(values * (1.0 / prime)) * prime

    count, begun = len(block), 0
    work = np.concatenate([block, np.eye(count)], axis=1)  # what is done to the block is done to the identity, too
    taken: list[int] = []
    inverses: list[float] = []
    while True:
        left = np.flatnonzero(work.diagonal()[begun:])
        if not len(left):
            return work[taken, count:], taken, inverses
        pivot = begun + int(left[0])
        begun = pivot + 1
        inverse = _centred(pow(int(work[pivot, pivot]), -1, prime), prime)
        factors = reduced(work[begun:, pivot] * inverse)
        work[begun:] = reduced(work[begun:] - reduced(np.outer(factors, work[pivot])))
        taken.append(pivot)
        inverses.append(inverse)


def _find_pivots(triangle: Tensor, size: int, limit: int) -> Tensor | None:
    """The first rows, that of the largest diagonal before all others, on which no earlier ones depend; None: too many.

    A prime may hide that a row is independent, once in millions: then what the pivots rebuild is not the matrix, and
    whoever asked for them notices.
    """
    every = torch.arange(size)
    diagonal = _entries(triangle, size, every, every)
    elimination = _Elimination(size, _primes()[0])
    pivots = torch.empty(0, dtype=torch.int64)
    left = elimination.reduced(diagonal.clone())
    candidates = diagonal.argmax()[None] if size else pivots
    while len(candidates):
        before = len(pivots)
        chosen = elimination.add(matrix_rows(triangle, size, candidates), candidates)
        pivots = torch.cat([pivots, candidates[chosen]])
        if len(pivots) > limit:
            return None
        new = elimination.rows[before:]
        scaled = elimination.reduced(new * elimination.inverses[before:, None])
        left = elimination.reduced(left - elimination.reduced((scaled * new).sum(0)))
        candidates = left.nonzero()[: min(WINDOW, limit + 1 - len(pivots)), 0]
        if before == len(pivots) == 0 and float(diagonal.max()) > 0:
            return None  # the prime divides the largest diagonal
    return pivots


def _eliminations(found: PivotRows, bound: int) -> Iterator[_Elimination | None]:
    """Eliminations modulo as many primes as tell all numbers within the bound apart; at last None where none do.

    Modulo some prime the pivots may depend on each other though they do not: then the next one takes its place. One
    comes after the other, because each takes as much memory as the rows.
    """
    modulus = 1
    for prime in _primes():
        elimination = _eliminated(found.rows, found.pivots, prime)
        if len(elimination.inverses) == len(found.pivots):
            yield elimination
            modulus *= prime
            if modulus > 4 * bound:
                return
    yield None


def _eliminated(rows: Tensor, pivots: Tensor, prime: int) -> _Elimination:
    elimination = _Elimination(rows.shape[1], prime)

    def eliminate() -> None:
        for first in range(0, len(pivots), WINDOW):
            window = slice(first, first + WINDOW)
            elimination.add(rows[window], pivots[window])

    run_jobs([eliminate])  # with one thread: products this small take longer with several
    return elimination


# -- files ---------------------------------------------------------------------------------------------------

WHOLE, RANKS, PIVOTS, ROWS, REST = "", ".ranks", ".pivots", ".rows", ".rest"  # after the name of a part
KEPT_WHOLE = -1  # as rank of a triangle that is kept as it is


def packed(values: Tensor, size: int, rank_bounds: Sequence[int]) -> dict[str, Tensor]:
    """Numbers that begin with triangles, as a file holds them: under what follows the part's name, whole or by pivots.

    Parameters
    ----------
    values : Tensor
        [C, D (D + 1) / 2 + E]: the triangle of each class, and E more numbers.
    size : int
        D.
    rank_bounds : sequence of int
        Of each class, as in :func:`pivot_rows`.

    Returns
    -------
    dict of Tensor
        ``""``, the K classes that are kept whole, [K, D (D + 1) / 2 + E]; and where not all are: ``".ranks"`` [C],
        ``".pivots"`` [R] and ``".rows"`` [R, D] of the others, one after the other, and ``".rest"`` [C - K, E].
    """
    length = size * (size + 1) // 2
    found: list[PivotRows | None] = [None] * len(values)

    def find(index: int) -> None:
        found[index] = pivot_rows(values[index, :length], size, rank_bounds[index])

    _run([partial(find, index) for index, bound in enumerate(rank_bounds) if bound <= largest_rank(size)])
    by_pivots = [each for each in found if each is not None]
    if not by_pivots:
        return {WHOLE: values}
    whole = torch.tensor([each is None for each in found])
    return {
        WHOLE: values[whole],
        RANKS: torch.tensor([KEPT_WHOLE if each is None else len(each.pivots) for each in found]),
        PIVOTS: torch.cat([each.pivots for each in by_pivots]),
        ROWS: torch.cat([each.rows for each in by_pivots]),
        REST: values[~whole][:, length:],
    }


def unpacked(tensors: Mapping[str, Tensor], size: int, shape: tuple[int, int]) -> Tensor:
    """Inverse of :func:`packed`: float64 of this shape, [C, D (D + 1) / 2 + E].

    Raises:
        CircleError: what no statistics can have given.
    """
    shapes = {suffix: tuple(values.shape) for suffix, values in tensors.items()}
    if shapes != packed_shapes(shapes, size, shape):
        raise _damaged("pivots and rows of other shapes than expected")
    length, ranks = size * (size + 1) // 2, tensors[RANKS].tolist()
    if any(rank != KEPT_WHOLE and not 0 <= rank <= largest_rank(size) for rank in ranks):
        raise _damaged("ranks that are none")
    kept, counts = ranks.count(KEPT_WHOLE), [rank for rank in ranks if rank != KEPT_WHOLE]
    if (kept, sum(counts), len(counts)) != tuple(len(tensors[suffix]) for suffix in (WHOLE, ROWS, REST)):
        raise _damaged("ranks and rows do not fit")
    values = torch.empty(shape, dtype=torch.float64)
    is_whole = torch.tensor(ranks) == KEPT_WHOLE
    values[is_whole] = tensors[WHOLE].to("cpu", torch.float64)
    values[~is_whole, length:] = tensors[REST].to("cpu", torch.float64)
    parts = zip(tensors[PIVOTS].split(counts), tensors[ROWS].split(counts), strict=True)

    def rebuild(index: int, found: PivotRows) -> None:
        values[index, :length] = rebuilt_triangle(found)

    places = (~is_whole).nonzero()[:, 0].tolist()
    _run([partial(rebuild, place, PivotRows(*each)) for place, each in zip(places, parts, strict=True)])
    return values


def _run(jobs: Sequence[Callable[[], None]]) -> None:
    """Matrices side by side; a single one has all threads for its strips."""
    if len(jobs) == 1:
        jobs[0]()
    else:
        run_jobs(jobs)


def packed_shapes(
    shapes: Mapping[str, tuple[int, ...]], size: int, shape: tuple[int, int]
) -> dict[str, tuple[int, ...]]:
    """The shapes that :func:`packed` gives for numbers of this shape, with as many classes and rows as a file has.

    Raises:
        CircleError: numbers that it cannot have given.
    """
    classes, numbers = shape
    whole, rows, rest = (shapes.get(suffix, (0,))[0] for suffix in (WHOLE, ROWS, REST))
    if whole + rest != classes or not rest or rows > rest * largest_rank(size):
        raise _damaged("pivots and rows of other numbers than expected")
    triangle = size * (size + 1) // 2
    return {
        WHOLE: (whole, numbers),
        RANKS: (classes,),
        PIVOTS: (rows,),
        ROWS: (rows, size),
        REST: (rest, numbers - triangle),
    }


def _bound(found: PivotRows) -> int:
    """No number of the matrix is larger: its diagonal is nowhere larger than in the first pivot."""
    return int(found.rows[0, found.pivots[0]]) if len(found.pivots) else 0


def _check(found: PivotRows) -> int:
    """D, after looking at everything that a matrix's own rows have in common."""
    pivots, rows = found
    if rows.ndim != 2 or pivots.shape != rows.shape[:1] or len(pivots) > largest_rank(rows.shape[1]):
        raise _damaged("pivots and rows do not fit")
    size = rows.shape[1]
    if not torch.equal(rows, rows.round()):  # nor is NaN equal to itself
        raise _damaged("rows of numbers that are not whole")
    if len(pivots) and (int(pivots.min()) < 0 or int(pivots.max()) >= size or len(pivots.unique()) != len(pivots)):
        raise _damaged("pivots that are none")
    bound = _bound(found)
    block = rows[:, pivots]
    if bound >= 2**53 or bool((rows.abs() > bound).any()) or not torch.equal(block, block.T):
        raise _damaged("its rows belong to no sum of products")
    return size


def _damaged(why: str) -> CircleError:
    return CircleError(f"second moments by pivot rows: {why}; the file is damaged")
