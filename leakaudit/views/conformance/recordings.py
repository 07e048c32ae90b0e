"""Whether several recordings of a program follow the protocol that they declare."""

from __future__ import annotations

import math
import re
from collections import UserDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from torch import Tensor

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import RECORDING, Json, Trace, Truth
from leakaudit.protocols.declared import protocol_of
from leakaudit.tasks.task import Task
from leakaudit.views.conformance import draws, noise
from leakaudit.views.conformance.bits import Bits
from leakaudit.views.conformance.case import unknown_gradients
from leakaudit.views.conformance.conformance import samples
from leakaudit.views.conformance.draws import Draws
from leakaudit.views.conformance.pitfall import NAMES
from leakaudit.views.conformance.samples import of_draws
from leakaudit.views.conformance.substitute import (
    NormalisedNoise,
    RecordingRemainder,
    left,
)
from leakaudit.views.conformance.values import Fit, Values, contradicted
from leakaudit.views.deviation import Deviation
from leakaudit.views.extraction.hearing import targets
from leakaudit.views.messages import ExpectedMessages, differences

# Each recording is compared with two things that an incorrect program cannot influence: the
# messages that its protocol declares (`messages`), and the gradients of its own truth. Given these,
# the declared relations determine the noise of every message (`substitute`), which must have the
# declared size and distribution in every part, must be independent of all other noise (`draws`),
# and must be uncorrelated with the gradients (`values`). If no noise is declared, the messages must
# contain these gradients. None of this depends on attacks.

# Most recordings, if fewer are not conclusive. A choice: four times a gate's default number of
# seeds, which halves the standard error.
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
# Messages are attacked and compared with their declaration; a description is not. Whatever a
# program writes into it is therefore limited to names that the protocol reads, and to words: public
# vectors under other names, and descriptions with many numbers or that differ from seed to seed,
# are not accepted. What is declared, such as the initial model or a schedule, is counted.

# What differs from seed to seed, and is checked elsewhere: time and number of a recording, and what
# an engine says of messages that are missing.
OWN = frozenset(("created", RECORDING, "missing", "ended", "holds_until"))
# Most numbers, and most characters, of a name or a text of the program: a choice. A sentence has a
# few numbers, a record has dozens.
NUMBERS = 16
CHARACTERS = 1000
ID = 64  # most characters of a chosen id
NUMBER = re.compile(r"\d+(?:\.\d+)?")
PITFALLS = {f"P{number:02d}": name for number, (name, _) in NAMES.items()}


class _Noted(UserDict[str, Tensor]):
    """Public tensors that note which ones are looked up."""

    def __init__(self, public: Mapping[str, Tensor]) -> None:
        super().__init__(public)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


class _Descriptions:
    """The descriptions of the recordings of a check: call `look` for each."""

    def __init__(self) -> None:
        self._first: tuple[int, str] | None = None  # a seed, and what must not differ
        self._read: dict[frozenset[str], frozenset[str]] = {}
        self._declared: dict[str, int] = {}

    def look(self, trace: Trace, seed: int, written: Collection[str] = ()) -> Iterator[Deviation]:
        """Yield what a description contains that the protocol does not declare.

        written: names in the provenance that the program under test did not write.
        """
        read = self._names(trace)
        for name in sorted(set(trace.public) - read):
            says = (
                f"the public vector {name!r} of {trace.public[name].numel()} numbers is none that "
                f"{trace.protocol} reads; record it as a message if it is sent, and leave it out "
                "otherwise"
            )
            yield Deviation("names", says)
        self._declared = {name: tensor.numel() for name, tensor in trace.public.items()}
        texts = {**_free(trace, written), "id": trace.id if len(trace.id) > ID else ""}
        for name, value in texts.items():
            text = repr(value)
            count = len(NUMBER.findall(text))
            if count > NUMBERS or len(text) > CHARACTERS:
                says = (
                    f"{name} contains {count} numbers in {len(text)} characters; a description "
                    f"may have {NUMBERS} and {CHARACTERS}"
                )
                yield Deviation("names", says)
        said = _constant(trace, OWN.union(written))
        if self._first is None:
            self._first = (seed, said)
        if said != self._first[1]:
            says = (
                "the task, the names of parameters or the provenance are not those of seed "
                f"{self._first[0]}; describe every run alike, so that descriptions cannot depend "
                "on data"
            )
            yield Deviation("varies", says)

    def __str__(self) -> str:
        """Return how many numbers of a recording are not messages, in words; empty if none."""
        total = sum(self._declared.values())
        if not total:
            return ""
        each = ", ".join(f"{name} {count}" for name, count in sorted(self._declared.items()))
        return f"{total} numbers are public and no messages ({each})"

    def _names(self, trace: Trace) -> frozenset[str]:
        known = frozenset(trace.public)
        if known == {"w0"}:
            return known
        if known not in self._read:
            protocol = protocol_of(trace, trace.rounds)
            noted = _Noted(trace.public)
            made = protocol.victim.relations(trace.graph, trace.rounds, noted)
            vectors = {vector.name for vector in made.vectors if vector.kind == "public"}
            self._read[known] = frozenset(noted.names | vectors | {"w0"})
        return self._read[known]


def _free(trace: Trace, written: Collection[str]) -> dict[str, Json]:
    found: dict[str, Json] = {"the name of the data": trace.task.data}
    for name, value in sorted(trace.provenance.items()):
        if name not in ("created", RECORDING, registry.TEXT, *written):
            found[f"provenance {name[:ID]!r}"] = value
    return found


def _constant(trace: Trace, varies: Collection[str]) -> str:
    said = {name: value for name, value in trace.provenance.items() if name not in varies}
    return repr((sorted(trace.task.to_json().items()), sorted(said.items()), trace.layout.names))


class _SeedRecording(Protocol):
    """A recording of a program that was called with a seed."""

    @property
    def seed(self) -> int: ...

    @property
    def trace(self) -> Trace: ...

    @property
    def truth(self) -> Truth: ...

    @property
    def task(self) -> Task: ...


@dataclass(frozen=True)
class _Complaint:
    """A deviation; its sentence includes a title and the seed that revealed it."""

    says: str
    nodes: tuple[int, ...]
    void: bool  # whether nothing that the recordings show can be trusted


@dataclass(kw_only=True)
class Recordings:
    """Examines recordings of one program: call `look` for each, then `sum_up`."""

    adversaries: Sequence[Adversary]  # a recording may omit messages that none of them observes
    secure: Sequence[str] = ()  # kinds that may be marked as encrypted
    nodes: Sequence[int] | None = None  # nodes with data; None for all but a server
    # names in their provenance that leakaudit itself wrote, from what it observed
    written: Collection[str] = ()
    announced: bool = True  # whether they must state how many rounds were planned
    seeds: list[int] = field(default_factory=list)  # seeds of the recordings that were examined
    # whether the values were compared with the gradients of their truth
    compared: bool = False
    skipped: str = ""  # why no values were compared
    last: int | None = None  # round that was compared with gradients, if others were not
    wrong: dict[str, _Complaint] = field(default_factory=dict)  # the first one per subject
    described: _Descriptions = field(default_factory=_Descriptions)
    _sent: Values = field(default_factory=Values)  # besides the gradients of the truth
    _first: tuple[NormalisedNoise, ...] = ()  # of the first recording
    _draws: Draws = field(default_factory=Draws)
    _bits: Bits = field(default_factory=Bits)
    _expected: dict[str, ExpectedMessages] = field(default_factory=dict)

    def look(self, made: _SeedRecording) -> None:
        """Compare one recording with its declaration and its truth."""
        self.seeds.append(made.seed)
        trace = made.trace
        declared = self._declared(trace)
        sent = differences(trace, declared, self._observes, self.secure)
        described = self.described.look(trace, made.seed, self.written)
        for one in (*sent, *self._untold(made), *described):
            self._complain(one, void=True, seed=made.seed)
        if not self.wrong:
            self._bits.add(trace, declared.relations, f" with seed {made.seed}")
            self._values(made)

    def look_again(self, made: _SeedRecording) -> None:
        """Compare a recording from another process, to find noise that starts anew in each process.

        Its seed may have been examined before; the recording may then contain the same noise.
        """
        found = self._left(made)
        self._add(made, found.noise, process=1)

    @property
    def noisy(self) -> bool:
        """Whether noise was found that other recordings may share."""
        return bool(self._first) and not self.wrong

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
        if self.wrong or len(self.seeds) >= MOST:
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
        # The standard error falls with the square root of the number of recordings.
        error = fit.error * math.sqrt(len(self.seeds) / MOST)
        return fit.power > 0 and SURE * error <= AWAY

    def _complain(self, one: Deviation, *, void: bool, seed: int | None = None) -> None:
        """Keep the first complaint per subject; `seed` is None if several recordings show it."""
        says = one.sentence
        if one.about in PITFALLS:
            says = f"{PITFALLS[one.about]}: {says}"
        if seed is not None:
            says = f"{says} (seed {seed})"
        self.wrong.setdefault(one.about, _Complaint(says, one.nodes, void))

    def _observes(self, src: int, dst: int | None, secure: bool) -> bool:
        return any(who.observes(src, dst, secure=secure) for who in self.adversaries)

    def _declared(self, trace: Trace) -> ExpectedMessages:
        """Return what the protocol sends; cached for recordings with the same declaration."""
        if set(trace.public) - {"w0"}:
            return ExpectedMessages.of(trace)  # a schedule, which may differ from seed to seed
        about = repr((trace.protocol, sorted(trace.params.items()), trace.graph, trace.rounds))
        if about not in self._expected:
            self._expected[about] = ExpectedMessages.of(trace)
        return self._expected[about]

    # --- one recording ----------------------------------------------------------------------------

    def _untold(self, made: _SeedRecording) -> Iterator[Deviation]:
        trace = made.trace
        holders = targets(trace, Adversary()) if self.nodes is None else self.nodes
        untold = sorted(set(holders) - set(made.truth.node.tolist()))
        if untold:
            node = untold[0]
            says = (
                f"the truth of node {node} is missing, so the node was not attacked; "
                "call recorder.truth for every node with data"
            )
            yield Deviation("truth", says, (node,))
        yield from samples(trace, made.truth)
        if self.announced:
            yield from _announced(trace)

    def _values(self, made: _SeedRecording) -> None:
        found = RecordingRemainder(())
        if made.trace.columns == (0, made.trace.layout.size):
            found = self._left(made)
        if not found.compared:
            self.skipped = [found.obstacle, *unknown_gradients(made.trace, made.truth)][-1]
            return
        self.compared = True
        if found.rounds < made.trace.rounds:
            self.last = min(found.rounds, self.last or found.rounds)
        for one in contradicted(found):
            self._complain(one, void=True, seed=made.seed)
        self._sent.add(found.noise)
        self._add(made, found.noise)
        self._first = self._first or found.noise

    def _left(self, made: _SeedRecording) -> RecordingRemainder:
        relations = self._declared(made.trace).relations
        found = left(made.trace, made.truth, made.task, relations)
        return found or RecordingRemainder(())

    def _add(
        self, made: _SeedRecording, noise: Sequence[NormalisedNoise], process: int = 0
    ) -> None:
        layers = made.trace.layout.slices
        self._draws.add(noise, layers, draws.rounding_of(noise), made.seed, process)

    # --- all recordings ---------------------------------------------------------------------------

    def sum_up(self) -> None:
        """Judge what only several rounds and recordings show together.

        The content of the values is tested first, then their noise. The first test that fails ends
        the sequence, because others may fail as a consequence.
        """
        tests: tuple[tuple[Callable[[], Iterator[Deviation]], bool], ...] = (
            (partial(self._sent.signal, DOUBT), True),
            (self._draws.shared, False),
            (self._sent.excess, True),
            (self._noise, False),
            (self._bits.wrong, False),
        )
        for test, void in tests:
            if self.wrong:
                return
            for one in test():
                self._complain(one, void=void)

    def _noise(self) -> Iterator[Deviation]:
        """Test the noise: its total size, its distribution in the first recording, each part."""
        quiet = self._sent.quiet()
        if quiet is not None:
            _, fix = NAMES[20]
            yield Deviation(draws.QUIET, f"{quiet.says}; {fix}", quiet.nodes)
            return
        found = list(noise.judged(of_draws(self._first)))
        for pitfall in found:
            yield Deviation(pitfall.code, f"{pitfall.says}; {pitfall.fix}")
        if not found:
            yield from self._draws.wrong()


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
