"""The only file that factorises a matrix: Cholesky with counted jitter, eigenvalues."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from circle.errors import CircleError, NotDefiniteError

logger = logging.getLogger(__name__)

JITTER_START = 1e-6
JITTER_TRIES = 6


@dataclass(frozen=True)
class Factor:
    """Cholesky factor L of a symmetric positive definite matrix A = L L^T, and what it took to get it.

    Attributes
    ----------
    lower : Tensor
        L, float64 [D, D].
    jitter : float
        What was added to the diagonal of A in the end; 0 where it was positive definite by itself.
    tries : int
        How many values of jitter were tried.

    Examples
    --------
    >>> factor = cholesky(torch.tensor([[4.0, 2.0], [2.0, 5.0]], dtype=torch.float64))
    >>> factor.lower, factor.jitter
    (tensor([[2., 0.],
            [1., 2.]], dtype=torch.float64), 0.0)
    >>> factor.solve(torch.tensor([[8.0], [12.0]], dtype=torch.float64))
    tensor([[1.],
            [2.]], dtype=torch.float64)
    """

    lower: Tensor
    jitter: float
    tries: int

    def solve(self, right: Tensor) -> Tensor:
        """``x`` in ``L L^T x = right``; shapes [D, D] and [D, K] give [D, K]."""
        return torch.cholesky_solve(right, self.lower)

    def inverse(self) -> Tensor:
        """The inverse of the factorised matrix [D, D], for those who need its blocks and not a solution."""
        return torch.cholesky_inverse(self.lower)

    def whiten(self, right: Tensor) -> Tensor:
        """``L^{-1} right``, [D, K]: its squares add up to right^T A^{-1} right."""
        return torch.linalg.solve_triangular(self.lower, right, upper=False)


def cholesky(matrix: Tensor, level: int = logging.WARNING) -> Factor:
    """Factorise a symmetric float64 matrix [D, D], of which only the lower triangle is read.

    If it is not positive definite to working precision, ``jitter = eps * trace / D`` is added to the diagonal,
    with eps = 1e-6, 1e-5, ..., 0.1 until it is; every try is logged and counted, so that nothing is repaired in
    silence. The argument is overwritten where jitter was needed.

    Parameters
    ----------
    matrix : Tensor
        A, float64 [D, D].
    level : int
        Level of the log messages about jitter.
    """
    size = matrix.shape[0]
    if not bool(torch.isfinite(matrix.diagonal()).all()):
        raise CircleError("the covariance is not finite: the statistics are damaged")
    lower, info = torch.linalg.cholesky_ex(matrix)
    if not int(info):
        return Factor(lower, 0.0, 0)
    unit = float(matrix.diagonal().mean()) or 1.0
    added = 0.0
    for attempt in range(1, JITTER_TRIES + 1):
        jitter = JITTER_START * 10 ** (attempt - 1) * unit
        matrix.diagonal().add_(jitter - added)
        added = jitter
        lower, info = torch.linalg.cholesky_ex(matrix)
        message = "covariance [%d, %d] not positive definite: jitter %.3g, try %d"
        logger.log(level, message, size, size, jitter, attempt)
        if not int(info):
            return Factor(lower, jitter, attempt)
    raise NotDefiniteError(
        f"covariance [{size}, {size}] is not positive definite even with jitter {added:.3g}: "
        "raise the head's ridge or shrinkage"
    )


def cholesky_with_gradient(matrix: Tensor) -> Factor:
    """The same for a matrix that a gradient goes back through; it is left as it is. The caller logs its jitter."""
    factor = cholesky(matrix.detach().clone(), logging.DEBUG)
    if factor.jitter:
        matrix = matrix + factor.jitter * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return Factor(torch.linalg.cholesky(matrix), factor.jitter, factor.tries)


def principal_directions(matrix: Tensor, count: int) -> Tensor:
    """Orthonormal eigenvectors [D, count] of the largest eigenvalues of a symmetric matrix [D, D], largest first."""
    return torch.linalg.eigh(matrix).eigenvectors.flip(1)[:, :count].contiguous()


def eigenvectors(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [K, D], largest first, and eigenvectors [K, D, D], as columns, of symmetric matrices [K, D, D]."""
    values, vectors = torch.linalg.eigh(matrices)
    return values.flip(1), vectors.flip(2)


def spectral_radius(matrix: Tensor) -> float:
    """Largest modulus of the eigenvalues of a square matrix [r, r], in float64."""
    return float(torch.linalg.eigvals(matrix.to(torch.float64)).abs().max()) if matrix.numel() else 0.0
