"""The view of a long run, by a recursion over its rounds."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from leakaudit.core.progress import step
from leakaudit.theory.relations.account import Bound
from leakaudit.theory.relations.forward import (
    PRIMES,
    Echelon,
    ForwardModel,
    Residues,
    decide,
    evaluated,
    random_inputs,
)
from leakaudit.theory.relations.kkt import Array, matrix
from leakaudit.theory.relations.rounds import Round, Rounds, UnlikeRounds
from leakaudit.theory.relations.shared import CONDITION
from leakaudit.theory.relations.symmetric import SymmetricNetwork

# `shared` writes a view as y = Phi e + Psi g with all rounds at once, which costs the cube of their
# number. If all rounds are alike, it can be followed from round to round. With x the hidden vectors
# that a round receives, e noise of unit variance, and g gradients, a round passes x' on and shows
# y:
#
#     x' = F x + B e + G g,    y = C x + D e + H g.
#
# What the adversary does not know about x is Gaussian with a covariance P, and observing y
# conditions it: a Kalman filter. Let m be the amount by which the expectation of x moves if every
# gradient of a node changes by the same vector of length 1. Then y moves by d = C m + H 1, and with
# L L' the covariance of y given all earlier rounds, the squared mu of this change grows by |L^-1
# d|^2.
#
# This is what equal changes attain, and all that a hidden view offers: as long as hidden noise
# moves the models, no mu bounds a record (`Bound.certificate`). Whether it does, and whether no
# observation follows from earlier ones, is decided exactly, and for any run from a few rounds: an
# adversary who is told all hidden vectors of some round and then observes w rounds knows more than
# one who observed all rounds. What is hidden from the former at the end of the w rounds is hidden
# from the latter, later in the run; before that, every round is decided by itself.

# Rounds w after which an adversary who knew everything has lost track: a choice. Noise reaches
# everything that a node computes within two or three rounds.
WINDOW = 6
# Largest number of entries of P over all rounds: an hour of computing. A choice.
WORK = 100_000_000_000
SEED = 21


def long_view(
    model: ForwardModel,
    same: range,
    known: Collection[int],
    count: int,
    network: SymmetricNetwork | None = None,
    corrupt: Collection[int] = (),
    nodes: Sequence[int] | None = None,
) -> _LongView | None:
    """Return the view, for some nodes or all; None if another method must decide."""
    if count <= model.declared.round + WINDOW:
        return None
    if network is not None and (seen := network.observed(known, corrupt)) is not None:
        levels = network.levels(seen)
        if levels is not None:
            return _LongView(model, same, known, count, levels, network.squared(seen, nodes))
    try:
        rounds = Rounds(model, same, known)
        found = _levels(rounds, PRIMES[0])
        if found != _levels(rounds, PRIMES[1]):
            return None
        levels = dict(zip(rounds.later.gradients, found, strict=True))
        few = Rounds(model, same, known, points=False)
        if count * len(few.later.earlier) ** 2 > WORK:
            return None
        return _LongView(model, same, known, count, levels, _squared(few, count))
    except UnlikeRounds:
        return None


@dataclass(frozen=True, eq=False)
class _LongView:
    """One adversary's view of all nodes over many rounds that are alike."""

    model: ForwardModel
    same: range  # rounds of the model that are alike
    known: Collection[int]
    count: int  # number of rounds of the run
    # gradient of a round of `same` -> what is known of its point in all later rounds: 2 if it is
    # known, 1 if it follows from the node's own gradients, 0 if noise hides it
    levels: Mapping[int, int]
    squared: Array  # (N,) squared mu of equal changes of all gradients of a node, at sensitivity 1

    def bound(self, node: int) -> Bound | None:
        """Return what equal changes of all gradients attain; None if another method must decide.

        No mu bounds a node or a record, so the upper value is inf.
        """
        certificate = self._certificate(node)
        if certificate is None:
            return None
        attained = math.sqrt(max(float(self.squared[node]), 0.0))
        return Bound(math.inf, attained, (), (), certificate, None)

    def _certificate(self, node: int) -> tuple[int, ...] | None:
        """Return the certificate of every gradient of a node, 0; None if another method decides.

        It is 0 if hidden noise moves a gradient of another node that an observation depends on.
        """
        if self._moved_by_noise <= {node}:
            return None
        model = self.model
        vectors = model.declared.vectors
        own = [vectors[k].round for k in model.gradients if vectors[k].owner == node]
        each = own.count(model.declared.round)
        return (0,) * (each * (self.count - model.declared.round) + len(own))

    @cached_property
    def _moved_by_noise(self) -> set[int | None]:
        """Owners of hidden gradients of the last rounds that noise moves and observations need."""
        model = self.model
        vectors = model.declared.vectors
        levels = {self._role(k): level for k, level in self.levels.items()}
        used = model.used(model.place[k] for k in self.known if k in model.place)
        owners = set()
        for is_used, k in zip(used, model.gradients, strict=True):
            is_hidden = k not in self.known and vectors[k].round in self.same
            if is_used and is_hidden and not levels[self._role(k)]:
                owners.add(vectors[k].owner)
        return owners

    def _role(self, k: int) -> tuple[str, int | None, int | None]:
        vector = self.model.declared.vectors[k]
        return (vector.name, vector.owner, vector.index)


def _levels(rounds: Rounds, prime: int) -> list[int]:
    """Return what the view tells of the point of each later gradient, for a run of any length.

    Raises:
        UnlikeRounds: An observation follows from earlier ones; or what the view tells of a point
            may differ from round to round.
    """
    _simulate(rounds, [*rounds.first, *[rounds.later] * (WINDOW + 1)], prime, every=True)
    told = _simulate(rounds, [rounds.later] * WINDOW, prime, every=False)
    levels = []
    later = zip(told, rounds.later.points, rounds.own_points, strict=True)
    for (free, reacts), point, from_own in later:
        if not point:
            levels.append(2)
        elif not free:
            levels.append(0)
        elif reacts and from_own:
            levels.append(1)
        else:
            raise UnlikeRounds
    return levels


def _simulate(
    rounds: Rounds, some: Sequence[Round], prime: int, *, every: bool
) -> list[tuple[bool, bool]]:
    """Return what the observations so far tell of the points of the last round's gradients.

    All that the first round receives is known; inputs are random, as in `ForwardModel.residues`.

    Args:
        every: Whether no observation of any round may follow from earlier ones, or none of the last
            round.

    Returns:
        For each point, whether it is free of noise, and whether it depends on its owner's
        gradients.
    """
    columns = sum(len(one.observed) for one in some) + 1
    width = (columns, rounds.model.nodes)
    drawn = np.random.default_rng([SEED, prime, len(some)])
    echelon = Echelon(prime, columns)
    state = np.zeros((len(some[0].earlier), sum(width)), np.int64)
    *before, last = some

    def values(one: Round) -> Residues:
        owners = np.array([rounds.owner(k) for k in one.gradients], np.int64)
        return np.concatenate([state, random_inputs(drawn, prime, len(one.noise), owners, width)])

    for one in before:
        given = values(one)
        independent, _ = echelon.add(evaluated(one.observed, one.columns, given, prime))
        if every and len(independent) < len(one.observed):
            raise UnlikeRounds
        state = evaluated(one.passed, one.columns, given, prime)
    given = values(last)
    observed = evaluated(last.observed, last.columns, given, prime)
    declared_before = [rounds.declared.before[k] for k in last.gradients]
    independent, _, points = decide(
        echelon,
        lambda part: observed[part],
        len(observed),
        evaluated(last.points, last.columns, given, prime),
        np.searchsorted(np.array(last.relations, np.int64), np.array(declared_before, np.int64)),
    )
    if len(independent) < len(observed):
        raise UnlikeRounds
    told = []
    for k, left in zip(last.gradients, points, strict=True):
        free = not left[:columns].any()
        told.append((free, bool(left[columns + rounds.owner(k)])))
    return told


def _squared(rounds: Rounds, count: int) -> Array:
    """Return the squared mu of equal changes of each node's gradients, (N,).

    Raises:
        UnlikeRounds: Observations are so close to each other that float64 loses too many digits.
    """
    nodes = rounds.model.nodes
    total = np.zeros(nodes)
    covariance = np.zeros((len(rounds.first[0].earlier),) * 2)
    moved = np.zeros((len(covariance), nodes))
    later = _Filter(rounds, rounds.later)
    for t in range(count + 1):
        step("rounds", t, count + 1)
        now = later
        if t < len(rounds.first):
            now = _Filter(rounds, rounds.first[t])
        elif t == count:
            now = _Filter(rounds, rounds.final)
        covariance, moved, gained = now.next(covariance, moved)
        total += gained
    step("rounds", count + 1, count + 1)
    return total


class _Filter:
    """One round as matrices; the rows are what is passed on, followed by what is observed."""

    def __init__(self, rounds: Rounds, one: Round) -> None:
        vectors = rounds.declared.vectors
        forms = [*one.passed, *one.observed]
        every = matrix(forms, one.columns)
        received, noisy = len(one.earlier), len(one.noise)
        self.passed = len(one.passed)
        self.follow = every[:, :received]
        noise = every[:, received : received + noisy]
        scaled = noise * np.array([vectors[k].std for k in one.noise])
        self.noise = (scaled @ scaled.T).toarray()
        gradients = every[:, received + noisy :].tocsc()
        self.shift = np.zeros((len(forms), rounds.model.nodes))
        for c, k in enumerate(one.gradients):
            self.shift[:, rounds.owner(k)] += gradients[:, [c]].toarray()[:, 0]

    def next(self, covariance: Array, moved: Array) -> tuple[Array, Array, Array]:
        """Return P (n, n) and m (n, N) after a round, and the squared mu (N,) that it adds."""
        from scipy.linalg import cholesky, solve_triangular

        # F and C, B and D, G and H stand one above the other: m becomes F m + G 1 above d, and P
        # becomes F P F' + B B' beside that of y.
        moved = self.follow @ moved + self.shift
        half = self.follow @ covariance
        covariance = self.follow @ half.T + self.noise
        n = self.passed
        hidden = covariance[:n, :n]
        if len(covariance) == n:
            return hidden, moved, np.zeros(moved.shape[1])
        lower = cholesky(covariance[n:, n:], lower=True)
        size = lower.diagonal()
        if size.min() <= CONDITION * size.max():
            raise UnlikeRounds
        # With S the covariance of y and X': P - X S^-1 X' and m - X S^-1 d, by S = L L'.
        gain = solve_triangular(lower, covariance[n:, :n], lower=True)
        innovation = solve_triangular(lower, moved[n:], lower=True)  # L^-1 d
        hidden = hidden - gain.T @ gain
        hidden = (hidden + hidden.T) / 2  # rounding would otherwise add up over the rounds
        gained = (innovation**2).sum(axis=0)
        return hidden, moved[:n] - gain.T @ innovation, gained
