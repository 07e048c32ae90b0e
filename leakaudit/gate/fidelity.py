"""Whether the recordings of a check are of the protocol that they declare: the control of what the gate is shown.

Attacks and their controls look at what was recorded. If a program records something else than it sends, or nothing, no attack finds
anything and every limit holds. So each recording is compared with two things that a mistaken program cannot bring along itself: the
messages that its protocol declares (`expected`), and the gradients of its own truth.

The second works because the truth holds every node's records: with its gradients the declared relations determine the noise of every
message (`substitute`). It has to be of the declared size and law in every part, independent of all other noise (`draws`), and uncorrelated
with the gradients. Where no noise is declared, the messages have to hold these gradients. This knows nothing of attacks, and where it
holds, the recorded messages do carry the gradients of these records.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.stats import chi2, norm

from leakaudit.adversary import Adversary
from leakaudit.extraction.hearing import targets
from leakaudit.gate import draws
from leakaudit.gate.config import Check
from leakaudit.gate.draws import Draws, Run
from leakaudit.gate.expected import Expected, differences
from leakaudit.gate.rules import Rule, Status
from leakaudit.gate.runs import Recorded
from leakaudit.gate.substitute import Left, Noise, left
from leakaudit.lint import NAMES, noise
from leakaudit.lint.samples import Sample
from leakaudit.trace import Trace

MOST = 64  # recordings of a check, its own among them, if fewer do not tell
AWAY = 0.5  # coefficients that differ from 1 by so much are to be told ...
SURE = 3.0  # ... by so many standard errors
ODD = 0.05  # chance of a node's coefficient from which on more recordings are made
NODES, WIDTH = 8, 4096  # whose noise is given to the lint, and columns of it
LEVEL = 1e-5  # chance of a false alarm of each test, over all seeds of a check: a thousandth of the gate's default alpha
# A gradient that another framework computed in float32 agrees to about 1e-5; a wrong constant moves it by as much as it is wrong, such as
# a tenth where a step of 0.11 is declared as 0.1. Half of that lies far from both.
CLOSE = 0.05
HALF = 0.5  # of the way from the gradients of the truth to those of a guess; from there on they are not the truth's

# What a rule begins with; a redacted report shows only this.
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
} | {f"P{number:02d}": name for number, (name, _) in NAMES.items()}


@dataclass
class Fit:
    """How the noise of a node, or of all, goes along with the gradients.

    Attributes:
        along: sum of <rest, signal>, whose variance is `power` if the rest is noise.
        power: sum of |signal|^2.
        beyond: sum of <rest, better>, whose variance is `margin` if the rest is noise.
        margin: sum of |better|^2.
    """

    along: float = 0.0
    power: float = 0.0
    beyond: float = 0.0
    margin: float = 0.0

    def add(self, one: Noise) -> None:
        """Take the noise of a node in one recording."""
        self.along += float((one.rest * one.signal).sum())
        self.power += float((one.signal**2).sum())
        self.beyond += float((one.rest * one.better).sum())
        self.margin += float((one.better**2).sum())

    @classmethod
    def total(cls, some: Iterable[Fit]) -> Fit:
        """Return the sum of several."""
        found = cls()
        for one in some:
            found.along += one.along
            found.power += one.power
            found.beyond += one.beyond
            found.margin += one.margin
        return found

    @property
    def shift(self) -> float:
        """By how much the coefficient of the gradients differs from 1."""
        return self.along / self.power if self.power > 0 else 0.0

    @property
    def error(self) -> float:
        """Standard error of the coefficient, 0 without noise."""
        return 1 / math.sqrt(self.power) if self.power > 0 else 0.0

    @property
    def chance(self) -> float:
        """The chance that noise alone shifts the coefficient as far, 1 if the shift is none."""
        return 2 * float(norm.sf(abs(self.shift) / self.error)) if abs(self.shift) > CLOSE else 1.0


@dataclass
class Fidelity:
    """What the recordings of one check showed so far: `look` at every one, then ask for the `rules`."""

    check: Check
    seeds: list[int] = field(default_factory=list)
    _wrong: dict[str, tuple[Status, str]] = field(default_factory=dict)
    _skipped: str = ""
    _compared: bool = False
    _nodes: dict[int, Fit] = field(default_factory=dict)
    _energy: float = 0.0  # sum of |rest|^2 over `_numbers`, of Gaussian noise
    _numbers: int = 0
    _first: tuple[Noise, ...] = ()  # of the first recording
    _draws: Draws = field(default_factory=Draws)
    _expected: dict[str, Expected] = field(default_factory=dict)

    def look(self, made: Recorded) -> None:
        """Compare one recording with its declaration and its truth.

        Raises:
            LeakauditError: the protocol cannot be declared with the recorded constants.
        """
        self.seeds.append(made.seed)
        trace = made.trace
        who = [Adversary.parse(name) for name in self.check.adversaries]
        for about, says in differences(trace, self._declared(trace), who, self.check.secure):
            self._complain(about, Status.VOID, says, made.seed)
        holders = targets(trace, Adversary()) if self.check.nodes is None else self.check.nodes
        if untold := sorted(set(holders) - set(made.truth.node.tolist())):
            says = f"the truth of node {untold[0]} was not given, so it was not attacked; call recorder.truth for every node with data"
            self._complain("truth", Status.VOID, says, made.seed)
        for about, says in (*_samples(made), *(() if self.check.scenario else _announced(trace))):
            self._complain(about, Status.VOID, says, made.seed)
        if not self._wrong:
            self._values(made)

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
            told = {about: one for about, one in self._wrong.items() if about not in linted}
            return [
                Rule("recording", cell, about, status, says)
                for about, (status, says) in told.items()
            ]
        says = "the messages are those that the protocol declares"
        if self._compared:
            says += (
                f", and hold the gradients of the truth up to the declared noise{self._sharpness()}"
            )
        elif self._skipped:
            says += f"; values were not compared: {self._skipped}"
        return [Rule("recording", cell, "", Status.OK, says)]

    def look_again(self, made: Recorded) -> None:
        """Compare a recording that another process made, so that noise which starts anew with every process is found.

        It may be of a seed that was looked at before, and then hold the same noise.
        """
        found = left(made, self._declared(made.trace).relations)
        process = Run(made.seed, process=1)
        self._draws.add(
            process, found.noise, made.trace.layout.slices, _rounding(made.trace, found.noise)
        )

    def _complain(self, about: str, status: Status, says: str, seed: int | None = None) -> None:
        """Keep the first complaint of its kind. seed: of the recording that showed it, None if it took several."""
        title = f"{TITLES[about]}: " if about in TITLES else ""
        self._wrong.setdefault(
            about, (status, f"{title}{says}{'' if seed is None else f' (seed {seed})'}")
        )

    def _declared(self, trace: Trace) -> Expected:
        """Return what the protocol sends; kept for recordings that differ in nothing that it depends on."""
        if set(trace.public) - {"w0"}:
            return Expected.of(trace)  # a schedule, which may differ from seed to seed
        about = repr((trace.protocol, sorted(trace.params.items()), trace.graph, trace.rounds))
        if about not in self._expected:
            self._expected[about] = Expected.of(trace)
        return self._expected[about]

    @property
    def compared(self) -> bool:
        """Whether the values of the recordings were compared with the gradients of their truth."""
        return self._compared

    @property
    def noisy(self) -> bool:
        """Whether noise was found that other recordings may share."""
        return bool(self._first) and not self._wrong

    def hides(self, trace: Trace) -> bool:
        """Whether a recording's protocol declares noise."""
        return any(v.kind == "noise" for v in self._declared(trace).relations.vectors)

    @property
    def fit(self) -> Fit:
        """How the noise of all nodes goes along with the gradients."""
        return Fit.total(self._nodes.values())

    def undecided(self) -> bool:
        """Whether more recordings would tell gradients of the truth from others, and so many as `MOST` are enough for it."""
        fit, count = self.fit, len(self.seeds)
        if (
            self._wrong
            or not fit.power
            or count >= MOST
            or SURE * fit.error * math.sqrt(count / MOST) > AWAY
        ):
            return False
        odd = any(one.chance < ODD / len(self._nodes) for one in self._nodes.values())
        return odd or abs(fit.shift) + SURE * fit.error > AWAY

    # --- values -------------------------------------------------------------------------------------------------------

    def _values(self, made: Recorded) -> None:
        """Compare the values of one recording with the gradients of its truth, as far as they follow from it."""
        whole = made.trace.columns == (0, made.trace.layout.size)
        found = (
            left(made, self._declared(made.trace).relations) if whole else Left((), 0.0, 0.0, "")
        )
        if not found.noise and not found.size:
            self._skipped = _without_values(made)
            return
        self._compared = True
        if found.broken:
            self._complain(
                "messages",
                Status.VOID,
                f"the messages do not fit together as declared: {found.broken} does not hold",
                made.seed,
            )
        elif found.missed > CLOSE * found.size:
            says = (
                f"what is recorded differs by {found.missed / max(found.size, 1e-300):.1%} from the gradients of the truth, and no noise "
                "is declared; check truth, labels, constants, model and what is sent"
            )
            self._complain("gradients", Status.VOID, says, made.seed)
        for one in found.noise:
            self._nodes.setdefault(one.node, Fit()).add(one)
            if one.gaussian:
                self._energy += float((one.rest**2).sum())
                self._numbers += one.rest.size
        self._draws.add(
            Run(made.seed),
            found.noise,
            made.trace.layout.slices,
            _rounding(made.trace, found.noise),
        )
        self._first = self._first or found.noise

    def _sum_up(self) -> None:
        """Judge what only many rounds and recordings show together: first what the values hold, then their noise."""
        if self._wrong or not self._compared:
            return
        status = Status.CONTRADICTED if self.check.lint in ("error", "strict") else Status.WARNING
        tests = (
            (self._signal, Status.VOID),
            (self._draws.shared, status),
            (self._excess, Status.VOID),
            (self._noise, status),
        )
        for test, how in tests:
            for about, says in test():
                self._complain(about, how, says)
            if self._wrong:
                return

    def _signal(self) -> Iterator[tuple[str, str]]:
        """Test whether what is left goes along with the gradients: then other gradients were sent, or another multiple of them."""
        fit = self.fit
        parts = [
            ("what is recorded", fit),
            *((f"what node {node} sends", one) for node, one in sorted(self._nodes.items())),
        ]
        for who, one in parts:
            # Half of the level is for all nodes together, and half for the nodes one by one.
            if one.chance < LEVEL / (2 if one is fit else 2 * len(self._nodes)):
                yield (
                    "gradients",
                    f"{who} holds {1 + one.shift:.2f} times the gradients of the truth, expected 1 (+- {one.error:.2g}): check "
                    "truth, labels, constants, clip and what is sent",
                )
                return
        # If the messages are of other records, they are about as near to the gradients of a guess as to those of this truth, and the rest
        # holds -1 times what the truth explains better.
        if (
            fit.margin
            and fit.beyond < -HALF * fit.margin
            and norm.sf(-fit.beyond / math.sqrt(fit.margin)) < LEVEL
        ):
            yield (
                "gradients",
                "the truth explains the messages no better than the mean of all other records does: they are of other data",
            )

    def _excess(self) -> Iterator[tuple[str, str]]:
        """Test whether more is left than the declared noise."""
        excess = math.sqrt(self._energy) - CLOSE * math.sqrt(self.fit.power)
        if self._numbers and excess > 0 and float(chi2.sf(excess**2, self._numbers)) < LEVEL:
            size = math.sqrt(self._energy / self._numbers)
            says = f"beside the gradients of the truth the messages hold {size:.3g} times the declared noise"
            yield "noise", f"{says}: check truth, constants and what is sent"

    def _noise(self) -> Iterator[tuple[str, str]]:
        """Test whether the noise is quieter than declared in all recordings together, its law in the first, and each part of it."""
        if self._numbers and float(chi2.cdf(self._energy, self._numbers)) < LEVEL:
            size = math.sqrt(self._energy / self._numbers)
            yield (
                draws.QUIET,
                f"the messages hold {size:.3g} times the declared noise; {NAMES[20][1]}",
            )
            return
        found = list(noise.judged([_sample(one) for one in self._first[:NODES]]))
        for pitfall in found:
            yield pitfall.code, f"{pitfall.says}; {pitfall.fix}"
        if not found:
            yield from self._draws.wrong()

    def _sharpness(self) -> str:
        """Say how well the gradients can be told from the noise."""
        fit = self.fit
        if not fit.power:
            return ""
        recordings = f" in {len(self.seeds)} recordings" if len(self.seeds) > 1 else ""
        return f" (coefficient {1 + fit.shift:.2f} +- {fit.error:.2g}{recordings})"


def _samples(made: Recorded) -> Iterator[tuple[str, str]]:
    """Find a node that has another number of records in the truth than is declared; epsilon and the gradients are of the declared one."""
    declared = made.trace.params.get("samples")
    if not isinstance(declared, int) or declared < 1:
        return
    counts = made.truth.node.bincount().tolist()
    if wrong := [(node, count) for node, count in enumerate(counts) if count not in (0, declared)]:
        node, count = wrong[0]
        yield (
            "samples",
            f"samples = {declared} is declared, and the truth holds {count} of node {node}; declare what a node holds",
        )


def _announced(trace: Trace) -> Iterator[tuple[str, str]]:
    """Find a recording that does not hold how many rounds were planned, which shows whether some of them were left out.

    A Recorder that checks writes it itself; the engine of several processes writes it when it joins its logs, with the nodes that ended.
    """
    said = trace.provenance
    if not (said.get("checked") is True or "ended" in said):
        yield "announced", "it was made with check=False, or not by a Recorder; leave check out"
    elif type(said.get("planned")) is not int:
        yield (
            "announced",
            "it does not hold how many rounds were planned, so none would be missed; give Recorder rounds=...",
        )


def _without_values(made: Recorded) -> str:
    """Say why no value could be compared with the truth."""
    batch = int(made.trace.params.get("batch") or 0)
    if 0 < batch < int(made.truth.node.bincount().max()):
        return "gradients are of mini-batches, which are drawn in secret"
    if made.trace.columns != (0, made.trace.layout.size):
        return "only some columns of the model are recorded"
    return "the truth and what travels do not determine the private states"


def _rounding(trace: Trace, noise: Sequence[Noise]) -> dict[int, float]:
    """Return the roundoff of one number of a message, in standard deviations of each node's noise."""
    largest = max(
        (float(m.payload.abs().max()) for m in trace.messages if m.payload.numel()), default=0.0
    )
    return {one.node: torch.finfo(trace.dtype).eps * largest / one.least for one in noise}


def _sample(one: Noise) -> Sample:
    """Return noise of variance 1 for the tests of the lint."""
    k, width = one.rest.shape
    some = one.rest[:, np.linspace(0, width - 1, min(width, WIDTH)).round().astype(int)]
    return Sample(
        node=one.node,
        labels=one.labels,
        rounds=one.rounds,
        value=some,
        factor=np.eye(k),
        norm=np.linalg.norm(one.rest, axis=1),
        weight=np.zeros(k),
        coordinates=width,
        gaussian=one.gaussian,
        hidden=False,
    )
