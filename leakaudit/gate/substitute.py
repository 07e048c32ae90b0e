"""A recording with the gradients of its own truth put into the declared relations.

What is left over is noise, or wrong.

The declaration relates messages, private states, gradients and noise. Messages are recorded, and
the truth gives the gradient at every model that is known. So the relations are visited in their
order, as one would solve them by hand: a relation with one unknown vector gives that vector, and
one without any has to hold. Noise that was added to a message comes out as the difference from what
was to be sent without it.

The same is done again without gradients. The difference is the part of a value that the gradients
explain. It tells with what a deviation has to be compared: a message may agree with its declaration
to four digits and hold nothing of the data. And it is done with the gradients of the mean of all
other records, which anybody could guess: the truth has to explain the messages better than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.gate.runs import Recorded
from leakaudit.relations import Relations, Vector
from leakaudit.relations.estimate import recorded
from leakaudit.scoring import scoring

Floats = NDArray[np.float64]
Gradient = Callable[[Vector, Tensor], Tensor | None]

# Numbers of all vectors together that are held at once: 256 MiB of float64. Of a larger run the
# first rounds are looked at.
NUMBERS = 1 << 25
# Rounding errors by which a relation may miss, in units of its largest term. Private states carry
# the errors of all rounds before: the same allowance as in `leakaudit.protocols.declared`.
ROUNDED = 2000.0
# Standard deviations of a channel's own declared error, in every number at once. A single number
# exceeds 4 with a probability of 6e-5, the root mean square of several far less often.
CHANNEL = 4.0


@dataclass(frozen=True)
class Noise:
    """The draws of one node's noise, each divided by its declared standard deviation.

    Attributes:
        node: that adds the noise.
        labels: names of the draws.
        rounds: (k,) of the draws.
        rest: (k, c) the draws, if the gradients are those of the truth.
        signal: (k, c) what the gradients give in their place, in the same units.
        better: (k, c) what they give beyond the gradients of a guess, in the same units.
        gaussian: whether all are declared normal.
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
    """What a recording leaves.

    Attributes:
        noise: one entry for each node that adds noise which is determined.
        missed: root of the summed squares by which relations without unknown vectors miss, beyond
            rounding.
        size: the same of what the gradients give in these relations.
        broken: the first of them that misses although no gradient is in it, as text; "" if none
            does.
    """

    noise: tuple[Noise, ...]
    missed: float
    size: float
    broken: str


def left(made: Recorded, declared: Relations) -> Left:
    """Put the gradients of the truth into the relations of a recording.

    Args:
        made: the recording, its truth and its task.
        declared: relations of its protocol, over some of its rounds.
    """
    rounds = _affordable(declared, made)
    known = _recorded(made, declared, rounds)
    whole = _Pass(declared, known, _Gradients(made, guessed=False), rounds)
    without = _Pass(declared, known, _no_gradient, rounds, only=whole.taken)
    guess = _Pass(declared, known, _Gradients(made, guessed=True), rounds, only=whole.taken)
    missed, size, broken = _missed(declared, whole, without, torch.finfo(made.trace.dtype).eps)
    drawn: dict[int, list[int]] = {}  # node -> its noise vectors
    for place, vector in enumerate(declared.vectors):
        if vector.kind == "noise" and vector.owner is not None and place in whole.values:
            drawn.setdefault(vector.owner, []).append(place)
    noise = [
        _noise(declared, node, places, whole, without, guess)
        for node, places in sorted(drawn.items())
    ]
    return Left(tuple(noise), missed, size, broken)


def _recorded(made: Recorded, declared: Relations, rounds: int) -> dict[int, Tensor]:
    """Return the messages and public vectors that the recording holds, in double precision."""
    everything = Adversary(corrupt=frozenset(range(made.trace.graph.nodes)))
    read = recorded(everything.view(made.trace))
    found: dict[int, Tensor] = {}
    for place, vector in enumerate(declared.vectors):
        if vector.round > rounds or vector.kind not in ("message", "public"):
            continue
        try:
            found[place] = read(vector).double()
        except LeakauditError:  # the recording leaves it out: nobody taps its wire
            continue
    return found


# --- gradients ------------------------------------------------------------------------------------


class _Gradients:
    """Takes a node's gradient of its truth at a model, clipped as the protocol declares.

    Args:
        made: the recording and its truth.
        guessed: whether the mean of all other records stands for each of the node's, with the same
            label.
    """

    def __init__(self, made: Recorded, *, guessed: bool) -> None:
        self.made = made
        self.guessed = guessed
        self.clip = made.trace.number("clip")
        self.batch = int(made.trace.number("batch"))

    def __call__(self, vector: Vector, theta: Tensor) -> Tensor | None:
        """Return the gradient; None for mini-batches, which are drawn in secret."""
        node = vector.owner or 0
        x, y = self.made.truth.of(node)
        if not len(x) or 0 < self.batch < len(x):
            return None
        x = x.double()
        task = self.made.task
        if self.guessed:
            x = scoring.blind_guess(self.made.truth, node).double().expand_as(x)
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
    """One way through the relations.

    Args:
        declared: the relations.
        known: vector -> its recorded value (c,).
        gradient: gives a gradient at a model, or None.
        rounds: the last one that is visited.
        only: gradients that may be taken; None for all.

    Attributes:
        values: vector -> its value (c,).
        taken: gradients that were taken.
        over: relation without unknown vectors -> by what it misses, and the norm of its largest
            term.
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
        self.over: dict[int, tuple[Tensor, float]] = {}
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
        """Take the gradients of a relation at models that are known."""
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
        """Solve a relation for its only unknown vector, or keep by what it misses."""
        unknown = [place for place in terms if place not in self.values]
        if len(unknown) > 1 or len(unknown) == len(terms):
            return
        known = {place: factor for place, factor in terms.items() if place in self.values}
        total = self._sum(known)
        if unknown:
            self.values[unknown[0]] = total / -float(terms[unknown[0]])
            return
        sizes = [
            float(self.values[place].norm()) * abs(float(factor)) for place, factor in known.items()
        ]
        self.over[at] = (total, max(sizes))

    def _sum(self, terms: Mapping[int, Fraction]) -> Tensor:
        parts = [self.values[place] * float(factor) for place, factor in terms.items()]
        return torch.stack(parts).sum(0)


def _affordable(declared: Relations, made: Recorded) -> int:
    """Return the last round up to which two passes' vectors fit into `NUMBERS`, at least 1."""
    first, stop = made.trace.columns
    last = max((vector.round for vector in declared.vectors), default=0)
    numbers = max(1, 2 * len(declared.vectors) * (stop - first))
    return max(1, min(last, int(last * NUMBERS / numbers)))


def _missed(
    declared: Relations, whole: _Pass, without: _Pass, eps: float
) -> tuple[float, float, str]:
    """Return by how much relations without unknown vectors miss.

    Beside it stand what the gradients give in them, and the first that is broken.

    Returns:
        `Left.missed`, `Left.size` and `Left.broken`.
    """
    missed = 0.0
    size = 0.0
    broken = ""
    for at, (total, largest) in whole.over.items():
        if at not in without.over:
            continue
        terms = declared.relations[at].terms
        channel = max(
            declared.vectors[place].std * abs(float(factor)) for place, factor in terms.items()
        )
        allowed = ROUNDED * eps * largest + CHANNEL * channel * math.sqrt(len(total))
        off = max(0.0, float(total.norm()) - allowed)
        given = float((without.over[at][0] - total).norm())
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
