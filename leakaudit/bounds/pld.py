"""Privacy loss distributions, for subsampling and for anything else with a known curve: dp-accounting behind one lazy import.

Discretised pessimistically on multiples of `INTERVAL` (Doroshenko et al. 2022, connect the dots), so every figure is an upper bound.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakaudit.bounds.guarantee import FAR, Adjacency, Guarantee, at_least_zero, probability
from leakaudit.errors import LeakauditError

INTERVAL = 1e-4
POINTS, ROUNDING = 8000, 1e-12  # of the table behind a power
WIDEST = 1000.0  # losses that are held, 2e7 multiples of the interval


@dataclass(frozen=True)
class Pld(Guarantee):
    """A pair of privacy loss distributions, one a direction; adaptive releases convolve (Sommer, Meiser, Mohammadi 2019)."""

    distribution: Any
    adjacency: Adjacency

    def delta(self, epsilon: float) -> float:
        """The larger of both directions."""
        far = epsilon == math.inf
        return min(
            1.0,
            float(
                self.distribution.get_delta_for_epsilon(
                    1e300 if far else at_least_zero("epsilon", epsilon)
                )
            ),
        )

    def epsilon(self, delta: float) -> float:
        """Inverse of `delta`; inf at a delta below the truncated tails, about 1e-15."""
        return float(self.distribution.get_epsilon_for_delta(probability("delta", delta)))

    def power(self, false_positives: float) -> float:
        """The bound of `curves.greatest_power`, over a table of the curve that is made once."""
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
    """Return the distribution of mu-GDP: a shift of mu under normal noise."""
    if not 0 < mu < math.inf or mu * (mu / 2 + 10) > WIDEST:
        raise LeakauditError(
            f"expected a mu above 0 and below 36 for a privacy loss distribution, got {mu}; mu-GDP itself composes exactly"
        )
    return Pld(
        _library().from_gaussian_mechanism(1 / mu, value_discretization_interval=INTERVAL),
        adjacency,
    )


def subsampled_gaussian(noise: float, rate: float, adjacency: Adjacency) -> Pld:
    """Return the distribution of one step of DP-SGD whose batch holds every record independently with chance `rate` (Poisson).

    noise: standard deviation over the clip. Assumes that no one sees who took part: where participation is public, as between
    neighbours in gossip, use rate 1. A loader that shuffles is no Poisson sampling. Adjacency NODE is refused: its batches are unknown.
    """
    if not (noise >= 0.03 and 0 < rate <= 1):
        raise LeakauditError(
            f"expected noise of at least .03 and a sampling rate above 0 and up to 1, got {noise} and {rate}"
        )
    if adjacency is Adjacency.NODE:
        raise LeakauditError(
            "expected an adjacency of one record, got NODE: Poisson sampling amplifies for records alone"
        )
    library = _library()
    relation = (
        library.NeighborRel.REPLACE_ONE
        if adjacency is Adjacency.REPLACE
        else library.NeighborRel.ADD_OR_REMOVE_ONE
    )
    made = library.from_gaussian_mechanism(
        noise,
        value_discretization_interval=INTERVAL,
        sampling_prob=rate,
        neighboring_relation=relation,
    )
    return Pld(made, adjacency)


def of_terms(terms: Iterable[tuple[float, float, int]], adjacency: Adjacency) -> Pld:
    """Return the distribution of releases of which only (epsilon, delta) and how often is known, each epsilon rounded up."""
    library, common = _library(), importlib.import_module("dp_accounting.pld.common")
    made = [
        library.from_privacy_parameters(
            common.DifferentialPrivacyParameters(e, d), INTERVAL
        ).self_compose(n)
        for e, d, n in terms
        if e or d
    ]
    return Pld(reduce(lambda a, b: a.compose(b), made, library.identity(INTERVAL)), adjacency)


def of_curve(
    curve: Callable[[float], float],
    highest: float,
    adjacency: Adjacency,
    interval: float = INTERVAL,
) -> Pld:
    """Return the distribution of any mechanism with the exact delta(epsilon) `curve`, the same in both directions.

    highest: an epsilon from which on the curve is constant, or so small that its value there may count as a complete leak. A bound
    that no mechanism attains, such as the conversion of zCDP, is no such curve.
    """
    library, pmf = _library(), importlib.import_module("dp_accounting.pld.pld_pmf")
    if not (highest <= WIDEST and interval > 0):
        raise LeakauditError(
            f"expected a highest epsilon up to {WIDEST:g} and an interval above 0, got {highest} and {interval}"
        )
    top = max(1, math.ceil(at_least_zero("highest", highest) / interval))
    above = np.array([curve(k * interval) for k in range(top + 1)])
    below = (
        -np.expm1(-interval * np.arange(top, 0, -1))
        + np.exp(-interval * np.arange(top, 0, -1)) * above[:0:-1]
    )
    made = pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -top, top, np.concatenate([below, above])
    )
    return Pld(library.PrivacyLossDistribution(made), adjacency)


def _library() -> Any:
    """Return dp_accounting's module of privacy loss distributions."""
    try:
        return importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
    except ImportError as error:
        raise LeakauditError(
            f"privacy loss distributions need dp-accounting ({error}); install it with 'pip install leakaudit[pld]'"
        ) from error
