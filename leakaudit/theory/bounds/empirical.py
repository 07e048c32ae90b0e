"""What the counts of an attack prove at a given confidence: lower limits on epsilon and mu.

Trials must be independent, and the threshold that converts scores to guesses fixed before them.
alpha is the probability of a false alarm that one call may cause; several calls share it
(Bonferroni, Holm). Without confidence intervals, log(TPR / FPR) at the best threshold of the same
data averages about .7 on pure noise. Zero trials prove nothing: every limit is then 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betainccinv, betaincinv, ndtri

from leakaudit._util.bisection import bracket_integer, crossing, crossing_integer
from leakaudit.core.errors import LeakauditError
from leakaudit.core.verdict import MOST_TRIALS
from leakaudit.theory.bounds.guarantee import at_least_zero, probability

# `credible_epsilon` searches up to e^100 and halves 60 times: to 1e-16, the spacing of floats
# around 1.
WIDEST = 100.0
HALVINGS = 60


@dataclass(frozen=True)
class Counts:
    """Guesses about records, made with a threshold that was fixed beforehand.

    Attributes:
        true_positives: Records that were present and were guessed to be present.
        positives: Records that were present.
        false_positives: Records that were absent and were guessed to be present.
        negatives: Records that were absent.
    """

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


def at_least(successes: ArrayLike, trials: int, rate: float) -> NDArray[np.float64]:
    """Return the probability of at least this number of successes, P[Bin(trials, rate) >= k].

    It is the survival function of `scipy.stats.binom`, whose import takes longer than most audits'
    arithmetic.

    Args:
        successes: Integers k of any shape; certain from 0 down, impossible above `trials`.
        trials: At least 0.
        rate: Chance of a success, between 0 and 1.
    """
    k = np.asarray(successes, dtype=float)
    possible = (k > 0) & (k <= trials)
    inside = np.where(possible, k, 1.0)
    tail = betainc(inside, np.maximum(trials - inside + 1, 1.0), rate)
    return np.where(possible, tail, k <= 0)


def lower(successes: int, trials: int, alpha: float) -> float:
    """Return the one-sided lower limit of a success rate at confidence 1 - alpha; 0 without trials.

    Source: Clopper, Pearson 1934.

    Args:
        successes: At most `trials`.
        trials: At least 0.
        alpha: Chance that the limit is above the rate.
    """
    _check_trials(successes, trials, alpha)
    if not successes:
        return 0.0
    return float(betaincinv(successes, trials - successes + 1, alpha))


def upper(successes: int, trials: int, alpha: float) -> float:
    """Return the one-sided upper limit, 1 without trials; see `lower`.

    Args:
        successes: At most `trials`.
        trials: At least 0.
        alpha: Chance that the limit is below the rate.
    """
    _check_trials(successes, trials, alpha)
    if successes == trials:
        return 1.0
    return float(betainccinv(successes + 1, trials - successes, alpha))


def epsilon_lower(counts: Counts, delta: float, alpha: float, *, both: bool = False) -> float:
    """Return a lower limit on epsilon of any mechanism: log((TPR_low - delta) / FPR_high).

    Each limit is taken at alpha / 2. It contradicts a claim of (epsilon, delta)-DP under the
    adjacency in which the trials differ. Source: Jagielski, Ullman, Oprea 2020.

    Args:
        counts: Of the attack.
        delta: Between 0 and 1.
        alpha: Chance of a false alarm.
        both: Use also the complementary event, log((TNR_low - delta) / FNR_high); each event then
            has half of alpha.
    """
    probability("delta", delta)
    _check_trials(0, 0, alpha)
    c = counts
    share = alpha / (4 if both else 2)
    found = [
        _log_ratio(
            lower(c.true_positives, c.positives, share) - delta,
            upper(c.false_positives, c.negatives, share),
        )
    ]
    if both:
        missed = c.positives - c.true_positives
        kept = c.negatives - c.false_positives
        found.append(
            _log_ratio(lower(kept, c.negatives, share) - delta, upper(missed, c.positives, share))
        )
    return max(0.0, *found)


def mu_lower(counts: Counts, alpha: float) -> float:
    """Return a lower limit on mu: Phi^-1(1 - FPR_high) - Phi^-1(FNR_high).

    Each limit is taken at alpha / 2 (Nasr et al. 2023). It is evidence only against claims of
    mu-GDP: converted to epsilon, it extrapolates to tests that were not performed.

    Args:
        counts: Of the attack.
        alpha: Chance of a false alarm.
    """
    _check_trials(0, 0, alpha)
    c = counts
    false = upper(c.false_positives, c.negatives, alpha / 2)
    missed = upper(c.positives - c.true_positives, c.positives, alpha / 2)
    if max(false, missed) == 1:
        return 0.0
    return max(0.0, -float(ndtri(false)) - float(ndtri(missed)))


def credible_epsilon(counts: Counts, delta: float, alpha: float, nodes: int = 4000) -> float:
    """Return the alpha quantile of epsilon if both error rates have Jeffreys priors.

    It is a degree of belief that exceeds `epsilon_lower` and raises false alarms more often than
    alpha, so no verdict may rest on it. For each epsilon, the posterior mass of the privacy region
    (all four inequalities) is one quadrature over quantiles of the false positive rate, whereas the
    paper draws samples. Source: Zanella-Beguelin et al. 2022.

    Args:
        counts: Of the attack.
        delta: Between 0 and 1.
        alpha: The quantile.
        nodes: Quantiles of the false positive rate.
    """
    from scipy.stats import beta  # slow to import

    probability("delta", delta)
    _check_trials(0, 0, alpha)
    c = counts
    fpr = beta.ppf(
        (np.arange(nodes) + 0.5) / nodes,
        c.false_positives + 0.5,
        c.negatives - c.false_positives + 0.5,
    )
    fnr = beta(c.positives - c.true_positives + 0.5, c.true_positives + 0.5)

    def within(epsilon: float) -> float:
        """Return the posterior mass of (epsilon, delta)-DP."""
        e = math.exp(epsilon)
        low = np.maximum((1 - delta - fpr) / e, 1 - delta - e * fpr)
        high = np.minimum(1 - (fpr - delta) / e, delta + e * (1 - fpr))
        return float(np.maximum(fnr.cdf(high) - fnr.cdf(low), 0).mean())

    if within(0.0) >= alpha:
        return 0.0
    return crossing(lambda e: within(e) >= alpha, 0.0, WIDEST, side="above", halvings=HALVINGS)


def certifiable(trials: int, delta: float, alpha: float) -> float:
    """Return the largest epsilon that can be proven, by an attack without errors.

    It is about log(trials / 3.7) at alpha = .05 and log(trials / 5.3) at alpha = .01, for delta =
    0.

    Args:
        trials: Number on each side.
        delta: Between 0 and 1.
        alpha: Chance of a false alarm.
    """
    return epsilon_lower(Counts(trials, trials, 0, trials), delta, alpha)


def trials_for(epsilon: float, delta: float, alpha: float) -> int:
    """Return the number of trials on each side that prove `epsilon` by an attack without errors.

    Args:
        epsilon: At least 0.
        delta: Between 0 and 1.
        alpha: Chance of a false alarm.

    Raises:
        LeakauditError: More than ten million trials are needed.
    """
    at_least_zero("epsilon", epsilon)

    def enough(trials: int) -> bool:
        return certifiable(trials, delta, alpha) >= epsilon

    ends = bracket_integer(enough, MOST_TRIALS)
    if ends is None:
        raise LeakauditError(
            f"expected an epsilon that {MOST_TRIALS:,} trials can prove at delta {delta:g}, "
            f"got {epsilon:g}; use mu_lower"
        )
    return crossing_integer(enough, *ends)


def detection(trials: int, bound: float, rate: float, alpha: float) -> float:
    """Return the power: the probability that the lower limit of a success rate exceeds a bound.

    Args:
        trials: At least 0.
        bound: The claimed bound of the success rate.
        rate: The true success rate.
        alpha: Chance of a false alarm.
    """
    _check_trials(0, trials, alpha)
    probability("the bound", bound)
    probability("the rate", rate)
    if bound == 1 or trials == 0:
        return 0.0
    # lower(k) > bound exactly if P[Bin(trials, bound) >= k] < alpha
    critical = crossing_integer(
        lambda k: float(at_least(k, trials, bound)) <= alpha, low=0, high=trials + 1
    )
    return float(at_least(critical, trials, rate))


def _log_ratio(above: float, below: float) -> float:
    return math.log(above / below) if above > 0 else 0.0


def _check_trials(successes: int, trials: int, alpha: float) -> None:
    if not 0 <= successes <= trials or not 0 < alpha < 1:
        raise LeakauditError(
            "expected 0 <= successes <= trials and 0 < alpha < 1, "
            f"got {successes} of {trials} and {alpha}"
        )
