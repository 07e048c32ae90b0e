"""The basis of a bound: whose change it covers, why it holds, and for which adversary."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

SEEN = (
    "the models are functions of what is observed, so one changed record changes each gradient by "
    "at most the sensitivity"
)
MESSAGES = "every message that the node sends or receives"
MODELS = "the models at which it evaluates gradients"


class PrivacyUnit(StrEnum):
    """The unit of privacy: whose change a bound covers."""

    RECORD = "record"
    NODE = "node"
    NONE = "none"


class Ground(Enum):
    """Why the bound of a view holds, or why there is none; the values are the unit and a text."""

    IDLE = PrivacyUnit.RECORD, "the node computes no gradient in these rounds"
    UNSEEN = PrivacyUnit.RECORD, "no message that is observed depends on the data of the node"
    LEAK = PrivacyUnit.RECORD, "a combination of gradients is sent without noise"
    MODELS_SEEN = PrivacyUnit.RECORD, SEEN
    SMOOTH = (
        PrivacyUnit.RECORD,
        "gradients are {smoothness:g}-Lipschitz (assumed with --smoothness, not checked)",
    )
    REACTING = (
        PrivacyUnit.NODE,
        "no epsilon per record, because a changed record changes the models, and thereby later "
        "gradients by more than the sensitivity; specify --smoothness. The node's epsilon holds if "
        "any two gradients of the node, at any two models, differ by at most the sensitivity",
    )
    STEERED = (
        PrivacyUnit.NONE,
        "noise that this adversary does not observe influences the models, so there is no epsilon "
        "per record or per node",
    )


class StrongerAdversary(StrEnum):
    """Adversaries whose view determines another one's; the values continue "one who"."""

    OWNERS = "also knows everything that the owners of undeclared vectors know"

    ALL_MESSAGES = f"observes {MESSAGES}"
    MESSAGES_AND_MODELS = f"observes {MESSAGES} and knows {MODELS}"


@dataclass(frozen=True)
class Basis:
    """The basis of the bound of a view."""

    ground: Ground  # why it holds
    # the adversary for which it was computed, if not the adversary itself
    stronger: StrongerAdversary | None = None
    # Lipschitz constant of the gradients, if the ground is `SMOOTH`
    smoothness: float | None = None
    not_smooth: str = ""  # why a specified smoothness did not help
    # why the adversary's own view has no bound, if that of a stronger one replaces it
    own_view: str = ""

    @property
    def unit(self) -> PrivacyUnit:
        """Whose change is bounded."""
        return self.ground.value[0]

    def __str__(self) -> str:
        """Return the sentence for readers."""
        unit, why = self.ground.value
        if self.ground is Ground.SMOOTH:
            why = why.format(smoothness=self.smoothness)
        text = f"{unit}: {why}"
        if self.stronger is not None:
            text += f"; upper bound, computed for one who {self.stronger}"
        if self.not_smooth:
            text += f" (with the smoothness: {self.not_smooth})"
        if self.own_view:
            text += f" ({self.own_view})"
        return text
