"""What a run takes from a data set, as a value."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = {
    "raw": "as they are",
    "unit": "every record has the Euclidean norm 1",
    "range": "every feature lies in [0, 1]",
}
LABELS = {
    "classes": "the number of its class",
    "signs": "-1 or +1, for two classes",
    "one-hot": "one number for each class, 1 for its own and 0 for others",
}


@dataclass(frozen=True)
class Selection:
    """What a run takes from a data set, and in which form.

    Attributes:
        classes: Numbers or names of the classes that are used, joined by commas; or ``all``.
        held: Whether the records of its own test set are read, if it has one.
    """

    data: str
    classes: str = "all"
    rows: str = "raw"
    labels: str = "classes"
    held: bool = False
