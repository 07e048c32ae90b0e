"""Least noise under exact constraints: one sparse quasi-definite system for estimates and for bounds (docs/relations.md, estimate).

    [ I    0        B'      ] [u  ]   [a]
    [ 0    +delta I F'      ] [lam] = [c]
    [ B    F        -ridge I] [r  ]   [b]

delta and ridge only pick one of many equal solutions (gauge freedom); the steps of refinement take their effect out again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from numpy.typing import NDArray

from leakaudit.errors import LeakauditError
from leakaudit.relations.knowledge import Knowledge
from leakaudit.relations.modular import PRIMES, independent, residue

Array = NDArray[np.float64]
Rounding: TypeAlias = (
    float | Mapping[str, float]
)  # standard deviation of a recorded message's rounding, or one by message name
DELTA, RIDGE = 1e-16, 1e-16  # with the largest noise scaled to 1
REFINE, ROUNDING = (
    6,
    4e-16,
)  # steps of refinement at most, and the error of a row, relative to its terms, that needs none
GAP, UNUSABLE = (
    1e-6,
    1e-3,
)  # relative gap of primal and dual: where the basis is asked for, where nothing is returned
MISSED, NOTHING = 1e-6, 1e-12  # error of the constraints; an energy that counts as none


@dataclass(frozen=True)
class System:
    """The relations in use as sparse float matrices, one row a relation.

    flat: (m, f) unknowns without prior, F. noise: (m, q) columns scaled by their standard deviation, B; first the declared noise,
    then the error of every message that has one. seen: (m, k) known vectors, K. columns: place of a flat unknown -> column of F.
    known, noisy: places of the vectors behind the columns of K and B; std: what the messages' columns of B were scaled by.
    """

    flat: Any
    noise: Any
    seen: Any
    columns: dict[int, int]
    known: tuple[int, ...]
    noisy: tuple[int, ...]
    std: dict[int, float]


def system(knowledge: Knowledge, rounding: Rounding, floor: float = 0.0) -> System:
    """Build F, B and K; a message that is known has an error of std hypot(rounding, its own), another one its own."""
    vectors = knowledge.declared.vectors
    known = tuple(sorted(knowledge.used & knowledge.known))
    flat = _columns(knowledge, knowledge.flat)
    own = _columns(knowledge, knowledge.noise) @ sp.diags_array(
        [vectors[k].std for k in knowledge.noise], dtype=float
    )
    errors = channel_errors(knowledge, rounding, floor)
    channel = _channel(knowledge, errors)
    noise = sp.hstack([own, channel], format="csr")
    columns = {k: j for j, k in enumerate(knowledge.flat)}
    return System(
        flat,
        noise,
        _columns(knowledge, list(known)),
        columns,
        known,
        (*knowledge.noise, *errors),
        errors,
    )


def spanning(knowledge: Knowledge, among: list[int]) -> NDArray[np.int64]:
    """Return which of some unknown vectors (places in `among`) have independent columns that span the others'."""
    at = {k: j for j, k in enumerate(among)}
    prime = PRIMES[0]
    rows = (
        {k: residue(v, prime) for k, v in r.terms.items() if k in at} for r in knowledge.relations
    )
    return np.array(sorted(at[k] for k in independent(rows, among, prime)), dtype=np.int64)


def channel_errors(
    knowledge: Knowledge, rounding: Rounding, floor: float = 0.0
) -> dict[int, float]:
    """Return the error of every message in use that has one: its own, and where it is known its rounding, at least `floor`."""
    vectors, errors = knowledge.declared.vectors, dict[int, float]()
    for k in sorted(knowledge.used):
        if (v := vectors[k]).kind == "message":
            known = rounding if isinstance(rounding, int | float) else rounding.get(v.name, 0.0)
            errors[k] = math.hypot(max(known, floor) if k in knowledge.known else 0.0, v.std)
    return {k: e for k, e in errors.items() if e}


def _channel(knowledge: Knowledge, errors: dict[int, float]) -> Any:
    """Return the columns of these errors: an error stands where its message is made; what uses the message uses it as it came."""
    rows = {r: at for at, r in enumerate(knowledge.rows)}
    entries = [
        (rows[r], at, e)
        for at, (k, e) in enumerate(errors.items())
        if (r := knowledge.declared.sent.get(k)) in rows
    ]
    row, column, value = zip(*entries, strict=True) if entries else ((), (), ())
    return sp.csr_array(
        (np.array(value, float), (np.array(row, int), np.array(column, int))),
        shape=(len(knowledge.rows), len(errors)),
    )


def _columns(knowledge: Knowledge, places: list[int]) -> Any:
    at = {k: j for j, k in enumerate(places)}
    entries = [
        (r, at[k], float(v))
        for r, relation in enumerate(knowledge.relations)
        for k, v in relation.terms.items()
        if k in at
    ]
    row, column, value = zip(*entries, strict=True) if entries else ((), (), ())
    return sp.csr_array(
        (np.array(value, float), (np.array(row, int), np.array(column, int))),
        shape=(len(knowledge.rows), len(places)),
    )


def solve(
    noise: Any, flat: Any, middle: Array, bottom: Array, basis: Callable[[], NDArray[np.int64]]
) -> tuple[Array, Array]:
    """Return u (q, n) and r (m, n) for right sides a = 0, c = middle (f, n) and b = bottom (m, n); noise with entries up to 1.

    basis: columns of flat that are independent and span the others, found exactly; asked for where the gauge freedom spoils the
    direct solution, which shows as |u|^2 != c'lam - b'r. Raises LeakauditError where there is no solution to 1e-6.
    """
    for keep, delta in ((lambda: np.arange(flat.shape[1]), DELTA), (basis, 0.0)):
        columns = keep()
        u, lam, r = _factor(noise, flat[:, columns], middle[columns], bottom, delta)
        energy, dual = (u * u).sum(0), (middle[columns] * lam).sum(0) - (bottom * r).sum(0)
        missed = np.abs(flat.T @ r - middle).max(axis=0, initial=0) / (
            1 + np.abs(middle).max(axis=0, initial=0)
        )
        gap = np.abs(energy - dual) - NOTHING * ((middle**2).sum(0) + (bottom**2).sum(0))
        if (gap <= GAP * energy).all() and (missed <= MISSED).all():
            return u, r
    if (missed > MISSED).any():
        raise LeakauditError(
            "the view does not determine all of these combinations, even up to noise; ask `determined` which ones it does"
        )
    if (gap <= UNUSABLE * energy).all():
        return u, r
    raise LeakauditError(
        "these relations are too ill-conditioned for float64; use fewer rounds, or noises less than 1e6 apart"
    )


def _factor(
    noise: Any, flat: Any, middle: Array, bottom: Array, delta: float
) -> tuple[Array, Array, Array]:
    q, f, m = noise.shape[1], flat.shape[1], flat.shape[0]
    blocks = [
        [sp.eye_array(q), None, noise.T],
        [None, sp.csr_array((f, f)), flat.T],
        [noise, flat, sp.csr_array((m, m))],
    ]
    matrix = sp.block_array(blocks, format="csc")
    shift = sp.diags_array(np.concatenate([np.zeros(q), np.full(f, delta), np.full(m, -RIDGE)]))
    right = np.concatenate([np.zeros((q, middle.shape[1])), middle, bottom])
    try:
        factor = sla.splu((matrix + shift).tocsc(), permc_spec="COLAMD", diag_pivot_thresh=0.1)
    except RuntimeError:  # a pivot that rounds to zero: no solution here, which `solve` sees
        right = np.full_like(right, np.nan)
        return right[:q], right[q : q + f], right[q + f :]
    found, size = factor.solve(right), abs(matrix)
    for _ in range(REFINE):
        missing = right - matrix @ found
        terms = size @ np.abs(found) + np.abs(right)
        if (np.abs(missing) <= ROUNDING * terms).all():
            break
        found = found + factor.solve(missing)
    return found[:q], found[q : q + f], found[q + f :]
