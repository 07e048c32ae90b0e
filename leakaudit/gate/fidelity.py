"""Whether the recordings of a check are of the protocol that they declare: the control of what the gate is shown.

Attacks and their controls look at what was recorded. If a program records something else than it sends, or nothing, no attack finds
anything and every limit holds. So each recording is compared with two things that a mistaken program cannot bring along itself: the
messages that its protocol declares (`expected`), and the gradients of its own truth.

The second works because the truth holds every node's records. From the messages follow the gradients of a node up to the declared noise,
value = combination @ gradients + noise, and the models at which they were taken. The gradients of the truth at these models leave
r = value - combination @ gradients, which has to be the declared noise: of its size and law, independent from round to round and from
run to run, and uncorrelated with the gradients. Without declared noise r has to vanish. This knows nothing of attacks, and where it holds
the recorded messages do carry the gradients of these records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincc
from scipy.stats import chi2, norm
from torch import Tensor

from leakaudit import values
from leakaudit.adversary import Adversary
from leakaudit.api import targets
from leakaudit.deduction import Deduction
from leakaudit.errors import LeakauditError
from leakaudit.gate.config import Check
from leakaudit.gate.expected import Expected, differences
from leakaudit.gate.rules import Rule, Status
from leakaudit.gate.runs import Recorded
from leakaudit.leak import GradientLeak
from leakaudit.lint import noise
from leakaudit.lint.samples import Sample
from leakaudit.trace import Trace

Floats = NDArray[np.float64]

NODES, ROUNDS, WIDTH = 8, 16, 4096  # whose values are compared in one recording, and columns of them in which noise is looked at
LEVEL = 1e-6  # chance of a false alarm of each test, over all seeds of a check
# A gradient that another framework computed in float32 agrees to about 1e-5; a wrong constant moves it by as much as it is wrong, such as
# a tenth where a step of 0.11 is declared as 0.1. Half of that lies far from both.
CLOSE = 0.05
# Noise below a hundredth of the gradients cannot be told from the error that `CLOSE` allows; such rows are judged as if there were none.
LOUD = 0.01
ROUNDED = 2000.0  # rounding errors, as estimated, that a value may miss by; as in `leakaudit.declared`
LEAST = 64  # numbers from which on noise of two runs is compared


@dataclass(frozen=True)
class _Compared:
    """One node's values beside the gradients of its truth, as combinations of rounds that are independent by the declared noise.

    Attributes:
        node: whose.
        rest: (k, c) what the gradients leave, in units of the declared noise.
        signal: (k, c) what the gradients give, in the same units.
        missed: norm of what they leave where no noise is declared, beyond rounding.
        size: norm of what they give there.
        gaussian: law of the noise.
        alone: whether no other node's noise is in it.
    """

    node: int
    rest: Floats
    signal: Floats
    missed: float
    size: float
    gaussian: bool
    alone: bool


@dataclass
class Fidelity:
    """What the recordings of one check showed so far: `look` at every one, then ask for the `rules`."""

    check: Check
    seeds: list[int] = field(default_factory=list)
    _wrong: dict[str, tuple[Status, str]] = field(default_factory=dict)
    _skipped: str = ""
    _nodes: int = 0
    _along: float = 0.0  # sum of <rest, signal>, whose variance is `_power` if the rest is noise
    _power: float = 0.0  # sum of |signal|^2
    _energy: float = 0.0  # sum of |rest|^2 over `_numbers`, of Gaussian noise
    _numbers: int = 0
    _first: list[_Compared] = field(default_factory=list)  # of the first recording
    _before: dict[int, tuple[int, Floats]] = field(default_factory=dict)  # node -> seed and noise of the recording before
    _again: list[str] = field(default_factory=list)  # noise that came twice
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
        if self.check.scenario:
            self._skipped = "the program is a victim of leakaudit itself"
        elif not self._wrong:
            self._values(made)

    def rules(self) -> list[Rule]:
        """Return one rule for each thing that is wrong, or one that says what was compared."""
        if not self.seeds:
            return []
        self._sum_up()
        cell = f"{self.check.name}/recording"
        if self._wrong:
            return [Rule("recording", cell, about, status, says) for about, (status, says) in self._wrong.items()]
        says = "the messages are those that the protocol declares"
        if self._nodes:
            says += f"; they hold the gradients of the truth up to the declared noise{self._sharpness()}"
        elif self._skipped:
            says += f"; values were not compared: {self._skipped}"
        return [Rule("recording", cell, "", Status.OK, says)]

    def _complain(self, about: str, status: Status, says: str, seed: int) -> None:
        """Keep the first complaint of its kind."""
        self._wrong.setdefault(about, (status, f"{says} (seed {seed})"))

    def _declared(self, trace: Trace) -> Expected:
        """Return what the protocol sends; kept for recordings that differ in nothing that it depends on."""
        if set(trace.public) - {"w0"}:
            return Expected.of(trace)  # a schedule, which may differ from seed to seed
        about = repr((trace.protocol, sorted(trace.params.items()), trace.graph, trace.rounds))
        if about not in self._expected:
            self._expected[about] = Expected.of(trace)
        return self._expected[about]

    # --- values -------------------------------------------------------------------------------------------------------

    def _values(self, made: Recorded) -> None:
        """Compare the values of one recording with the gradients of its truth, as far as they follow from it."""
        found, self._skipped = _compared(made)
        for one in found:
            self._nodes += 1
            if one.missed > CLOSE * one.size:
                says = (
                    f"what is recorded of node {one.node} differs by {one.missed / max(one.size, 1e-300):.1%} from the gradients of its "
                    "truth, and no noise is declared; check truth, constants, model and what is sent"
                )
                self._complain("gradients", Status.VOID, says, made.seed)
            self._along += float((one.rest * one.signal).sum())
            self._power += float((one.signal**2).sum())
            if one.gaussian:
                self._energy += float((one.rest**2).sum())
                self._numbers += one.rest.size
            if one.rest.size:
                self._repeated(one, made.seed)
        self._first = self._first or [one for one in found if one.rest.size]

    def _repeated(self, one: _Compared, seed: int) -> None:
        """Compare a node's noise with that of the recording before, which has to be another draw."""
        other, earlier = self._before.get(one.node, (seed, one.rest[:0]))
        self._before[one.node] = seed, one.rest
        if earlier.shape != one.rest.shape or one.rest.size < LEAST:
            return
        n = one.rest.size
        size = float(np.linalg.norm(one.rest) * np.linalg.norm(earlier)) or 1.0
        cosine = min(1.0, abs(float((one.rest * earlier).sum())) / size)
        # The squared cosine of independent noise and any direction is Beta(1/2, (n - 1)/2).
        if float(betaincc(0.5, (n - 1) / 2, cosine**2)) < LEVEL / len(self.seeds):
            says = f"the noise of node {one.node} with seed {seed} is that of seed {other} (correlation {cosine:.2f})"
            self._again.append(f"{says}: it is not drawn anew, so whoever knows one run can take it away")

    def _sum_up(self) -> None:
        """Judge what only many rounds and recordings show together: first what the values hold, then their noise."""
        if self._wrong or not self._nodes:
            return
        seed = self.seeds[-1]
        for about, says in (*self._signal(), *self._excess()):
            self._complain(about, Status.VOID, says, seed)
        if self._wrong:
            return
        for about, says in self._noise():
            self._complain(about, Status.CONTRADICTED, says, seed)

    def _signal(self) -> Iterator[tuple[str, str]]:
        """Test whether what is left goes along with the gradients: then other gradients were sent, or another multiple of them."""
        if not self._power:
            return
        shift, score = self._along / self._power, self._along / math.sqrt(self._power)
        if abs(shift) > CLOSE and 2 * norm.sf(abs(score)) < LEVEL:
            yield (
                "gradients",
                f"what is recorded holds {1 + shift:.2f} times the gradients of the truth, expected 1 (+- {self._error():.2g}): check "
                "truth, labels, constants, clip and what is sent",
            )

    def _excess(self) -> Iterator[tuple[str, str]]:
        """Test whether more is left than the declared noise."""
        excess = math.sqrt(self._energy) - CLOSE * math.sqrt(self._power)
        if self._numbers and excess > 0 and float(chi2.sf(excess**2, self._numbers)) < LEVEL:
            size = math.sqrt(self._energy / self._numbers)
            says = f"beside the gradients of the truth the messages hold {size:.3g} times the declared noise"
            yield "noise", f"{says}: check truth, constants and what is sent"

    def _noise(self) -> Iterator[tuple[str, str]]:
        """Test whether the noise is quieter than declared in all recordings together, its law in the first, and whether it repeats."""
        if self._numbers and float(chi2.cdf(self._energy, self._numbers)) < LEVEL:
            size = math.sqrt(self._energy / self._numbers)
            yield "noise", f"the messages hold {size:.3g} times the declared noise; draw the noise that is declared, for every message"
        for pitfall in noise.judged([_sample(one) for one in self._first]):
            yield pitfall.code, f"{pitfall.name}: {pitfall.says}; {pitfall.fix}"
        for says in self._again[:1]:
            yield "seeds", says

    def _error(self) -> float:
        return 1 / math.sqrt(self._power)

    def _sharpness(self) -> str:
        """Say how well the gradients can be told from the noise."""
        return f" (coefficient {1 + self._along / self._power:.2f} +- {self._error():.2g})" if self._power > 0 else ""


def _compared(made: Recorded) -> tuple[list[_Compared], str]:
    """Return the values of some nodes beside the gradients of the truth, and why there are none of the others, "" if there are."""
    found: list[_Compared] = []
    why = ""
    opened = tuple(replace(m, secure=torch.zeros_like(m.secure)) for m in made.trace.messages)
    try:
        heard = Deduction(replace(made.trace, messages=opened), Adversary())
    except LeakauditError as error:
        return [], str(error)
    nodes = sorted(set(made.truth.node.tolist()))
    for node in nodes[:: max(1, -(-len(nodes) // NODES))]:
        try:
            determined = heard.of(node, ROUNDS)
            leak = values.leak(heard, determined)
        except LeakauditError as error:
            why = str(error)
            continue
        if reason := _unknown(leak, made):
            why = reason
            continue
        vectors = determined.knowledge.declared.vectors
        drawn = [vectors[k] for k in determined.knowledge.noise]
        gaussian = all(v.law == "gaussian" for v in drawn)
        alone = all(v.owner == node for v in drawn)
        found.append(_beside(leak, _gradients(leak, made), bool(determined.noisy), gaussian, alone))
    return found, why


def _unknown(leak: GradientLeak, made: Recorded) -> str:
    """Say why the gradients of a leak do not follow from the truth; "" if they do."""
    records = int((made.truth.node == leak.node).sum())
    batch = int(made.trace.params.get("batch") or 0)
    if leak.theta is None:
        return "what travels does not give the models at which gradients are taken"
    if 0 < batch < records:
        return "gradients are of mini-batches, which are drawn in secret"
    if leak.inner > 1:
        return "what travels are sums over several local steps"
    scale = float(leak.theta.abs().mean())
    if leak.theta_std > CLOSE * scale:
        return "what travels gives the models at which gradients are taken only up to noise"
    return ""


def _gradients(leak: GradientLeak, made: Recorded) -> Tensor:
    """Return the gradients (T, c) of a node's truth at the models of the leak, each record's cut as the protocol says."""
    x, y = made.truth.of(leak.node)
    x = x.double()
    thetas = (leak.theta if leak.theta is not None else torch.empty(0)).double()
    clip = float(made.trace.params.get("clip") or 0.0)
    rows = []
    for theta in thetas:
        if clip:
            each = made.task.gradients(theta.expand(len(x), -1).contiguous(), x[:, None], y[:, None])
            each = each * (clip / each.norm(dim=1, keepdim=True).clamp(min=clip))
            rows.append(each.mean(0))
        else:
            rows.append(made.task.gradient(theta, x, y))
    return torch.stack(rows)[:, slice(*leak.columns)]


def _beside(leak: GradientLeak, gradients: Tensor, noised: bool, gaussian: bool, alone: bool) -> _Compared:
    """Split values into what the gradients give and what they leave, along combinations whose declared errors are independent."""
    signal = (leak.combination.double() @ gradients).numpy()
    rest = leak.value.double().numpy() - signal
    factor = leak.noise.numpy() if leak.noise is not None else np.diag(leak.std.numpy())
    variance, basis = np.linalg.eigh(factor @ factor.T)
    std = np.sqrt(np.maximum(variance, 0.0))
    rest, signal = basis.T @ rest, basis.T @ signal
    width = rest.shape[1]
    loud = noised & (std * math.sqrt(width) > LOUD * np.linalg.norm(signal, axis=1)) & (std > 0)
    # Rounding is part of the declared error of the quiet combinations; beyond it nothing may be left.
    quiet = np.maximum(0.0, np.linalg.norm(rest[~loud], axis=1) - ROUNDED * std[~loud] * math.sqrt(width))
    return _Compared(
        node=leak.node,
        rest=rest[loud] / std[loud, None],
        signal=signal[loud] / std[loud, None],
        missed=float(np.linalg.norm(quiet)),
        size=float(np.linalg.norm(signal[~loud])),
        gaussian=gaussian,
        alone=alone,
    )


def _sample(one: _Compared) -> Sample:
    """Return what is left as noise of variance 1, for the tests of the lint."""
    k, width = one.rest.shape
    some = one.rest[:, np.linspace(0, width - 1, min(width, WIDTH)).round().astype(int)]
    return Sample(
        node=one.node,
        labels=tuple(f"combination {n + 1} of what is left" for n in range(k)),
        rounds=tuple(range(k)),
        value=some,
        factor=np.eye(k),
        norm=np.linalg.norm(one.rest, axis=1),
        weight=np.zeros(k),
        coordinates=width,
        gaussian=one.gaussian,
        hidden=False,
        alone=one.alone,
    )
