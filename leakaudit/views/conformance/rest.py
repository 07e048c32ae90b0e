"""Which rounds of a recording are not compared with its declaration, and the sentences about it."""

from __future__ import annotations

from dataclasses import dataclass

WHY = "too many for this check"


def untested(last: int) -> str:
    """Return that relations between messages were tested up to a round only."""
    return f"{_related(last)} were not tested: {WHY}"


def unexplained(last: int) -> str:
    """Return that messages were compared with true gradients up to a round only."""
    return f"{_explained(last)} were not compared with the truth: {WHY}"


def _related(last: int) -> str:
    return f"relations between messages after round {last}"


def _explained(last: int) -> str:
    return f"gradients in messages after round {last}"


@dataclass(frozen=True)
class SkippedRounds:
    """Which rounds are not compared because there are too many."""

    # the last round in which the relations between messages are tested; None if all rounds are
    relations: int | None = None
    # the last round that is compared with the gradients of the truth; None if all are, or if
    # nothing is compared with gradients
    gradients: int | None = None

    @property
    def sentences(self) -> list[str]:
        """What was not compared, in words."""
        found = []
        if self.relations is not None:
            found.append(untested(self.relations))
        if self.gradients is not None:
            found.append(unexplained(self.gradients))
        return found

    @property
    def subjects(self) -> list[str]:
        """The same for a list of what was not examined."""
        found = []
        if self.relations is not None:
            found.append(f"{_related(self.relations)}: {WHY}")
        if self.gradients is not None:
            found.append(f"{_explained(self.gradients)}: {WHY}")
        return found
