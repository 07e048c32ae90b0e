"""What messages contain besides the gradients of their truth, and tests of it.

The remainder of a message (`substitute`) is divided by the declared standard deviation of the
noise, so honest recordings leave numbers of mean 0 and variance 1 that do not correlate with the
gradients. The sums over several recordings of a program make the tests sharper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from leakaudit.lint.fit import CLOSE, Fit
from leakaudit.lint.substitute import Left, Noise
from leakaudit.protocols.deviation import Deviation

# Probability of a false alarm of each test, over all recordings: a thousandth of a gate's default
# alpha.
LEVEL = 1e-5
# Share of the way from the gradients of the truth to those of a guess; beyond it, messages are
# closer to the guess.
HALF = 0.5


def contradicted(found: Left) -> Iterator[Deviation]:
    """Yield what contradicts the declaration without any noise.

    Args:
        found: The remainder of one recording.
    """
    if found.broken:
        says = f"the messages contradict the declared relations: {found.broken} does not hold"
        yield Deviation("messages", says)
    elif found.missed > CLOSE * found.size:
        share = found.missed / max(found.size, 1e-300)
        says = (
            f"the recorded messages differ by {share:.1%} from the gradients of the truth, and "
            "no noise is declared; check the truth, labels, constants, model and messages"
        )
        yield Deviation("gradients", says)


@dataclass
class Values:
    """The remainders of one or several recordings.

    Attributes:
        nodes: How the noise of each node correlates with its gradients.
        energy: Sum of |rest|^2 over the numbers of Gaussian noise.
        numbers: How many these are.
    """

    nodes: dict[int, Fit] = field(default_factory=dict)
    energy: float = 0.0
    numbers: int = 0

    def add(self, found: Sequence[Noise]) -> None:
        """Add the noise of one recording.

        Args:
            found: The noise of each node.
        """
        for one in found:
            self.nodes.setdefault(one.node, Fit()).add(one)
            if one.gaussian:
                self.energy += float((one.rest**2).sum())
                self.numbers += one.rest.size

    @property
    def fit(self) -> Fit:
        """How the noise of all nodes correlates with the gradients."""
        return Fit.total(self.nodes.values())

    def signal(self) -> Iterator[Deviation]:
        """Test whether the rest correlates with the gradients.

        If it does, other gradients were sent, or a multiple of them.
        """
        fit = self.fit
        # Half of the level is for all nodes together, and half for the individual nodes.
        if fit.chance < LEVEL / 2:
            yield _multiple("the recorded messages contain", fit)
            return
        for node, one in sorted(self.nodes.items()):
            if one.chance < LEVEL / (2 * len(self.nodes)):
                yield _multiple(f"the messages of node {node} contain", one, (node,))
                return
        # If the messages belong to other records, they are about as close to the gradients of a
        # guess as to those of this truth, and the rest contains -1 times what the truth explains
        # better.
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
        excess = math.sqrt(self.energy) - CLOSE * math.sqrt(self.fit.power)
        if not self.numbers or excess <= 0:
            return
        from scipy.special import chdtrc  # slow to import

        # The sum of n squared standard normal numbers has a chi-square distribution with n degrees
        # of freedom.
        if float(chdtrc(self.numbers, excess**2)) < LEVEL:
            says = (
                f"besides the gradients of the truth, the messages contain {self._size:.3g} times "
                "the declared noise: check the truth, constants and messages"
            )
            yield Deviation("noise", says)

    def quiet(self) -> str | None:
        """Test whether less remains than the declared noise; returns a sentence, or None."""
        if not self.numbers:
            return None
        from scipy.special import chdtr  # slow to import

        if float(chdtr(self.numbers, self.energy)) >= LEVEL:
            return None
        return f"the messages contain {self._size:.3g} times the declared noise"

    @property
    def _size(self) -> float:
        """Size of the noise in units of the declared one."""
        return math.sqrt(self.energy / self.numbers)


def _multiple(who: str, fit: Fit, nodes: tuple[int, ...] = ()) -> Deviation:
    """Report that messages contain a different multiple of the gradients than declared."""
    says = (
        f"{who} {1 + fit.shift:.2f} times the gradients of the truth, expected 1 "
        f"(+- {fit.error:.2g}): check the truth, labels, constants, clip and messages"
    )
    return Deviation("gradients", says, nodes)
