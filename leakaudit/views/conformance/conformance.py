"""Whether a recording is what it declares: its messages, their values, and its truth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from leakaudit._util.once import once
from leakaudit._util.plain import Figures
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.trace import Trace, Truth
from leakaudit.core.verdict import Verdict
from leakaudit.protocols.equations.written import TextProtocol
from leakaudit.tasks.task import Task
from leakaudit.theory.relations.declare import outline
from leakaudit.traces import gaps, vocabulary
from leakaudit.views import messages
from leakaudit.views.conformance import rest
from leakaudit.views.conformance.case import Case, obstacle_to_gradients
from leakaudit.views.conformance.equations import consistency
from leakaudit.views.conformance.pitfall import Pitfall
from leakaudit.views.conformance.residual import Residual
from leakaudit.views.conformance.substitute import RecordingRemainder, left
from leakaudit.views.conformance.values import Values, contradicted
from leakaudit.views.deviation import Deviation
from leakaudit.views.messages import STATED, ExpectedMessages

# An attack on messages that are not those of the declared protocol finds nothing, or something that
# was never sent. So "nothing is determined" and "nothing was recovered" are only stated together
# with what is known about the recording itself.
#
# - The messages are compared with those that the protocol sends (`messages`).
# - Relations that contain only messages must hold, whatever the gradients are (`equations`), in the
#   recorded columns and in the sketch of all columns. The messages must contain the declared noise
#   (`noise`).
# - With the truth, the gradients of its records are substituted (`substitute`, `values`).
#
# Values are compared in all rounds, or in as many as fit into a budget (`reach`); `_SkippedRounds`
# says which.

# Most numbers that are computed with the gradients of the truth: a few seconds. A choice.
NUMBERS = 1 << 30
QUIET = 20  # the pitfall of too little noise
NUMBER = 22  # of the pitfall
RESIDUAL = 23  # of that of a remainder within the tolerance


@dataclass(frozen=True)
class _SkippedRounds:
    """Which rounds are not compared because there are too many."""

    # the last round in which the relations between messages are tested; None if all rounds are
    relations: int | None = None
    # the last round that is compared with the gradients of the truth; None if all are, or if
    # nothing is compared with gradients
    gradients: int | None = None

    @property
    def sentences(self) -> list[str]:
        found = []
        if self.relations is not None:
            found.append(rest.untested(self.relations))
        if self.gradients is not None:
            found.append(rest.unexplained(self.gradients))
        return found

    @property
    def subjects(self) -> list[str]:
        return rest.subjects(self.relations, self.gradients)


@dataclass(frozen=True)
class Conformance:
    """What is known about a recording itself."""

    deviations: tuple[Deviation, ...]  # how it differs from its declaration
    # why messages are not observed although the declaration is followed
    stated: tuple[Deviation, ...]
    compared: bool  # whether values were compared with gradients of the truth
    obstacle: str
    # what is wrong with the noise of the messages, whose size and distribution are the subject of
    # other pitfalls
    noise: tuple[Pitfall, ...] = ()
    # which rounds were not compared because there are too many
    rest: _SkippedRounds = _SkippedRounds()
    # what remains between gradients and those of the truth; None if it is not known
    residual: Residual | None = None

    @property
    def sentences(self) -> list[str]:
        """How the recording differs from its declaration, in words."""
        return [one.sentence for one in self.deviations]

    def unclear(self, determined: bool) -> list[str]:
        """Return why a result is inconclusive; empty if nothing speaks against it."""
        if determined:
            return self.sentences
        return [*self.sentences, *(one.sentence for one in self.stated)]


# Numbers near the largest float overflow, and what is infinite then agrees with nothing.
@np.errstate(over="ignore", invalid="ignore")
def examine(
    trace: Trace,
    truth: Truth | None = None,
    adversary: Adversary | None = None,
    task: Task | None = None,
    memory: int | None = None,
    *,
    noise: bool = True,
) -> Conformance:
    """Compare a recording with its declaration.

    Args:
        memory: Bytes that the comparison with the truth may use, up to 4 GiB; None for these.
    """
    adversary = adversary or Adversary()
    trace = messages.within(gaps.before(trace), adversary)
    with outline():
        declared = ExpectedMessages.of(trace)
    found = [*_constants(trace), *messages.observed(trace, declared, adversary)]
    if truth is not None:
        found += _records(trace, truth)
    hard = [one for one in found if one.about not in STATED]
    stated = tuple(one for one in found if one.about in STATED)
    compared = False
    obstacle = obstacle_to_gradients(trace, truth, task)
    if messages.first_round(adversary):
        return Conformance(tuple(hard), stated, compared, "the first rounds are not observed")
    case = Case(trace, None)
    tested = trace.rounds
    explained = trace.rounds
    if not hard:
        tested, inconsistent = consistency(case)
        hard += inconsistent
    of_noise: list[Pitfall] = []
    residual: Residual | None = None
    if not hard and not obstacle and truth is not None:
        task = task or Task.build(trace.task)
        remainder = left(trace, truth, task, case.compared_relations, NUMBERS, memory)
        if remainder is None:
            remainder = RecordingRemainder(())
            obstacle = "the values of one round do not fit into the memory for this comparison"
        compared = remainder.compared
        residual = remainder.residual
        if compared:
            explained = remainder.rounds
        values = Values()
        values.add(remainder.noise)
        hard += list(contradicted(remainder)) or [*values.signal(), *values.excess()][:1]
        if not hard:
            of_noise += _noise_of(remainder, values, trace.layout.slices)
        obstacle = obstacle or remainder.obstacle
    if noise and not hard and not compared:
        of_noise += _noise(case)
    if noise and not hard and not of_noise and case.laws:
        hard += _low_bits(case)
    for pitfall in of_noise[:1]:
        about = "quiet" if pitfall.number == QUIET else "distribution"
        hard.append(Deviation(about, pitfall.says))
    skipped = _SkippedRounds(
        tested if tested < trace.rounds else None, explained if explained < trace.rounds else None
    )
    return Conformance(tuple(hard), stated, compared, obstacle, tuple(of_noise), skipped, residual)


@once
def of_case(case: Case) -> Conformance:
    """Compare a case with its declaration; LeakauditError if there is none."""
    return examine(case.trace, case.truth, noise=case.truth is not None)


def not_compared(case: Case) -> list[str]:
    """Return what the messages are not compared with, and why."""
    try:
        found = of_case(case)
    except LeakauditError:  # a finding says so
        return []
    said = found.rest.subjects
    if case.truth is not None and not found.compared and not found.deviations:
        said.append(f"gradients in messages against the truth: {found.obstacle}")
    return said


def check(case: Case) -> Iterator[Pitfall]:
    """Yield a finding if a recording is not what it declares."""
    if case.trace.protocol.startswith(registry.OWN):
        return
    try:
        found = of_case(case)
    except LeakauditError as error:  # nothing can be compared with an unknown declaration
        yield Pitfall(NUMBER, Verdict.UNSUPPORTED, str(error))
        return
    figures: Figures = {}
    # Noise is the subject of other pitfalls, and so are equations without noise.
    elsewhere = {"quiet", "distribution"}
    if case.protocol and isinstance(case.protocol.victim, TextProtocol) and not case.laws:
        elsewhere |= {"messages", "gradients"}
    if case.truth is not None and not case.truth.states:  # which would contain the noise itself
        yield from found.noise
    wrong = [one for one in found.deviations if one.about not in elsewhere]
    if not found.deviations and found.residual is not None and found.residual.notable:
        figures = {"share": found.residual.share, "cause": found.residual.cause}
        yield Pitfall(RESIDUAL, Verdict.INCONCLUSIVE, found.residual.says, figures)
    refuting = [one for one in wrong if one.refutes]
    if refuting:
        yield Pitfall(NUMBER, Verdict.REFUTED, *_said(refuting))
    open_ = [one for one in wrong if not one.refutes]
    if open_:
        says, figures = _said(open_)
        yield Pitfall(NUMBER, Verdict.INCONCLUSIVE, f"not determined, because {says}", figures)


def _said(some: list[Deviation]) -> tuple[str, Figures]:
    others = len(some) - 1
    more = f" (and {others} more)" if others else ""
    return f"{some[0].sentence}{more}", {"about": [one.about for one in some]}


def samples(trace: Trace, truth: Truth) -> Iterator[Deviation]:
    """Find a node whose number of records differs from the declared one, which epsilon assumes."""
    declared = trace.params.get("samples")
    if not isinstance(declared, int) or declared < 1:
        return
    counts: list[int] = truth.node.bincount().tolist()
    for node, count in enumerate(counts):
        if count not in (0, declared):
            says = (
                f"samples = {declared} is declared, but the truth contains {count} records of node "
                f"{node}; declare the actual number of records per node"
            )
            yield Deviation("samples", says, (node,))
            return


def _constants(trace: Trace) -> Iterator[Deviation]:
    """Find a constant that the protocol does not have, so that a default was used instead."""
    kind = registry.of_trace(trace.protocol, trace.provenance)
    known = registry.parameters(kind)
    for name in trace.params:
        if name not in known and name not in vocabulary.SAID:
            says = f"{trace.protocol} has no constant {name!r}{suggest(name, known)}"
            yield Deviation("constants", says)


def _records(trace: Trace, truth: Truth) -> Iterator[Deviation]:
    yield from samples(trace, truth)
    try:
        vocabulary.inputs(truth.x, trace.task, "truth")
        vocabulary.labels(truth.y, trace.task, "truth")
    except LeakauditError as error:
        yield Deviation("records", str(error))


def _noise(case: Case) -> Iterator[Pitfall]:
    """Test whether the messages contain the declared noise, whatever the gradients are."""
    if not case.laws:
        return
    from leakaudit.views.conformance import (
        noise,  # slow to import, and most recordings declare none
    )

    for pitfall in noise.check(case):
        if pitfall.verdict is Verdict.REFUTED:
            yield pitfall


def _low_bits(case: Case) -> list[Deviation]:
    from leakaudit.views.conformance.bits import (
        Bits,  # slow to import, and most recordings declare no noise
    )

    bits = Bits()
    bits.add(case.trace, case.compared_relations)
    return list(bits.wrong())[:1]


def _noise_of(
    found: RecordingRemainder, values: Values, layers: Mapping[str, slice[int, int, None]]
) -> Iterator[Pitfall]:
    if not found.noise:
        return
    from leakaudit.views.conformance import noise  # slow to import
    from leakaudit.views.conformance.samples import of_draws

    quiet = values.quiet()
    if quiet is None:
        yield from noise.of_every_draw(found.noise, layers)
        return
    small = list(noise.insufficient(of_draws(found.noise, quiet.nodes)))
    yield from small or [Pitfall(QUIET, Verdict.REFUTED, quiet.says, {"nodes": list(quiet.nodes)})]
