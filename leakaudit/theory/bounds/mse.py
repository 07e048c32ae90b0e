"""Lower bounds on a reconstruction's mean squared error per coordinate, and the corresponding PSNR.

They bound an expectation: average the squared errors first and compute the PSNR of that average.
The average of PSNRs is larger (Jensen) and has no bound, nor has any single image. `hcr` and
`fisher` hold only for unbiased attackers: one that clips to [0, 1], or answers grey, may do better.
Judge claims with `reconstruction`; these bounds are diagnostics.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.guarantee import at_least_zero

LARGEST = 700.0  # divergence: e^r overflows above 709.8, and 1e-305 is not a useful bound


def hcr(divergence: float, diameter: float = 1.0) -> float:
    """Return diameter^2 / (4 (e^r - 1)) for an unbiased attacker under adjacency REPLACE.

    For r below about 0.9, it exceeds the error of a constant guess, which is biased, and is
    meaningless for real attackers. Source: Guo et al. 2022, Theorem 1 (Hammersley-Chapman-Robbins).

    Args:
        divergence: Renyi divergence r of order 2. For Gaussian noise r = mu^2, with mu for REPLACE.
        diameter: Diameter of each coordinate of the data, 1 for images in [0, 1].
    """
    at_least_zero("diameter", diameter)
    if at_least_zero("divergence", divergence) == 0:
        return math.inf if diameter else 0.0
    if divergence >= LARGEST:
        return 0.0
    return diameter**2 / (4 * math.expm1(divergence))


def fisher(trace: float, dimensions: int) -> float:
    """Return d / Tr I for an unbiased attacker.

    Source: Cramer-Rao; Guo et al. 2022, Theorem 2, whose dFIL is sqrt(Tr I / d).

    Args:
        trace: Of the Fisher information I of the record in all releases.
        dimensions: Dimension d of the record.
    """
    _check_dimensions(dimensions)
    if not at_least_zero("the trace of the information", trace):
        return math.inf
    return dimensions / trace


def fisher_trace(jacobian: ArrayLike, std: float, releases: int = 1) -> float:
    """Return Tr I = releases |J|_F^2 / std^2 of releases g(z) + independent normal noise.

    Args:
        jacobian: (outputs, d) J of g.
        std: Of the noise, per coordinate.
        releases: Their number.
    """
    j = np.asarray(jacobian, dtype=np.float64)
    if releases < 0 or not np.isfinite(j).all():
        raise LeakauditError(
            f"expected a finite Jacobian and releases >= 0, got {releases} releases"
        )
    size = float((j**2).sum()) * releases
    if at_least_zero("std", std):
        return size / std**2
    return math.inf if size else 0.0


def van_trees(trace: float, prior: float, dimensions: int) -> float:
    """Return d / (E Tr I + Tr J), which every attacker obeys, biased or not.

    Sources: van Trees 1968; Gill, Levit 1995.

    Args:
        trace: Of the Fisher information, averaged over the prior.
        prior: Trace of the prior's own information, d / tau^2 for a normal prior. Its density must
            be smooth and vanish at its boundary: uniform on [0, 1] does not qualify.
        dimensions: Dimension d of the record.
    """
    information = at_least_zero("the trace of the information", trace)
    beforehand = at_least_zero("the prior's information", prior)
    return fisher(information + beforehand, dimensions)


def psnr(errors: ArrayLike, data_range: float) -> float:
    """Return the PSNR in dB of a mean of squared errors: the only aggregate that `ceiling` bounds.

    Args:
        errors: (n,) Squared errors.
        data_range: Largest minus smallest possible value.
    """
    e = np.asarray(errors, dtype=np.float64)
    if not e.size or not (e >= 0).all():
        raise LeakauditError(f"expected squared errors >= 0, at least one, got {e.size}")
    return ceiling(float(e.mean()), data_range)


def ceiling(least: float, data_range: float) -> float:
    """Return 10 log10(data_range^2 / mse) in dB; inf at an error of 0, -inf at inf.

    Args:
        least: The mean squared error.
        data_range: Largest minus smallest possible value.
    """
    if not data_range > 0:
        raise LeakauditError(f"expected a data range above 0, got {data_range}")
    at_least_zero("the squared error", least)
    if least == 0:
        return math.inf
    if least == math.inf:
        return -math.inf
    return 20 * math.log10(data_range) - 10 * math.log10(least)


def _check_dimensions(value: int) -> None:
    if value < 1:
        raise LeakauditError(f"expected at least one dimension, got {value}")
