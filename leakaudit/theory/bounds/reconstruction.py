"""Reconstruction robustness: how often any adversary can succeed, given that of a blind guess.

A success is any event about the reconstruction that is fixed beforehand: PSNR >= p, SSIM >= s, or
identifying the true record among m candidates. kappa is the best success rate of a guess without
access to the release; the success rate is then at most 1 - f(kappa), where f is the trade-off curve
of (target present, target absent) (Balle, Cherubin, Hayes 2022; Hayes, Mahloujifar, Balle 2023; for
mu-GDP also Kaissis et al. 2023). The adversary may know everything except the target, whose prior
is independent of the rest. A kappa that is too small causes false alarms, so it is exact or
certified here. There is no other bound for PSNR.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.guarantee import Guarantee, at_least_zero, probability

# Relative rounding error of distances, in favour of the claim. The error in float64 is 1e-16 for
# each of up to a million coordinates.
ROUNDING = 1e-9


def success(guarantee: Guarantee, kappa: float) -> float:
    """Return the largest success rate that the guarantee allows.

    mu-GDP: Phi(Phi^-1(kappa) + mu). (eps, delta): min(e^eps kappa + delta, 1 - e^-eps (1 - delta -
    kappa)). RDP: the best order of (kappa e^r)^{(a-1)/a}. Any curve: inf over epsilon.

    Args:
        guarantee: Its adjacency must compare the target with its absence. REPLACE compares it with
            another record, so its bound holds as well.
        kappa: The best success rate of a blind guess.
    """
    return guarantee.power(probability("kappa", kappa))


def kappa_identification(candidates: int, guesses: int = 1) -> float:
    """Return guesses / candidates: the probability that a blind guess is a uniformly drawn record.

    Args:
        candidates: Their number.
        guesses: Number of distinct candidates that the attack may name.
    """
    if not 1 <= guesses <= candidates:
        raise LeakauditError(
            f"expected 1 to {candidates} guesses of at least one candidate, got {guesses}"
        )
    return guesses / candidates


def kappa_packing(
    distances: ArrayLike, tolerance: float, prior: ArrayLike | None = None, guesses: int = 1
) -> float:
    """Return a certified upper bound on the probability that a guess is within `tolerance`.

    The record is drawn from known candidates. All candidates that one guess can hit are within
    twice the tolerance of any one of them, so kappa <= max_i of the prior's mass within 2 tolerance
    of i. SSIM has no triangle inequality: use `kappa_identification` for it.

    Args:
        distances: (m, m) Between candidates, in a metric such as the root mean squared error.
        tolerance: Largest distance of a success.
        prior: (m,) Chances of the candidates; uniform by default.
        guesses: Images that one attack submits to be matched with the target; each may hit, so
            kappa grows by this factor.
    """
    d = np.asarray(distances, dtype=np.float64)
    at_least_zero("tolerance", tolerance)
    square = d.ndim == 2 and d.shape[0] == d.shape[1] and d.size > 0
    if not square or not (d >= 0).all() or d.diagonal().any():
        raise LeakauditError(
            f"expected distances (m, m) >= 0 with a diagonal of zeros, got shape {d.shape}"
        )
    if prior is None:
        p = np.full(len(d), 1 / len(d))
    else:
        p = np.asarray(prior, dtype=np.float64)
    if p.shape != (len(d),) or not (p >= 0).all() or abs(p.sum() - 1) > ROUNDING:
        raise LeakauditError(
            f"expected a prior of {len(d)} chances that sum to 1, "
            f"got {p.shape} with sum {p.sum():g}"
        )
    if guesses < 1:
        raise LeakauditError(f"expected at least one guess, got {guesses}")
    mass = (d <= 2 * tolerance * (1 + ROUNDING)) @ p
    return min(1.0, guesses * float(mass.max()))


def nearest(
    guarantee: Guarantee, distances: ArrayLike, chance: float, guesses: int = 1, total: float = 0.0
) -> float:
    """Return the distance below which no adversary comes with probability `chance` or more.

    The inverse of `kappa_packing`: any number below the result is a tolerance for which `success`
    is below `chance`. 0 if the guarantee excludes no distance.

    Args:
        guarantee: As for `success`.
        distances: (m, m) As for `kappa_packing`; the candidates are equally likely.
        chance: Probability above 0, at most 1.
        guesses: As for `kappa_packing`.
        total: Number of candidates that the record may be; less than m if some are excluded, m by
            default.
    """
    if not 0 < chance <= 1:
        raise LeakauditError(f"expected a probability above 0, at most 1, got {chance}")
    kappa_packing(distances, 0.0)  # it checks the distances
    ordered = np.sort(np.asarray(distances, dtype=np.float64), axis=1)
    share = guesses / (total or len(ordered))
    low = 0  # candidates that one guess may hit without reaching the chance
    high = len(ordered)
    while high - low > 1:
        middle = (low + high) // 2
        if success(guarantee, min(1.0, middle * share)) >= chance:
            high = middle
        else:
            low = middle
    return float(ordered[:, high - 1].min()) / 2


def distances(candidates: ArrayLike) -> NDArray[np.float64]:
    """Return the root mean squared errors (m, m) between candidates.

    Args:
        candidates: (m, ...) Finite numbers.
    """
    x = np.asarray(candidates, dtype=np.float64)
    if x.ndim < 2 or not len(x) or not np.isfinite(x).all():
        raise LeakauditError(f"expected finite candidates (m, ...), got shape {x.shape}")
    x = x.reshape(len(x), -1)
    return np.stack([np.sqrt(((x - one) ** 2).mean(1)) for one in x])


def tolerance(psnr: float, data_range: float) -> float:
    """Return the root mean squared error at a PSNR: data_range 10^(-psnr / 20).

    Args:
        psnr: In dB.
        data_range: Largest minus smallest possible value.
    """
    if not data_range > 0 or math.isnan(psnr):
        raise LeakauditError(
            f"expected a data range above 0 and a PSNR in dB, got {data_range} and {psnr}"
        )
    return data_range * 10 ** (-psnr / 20)
