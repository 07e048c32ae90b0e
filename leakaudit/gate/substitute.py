"""A recording with the gradients of its own truth put into the declared relations: what is left over is noise, or wrong.

The declaration ties messages, private states, gradients and noise together. Messages are recorded, and the truth gives the gradient at
every model that is known. So the relations are gone through in their order, as one would by hand: a relation with one unknown vector gives
that vector, one without any has to hold. Noise that was added to a message comes out as its difference from what was to be sent without it.

The same is done again without gradients. The difference is the part of a value that the gradients explain, which tells what a deviation has
to be compared with: a message may agree with its declaration to four digits and hold nothing of the data. And it is done with the gradients
of the mean of all other records, which anybody could guess: the truth has to explain the messages better than that.
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
Fetch = Callable[[Vector], Tensor | None]

NUMBERS = (
    1 << 25
)  # of all vectors together that are held at once; of a larger run the first rounds are looked at
# Rounding errors that a relation may miss by, in units of its largest term. Private states carry the errors of all rounds before: the same
# allowance as in `leakaudit.protocols.declared`.
ROUNDED = 2000.0
CHANNEL = 4.0  # standard deviations of a channel's own declared error


@dataclass(frozen=True)
class Noise:
    """The draws of one node's noise, each divided by its declared standard deviation.

    Attributes:
        node: whose.
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
        missed: root of the summed squares by which relations without unknown vectors miss, beyond rounding.
        size: the same of what the gradients give in these relations.
        broken: the first of them that misses although no gradient is in it, as text; "" if none does.
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
    everything = Adversary(corrupt=frozenset(range(made.trace.graph.nodes)))
    read = recorded(everything.view(made.trace))

    def fetch(vector: Vector) -> Tensor | None:
        if vector.kind not in ("message", "public"):
            return None
        try:
            return read(vector).double()
        except (
            LeakauditError
        ):  # one that the recording leaves out, of a wire on which nobody listens
            return None

    rounds = _affordable(declared, made)
    whole = _Pass(declared, fetch, _Gradients(made, guessed=False), rounds)
    without = _Pass(
        declared, fetch, lambda vector, theta: torch.zeros_like(theta), rounds, only=whole.taken
    )
    guess = _Pass(declared, fetch, _Gradients(made, guessed=True), rounds, only=whole.taken)
    missed, size, broken = _missed(declared, whole, without, torch.finfo(made.trace.dtype).eps)
    drawn: dict[int, list[int]] = {}
    for k, vector in enumerate(declared.vectors):
        if vector.kind == "noise" and vector.owner is not None and k in whole.values:
            drawn.setdefault(vector.owner, []).append(k)
    noise = tuple(
        _noise(declared, node, some, whole, without, guess) for node, some in sorted(drawn.items())
    )
    return Left(noise, missed, size, broken)


class _Gradients:
    """Takes a node's gradient of its truth at a model, each record's cut as the protocol says; None for mini-batches.

    guessed: whether the mean of all other records stands for each of the node's, with the same label.
    """

    def __init__(self, made: Recorded, *, guessed: bool) -> None:
        self.made = made
        self.guessed = guessed
        self.clip = float(made.trace.params.get("clip") or 0.0)
        self.batch = int(made.trace.params.get("batch") or 0)

    def __call__(self, vector: Vector, theta: Tensor) -> Tensor | None:
        x, y = self.made.truth.of(vector.owner or 0)
        if not len(x) or 0 < self.batch < len(x):
            return None
        x, task = x.double(), self.made.task
        if self.guessed:
            x = scoring.blind_guess(self.made.truth, vector.owner or 0).double().expand_as(x)
        if not self.clip:
            return task.gradient(theta, x, y)
        each = task.gradients(theta.expand(len(x), -1).contiguous(), x[:, None], y[:, None])
        cut: Tensor = each * (self.clip / each.norm(dim=1, keepdim=True).clamp(min=self.clip))
        return cut.mean(0)


class _Pass:
    """One way through the relations.

    Attributes:
        values: vector -> its value (c,).
        taken: gradients that were taken.
        over: relation -> what it misses by, and its largest term, where it has no unknown vector.
    """

    def __init__(
        self,
        declared: Relations,
        fetch: Fetch,
        gradient: Callable[[Vector, Tensor], Tensor | None],
        rounds: int,
        only: frozenset[int] | None = None,
    ) -> None:
        self.values: dict[int, Tensor] = {}
        self.over: dict[int, tuple[Tensor, float]] = {}
        self._declared, self._gradient, self._only = declared, gradient, only
        taken = set[int]()
        for k, vector in enumerate(declared.vectors):
            if vector.round <= rounds and (value := fetch(vector)) is not None:
                self.values[k] = value
        for at, relation in enumerate(declared.relations):
            if relation.round <= rounds:
                taken |= self._take(relation.terms)
                self._use(at, relation.terms)
        self.taken = frozenset(taken)

    def _take(self, terms: Mapping[int, Fraction]) -> set[int]:
        """Take the gradients of a relation at models that are known."""
        found = set[int]()
        for k in terms:
            point = self._declared.points.get(k)
            if (
                point is None
                or k in self.values
                or (self._only is not None and k not in self._only)
            ):
                continue
            if all(m in self.values for m in point.at.terms):
                value = self._gradient(self._declared.vectors[k], self._sum(point.at.terms))
                if value is not None:
                    self.values[k] = value
                    found.add(k)
        return found

    def _use(self, at: int, terms: Mapping[int, Fraction]) -> None:
        """Solve a relation for its one unknown vector, or keep what it misses by."""
        unknown = [k for k in terms if k not in self.values]
        if len(unknown) > 1 or len(unknown) == len(terms):
            return
        known = {k: v for k, v in terms.items() if k in self.values}
        total = self._sum(known)
        if unknown:
            self.values[unknown[0]] = total / -float(terms[unknown[0]])
        else:
            self.over[at] = (
                total,
                max(float(self.values[k].norm()) * abs(float(v)) for k, v in known.items()),
            )

    def _sum(self, terms: Mapping[int, Fraction]) -> Tensor:
        return torch.stack([self.values[k] * float(v) for k, v in terms.items()]).sum(0)


def _affordable(declared: Relations, made: Recorded) -> int:
    """Return the last round up to which all vectors fit into `NUMBERS`; the first round always does."""
    width = made.trace.columns[1] - made.trace.columns[0]
    last = max((v.round for v in declared.vectors), default=0)
    return max(1, min(last, int(last * NUMBERS / max(1, 2 * len(declared.vectors) * width))))


def _missed(
    declared: Relations, whole: _Pass, without: _Pass, eps: float
) -> tuple[float, float, str]:
    """Return by how much relations without unknown vectors miss, beyond rounding, beside what the gradients give in them.

    And the first one that misses although no gradient is in it, as text.
    """
    missed, size, broken = 0.0, 0.0, ""
    for at, (total, largest) in whole.over.items():
        if at not in without.over:
            continue
        channel = max(
            declared.vectors[k].std * abs(float(v)) for k, v in declared.relations[at].terms.items()
        )
        allowed = ROUNDED * eps * largest + CHANNEL * channel * math.sqrt(len(total))
        off = max(0.0, float(total.norm()) - allowed)
        given = float((without.over[at][0] - total).norm())
        if off > 0 and given == 0.0:
            broken = broken or declared.relations[at].text
        missed, size = math.hypot(missed, off), math.hypot(size, given)
    return missed, size, broken


def _noise(
    declared: Relations, node: int, places: list[int], whole: _Pass, without: _Pass, guess: _Pass
) -> Noise:
    vectors = [declared.vectors[k] for k in places]
    std = np.array([v.std for v in vectors])[:, None]
    rest, plain, guessed = (
        torch.stack([one.values[k] for k in places]).numpy() / std
        for one in (whole, without, guess)
    )
    return Noise(
        node=node,
        labels=tuple(v.label for v in vectors),
        rounds=tuple(v.round for v in vectors),
        rest=rest,
        signal=plain - rest,
        better=guessed - rest,
        gaussian=all(v.law == "gaussian" for v in vectors),
        least=float(std.min()),
    )
