"""Whether the recordings of a check are of the protocol that they declare.

This is the control of what the gate is shown.

Attacks and their controls look at what was recorded. If a program records something else than it
sends, or nothing, no attack finds anything and every limit holds. So each recording is compared
with two things that a mistaken program cannot bring along itself: the messages that its protocol
declares (`expected`), and the gradients of its own truth.

The second works because the truth holds every node's records: with its gradients the declared
relations determine the noise of every message (`substitute`). It has to be of the declared size and
law in every part, independent of all other noise (`draws`), and uncorrelated with the gradients
(`fit`). If no noise is declared, the messages have to hold these gradients. None of this knows
about attacks. If it holds, the recorded messages do carry the gradients of these records.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.stats import chi2, norm

from leakaudit.adversary import Adversary
from leakaudit.extraction.hearing import targets
from leakaudit.gate import draws
from leakaudit.gate.config import Check
from leakaudit.gate.deviation import Deviation
from leakaudit.gate.draws import Draws, Run
from leakaudit.gate.expected import Expected, differences
from leakaudit.gate.fit import CLOSE, Fit
from leakaudit.gate.rule import Rule
from leakaudit.gate.runs import Recorded
from leakaudit.gate.substitute import Left, Noise, left
from leakaudit.lint import NAMES, noise
from leakaudit.lint.samples import Sample
from leakaudit.results.model import RuleKind, RuleStatus
from leakaudit.trace import Trace

# Recordings of a check, its own among them, up to which more are made if fewer do not tell. A
# choice: four times the default number of seeds, which halves the standard error.
MOST = 64
# More recordings are made until coefficients that differ from 1 by `AWAY` lie `SURE` standard
# errors away from it. A choice: half of the gradients, or none, are told from all of them then, and
# chance alone moves the coefficient as far in 0.3 %.
AWAY = 0.5
SURE = 3.0
# Probability of a node's coefficient below which more recordings are made. A choice: a usual level,
# shared by all nodes.
ODD = 0.05
# Nodes whose noise is given to the lint, and columns of it: choices that keep its tests within
# seconds.
NODES = 8
WIDTH = 4096
# Probability of a false alarm of each test, over all seeds of a check: a thousandth of the gate's
# default alpha.
LEVEL = 1e-5
# Of the way from the gradients of the truth to those of a guess; from there on they are nearer to
# the guess.
HALF = 0.5

# The sentence of a rule begins with its title.
TITLES = {
    "empty": "nothing was recorded",
    "undeclared": "messages of another protocol",
    "missing": "messages are missing",
    "repeated": "messages were recorded twice",
    "rounds": "rounds are missing",
    "gaps": "messages were lost",
    "copies": "receivers got different vectors",
    "announced": "the recording announces no end",
    "samples": "another number of records",
    "secure": "messages are encrypted",
    "values": "numbers are not those that travel",
    "truth": "the truth is incomplete",
    "messages": "messages do not fit together",
    "gradients": "other gradients than those of the truth",
    "noise": "more than the declared noise",
    "seeds": "noise that repeats",
    "process": "noise that starts anew with every process",
    "along": "noise shared by numbers of a message",
    **{f"P{number:02d}": name for number, (name, _) in NAMES.items()},
}


@dataclass(frozen=True)
class _Complaint:
    """A deviation with its outcome; its sentence has a title, and the seed that showed it."""

    status: RuleStatus
    says: str
    nodes: tuple[int, ...]


@dataclass
class Fidelity:
    """What the recordings of one check showed: `look` at every one, then ask for the `rules`.

    Attributes:
        check: whose recordings they are.
        seeds: of the recordings that were looked at.
    """

    check: Check
    seeds: list[int] = field(default_factory=list)
    _wrong: dict[str, _Complaint] = field(default_factory=dict)  # the first of each subject
    _skipped: str = ""  # why no values were compared
    _compared: bool = False
    _nodes: dict[int, Fit] = field(default_factory=dict)
    _energy: float = 0.0  # sum of |rest|^2 over `_numbers`, of Gaussian noise
    _numbers: int = 0
    _first: tuple[Noise, ...] = ()  # of the first recording
    _draws: Draws = field(default_factory=Draws)
    _expected: dict[str, Expected] = field(default_factory=dict)

    def look(self, made: Recorded) -> None:
        """Compare one recording with its declaration and its truth.

        Args:
            made: the recording of one seed.

        Raises:
            LeakauditError: the protocol cannot be declared with the recorded constants.
        """
        self.seeds.append(made.seed)
        trace = made.trace
        adversaries = [Adversary.parse(name) for name in self.check.adversaries]
        declared = self._declared(trace)
        for one in differences(trace, declared, adversaries, self.check.secure):
            self._complain(one, RuleStatus.VOID, made.seed)
        for one in self._untold(made):
            self._complain(one, RuleStatus.VOID, made.seed)
        if not self._wrong:
            self._values(made)

    def look_again(self, made: Recorded) -> None:
        """Compare a recording by another process, to find noise that starts anew in each process.

        Args:
            made: the recording. It may be of a seed that was looked at before, and then hold the
                same noise.
        """
        found = left(made, self._declared(made.trace).relations)
        self._add(Run(made.seed, process=1), made.trace, found.noise)

    def rules(self, linted: Collection[str] = ()) -> list[Rule]:
        """Return one rule for each thing that is wrong, or one that says what was compared.

        Args:
            linted: pitfalls that the lint of the first recording found; they are not told again.
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
        says = "the messages are those that the protocol declares"
        if self._compared:
            values = "hold the gradients of the truth up to the declared noise"
            says += f", and {values}{self._sharpness()}"
        elif self._skipped:
            says += f"; values were not compared: {self._skipped}"
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
        """How the noise of all nodes goes along with the gradients."""
        return Fit.total(self._nodes.values())

    def hides(self, trace: Trace) -> bool:
        """Return whether a recording's protocol declares noise.

        Args:
            trace: the recording.
        """
        vectors = self._declared(trace).relations.vectors
        return any(vector.kind == "noise" for vector in vectors)

    def undecided(self) -> bool:
        """Return whether more recordings would tell gradients of the truth from others."""
        fit = self.fit
        count = len(self.seeds)
        if self._wrong or not fit.power or count >= MOST:
            return False
        # The standard error falls with the square root of the number of recordings.
        if SURE * fit.error * math.sqrt(count / MOST) > AWAY:
            return False
        odd = any(one.chance < ODD / len(self._nodes) for one in self._nodes.values())
        return odd or abs(fit.shift) + SURE * fit.error > AWAY

    def _complain(self, one: Deviation, status: RuleStatus, seed: int | None = None) -> None:
        """Keep the first complaint about a subject; seed: None if it took several recordings."""
        says = one.says
        if one.about in TITLES:
            says = f"{TITLES[one.about]}: {says}"
        if seed is not None:
            says = f"{says} (seed {seed})"
        self._wrong.setdefault(one.about, _Complaint(status, says, one.nodes))

    def _declared(self, trace: Trace) -> Expected:
        """Return what the protocol sends; kept for recordings that agree in all that matters."""
        if set(trace.public) - {"w0"}:
            return Expected.of(trace)  # a schedule, which may differ from seed to seed
        about = repr((trace.protocol, sorted(trace.params.items()), trace.graph, trace.rounds))
        if about not in self._expected:
            self._expected[about] = Expected.of(trace)
        return self._expected[about]

    # --- one recording ----------------------------------------------------------------------------

    def _untold(self, made: Recorded) -> Iterator[Deviation]:
        """Yield what a recording and its truth leave out."""
        trace = made.trace
        holders = self.check.nodes
        if holders is None:
            holders = tuple(targets(trace, Adversary()))
        untold = sorted(set(holders) - set(made.truth.node.tolist()))
        if untold:
            node = untold[0]
            says = (
                f"the truth of node {node} was not given, so it was not attacked; "
                "call recorder.truth for every node with data"
            )
            yield Deviation("truth", says, (node,))
        yield from _samples(made)
        if not self.check.scenario:
            yield from _announced(trace)

    def _values(self, made: Recorded) -> None:
        """Compare the values of one recording with the gradients of its truth."""
        found = Left((), 0.0, 0.0, "")
        if made.trace.columns == (0, made.trace.layout.size):
            found = left(made, self._declared(made.trace).relations)
        if not found.noise and not found.size:
            self._skipped = _without_values(made)
            return
        self._compared = True
        if found.broken:
            says = f"the messages do not fit together as declared: {found.broken} does not hold"
            self._complain(Deviation("messages", says), RuleStatus.VOID, made.seed)
        elif found.missed > CLOSE * found.size:
            share = found.missed / max(found.size, 1e-300)
            says = (
                f"what is recorded differs by {share:.1%} from the gradients of the truth, "
                "and no noise is declared; check truth, labels, constants, model and what is sent"
            )
            self._complain(Deviation("gradients", says), RuleStatus.VOID, made.seed)
        for one in found.noise:
            self._nodes.setdefault(one.node, Fit()).add(one)
            if one.gaussian:
                self._energy += float((one.rest**2).sum())
                self._numbers += one.rest.size
        self._add(Run(made.seed), made.trace, found.noise)
        self._first = self._first or found.noise

    def _add(self, run: Run, trace: Trace, noise: Sequence[Noise]) -> None:
        self._draws.add(run, noise, trace.layout.slices, _rounding(trace, noise))

    # --- all recordings ---------------------------------------------------------------------------

    def _sum_up(self) -> None:
        """Judge what only many rounds and recordings show together.

        First comes what the values hold, then their noise. It ends with the first test that fails,
        since others may well fail as a consequence.
        """
        if self._wrong or not self._compared:
            return
        strict = self.check.lint in ("error", "strict")
        status = RuleStatus.CONTRADICTED if strict else RuleStatus.WARNING
        tests = (
            (self._signal, RuleStatus.VOID),
            (self._draws.shared, status),
            (self._excess, RuleStatus.VOID),
            (self._noise, status),
        )
        for test, outcome in tests:
            for one in test():
                self._complain(one, outcome)
            if self._wrong:
                return

    def _signal(self) -> Iterator[Deviation]:
        """Test whether the rest goes along with the gradients.

        If it does, other gradients were sent, or a multiple of them.
        """
        fit = self.fit
        # Half of the level is for all nodes together, and half for the nodes one by one.
        if fit.chance < LEVEL / 2:
            yield _multiple("what is recorded", fit)
            return
        for node, one in sorted(self._nodes.items()):
            if one.chance < LEVEL / (2 * len(self._nodes)):
                yield _multiple(f"what node {node} sends", one, (node,))
                return
        # If the messages are of other records, they are about as near to the gradients of a guess
        # as to those of this truth, and the rest holds -1 times what the truth explains better.
        if not fit.margin or fit.beyond >= -HALF * fit.margin:
            return
        if norm.sf(-fit.beyond / math.sqrt(fit.margin)) < LEVEL:
            says = (
                "the truth explains the messages no better than the mean of all other records "
                "does: they are of other data"
            )
            yield Deviation("gradients", says)

    def _excess(self) -> Iterator[Deviation]:
        """Test whether more is left than the declared noise and gradients within `CLOSE`."""
        excess = math.sqrt(self._energy) - CLOSE * math.sqrt(self.fit.power)
        if not self._numbers or excess <= 0:
            return
        # The squares of standard normal numbers sum up to a chi-square of as many degrees of
        # freedom.
        if float(chi2.sf(excess**2, self._numbers)) < LEVEL:
            size = math.sqrt(self._energy / self._numbers)
            says = (
                f"beside the gradients of the truth the messages hold {size:.3g} times "
                "the declared noise: check truth, constants and what is sent"
            )
            yield Deviation("noise", says)

    def _noise(self) -> Iterator[Deviation]:
        """Test the noise: the size of all, the law of the first recording, then each part."""
        if self._numbers and float(chi2.cdf(self._energy, self._numbers)) < LEVEL:
            size = math.sqrt(self._energy / self._numbers)
            _, fix = NAMES[20]
            yield Deviation(
                draws.QUIET, f"the messages hold {size:.3g} times the declared noise; {fix}"
            )
            return
        found = list(noise.judged([_sample(one) for one in self._first[:NODES]]))
        for pitfall in found:
            yield Deviation(pitfall.code, f"{pitfall.says}; {pitfall.fix}")
        if not found:
            yield from self._draws.wrong()

    def _sharpness(self) -> str:
        """Say how well the gradients can be told from the noise."""
        fit = self.fit
        if not fit.power:
            return ""
        recordings = ""
        if len(self.seeds) > 1:
            recordings = f" in {len(self.seeds)} recordings"
        return f" (coefficient {1 + fit.shift:.2f} +- {fit.error:.2g}{recordings})"


def _multiple(who: str, fit: Fit, nodes: tuple[int, ...] = ()) -> Deviation:
    """Say that messages hold another multiple of the gradients than declared."""
    says = (
        f"{who} holds {1 + fit.shift:.2f} times the gradients of the truth, "
        f"expected 1 (+- {fit.error:.2g}): check truth, labels, constants, clip and what is sent"
    )
    return Deviation("gradients", says, nodes)


def _samples(made: Recorded) -> Iterator[Deviation]:
    """Find a node with another number of records than declared, of which epsilon is."""
    declared = made.trace.params.get("samples")
    if not isinstance(declared, int) or declared < 1:
        return
    counts: list[int] = made.truth.node.bincount().tolist()
    for node, count in enumerate(counts):
        if count not in (0, declared):
            says = (
                f"samples = {declared} is declared, and the truth holds {count} of node {node}; "
                "declare what a node holds"
            )
            yield Deviation("samples", says, (node,))
            return


def _announced(trace: Trace) -> Iterator[Deviation]:
    """Find a recording that does not hold how many rounds were planned.

    The number shows whether some rounds were left out. A Recorder that checks writes it itself. The
    engine of several processes writes it when it joins its logs, with the nodes that ended.
    """
    said = trace.provenance
    if not (said.get("checked") is True or "ended" in said):
        says = "it was made with check=False, or not by a Recorder; leave check out"
        yield Deviation("announced", says)
    elif type(said.get("planned")) is not int:
        says = (
            "it does not hold how many rounds were planned, so none would be missed; "
            "give Recorder rounds=..."
        )
        yield Deviation("announced", says)


def _without_values(made: Recorded) -> str:
    """Say why no value could be compared with the truth."""
    batch = int(made.trace.number("batch"))
    if 0 < batch < int(made.truth.node.bincount().max()):
        return "gradients are of mini-batches, which are drawn in secret"
    if made.trace.columns != (0, made.trace.layout.size):
        return "only some columns of the model are recorded"
    return "the truth and what travels do not determine the private states"


def _rounding(trace: Trace, noise: Sequence[Noise]) -> dict[int, float]:
    """Return the roundoff of a message's numbers, in standard deviations of a node's noise."""
    sizes = (float(m.payload.abs().max()) for m in trace.messages if m.payload.numel())
    largest = max(sizes, default=0.0)
    eps = torch.finfo(trace.dtype).eps
    return {one.node: eps * largest / one.least for one in noise}


def _sample(one: Noise) -> Sample:
    """Return noise of variance 1 for the tests of the lint."""
    count, width = one.rest.shape
    chosen = np.linspace(0, width - 1, min(width, WIDTH)).round().astype(int)
    return Sample(
        node=one.node,
        labels=one.labels,
        rounds=one.rounds,
        value=one.rest[:, chosen],
        factor=np.eye(count),
        norm=np.linalg.norm(one.rest, axis=1),
        weight=np.zeros(count),
        coordinates=width,
        gaussian=one.gaussian,
        hidden=False,
    )
