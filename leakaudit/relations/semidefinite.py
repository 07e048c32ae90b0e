"""The largest total shift of changes that are vectors of limited length: a small semidefinite programme, certified."""

from __future__ import annotations

import math

import numpy as np

from leakaudit.relations.kkt import Array

SWEEPS = 300
NEGATIVE = 1e-12  # of the largest entry: what is less negative is rounding


def supremum(m: Array, limits: Array) -> tuple[float, float]:
    """Return sqrt of sup { sum_st M_st <d_s, d_t> : |d_t| <= limits_t }: a value attained, and a certified upper value.

    The d_t are vectors, so this is max <X, C> over correlation matrices C: all aligned where X >= 0, else by the mixing method
    (Wang, Chang, Kolter 2017), certified by the dual sum(y) + n max(0, lambda_max(X - diag y)).
    """
    x = (m + m.T) / 2 * np.outer(limits, limits)
    n = len(x)
    if n == 0 or float(x.min()) > -NEGATIVE * float(x.max()) or not x.any():
        aligned = math.sqrt(max(float(x.sum()), 0.0))
        return aligned, aligned
    if (
        largest := float(x.diagonal().max())
    ) <= 0:  # nothing but rounding: a matrix without a diagonal has no positive part
        return 0.0, math.sqrt(float(np.abs(x).sum()))
    v = _mixed(x, largest)
    y = np.linalg.norm(x @ v, axis=1)
    excess = max(0.0, float(np.linalg.eigvalsh(x - np.diag(y))[-1]))
    attained = max(float(np.trace(v.T @ x @ v)), 0.0)
    return math.sqrt(attained), math.sqrt(max(attained, float(y.sum()) + n * excess))


def _mixed(x: Array, largest: float) -> Array:
    """Return unit vectors (n, n) where every one points where the others pull it."""
    values, q = np.linalg.eigh(x)
    v = q * np.sqrt(np.maximum(values, 0)) + 1e-3 * math.sqrt(largest) * np.eye(len(x))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    for _ in range(SWEEPS):
        for i in range(len(x)):
            pull = x[i] @ v - x[i, i] * v[i]
            if (length := np.linalg.norm(pull)) > 0:
                v[i] = pull / length
    return np.asarray(v)
