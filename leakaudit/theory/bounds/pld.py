"""Privacy loss distributions, for subsampling and for any other mechanism with a known curve.

They are dp-accounting's, behind one lazy import. Discretised pessimistically on multiples of
`INTERVAL` (Doroshenko et al. 2022, connect the dots), so every value is an upper bound.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.guarantee import FAR, Adjacency, Guarantee, at_least_zero, probability

INTERVAL = 1e-4  # dp-accounting's default
# Epsilons of the table behind a power: at most .015 apart. A choice; every epsilon gives a valid
# bound.
POINTS = 8000
# More than the rounding error of convolutions in float64; added to delta so that a power is never
# too small.
ROUNDING = 1e-12
WIDEST = 1000.0  # largest loss that is stored: 2e7 multiples of the interval, 160 MB
SMALLEST_NOISE = 0.03  # relative to the clip; less noise needs losses beyond `WIDEST`
UNBOUNDED = 1e300  # replaces an infinite epsilon, which the library does not accept


@dataclass(frozen=True)
class Pld(Guarantee):
    """A pair of privacy loss distributions, one for each direction.

    Adaptive releases convolve (Sommer, Meiser, Mohammadi 2019).

    Attributes:
        distribution: A PrivacyLossDistribution of dp-accounting.
        adjacency: The pairs of data sets that it compares.
    """

    distribution: Any
    adjacency: Adjacency

    def delta(self, epsilon: float) -> float:
        """The larger of both directions."""
        if epsilon == math.inf:
            at = UNBOUNDED
        else:
            at = at_least_zero("epsilon", epsilon)
        return min(1.0, float(self.distribution.get_delta_for_epsilon(at)))

    def epsilon(self, delta: float) -> float:
        """Inverse of `delta`; inf at a delta below the truncated tails, about 1e-15."""
        return float(self.distribution.get_epsilon_for_delta(probability("delta", delta)))

    def power(self, false_positives: float) -> float:
        """The bound of `guarantee.greatest_power`, over a table of the curve computed once."""
        a = probability("the false positive rate", false_positives)
        if a == 0:
            return self.delta(math.inf)
        epsilon, delta = self._table
        allowed = np.minimum(np.exp(epsilon) * a + delta, 1 - np.exp(-epsilon) * (1 - delta - a))
        return min(1.0, max(a, float(allowed.min())))

    def plus(self, other: Pld) -> Pld:
        """The convolution."""
        return Pld(self.distribution.compose(other.distribution), self.adjacency)

    @cached_property
    def _table(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        epsilon = FAR * np.linspace(0, 1, POINTS) ** 2
        return epsilon, np.asarray(self.distribution.get_delta_for_epsilon(epsilon)) + ROUNDING


def gaussian(mu: float, adjacency: Adjacency) -> Pld:
    """Return the distribution of mu-GDP: a shift of mu under normal noise.

    Args:
        mu: Above 0 and below about 36.
        adjacency: The pairs of data sets that mu compares.
    """
    # The loss is normal with mean mu^2 / 2 and deviation mu; the stored range must extend to ten
    # deviations above its mean.
    if not 0 < mu < math.inf or mu * (mu / 2 + 10) > WIDEST:
        raise LeakauditError(
            "expected a mu above 0 and below 36 for a privacy loss distribution, "
            f"got {mu}; mu-GDP itself composes exactly"
        )
    made = _library().from_gaussian_mechanism(1 / mu, value_discretization_interval=INTERVAL)
    return Pld(made, adjacency)


def subsampled_gaussian(noise: float, rate: float, adjacency: Adjacency) -> Pld:
    """Return the distribution of one step of DP-SGD with Poisson sampling.

    The batch contains every record independently. Participation must be secret: if it is public, as
    between neighbours in gossip, use rate 1. A data loader that shuffles is not Poisson sampling.

    Args:
        noise: Standard deviation over the clip.
        rate: Probability that a record is in the batch.
        adjacency: Of one record; NODE is rejected, because its batches are unknown.
    """
    if not (noise >= SMALLEST_NOISE and 0 < rate <= 1):
        raise LeakauditError(
            "expected noise of at least .03 and a sampling rate above 0 and up to 1, "
            f"got {noise} and {rate}"
        )
    if adjacency is Adjacency.NODE:
        raise LeakauditError(
            "expected an adjacency of one record, got NODE: "
            "amplification by Poisson sampling applies only to records"
        )
    library = _library()
    relation = library.NeighborRel.ADD_OR_REMOVE_ONE
    if adjacency is Adjacency.REPLACE:
        relation = library.NeighborRel.REPLACE_ONE
    made = library.from_gaussian_mechanism(
        noise,
        value_discretization_interval=INTERVAL,
        sampling_prob=rate,
        neighboring_relation=relation,
    )
    return Pld(made, adjacency)


def of_terms(terms: Iterable[tuple[float, float, int]], adjacency: Adjacency) -> Pld:
    """Return the distribution of releases for which only (epsilon, delta) is known.

    Each epsilon is rounded up to the discretisation.

    Args:
        terms: (epsilon, delta, how often).
        adjacency: The pairs of data sets that they compare.
    """
    library = _library()
    common = importlib.import_module("dp_accounting.pld.common")
    total = library.identity(INTERVAL)
    for epsilon, delta, times in terms:
        if epsilon or delta:
            parameters = common.DifferentialPrivacyParameters(epsilon, delta)
            one = library.from_privacy_parameters(parameters, INTERVAL)
            total = total.compose(one.self_compose(times))
    return Pld(total, adjacency)


def _library() -> Any:
    try:
        return importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
    except ImportError as error:
        raise LeakauditError(
            f"privacy loss distributions need dp-accounting ({error}); "
            "install it with 'pip install leakaudit[pld]'"
        ) from error
