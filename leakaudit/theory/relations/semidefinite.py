"""The largest total shift of changes that are vectors of limited length, between two bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from leakaudit.theory.relations.kkt import Array

# `account` needs the largest d' M d over changes d_t of limited Euclidean length. If M has a
# negative entry, some changes should point in different directions; the best arrangement is a
# semidefinite programme, the one of MAX-CUT: maximise <X, C> over correlation matrices C.

# Number of sweeps of the mixing method. It converges linearly; a choice that affects only the
# tightness, because the dual certifies the upper value wherever the sweeps end.
SWEEPS = 300

BEYOND = 1e300  # sums of squares above this are infinite: floats end at 1.8e308

# Share of the largest entry below which negative entries count as rounding. A choice, well above
# float64's 2e-16.
NEGATIVE = 1e-12

# Length of the start's component that is specific to each vector. Without it, vectors could start
# at 0; a choice.
START = 1e-3


def supremum(m: Any, limits: Array) -> tuple[float, float]:
    """Return an attained value and a certified upper value of the largest total shift.

    It is the square root of sup { sum_st M_st <d_s, d_t> : |d_t| <= limits_t }.

    Args:
        m: (T, T) M, symmetric and positive semidefinite up to rounding; a sparse one is solved for
            each of its components, whose squares add up.
        limits: (T,) maximum lengths of the changes.
    """
    if not isinstance(m, np.ndarray):
        return _of_components(m, limits)
    # With X_st = limits_s M_st limits_t, the square is max <X, C> over correlation matrices C. All
    # changes are aligned if X >= 0; otherwise, the mixing method (Wang, Chang, Kolter 2017) finds
    # directions.
    with np.errstate(over="ignore"):
        x = (m + m.T) / 2 * np.outer(limits, limits)
    n = len(x)
    if n and not np.abs(x).max() <= BEYOND / n**2:
        return math.inf, math.inf
    if n == 0 or float(x.min()) > -NEGATIVE * float(x.max()) or not x.any():
        aligned = math.sqrt(max(float(x.sum()), 0.0))
        return aligned, aligned
    largest = float(x.diagonal().max())
    if largest <= 0:
        # Only rounding: a positive semidefinite matrix with a zero diagonal is 0.
        return 0.0, math.sqrt(float(np.abs(x).sum()))
    v = _mixed(x, largest)
    # For every y, <X, C> <= sum(y) + n max(0, lambda_max(X - diag y)), because the diagonal of C is
    # 1; y_t = |sum_s X_ts v_s| makes this tight at an optimum.
    y = np.linalg.norm(x @ v, axis=1)
    excess = max(0.0, float(np.linalg.eigvalsh(x - np.diag(y))[-1]))
    attained = max(float(np.trace(v.T @ x @ v)), 0.0)
    return math.sqrt(attained), math.sqrt(max(attained, float(y.sum()) + n * excess))


def _of_components(m: Any, limits: Array) -> tuple[float, float]:
    from scipy.sparse.csgraph import connected_components

    of = connected_components(m, directed=False)[1]
    # Components of one change each, such as rounds with noise of their own, need no programme.
    single = np.bincount(of)[of] == 1
    alone = math.sqrt(max(float((m.diagonal() * limits**2)[single].sum()), 0.0))
    lowest = [alone]
    highest = [alone]
    order = np.argsort(of, kind="stable")
    order = order[~single[order]]
    parts = np.split(order, np.flatnonzero(np.diff(of[order])) + 1)
    for part in parts:
        low, high = supremum(m[part][:, part].toarray(), limits[part])
        lowest.append(low)
        highest.append(high)
    return math.hypot(*lowest), math.hypot(*highest)


def _mixed(x: Array, largest: float) -> Array:
    """Return unit vectors (n, n), each in the direction of sum_j X_ij v_j over the others."""
    values, q = np.linalg.eigh(x)
    v = q * np.sqrt(np.maximum(values, 0)) + START * math.sqrt(largest) * np.eye(len(x))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    for _ in range(SWEEPS):
        for i in range(len(x)):
            pull = x[i] @ v - x[i, i] * v[i]
            length = np.linalg.norm(pull)
            if length > 0:
                v[i] = pull / length
    return np.asarray(v)
