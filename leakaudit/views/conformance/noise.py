"""Is the noise as declared? Tests of its size, independence, tails and distribution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import bdtr, betaincc, chdtr, gammaincinv, ndtr, ndtri

from leakaudit._util.plain import Figures
from leakaudit.core.verdict import Verdict
from leakaudit.theory.bounds.empirical import upper
from leakaudit.views.conformance import draws
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.pitfall import Pitfall, chance_text
from leakaudit.views.conformance.samples import (
    ENOUGH,
    LEVEL,
    Floats,
    Sample,
    clear,
    estimates,
    every_draw_of_truth,
    of_draws,
    pick,
)
from leakaudit.views.conformance.substitute import NormalisedNoise

TAILS = (2.0, 2.5, 3.0)  # standard deviations beyond which numbers are counted: a choice
# If two rows share their noise, only rounding remains in their sum or difference. If more than
# SHARED of its declared size remains, the noise has another fault, such as too small a size, and
# the rows count as independent: a choice.
SHARED = 0.7
# Two rows of variance 1 are declared to share one draw if their sum or difference has a declared
# variance below this.
ROUNDED = 1e-6
LAGS = 4  # largest distance of rounds at which all rounds are pooled and compared: a choice
SINGLE = 16  # number of rows of a node that are compared one by one: a choice
FEWEST = 16  # fewest numbers for a correlation of noise that is not normal: a choice
ENOUGH_FOR_LAW = 100  # fewest numbers for the Kolmogorov-Smirnov test: a choice
UNCORRELATED = 1e-6  # correlation of declared noise up to which it is rounding
# If two draws are the same, a sum or a difference of two rows has a variance that is too low,
# whatever the gradients are. What a trace determines is a gradient plus noise, and an unknown shift
# makes a coordinate of symmetric, unimodal noise large more often, never less often (Anderson
# 1955): P[|shift + e| > x] >= P[|e| > x]. If there are too few coordinates beyond a level, the
# noise is therefore smaller than declared. Normal noise from the truth is tested by the chi-square
# distribution of its energy; noise of other distributions by a bound on its energy, for independent
# X >= 0 with mean 1 (Maurer 2003): P[sum X <= n - t] <= exp(-t^2 / (2 n E X^2)).

BEYOND = 1.0  # the level, in standard deviations: a choice
KURTOSIS = 6.0  # E X^2 of the squared coordinates of Laplace noise, the heaviest tails declared
NOTHING = 1e-9  # share of the largest variance; rounding, about 1e-15, is below it: a choice


def check(case: Case) -> Iterator[Pitfall]:
    """Yield the differences between the noise and its declaration."""
    found = list(of_every_draw(every_draw_of_truth(case), case.trace.layout.slices))
    yield from found or judged(list(estimates(case)))


def of_every_draw(
    noise: Sequence[NormalisedNoise], layers: Mapping[str, slice[int, int, None]]
) -> Iterator[Pitfall]:
    """Yield the differences between draws that are known and their declaration."""
    found = list(judged(of_draws(noise)))
    kept = [one for one in map(clear, noise) if len(one.std)]
    yield from found or draws.judged(kept, layers)


def judged(samples: list[Sample]) -> Iterator[Pitfall]:
    """Yield the differences between noise and its declaration."""
    if not samples:
        return
    # A fault may also fail the tests for other faults: shared noise looks too small, another
    # distribution looks like another size, and noise that is too small has missing tails. Each
    # fault is therefore tested before those that it may look like, and hides them.
    shared = list(_shared(samples))
    yield from shared
    if shared:
        samples = [pick(sample, [0]) for sample in samples]
    law = list(_law(samples))
    yield from law
    if not law:
        size = list(insufficient(samples))
        yield from size
        if size:
            return
    yield from _tails(samples)


def insufficient(samples: list[Sample]) -> Iterator[Pitfall]:
    """Compare the size of the noise of each node, and of all nodes, with the declared size."""
    if not samples:
        return
    groups = [[sample] for sample in samples]
    one_law = all(sample.gaussian == samples[0].gaussian for sample in samples)
    if len(samples) > 1 and one_law and all(sample.alone for sample in samples):
        groups.append(samples)
    level = LEVEL / len(groups)
    low: list[tuple[list[Sample], _LowVariance]] = []
    for group in groups:
        measured = low_variance(group, level)
        if measured.chance < level and measured.size < ENOUGH:
            low.append((group, measured))
    if not low:
        return
    group, worst = min(low, key=lambda pair: (pair[1].chance, len(pair[0])))
    first = group[0]
    declared = float(np.median(np.concatenate([sample.std for sample in group])))
    who = f"node {first.node}"
    if len(group) > 1:
        who = f"{len(group)} nodes together"
    condition = ", if it is normal" if first.hidden else ""
    says = (
        f"the noise of {who} is at most {worst.limit:.3g} times the declared {declared:.3g} "
        f"(measured {worst.size:.3g}{condition}; {worst.numbers} numbers, "
        f"chance {chance_text(worst.chance)})"
    )
    figures: Figures = {
        "nodes": [sample.node for sample in group],
        "declared": declared,
        "ratio": worst.size,
        "limit": worst.limit,
    }
    if not first.hidden and first.gaussian:
        figures["interval"] = _interval(declared * worst.size, worst.numbers)
    figures["chance"] = worst.chance
    figures["numbers"] = worst.numbers
    yield Pitfall(20, Verdict.REFUTED, says, figures)


def _interval(std: float, numbers: int) -> list[float]:
    """Return the 99 % confidence interval of a measured standard deviation of normal numbers."""
    upper_tail = [2 * gammaincinv(numbers / 2, q) for q in (0.995, 0.005)]
    return [std * float(np.sqrt(numbers / quantile)) for quantile in upper_tail]


@dataclass(frozen=True)
class _RowPair:
    """Rows that are compared with the same number of other rows."""

    a: Sample  # sample with the first rows
    rows_a: list[int]  # numbers of the first rows
    b: Sample  # sample with the other rows
    rows_b: list[int]  # numbers of the other rows


def _shared(samples: list[Sample]) -> Iterator[Pitfall]:
    pairs = list(_pairs(samples))
    sizes = {id(sample): min(1.0, low_variance([sample], LEVEL).size) for sample in samples}
    found: list[tuple[float, str, str]] = []
    for pair in pairs:
        most = SHARED * min(sizes[id(pair.a)], sizes[id(pair.b)])
        chance = _alike(pair, LEVEL / len(pairs), most)
        if chance < LEVEL / len(pairs):
            found.append((chance, _where(pair.a, pair.rows_a), _where(pair.b, pair.rows_b)))
    if not found:
        return
    chance, one, other = min(found)
    says = (
        f"the noise on {one} and on {other} is not independent (chance {chance_text(chance)}); "
        f"the same holds for {len(found)} of {len(pairs)} pairs that were compared"
    )
    figures: Figures = {
        "first": one,
        "again": other,
        "chance": chance,
        "pairs": len(found),
        "compared": len(pairs),
    }
    yield Pitfall(6, Verdict.REFUTED, says, figures)


def _where(sample: Sample, rows: Sequence[int]) -> str:
    label = f"{sample.labels[rows[0]]} of node {sample.node}"
    if len(rows) == 1:
        return label
    return f"{label} and {len(rows) - 1} later ones"


def _pairs(samples: list[Sample]) -> Iterator[_RowPair]:
    """Yield the pairs that are compared.

    These are rounds of one node at small distances, pooled; single rounds of one node; and the same
    rounds of two nodes, pooled.
    """
    for sample in samples:
        count = len(sample.value)
        for lag in range(1, min(LAGS, count - 1) + 1):
            # Blocks of `lag` rows are compared with the next `lag` rows: no row is on both sides.
            first = [k for k in range(count - lag) if k % (2 * lag) < lag]
            yield _RowPair(sample, first, sample, [k + lag for k in first])
        for i, j in itertools.combinations(range(min(count, SINGLE)), 2):
            yield _RowPair(sample, [i], sample, [j])
    for a, b in itertools.combinations(samples, 2):
        common = sorted(set(a.rounds) & set(b.rounds))
        if common and a.alone and b.alone:
            rows_a = [a.rounds.index(t) for t in common]
            rows_b = [b.rounds.index(t) for t in common]
            yield _RowPair(a, rows_a, b, rows_b)


def _alike(pair: _RowPair, level: float, most: float) -> float:
    """Return an upper bound on the probability that independent noise looks this similar.

    Similar means equal up to a common factor of either sign.

    Args:
        most: Size of the sum or difference, relative to the declared size, from which on the noise
            counts as independent.
    """
    if not pair.a.hidden:
        return _correlated(pair)
    a = pair.a
    b = pair.b
    std_a = a.std[pair.rows_a][:, None]
    std_b = b.std[pair.rows_b][:, None]
    value_a = a.value[pair.rows_a] / std_a
    value_b = b.value[pair.rows_b] / std_b
    factor_a = a.factor[pair.rows_a] / std_a
    factor_b = b.factor[pair.rows_b] / std_b
    chance = 1.0
    for sign in (1.0, -1.0):
        # Rows of one node are functions of the same e. Those of two nodes are functions of
        # different ones, so the sign of the second does not matter.
        factor = factor_a + sign * factor_b if a is b else np.hstack([factor_a, factor_b])
        value = value_a + sign * value_b
        both = replace(a, value=value, factor=factor, gaussian=a.gaussian and b.gaussian)
        measured = low_variance([both], level, ROUNDED)
        if measured.size < most:
            chance = min(chance, 2 * measured.chance)
    return chance


def _correlated(pair: _RowPair) -> float:
    """Return the probability that independent noise from a truth has such a large correlation.

    The squared cosine of two independent normal vectors of n numbers has the distribution
    Beta(1/2, (n - 1)/2).
    """
    x = pair.a.value[pair.rows_a].ravel()
    y = pair.b.value[pair.rows_b].ravel()
    n = len(x)
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    if n < 2 or size == 0 or (not pair.a.gaussian and n < FEWEST):
        return 1.0
    cosine = min(1.0, abs(float(x @ y)) / size)
    return float(betaincc(0.5, (n - 1) / 2, cosine**2))


@dataclass(frozen=True)
class _Tail:
    """Numbers beyond a level."""

    chance: float  # probability of this many or fewer
    level: float  # the level, in standard deviations
    above: int  # how many there are
    sample: Sample  # the sample that contains them


def _tails(samples: list[Sample]) -> Iterator[Pitfall]:
    """Find normal noise of the declared size whose large values are missing."""
    missing: list[_Tail] = []
    for sample in samples:
        if not sample.gaussian or not _independent(sample):
            continue
        sizes = np.abs(sample.value)
        for level in TAILS:
            above = int((sizes > level * sample.std[:, None]).sum())
            chance = float(bdtr(above, sample.value.size, 2 * ndtr(-level)))
            if chance < LEVEL / (len(samples) * len(TAILS)):
                missing.append(_Tail(chance, level, above, sample))
    if not missing:
        return
    worst = min(missing, key=lambda tail: tail.chance)
    node = worst.sample.node
    n = worst.sample.value.size
    expected = n * 2 * float(ndtr(-worst.level))
    says = (
        f"{worst.above} of {n} numbers of node {node} lie beyond {worst.level:g} standard "
        f"deviations; with normal noise, {expected:.0f} or more are expected "
        f"(chance {chance_text(worst.chance)}): the noise is bounded"
    )
    figures: Figures = {
        "node": node,
        "beyond": worst.above,
        "numbers": n,
        "level": worst.level,
        "chance": worst.chance,
    }
    yield Pitfall(10, Verdict.REFUTED, says, figures)


def _independent(sample: Sample) -> bool:
    """Return whether the declared noise of the rows is uncorrelated, so numbers may be counted."""
    covariance: Floats = sample.factor @ sample.factor.T
    others = np.abs(covariance - np.diag(np.diag(covariance)))
    return bool((others <= UNCORRELATED * np.outer(sample.std, sample.std)).all())


def _law(samples: list[Sample]) -> Iterator[Pitfall]:
    from scipy.stats import kstest  # slow to import

    for sample in samples:
        if not sample.gaussian or sample.hidden or sample.value.size < ENOUGH_FOR_LAW:
            continue
        # The size is tested elsewhere, so the numbers are scaled to variance 1.
        numbers = (sample.value / sample.std[:, None]).ravel()
        numbers = numbers / max(1e-300, float(np.sqrt((numbers**2).mean())))
        chance = float(kstest(numbers, "norm").pvalue)
        if chance < LEVEL / len(samples):
            says = (
                f"the noise of node {sample.node} is declared to be normal, but it is not "
                f"(Kolmogorov-Smirnov: chance {chance_text(chance)}, {len(numbers)} numbers)"
            )
            figures: Figures = {
                "node": sample.node,
                "numbers": len(numbers),
                "chance": chance,
            }
            yield Pitfall(13, Verdict.REFUTED, says, figures)
            return


# --- variance -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LowVariance:
    """Evidence that noise is smaller than declared."""

    chance: float  # upper bound on the probability of such small numbers under the declared noise
    size: float  # measured standard deviation, relative to the declared one
    limit: float  # upper confidence limit of the size
    numbers: int  # how many numbers were tested


def low_variance(samples: Sequence[Sample], level: float, least: float = 0.0) -> _LowVariance:
    """Test all rows of samples together."""
    white = [_white(sample, least) for sample in samples]
    numbers = np.concatenate([combined.ravel() for combined in white])
    n = len(numbers)
    if n == 0:
        return _LowVariance(1.0, 1.0, math.inf, 0)
    first = samples[0]
    if first.gaussian and first.hidden:
        return _by_counting(numbers, level)
    if first.gaussian:
        return _by_chi_square(numbers, level)
    # The rows of one column are uncorrelated, but not independent, so X is the energy of a column
    # of r rows: E X^2 <= r^2 KURTOSIS, which for n / r columns results in 2 n r KURTOSIS.
    rows = max(len(combined) for combined in white)
    return _by_maurer(numbers, level, moment=2 * KURTOSIS * rows)


def _white(sample: Sample, least: float) -> Floats:
    """Return combinations of the rows whose declared noise is independent, of variance 1.

    Combinations without noise are left out.
    """
    variance, basis = np.linalg.eigh(sample.factor @ sample.factor.T)
    keep = variance > max(NOTHING * float(variance.max(initial=0.0)), least)
    return np.asarray((basis[:, keep] / np.sqrt(variance[keep])).T @ sample.value)


def _by_counting(numbers: Floats, level: float) -> _LowVariance:
    """Test normal noise under unknown shifts: count the numbers beyond BEYOND."""
    n = len(numbers)
    beyond = int((np.abs(numbers) > BEYOND).sum())
    chance = float(bdtr(beyond, n, 2 * ndtr(-BEYOND)))
    size = _scale(max(beyond, 0.5) / n)
    limit = _scale(upper(beyond, n, level))
    return _LowVariance(chance, size, limit, n)


def _by_chi_square(numbers: Floats, level: float) -> _LowVariance:
    n = len(numbers)
    energy = float((numbers**2).sum())
    chance = float(chdtr(n, energy))
    limit = math.sqrt(energy / float(2 * gammaincinv(n / 2, level)))
    return _LowVariance(chance, math.sqrt(energy / n), limit, n)


def _by_maurer(numbers: Floats, level: float, moment: float) -> _LowVariance:
    """Test noise of any distribution by its energy; moment: 2 r KURTOSIS, for columns of r rows."""
    n = len(numbers)
    energy = float((numbers**2).sum())
    size = math.sqrt(energy / n)
    chance = math.exp(-(max(0.0, n - energy) ** 2) / (moment * n))
    # At the energy n (1 - short), the bound equals `level`.
    short = math.sqrt(moment * -math.log(level) / n)
    limit = size / math.sqrt(max(1e-12, 1 - short))
    return _LowVariance(chance, size, limit, n)


def _scale(share: float) -> float:
    """Return the standard deviation at which this share of normal numbers lies beyond BEYOND."""
    if share >= 1:
        return math.inf
    return float(BEYOND / -ndtri(share / 2))
