"""The multiple of one vector that, less another vector, is the gradient of one record."""

# For one record, the first layer's block of a gradient has rank one, which for two of its rows is a
# quadratic equation in the multiple in every column.

from __future__ import annotations

import numpy as np
from torch import Tensor

from leakaudit.capture.fitting.fit import first_layer
from leakaudit.tasks.task import Task

ROWS = 8  # rows to compare with the one of the largest bias
REAL = 1e-6  # |imaginary part| of a root, relative to it, that counts as rounding
# Weight decay is small beside the gradient, so that rounding makes the rank-one condition miss by
# 1e-3 with decay 5e-4 in float32. A wrong decay is found out when the gradient is recomputed.
FLAT = 0.1


# The first layer's block is G = s R - V with bias part
# h = s p - q (R, p: blocks of r; V, q: blocks of v). For one record G = h x^T, so for rows k and m
#
#     G_k h_m - G_m h_k = 0    in every column, that is
#     (R_k p_m - R_m p_k) s^2 - (R_k q_m + V_k p_m - R_m q_k - V_m p_k) s + (V_k q_m - V_m q_k) = 0.
#
# Over all columns, and over pairs of one row with the largest bias and some others, the squares
# |square s^2 - linear s + constant|^2 are least at a root of their derivative, a cubic.


def rank_one_scale(task: Task, r: Tensor, v: Tensor, flat: float) -> float | None:
    """Return the s > 0 at which the first layer's block of s r - v is closest to rank one.

    r: (d,) float64; v: (d,) float64; flat: miss of the quadratic, relative to its terms, above
    which every scale is rejected. None if there is no such scale or layer, or if the layer has only
    one row, which has rank one at every s.
    """
    of_r = first_layer(task, r)
    of_v = first_layer(task, v)
    if of_r is None or of_v is None or len(of_r[1]) == 1:
        return None
    square, linear, constant = _quadratic(
        *(part.numpy() for part in (of_r[0], of_v[0], of_r[1], of_v[1]))
    )
    slope = [
        4 * square @ square,
        -6 * square @ linear,
        2 * linear @ linear + 4 * square @ constant,
        -2 * linear @ constant,
    ]
    found: list[tuple[float, float]] = []
    for root in np.roots(slope):
        if abs(root.imag) < REAL * abs(root) and root.real > 0:
            s = root.real
            terms = (s**2 * square, s * linear, constant)
            largest = max(float(np.linalg.norm(term)) for term in terms)
            miss = float(np.linalg.norm(terms[0] - terms[1] + terms[2])) / largest
            found.append((miss, float(s)))
    if not found:
        return None
    miss, scale = min(found)
    return scale if miss < flat else None


def _quadratic(
    block_r: np.ndarray, block_v: np.ndarray, p: np.ndarray, q: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the coefficients of s^2, -s and 1 in every column, for all pairs of rows."""
    k = int(np.abs(p).argmax())
    others = np.argsort(-np.abs(p))[1 : 1 + ROWS]
    square: list[np.ndarray] = []
    linear: list[np.ndarray] = []
    constant: list[np.ndarray] = []
    for m in others:
        square.append(block_r[k] * p[m] - block_r[m] * p[k])
        linear.append(block_r[k] * q[m] + block_v[k] * p[m] - block_r[m] * q[k] - block_v[m] * p[k])
        constant.append(block_v[k] * q[m] - block_v[m] * q[k])
    return np.concatenate(square), np.concatenate(linear), np.concatenate(constant)


def undecayed(task: Task, value: Tensor, base: Tensor) -> Tensor:
    """Return what steps on one record subtract from a model (d,), without their weight decay."""
    # The gradients have rank one in the first layer's block, which determines the multiple of the
    # model; if none does, the value (d,) itself is returned.
    value = value.double()
    scale = rank_one_scale(task, value, base.double(), FLAT)
    return value if scale is None else value - base.double() / scale
