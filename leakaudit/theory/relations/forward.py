"""A declaration as a forward model: every state and message as a function of gradients and noise.

In almost every protocol, each relation defines one new state or message from vectors that were
declared before. Solving the definitions in this order expresses all of them by the inputs: with v
the states and messages, e the noise of unit variance, and g the gradients,

    v = C v + B e + G g + known terms,    C strictly lower triangular,

so v = (I - C)^-1 (B e + G g). The rows of (I - C)^-1 [B G] are the *responses* of the vectors. They
do not depend on an adversary: an adversary's view is a selection of rows. What every view shares is
therefore computed once, and a view costs one transposed triangular solve with its rows.

The same triangular solve is available modulo two primes, for exact decisions (`residues`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakaudit.theory.relations.declare import Relations
from leakaudit.theory.relations.expression import Expression
from leakaudit.theory.relations.kkt import Array
from leakaudit.theory.relations.modular import residue

Residues = NDArray[np.int64]
Places = NDArray[np.int64]

DEFINED = ("state", "message")
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
    """The forward model of a declaration.

    Attributes:
        defined: Places of the states and messages, in the order of their definitions.
        made_by: (n,) relation that defines each of them.
        owner: (t,) owner of each gradient.
        nodes: One more than the largest owner.
        place: Place of a state or message -> its index in `defined`.
        before: (t,) number of relations declared before each gradient.
    """

    def __init__(self, declared: Relations, made_by: Mapping[int, int]) -> None:
        vectors = declared.vectors
        self.declared = declared
        self.defined = list(made_by)
        self.made_by = np.array(list(made_by.values()), np.int64)
        self.noise = [k for k, vector in enumerate(vectors) if vector.kind == "noise"]
        self.gradients = sorted(declared.points)
        self.owner = np.array([vectors[k].owner for k in self.gradients], np.int64)
        self.before = np.array([declared.points[k].before for k in self.gradients], np.int64)
        self.nodes = int(self.owner.max(initial=-1)) + 1
        self.place = {k: d for d, k in enumerate(self.defined)}
        self._column = {k: c for c, k in enumerate(self.noise)}
        self._gradient = {k: c for c, k in enumerate(self.gradients)}
        self._definitions = _Forms(self, [self.definition(k) for k in made_by])
        points = [declared.points[k].at.terms for k in self.gradients]
        self._points = _Forms(self, points)
        self._residues: dict[int, _Simulated] = {}
        self.public = frozenset(k for k, vector in enumerate(vectors) if vector.kind == "public")

    @classmethod
    def of(cls, declared: Relations) -> ForwardModel | None:
        """Return the forward model; None if the declaration has none.

        It has none if a relation defines nothing or several vectors at once, if a vector is
        unexplained, if a step is nonlinear, or if noise is not Gaussian: `account` then needs its
        general methods. Nor is one of use without noise, because then every view that reveals
        anything leaks.
        """
        if declared.opaques or declared.unexplained or not declared.points:
            return None
        vectors = declared.vectors
        if {v.law for v in vectors if v.kind == "noise"} != {"gaussian"}:
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

    @cached_property
    def ancestors(self) -> list[int]:
        """The gradients on which each vector depends structurally, as bits of an integer."""
        found: list[int] = []
        for definition in self._definitions.forms:
            bits = 0
            for k in definition:
                if k in self.place:
                    bits |= found[self.place[k]]
                elif k in self._gradient:
                    bits |= 1 << self._gradient[k]
            found.append(bits)
        return found

    def responses(self, rows: Places, hidden: Places, own: Places) -> tuple[Array, Array]:
        """Return how some vectors respond to noise (m, q) and to gradients (m, t).

        Args:
            rows: (m,) indices into `defined`.
            hidden: (q,) indices into `noise`.
            own: (t,) indices into `gradients`.
        """
        noise = np.empty((len(rows), len(hidden)))
        gradients = np.empty((len(rows), len(own)))
        by_noise = self._definitions.noise[:, hidden].T.tocsr()
        by_gradient = self._definitions.gradients[:, own].T.tocsr()
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            unit = np.zeros((len(self.defined), len(some)))
            unit[some, np.arange(len(some))] = 1
            back = self._solver.solve(unit, trans="T")
            noise[start : start + AT_ONCE] = (by_noise @ back).T
            gradients[start : start + AT_ONCE] = (by_gradient @ back).T
        return noise, gradients

    def residues(self, prime: int, columns: int) -> _Simulated:
        """Return the responses to random inputs, modulo a prime.

        Noise is replaced by random rows of at least this many columns, and the gradients of node i
        by random multiples of one vector of their own. A vector does not depend on noise, or on the
        gradients of a node, if and only if its response is zero, except with a probability of
        about 1 / prime.

        Args:
            prime: Below 2^31.
            columns: Number of columns for noise.
        """
        have = self._residues.get(prime)
        if have is None or have.columns < columns:
            have = _Simulated(self, prime, -(-columns // STEP) * STEP)
            self._residues[prime] = have
        return have

    @cached_property
    def _solver(self) -> Any:
        """The triangular factor I - C; in the order of definition, it has no fill-in."""
        import scipy.sparse as sp
        from scipy.sparse.linalg import splu

        size = len(self.defined)
        matrix = (sp.eye_array(size) - self._definitions.defined).tocsc()
        return splu(matrix, permc_spec="NATURAL", diag_pivot_thresh=0.0)


class _Forms:
    """Linear forms as sparse matrices over the vectors, the noise and the gradients."""

    def __init__(self, model: ForwardModel, forms: Sequence[Mapping[int, Fraction]]) -> None:
        self.forms = forms
        self._model = model

    @cached_property
    def defined(self) -> Any:
        return self._matrix(self._model.place, None)

    @cached_property
    def noise(self) -> Any:
        """The coefficients of noise of unit variance."""
        vectors = self._model.declared.vectors
        scale = np.array([vectors[k].std for k in self._model.noise])
        return self._matrix(self._model._column, scale)

    @cached_property
    def gradients(self) -> Any:
        return self._matrix(self._model._gradient, None)

    def _matrix(self, column: Mapping[int, int], scale: Array | None) -> Any:
        import scipy.sparse as sp

        rows, columns, values = [], [], []
        for r, form in enumerate(self.forms):
            for k, v in form.items():
                if k in column:
                    rows.append(r)
                    columns.append(column[k])
                    values.append(float(v))
        at = np.array(columns, np.int64)
        entries = np.array(values)
        if scale is not None:
            entries = entries * scale[at]
        shape = (len(self.forms), len(column))
        return sp.csr_array((entries, (np.array(rows, np.int64), at)), shape=shape)

    def terms(self, prime: int, offset: Mapping[int, int]) -> tuple[Places, Places, Residues]:
        """Return all terms as row, column and residue, by row; `offset` numbers the columns."""
        known: dict[Fraction, int] = {}
        rows, columns, values = [], [], []
        for r, form in enumerate(self.forms):
            for k, v in form.items():
                if k not in offset:
                    continue
                if v not in known:
                    known[v] = residue(v, prime)
                rows.append(r)
                columns.append(offset[k])
                values.append(known[v])
        return np.array(rows, np.int64), np.array(columns, np.int64), np.array(values, np.int64)


class _Simulated:
    """Responses to random inputs, modulo a prime.

    Attributes:
        columns: Number of columns for noise; one for each node follows.
        noise: (noise, columns + N) the inputs.
        defined: (n, columns + N) responses of states and messages.
        points: (t, columns + N) responses of the points at which gradients are evaluated.
    """

    def __init__(self, model: ForwardModel, prime: int, columns: int) -> None:
        self.prime = prime
        self.columns = columns
        size = len(model.defined)
        nodes = model.nodes
        drawn = np.random.default_rng([SEED, prime, columns])
        inputs = np.zeros((len(model.noise) + len(model.gradients), columns + nodes), np.int64)
        noise = inputs[: len(model.noise)]
        noise[:, :columns] = drawn.integers(0, prime, (len(model.noise), columns))
        at = np.arange(len(model.gradients))
        inputs[len(model.noise) + at, columns + model.owner] = drawn.integers(1, prime, len(at))
        offset = dict(model.place)
        for k, c in model._column.items():
            offset[k] = size + c
        for k, c in model._gradient.items():
            offset[k] = size + len(model.noise) + c
        values = np.concatenate([np.zeros((size, columns + nodes), np.int64), inputs])
        terms = model._definitions.terms(prime, offset)
        for level in _levels(model):
            combine(values, level, terms, values, prime)
        self.noise = noise
        self.defined = values[:size]
        self.points = np.zeros((len(model.gradients), columns + nodes), np.int64)
        rows, cols, coefficients = model._points.terms(prime, offset)
        combine(self.points, np.arange(len(self.points)), (rows, cols, coefficients), values, prime)


def _levels(model: ForwardModel) -> list[Places]:
    """Return definitions in groups; each depends only on groups before it."""
    depth: list[int] = []
    for form in model._definitions.forms:
        below = [depth[model.place[k]] for k in form if k in model.place]
        depth.append(1 + max(below, default=-1))
    order = np.argsort(np.array(depth), kind="stable")
    return np.split(order, np.flatnonzero(np.diff(np.array(depth)[order])) + 1)


def combine(
    out: Residues,
    rows: Places,
    terms: tuple[Places, Places, Residues],
    values: Residues,
    prime: int,
) -> None:
    """Set rows to linear forms of other rows, modulo a prime.

    Args:
        out: (m, n) residues, of which some rows are set.
        terms: Row, column and coefficient of all terms, sorted by row.
        values: (k, n) residues; a column of the terms is a row of these.
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
    """Return a @ b modulo a prime, with float64 matrix products that are exact.

    a is split into two halves of 16 bits, so that 32 products stay below 2^53. The remainders of a
    division are exact as well, up to a multiple of the prime.

    Args:
        a: (m, n) residues.
        b: (n, k) residues.
        prime: Below 2^31.
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

    Exact for whole numbers below 2^53; those near a multiple may become slightly less than 0, or
    exceed the prime slightly.
    """
    multiple = x * (1 / prime)
    np.floor(multiple, out=multiple)
    multiple *= prime
    x -= multiple
    return x


def canonical(x: Residues, prime: int) -> Residues:
    """Change numbers from -prime to 2 prime - 1 to those from 0 to prime - 1, in place.

    Args:
        prime: Below 2^31.
    """
    x += x >> 63 & prime  # x >> 63 is -1 for numbers below 0: all bits of the prime remain
    x -= prime
    x += x >> 63 & prime
    return x


class Echelon:
    """Rows modulo a prime, in echelon form on the columns of noise.

    They are kept in blocks, each at least twice as large as the next. A block has zeros at its own
    pivots and at those of earlier blocks; joining two of similar size, rather than clearing the
    pivots of all new rows in all old ones, saves most of the work.

    Args:
        prime: Below 2^31.
        columns: Number of columns of noise, which come first.
    """

    def __init__(self, prime: int, columns: int) -> None:
        self.prime = prime
        self.columns = columns
        self._blocks: list[tuple[list[int], Residues]] = []  # pivots and rows

    def reduced(self, rows: Residues) -> Residues:
        """Return rows minus the combinations of earlier rows that clear the pivots.

        Args:
            rows: (m, width) residues.
        """
        for pivots, block in self._blocks:
            rows = canonical(rows - product(rows[:, pivots], block, self.prime), self.prime)
        return rows

    def add(self, rows: Residues) -> tuple[list[int], list[int]]:
        """Add rows.

        Args:
            rows: (m, width) residues.
        """
        return self.extend(self.reduced(rows))

    def extend(self, rows: Residues) -> tuple[list[int], list[int]]:
        """Add rows that are reduced already.

        Args:
            rows: (m, width) residues, as `reduced` returns them.
        """
        # Rows beyond the first few are reduced by a product of matrices, not one by one.
        independent, leaks = self._eliminate(rows[:ONE_BY_ONE])
        for at in range(ONE_BY_ONE, len(rows), ONE_BY_ONE):
            later, found = self._eliminate(self.reduced(rows[at : at + ONE_BY_ONE]))
            independent += [at + i for i in later]
            leaks += found
        return independent, sorted(set(leaks))

    def _eliminate(self, rows: Residues) -> tuple[list[int], list[int]]:
        """Add a few reduced rows, one by one; returns as `extend` does."""
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


def bits(some: Iterable[int]) -> int:
    """Return the union of sets that are written as bits."""
    union = 0
    for one in some:
        union |= one
    return union
