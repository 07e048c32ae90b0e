"""Names of tests and guessers, which stored records of audits contain: they never change."""

from __future__ import annotations

from enum import StrEnum


class TestName(StrEnum):
    """Tests that have the same name in every audit."""

    __test__ = False  # pytest would collect it

    VIEW = "exact view against the claim"
    SENSITIVITY = "sensitivity"
    LIKELIHOOD = "identification by likelihood"
    CANARIES = "canary replays"
    ONE_RUN = "canaries of one run"


class Guesser(StrEnum):
    """What guesses in tests that do not involve a registered attack."""

    NOBODY = "none"
    LIKELIHOOD = "likelihood"
    RATIO = "likelihood ratio"


def identified_among(total: int) -> str:
    """Return the name of a test: the attack's image is closest to the true record."""
    return f"identified among {total}"


def as_near_as(psnr: float) -> str:
    """Return the name of a test: the attack's image is close to the true record."""
    return f"PSNR >= {psnr:g} dB"
