"""Is the noise what is declared? Tests of its size, its independence, its tails and its law.

If two draws are the same, a sum or a difference of two rows has a variance that is too low
(`variance`), whatever the gradients are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincc, ndtr
from scipy.stats import binom, chi2, kstest

from leakaudit._util.plain import Figures
from leakaudit.lint.case import Case
from leakaudit.lint.pitfall import Pitfall, chance_text
from leakaudit.lint.samples import Floats, Sample, of_trace, of_truth, pick
from leakaudit.lint.variance import LowVariance, low_variance
from leakaudit.verdict import Verdict

LEVEL = 1e-5  # chance of a false alarm of each kind of test on one trace: a choice
TAILS = (2.0, 2.5, 3.0)  # standard deviations beyond which numbers are counted: a choice
ENOUGH = 1 - 1e-3  # of the declared size: noise closer to it counts as equal
# Shared noise leaves only rounding in a sum or difference. One that keeps more than SHARED of its
# declared size has another fault, such as too little noise, and counts as independent: a choice.
SHARED = 0.7
# Variance of the sum or difference of two rows of variance 1 that are one draw as declared.
ROUNDED = 1e-6
LAGS = 4  # distances of rounds that are compared with all rounds pooled: a choice
SINGLE = 16  # rows of a node that are compared one by one: a choice
FEWEST = 16  # numbers for a correlation of noise that is not normal: a choice
ENOUGH_FOR_LAW = 100  # numbers for Kolmogorov and Smirnov's test: a choice
UNCORRELATED = 1e-6  # correlation of declared noise that is rounding


def check(case: Case) -> Iterator[Pitfall]:
    """Yield in what the noise differs from the declared one.

    Args:
        case: the noise in its truth is tested rather than that in its trace, if it has one.
    """
    for read in (of_truth, of_trace):
        found = list(judged(list(read(case))))
        if found:
            yield from found
            return


def judged(samples: list[Sample]) -> Iterator[Pitfall]:
    """Yield in what noise differs from the declared one.

    Args:
        samples: of the noise, or of gradients with noise.
    """
    if not samples:
        return
    # One fault may show in the tests of others: shared noise as too little of it, another law as
    # another size, too little noise as missing tails. So each is looked for before the ones that it
    # would show as, and hides them.
    shared = list(_shared(samples))
    yield from shared
    if shared:
        samples = [pick(sample, [0]) for sample in samples]
    law = list(_law(samples))
    yield from law
    if not law:
        size = list(_size(samples))
        yield from size
        if size:
            return
    yield from _tails(samples)


def _size(samples: list[Sample]) -> Iterator[Pitfall]:
    """Compare the size of each node's noise, and of all nodes' together, with the declared one."""
    groups = [[sample] for sample in samples]
    one_law = all(sample.gaussian == samples[0].gaussian for sample in samples)
    if len(samples) > 1 and one_law and all(sample.alone for sample in samples):
        groups.append(samples)
    level = LEVEL / len(groups)
    low: list[tuple[list[Sample], LowVariance]] = []
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
        f"the noise of {who} is at most {worst.limit:.3g} of the declared {declared:.3g} "
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
    upper_tail = [chi2.ppf(q, numbers) for q in (0.995, 0.005)]
    return [std * float(np.sqrt(numbers / quantile)) for quantile in upper_tail]


@dataclass(frozen=True)
class _RowPair:
    """Rows that are compared with as many other rows.

    Attributes:
        a: sample of the ones.
        rows_a: their numbers.
        b: sample of the others.
        rows_b: their numbers.
    """

    a: Sample
    rows_a: list[int]
    b: Sample
    rows_b: list[int]


def _shared(samples: list[Sample]) -> Iterator[Pitfall]:
    """Find two draws that are the same."""
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
        f"so are {len(found)} of {len(pairs)} pairs that were compared"
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
    """Name rows of a sample."""
    label = f"{sample.labels[rows[0]]} of node {sample.node}"
    if len(rows) == 1:
        return label
    return f"{label} and {len(rows) - 1} later ones"


def _pairs(samples: list[Sample]) -> Iterator[_RowPair]:
    """Yield what is compared.

    These are rounds of one node at small distances, pooled; single rounds of one node; and the same
    rounds of two nodes, pooled.
    """
    for sample in samples:
        count = len(sample.value)
        for lag in range(1, min(LAGS, count - 1) + 1):
            # Blocks of `lag` rows against the next `lag` rows, so that no row is on both sides.
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
    """Return the chance, at most, that independent noise looks as much alike.

    Alike means equal up to a common factor of either sign.

    Args:
        pair: what is compared.
        level: chance of a false alarm.
        most: size of the sum or difference, relative to the declared one, from which on it counts
            as independent.
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
        # Rows of one node are functions of the same e, those of two nodes of different ones, whose
        # sign does not matter.
        factor = factor_a + sign * factor_b if a is b else np.hstack([factor_a, factor_b])
        both = Sample(
            node=a.node,
            labels=(),
            rounds=(),
            value=value_a + sign * value_b,
            factor=factor,
            norm=a.norm,
            weight=a.weight,
            coordinates=a.coordinates,
            gaussian=a.gaussian and b.gaussian,
            hidden=True,
        )
        measured = low_variance([both], level, ROUNDED)
        if measured.size < most:
            chance = min(chance, 2 * measured.chance)
    return chance


def _correlated(pair: _RowPair) -> float:
    """Return the chance that independent noise, seen itself, has as large a correlation.

    Two independent normal vectors of n numbers have a squared cosine of law Beta(1/2, (n - 1)/2).
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
    """Numbers beyond a level.

    Attributes:
        chance: of as few or fewer.
        level: in standard deviations.
        above: how many there are.
        sample: of the numbers.
    """

    chance: float
    level: float
    above: int
    sample: Sample


def _tails(samples: list[Sample]) -> Iterator[Pitfall]:
    """Find normal noise of the declared size whose large values are missing."""
    missing: list[_Tail] = []
    for sample in samples:
        if not sample.gaussian or not _independent(sample):
            continue
        sizes = np.abs(sample.value)
        for level in TAILS:
            above = int((sizes > level * sample.std[:, None]).sum())
            chance = float(binom.cdf(above, sample.value.size, 2 * ndtr(-level)))
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
        f"deviations, where normal noise puts {expected:.0f} or more "
        f"(chance {chance_text(worst.chance)}): the noise has a boundary"
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
    """Return whether the declared noise of the rows is uncorrelated: numbers may be counted."""
    covariance: Floats = sample.factor @ sample.factor.T
    others = np.abs(covariance - np.diag(np.diag(covariance)))
    return bool((others <= UNCORRELATED * np.outer(sample.std, sample.std)).all())


def _law(samples: list[Sample]) -> Iterator[Pitfall]:
    """Compare noise that the truth holds with the normal law, if that is declared."""
    for sample in samples:
        if not sample.gaussian or sample.hidden or sample.value.size < ENOUGH_FOR_LAW:
            continue
        # The size is tested elsewhere, so the numbers are scaled to variance 1.
        numbers = (sample.value / sample.std[:, None]).ravel()
        numbers = numbers / max(1e-300, float(np.sqrt((numbers**2).mean())))
        chance = float(kstest(numbers, "norm").pvalue)
        if chance < LEVEL / len(samples):
            says = (
                f"the noise of node {sample.node} is not normal, as declared "
                f"(Kolmogorov-Smirnov: {chance_text(chance)}, {len(numbers)} numbers)"
            )
            figures: Figures = {
                "node": sample.node,
                "numbers": len(numbers),
                "chance": chance,
            }
            yield Pitfall(13, Verdict.REFUTED, says, figures)
            return
