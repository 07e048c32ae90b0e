"""Linear algebra that several attacks share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

# Damping of the first step of Levenberg and Marquardt, its factor after a step that succeeds, and
# its smallest value. Usual choices.
DAMPING = 1e-2
SUCCEEDS = 0.2
LEAST = 1e-14


def least_squares(matrix: Tensor, right: Tensor) -> Tensor:
    """Return the shortest solution of ``matrix @ x = right``; right: (m,) or (..., m, k)."""
    # The default driver, gelsy, gives different results from call to call.
    if right.dim() == 1:
        return least_squares(matrix, right[:, None])[:, 0]
    solution: Tensor = torch.linalg.lstsq(matrix, right, driver="gelsd").solution
    return solution


def positive(size: Tensor) -> Tensor:
    """Return sizes that are never below the smallest number, to divide by them."""
    return size.clamp_min(torch.finfo(size.dtype).tiny)


def singular_values(matrix: Tensor) -> Tensor:
    """Return the singular values of a tall matrix, which are those of R in its QR decomposition."""
    sizes: Tensor = torch.linalg.svdvals(torch.linalg.qr(matrix).R)
    return sizes


def edge(rows: float, columns: float) -> float:
    """Return the largest singular value of white noise of unit variance (Bai and Yin 1993)."""
    return math.sqrt(rows) + math.sqrt(columns)


def independent(rows: Tensor, least: float, most: int) -> tuple[list[int], Tensor]:
    """Choose rows (k, b) that do not depend on those before them, by Gram-Schmidt.

    Returns their indices and an orthonormal basis (b, n). A row is independent if the part of it
    outside the basis exceeds `least`, relative to its length.
    """
    chosen: list[int] = []
    basis = rows.new_zeros(rows.shape[1], 0)
    for k, row in enumerate(rows):
        rest = row - basis @ (basis.T @ row)
        rest = rest - basis @ (basis.T @ rest)  # again, for orthogonality to the last digit
        if len(chosen) < most and float(rest.norm()) > least * float(row.norm()):
            chosen.append(k)
            basis = torch.cat([basis, (rest / rest.norm())[:, None]], dim=1)
    return chosen, basis


def descended(
    x: Tensor,
    residual: Callable[[Tensor], Tensor],
    stepped: Callable[[Tensor, Tensor, Tensor], Tensor],
    steps: int,
    fails: tuple[float, float],
    enough: float = -1.0,
) -> tuple[Tensor, Tensor]:
    """Descend from points (k, n) by least squares, each for itself (Levenberg and Marquardt).

    `residual` maps points to (k, m), and `stepped` points, residuals and damping (k,) to the next
    points. Damping grows by the first of `fails` after a step that does not succeed, up to the
    second. Returns the points, and the squares of their residuals (k,), which end below `enough`.
    """
    damping = x.new_full((len(x),), DAMPING)
    value = residual(x)
    left = value.square().sum(1)
    for _ in range(steps):
        active = left > enough
        if not bool(active.any()):
            break
        new = stepped(x, value, damping)
        new_value = residual(new)
        new_left = new_value.square().sum(1)
        better = active & (new_left < left)
        x = torch.where(better[:, None], new, x)
        value = torch.where(better[:, None], new_value, value)
        left = torch.where(better, new_left, left)
        damping = torch.where(better, SUCCEEDS * damping, fails[0] * damping)
        damping = damping.clamp(LEAST, fails[1])
    return x, left
