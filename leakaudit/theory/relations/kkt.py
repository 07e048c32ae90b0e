"""Least noise under exact constraints: one quasi-definite system (docs/relations.md, estimate)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations.knowledge import Knowledge
from leakaudit.theory.relations.modular import PRIMES, independent

#     [ I    0        B'      ] [u  ]   [a]
#     [ 0    +delta I F'      ] [lam] = [c]
#     [ B    F        -ridge I] [r  ]   [b]
#
# An estimate is a combination r of the relations that has weights c on the unknowns, F'r = c, with
# the least noise |B'r|^2: a = b = 0, u = -B'r. A bound is the least noise shift |u|^2 that hides a
# change, B u + F lam = b: a = c = 0. These optimality (Karush-Kuhn-Tucker) conditions remain sparse
# where elimination would cause fill-in. If relations are redundant, many r are equivalent, and if
# unknowns are, many lam (gauge freedom). delta and ridge select one of them; iterative refinement
# removes their effect again.

# scipy.sparse is imported where it is used: the import takes a third of a second, and commands that
# only record or render do not need it.

Array = NDArray[np.float64]
N = TypeVar("N", int, float)

# Standard deviation of a recorded message's rounding, or one by message name.
Rounding: TypeAlias = float | Mapping[str, float]

# Diagonals that make the matrix regular, with the largest noise scaled to 1: half a unit in the
# last place of float64, so that they only determine what is undetermined.
DELTA = 1e-16
RIDGE = 1e-16
# Multiples of these diagonals that are tried until no pivot rounds to zero. Two messages that show
# the same noise and models are such a pivot in some orders of elimination; refinement removes the
# effect of the diagonals.
LARGER = (1.0, 1e2, 1e4)

# Refinement ends at a row error of two units in the last place, relative to the row's terms, which
# is the rounding of a product. It ends after at most 6 steps, because each gains several digits or
# none.
REFINE = 6
ROUNDING = 4e-16

# Maximum relative gap between primal and dual energy. It is 0 at an exact solution; std is the root
# of the energy, so 1e-6 is far below any reported digit. From there to 1e-3, a solution over an
# exact basis is still returned; above, none is. Choices.
GAP = 1e-6
UNUSABLE = 1e-3

# Maximum relative error of the constraints; a choice: the rounding of a message is 6e-8 of it.
MISSED = 1e-6
# An energy below this share of that of the right-hand sides counts as zero, so its relative gap is
# meaningless.
NOTHING = 1e-12


@dataclass(frozen=True)
class _KktSystem:
    """The relations in use as sparse float matrices with a row for each relation."""

    flat: Any  # (m, f) F: unknowns without prior
    # (m, q) B: columns scaled by their standard deviation; first the declared noise, then the error
    # of every message that has one
    noise: Any
    seen: Any  # (m, k) K: known vectors
    columns: dict[int, int]  # place of a flat unknown -> column of F
    known: tuple[int, ...]  # places of the vectors of the columns of K
    # (q,) standard deviation of each column of B without the floor, over the one used
    true: Array


def system(knowledge: Knowledge, rounding: Rounding, floor: float = 0.0) -> _KktSystem:
    """Build F, B and K; the rounding of known messages is added to each one's own channel error."""
    import scipy.sparse as sp

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
    true = np.ones(noise.shape[1])
    if floor:
        without = channel_errors(knowledge, rounding)
        ratios = [without.get(k, 0.0) / error for k, error in errors.items()]
        true[len(knowledge.noise) :] = ratios
    return _KktSystem(flat, noise, _columns(knowledge, known), columns, known, true)


def spanning(knowledge: Knowledge, among: list[int]) -> NDArray[np.int64]:
    """Return a subset of unknown vectors whose columns are a basis of those of all, exactly."""
    rows = knowledge.modular(dropped=knowledge.used.difference(among))
    chosen = independent(rows, among, PRIMES[0])
    return np.flatnonzero([k in chosen for k in among])


def channel_errors(
    knowledge: Knowledge, rounding: Rounding, floor: float = 0.0
) -> dict[int, float]:
    """Return the error of every message in use that has one; of a known one, with its rounding."""
    errors: dict[int, float] = {}
    for k in sorted(knowledge.used):
        vector = knowledge.declared.vectors[k]
        if vector.kind != "message":
            continue
        own = 0.0
        if k in knowledge.known:
            if isinstance(rounding, int | float):
                own = rounding
            else:
                own = rounding.get(vector.name, 0.0)
            own = max(own, floor)
        error = math.hypot(own, vector.std)
        if error:
            errors[k] = error
    return errors


def _channel(knowledge: Knowledge, errors: Mapping[int, float]) -> Any:
    """Return the columns of these errors.

    An error belongs to the relation that defines its message; whatever uses the message uses it as
    received.
    """
    row_of = {r: row for row, r in enumerate(knowledge.rows)}
    forms: list[dict[int, float]] = [{} for _ in knowledge.rows]
    for k, error in errors.items():
        made_by = knowledge.declared.sent.get(k)
        if made_by in row_of:
            forms[row_of[made_by]][k] = error
    return matrix(forms, {k: column for column, k in enumerate(errors)})


def _columns(knowledge: Knowledge, places: Sequence[int]) -> Any:
    column_of = {k: column for column, k in enumerate(places)}
    return matrix([relation.terms for relation in knowledge.relations], column_of)


def matrix(
    forms: Sequence[Mapping[int, Fraction] | Mapping[int, float]], column_of: Mapping[int, int]
) -> Any:
    """Return the coefficients of forms (m) in some vectors (n), as a sparse matrix (m, n)."""
    import scipy.sparse as sp

    rows, columns, values = entries(forms, column_of, float)
    places = (np.array(rows, int), np.array(columns, int))
    shape = (len(forms), len(column_of))
    return sp.csr_array((np.array(values, float), places), shape=shape)


def entries(
    forms: Iterable[Mapping[int, Any]],
    column_of: Mapping[int, int],
    number: Callable[[Any], N],
) -> tuple[list[int], list[int], list[N]]:
    """Return row, column and number of all coefficients of some vectors, by row."""
    rows: list[int] = []
    columns: list[int] = []
    values: list[N] = []
    for row, form in enumerate(forms):
        for k, coefficient in form.items():
            if k in column_of:
                rows.append(row)
                columns.append(column_of[k])
                values.append(number(coefficient))
    return rows, columns, values


def solve(
    noise: Any, flat: Any, middle: Array, bottom: Array, basis: Callable[[], NDArray[np.int64]]
) -> tuple[Array, Array]:
    """Return u (q, n) and r (m, n) for a = 0, c = middle (f, n) and b = bottom (m, n).

    At a solution, |u|^2 = u'(-B'r) = c'lam - b'r (take the inner product of each block row with u,
    lam and r). A gap between the two shows that the gauge freedom has destroyed digits; the system
    is then solved again over an exact basis of F's columns, with delta = 0.

    Args:
        noise: (m, q) B, scaled so that its largest entry is 1.
        flat: (m, f) F.
        basis: Returns columns of flat that are independent and span the others, determined exactly.

    Raises:
        LeakauditError: There is no solution to within 1e-6, or the relations are too
            ill-conditioned.
    """
    for keep, delta in ((lambda: np.arange(flat.shape[1]), DELTA), (basis, 0.0)):
        columns = keep()
        u, lam, r = _factor(noise, flat[:, columns], middle[columns], bottom, delta)
        energy = (u * u).sum(0)
        dual = (middle[columns] * lam).sum(0) - (bottom * r).sum(0)
        missed = np.abs(flat.T @ r - middle).max(axis=0, initial=0) / (
            1 + np.abs(middle).max(axis=0, initial=0)
        )
        gap = np.abs(energy - dual) - NOTHING * ((middle**2).sum(0) + (bottom**2).sum(0))
        if (gap <= GAP * energy).all() and (missed <= MISSED).all():
            return u, r
    if (missed > MISSED).any():
        raise LeakauditError(
            "the view does not determine all of these combinations, even up to noise; "
            "use `determined` to find those that it does determine"
        )
    if (gap <= UNUSABLE * energy).all():
        return u, r
    raise LeakauditError(
        "these relations are too ill-conditioned for float64; "
        "use fewer rounds, or noise levels that differ by less than a factor of 1e6"
    )


def _factor(
    noise: Any, flat: Any, middle: Array, bottom: Array, delta: float
) -> tuple[Array, Array, Array]:
    """Return u, lam and r of the quasi-definite system, refined; NaN if there is no factor."""
    import scipy.sparse as sp
    from scipy.sparse.linalg import splu

    q = noise.shape[1]
    m, f = flat.shape
    blocks = [
        [sp.eye_array(q), None, noise.T],
        [None, sp.csr_array((f, f)), flat.T],
        [noise, flat, sp.csr_array((m, m))],
    ]
    matrix = sp.block_array(blocks, format="csc")
    shift = sp.diags_array(np.concatenate([np.zeros(q), np.full(f, delta), np.full(m, -RIDGE)]))
    right = np.concatenate([np.zeros((q, middle.shape[1])), middle, bottom])
    for larger in LARGER:
        try:
            # A threshold of .1 keeps most pivots on the diagonal, which is sparser; the default 1
            # would exchange rows more often.
            shifted = (matrix + larger * shift).tocsc()
            factor = splu(shifted, permc_spec="COLAMD", diag_pivot_thresh=0.1)
            break
        except RuntimeError:
            continue
    else:  # a pivot that rounds to zero each time: no solution, which `solve` detects
        right = np.full_like(right, np.nan)
        return right[:q], right[q : q + f], right[q + f :]
    found = factor.solve(right)
    size = abs(matrix)
    for _ in range(REFINE):
        missing = right - matrix @ found
        terms = size @ np.abs(found) + np.abs(right)
        if (np.abs(missing) <= ROUNDING * terms).all():
            break
        found = found + factor.solve(missing)
    return found[:q], found[q : q + f], found[q + f :]
