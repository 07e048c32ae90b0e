"""A deviation: one way in which recordings differ from what their protocol declares."""

from __future__ import annotations

from dataclasses import dataclass

# The sentence of a deviation begins with its title.
TITLES = {
    "empty": "nothing was recorded",
    "constants": "constants of another protocol",
    "undeclared": "messages of another protocol",
    "missing": "messages are missing",
    "repeated": "messages were recorded twice",
    "rounds": "rounds differ",
    "cut short": "rounds are missing",
    "gaps": "messages were lost",
    "copies": "receivers got different vectors",
    "announced": "the number of planned rounds is missing",
    "samples": "a different number of records",
    "secure": "messages are marked as encrypted",
    "values": "recorded numbers are unusable",
    "format": "recorded numbers differ from the transmitted ones",
    "truth": "the truth is incomplete",
    "records": "the truth is not valid for the task",
    "messages": "messages are inconsistent",
    "columns": "messages are inconsistent in some columns",
    "sketch": "messages are inconsistent in columns that were not recorded",
    "gradients": "gradients differ from those of the truth",
    "noise": "more than the declared noise",
    "quiet": "insufficient noise",
    "distribution": "not the declared noise",
    "seeds": "noise repeats",
    "process": "noise starts anew with every process",
    "along": "numbers of a message share noise",
    "bits": "messages contain something besides noise",
    "names": "numbers that the protocol does not declare",
    "varies": "the description differs from seed to seed",
}
# Subjects that say what a recording lacks, or what no number in it can show: what is not there
# contradicts nothing.
LACKS = ("empty", "missing", "cut short", "values")


@dataclass(frozen=True)
class Deviation:
    """One way in which recordings differ from their declaration."""

    about: str  # its subject: a key of `TITLES`, or a pitfall's code
    says: str  # the finding in one sentence
    nodes: tuple[int, ...] = ()  # numbers of the nodes that `says` names

    @property
    def refutes(self) -> bool:
        """Whether it contradicts the declaration, and does not only leave it open."""
        return self.about not in LACKS

    @property
    def sentence(self) -> str:
        """The finding with its title."""
        title = TITLES.get(self.about)
        return self.says if title is None else f"{title}: {self.says}"
