"""Compare truncated noise with the claim of its release.

With another record, a release may take values that the original data cannot produce. The exact
delta is computed for a change of one coordinate, and for one spread over all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from leakaudit._util.bisection import crossing
from leakaudit._util.plain import Figures
from leakaudit.core.claim import Claim
from leakaudit.core.verdict import Verdict
from leakaudit.theory.bounds.mechanisms import Additive, truncated_laplace
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.pitfall import MORE, Pitfall

ROUNDING = 1e-6  # relative rounding of a recorded standard deviation
NARROWEST = 1e-6  # half-width of the noise, in scales, below which it is uniform to 1e-12
WIDEST = 30.0  # half-width u beyond which exp(-u^2) is 0 in double precision


def check(case: Case) -> Iterator[Pitfall]:
    """Yield a finding if the truncated noise of one release has a larger delta than claimed."""
    for claim in case.claims:
        moved = claim.calibrated_to or case.number("sensitivity")
        if claim.rounds != 1 or not claim.delta or claim.std is None or moved <= 0:
            continue
        noise = _noise(case.laws, claim, moved)
        if noise is not None:
            yield from _judge(noise, claim, moved, case.trace.layout.size)
            return


def _judge(noise: Additive, claim: Claim, moved: float, coordinates: int) -> Iterator[Pitfall]:
    epsilon = claim.epsilon or 0.0
    delta = claim.delta or 0.0
    alone = noise.delta(epsilon, moved)
    spread = noise.escape([moved / math.sqrt(coordinates)] * coordinates)
    if max(alone, spread) <= delta * MORE:
        return
    figures: Figures = {
        "epsilon": epsilon,
        "delta": delta,
        "one_coordinate": alone,
        "escape": spread,
        "coordinates": coordinates,
    }
    says = (
        f"({epsilon:.4g}, {delta:g}) of {claim.source} with noise of at most {noise.width:.4g}: "
        "the true delta is at least "
    )
    if spread > max(alone, delta * MORE):
        says += (
            f"{spread:.3g} if a record changes all {coordinates} coordinates slightly: "
            "some of them take values that the other data cannot produce"
        )
    else:
        says += f"{alone:.3g} if a record changes one coordinate"
    yield Pitfall(10, Verdict.REFUTED, says, figures)


def _noise(laws: frozenset[str], claim: Claim, moved: float) -> Additive | None:
    """Return the noise of a claim, from its law and standard deviation.

    None if they do not match a known calibration.
    """
    if "truncated_laplace" in laws:
        return truncated_laplace(claim.epsilon or 1.0, claim.delta or 0.1, moved)
    if "truncated_gaussian" not in laws or not claim.epsilon or claim.std is None:
        return None
    scale = moved / math.sqrt(claim.epsilon)  # DP-dKM, Theorem 6
    if not 0 < claim.std < scale / math.sqrt(2) * (1 + ROUNDING):
        return None
    # The standard deviation grows with the half-width of the interval.
    std = claim.std

    def enough(width: float) -> bool:
        return Additive(2, scale, width).std >= std

    return Additive(2, scale, crossing(enough, NARROWEST * scale, WIDEST * scale, side="above"))
