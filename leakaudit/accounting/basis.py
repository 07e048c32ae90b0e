"""What a bound rests on: whose change it is about, why, and for whom it was computed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

SEEN = (
    "the models are functions of what is seen, so one changed record moves each gradient by the "
    "sensitivity only"
)
MESSAGES = "every message that the node sends or receives"
MODELS = "the models at which it takes gradients"


class Unit(StrEnum):
    """The unit of privacy: whose change a bound is about."""

    RECORD = "record"
    NODE = "node"
    NONE = "none"


class Ground(Enum):
    """Why the bound of a view holds, or why there is none; the values are the unit and a text."""

    IDLE = Unit.RECORD, "the node takes no gradient in these rounds"
    LEAK = Unit.RECORD, "a combination of gradients is on the wire without noise"
    MODELS_SEEN = Unit.RECORD, SEEN
    SMOOTH = Unit.RECORD, "gradients are {smoothness:g}-Lipschitz"
    REACTING = (
        Unit.NODE,
        "no epsilon for records, because a changed record moves the models, and with them later "
        "gradients by more than the sensitivity; give a smoothness. The node's epsilon holds if "
        "any two gradients of the node, at any two models, differ by the sensitivity at most",
    )
    STEERED = (
        Unit.NONE,
        "noise that this listener does not see steers the models, so there is no epsilon for "
        "records or for the node",
    )


class Stronger(StrEnum):
    """Adversaries of which every other one's view is a function; the values continue "one who"."""

    ALL_MESSAGES = f"hears {MESSAGES}"
    MESSAGES_AND_MODELS = f"hears {MESSAGES} and sees {MODELS}"


@dataclass(frozen=True)
class Basis:
    """What the bound of a view rests on.

    Attributes:
        ground: Why it holds.
        stronger: For whom it was computed, if that is not the adversary itself.
        smoothness: Lipschitz constant of the gradients, if the ground is `SMOOTH`.
        not_smooth: Why a smoothness that was given did not help.
        own_view: Why the adversary's own view has no bound, if that of a stronger one stands in.
    """

    ground: Ground
    stronger: Stronger | None = None
    smoothness: float | None = None
    not_smooth: str = ""
    own_view: str = ""

    @property
    def unit(self) -> Unit:
        """Whose change is bounded."""
        return self.ground.value[0]

    def __str__(self) -> str:
        """Return the sentence that a reader sees."""
        unit, why = self.ground.value
        if self.ground is Ground.SMOOTH:
            why = why.format(smoothness=self.smoothness)
        text = f"{unit}: {why}"
        if self.stronger is not None:
            text += f"; upper value, priced for one who {self.stronger}"
        if self.not_smooth:
            text += f" (with the smoothness: {self.not_smooth})"
        if self.own_view:
            text += f" ({self.own_view})"
        return text
