"""How much a finding gives away, in six steps that drawings shade."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.results.wording import best
from leakaudit.trace import Json

STEPS = (
    "nothing recovered",
    "under 10 dB",
    "10 to 20 dB",
    "20 to 30 dB",
    "30 dB or more",
    "identical, or certified exact",
)
UNSCORED = {"EXACT": 5, "INTERVAL": 5, "APPROXIMATE": 3, "FAILED": 0}
_EDGES = (10.0, 20.0, 30.0)


def step(finding: Mapping[str, Json]) -> int:
    """Return the place in `STEPS`, by the closest record; by the relative error (.1 is 20 dB) where there is no PSNR."""
    scores = finding["scores"]
    if scores is None:
        return UNSCORED[finding["certificate"]["name"]]
    if best(scores, "exact", max):
        return 5
    psnr, error = best(scores, "psnr", max), best(scores, "relative_error", min)
    if finding["certificate"]["name"] in ("EXACT", "INTERVAL") and (
        psnr is not None or error is not None
    ):
        return 5
    if psnr is not None:
        return 1 + sum(psnr >= edge for edge in _EDGES)
    return 0 if error is None else 1 + sum(error <= limit for limit in (0.316, 0.1, 0.0316))
