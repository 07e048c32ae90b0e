"""Substitution of the gradients of a recording's own truth into the declared relations."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakaudit.core import mapping
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace, Truth
from leakaudit.protocols.declared import constant, everything
from leakaudit.tasks import clipping
from leakaudit.tasks.task import Task
from leakaudit.theory.relations import Relations
from leakaudit.theory.relations.estimate import recorded
from leakaudit.theory.relations.expression import floats
from leakaudit.views.conformance.residual import Residual

Floats = NDArray[np.float64]

# The remainder must be the declared noise.
#
# The declaration relates messages, private states, gradients and noise. Messages are recorded, and
# the truth yields the gradient at every known model. The relations are therefore solved one after
# another, as by hand: a relation with one unknown vector determines that vector, and a relation
# without unknown vectors must hold. The noise of a message results as the difference from what
# would have been sent without noise.
#
# The same is done without gradients. The difference is the part of a value that the gradients
# explain, which is the scale for deviations: a message may agree with its declaration to four
# digits and contain nothing about the data. It is also done with the gradients of a blind guess
# (the mean of all other records): the truth must explain the messages better than such a guess.

# Most numbers of all vectors together that are computed. Of a larger run, only the first rounds are
# examined. A choice: a tenth of a second.
NUMBERS = 1 << 25
# Most numbers of noise that are kept in memory: 256 MiB of float64.
OF_NOISE = 1 << 25
# Largest memory of the values that are needed at once: 4 GiB of float64. If the first round needs
# more, as with a hundred million parameters, nothing is examined. A choice.
LARGEST = 1 << 29
FLOAT = 8  # bytes
# Differences up to this share of the gradients are ignored. A gradient that another framework
# computed in float32 agrees to about 1e-5; a wrong constant changes messages by its relative error,
# such as a tenth if a step of 0.11 is declared as 0.1. Half of that is far from both.
CLOSE = 0.05
# Most gradients that are computed from the truth: a number in any case, and more for each message.
# The others count as unknown, so that constants of a file, such as a number of local steps, do not
# decide how long a recording is examined. Choices: a second or two for a small model.
SOME_GRADIENTS = 1_000
GRADIENTS = 20
# Most numbers of gradients and records that are evaluated together: 8 MiB. A choice.
AT_ONCE = 1 << 20
# Most kinds of gradients: those of the truth, none, those of a guess, and, if a clip is declared,
# those of the truth with a clip that is `LONGER` times as large. Without noise, the third kind are
# those of the truth with their models added, to which an l2 term is proportional, and the last one.
KINDS = 4
# A choice. Gradients between the two clips show it if they are not clipped, and those beyond the
# larger one show a wrong clip in proportion to its excess.
LONGER = 2.0
# Allowed error of a relation, in rounding errors of its largest term, however many errors its terms
# have accumulated: the same allowance as in `leakaudit.protocols.declared`.
ROUNDED = 2000.0
# Allowed error in units of the accumulated rounding errors of all terms. The bundled victims reach
# 1.4; the rest is a margin for devices that add in a different order.
MARGIN = 100.0
# The same in half precision, where storing the messages makes the largest errors; bundled victims
# reach 0.4.
SHORT_MARGIN = 4.0
SHORT = 1e-4  # precision from which on it counts as half precision
# Rounding a model to half precision may switch a ReLU, which changes gradients of a small network
# by half. Gradients are therefore also evaluated at two models that differ by more than rounding,
# in opposite directions because a switch has one. A choice: in rounding errors of the format, which
# are four times the usual ones.
FARTHER = 2.0
# Differences that are ignored in half precision, because of switches that this does not reveal.
SHORT_CLOSE = 0.5
# Allowed error due to a channel's declared error, in standard deviations, in every number at once.
# A single number exceeds 4 with a probability of 6e-5, the root mean square of several far less
# often.
CHANNEL = 4.0


@dataclass(frozen=True)
class NormalisedNoise:
    """The draws of one node's noise, each divided by its declared standard deviation."""

    node: int  # the node that adds the noise
    labels: tuple[str, ...]  # names of the draws
    rounds: tuple[int, ...]  # (k,) rounds of the draws
    rest: Floats  # (k, c) the draws, if the gradients are those of the truth
    signal: Floats  # (k, c) the contribution of the gradients, in the same units
    # (k, c) their contribution beyond that of the gradients of a guess, in the same units
    better: Floats
    gaussian: bool  # whether all are declared as normal
    std: Floats  # (k,) declared standard deviations
    # (k,) bounds of the rounding errors of the draws, as a root mean square, which grow with the
    # messages of a run that diverges
    rounded: Floats
    margin: float = MARGIN  # how many times as large errors are allowed to be
    # (k, c) by how much a clip that is `LONGER` times as large would increase their contribution,
    # in the same units; None without a declared clip
    longer: Floats | None = None


@dataclass(frozen=True)
class RecordingRemainder:
    """The remainder of a recording."""

    noise: tuple[NormalisedNoise, ...]  # one entry for each node whose noise is determined
    # root of the sum of squared errors of relations without unknown vectors, beyond rounding
    missed: float = 0.0
    size: float = 0.0  # the same for the contribution of the gradients to these relations
    # the first of these relations that fails although it contains no gradient, as text; "" if there
    # is none
    broken: str = ""
    # largest error of one of these relations, relative to the contribution of the gradients to its
    # terms
    worst: float = 0.0
    node: int | None = None  # the node whose message this relation contains, or None
    rounds: int = 0  # number of rounds that were examined
    # what `missed` would be if the messages contained no gradients. It is 0 if rounding hides them.
    absent: float = 0.0
    close: float = CLOSE  # share of the gradients up to which differences are ignored
    # what remains and what explains it; None with noise or in half precision
    residual: Residual | None = None

    @property
    def compared(self) -> bool:
        """Whether messages without the gradients of the truth would have been noticed."""
        return bool(self.noise) or self.absent > self.close * self.size

    @property
    def obstacle(self) -> str:
        """Why they would not have been noticed, in words; empty if they would."""
        if self.compared:
            return ""
        if self.size:
            return "the rounding of the messages hides the gradients"
        return "the truth and the messages do not determine the private states"


def left(
    trace: Trace,
    truth: Truth,
    task: Task,
    declared: Relations,
    numbers: int = NUMBERS,
    memory: int | None = None,
) -> RecordingRemainder | None:
    """Substitute the gradients of the truth into the relations of a recording.

    Args:
        numbers: most numbers of all vectors together that are computed; of a larger run, only the
            first rounds are examined, at least one.

    Returns:
        The remainder; None if the values of one round are too large to be compared.
    """
    noisy = any(vector.kind == "noise" for vector in declared.vectors)
    gradients = _Gradients(trace, truth, task, guess=noisy)
    kinds = gradients.kinds
    first, stop = trace.columns
    each = stop - first
    rounds = affordable(declared, kinds * each, numbers)
    known = _recorded(trace, declared, rounds)
    most = LARGEST if memory is None else min(LARGEST, memory // FLOAT)
    all_at_once = kinds * len(declared.vectors) * each  # a small run need not be counted
    if all_at_once > most and _most_at_once(declared, known, rounds, kinds) * each > most:
        return None
    eps = torch.finfo(trace.dtype).eps
    done = _Substitution(declared, known, gradients, rounds, eps)
    drawn: dict[int, list[int]] = {}  # node -> its noise vectors
    for place, vector in enumerate(declared.vectors):
        if vector.kind == "noise" and vector.owner is not None and place in done.values:
            drawn.setdefault(vector.owner, []).append(place)
    noise = [_noise(declared, node, places, done, eps) for node, places in sorted(drawn.items())]
    residual = None
    if not noisy and eps <= SHORT:
        residual = done.residual
    missed = _missed(declared, done, eps)
    return replace(missed, noise=tuple(noise), rounds=rounds, residual=residual)


def _recorded(trace: Trace, declared: Relations, rounds: int) -> dict[int, Tensor]:
    """Return the messages and public vectors (c,) of the recording, as they are stored."""
    read = recorded(everything(trace))
    found: dict[int, Tensor] = {}
    for place, vector in enumerate(declared.vectors):
        if vector.round > rounds or vector.kind not in ("message", "public"):
            continue
        try:
            found[place] = read(vector)
        except LeakauditError:  # the recording omits it: its channel is not observed
            continue
    return found


def _most_at_once(declared: Relations, known: Mapping[int, Tensor], rounds: int, kinds: int) -> int:
    """Return how many rows of values exist at once, from a substitution of single numbers."""
    numbers = dict.fromkeys(known, torch.zeros(1))
    kept = _Substitution(declared, numbers, partial(_no_gradients, kinds), rounds).most
    return kept + 2 * kinds + 2  # a sum and its next term, or a gradient while it is evaluated


# Returns gradients and their errors: see `_Gradients`.
_Evaluates = Callable[
    [Mapping[int, Floats], Mapping[int, int], Mapping[int, float]],
    dict[int, tuple[Floats, float]],
]

# --- gradients ------------------------------------------------------------------------------------


class _Gradients:
    """Evaluates gradients of nodes on the truth, clipped as the protocol declares."""

    def __init__(self, trace: Trace, truth: Truth, task: Task, *, guess: bool) -> None:
        self.truth = truth
        self.task = task
        self.guess = guess
        self.left = SOME_GRADIENTS + GRADIENTS * len(trace)
        self.clip = constant(trace, "clip")
        self.kinds = KINDS if guess and self.clip > 0 else KINDS - 1
        self.batch = int(constant(trace, "batch"))
        # What the gradients of one node need.
        numbers = trace.layout.size + truth.x.numel() // trace.graph.nodes
        self.together = max(1, AT_ONCE // numbers)
        self._guesses: dict[int, Tensor] = {}
        self._random = np.random.default_rng(0)

    def __call__(
        self,
        models: Mapping[int, Floats],
        owners: Mapping[int, int],
        errors: Mapping[int, float],
    ) -> dict[int, tuple[Floats, float]]:
        """Return the values (k, c) of gradients that can be evaluated, and their errors.

        Those of mini-batches, which are secret, cannot be, nor can those after too many. An error
        is the norm by which a gradient changes if random numbers are added to its model, or
        subtracted.

        Args:
            models: gradient -> the model (1, c) or (k, c) at which it is evaluated.
        """
        alike: dict[int, list[tuple[int, Tensor, Tensor]]] = {}  # number of records -> gradients
        for place in models:
            x, y = self.truth.of(owners[place])
            if not len(x) or 0 < self.batch < len(x) or not self.left:
                continue
            self.left -= 1
            alike.setdefault(len(x), []).append((place, x.double(), y))
        found: dict[int, tuple[Floats, float]] = {}
        for group in alike.values():
            places = [place for place, _, _ in group]
            y = torch.stack([y for _, _, y in group])
            x = torch.stack([x for _, x, _ in group])
            rows = np.zeros((len(places), self.kinds, models[places[0]].shape[1]))
            at = np.stack([models[place][0] for place in places])
            rows[:, 0] = self._evaluate(at, x, y, self.clip)
            if self.guess:
                guesses = torch.stack([self._guessed(owners[place]) for place in places])
                others = [models[place][min(2, len(models[place]) - 1)] for place in places]
                repeated = guesses[:, None].expand_as(x)
                rows[:, 2] = self._evaluate(np.stack(others), repeated, y, self.clip)
            else:
                rows[:, 2] = rows[:, 0] + at
            if self.kinds == KINDS:
                last = np.stack([models[place][-1] for place in places])
                rows[:, 3] = self._evaluate(last, x, y, LONGER * self.clip)
            changes = [0.0] * len(places)
            if errors:
                each = np.array([[errors[place] / math.sqrt(at.shape[1])] for place in places])
                away = each * self._random.standard_normal(at.shape)
                for moved in (at + away, at - away):
                    apart = self._evaluate(moved, x, y, self.clip) - rows[:, 0]
                    changes = [max(norm(row), old) for row, old in zip(apart, changes, strict=True)]
            found |= dict(zip(places, zip(rows, changes, strict=True), strict=True))
        return found

    def _evaluate(self, models: Floats, x: Tensor, y: Tensor, clip: float) -> Floats:
        """Return gradients (n, c) at models (n, c) of records (n, b, ...) with labels (n, b)."""
        thetas = torch.from_numpy(models)
        found: Floats = clipping.gradients(self.task, thetas, x, y, clip).numpy()
        return found

    def _guessed(self, node: int) -> Tensor:
        if node not in self._guesses:
            self._guesses[node] = self.truth.blind_guess(node).double()
        return self._guesses[node]


def _no_gradients(
    kinds: int,
    models: Mapping[int, Floats],
    owners: Mapping[int, int],
    errors: Mapping[int, float],
) -> dict[int, tuple[Floats, float]]:
    return {place: (np.zeros((kinds, 1)), 0.0) for place in models}


# --- one way through the relations ----------------------------------------------------------------


@dataclass(frozen=True)
class _Error:
    """The error of a relation without unknown vectors."""

    size: float  # its norm with the gradients of the truth
    given: float | None  # norm of what the gradients contribute to it; None if it contains none
    columns: int  # number of coordinates
    rounded: float  # sum of the rounding errors of its terms


class _Substitution:
    """Solves the relations one after another, from recorded values (c,) of vectors."""

    # A value has a row for each kind of gradient (`KINDS`), or a single row if it depends on no
    # gradient. Values are kept until the last relation or model that contains them, except noise,
    # which is the result.

    def __init__(
        self,
        declared: Relations,
        known: Mapping[int, Tensor],
        gradients: _Evaluates,
        rounds: int,
        eps: float = 0.0,
    ) -> None:
        self.values: dict[int, Floats] = {}  # vector -> its value (k, c), while it is kept
        # Vector whose value was found -> its norm with the gradients of the truth, and a bound of
        # that of its rounding error, relative to the precision of the number format. Values that
        # are computed from others accumulate their errors.
        self.norms: dict[int, float] = {}
        self.rounded: dict[int, float] = {}
        self.given: dict[int, float] = {}  # vector -> norm of what gradients contribute to it
        self.over: dict[int, _Error] = {}  # relation without unknown vectors -> its error
        self.most = 0  # largest number of rows that were kept at once
        self.residual = Residual.nothing()  # of relations without unknown vectors and noise
        self._rows = 0
        self._eps = eps
        self._declared = declared
        self._recorded = known
        self._gradients = gradients
        self._together = gradients.together if isinstance(gradients, _Gradients) else 1
        self._uses = Counter[int]()  # vector -> relations and models that are still to be visited
        self._missing: dict[int, int] = {}  # gradient -> unknown vectors of its model
        self._waiting: dict[int, list[int]] = {}  # vector -> gradients at models that contain it
        self._ready: dict[int, None] = {}  # gradients at known models, in order
        visited = [
            (r, one.terms) for r, one in enumerate(declared.relations) if one.round <= rounds
        ]
        for _, terms in visited:
            self._uses.update(terms.keys())
        for place, point in declared.points.items():
            if declared.vectors[place].round <= rounds:
                self._uses.update(point.terms.keys())
                self._missing[place] = len(point.terms)
                for model in point.terms:
                    self._waiting.setdefault(model, []).append(place)
        with np.errstate(all="ignore"):  # what overflows is no agreement
            for place in known:
                self._announce(place)
            for r, terms in visited:
                for term in terms:
                    if term in self._ready:
                        self._evaluate(term)
                self._use(r, terms)
                self._release(terms)

    def _is_known(self, place: int) -> bool:
        return place in self.norms or place in self._recorded

    def _announce(self, place: int) -> None:
        """Note the gradients whose models are known with a vector."""
        for gradient in self._waiting.pop(place, ()):
            self._missing[gradient] -= 1
            if not self._missing[gradient]:
                self._ready[gradient] = None

    def _set(self, place: int, value: Floats, accumulated: float = 0.0) -> None:
        """Keep the value of a vector, which was computed from values with these rounding errors."""
        self.values[place] = value
        self.norms[place] = norm(value[0])
        self.rounded[place] = self.norms[place] + accumulated
        if len(value) > 1:
            self.given[place] = norm(value[1] - value[0])
        self._rows += len(value)
        self.most = max(self.most, self._rows)

    def _value(self, place: int) -> Floats:
        """Return the value of a known vector, and keep it."""
        if place not in self.values:
            stored = self._recorded[place]
            value = stored[None].double().numpy()
            self._set(place, value)
            if stored.dtype != torch.float64:  # otherwise the values are those of the file
                mapping.release(stored)
        return self.values[place]

    def _release(self, places: Iterable[int]) -> None:
        for place in places:
            self._uses[place] -= 1
            is_noise = self._declared.vectors[place].kind == "noise"
            if not self._uses[place] and not is_noise and place in self.values:
                self._rows -= len(self.values.pop(place))

    def _evaluate(self, first: int) -> None:
        others = (place for place in self._ready if place != first)
        places = [first, *itertools.islice(others, self._together - 1)]
        models: dict[int, Floats] = {}
        owners: dict[int, int] = {}
        errors: dict[int, float] = {}
        for place in places:
            del self._ready[place]
            terms = floats(self._declared.points[place].terms)
            if place not in self.norms:
                models[place] = self._sum(terms)
                owners[place] = self._declared.vectors[place].owner or 0
                if self._eps > SHORT:
                    errors[place] = FARTHER * self._eps * self._rounding(terms)
            self._release(terms)
        for place, (value, error) in self._gradients(models, owners, errors).items():
            self._set(place, value, error / self._eps if error else 0.0)
            self._announce(place)

    def _use(self, at: int, exact: Mapping[int, Fraction]) -> None:
        """Solve a relation for its only unknown vector, or store its error if there is none."""
        unknown = [place for place in exact if not self._is_known(place)]
        if len(unknown) > 1 or len(unknown) == len(exact):
            return
        terms = floats(exact)
        if not unknown:
            total = self._sum(terms)
            given = norm(total[1] - total[0]) if len(total) > 1 else None
            rounded = self._rounding(terms)
            self.over[at] = _Error(norm(total[0]), given, total.shape[1], rounded)
            if given and len(total) == KINDS - 1:
                rest, none, shifted = total
                self.residual.add(rest, rest - none, shifted - rest, self._eps * rounded)
            return
        scale = -terms.pop(unknown[0])
        self._set(unknown[0], self._sum(terms) / scale, self._rounding(terms) / abs(scale))
        self._announce(unknown[0])

    def _rounding(self, terms: Mapping[int, float]) -> float:
        return sum([abs(factor) * self.rounded[place] for place, factor in terms.items()])

    def _sum(self, terms: Mapping[int, float]) -> Floats:
        parts = (factor * self._value(place) for place, factor in terms.items())
        total = next(parts)
        for part in parts:
            if total.shape == part.shape:
                total += part
            else:
                total = total + part
        return total


def affordable(declared: Relations, each: int, numbers: int = NUMBERS) -> int:
    """Return the last round up to which values can be computed and noise kept, at least 1."""
    drawn = sum(vector.kind == "noise" for vector in declared.vectors)
    last = max((vector.round for vector in declared.vectors), default=0)
    computed = last * numbers // max(1, each * len(declared.vectors))
    kept = last * OF_NOISE // max(1, each * drawn)
    return max(1, min(last, computed, kept))


def norm(vector: Floats) -> float:
    """Return the Euclidean norm of a vector, infinity if a square overflows.

    Args:
        vector: (c,) its coordinates.
    """
    with np.errstate(over="ignore"):
        return math.sqrt(float(vector @ vector))


def _missed(declared: Relations, done: _Substitution, eps: float) -> RecordingRemainder:
    """Return the errors of relations without unknown vectors, and no noise."""
    missed = 0.0
    size = 0.0
    absent = 0.0
    broken = ""
    worst = 0.0
    node: int | None = None
    for at, error in done.over.items():
        terms = floats(declared.relations[at].terms)
        terms = {place: abs(factor) for place, factor in terms.items()}
        largest = max(factor * done.norms[place] for place, factor in terms.items())
        channel = max(factor * declared.vectors[place].std for place, factor in terms.items())
        allowed = eps * min(ROUNDED * largest, _margin(eps) * error.rounded)
        allowed += CHANNEL * channel * math.sqrt(error.columns)
        off = max(0.0, error.size - allowed)
        together = error.given or 0.0
        absent = math.hypot(absent, max(0.0, together - allowed))
        if off > 0 and together == 0.0:
            broken = broken or declared.relations[at].text
        missed = math.hypot(missed, off)
        size = math.hypot(size, together)
        # The contributions to the terms may cancel, but not their errors.
        given = [terms[place] * done.given[place] for place in terms if place in done.given]
        most = max(given, default=0.0)
        if most and off / most > worst:
            worst = off / most
            node = _sender(declared, terms)
    close = SHORT_CLOSE if eps > SHORT else CLOSE
    return RecordingRemainder((), missed, size, broken, worst, node, absent=absent, close=close)


def _margin(eps: float) -> float:
    """Return how many times the accumulated rounding errors a difference may be."""
    return SHORT_MARGIN if eps > SHORT else MARGIN


def _sender(declared: Relations, terms: Iterable[int]) -> int | None:
    sent = [declared.vectors[place] for place in terms if declared.vectors[place].kind == "message"]
    return max(sent, key=lambda vector: vector.round).owner if sent else None


def _noise(
    declared: Relations, node: int, places: list[int], done: _Substitution, eps: float
) -> NormalisedNoise:
    vectors = [declared.vectors[place] for place in places]
    std = np.array([vector.std for vector in vectors])[:, None]
    values = [done.values[place] for place in places]
    shape = (max(3, *map(len, values)), values[0].shape[1])
    drawn = np.stack([np.broadcast_to(value, shape) for value in values])
    rest, plain, guessed, *longer = np.moveaxis(drawn, 1, 0) / std
    return NormalisedNoise(
        node=node,
        labels=tuple(vector.label for vector in vectors),
        rounds=tuple(vector.round for vector in vectors),
        rest=rest,
        signal=plain - rest,
        better=guessed - rest,
        gaussian=all(vector.law == "gaussian" for vector in vectors),
        std=std[:, 0],
        rounded=eps * np.array([done.rounded[place] for place in places]) / math.sqrt(shape[1]),
        margin=_margin(eps),
        longer=rest - longer[0] if longer else None,
    )
