"""Lower bounds on the mean squared error of a reconstruction, per coordinate, and the PSNR they are compared with.

They bound an expectation. Average the squared errors first and take the PSNR of that average: the average of PSNRs lies above it
(Jensen) and is bounded by nothing, nor is any single image. `hcr` and `fisher` hold for unbiased attackers alone: an attacker that
clips to [0, 1], or answers grey, may be below them. Judge claims by `leakaudit.bounds.reconstruction`; these are diagnostics.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from leakaudit.bounds.guarantee import at_least_zero
from leakaudit.errors import LeakauditError


def hcr(divergence: float, diameter: float = 1.0) -> float:
    """Return diameter^2 / (4 (e^r - 1)) for an unbiased attacker; adjacency REPLACE, r the Renyi divergence of order 2.

    diameter: of each coordinate of the data, 1 for images in [0, 1]. Gaussian noise: r = mu^2 with mu for REPLACE. Below r of about
    0.9 it exceeds the error of a constant guess and says nothing. Source: Guo et al. 2022, Theorem 1 (Hammersley-Chapman-Robbins).
    """
    at_least_zero("diameter", diameter)
    if at_least_zero("divergence", divergence) == 0:
        return math.inf if diameter else 0.0
    return diameter**2 / (4 * math.expm1(divergence)) if divergence < 700 else 0.0


def fisher(trace: float, dimensions: int) -> float:
    """Return d / Tr I for an unbiased attacker, I the Fisher information of the record in all releases.

    Source: Cramer-Rao; Guo et al. 2022, Theorem 2, whose dFIL is sqrt(Tr I / d).
    """
    _dimensions(dimensions)
    return dimensions / trace if at_least_zero("the trace of the information", trace) else math.inf


def fisher_trace(jacobian: ArrayLike, std: float, releases: int = 1) -> float:
    """Return Tr I = releases |J|_F^2 / std^2 of releases g(z) + noise with independent normal noise; jacobian: (outputs, d) of g."""
    j = np.asarray(jacobian, dtype=np.float64)
    if releases < 0 or not np.isfinite(j).all():
        raise LeakauditError(
            f"expected a finite Jacobian and releases >= 0, got {releases} releases"
        )
    size = float((j**2).sum()) * releases
    return size / std**2 if at_least_zero("std", std) else (math.inf if size else 0.0)


def van_trees(trace: float, prior: float, dimensions: int) -> float:
    """Return d / (E Tr I + Tr J), which every attacker obeys, biased or not (van Trees 1968; Gill, Levit 1995).

    trace: of the Fisher information, averaged over the prior. prior: trace of the prior's own information, d / tau^2 for a normal
    prior. The prior's density must be smooth and vanish at its boundary: uniform on [0, 1] does not qualify.
    """
    return fisher(
        at_least_zero("the trace of the information", trace)
        + at_least_zero("the prior's information", prior),
        dimensions,
    )


def psnr(errors: ArrayLike, data_range: float) -> float:
    """Return the PSNR in dB of the mean of squared errors (n,): the only aggregate that `ceiling` bounds."""
    e = np.asarray(errors, dtype=np.float64)
    if not e.size or not (e >= 0).all():
        raise LeakauditError(f"expected squared errors >= 0, at least one, got {e.size}")
    return ceiling(float(e.mean()), data_range)


def ceiling(least: float, data_range: float) -> float:
    """Return 10 log10(data_range^2 / mse) in dB; inf at an error of 0, -inf at inf."""
    if not data_range > 0:
        raise LeakauditError(f"expected a data range above 0, got {data_range}")
    if at_least_zero("the squared error", least) in (0.0, math.inf):
        return math.inf if least == 0 else -math.inf
    return 20 * math.log10(data_range) - 10 * math.log10(least)


def ssim_ceiling(least: float, c1: float = 1e-4) -> float:
    """Return 1 - mse / (2 + c1): SSIM with one global window on [0, 1] obeys it, and it is too weak to be a promise about SSIM."""
    return 1 - at_least_zero("the squared error", least) / (2 + c1)


def _dimensions(value: int) -> None:
    if value < 1:
        raise LeakauditError(f"expected at least one dimension, got {value}")
