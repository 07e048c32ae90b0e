"""The names that tests and guessers have in the record of an audit.

They are written into results.json and read again by its reports, so they never change.
"""

from __future__ import annotations

from enum import StrEnum


class TestName(StrEnum):
    """Tests whose names are the same in every audit."""

    __test__ = False  # pytest would collect it

    VIEW = "exact view against the claim"
    SENSITIVITY = "sensitivity"
    LIKELIHOOD = "identification by likelihood"
    CANARIES = "canary replays"
    ONE_RUN = "canaries of one run"


class Guesser(StrEnum):
    """What guessed, in tests that no registered attack takes part in."""

    NOBODY = "none"
    LIKELIHOOD = "likelihood"
    RATIO = "likelihood ratio"


def identified_among(total: int) -> str:
    """Return the name of a test: an attack's image is nearest to the true record.

    Args:
        total: Number of records among which it is to be nearest.
    """
    return f"identified among {total}"


def as_near_as(psnr: float) -> str:
    """Return the name of a test: an attack's image is near to the true record.

    Args:
        psnr: How near at least, in dB.
    """
    return f"PSNR >= {psnr:g} dB"
