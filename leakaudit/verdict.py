"""The outcome of testing a claim: five verdicts, none of which calls anything private."""

from __future__ import annotations

from enum import Enum

from leakaudit.display import Displayed

# Largest number of trials that a test requests; a choice, far more than an audit can afford.
MOST_TRIALS = 10_000_000


class Verdict(Displayed, Enum):
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


def against(exceeded: bool) -> Verdict:
    """Return the verdict of a conclusive test.

    Args:
        exceeded: Whether the measurement exceeds the claim.

    Returns:
        REFUTED or NOT_REFUTED.
    """
    if exceeded:
        return Verdict.REFUTED
    return Verdict.NOT_REFUTED
