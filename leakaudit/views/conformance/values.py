"""What messages contain besides the gradients of their truth, and tests of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from leakaudit.views.conformance.substitute import (
    CLOSE,
    LONGER,
    Floats,
    NormalisedNoise,
    RecordingRemainder,
)
from leakaudit.views.deviation import Deviation

# The remainder of a message (`substitute`) is divided by the declared standard deviation of the
# noise, so honest recordings leave numbers of mean 0 and variance 1 that do not correlate with the
# gradients. The sums over several recordings of a program make the tests sharper.
#
# If the messages contain c times the gradients of the truth, the rest contains c - 1 times them,
# and regressing it on the gradients gives c - 1. Because the noise is scaled to variance 1, the
# standard error of the regression is known without estimating the noise.

# Probability of a false alarm of each test, over all recordings: a hundredth of a gate's default
# alpha.
LEVEL = 1e-5
# Share of the way from the gradients of the truth to those of a guess; beyond it, messages are
# closer to the guess.
HALF = 0.5


@dataclass
class Fit:
    """How the noise of a node, or of all nodes, correlates with the gradients."""

    along: float = 0.0  # sum of <rest, signal>, whose variance is `power` if the rest is noise
    power: float = 0.0  # sum of |signal|^2
    beyond: float = 0.0  # sum of <rest, better>, whose variance is `margin` if the rest is noise
    margin: float = 0.0  # sum of |better|^2

    def add(self, one: NormalisedNoise) -> None:
        """Add the noise of a node in one recording."""
        self.regress(one.rest, one.signal)
        self.beyond += float((one.rest * one.better).sum())
        self.margin += float((one.better**2).sum())

    def regress(self, rest: Floats, signal: Floats) -> None:
        """Add a remainder (k, c) and what may be in it (k, c), without a guess."""
        self.along += float((rest * signal).sum())
        self.power += float((signal**2).sum())

    @classmethod
    def total(cls, some: Iterable[Fit]) -> Fit:
        """Return the sum of several fits."""
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
        """Probability that pure noise shifts the coefficient as far; 1 for shifts up to `CLOSE`."""
        if not abs(self.shift) > CLOSE:
            return 1.0
        return math.erfc(abs(self.shift) / self.error / math.sqrt(2))

    @property
    def chance_above(self) -> float:
        """Probability that pure noise shifts the coefficient as far upwards."""
        return self.chance / 2 if self.shift > 0 else 1.0


_Chance = Callable[[Fit], float]
_Report = Callable[[str, Fit, tuple[int, ...]], Deviation]


def contradicted(found: RecordingRemainder) -> Iterator[Deviation]:
    """Yield what contradicts the declaration without any noise."""
    if found.broken:
        says = f"the messages contradict the declared relations: {found.broken} does not hold"
        yield Deviation("messages", says)
        return
    share = found.missed / max(found.size, 1e-300)
    if max(share, found.worst) <= found.close:
        return
    nodes = () if found.node is None else (found.node,)
    of_node = "".join(f" of node {node}" for node in nodes)
    says = (
        f"the recorded messages differ by {share:.1%} from the gradients of the truth, "
        f"one{of_node} by {found.worst:.1%}, and no noise is declared; check the truth, labels, "
        "constants, model and messages"
    )
    if found.residual is not None and found.residual.cause:
        says += f"; {found.residual.cause}"
    yield Deviation("gradients", says, nodes)


@dataclass
class _Size:
    """How much noise there is."""

    # sum of the squared numbers, which are of variance 1 if the noise is as declared
    energy: float = 0.0
    numbers: int = 0  # how many these are
    power: float = 0.0  # the same sum for the contribution of the gradients
    rounding: float = 0.0  # root of the sum of the squared rounding errors

    @classmethod
    def of(cls, one: NormalisedNoise, k: int) -> _Size:
        rest = one.rest[k]
        return cls(
            energy=float(rest @ rest),
            numbers=rest.size,
            power=float(one.signal[k] @ one.signal[k]),
            rounding=one.margin * float(one.rounded[k] / one.std[k]) * math.sqrt(rest.size),
        )

    def add(self, other: _Size) -> None:
        self.energy += other.energy
        self.numbers += other.numbers
        self.power += other.power
        self.rounding = math.hypot(self.rounding, other.rounding)

    @property
    def ratio(self) -> float:
        return math.sqrt(self.energy / self.numbers)

    @property
    def excess(self) -> float:
        """Norm of the noise, less what gradients within `CLOSE` and rounding explain."""
        return max(0.0, math.sqrt(self.energy) - CLOSE * math.sqrt(self.power) - self.rounding)


@dataclass(frozen=True)
class _Part:
    """Some messages: all of them, those of a node, or a single draw of its noise."""

    node: int | None = None
    label: str = ""

    @property
    def stated(self) -> int:
        return (self.node is not None) + bool(self.label)

    @property
    def nodes(self) -> tuple[int, ...]:
        return () if self.node is None else (self.node,)

    def __str__(self) -> str:
        if self.node is None:
            return "the messages contain"
        if not self.label:
            return f"the messages of node {self.node} contain"
        return f"a message of node {self.node} ({self.label}) contains"


@dataclass
class Values:
    """The remainders of one or several recordings."""

    # how the noise of each node correlates with its gradients
    nodes: dict[int, Fit] = field(default_factory=dict)
    # the same with what a clip `LONGER` times as large would add to the gradients; of nodes whose
    # gradients are clipped
    longer: dict[int, Fit] = field(default_factory=dict)
    # how much normal noise each part of the messages contains
    sizes: dict[_Part, _Size] = field(default_factory=dict)

    def add(self, found: Sequence[NormalisedNoise]) -> None:
        """Add the noise of one recording."""
        for one in found:
            self.nodes.setdefault(one.node, Fit()).add(one)
            if one.longer is not None:
                self.longer.setdefault(one.node, Fit()).regress(one.rest, one.longer)
            if not one.gaussian:
                continue
            for k, label in enumerate(one.labels):
                size = _Size.of(one, k)
                for part in (_Part(), _Part(one.node), _Part(one.node, label)):
                    self.sizes.setdefault(part, _Size()).add(size)

    @property
    def fit(self) -> Fit:
        """How the noise of all nodes correlates with the gradients."""
        return Fit.total(self.nodes.values())

    @property
    def unclipped(self) -> Fit:
        """How the noise of all nodes correlates with what a larger clip would add."""
        return Fit.total(self.longer.values())

    def signal(self, level: float = LEVEL) -> Iterator[Deviation]:
        """Test whether the rest correlates with the gradients.

        If it does, other gradients were sent, or a multiple of them.
        """
        # A quarter of the level is for all nodes together, and a quarter for the individual nodes;
        # the other half is for their clips. The less likely of both is reported.
        families: list[tuple[dict[int, Fit], _Chance, _Report]] = [
            (self.nodes, lambda one: one.chance, _multiple),
            (self.longer, lambda one: one.chance_above, _longer),
        ]
        families.sort(key=lambda family: family[1](Fit.total(family[0].values())))
        for some, chance, report in families:
            every = Fit.total(some.values())
            if chance(every) < level / 4:
                yield report("the recorded messages contain", every, ())
                return
            for node, one in sorted(some.items()):
                if chance(one) < level / (4 * len(some)):
                    yield report(f"the messages of node {node} contain", one, (node,))
                    return
        # If the messages belong to other records, they are about as close to the gradients of a
        # guess as to those of this truth, and the rest contains -1 times what the truth explains
        # better.
        fit = self.fit
        if not fit.margin or fit.beyond >= -HALF * fit.margin:
            return
        # A normal number is as small as this with probability erfc(...) / 2.
        if math.erfc(-fit.beyond / math.sqrt(2 * fit.margin)) / 2 < LEVEL:
            says = (
                "the truth does not explain the messages better than the mean of all other records "
                "does: they belong to other data"
            )
            yield Deviation("gradients", says)

    def excess(self) -> Iterator[Deviation]:
        """Test whether more remains than the declared noise and gradients within `CLOSE`."""
        from scipy.special import chdtrc  # slow to import

        # The sum of n squared standard normal numbers has a chi-square distribution with n degrees
        # of freedom.
        part = self._significant(lambda size: float(chdtrc(size.numbers, size.excess**2)))
        if part is not None:
            says = (
                f"besides the gradients of the truth, {part} {self.sizes[part].ratio:.3g} times "
                "the declared noise: check the truth, constants and messages"
            )
            yield Deviation("noise", says, part.nodes)

    def quiet(self) -> Deviation | None:
        """Test whether less remains than the declared noise."""
        from scipy.special import chdtr  # slow to import

        part = self._significant(lambda size: float(chdtr(size.numbers, size.energy)))
        if part is None:
            return None
        says = f"{part} {self.sizes[part].ratio:.3g} times the declared noise"
        return Deviation("quiet", says, part.nodes)

    def _significant(self, chance: Callable[[_Size], float]) -> _Part | None:
        """Return the messages whose noise has a size that is too improbable, or None.

        All messages, those of each node, and single draws each have a third of the level.
        """
        count = Counter(part.stated for part in self.sizes)
        wrong: dict[_Part, float] = {}
        for part, size in self.sizes.items():
            found = chance(size)
            if size.numbers and found < LEVEL / (3 * count[part.stated]):
                wrong[part] = found
        if not wrong:
            return None
        # A fault of some nodes makes all messages together improbable as well.
        nodes = [part for part in wrong if part.stated == 1]
        if 0 < len(nodes) < count[1]:
            return min(nodes, key=lambda part: wrong[part])
        return min(wrong, key=lambda part: (part.stated, wrong[part]))


def _multiple(who: str, fit: Fit, nodes: tuple[int, ...]) -> Deviation:
    says = (
        f"{who} {1 + fit.shift:.2f} times the gradients of the truth, expected 1 "
        f"(+- {fit.error:.2g}): check the truth, labels, constants, clip and messages"
    )
    return Deviation("gradients", says, nodes)


def _longer(who: str, fit: Fit, nodes: tuple[int, ...]) -> Deviation:
    times = 1 + (LONGER - 1) * fit.shift
    error = (LONGER - 1) * fit.error
    says = (
        f"{who} gradients that are longer than the declared clip, as of a clip that is about "
        f"{times:.2f} times as large (+- {error:.2g}): check the clip"
    )
    return Deviation("gradients", says, nodes)
