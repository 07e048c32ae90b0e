"""Whether the recordings of a check follow the protocol that they declare.

This is the control of the gate's input.

Attacks and their controls examine what was recorded. If a program records something other than what
it sends, or nothing, no attack finds anything and no limit is exceeded. Each recording is therefore
compared with two things that an incorrect program cannot influence: the messages that its protocol
declares (`expected`), and the gradients of its own truth.

The second comparison is possible because the truth contains every node's records: given their
gradients, the declared relations determine the noise of every message (`substitute`). This noise
must have the declared size and distribution in every part, must be independent of all other noise
(`draws`), and must be uncorrelated with the gradients (`fit`). If no noise is declared, the
messages must contain these gradients. None of this depends on attacks. If all tests pass, the
recorded messages do carry the gradients of these records.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from leakaudit._util.plural import counted
from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Trace
from leakaudit.judging.gate.config import Check
from leakaudit.judging.gate.described import RecordedDescriptions
from leakaudit.judging.gate.rule import Rule
from leakaudit.judging.gate.runs import SeedResults
from leakaudit.protocols import deviation as titles
from leakaudit.protocols.declared import constant
from leakaudit.protocols.deviation import Deviation
from leakaudit.protocols.expected import ExpectedMessages, differences
from leakaudit.reporting.results.model import RuleKind, RuleStatus
from leakaudit.views.conformance import draws, noise
from leakaudit.views.conformance.bits import Bits
from leakaudit.views.conformance.conformance import samples
from leakaudit.views.conformance.draws import Draws, ProgramRun
from leakaudit.views.conformance.fit import Fit
from leakaudit.views.conformance.pitfall import NAMES
from leakaudit.views.conformance.rest import unexplained
from leakaudit.views.conformance.samples import of_messages
from leakaudit.views.conformance.substitute import NormalisedNoise, RecordingRemainder, left
from leakaudit.views.conformance.values import Values, contradicted
from leakaudit.views.extraction.hearing import targets

# Most recordings of a check, including its own, that are made if fewer are not conclusive. A
# choice: four times the default number of seeds, which halves the standard error.
MOST = 64
# More recordings are made until coefficients that differ from 1 by `AWAY` are `SURE` standard
# errors away from 1. A choice: this distinguishes half of the gradients, or none, from all of them,
# and pure chance shifts the coefficient as far with a probability of 0.3 %.
AWAY = 0.5
SURE = 3.0
# If the probability of a coefficient is below this, more recordings are made. A choice: a
# common significance level, for all nodes together and shared by them.
ODD = 0.05

# Probability with which chance makes the coefficient so different from 1 that a gate is
# inconclusive. A choice: one honest run in ten thousand.
DOUBT = 1e-4
# The same if more recordings were to be made and were not, for lack of time or because the program
# failed. A choice: one such run in a thousand; the fewer recordings, the less they can tell.
UNSETTLED = 1e-3

# The sentence of a rule begins with its title.
TITLES = {
    **titles.TITLES,
    **{f"P{number:02d}": name for number, (name, _) in NAMES.items()},
}


@dataclass(frozen=True)
class _Complaint:
    """A deviation with its outcome; its sentence includes a title and the seed that revealed it."""

    status: RuleStatus
    says: str
    nodes: tuple[int, ...]


@dataclass
class Fidelity:
    """Examines the recordings of a check: call `look` for every recording, then `rules`."""

    check: Check
    seeds: list[int] = field(default_factory=list)  # seeds of the recordings that were examined
    settles: bool = False  # whether more recordings are made while these are `undecided`
    _wrong: dict[str, _Complaint] = field(default_factory=dict)  # the first one per subject
    _skipped: str = ""  # why no values were compared
    _compared: bool = False
    _last: int | None = None  # round that was compared with gradients, if others were not
    _sent: Values = field(default_factory=Values)  # besides the gradients of the truth
    _first: tuple[NormalisedNoise, ...] = ()  # of the first recording
    _draws: Draws = field(default_factory=Draws)
    _bits: Bits = field(default_factory=Bits)
    _described: RecordedDescriptions = field(default_factory=RecordedDescriptions)
    _expected: dict[str, ExpectedMessages] = field(default_factory=dict)

    def look(self, made: SeedResults) -> None:
        """Compare one recording with its declaration and its truth."""
        self.seeds.append(made.seed)
        trace = made.trace
        adversaries = [Adversary.parse(name) for name in self.check.adversaries]
        declared = self._declared(trace)
        for one in differences(trace, declared, adversaries, self.check.secure):
            self._complain(one, RuleStatus.VOID, made.seed)
        described = self._described.look(trace, made.seed, simulated=not self.check.run)
        for one in (*self._untold(made), *described):
            self._complain(one, RuleStatus.VOID, made.seed)
        if not self._wrong:
            self._bits.add(trace, declared.relations, f" with seed {made.seed}")
            self._values(made)

    def look_again(self, made: SeedResults) -> None:
        """Compare a recording from another process, to find noise that starts anew in each process.

        Args:
            made: the recording. Its seed may have been examined before; the recording may then
                contain the same noise.
        """
        found = left(made, self._declared(made.trace).relations) or RecordingRemainder(())
        self._add(ProgramRun(made.seed, process=1), made.trace, found.noise)

    def rules(self, linted: Collection[str] = ()) -> list[Rule]:
        """Return one rule for each deviation, or a single one that states what was compared.

        Args:
            linted: pitfalls that the lint of the first recording found; they are not reported
                again.
        """
        if not self.seeds:
            return []
        self._sum_up()
        cell = f"{self.check.name}/recording"
        if self._wrong:
            return [
                Rule(RuleKind.RECORDING, cell, about, one.status, one.says, nodes=one.nodes)
                for about, one in self._wrong.items()
                if about not in linted
            ]
        if self.settles and self.undecided(UNSETTLED):
            return [Rule(RuleKind.RECORDING, cell, "", RuleStatus.TOO_FEW_SEEDS, self._unsettled())]
        says = "the messages are those that the protocol declares"
        if self._compared:
            values = "contain the gradients of the truth up to the declared noise"
            says += f", and {values}{self._sharpness()}"
            if self._last is not None:
                says += f"; {unexplained(self._last)}"
        elif self._skipped:
            says += f"; values were not compared: {self._skipped}"
        if str(self._described):
            says += f"; {self._described}"
        return [Rule(RuleKind.RECORDING, cell, "", RuleStatus.OK, says)]

    @property
    def compared(self) -> bool:
        """Whether the values of the recordings were compared with the gradients of their truth."""
        return self._compared

    @property
    def noisy(self) -> bool:
        """Whether noise was found that other recordings may share."""
        return bool(self._first) and not self._wrong

    @property
    def fit(self) -> Fit:
        """How the noise of all nodes correlates with the gradients."""
        return self._sent.fit

    def hides(self, trace: Trace) -> bool:
        """Return whether a recording's protocol declares noise."""
        vectors = self._declared(trace).relations.vectors
        return any(vector.kind == "noise" for vector in vectors)

    def undecided(self, odd: float = ODD) -> bool:
        """Return whether more recordings can distinguish gradients of the truth from others.

        Coefficients that are less likely than `odd` have to be measured again.
        """
        if self._wrong or len(self.seeds) >= MOST:
            return False
        longer = self._sent.unclipped
        if self._can_tell(longer) and longer.shift + SURE * longer.error > AWAY:
            return True
        fit = self.fit
        if not self._can_tell(fit):
            return False
        nodes = self._sent.nodes
        strange = any(one.chance < odd / len(nodes) for one in nodes.values())
        return strange or fit.chance < odd or abs(fit.shift) + SURE * fit.error > AWAY

    def _can_tell(self, fit: Fit) -> bool:
        """Return whether `MOST` recordings would make a coefficient precise enough."""
        # The standard error falls with the square root of the number of recordings.
        error = fit.error * math.sqrt(len(self.seeds) / MOST)
        return fit.power > 0 and SURE * error <= AWAY

    def _complain(self, one: Deviation, status: RuleStatus, seed: int | None = None) -> None:
        """Keep the first complaint per subject; `seed` is None if several recordings show it."""
        says = one.says
        if one.about in TITLES:
            says = f"{TITLES[one.about]}: {says}"
        if seed is not None:
            says = f"{says} (seed {seed})"
        self._wrong.setdefault(one.about, _Complaint(status, says, one.nodes))

    def _declared(self, trace: Trace) -> ExpectedMessages:
        """Return what the protocol sends; cached for recordings with the same declaration."""
        if set(trace.public) - {"w0"}:
            return ExpectedMessages.of(trace)  # a schedule, which may differ from seed to seed
        about = repr((trace.protocol, sorted(trace.params.items()), trace.graph, trace.rounds))
        if about not in self._expected:
            self._expected[about] = ExpectedMessages.of(trace)
        return self._expected[about]

    # --- one recording ----------------------------------------------------------------------------

    def _untold(self, made: SeedResults) -> Iterator[Deviation]:
        """Yield what a recording and its truth lack."""
        trace = made.trace
        holders = self.check.nodes
        if holders is None:
            holders = tuple(targets(trace, Adversary()))
        untold = sorted(set(holders) - set(made.truth.node.tolist()))
        if untold:
            node = untold[0]
            says = (
                f"the truth of node {node} is missing, so the node was not attacked; "
                "call recorder.truth for every node with data"
            )
            yield Deviation("truth", says, (node,))
        yield from samples(trace, made.truth)
        if not self.check.scenario:
            yield from _announced(trace)

    def _values(self, made: SeedResults) -> None:
        """Compare the values of one recording with the gradients of its truth."""
        found = RecordingRemainder(())
        if made.trace.columns == (0, made.trace.layout.size):
            found = left(made, self._declared(made.trace).relations) or RecordingRemainder(())
        if not found.compared:
            self._skipped = _without_values(made, found)
            return
        self._compared = True
        if found.rounds < made.trace.rounds:
            self._last = min(found.rounds, self._last or found.rounds)
        for one in contradicted(found):
            self._complain(one, RuleStatus.VOID, made.seed)
        self._sent.add(found.noise)
        self._add(ProgramRun(made.seed), made.trace, found.noise)
        self._first = self._first or found.noise

    def _add(self, run: ProgramRun, trace: Trace, noise: Sequence[NormalisedNoise]) -> None:
        self._draws.add(run, noise, trace.layout.slices, draws.rounding_of(noise))

    # --- all recordings ---------------------------------------------------------------------------

    def _sum_up(self) -> None:
        """Judge what only several rounds and recordings show together.

        The content of the values is tested first, then their noise. The first test that fails ends
        the sequence, because others may fail as a consequence.
        """
        if self._wrong:
            return
        strict = self.check.lint in ("error", "strict")
        status = RuleStatus.CONTRADICTED if strict else RuleStatus.WARNING
        tests = (
            (partial(self._sent.signal, DOUBT), RuleStatus.VOID),
            (self._draws.shared, status),
            (self._sent.excess, RuleStatus.VOID),
            (self._noise, status),
            (self._bits.wrong, status),
        )
        for test, outcome in tests:
            for one in test():
                self._complain(one, outcome)
            if self._wrong:
                return

    def _noise(self) -> Iterator[Deviation]:
        """Test the noise: its total size, its distribution in the first recording, each part."""
        quiet = self._sent.quiet()
        if quiet is not None:
            _, fix = NAMES[20]
            yield Deviation(draws.QUIET, f"{quiet.says}; {fix}", quiet.nodes)
            return
        found = list(noise.judged(of_messages(self._first)))
        for pitfall in found:
            yield Deviation(pitfall.code, f"{pitfall.says}; {pitfall.fix}")
        if not found:
            yield from self._draws.wrong()

    def _unsettled(self) -> str:
        """Say that more recordings were to decide and were not made."""
        return (
            f"{counted(len(self.seeds), 'recording')} cannot tell whether the messages contain the "
            f"gradients of the truth{self._sharpness()}, and more could not be made within the "
            f"time, or because the program failed; set seeds = {MOST}"
        )

    def _sharpness(self) -> str:
        """Return the precision with which the gradients can be distinguished from the noise."""
        fit = self.fit
        if not fit.power:
            return ""
        recordings = ""
        if len(self.seeds) > 1:
            recordings = f" in {len(self.seeds)} recordings"
        return f" (coefficient {1 + fit.shift:.2f} +- {fit.error:.2g}{recordings})"


def _announced(trace: Trace) -> Iterator[Deviation]:
    """Find a recording that does not state how many rounds were planned.

    This number shows whether rounds are missing. A Recorder with checks enabled writes it itself.
    The engine of several processes writes it when it merges its logs, with the nodes that ended.
    """
    said = trace.provenance
    if not (said.get("checked") is True or "ended" in said):
        says = "it was made with check=False, or not by a Recorder; omit check=False"
        yield Deviation("announced", says)
    elif type(said.get("planned")) is not int:
        says = (
            "it does not state how many rounds were planned, so missing rounds would not be "
            "noticed; pass rounds=... to Recorder"
        )
        yield Deviation("announced", says)


def _without_values(made: SeedResults, found: RecordingRemainder) -> str:
    """Explain why no value could be compared with the truth."""
    batch = int(constant(made.trace, "batch"))
    if 0 < batch < int(made.truth.node.bincount().max()):
        return "gradients are of secret mini-batches"
    if made.trace.columns != (0, made.trace.layout.size):
        return "only some columns of the model are recorded"
    return found.obstacle
