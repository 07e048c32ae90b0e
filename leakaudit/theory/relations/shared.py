"""The bounds of one adversary's view of all nodes at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leakaudit.theory.relations.account import Bound, lowest_level
from leakaudit.theory.relations.forward import PRIMES, Echelon, ForwardModel, Places, decide
from leakaudit.theory.relations.kkt import Array
from leakaudit.theory.relations.semidefinite import supremum

# `account` bounds one node: every other secret is known, so only the node's own gradients are
# targets. The view and its noise do not depend on the node. With the forward model (`forward`), the
# view is y = Phi e + Psi g for the observed vectors y, and each node selects its own columns of
# Psi. One elimination decides for all nodes which observations are independent, what leaks without
# noise, and which points are determined; one factorisation Phi' = Q R gives all Fisher matrices,
# M_i = |R'^-1 Psi_i|^2.
#
# All these decisions are ranks, made modulo two primes of 31 bits, with noise replaced by random
# residues (`ForwardModel.residues`); a row that is nonzero vanishes with a probability of about
# 1e-9 for each prime. If the primes disagree, or R is ill-conditioned, there is no shared view, and
# `account` decides.

Flags = NDArray[np.bool_]

# Largest number of entries of the noise response, and of residues, of one view: 0.25 and 0.5 GB.
# Larger views are bounded one by one. A choice.
ENTRIES = 32_000_000
RESIDUES = 64_000_000
# Ratio of the diagonal of R below which float64 loses too many digits of M; a choice.
CONDITION = 1e-7


class _Decided(NamedTuple):
    independent: Places  # observations that do not follow from earlier ones
    # nodes, among those to bound, of which a combination is revealed without noise
    leaking: Sequence[int]
    free: Flags  # (t,) whether each point is a function of the view before it and of gradients
    depends: Flags  # (t, n) whether it then depends on the gradients of each node to bound


def bounds(
    model: ForwardModel, known: Collection[int], nodes: Iterable[int]
) -> Callable[[int], Bound | None] | None:
    """Return what bounds a node; None if the view is too large, or needs the general methods."""
    some = sorted(set(nodes) & set(model.owner.tolist()))
    if not some or not model.public.issubset(known):
        return None
    # Observed states and messages in order, and hidden noise, as indices.
    rows = np.array(sorted(model.place[k] for k in known if k in model.place), np.int64)
    hidden = np.array([c for c, k in enumerate(model.noise) if k not in known], np.int64)
    width = _columns(model, rows, hidden) + model.nodes
    if len(rows) * len(hidden) > ENTRIES or len(model.defined) * width > RESIDUES:
        return None
    decided = _decide(model, rows, hidden, some, PRIMES[0])
    again = _decide(model, rows, hidden, some, PRIMES[1])
    same = (np.array_equal(decided[k], again[k]) for k in range(len(decided)))
    if not all(same):
        return None
    view = _SharedView(model, rows, hidden, some, decided)
    return view.bound if view.sound else None


class _SharedView:
    """One adversary's view of all nodes."""

    def __init__(
        self,
        model: ForwardModel,
        rows: Places,
        hidden: Places,
        nodes: Sequence[int],
        decided: _Decided,
    ) -> None:
        self.model = model
        self.decided = decided
        self._at = {node: k for k, node in enumerate(nodes)}
        self._used = model.used(rows)
        self._own = np.flatnonzero(np.isin(model.owner, nodes))
        noise, gradients = model.responses(rows[decided.independent], hidden, self._own)
        noise = noise[:, noise.any(axis=0)]
        self.sound = True
        if not len(noise):
            self._white = gradients
            return
        r: Array = np.asarray(np.linalg.qr(noise.T, mode="r"))  # Phi' = Q R
        size = np.abs(r.diagonal())
        self.sound = bool(size.min() > CONDITION * size.max())
        if self.sound:
            from scipy.linalg import solve_triangular

            self._white = solve_triangular(r, gradients, trans="T")  # R'^-1 Psi

    def bound(self, node: int) -> Bound | None:
        """Return the same as `account` at sensitivity 1; None if a combination leaks.

        If the certificate is 0 for a gradient that is revealed, no record and no node is bounded by
        this mu; the cheap interval between aligned changes and sum |M| is then returned.
        """
        if node not in self._at or node in self.decided.leaking:
            return None
        own = np.flatnonzero(self.model.owner == node)
        certificate = self._certificate(node, own)
        part = self._white[:, np.searchsorted(self._own, own)] * self._used[own]
        m = np.asarray(part.T @ part)
        if not np.isfinite(m).all():
            return None
        if lowest_level(certificate, m):
            attained, upper = supremum(m, np.ones(len(own)))
        else:
            attained = math.sqrt(max(float(m.sum()), 0.0))
            upper = max(attained, math.sqrt(float(np.abs(m).sum())))
        targets = tuple(self.model.targets(own))
        return Bound(upper, attained, targets, (), certificate, m)

    def _certificate(self, node: int, own: Places) -> tuple[int, ...]:
        decided = self.decided
        seen = decided.free & ~decided.depends[:, self._at[node]]
        others = self._used.copy()
        others[own] = False
        reacts = int(np.flatnonzero(others & ~seen).max(initial=-1))
        level = np.where(seen[own], 2, decided.free[own].astype(int))
        level[own < reacts] = 0
        if (others & ~decided.free).any():  # hidden noise passes through a loss of another node
            level[:] = 0
        return tuple(level.tolist())


def _decide(
    model: ForwardModel, rows: Places, hidden: Places, nodes: Sequence[int], prime: int
) -> _Decided:
    """Decide modulo a prime, in the order of time; known noise is observed first."""
    columns = _columns(model, rows, hidden)
    drawn = model.residues(prime, columns)
    kept = np.r_[:columns, drawn.columns + np.array(nodes)]
    echelon = Echelon(prime, columns)
    own = np.setdiff1d(np.arange(len(model.noise)), hidden)
    echelon.add(drawn.noise[np.ix_(own, kept)])
    independent, leaks, points = decide(
        echelon,
        lambda some: drawn.defined[np.ix_(rows[some], kept)],
        len(rows),
        drawn.points[:, kept],
        np.searchsorted(model.made_by[rows], model.before),
    )
    return _Decided(
        independent=np.array(independent, np.int64),
        leaking=[nodes[column - columns] for column in sorted(leaks)],
        free=~np.asarray(points[:, :columns].any(axis=1)),
        depends=points[:, columns:] != 0,
    )


def _columns(model: ForwardModel, rows: Places, hidden: Places) -> int:
    """Return how many random columns preserve all ranks of a view: its own largest rank."""
    own = len(model.noise) - len(hidden)
    return min(len(rows) + own, len(model.noise)) + 1
