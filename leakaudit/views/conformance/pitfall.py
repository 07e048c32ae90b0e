"""A finding of the lint: the name of the pitfall, a verdict, the evidence and a fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leakaudit._util.plain import Figures, encoded
from leakaudit.core.trace import Json
from leakaudit.core.verdict import Verdict

BAD = (Verdict.REFUTED, Verdict.UNSUPPORTED)
ORDER = (*BAD, Verdict.INCONCLUSIVE, Verdict.UNCLAIMED, Verdict.NOT_REFUTED)
MORE = 1 + 1e-6  # factor above a claim or bound that rounding cannot explain
SMALLEST = 1e-300  # smaller probabilities are near the limit of float64, and are not printed
NAMES = {  # number -> name, fix; 1 to 17 as in docs/bounds.md
    1: (
        "composition over rounds",
        "state the epsilon of all rounds together: 'leakaudit bound' computes it and the noise "
        "that it requires",
    ),
    2: (
        "adjacency",
        "state how two neighbouring data sets differ, and calibrate the noise accordingly: "
        "replacing a record can change a gradient twice as much as removing one",
    ),
    3: (
        "unit of privacy",
        "state the epsilon for the unit to be protected: k records of one node have k times mu",
    ),
    4: (
        "threat model",
        "state mu for every adversary: 'leakaudit bound' lists the outsider, neighbours and "
        "coalitions",
    ),
    5: (
        "missing clipping",
        "clip the gradient of every record before it is used, and log its norm before and after",
    ),
    6: (
        "reused noise",
        "draw independent noise for every message with a different signal",
    ),
    7: (
        "visible participation",
        "use a sampling rate of 1: the messages reveal which nodes participate",
    ),
    8: (
        "data-dependent normalisation",
        "divide by a number that does not depend on the data, and state it",
    ),
    9: (
        "sampling assumption",
        "sample as the accounting assumes, or account for the sampling that is used",
    ),
    10: (
        "bounded noise",
        "use unbounded noise, in float64 or on a grid that the accounting includes",
    ),
    13: (
        "noise distribution",
        "account for the distribution that is drawn: mu is defined for Gaussian noise only",
    ),
    14: (
        "large delta",
        "choose a delta well below 1 / (number of records)",
    ),
    18: (
        "classical calibration",
        "use the exact calibration: "
        "sensitivity / leakaudit.theory.bounds.gaussian.least_mu(epsilon, delta)",
    ),
    19: (
        "known noise seed",
        "seed the noise from the operating system's entropy, and do not store the seed",
    ),
    20: (
        "insufficient noise",
        "draw the noise that is declared and that the claim requires (see 'leakaudit bound')",
    ),
    21: (
        "wrong equation",
        "correct the protocol file so that it describes the program, and lint the same trace "
        "again with --plugin FILE",
    ),
    22: (
        "recording not as declared",
        "record what the program sends, with the protocol, constants, rounds and records that it "
        "uses; until then, results that rest on what is contradicted may be wrong",
    ),
    23: (
        "unexplained remainder",
        "declare what the program adds to its gradients or multiplies them by (an l2 term, weight "
        "decay, a scaled loss): an attack finds less as long as it is not declared",
    ),
}


@dataclass(frozen=True)
class Pitfall:
    """One finding."""

    number: int  # a key of `NAMES`
    verdict: Verdict  # the verdict on the claim or constant that the finding concerns
    says: str  # the finding in one sentence, with its measurements
    figures: Mapping[str, Json] = field(default_factory=dict)  # the measurements for programs

    @property
    def code(self) -> str:
        """Stable identifier such as ``P06``."""
        return f"P{self.number:02d}"

    @property
    def name(self) -> str:
        """The name of the pitfall."""
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
    """Order findings by severity, then by number."""
    return sorted(found, key=lambda pitfall: (ORDER.index(pitfall.verdict), pitfall.number))


def chance_text(chance: float) -> str:
    """Return a probability in the form that findings print."""
    if chance > SMALLEST:
        return f"{chance:.1g}"
    return "below 1e-300"
