"""A deviation: one way in which recordings differ from what their protocol declares."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Deviation:
    """One way in which recordings differ from their declaration.

    Attributes:
        about: its subject: a key of `fidelity.TITLES`, or a pitfall's code.
        says: the finding in one sentence.
        nodes: numbers of the nodes that `says` names.
    """

    about: str
    says: str
    nodes: tuple[int, ...] = ()
