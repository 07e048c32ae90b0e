"""Where an input of a statement comes from: no statement is stronger than its weakest input.

Nothing turns "unknown" into zero, one or "all".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Origin(IntEnum):
    """Where something comes from, from the weakest to the strongest."""

    CONTRADICTED = 0
    UNKNOWN = 1
    ASSUMED = 2
    DECLARED = 3
    STATED = 4
    VERIFIED = 5

    @property
    def words(self) -> str:
        """How a report says it, after the name of what comes from there."""
        return WORDS[self]


WORDS = {
    Origin.UNKNOWN: "unknown",
    Origin.CONTRADICTED: "assumed, and contradicted by the recording",
    Origin.ASSUMED: "assumed",
    Origin.DECLARED: "declared",
    Origin.STATED: "stated by the program",
    Origin.VERIFIED: "verified on the messages",
}


@dataclass(frozen=True)
class Evidence:
    """What supports one input of a statement."""

    subject: str  # the input, as users know it: `clip`, `batch`, `server`
    origin: Origin  # where its value comes from
    detail: str = ""  # a measured figure or a reason, in words; may be empty

    def __str__(self) -> str:
        """Return one phrase, such as ``clip: assumed, and contradicted by the recording (…)``."""
        text = f"{self.subject}: {self.origin.words}"
        if self.detail:
            text += f" ({self.detail})"
        return text


def weakest(inputs: Iterable[Evidence]) -> Evidence | None:
    """Return the weakest input of a statement; the first of several, None of none."""
    return min(inputs, key=lambda one: one.origin, default=None)
