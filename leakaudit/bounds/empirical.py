"""What counts of an attack prove, at a confidence: lower limits on epsilon and mu, and how many trials a verdict needs.

Trials must be independent, and the threshold that turns scores into guesses fixed before these trials. alpha is the chance of a false
alarm that one call may take; several calls share it (Bonferroni, Holm). Without an interval, log(TPR / FPR) at the best threshold of the
same data averages about .7 on pure noise. Zero trials prove nothing: every limit is then 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta, binom

from leakaudit._util.bisection import bracket_integer, crossing, crossing_integer
from leakaudit.bounds.guarantee import at_least_zero, probability
from leakaudit.errors import LeakauditError

MOST = 10_000_000  # trials


@dataclass(frozen=True)
class Counts:
    """Guesses on records that were there (positives) and that were not (negatives), by a threshold that was fixed beforehand."""

    true_positives: int
    positives: int
    false_positives: int
    negatives: int

    def __post_init__(self) -> None:
        if not (
            0 <= self.true_positives <= self.positives
            and 0 <= self.false_positives <= self.negatives
        ):
            raise LeakauditError(f"expected counts between 0 and the number of trials, got {self}")


def lower(successes: int, trials: int, alpha: float) -> float:
    """Return the one-sided lower limit of a success rate at confidence 1 - alpha; 0 without trials (Clopper, Pearson 1934)."""
    _trials(successes, trials, alpha)
    return float(beta.ppf(alpha, successes, trials - successes + 1)) if successes else 0.0


def upper(successes: int, trials: int, alpha: float) -> float:
    """Return the one-sided upper limit of a success rate at confidence 1 - alpha; 1 without trials (Clopper, Pearson 1934)."""
    _trials(successes, trials, alpha)
    return float(beta.isf(alpha, successes + 1, trials - successes)) if successes < trials else 1.0


def epsilon_lower(counts: Counts, delta: float, alpha: float, *, both: bool = False) -> float:
    """Return a lower limit on epsilon of any mechanism at `delta`: log((TPR_low - delta) / FPR_high), each limit at alpha / 2.

    both: also the complementary event, log((TNR_low - delta) / FNR_high), at half of alpha each. It contradicts a claim of
    (epsilon, delta)-DP under the adjacency in which the trials differ. Source: Jagielski, Ullman, Oprea 2020.
    """
    probability("delta", delta)
    _trials(0, 0, alpha)
    c, share = counts, alpha / (4 if both else 2)
    found = [
        _ratio(
            lower(c.true_positives, c.positives, share) - delta,
            upper(c.false_positives, c.negatives, share),
        )
    ]
    if both:
        missed, kept = c.positives - c.true_positives, c.negatives - c.false_positives
        found.append(
            _ratio(lower(kept, c.negatives, share) - delta, upper(missed, c.positives, share))
        )
    return max(0.0, *found)


def mu_lower(counts: Counts, alpha: float) -> float:
    """Return a lower limit on mu: Phi^-1(1 - FPR_high) - Phi^-1(FNR_high), each limit at alpha / 2 (Nasr et al. 2023).

    It is evidence against a claim of mu-GDP alone: turned into epsilon it extrapolates to tests that were not made, so compare it
    with claims of Gaussian noise, not with any (epsilon, delta).
    """
    _trials(0, 0, alpha)
    c = counts
    false = upper(c.false_positives, c.negatives, alpha / 2)
    missed = upper(c.positives - c.true_positives, c.positives, alpha / 2)
    return max(0.0, -float(ndtri(false)) - float(ndtri(missed))) if max(false, missed) < 1 else 0.0


def credible_epsilon(counts: Counts, delta: float, alpha: float, nodes: int = 4000) -> float:
    """Return the alpha quantile of epsilon if both error rates have Jeffreys priors: a degree of belief, never a reason for a verdict.

    It exceeds `epsilon_lower` and raises false alarms more often than alpha. One quadrature over `nodes` quantiles of the false
    positive rate, in place of sampling. Source: Zanella-Beguelin et al. 2022, all four inequalities of the privacy region.
    """
    probability("delta", delta)
    _trials(0, 0, alpha)
    c = counts
    fpr = beta.ppf(
        (np.arange(nodes) + 0.5) / nodes,
        c.false_positives + 0.5,
        c.negatives - c.false_positives + 0.5,
    )
    fnr = beta(c.positives - c.true_positives + 0.5, c.true_positives + 0.5)

    def within(epsilon: float) -> float:
        e = math.exp(epsilon)
        low = np.maximum((1 - delta - fpr) / e, 1 - delta - e * fpr)
        high = np.minimum(1 - (fpr - delta) / e, delta + e * (1 - fpr))
        return float(np.maximum(fnr.cdf(high) - fnr.cdf(low), 0).mean())

    if within(0.0) >= alpha:
        return 0.0
    return crossing(lambda e: not within(e) < alpha, 0.0, 100.0, side="above", halvings=60)


def certifiable(trials: int, delta: float, alpha: float) -> float:
    """Return the largest epsilon that `trials` on each side can prove: what a perfect attack would get, about log(trials / 3.7)."""
    return epsilon_lower(Counts(trials, trials, 0, trials), delta, alpha)


def trials_for(epsilon: float, delta: float, alpha: float) -> int:
    """Return how many trials on each side a perfect attack needs to prove `epsilon`; raises LeakauditError above ten million."""
    at_least_zero("epsilon", epsilon)

    def enough(trials: int) -> bool:
        return certifiable(trials, delta, alpha) >= epsilon

    ends = bracket_integer(enough, MOST)
    if ends is None:
        raise LeakauditError(
            f"expected an epsilon that {MOST:,} trials can prove at delta {delta:g}, got {epsilon:g}; use mu_lower"
        )
    return crossing_integer(enough, *ends)


def detection(trials: int, bound: float, rate: float, alpha: float) -> float:
    """Return the power: the chance that an attack with success rate `rate` exceeds `bound` by its lower limit in `trials` trials."""
    _trials(0, trials, alpha)
    probability("the bound", bound)
    probability("the rate", rate)
    if bound == 1 or trials == 0:
        return 0.0
    critical = (
        int(binom.isf(alpha, trials, bound)) + 1
    )  # lower(k) > bound exactly where P[Bin(trials, bound) >= k] < alpha
    return float(binom.sf(critical - 1, trials, rate))


def trials_to_detect(bound: float, rate: float, alpha: float, power: float = 0.8) -> int:
    """Return about how many trials make `detection` reach `power`; raises LeakauditError where the rate does not exceed the bound."""
    if not 0 <= bound < rate <= 1 or not 0 < power < 1:
        raise LeakauditError(
            f"expected bound < rate <= 1 and 0 < power < 1, got {bound}, {rate} and {power}"
        )

    def enough(trials: int) -> bool:
        return detection(trials, bound, rate, alpha) >= power

    ends = bracket_integer(enough, MOST)
    if ends is None:
        raise LeakauditError(
            f"expected a rate that {MOST:,} trials can tell from {bound}, got {rate}"
        )
    return crossing_integer(enough, *ends)


def _ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > 0 else 0.0


def _trials(successes: int, trials: int, alpha: float) -> None:
    if not 0 <= successes <= trials or not 0 < alpha < 1:
        raise LeakauditError(
            f"expected 0 <= successes <= trials and 0 < alpha < 1, got {successes} of {trials} and {alpha}"
        )
