"""Check the equations of a protocol file on the recorded messages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from leakaudit._util.once import once
from leakaudit._util.plain import Figures
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace
from leakaudit.core.verdict import Verdict
from leakaudit.protocols.declared import everything, largest, protocol_of
from leakaudit.protocols.equations.declare import FileRelations
from leakaudit.protocols.equations.syntax import EquationLine, IndexedVector, Repeat, shown
from leakaudit.protocols.equations.written import TextProtocol
from leakaudit.tasks import clipping
from leakaudit.tasks.task import Task
from leakaudit.theory.relations import Relations
from leakaudit.theory.relations.checks import CHANNEL
from leakaudit.theory.relations.declare import at_most
from leakaudit.theory.relations.estimate import recorded
from leakaudit.theory.relations.expression import floats
from leakaudit.views import messages
from leakaudit.views.conformance import reach
from leakaudit.views.conformance.case import Case, obstacle_to_gradients
from leakaudit.views.conformance.coordinates import reduced
from leakaudit.views.conformance.pitfall import Pitfall
from leakaudit.views.conformance.samples import state
from leakaudit.views.conformance.substitute import SHORT, SHORT_CLOSE, Floats, norm
from leakaudit.views.deviation import Deviation
from leakaudit.views.messages import LARGE

# Every relation with a single unknown vector defines it, and every relation without one is a test.
# Without the truth, gradients are unknown: an equation whose gradient occurs nowhere else fits any
# messages, which is reported as not testable, never as correct.

WIDTH = 4096  # coordinates that are tested if no gradient is computed: a choice
FEWEST = 16  # coordinates below which a test of relations is left out: a choice
NUMBERS = 1 << 26  # numbers in memory at once: 512 MiB
GRADIENTS = 2_000  # of the rounds that are tested with gradients; the first rounds always are
FEWER = 1 << 22  # the same for a large recording, of which attacks use little memory as well
RUN = 64  # neighbouring columns of a large recording that are tested together: a choice
# Rounding error of a recorded vector, in units of its number format and relative to its norm. The
# bundled victims reach 6; the rest is a margin for devices that add in a different order.
ROUNDING = 100.0
# The same in half precision, where storing the messages makes the largest errors: at most half of
# one, and .3 on average.
SHORT_ROUNDING = 4.0
# Relative error of a program's gradients: 2^-8 is the precision of bfloat16, in which programs with
# mixed precision compute them. A wrong constant of a gradient is noticed beyond this.
GRADIENT = 5e-3
STRONG = 3.0  # a term is tested if it exceeds the errors of all terms together by this factor
NUMBER = 21  # of the pitfall
NAMED = 3  # unknown vectors that a sentence names
DIGITS = 6  # most digits of a proposed constant; rounding errors determine about as many
TRIES = 6  # steps of the secant method for a constant; a linear one needs two


@dataclass(frozen=True)
class _ContradictedEquation:
    """An equation that the messages contradict."""

    lines: tuple[EquationLine, ...]  # the equations, one of which is wrong; usually a single one
    round: int  # the first round in which it fails
    label: str  # the vector that it defines there
    residual: float  # norm of the difference of both sides, relative to their largest term
    allowed: float  # the residual that rounding and imprecise gradients can cause
    computed: bool  # whether gradients were computed from the records
    hint: str = ""  # a value of a constant with which all equations hold; empty if there is none


@dataclass(frozen=True)
class _EquationFindings:
    """What the messages say about the equations of a file."""

    failure: _ContradictedEquation | None  # the first equation that fails; None if none does
    untested: tuple[tuple[EquationLine, str], ...]  # equations that fit any messages, and why
    rounds: int  # number of rounds that were examined
    tested: bool


def check(case: Case) -> Iterator[Pitfall]:
    """Yield the first equation of a protocol file that the messages contradict.

    A file without the gradients of a node leaves open what the messages reveal about it.
    """
    if case.unsaid:
        yield Pitfall(NUMBER, Verdict.INCONCLUSIVE, case.unsaid)
    found = examine(case)
    if found is None or found.failure is None:
        return
    failure = found.failure
    said = " or ".join(f"'{shown(one.text)}' (line {one.number})" for one in failure.lines)
    which = "the equation"
    if len(failure.lines) > 1:
        which = "one of the equations"
    says = (
        f"{which} {said} fails in round {failure.round} ({failure.label}): its two sides differ by "
        f"{failure.residual:.2g} of their largest term, and numerical errors explain "
        f"{failure.allowed:.1g}"
    )
    if failure.computed:
        says += ", if gradients are those of all records of a node"
        clip = case.number("clip")
        if clip:
            says += f", each clipped to norm {clip:g}"
    if failure.hint:
        says += f"; {failure.hint}"
    figures: Figures = {
        "lines": [one.number for one in failure.lines],
        "equations": [one.text for one in failure.lines],
        "round": failure.round,
        "residual": failure.residual,
        "allowed": failure.allowed,
    }
    yield Pitfall(NUMBER, Verdict.REFUTED, says, figures)


@once
def examine(case: Case) -> _EquationFindings | None:
    """Test the equations of a protocol file.

    Returns:
        The results; None if the protocol is not from a file, or cannot be declared on this graph.
    """
    if case.protocol is None or not isinstance(case.protocol.victim, TextProtocol):
        return None
    victim = case.protocol.victim
    task = None
    if not obstacle_to_gradients(case.trace, case.truth):
        task = Task.build(case.trace.task)
    try:
        rounds = reach.last(case.trace)
        with_task = rounds
        if task is not None:
            with_task = _rounds_with_gradients(victim, case.trace, rounds)
        if not with_task:
            task = None
            with_task = rounds
        tests = _tests(case, _declared(victim, case.trace, with_task), task)
        failure = tests.failure
        hint = ""
        if failure is not None:
            hint = _hint(case, tests, with_task)
        elif with_task < rounds:
            failure = _tests(case, _declared(victim, case.trace, rounds), None).failure
    except LeakauditError:
        return None
    if failure is not None:
        failure = replace(failure, hint=hint)
    return _EquationFindings(failure, tuple(tests.untested()), rounds, bool(tests.misses))


def _tests(case: Case, declared: FileRelations, task: Task | None) -> _Tests:
    """Test the equations of a file; with a task, gradients are computed."""
    most = max(FEWEST, _numbers(case.trace) // max(1, len(declared.relations.vectors)))
    known = _known(case, declared, whole=task is not None, most=most)
    return _Tests(case, declared, known, task)


def _rounds_with_gradients(victim: TextProtocol, trace: Trace, rounds: int) -> int:
    first = min(rounds, reach.ROUNDS)
    relations = _declared(victim, trace, first).relations
    numbers = len(relations.vectors) * trace.layout.size
    if numbers > NUMBERS:
        return 0
    affordable = first * min(NUMBERS // max(1, numbers), GRADIENTS // max(1, len(relations.points)))
    return max(first, min(rounds, affordable))


def consistency(case: Case) -> tuple[int, list[Deviation]]:
    """Test the relations between messages, whatever the gradients are.

    Returns:
        The number of rounds in which they were tested, and the first one that does not hold.
    """
    if case.protocol is None:
        return 0, []
    try:
        relations = case.compared_relations
    except LeakauditError:
        return 0, []
    # With many vectors, fewer coordinates are tested.
    most = _numbers(case.trace) // max(1, len(relations.vectors))
    rounds = relations.round
    if most < FEWEST or not rounds:
        return 0, []
    for about, read, length in _parts(case.trace, rounds, most):
        failure = _failure(case, read, relations, most, length)
        if failure is None:
            continue
        # Relations that are copies for later rounds are not written as the protocol writes them.
        declared = protocol_of(case.trace, min(failure.round + 1, rounds)).whole
        if declared is not relations:
            failure = _failure(case, read, declared, most, length) or failure
        says = (
            f"{failure.lines[0].text} does not hold in round {failure.round}: its two sides differ "
            f"by {failure.residual:.2g} of their largest term, and rounding explains "
            f"{failure.allowed:.1g}, whatever the gradients are"
        )
        return rounds, [Deviation(about, says)]
    return rounds, []


def _parts(trace: Trace, rounds: int, most: int) -> Iterator[tuple[str, Trace, int | None]]:
    """Yield what relations between messages are tested on, as recordings that follow them.

    Yields:
        The subject of a deviation: a sample of the recorded columns, sums of all of them, or the
        sketches of the messages; the recording; and the length of the vectors of which it contains
        sums, None if it contains none.
    """
    width = sum(stop - start for start, stop in trace.spans)
    are_all = width <= min(most, WIDTH) and len(trace.spans) == 1
    if are_all or trace.payload_bytes > LARGE:
        yield "messages", trace, None
    else:
        sample, sums = reduced(trace, rounds, min(most, WIDTH))
        yield "messages", sample, None
        yield "columns", sums, width
    if trace.sketched is not None:
        yield "sketch", trace.sketched, trace.layout.size


def _numbers(trace: Trace) -> int:
    """Return how many numbers of all vectors together are in memory at once."""
    if trace.payload_bytes > LARGE:
        return FEWER
    return NUMBERS


def _failure(
    case: Case, read: Trace, relations: Relations, most: int, length: int | None
) -> _ContradictedEquation | None:
    """Return the first relation that the messages of `read` contradict.

    Args:
        length: Length of the vectors of which `read` contains sums; None if it contains none.
    """
    # A relation is written only if it fails: the text of all of them takes longer than the tests.
    lines = [EquationLine(k, "") for k in range(len(relations.relations))]
    declared = FileRelations(relations, lines, [None] * len(relations.vectors))
    known = _known(Case(read), declared, whole=False, most=most)
    failure = _Tests(case, declared, known, None, length).failure
    if failure is None:
        return None
    # The other ones, of earlier rounds, define private vectors in the last one.
    number = failure.lines[-1].number
    return replace(failure, lines=(EquationLine(number, relations.relations[number].text),))


def not_testable(case: Case) -> list[str]:
    """Return which equations of a protocol file the recording cannot test."""
    if case.protocol is None or not isinstance(case.protocol.victim, TextProtocol):
        return []
    try:
        declared = _declared(case.protocol.victim, case.trace, reach.last(case.trace))
    except LeakauditError as error:
        return [f"the equations of the protocol file: {error}"]
    said = list(_undeclared(case, declared))
    found = examine(case)
    if found is not None:
        for line, why in found.untested:
            said.append(f"equation '{shown(line.text)}' (line {line.number}): {why}")
    return said


def _declared(victim: TextProtocol, trace: Trace, rounds: int) -> FileRelations:
    with at_most(largest(trace)):
        return victim.declared(trace.graph, rounds)


def _undeclared(case: Case, declared: FileRelations) -> Iterator[str]:
    seen: set[str] = set()
    sent = itertools.chain.from_iterable(map(messages.keys, case.trace.messages))
    for key in messages.undeclared(sent, declared.relations.vectors):
        if key.round <= declared.relations.round and key.kind not in seen:
            seen.add(key.kind)
            yield (
                f"messages of kind {key.kind!r}: the protocol file does not send the one from "
                f"{key.src} to {key.dst} in round {key.round}"
            )


def _known(
    case: Case, declared: FileRelations, whole: bool, most: int = WIDTH
) -> dict[int, Floats]:
    """Return the recorded vectors by their place: messages, public vectors, and kept states."""
    once = _assigned_once(case)
    width = case.trace.columns[1] - case.trace.columns[0]
    chosen: Tensor | slice = slice(None)
    most = min(most, WIDTH)
    if not whole and width > most:
        chosen = torch.linspace(0, width - 1, most).round().long()
    view = everything(case.trace)
    read = recorded(view)
    large = case.trace.payload_bytes > LARGE and not whole and width > most
    if large:
        # Neighbouring columns lie on one page of the file, so the others are not read from it.
        apart = torch.arange(most) // RUN * (width // -(-most // RUN))
        chosen = apart + torch.arange(most) % RUN
        chosen = chosen.clamp(max=width - 1)
        read = recorded(view, chosen)
    found: dict[int, Floats] = {}
    for k, vector in enumerate(declared.relations.vectors):
        value: Tensor | None = None
        if vector.kind in ("message", "public"):
            try:
                value = read(vector)
            except LeakauditError:
                value = None
        elif vector.name in once and case.trace.columns == (0, case.trace.layout.size):
            value = state(case, vector)
        if value is not None and large and vector.kind in ("message", "public"):
            found[k] = value.double().numpy()
        elif value is not None and len(value) == width:
            found[k] = value[chosen].double().numpy()
    return found


def _assigned_once(case: Case) -> set[str]:
    """Return the vectors whose recorded value of a round is the one that their equation defines.

    A vector that is assigned several times in a round is recorded once, at its end.
    """
    victim = case.protocol.victim if case.protocol else None
    if not isinstance(victim, TextProtocol):
        return set()
    counts: dict[str, int] = {}
    for block in (victim.definition.start, victim.definition.first, victim.definition.round):
        for statement in block:
            if isinstance(statement, Repeat):
                for inner in statement.body:
                    name = getattr(getattr(inner, "target", None), "name", "")
                    counts[name] = 2
            elif isinstance(statement.target, IndexedVector) and block is victim.definition.round:
                counts[statement.target.name] = counts.get(statement.target.name, 0) + 1
    return {name for name, count in counts.items() if count == 1}


class _Value(NamedTuple):
    """A vector in the evaluation of the relations."""

    value: Floats  # its coordinates (c,)
    size: float  # norm of the largest term from which it was computed
    error: float  # largest norm of its error
    computed: bool = False


class _Clipping(NamedTuple):
    """How the gradients of a node are clipped."""

    norm: float  # largest norm of the gradient of each record; 0 for none
    mean: float = 0.0  # largest norm of the mean over the records; 0 for none

    def gradient(self, task: Task, model: Tensor, x: Tensor, y: Tensor) -> Floats:
        """Return the gradient of some records (b, ...) at a model (d,)."""
        rows = clipping.gradients(task, model[None], x[None], y[None], self.norm)
        found: Floats = rows[0].numpy()
        if self.mean:
            found *= self.mean / max(norm(found), self.mean)
        return found


class _Source(NamedTuple):
    """How a vector was computed."""

    line: EquationLine | None  # the equation; None for a gradient at a model that no equation names
    places: tuple[int, ...]  # the vectors from which it was computed


class _Tests:
    """Evaluates the relations until nothing more follows from the recorded vectors.

    Args:
        task: Computes gradients; None if they are unknown.
        length: Length of the vectors whose sketches are tested; None if no sketch is tested.
        clipping: How gradients are clipped; None for what the protocol declares.
    """

    def __init__(
        self,
        case: Case,
        declared: FileRelations,
        known: Mapping[int, Floats],
        task: Task | None,
        length: int | None = None,
        clipping: _Clipping | None = None,
    ) -> None:
        self.case = case
        self.clipping = clipping or _Clipping(case.number("clip"))
        self.declared = declared
        self.known = known
        self.task = task
        self.length = length
        eps = torch.finfo(case.trace.dtype).eps
        self.rounding = eps * (SHORT_ROUNDING if eps > SHORT else ROUNDING)
        self.imprecise = SHORT_CLOSE if eps > SHORT else GRADIENT
        self.values: dict[int, _Value] = {}
        for k, value in known.items():
            self.values[k] = self._recorded(k, value)
        self.sources: dict[int, _Source] = {}
        self.defines: dict[int, int] = {}  # relation -> the vector that it defines
        self.errors: dict[int, float] = {}  # relation -> largest norm of the error of its terms
        self.failures: list[tuple[int, int, _ContradictedEquation]] = []
        self.misses: dict[int, Floats] = {}  # relation -> the difference of its sides
        self.pending = list(range(len(declared.relations.relations)))
        with np.errstate(all="ignore"):  # what overflows fails its test
            self._run()

    def _recorded(self, place: int, value: Floats) -> _Value:
        vector = self.declared.relations.vectors[place]
        size = norm(value)
        error = self.rounding * size
        if vector.kind == "message":
            error += CHANNEL * vector.std * math.sqrt(self.length or len(value))
        return _Value(value, size, error)

    @property
    def failure(self) -> _ContradictedEquation | None:
        if not self.failures:
            return None
        return min(self.failures, key=lambda one: one[:2])[2]

    def _run(self) -> None:
        progress = True
        while progress:
            left = [k for k in self.pending if not self._use(k)]
            progress = len(left) < len(self.pending)
            self.pending = left

    def _use(self, k: int) -> bool:
        """Test a relation, or define its only unknown vector; False if it has several."""
        terms = self.declared.relations.relations[k].terms
        if self.task is not None:
            for place in terms:
                self._gradient(place, self.task)
        unknown = [place for place in terms if place not in self.values]
        if len(unknown) > 1 or len(unknown) == len(terms):
            return False
        factors = floats(terms)
        if not unknown:
            self._test(k, factors)
            return True
        [defined] = unknown
        scale = -factors.pop(defined)
        total = self._sum(factors)
        self.errors[k] = total.error
        self.values[defined] = _Value(
            total.value / scale,
            total.size / abs(scale),
            total.error / abs(scale),
            total.computed,
        )
        self.sources[defined] = _Source(self.declared.lines[k], tuple(factors))
        self.defines[k] = defined
        return True

    def _gradient(self, place: int, task: Task) -> None:
        point = self.declared.relations.points.get(place)
        if place in self.values or point is None:
            return
        if not point.terms or not point.terms.keys() <= self.values.keys():
            return
        vector = self.declared.relations.vectors[place]
        truth = self.case.truth
        if truth is None or vector.owner is None:
            return
        x, y = truth.of(vector.owner)
        if not len(x):
            return
        model = torch.from_numpy(self._sum(floats(point.terms)).value)
        value = self.clipping.gradient(task, model, x.double(), y)
        size = norm(value)
        self.values[place] = _Value(value, size, self.imprecise * size, computed=True)
        self.sources[place] = _Source(self.declared.origins[place], tuple(point.terms))

    def _sum(self, terms: Mapping[int, float]) -> _Value:
        value: Floats = np.zeros(())
        size = 0.0
        error = 0.0
        computed = False
        for place, factor in terms.items():
            held = self.values[place]
            value = value + factor * held.value
            size = max(size, held.size * abs(factor))
            error += held.error * abs(factor)
            computed = computed or held.computed
        return _Value(value, size, error, computed)

    def _test(self, k: int, terms: Mapping[int, float]) -> None:
        total = self._sum(terms)
        if not total.size:
            return
        self.errors[k] = total.error
        self.misses[k] = total.value / total.size
        error = norm(total.value) / total.size
        allowed = total.error / total.size
        if error <= allowed:
            return
        relation = self.declared.relations.relations[k]
        line = self.declared.lines[k]
        # What only copies a vector into a message has no coefficient that could be wrong.
        lines = {one for one in self._lines([k]) if one not in self._copies} or {line}
        ordered = tuple(sorted(lines, key=lambda one: one.number))
        label = self.declared.relations.vectors[max(relation.terms)].label
        failure = _ContradictedEquation(
            ordered, relation.round, label, error, allowed, total.computed
        )
        self.failures.append((relation.round, k, failure))

    def _lines(self, relations: Iterable[int]) -> set[EquationLine]:
        found = set[EquationLine]()
        seen = set[int]()
        waiting: list[int] = []
        for k in relations:
            found.add(self.declared.lines[k])
            waiting += self.declared.relations.relations[k].terms
        while waiting:
            place = waiting.pop()
            source = self.sources.get(place)
            if place in seen or source is None:
                continue
            seen.add(place)
            waiting += source.places
            if source.line is not None:
                found.add(source.line)
        return found

    @cached_property
    def _copies(self) -> set[EquationLine]:
        """Equations of which all relations say that two vectors are equal."""
        others = set[EquationLine]()
        for line, relation in zip(
            self.declared.lines, self.declared.relations.relations, strict=True
        ):
            terms = relation.terms
            if len(terms) != 2 or sum(terms.values(), Fraction(0)):
                others.add(line)
        return set(self.declared.lines) - others

    def untested(self) -> Iterator[tuple[EquationLine, str]]:
        tested = self._lines(self.misses)
        for line, term in self._weak().items():
            if line in tested:
                yield line, f"its term {term} is too small beside the others"
        seen = set(tested)
        for k, line in enumerate(self.declared.lines):
            if line in seen or line in self._copies:
                continue
            seen.add(line)
            yield line, self._why(k)

    def _weak(self) -> dict[EquationLine, str]:
        """Return equations with a term that is always too small to be tested, with this term."""
        relations = self.declared.relations
        strong = set[EquationLine]()
        weak: dict[EquationLine, str] = {}
        for k, error in self.errors.items():
            line = self.declared.lines[k]
            small = ""
            for place, coefficient in relations.relations[k].terms.items():
                if place == self.defines.get(k):
                    continue
                if abs(float(coefficient)) * norm(self.values[place].value) <= STRONG * error:
                    small = relations.vectors[place].label
                    break
            if small:
                weak[line] = small
            else:
                strong.add(line)
        return {
            line: weak[line] for line in sorted(weak.keys() - strong, key=lambda one: one.number)
        }

    def _why(self, k: int) -> str:
        vectors = self.declared.relations.vectors
        open_ = [k for k in (self.defines.get(k),) if k is not None]
        if not open_:
            terms = self.declared.relations.relations[k].terms
            open_ = [place for place in terms if place not in self.values]
        names = ", ".join(vectors[place].label for place in open_[:NAMED])
        kinds = {vectors[place].kind for place in open_}
        if "message" in kinds:
            return f"the recording does not contain {names}"
        why = f"the messages fit any value of {names}"
        if "noise" in kinds:
            return f"{why}; requires --truth with the noise (recorded as states)"
        if self.case.truth is None:
            return f"{why}; requires --truth with the records, to compute gradients"
        if self.task is None:
            why_not = obstacle_to_gradients(self.case.trace, self.case.truth)
            obstacle = why_not or "the model is too large for this check"
            return f"{why}; its gradients cannot be computed ({obstacle})"
        return f"{why}; requires a truth with this vector (recorded as a state)"


def _hint(case: Case, tests: _Tests, rounds: int) -> str:
    """Return the value of a constant with which every equation holds; empty if there is none.

    The difference of both sides of the failing relation is a function of the constant. Its zero is
    found by the secant method on the projection onto the first difference; all tests must then
    pass.
    """
    victim = case.protocol.victim if case.protocol else None
    if not isinstance(victim, TextProtocol):
        return ""
    clip = tests.clipping.norm
    if clip and tests.task is not None:
        for says, other in (
            ("without any clipping", _Clipping(0.0)),
            ("if means over a node's records are clipped, not records", _Clipping(0.0, clip)),
        ):
            changed = _Tests(case, tests.declared, tests.known, tests.task, clipping=other)
            if not changed.failures:
                return f"all equations hold {says}"
    failed = min(tests.failures, key=lambda one: one[:2])[1]
    found: list[str] = []
    for name in victim.definition.constants:
        given = float(registry.values(victim)[name])
        solved = _solved(case, tests, failed, name, given, rounds)
        if solved is not None:
            found.append(f"all equations hold with {name} = {solved:.6g} instead of {given:g}")
    # Two constants that explain the same difference cannot be told apart.
    if len(found) != 1:
        return ""
    return found[0]


def _solved(
    case: Case, tests: _Tests, failed: int, name: str, given: float, rounds: int
) -> float | None:
    """Return the value of one constant with which all tests pass; None if there is none."""
    direction = tests.misses[failed]
    old = given
    old_miss = float(direction @ direction)
    new = given / 2 or 0.1  # any other value serves as the second point
    for _ in range(TRIES):
        changed = _changed(case, tests, name, new, rounds)
        if changed is None or failed not in changed.misses:
            return None
        if not changed.failures:
            return _shortest(case, tests, name, new, rounds)
        miss = float(changed.misses[failed] @ direction)
        if miss == old_miss:
            return None
        step = miss * (new - old) / (miss - old_miss)
        old = new
        old_miss = miss
        new = new - step
        if not math.isfinite(new):
            return None
    return None


def _shortest(case: Case, tests: _Tests, name: str, value: float, rounds: int) -> float:
    for digits in range(1, DIGITS):
        short = float(f"{value:.{digits}g}")
        changed = _changed(case, tests, name, short, rounds)
        if changed is not None and not changed.failures:
            return short
    return value


def _changed(case: Case, tests: _Tests, name: str, value: float, rounds: int) -> _Tests | None:
    """Repeat the tests with another value of a constant; None if it is not a valid one."""
    victim = case.protocol.victim if case.protocol else None
    if not isinstance(victim, TextProtocol):
        return None
    kind = type(registry.values(victim)[name])
    try:
        other = registry.configure(type(victim), {**registry.values(victim), name: kind(value)})
        declared = _declared(other, case.trace, rounds)
    except LeakauditError:
        return None
    if declared.relations.vectors != tests.declared.relations.vectors:
        return None
    return _Tests(case, declared, tests.known, tests.task)
