"""Substitution of the gradients of a recording's own truth into the declared relations.

The remainder must be the declared noise.

The declaration relates messages, private states, gradients and noise. Messages are recorded, and
the truth yields the gradient at every known model. The relations are therefore solved one after
another, as by hand: a relation with one unknown vector determines that vector, and a relation
without unknown vectors must hold. The noise of a message results as the difference from what would
have been sent without noise.

The same is done without gradients. The difference is the part of a value that the gradients
explain, which is the scale for deviations: a message may agree with its declaration to four digits
and contain nothing about the data. It is also done with the gradients of a blind guess (the mean of
all other records): the truth must explain the messages better than such a guess.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.relations import Relations
from leakaudit.relations.estimate import recorded
from leakaudit.tasks.task import Task
from leakaudit.trace import Trace, Truth

Floats = NDArray[np.float64]

# Most numbers of all vectors together that are kept in memory: 256 MiB of float64. Of a larger run,
# only the first rounds are examined.
NUMBERS = 1 << 25
# Most gradients that are computed from the truth: a number in any case, and more for each message.
# The others count as unknown, so that constants of a file, such as a number of local steps, do not
# decide how long a recording is examined. Choices: a second or two for a small model.
SOME_GRADIENTS = 1_000
GRADIENTS = 20
# Most numbers of gradients and records that are evaluated together: 8 MiB. A choice.
AT_ONCE = 1 << 20
# Kinds of gradients: those of the truth, none, and those of a guess.
KINDS = 3
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
        std: (k,) declared standard deviations.
        rounded: rounding error of the largest recorded number.
    """

    node: int
    labels: tuple[str, ...]
    rounds: tuple[int, ...]
    rest: Floats
    signal: Floats
    better: Floats
    gaussian: bool
    std: Floats
    rounded: float


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
        worst: largest error of one of these relations, relative to the contribution of the
            gradients to its terms.
        node: the node whose message this relation contains, or None.
    """

    noise: tuple[Noise, ...]
    missed: float = 0.0
    size: float = 0.0
    broken: str = ""
    worst: float = 0.0
    node: int | None = None


def left(made: Recording, declared: Relations) -> Left:
    """Substitute the gradients of the truth into the relations of a recording.

    Args:
        made: the recording, its truth and its task.
        declared: relations of its protocol, over some of its rounds.
    """
    rounds = _affordable(declared, made)
    known = _recorded(made, declared, rounds)
    noisy = any(vector.kind == "noise" for vector in declared.vectors)
    done = _Substitution(declared, known, _Gradients(made, guess=noisy), rounds)
    eps = torch.finfo(made.trace.dtype).eps
    drawn: dict[int, list[int]] = {}  # node -> its noise vectors
    for place, vector in enumerate(declared.vectors):
        if vector.kind == "noise" and vector.owner is not None and place in done.values:
            drawn.setdefault(vector.owner, []).append(place)
    largest = max((float(np.abs(value).max(initial=0.0)) for value in known.values()), default=0.0)
    noise = [
        _noise(declared, node, places, done, eps * largest)
        for node, places in sorted(drawn.items())
    ]
    return replace(_missed(declared, done, eps), noise=tuple(noise))


def _recorded(made: Recording, declared: Relations, rounds: int) -> dict[int, Floats]:
    """Return the messages and public vectors (1, c) of the recording, in double precision."""
    everything = Adversary(corrupt=frozenset(range(made.trace.graph.nodes)))
    read = recorded(everything.view(made.trace))
    found: dict[int, Floats] = {}
    for place, vector in enumerate(declared.vectors):
        if vector.round > rounds or vector.kind not in ("message", "public"):
            continue
        try:
            found[place] = read(vector)[None].double().numpy()
        except LeakauditError:  # the recording omits it: its channel is not observed
            continue
    return found


# --- gradients ------------------------------------------------------------------------------------


class _Gradients:
    """Evaluates gradients of nodes on the truth, clipped as the protocol declares.

    Args:
        made: the recording and its truth.
        guess: whether gradients of a guess are evaluated as well.
    """

    def __init__(self, made: Recording, *, guess: bool) -> None:
        self.made = made
        self.guess = guess
        self.left = SOME_GRADIENTS + GRADIENTS * len(made.trace)
        self.clip = made.trace.number("clip")
        self.batch = int(made.trace.number("batch"))
        # What the gradients of one node need.
        numbers = made.trace.layout.size + made.truth.x.numel() // made.trace.graph.nodes
        self.together = max(1, AT_ONCE // numbers)
        self._guesses: dict[int, Tensor] = {}

    def __call__(
        self, models: Mapping[int, Floats], owners: Mapping[int, int]
    ) -> dict[int, Floats]:
        """Return the values (k, c) of gradients that can be evaluated.

        Those of mini-batches, which are secret, cannot be, nor can those after too many.

        Args:
            models: gradient -> the model (1, c) or (k, c) at which it is evaluated.
            owners: gradient -> its node.
        """
        alike: dict[int, list[tuple[int, Tensor, Tensor]]] = {}  # number of records -> gradients
        for place in models:
            x, y = self.made.truth.of(owners[place])
            if not len(x) or 0 < self.batch < len(x) or not self.left:
                continue
            self.left -= 1
            alike.setdefault(len(x), []).append((place, x.double(), y))
        found: dict[int, Floats] = {}
        for group in alike.values():
            places = [place for place, _, _ in group]
            y = torch.stack([y for _, _, y in group])
            x = torch.stack([x for _, x, _ in group])
            rows = [self._evaluate(np.stack([models[place][0] for place in places]), x, y)]
            rows.append(np.zeros_like(rows[0]))
            if self.guess:
                guesses = torch.stack([self._guessed(owners[place]) for place in places])
                at = np.stack([models[place][-1] for place in places])
                rows.append(self._evaluate(at, guesses[:, None].expand_as(x), y))
            found |= dict(zip(places, np.stack(rows, axis=1), strict=True))
        return found

    def _evaluate(self, models: Floats, x: Tensor, y: Tensor) -> Floats:
        """Return gradients (n, c) at models (n, c) of records (n, b, ...) with labels (n, b)."""
        task = self.made.task
        thetas = torch.from_numpy(models)
        if not self.clip:
            return task.gradients(thetas, x, y).numpy()
        n, b = y.shape[:2]
        each = task.gradients(
            thetas.repeat_interleave(b, dim=0), x.flatten(0, 1)[:, None], y.flatten(0, 1)[:, None]
        )
        norms = each.norm(dim=1, keepdim=True)
        clipped = each * (self.clip / norms.clamp(min=self.clip))
        means: Floats = clipped.reshape(n, b, -1).mean(1).numpy()
        return means

    def _guessed(self, node: int) -> Tensor:
        """Return the mean of all other records, which replaces each record of a node."""
        if node not in self._guesses:
            self._guesses[node] = self.made.truth.blind_guess(node).double()
        return self._guesses[node]


# --- one way through the relations ----------------------------------------------------------------


class _Substitution:
    """Solves the relations one after another.

    A value has a row for each kind of gradient: those of the truth, none, and, if the protocol adds
    noise, those of a guess. It has a single row if it depends on no gradient.

    Args:
        declared: the relations.
        known: vector -> its recorded value (1, c).
        gradients: evaluates gradients at models.
        rounds: the last round that is visited.

    Attributes:
        values: vector -> its value (1, c) or (k, c).
        over: relation without unknown vectors -> its error (1, c) or (k, c).
    """

    def __init__(
        self,
        declared: Relations,
        known: Mapping[int, Floats],
        gradients: _Gradients,
        rounds: int,
    ) -> None:
        self.values: dict[int, Floats] = {}
        self.over: dict[int, Floats] = {}
        self._declared = declared
        self._gradients = gradients
        self._missing: dict[int, int] = {}  # gradient -> unknown vectors of its model
        self._waiting: dict[int, list[int]] = {}  # vector -> gradients at models that contain it
        self._ready: dict[int, None] = {}  # gradients at known models, in order
        for place, point in declared.points.items():
            if declared.vectors[place].round <= rounds:
                self._missing[place] = len(point.at.terms)
                for model in point.at.terms:
                    self._waiting.setdefault(model, []).append(place)
        with np.errstate(all="ignore"):  # what overflows is no agreement
            for place, value in known.items():
                self._set(place, value)
            for place, relation in enumerate(declared.relations):
                if relation.round <= rounds:
                    for term in relation.terms:
                        if term in self._ready:
                            self._evaluate(term)
                    self._use(place, relation.terms)

    def _set(self, place: int, value: Floats) -> None:
        """Note the value of a vector, and the gradients whose models are known with it."""
        self.values[place] = value
        for gradient in self._waiting.pop(place, ()):
            self._missing[gradient] -= 1
            if not self._missing[gradient]:
                self._ready[gradient] = None

    def _evaluate(self, first: int) -> None:
        """Evaluate a gradient, and others that are ready as well."""
        others = (place for place in self._ready if place != first)
        places = [first, *itertools.islice(others, self._gradients.together - 1)]
        models: dict[int, Floats] = {}
        owners: dict[int, int] = {}
        for place in places:
            del self._ready[place]
            if place not in self.values:
                models[place] = self._sum(self._declared.points[place].at.terms)
                owners[place] = self._declared.vectors[place].owner or 0
        for place, value in self._gradients(models, owners).items():
            self._set(place, value)

    def _use(self, at: int, terms: Mapping[int, Fraction]) -> None:
        """Solve a relation for its only unknown vector, or store its error if there is none."""
        unknown = [place for place in terms if place not in self.values]
        if len(unknown) > 1 or len(unknown) == len(terms):
            return
        if not unknown:
            self.over[at] = self._sum(terms)
            return
        known = {place: factor for place, factor in terms.items() if place in self.values}
        self._set(unknown[0], self._sum(known) / -float(terms[unknown[0]]))

    def _sum(self, terms: Mapping[int, Fraction]) -> Floats:
        total: Floats = np.zeros((1, 1))
        for place, factor in terms.items():
            total = total + float(factor) * self.values[place]
        return total


def _affordable(declared: Relations, made: Recording) -> int:
    """Return the last round up to which all values fit into `NUMBERS`, at least 1."""
    first, stop = made.trace.columns
    last = max((vector.round for vector in declared.vectors), default=0)
    numbers = max(1, KINDS * len(declared.vectors) * (stop - first))
    return max(1, min(last, int(last * NUMBERS / numbers)))


def norm(vector: Floats) -> float:
    """Return the Euclidean norm of a vector.

    Args:
        vector: (c,) its coordinates.
    """
    return math.sqrt(float(vector @ vector))


def _missed(declared: Relations, done: _Substitution, eps: float) -> Left:
    """Return the errors of relations without unknown vectors, and no noise."""
    missed = 0.0
    size = 0.0
    broken = ""
    worst = 0.0
    node: int | None = None
    norms = {place: norm(value[0]) for place, value in done.values.items()}
    given = {
        place: norm(value[1] - value[0]) for place, value in done.values.items() if len(value) > 1
    }
    for at, total in done.over.items():
        terms = {place: abs(float(f)) for place, f in declared.relations[at].terms.items()}
        largest = max(factor * norms[place] for place, factor in terms.items())
        channel = max(factor * declared.vectors[place].std for place, factor in terms.items())
        allowed = ROUNDED * eps * largest + CHANNEL * channel * math.sqrt(total.shape[1])
        off = max(0.0, norm(total[0]) - allowed)
        together = norm(total[1] - total[0]) if len(total) > 1 else 0.0
        if off > 0 and together == 0.0:
            broken = broken or declared.relations[at].text
        missed = math.hypot(missed, off)
        size = math.hypot(size, together)
        # The contributions to the terms may cancel, but not their errors.
        most = max((terms[place] * given[place] for place in terms if place in given), default=0.0)
        if most and off / most > worst:
            worst = off / most
            node = _sender(declared, terms)
    return Left((), missed, size, broken, worst, node)


def _sender(declared: Relations, terms: Iterable[int]) -> int | None:
    """Return the owner of the last message among some vectors."""
    sent = [declared.vectors[place] for place in terms if declared.vectors[place].kind == "message"]
    return max(sent, key=lambda vector: vector.round).owner if sent else None


def _noise(
    declared: Relations, node: int, places: list[int], done: _Substitution, rounded: float
) -> Noise:
    """Return the draws of one node."""
    vectors = [declared.vectors[place] for place in places]
    std = np.array([vector.std for vector in vectors])[:, None]
    shape = (KINDS, done.values[places[0]].shape[1])
    drawn = np.stack([np.broadcast_to(done.values[place], shape) for place in places])
    rest, plain, guessed = np.moveaxis(drawn, 1, 0) / std
    return Noise(
        node=node,
        labels=tuple(vector.label for vector in vectors),
        rounds=tuple(vector.round for vector in vectors),
        rest=rest,
        signal=plain - rest,
        better=guessed - rest,
        gaussian=all(vector.law == "gaussian" for vector in vectors),
        std=std[:, 0],
        rounded=rounded,
    )
