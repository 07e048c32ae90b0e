"""Names of tests and guessers, which stored records of audits contain: they never change."""

from __future__ import annotations

# A guarantee under test; every other one has the name of a claim.
OF_VIEW = "the view bound of one record"

# Tests that have the same name in every audit.
VIEW = "exact view against the claim"
SENSITIVITY = "sensitivity"
BY_LIKELIHOOD = "identification by likelihood"
CANARIES = "canary replays"
ONE_RUN = "canaries of one run"

# What guesses in tests that do not involve a registered attack.
NOBODY = "none"
LIKELIHOOD = "likelihood"
RATIO = "likelihood ratio"
GUESSERS = (NOBODY, LIKELIHOOD, RATIO)


def identified_among(total: int) -> str:
    """Return the name of a test: the attack's image is closest to the true record."""
    return f"identified among {total}"


def as_near_as(psnr: float) -> str:
    """Return the name of a test: the attack's image is close to the true record."""
    return f"PSNR >= {psnr:g} dB"
