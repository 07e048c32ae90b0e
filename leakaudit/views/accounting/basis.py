"""The basis of a bound: whose change it covers, why it holds, and for which adversary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

MESSAGES = "every message that the node sends or receives"
MODELS = "the models at which it evaluates gradients"
# Adversaries whose view determines another one's; the text continues "one who".
OWNERS = "also knows everything that the owners of undeclared vectors know"
ALL_MESSAGES = f"observes {MESSAGES}"
MESSAGES_AND_MODELS = f"observes {MESSAGES} and knows {MODELS}"


# Why the bound of a view holds, or why there is none: the unit of privacy, whose change is bounded,
# and a text.
Ground: TypeAlias = tuple[Literal["record", "node", "none"], str]

IDLE: Ground = ("record", "the node computes no gradient in these rounds")
UNSEEN: Ground = ("record", "no message that is observed depends on the data of the node")
LEAK: Ground = ("record", "a combination of gradients is sent without noise")
MODELS_SEEN: Ground = (
    "record",
    "the models are functions of what is observed, so one changed record changes each gradient by "
    "at most the sensitivity",
)
SMOOTH: Ground = (
    "record",
    "gradients are {smoothness:g}-Lipschitz (assumed with --smoothness, not checked)",
)
CONVEX: Ground = (
    "record",
    "for convex losses, one changed record moves each proximal step, and with it each release, by "
    "a bounded distance",
)
REACTING: Ground = (
    "node",
    "no epsilon per record, because a changed record changes the models, and thereby later "
    "gradients by more than the sensitivity. The node's epsilon holds if any two gradients of the "
    "node, at any two models, differ by at most the sensitivity",
)
STEERED: Ground = (
    "none",
    "noise that this adversary does not observe influences the models, so there is no epsilon "
    "per record or per node",
)


@dataclass(frozen=True)
class Basis:
    """The basis of the bound of a view."""

    ground: Ground  # why it holds
    stronger: str = ""  # the adversary for which it was computed, if not the adversary itself
    # Lipschitz constant of the gradients, if the ground is `SMOOTH`
    smoothness: float | None = None
    not_smooth: str = ""  # why no smoothness gives an epsilon per record
    # why the adversary's own view has no bound, if that of a stronger one replaces it
    own_view: str = ""
    # whether releases are composed one by one, by the law of their noise
    by_release: bool = False

    @property
    def wants_smoothness(self) -> bool:
        """Whether a smoothness gives an epsilon per record, of which there is none."""
        return self.ground == REACTING and not self.not_smooth

    @property
    def unit(self) -> str:
        """Whose change is bounded."""
        return self.ground[0]

    def __str__(self) -> str:
        """Return the sentence for readers."""
        unit, why = self.ground
        if self.ground == SMOOTH:
            why = why.format(smoothness=self.smoothness)
        text = f"{unit}: {why}"
        if self.stronger:
            text += f"; upper bound, computed for one who {self.stronger}"
        if self.not_smooth:
            text += f" (with any smoothness: {self.not_smooth})"
        elif self.wants_smoothness:
            text += "; specify --smoothness for an epsilon per record"
        if self.by_release:
            text += "; composed release by release"
        if self.own_view:
            text += f" ({self.own_view})"
        return text
