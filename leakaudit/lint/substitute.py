"""Substitution of the gradients of a recording's own truth into the declared relations.

The remainder must be the declared noise.

The declaration relates messages, private states, gradients and noise. Messages are recorded, and
the truth yields the gradient at every known model. The relations are therefore solved one after
another, as by hand: a relation with one unknown vector determines that vector, and a relation
without unknown vectors must hold. The noise of a message results as the difference from what would
have been sent without noise.

The same is repeated without gradients. The difference is the part of a value that the gradients
explain, which is the scale for deviations: a message may agree with its declaration to four digits
and contain nothing about the data. It is also repeated with the gradients of a blind guess (the
mean of all other records): the truth must explain the messages better than such a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.relations import Relations, Vector
from leakaudit.relations.estimate import recorded
from leakaudit.tasks.task import Task
from leakaudit.trace import Trace, Truth

Floats = NDArray[np.float64]
Gradient = Callable[[Vector, Tensor], Tensor | None]

# Most numbers of all vectors together that are kept in memory: 256 MiB of float64. Of a larger run,
# only the first rounds are examined.
NUMBERS = 1 << 25
# Most gradients that are computed from the truth: a number in any case, and more for each message.
# The others count as unknown, so that constants of a file, such as a number of local steps, do not
# decide how long a recording is examined. Choices: a second or two for a small model.
SOME_GRADIENTS = 1_000
GRADIENTS = 20
# Allowed error of a relation, in rounding errors of its largest term. Private states accumulate the
# errors of all previous rounds: the same allowance as in `leakaudit.protocols.declared`.
ROUNDED = 2000.0
# Allowed error due to a channel's declared error, in standard deviations, in every number at once.
# A single number exceeds 4 with a probability of 6e-5, the root mean square of several far less
# often.
CHANNEL = 4.0


class Recording(Protocol):
    """A recording with its truth and its task."""

    @property
    def trace(self) -> Trace:
        """The recorded messages."""

    @property
    def truth(self) -> Truth:
        """The truth of the same run."""

    @property
    def task(self) -> Task:
        """Computes the gradients."""


@dataclass(frozen=True)
class Noise:
    """The draws of one node's noise, each divided by its declared standard deviation.

    Attributes:
        node: the node that adds the noise.
        labels: names of the draws.
        rounds: (k,) rounds of the draws.
        rest: (k, c) the draws, if the gradients are those of the truth.
        signal: (k, c) the contribution of the gradients, in the same units.
        better: (k, c) their contribution beyond that of the gradients of a guess, in the same
            units.
        gaussian: whether all are declared as normal.
        least: smallest declared standard deviation among them.
    """

    node: int
    labels: tuple[str, ...]
    rounds: tuple[int, ...]
    rest: Floats
    signal: Floats
    better: Floats
    gaussian: bool
    least: float = 1.0


@dataclass(frozen=True)
class Left:
    """The remainder of a recording.

    Attributes:
        noise: one entry for each node whose noise is determined.
        missed: root of the sum of squared errors of relations without unknown vectors, beyond
            rounding.
        size: the same for the contribution of the gradients to these relations.
        broken: the first of these relations that fails although it contains no gradient, as text;
            "" if there is none.
    """

    noise: tuple[Noise, ...]
    missed: float
    size: float
    broken: str


def left(made: Recording, declared: Relations) -> Left:
    """Substitute the gradients of the truth into the relations of a recording.

    Args:
        made: the recording, its truth and its task.
        declared: relations of its protocol, over some of its rounds.
    """
    rounds = _affordable(declared, made)
    known = _recorded(made, declared, rounds)
    whole = _Pass(declared, known, _Gradients(made, guessed=False), rounds)
    without = _Pass(declared, known, _no_gradient, rounds, only=whole.taken)
    missed, size, broken = _missed(declared, whole, without, torch.finfo(made.trace.dtype).eps)
    drawn: dict[int, list[int]] = {}  # node -> its noise vectors
    for place, vector in enumerate(declared.vectors):
        if vector.kind == "noise" and vector.owner is not None and place in whole.values:
            drawn.setdefault(vector.owner, []).append(place)
    if not drawn:
        return Left((), missed, size, broken)
    guess = _Pass(declared, known, _Gradients(made, guessed=True), rounds, only=whole.taken)
    noise = [
        _noise(declared, node, places, whole, without, guess)
        for node, places in sorted(drawn.items())
    ]
    return Left(tuple(noise), missed, size, broken)


def _recorded(made: Recording, declared: Relations, rounds: int) -> dict[int, Tensor]:
    """Return the messages and public vectors of the recording, in double precision."""
    everything = Adversary(corrupt=frozenset(range(made.trace.graph.nodes)))
    read = recorded(everything.view(made.trace))
    found: dict[int, Tensor] = {}
    for place, vector in enumerate(declared.vectors):
        if vector.round > rounds or vector.kind not in ("message", "public"):
            continue
        try:
            found[place] = read(vector).double()
        except LeakauditError:  # the recording omits it: its channel is not observed
            continue
    return found


# --- gradients ------------------------------------------------------------------------------------


class _Gradients:
    """Evaluates a node's gradient at a model on its truth, clipped as the protocol declares.

    Args:
        made: the recording and its truth.
        guessed: whether the mean of all other records replaces each record of the node, with the
            same label.
    """

    def __init__(self, made: Recording, *, guessed: bool) -> None:
        self.made = made
        self.guessed = guessed
        self.left = SOME_GRADIENTS + GRADIENTS * len(made.trace)
        self.clip = made.trace.number("clip")
        self.batch = int(made.trace.number("batch"))

    def __call__(self, vector: Vector, theta: Tensor) -> Tensor | None:
        """Return the gradient; None for mini-batches, which are secret, and after too many."""
        node = vector.owner or 0
        x, y = self.made.truth.of(node)
        if not len(x) or 0 < self.batch < len(x) or not self.left:
            return None
        self.left -= 1
        x = x.double()
        task = self.made.task
        if self.guessed:
            x = self.made.truth.blind_guess(node).double().expand_as(x)
        if not self.clip:
            return task.gradient(theta, x, y)
        each = task.gradients(theta.expand(len(x), -1).contiguous(), x[:, None], y[:, None])
        norms = each.norm(dim=1, keepdim=True)
        clipped: Tensor = each * (self.clip / norms.clamp(min=self.clip))
        return clipped.mean(0)


def _no_gradient(vector: Vector, theta: Tensor) -> Tensor:
    return torch.zeros_like(theta)


# --- one way through the relations ----------------------------------------------------------------


class _Pass:
    """One pass through the relations.

    Args:
        declared: the relations.
        known: vector -> its recorded value (c,).
        gradient: returns a gradient at a model, or None.
        rounds: the last round that is visited.
        only: gradients that may be evaluated; None for all.

    Attributes:
        values: vector -> its value (c,).
        taken: gradients that were evaluated.
        over: relation without unknown vectors -> its error (c,).
    """

    def __init__(
        self,
        declared: Relations,
        known: Mapping[int, Tensor],
        gradient: Gradient,
        rounds: int,
        only: frozenset[int] | None = None,
    ) -> None:
        self.values = dict(known)
        self.over: dict[int, Tensor] = {}
        self._declared = declared
        self._gradient = gradient
        self._only = only
        taken = set[int]()
        for place, relation in enumerate(declared.relations):
            if relation.round <= rounds:
                taken |= self._take(relation.terms)
                self._use(place, relation.terms)
        self.taken = frozenset(taken)

    def _take(self, terms: Mapping[int, Fraction]) -> set[int]:
        """Evaluate the gradients of a relation at known models."""
        found = set[int]()
        for place in terms:
            point = self._declared.points.get(place)
            if point is None or place in self.values:
                continue
            if self._only is not None and place not in self._only:
                continue
            if any(model not in self.values for model in point.at.terms):
                continue
            value = self._gradient(self._declared.vectors[place], self._sum(point.at.terms))
            if value is not None:
                self.values[place] = value
                found.add(place)
        return found

    def _use(self, at: int, terms: Mapping[int, Fraction]) -> None:
        """Solve a relation for its only unknown vector, or store its error if there is none."""
        unknown = [place for place in terms if place not in self.values]
        if len(unknown) > 1 or len(unknown) == len(terms):
            return
        known = {place: factor for place, factor in terms.items() if place in self.values}
        total = self._sum(known)
        if unknown:
            self.values[unknown[0]] = total / -float(terms[unknown[0]])
        else:
            self.over[at] = total

    def _sum(self, terms: Mapping[int, Fraction]) -> Tensor:
        places = list(terms)
        total = self.values[places[0]] * float(terms[places[0]])
        for place in places[1:]:
            total.add_(self.values[place], alpha=float(terms[place]))
        return total


def _affordable(declared: Relations, made: Recording) -> int:
    """Return the last round up to which two passes' vectors fit into `NUMBERS`, at least 1."""
    first, stop = made.trace.columns
    last = max((vector.round for vector in declared.vectors), default=0)
    numbers = max(1, 2 * len(declared.vectors) * (stop - first))
    return max(1, min(last, int(last * NUMBERS / numbers)))


def _missed(
    declared: Relations, whole: _Pass, without: _Pass, eps: float
) -> tuple[float, float, str]:
    """Return the error of relations without unknown vectors.

    Also returns the contribution of the gradients to them, and the first relation that fails.

    Returns:
        `Left.missed`, `Left.size` and `Left.broken`.
    """
    missed = 0.0
    size = 0.0
    broken = ""
    for at, total in whole.over.items():
        if at not in without.over:
            continue
        terms = declared.relations[at].terms
        largest = max(
            float(whole.values[place].norm()) * abs(float(factor))
            for place, factor in terms.items()
        )
        channel = max(
            declared.vectors[place].std * abs(float(factor)) for place, factor in terms.items()
        )
        allowed = ROUNDED * eps * largest + CHANNEL * channel * math.sqrt(len(total))
        off = max(0.0, float(total.norm()) - allowed)
        given = float((without.over[at] - total).norm())
        if off > 0 and given == 0.0:
            broken = broken or declared.relations[at].text
        missed = math.hypot(missed, off)
        size = math.hypot(size, given)
    return missed, size, broken


def _noise(
    declared: Relations, node: int, places: list[int], whole: _Pass, without: _Pass, guess: _Pass
) -> Noise:
    """Return the draws of one node, from the three passes."""
    vectors = [declared.vectors[place] for place in places]
    std = np.array([vector.std for vector in vectors])[:, None]
    rest, plain, guessed = (
        torch.stack([one.values[place] for place in places]).numpy() / std
        for one in (whole, without, guess)
    )
    return Noise(
        node=node,
        labels=tuple(vector.label for vector in vectors),
        rounds=tuple(vector.round for vector in vectors),
        rest=rest,
        signal=plain - rest,
        better=guessed - rest,
        gaussian=all(vector.law == "gaussian" for vector in vectors),
        least=float(std.min()),
    )
