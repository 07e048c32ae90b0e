"""A declaration as a forward model: states and messages as functions of gradients and noise."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakaudit.theory.relations.declare import Relations
from leakaudit.theory.relations.expression import DEFINED, Expression
from leakaudit.theory.relations.kkt import Array, entries, matrix
from leakaudit.theory.relations.modular import residue

# In almost every protocol, each relation defines one new state or message from vectors that were
# declared before. With v the states and messages, e the noise of unit variance, and g the
# gradients,
#
#     v = C v + B e + G g + known terms,    C strictly lower triangular,
#
# so v = (I - C)^-1 (B e + G g). The rows of (I - C)^-1 [B G], the *responses* of the vectors, do
# not depend on an adversary, whose view is a selection of rows: it costs one transposed triangular
# solve. The same solve is available modulo two primes, for exact decisions (`residues`).

Residues = NDArray[np.int64]
Places = NDArray[np.int64]

PRIMES = (2**31 - 1, 2**31 - 19)  # exact decisions are made modulo both
# Number of right-hand sides that are solved together, as in `account`. Affects only speed.
AT_ONCE = 128
# Columns of random residues are drawn in steps of this size, so that a slightly larger view does
# not repeat the work. Affects only speed.
STEP = 64
# Rows that are eliminated one by one, as many as `product` adds up at a time. Affects only
# speed.
ONE_BY_ONE = 32
SEED = 20


class ForwardModel:
    """The forward model of a declaration."""

    def __init__(self, declared: Relations, made_by: Mapping[int, int]) -> None:
        vectors = declared.vectors
        self.declared = declared
        # Places of the states and messages, in the order of their definitions, and the relation
        # (n,) that defines each of them.
        self.defined = list(made_by)
        self.made_by = np.array(list(made_by.values()), np.int64)
        self.noise = [k for k, vector in enumerate(vectors) if vector.kind == "noise"]
        self.gradients = sorted(declared.points)
        # (t,) owner of each gradient, and number of relations declared before it
        self.owner = np.array([vectors[k].owner for k in self.gradients], np.int64)
        self.before = np.array([declared.before[k] for k in self.gradients], np.int64)
        self.nodes = int(self.owner.max(initial=-1)) + 1
        self.place = {k: d for d, k in enumerate(self.defined)}
        # The columns of [C B G].
        columns = [*self.defined, *self.noise, *self.gradients]
        self.column_of = {k: column for column, k in enumerate(columns)}
        self._definitions = [self.definition(k) for k in made_by]
        self._residues: dict[int, _Simulated] = {}
        self.public = frozenset(k for k, vector in enumerate(vectors) if vector.kind == "public")

    @classmethod
    def of(cls, declared: Relations) -> ForwardModel | None:
        """Return the forward model; None if `account` needs its general methods.

        This is so if a relation defines nothing or several vectors at once, a vector is
        unexplained, a step is nonlinear, a message is rounded, or noise is not Gaussian; or if
        there is no noise, so that every view that reveals anything leaks.
        """
        if declared.opaques or declared.unexplained or not declared.points:
            return None
        vectors = declared.vectors
        if {v.law for v in vectors if v.kind == "noise"} != {"gaussian"}:
            return None
        if any(v.std for v in vectors if v.kind == "message"):
            return None
        made_by: dict[int, int] = {}
        for r, relation in enumerate(declared.relations):
            new = [k for k in relation.terms if vectors[k].kind in DEFINED and k not in made_by]
            if len(new) != 1:
                return None
            made_by[new[0]] = r
        used = {k for k, v in enumerate(vectors) if v.kind in DEFINED}
        if len(made_by) < len(used):
            return None
        return cls(declared, made_by)

    def definition(self, k: int) -> dict[int, Fraction]:
        """Return the form that defines a state or message."""
        terms = self.declared.relations[self.made_by[self.place[k]]].terms
        return {j: -v / terms[k] for j, v in terms.items() if j != k}

    def targets(self, some: Places) -> list[Expression]:
        """Return some gradients."""
        vectors = self.declared.vectors
        return [Expression(vectors, {self.gradients[k]: Fraction(1)}) for k in some.tolist()]

    def used(self, some: Iterable[int]) -> NDArray[np.bool_]:
        """Return which gradients (t,) some of the vectors in `defined` depend on structurally."""
        union = reduce(operator.or_, (self._ancestors[d] for d in some), 0)
        return np.array([union >> c & 1 for c in range(len(self.gradients))], bool)

    @cached_property
    def _ancestors(self) -> list[int]:
        """The gradients on which each vector depends structurally, as bits of an integer."""
        found: list[int] = []
        for definition in self._definitions:
            bits = 0
            for k in definition:
                gradient = self.column_of.get(k, 0) - len(self.defined) - len(self.noise)
                if k in self.place:
                    bits |= found[self.place[k]]
                elif gradient >= 0:
                    bits |= 1 << gradient
            found.append(bits)
        return found

    def responses(self, rows: Places, hidden: Places, own: Places) -> tuple[Array, Array]:
        """Return how some vectors respond to noise (m, q) and to gradients (m, t).

        Args:
            rows: (m,) indices into `defined`; `hidden` (q,) into `noise`, `own` (t,) into
                `gradients`.
        """
        noise = np.empty((len(rows), len(hidden)))
        gradients = np.empty((len(rows), len(own)))
        _, of_noise, of_gradients = self._matrices
        by_noise = of_noise[:, hidden].T.tocsr()
        by_gradient = of_gradients[:, own].T.tocsr()
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            unit = np.zeros((len(self.defined), len(some)))
            unit[some, np.arange(len(some))] = 1
            # Rows of (I - C)^-1 [B G], by one transposed solve.
            back = self._solver.solve(unit, trans="T")
            noise[start : start + AT_ONCE] = (by_noise @ back).T
            gradients[start : start + AT_ONCE] = (by_gradient @ back).T
        return noise, gradients

    def residues(self, prime: int, columns: int) -> _Simulated:
        """Return the responses to random inputs, modulo a prime below 2^31.

        Noise is replaced by random rows of at least this many columns, and the gradients of node i
        by random multiples of one vector of their own. A vector does not depend on noise, or on the
        gradients of a node, if and only if its response is zero, except with a probability of about
        1 / prime.
        """
        have = self._residues.get(prime)
        if have is None or have.columns < columns:
            have = _Simulated(self, prime, -(-columns // STEP) * STEP)
            self._residues[prime] = have
        return have

    @cached_property
    def _matrices(self) -> tuple[Any, Any, Any]:
        """C (n, n), B (n, q) for noise of unit variance, and G (n, t)."""
        found = matrix(self._definitions, self.column_of)
        scale = np.ones(len(self.column_of))
        first = len(self.defined)
        last = first + len(self.noise)
        scale[first:last] = [self.declared.vectors[k].std for k in self.noise]
        found.data *= scale[found.indices]
        return found[:, :first], found[:, first:last], found[:, last:]

    @cached_property
    def _solver(self) -> Any:
        """The triangular factor I - C; in the order of definition, it has no fill-in."""
        import scipy.sparse as sp
        from scipy.sparse.linalg import splu

        size = len(self.defined)
        unit_minus_c = (sp.eye_array(size) - self._matrices[0]).tocsc()
        return splu(unit_minus_c, permc_spec="NATURAL", diag_pivot_thresh=0.0)

    @cached_property
    def _levels(self) -> list[Places]:
        depth: list[int] = []
        for form in self._definitions:
            below = [depth[self.place[k]] for k in form if k in self.place]
            depth.append(1 + max(below, default=-1))
        order = np.argsort(np.array(depth), kind="stable")
        return np.split(order, np.flatnonzero(np.diff(np.array(depth)[order])) + 1)


class _Simulated:
    """Responses to random inputs, modulo a prime; (…, columns + N), a column for each node last."""

    def __init__(self, model: ForwardModel, prime: int, columns: int) -> None:
        self.columns = columns
        size = len(model.defined)
        drawn = np.random.default_rng([SEED, prime, columns])
        inputs = random_inputs(drawn, prime, len(model.noise), model.owner, (columns, model.nodes))
        self.noise = inputs[: len(model.noise)]
        values = np.concatenate([np.zeros((size, inputs.shape[1]), np.int64), inputs])
        terms = residue_entries(model._definitions, model.column_of, prime)
        for level in model._levels:
            combine(values, level, terms, values, prime)
        self.defined = values[:size]
        points = [model.declared.points[k].terms for k in model.gradients]
        self.points = evaluated(points, model.column_of, values, prime)


def random_inputs(
    drawn: np.random.Generator, prime: int, noise: int, owners: Places, width: tuple[int, int]
) -> Residues:
    """Return inputs for noise, by random rows, then for gradients, by one entry of their owner.

    Args:
        owners: (t,) Owner of each gradient.
        width: Number of columns for noise, and of nodes.

    Returns:
        (noise + t, sum of the width).
    """
    inputs = np.zeros((noise + len(owners), sum(width)), np.int64)
    inputs[:noise, : width[0]] = drawn.integers(0, prime, (noise, width[0]))
    at = np.arange(noise, len(inputs))
    inputs[at, width[0] + owners] = drawn.integers(1, prime, len(owners))
    return inputs


def residue_entries(
    forms: Sequence[Mapping[int, Fraction]], row_of: Mapping[int, int], prime: int
) -> tuple[Places, Places, Residues]:
    """Return forms as `combine` takes them."""
    found = entries(forms, row_of, partial(residue, prime=prime))
    rows, columns, values = (np.array(part, np.int64) for part in found)
    return rows, columns, values


def evaluated(
    forms: Sequence[Mapping[int, Fraction]], row_of: Mapping[int, int], values: Residues, prime: int
) -> Residues:
    """Return the values (m, n) of forms of vectors, modulo a prime.

    Args:
        row_of: Vector -> its row of the values; others count as zero.
    """
    out = np.zeros((len(forms), values.shape[1]), np.int64)
    terms = residue_entries(forms, row_of, prime)
    combine(out, np.arange(len(forms)), terms, values, prime)
    return out


def combine(
    out: Residues,
    rows: Places,
    terms: tuple[Places, Places, Residues],
    values: Residues,
    prime: int,
) -> None:
    """Set rows of `out` (m, n) to linear forms of rows of `values` (k, n), modulo a prime.

    Args:
        terms: Row, column and coefficient of all terms, sorted by row.
        prime: Below 2^31.
    """
    start = np.searchsorted(terms[0], rows)
    stop = np.searchsorted(terms[0], rows, side="right")
    most = int((stop - start).max(initial=0))
    total = np.zeros((len(rows), values.shape[1]), np.int64)
    # The n-th term of every row, for n = 0, 1, ...: few steps, because rows are short.
    for n in range(most):
        has = np.flatnonzero(start + n < stop)
        at = start[has] + n
        total[has] += terms[2][at, None] * values[terms[1][at]] % prime
    out[rows] = total % prime


def product(a: Residues, b: Residues, prime: int) -> Residues:
    """Return a (m, n) @ b (n, k) modulo a prime below 2^31, by exact products in float64.

    a is split into two halves of 16 bits, so that 32 products stay below 2^53. The remainders of a
    division are exact as well, up to a multiple of the prime.
    """
    rows = len(a)
    halves = np.concatenate([a >> 16, a & 0xFFFF]).astype(np.float64)
    right = b.astype(np.float64)
    total = _remainder(halves[:, :32] @ right[:32], prime)
    for start in range(32, a.shape[1], 32):
        total += _remainder(halves[:, start : start + 32] @ right[start : start + 32], prime)
    both = _remainder(total[:rows], prime)
    both *= 65536
    both += total[rows:]
    return canonical(_remainder(both, prime).astype(np.int64), prime)


def _remainder(x: Array, prime: int) -> Array:
    """Subtract multiples of a prime in place, until all numbers are close to 0 to prime.

    Exact for whole numbers below 2^53; those near a multiple may end just outside.
    """
    multiple = x * (1 / prime)
    np.floor(multiple, out=multiple)
    multiple *= prime
    x -= multiple
    return x


def canonical(x: Residues, prime: int) -> Residues:
    """Change numbers from -prime to 2 prime - 1 to those from 0 to prime - 1, in place."""
    x += x >> 63 & prime  # x >> 63 is -1 for numbers below 0: all bits of the prime remain
    x -= prime
    x += x >> 63 & prime
    return x


class Echelon:
    """Rows modulo a prime below 2^31, in echelon form on the columns of noise, which come first.

    They are kept in blocks, each at least twice as large as the next. A block has zeros at its own
    pivots and at those of earlier blocks; joining two of similar size, rather than clearing the
    pivots of all new rows in all old ones, saves most of the work.
    """

    def __init__(self, prime: int, columns: int) -> None:
        self.prime = prime
        self.columns = columns
        self._blocks: list[tuple[list[int], Residues]] = []  # pivots and rows

    def reduced(self, rows: Residues) -> Residues:
        """Return rows (m, width) minus the combinations of earlier rows that clear the pivots."""
        for pivots, block in self._blocks:
            rows = canonical(rows - product(rows[:, pivots], block, self.prime), self.prime)
        return rows

    def add(self, rows: Residues) -> tuple[list[int], list[int]]:
        """Add rows (m, width); returns as `extend` does."""
        return self.extend(self.reduced(rows))

    def extend(self, rows: Residues) -> tuple[list[int], list[int]]:
        """Add reduced rows (m, width).

        Returns:
            The independent ones, and the columns in which dependent ones are not zero.
        """
        # Rows beyond the first few are reduced by a product of matrices, not one by one.
        independent, leaks = self._eliminate(rows[:ONE_BY_ONE])
        for at in range(ONE_BY_ONE, len(rows), ONE_BY_ONE):
            later, found = self._eliminate(self.reduced(rows[at : at + ONE_BY_ONE]))
            independent += [at + i for i in later]
            leaks += found
        return independent, sorted(set(leaks))

    def _eliminate(self, rows: Residues) -> tuple[list[int], list[int]]:
        """Do the same for a few rows, one by one."""
        left = rows.copy()
        independent: list[int] = []
        pivots: list[int] = []
        for i in range(len(left)):
            shown = np.flatnonzero(left[i, : self.columns])
            if not len(shown):
                continue
            pivot = int(shown[0])
            left[i] = left[i] * pow(int(left[i, pivot]), -1, self.prime) % self.prime
            others = np.flatnonzero(left[:, pivot])
            others = others[others != i]
            left[others] -= left[others, pivot][:, None] * left[i] % self.prime
            left[others] %= self.prime
            independent.append(i)
            pivots.append(pivot)
        is_dependent = np.ones(len(left), bool)
        is_dependent[independent] = False
        leaks = np.flatnonzero(left[is_dependent].any(axis=0)).tolist()
        if independent:
            self._append(pivots, left[independent])
        return independent, leaks

    def _append(self, pivots: list[int], rows: Residues) -> None:
        """Append a block, joined with blocks before it that are not twice as large."""
        while self._blocks and len(self._blocks[-1][0]) < 2 * len(pivots):
            earlier, block = self._blocks.pop()
            block = canonical(block - product(block[:, pivots], rows, self.prime), self.prime)
            pivots = earlier + pivots
            rows = np.concatenate([block, rows])
        self._blocks.append((pivots, rows))


def decide(
    echelon: Echelon,
    observed: Callable[[slice], Residues],
    count: int,
    points: Residues,
    upto: Places,
) -> tuple[list[int], set[int], Residues]:
    """Add observations in the order of time, and reduce every point by those before it.

    Args:
        observed: Returns some of the observations (count, width), as residues.
        points: (t, width) points at which gradients are evaluated.
        upto: (t,) number of observations before each of them.

    Returns:
        Independent observations, columns in which a dependent one is not zero, and the points.
    """
    left = np.empty_like(points)
    independent: list[int] = []
    leaking: set[int] = set()
    # Points with the same observations before them are reduced together, and with them the
    # observations up to the next points.
    stops = np.unique([*upto.tolist(), count]).tolist()
    done = 0
    ahead = echelon.reduced(observed(slice(0, stops[0])))
    for stop, following in zip(stops, [*stops[1:], count], strict=True):
        new, leaks = echelon.extend(ahead)
        independent += [done + k for k in new]
        leaking.update(leaks)
        at = np.flatnonzero(upto == stop)
        both = echelon.reduced(np.concatenate([points[at], observed(slice(stop, following))]))
        left[at] = both[: len(at)]
        ahead = both[len(at) :]
        done = stop
    return independent, leaking, left
