"""A pitfall that a trace shows: its name, a verdict, the evidence in one sentence, and a fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leakaudit._util.plain import Figures, encoded
from leakaudit.trace import Json
from leakaudit.verdict import Verdict

BAD = (Verdict.REFUTED, Verdict.UNSUPPORTED)
ORDER = (*BAD, Verdict.INCONCLUSIVE, Verdict.UNCLAIMED, Verdict.NOT_REFUTED)
SMALLEST = 1e-300  # chances below are near the end of double precision, and not worth a figure
NAMES = {  # number -> name, fix; 1 to 17 as in docs/bounds.md
    1: (
        "composition over rounds",
        "state epsilon of all rounds together: 'leakaudit bound' computes it, "
        "and the noise that it needs",
    ),
    2: (
        "adjacency",
        "name what two neighbouring data sets differ in, and calibrate the noise to it: "
        "replacing moves twice as far",
    ),
    3: (
        "whose privacy",
        "state the epsilon of what is to be protected: k records of one node cost k times mu",
    ),
    4: (
        "who listens",
        "state mu for every listener: 'leakaudit bound' lists outsider, neighbours and coalitions",
    ),
    5: (
        "unclipped gradients",
        "clip every record's gradient before it is used, and record norms before and after",
    ),
    6: (
        "noise used twice",
        "draw noise anew for every message with another signal",
    ),
    7: (
        "visible participation",
        "use sampling rate 1: who takes part is seen on the wire",
    ),
    8: (
        "division by the data",
        "divide by a number that does not depend on the data, and state it",
    ),
    9: (
        "Poisson on paper",
        "sample as the accountant assumes, or account for the sampling that is used",
    ),
    10: (
        "noise with a boundary",
        "use noise without a boundary, in float64 or on a grid that is accounted for",
    ),
    13: (
        "another law than declared",
        "account for the law that is drawn: a mu is of Gaussian noise alone",
    ),
    14: (
        "a large delta",
        "choose a delta far below one over the number of records",
    ),
    18: (
        "classic calibration",
        "use the exact calibration: "
        "sensitivity / leakaudit.bounds.gaussian.least_mu(epsilon, delta)",
    ),
    19: (
        "a known seed",
        "seed the noise from the system's entropy and keep the seed out of every record",
    ),
    20: (
        "too little noise",
        "draw the noise that is declared and that the claim needs: 'leakaudit bound' computes it",
    ),
}


@dataclass(frozen=True)
class Pitfall:
    """What one check found.

    Attributes:
        number: a key of `NAMES`.
        verdict: on the claim or constant that it concerns.
        says: the finding in one sentence, with its figures.
        figures: the same for programs.
    """

    number: int
    verdict: Verdict
    says: str
    figures: Mapping[str, Json] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """``P06``, for filters."""
        return f"P{self.number:02d}"

    @property
    def name(self) -> str:
        """A few words."""
        return NAMES[self.number][0]

    @property
    def fix(self) -> str:
        """What to do."""
        return NAMES[self.number][1]

    @property
    def bad(self) -> bool:
        """Whether a claim or a declared constant does not hold."""
        return self.verdict in BAD

    def to_json(self) -> dict[str, Json]:
        """Return plain values; infinity is the text ``inf``."""
        figures: Figures = {}
        for name, value in self.figures.items():
            figures[name] = value
            if isinstance(value, float):
                figures[name] = encoded(value)
        return {
            "code": self.code,
            "name": self.name,
            "verdict": self.verdict.name,
            "says": self.says,
            "figures": figures,
            "fix": self.fix,
        }


def order(found: list[Pitfall]) -> list[Pitfall]:
    """Order findings by severity, then by number.

    Args:
        found: in any order.

    Returns:
        The most severe first.
    """
    return sorted(found, key=lambda pitfall: (ORDER.index(pitfall.verdict), pitfall.number))


def chance_text(chance: float) -> str:
    """Return a chance as it stands in a finding.

    Args:
        chance: from 0 to 1.
    """
    if chance > SMALLEST:
        return f"{chance:.1g}"
    return "below 1e-300"
