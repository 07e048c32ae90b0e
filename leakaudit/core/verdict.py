"""The outcome of testing a claim: five verdicts, none of which calls anything private."""

from __future__ import annotations

from enum import Enum, StrEnum

from leakaudit.core.display import CardDisplay

# Relative distance by which an attained value may miss its upper bound: a choice, above rounding.
APART = 1e-6
# Largest number of trials that a test requests; a choice, far more than an audit can afford.
MOST_TRIALS = 10_000_000


class Verdict(CardDisplay, Enum):
    """The outcome for one claim; the value is the sentence that a reader sees."""

    REFUTED = "measured beyond what the claim allows, at the stated confidence"
    NOT_REFUTED = "nothing tried here exceeded the claim; this is not a proof of privacy"
    UNSUPPORTED = "the claim does not follow from the recorded parameters"
    INCONCLUSIVE = "too few samples to tell"
    UNCLAIMED = "the protocol makes no claim about this"

    @property
    def words(self) -> str:
        """The name as it is printed."""
        return self.name.replace("_", " ")


class Holds(StrEnum):
    """How the mu or epsilon of a view bound relates to what a record attains."""

    EXACT = "exact"
    AT_MOST = "at most"
    DECLARED = "as declared, which the recording contradicts"
    NONE = "no bound"

    @classmethod
    def of(cls, upper: float | None, attained: float | None) -> Holds:
        """Return how an upper bound holds if records are known to attain a value."""
        if upper is None:
            return cls.NONE
        if (attained or 0.0) >= upper * (1 - APART):
            return cls.EXACT
        return cls.AT_MOST

    @classmethod
    def read(cls, text: object) -> Holds:
        """Return what a file says; every bound in a file that says nothing is an upper one."""
        known = {str(one): one for one in (cls.EXACT, cls.DECLARED)}
        return known.get(str(text), cls.AT_MOST)

    def says(self, value: str) -> str:
        """Return a value of a bound as every report says it, such as ``at most 3.2``."""
        if self is Holds.AT_MOST:
            return f"at most {value}"
        if self is Holds.DECLARED:
            return f"{value} {self}"
        return value

    def brief(self, value: str) -> str:
        """Return the same for a cell of a table whose row has the words of `says`."""
        if self is Holds.DECLARED:
            return f"declared {value}"
        return self.says(value)

    @property
    def suffix(self) -> str:
        """What it adds to the name of a number that is stored without words."""
        return _SUFFIXES[self]


_SUFFIXES = {
    Holds.EXACT: "",
    Holds.AT_MOST: "_at_most",
    Holds.DECLARED: "_as_declared",
    Holds.NONE: "_unbounded",
}


def against(exceeded: bool) -> Verdict:
    """Return the verdict of a conclusive test."""
    if exceeded:
        return Verdict.REFUTED
    return Verdict.NOT_REFUTED
