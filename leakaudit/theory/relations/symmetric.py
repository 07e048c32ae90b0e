"""Networks that average with symmetric weights: the views of a long run in closed form."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from leakaudit.theory.relations.forward import ForwardModel
from leakaudit.theory.relations.kkt import Array
from leakaudit.theory.relations.rounds import Round, Rounds, UnlikeRounds, substituted

# In many protocols, each round takes the vectors z that are sent to
#
#     z_t = W z_(t-1) + s e_t + c g_t,    t = 1 ... T,
#
# with symmetric W, known z_0, and at every node fresh noise e and a gradient g. An adversary
# observes z_t at some nodes O. Its view of equal changes of all gradients of a node costs one
# solution with the covariance R of all observations, a matrix of T |O| rows. This module
# diagonalises time as well as space.
#
# In the eigenbasis of W, node by node, z is an autoregression of order one for each eigenvalue v.
# Its inverse covariance is tridiagonal: 1 + v^2 on the diagonal, except for 1 in the last entry,
# and -v beside it. But for this entry, the sine transform S (DST-I) diagonalises all of them, with
# the eigenvalues 1 + v^2 - 2 v cos(pi m / (T + 1)). Hence, with D(m) the diagonal matrix of their
# inverses, the covariance of z is S diag(D) S' plus a matrix of rank one for each v, and
#
#     R = S blockdiag(U_O D(m) U_O') S' + V V',
#
# with U the eigenvectors, and V of N columns. A solution with R costs T factorisations of |O| rows
# and one of N rows (the Woodbury identity). The columns of V and the responses of z to gradients
# are smooth functions of v: as matrices (m, v), they are products of rank 60 or less at N = T =
# 1,000, up to rounding, which saves most of the time if few nodes are observed.
#
# Exact decisions are simple, because every z_t at every node contains noise of its own: no
# observation follows from others, nothing is revealed without noise, and a form of z is known if
# and only if it contains only z of nodes in O.

# Distance of an eigenvalue to 1 below which it counts as 1: a choice, well above rounding.
ONE = 1e-9
# Error of a squared mu per round, in units of c^2 / s^2, which is subtracted so that no value is
# overstated. Against extended precision it was at most 2e-13, and 4e-13 with more observed nodes
# than products are used for (N = 120, T = 300); the rest is a margin.
ROUNDING = 1e-12
# Number of floats that are computed together, 64 MB: a choice. Affects only speed.
ENTRIES = 8_000_000
# Part of the largest singular value up to which others are omitted. A choice: with 1e-16, the rank
# is three times as large, and no value differs by more than rounding.
OMITTED = 1e-14
# Largest number of nodes times rounds: some arrays have as many entries, 0.4 GB each. A choice.
LARGEST = 50_000_000
# How often a point is written in terms of earlier vectors until only z and gradients remain.
LEVELS = 3


@dataclass(frozen=True)
class _Product:
    """A matrix of functions of the eigenvalues, as a product of low rank."""

    left: Array  # (T, r), for each m
    right: Array  # (r, N), for each eigenvalue

    @classmethod
    def of(cls, functions: Array) -> _Product:
        # Rows and columns of similar norm, so that rounding is small in comparison with each.
        rows = np.linalg.norm(functions, axis=1, keepdims=True)
        rows[rows == 0] = 1.0
        columns = np.linalg.norm(functions / rows, axis=0)
        columns[columns == 0] = 1.0
        u, s, v = np.linalg.svd(functions / rows / columns, full_matrices=False)
        rank = max(1, int((s > OMITTED * s[0]).sum()))
        return cls(rows * (u[:, :rank] * s[:rank]), v[:rank] * columns)

    @property
    def rank(self) -> int:
        return len(self.right)

    def at(self, rows: Array) -> Array:
        """Return the factor (r |O|, N) for the observed nodes, whose eigenvectors are rows."""
        return (self.right[:, None] * rows).reshape(-1, rows.shape[1])

    def white(self, m: slice, white: Array) -> Array:
        """Return the other factor of some m, times inverse Cholesky factors."""
        pairs = white[:, :, None] * self.left[m, None, :, None]
        return pairs.reshape(white.shape[0] * white.shape[1], -1)


class SymmetricNetwork:
    """A network that averages with symmetric weights, over many rounds.

    Args:
        rounds: The rounds as seen by an adversary who observes nothing, without points.
    """

    def __init__(self, rounds: Rounds, points: Rounds, count: int) -> None:
        self._rounds = rounds
        self._count = count
        self._found: dict[tuple[int, ...], Array] = {}
        self._made: dict[int, int] = {}  # z, and what equals it -> the round of this z
        self._sent = self._every_sent()
        first = [self._step(one) for one in rounds.first]
        later = self._step(rounds.later)
        self.weights, deviation, factor = later
        # z_0 is known: the first round with gradients receives nothing.
        start = (np.zeros_like(self.weights), deviation, factor)
        if len(first) < 2 or rounds.first[0].gradients:
            raise UnlikeRounds
        for one, expected in zip(first[1:], [start, *[later] * len(first)], strict=False):
            if not np.array_equal(one[0], expected[0]) or one[1:] != expected[1:]:
                raise UnlikeRounds
        if not np.array_equal(self.weights, self.weights.T) or not deviation:
            raise UnlikeRounds
        self._scale = (factor / deviation) ** 2
        self._points = self._written(points)
        eigen = np.linalg.eigh(self.weights)
        self._eigenvalues: Array = eigen.eigenvalues
        self._eigenvectors: Array = eigen.eigenvectors

    @classmethod
    def of(cls, model: ForwardModel, same: range, count: int) -> SymmetricNetwork | None:
        """Return the network; None if the protocol is not one."""
        if model.nodes * count > LARGEST:
            return None
        try:
            few = Rounds(model, same, model.public, points=False)
            network = cls(few, Rounds(model, same, model.public), count)
        except UnlikeRounds:
            return None
        return network if network.stable else None

    @property
    def stable(self) -> bool:
        """Whether no eigenvalue exceeds 1, so that z does not grow exponentially."""
        return float(np.abs(self._eigenvalues).max()) <= 1 + ONE

    def observed(self, known: Collection[int], corrupt: Collection[int]) -> list[int] | None:
        """Return the nodes whose z an adversary observes; None if it knows anything else.

        It may control nodes of which it also observes all neighbours: their noise then follows.
        """
        vectors = self._rounds.declared.vectors
        heard = self._times(known)
        seen = sorted(heard)
        if any(heard[node] < self._every_time[node] for node in seen):
            return None
        for node in corrupt:
            if not self._around(node).issubset(seen) or not self._private(node):
                return None
        for k in known:
            vector = vectors[k]
            if vector.kind != "public" and k not in self._sent and vector.owner not in corrupt:
                return None
        return seen

    def remember(self, seen: Sequence[int], squared: Array) -> None:
        """Keep what was computed elsewhere."""
        self._found[tuple(seen)] = squared

    def _around(self, node: int) -> set[int]:
        return {node, *np.flatnonzero(self.weights[node]).tolist()}

    def _private(self, node: int) -> bool:
        """Return whether all vectors of a node follow from z around it and from its own inputs."""
        model = self._rounds.model
        vectors = model.declared.vectors
        around = self._around(node)
        follows: set[int] = set()
        for k in self._defined[node]:
            for j in model.definition(k):
                vector = vectors[j]
                is_input = vector.owner == node and vector.kind in ("noise", "gradient")
                counts_as_known = vector.kind in ("public", "secret")
                is_sent = self._sent.get(j) in around
                if not (is_input or counts_as_known or is_sent or j in follows):
                    return False
            follows.add(k)
        return True

    def _times(self, some: Iterable[int]) -> Counter[int]:
        times = {(self._sent[k], self._made[k]) for k in some if k in self._sent}
        return Counter(node for node, _ in times)

    @cached_property
    def _every_time(self) -> Counter[int]:
        return self._times(self._sent)

    @cached_property
    def _defined(self) -> Mapping[int | None, list[int]]:
        model = self._rounds.model
        found = defaultdict[int | None, list[int]](list)
        for k in model.defined:
            found[model.declared.vectors[k].owner].append(k)
        return found

    def levels(self, seen: Collection[int]) -> dict[int, int] | None:
        """Return what is known of the point of every gradient, as `recursion` requires.

        None if a point depends on the gradients of other nodes.
        """
        known = frozenset(seen)
        found = {}
        for k, (of, owners) in self._points.items():
            if not of <= known:
                found[k] = 0
            elif not owners:
                found[k] = 2
            elif owners == {self._rounds.owner(k)}:
                found[k] = 1
            else:
                return None
        return found

    def squared(self, seen: Sequence[int], targets: Sequence[int] | None = None) -> Array:
        """Return the squared mu (N,) of equal changes of all gradients of each target; else NaN."""
        from scipy.linalg import cholesky, solve_triangular

        if tuple(seen) in self._found:
            return self._found[tuple(seen)]
        nodes = len(self.weights)
        chosen = np.arange(nodes) if targets is None else np.array(targets, np.int64)
        rows, to = self._eigenvectors[seen], self._eigenvectors[chosen].T
        is_small = len(seen) * self._ends_product.rank < nodes
        total, ends, across = (self._by_products if is_small else self._directly)(rows, to)
        # Woodbury: x' R^-1 x = x' B^-1 x - |L^-1 V' B^-1 x|^2 with L L' = I + V' B^-1 V.
        explained = solve_triangular(cholesky(ends, lower=True), across, lower=True)
        total -= (explained**2).sum(axis=0)
        found = np.full(nodes, np.nan)
        found[chosen] = self._scale * np.maximum(total - ROUNDING * self._count, 0.0)
        return found

    def _directly(self, rows: Array, to: Array) -> tuple[Array, Array, Array]:
        """Return what `squared` needs, with B the blocks of R and x the responses to gradients.

        Args:
            to: (N, J) Eigenvectors at the targets.

        Returns:
            x' B^-1 x (J,), I + V' B^-1 V (N, N) and V' B^-1 x (N, J).
        """
        nodes = len(to)
        total = np.zeros(to.shape[1])
        ends = np.eye(nodes)
        across = np.zeros_like(to)
        for m, white in self._white(rows, len(rows) * nodes):
            seen = white @ rows
            of_ends = (seen * self._ends[m, None]).reshape(-1, nodes)
            of_steps = (seen * self._responses[m, None]).reshape(-1, nodes) @ to
            total += (of_steps**2).sum(axis=0)
            ends += of_ends.T @ of_ends
            across += of_ends.T @ of_steps
        return total, ends, across

    def _by_products(self, rows: Array, to: Array) -> tuple[Array, Array, Array]:
        """Return the same by low-rank products, with V' replaced by fewer rows.

        With V = Y Z and Z' = Q K (Q orthonormal, K triangular), R remains the same with Y K' in
        place of V.
        """
        ends, steps = self._ends_product, self._responses_product
        reduced: Array = np.asarray(np.linalg.qr(ends.at(rows).T, mode="r"))
        changes = steps.at(rows) @ to
        gram = np.zeros((reduced.shape[1],) * 2)
        mixed = np.zeros((len(gram), len(changes)))
        total = np.zeros(to.shape[1])
        for m, white in self._white(rows, len(rows) * max(*mixed.shape, len(total))):
            of_ends = ends.white(m, white)
            gram += of_ends.T @ of_ends
            mixed += of_ends.T @ steps.white(m, white)
            responses = steps.left[m] @ changes.reshape(steps.rank, -1)
            responses = white @ responses.reshape(*white.shape[:2], -1)
            total += (responses**2).sum(axis=(0, 1))
        identity = np.eye(len(reduced))
        return total, identity + reduced @ gram @ reduced.T, reduced @ (mixed @ changes)

    def _white(self, rows: Array, width: int) -> Iterator[tuple[slice, Array]]:
        """Yield some m at a time, and the inverse Cholesky factors of their blocks."""
        count = len(rows)
        pairs = (rows[:, None] * rows[None]).reshape(count**2, -1)
        at_once = max(1, ENTRIES // width)
        for at in range(0, self._count, at_once):
            m = slice(at, at + at_once)
            blocks = (self._spectrum[m] @ pairs.T).reshape(-1, count, count)
            yield m, np.linalg.inv(np.linalg.cholesky(blocks))

    # The protocol as a recursion of z

    def _every_sent(self) -> dict[int, int]:
        """Return z of all nodes in all rounds, and messages that equal them -> the node."""
        declared = self._rounds.declared
        vectors = declared.vectors
        found: dict[int, int] = {}
        last = self._rounds.later.earlier
        for k in last:
            node = vectors[k].owner
            if node is None:
                raise UnlikeRounds
            for t in range(1, declared.round + 1):
                place = declared.place(vectors[k], t - vectors[k].round)
                if place is not None:
                    found[place] = node
                    self._made[place] = t
        if sorted(found[k] for k in last) != list(range(self._rounds.model.nodes)):
            raise UnlikeRounds
        model = self._rounds.model
        for k in model.defined:
            of = model.definition(k)
            (source, *others) = of or (None,)
            if source in found and not others and of[source] == 1:
                found[k] = found[source]
                self._made[k] = self._made[source]
        return found

    def _step(self, one: Round) -> tuple[Array, float, float]:
        """Return W of a round, the standard deviation s of its noise, and c."""
        nodes = self._rounds.model.nodes
        vectors = self._rounds.declared.vectors
        weights = np.zeros((nodes, nodes))
        variances = np.zeros(nodes)
        factors = np.zeros(nodes)
        used: set[int] = set()
        noise, gradients = set(one.noise), set(one.gradients)
        to = [self._sent[k] for k in self._rounds.later.earlier]
        for node, form in zip(to, one.passed, strict=False):
            for k, value in form.items():
                if k in noise and k not in used:
                    variances[node] += (float(value) * vectors[k].std) ** 2
                    used.add(k)
                elif k in gradients and vectors[k].owner == node:
                    factors[node] += float(value)
                elif k in self._sent:
                    weights[node, self._sent[k]] = float(value)
                else:
                    raise UnlikeRounds
        if np.ptp(variances) or np.ptp(factors):
            raise UnlikeRounds
        return weights, math.sqrt(variances[0]), float(factors[0])

    def _written(self, points: Rounds) -> dict[int, tuple[frozenset[int], frozenset[int]]]:
        """Return, for each gradient of the later round, the owners of z and g in its point."""
        found = {}
        definitions = {k: form for k, form in points.forms.items() if k not in self._sent}
        for k, form in zip(points.later.gradients, points.later.points, strict=True):
            for _ in range(LEVELS):
                form = substituted(form, definitions)
            of, owners = set(), set()
            for j in form:
                if j in self._sent:
                    of.add(self._sent[j])
                elif self._rounds.declared.vectors[j].kind == "gradient":
                    owners.add(points.owner(j))
                else:
                    raise UnlikeRounds
            found[k] = (frozenset(of), frozenset(owners))
        return found

    # The diagonal form

    @cached_property
    def _angles(self) -> Array:
        return np.pi * np.arange(1, self._count + 1) / (self._count + 1)

    @cached_property
    def _spectrum(self) -> Array:
        v = self._eigenvalues
        return 1 / (1 + v**2 - 2 * np.cos(self._angles)[:, None] * v)

    @cached_property
    def _ends(self) -> Array:
        """The rows of V in the eigenbasis, before the selection of nodes, (T, N).

        Let A be the inverse of the tridiagonal matrix with 1 + v^2 in its last entry as well, u the
        last column of A, and u_T the last entry of u. With 1 there, the inverse is
        A + u u' v^2 / (1 - v^2 u_T).
        """
        last = np.sqrt(2 / (self._count + 1)) * np.sin(self._angles * self._count)
        column = last[:, None] * self._spectrum
        v = self._eigenvalues
        ends: Array = column * v / np.sqrt(1 - v**2 * (last @ column))
        return ends

    @cached_property
    def _ends_product(self) -> _Product:
        return _Product.of(self._ends)

    @cached_property
    def _responses_product(self) -> _Product:
        return _Product.of(self._responses)

    @cached_property
    def _responses(self) -> Array:
        """How z reacts to a constant input from the first round on, transformed, (T, N)."""
        from scipy.fft import dst

        v = self._eigenvalues
        t = np.arange(1, self._count + 1)[:, None]
        is_one = np.abs(1 - v) < ONE
        grown = (1 - v**t) / np.where(is_one, 1.0, 1 - v)
        transformed: Array = dst(np.where(is_one, t, grown), type=1, axis=0, norm="ortho")
        return transformed
