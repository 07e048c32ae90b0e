"""Is the noise what is declared? Its size, its independence, its tails and its law, measured.

Two draws that are one leave a sum or a difference of two rows that is too quiet (`quiet`), whatever the gradients are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import betaincc, ndtr
from scipy.stats import binom, chi2, kstest

from leakaudit.lint.case import Case
from leakaudit.lint.pitfall import Pitfall
from leakaudit.lint.quiet import quietness, tiny
from leakaudit.lint.samples import Sample, of_trace, of_truth, pick
from leakaudit.trace import Json
from leakaudit.verdict import Verdict

LEVEL = 1e-5  # chance of a false alarm of each kind of test on one trace
TAILS = (2.0, 2.5, 3.0)  # standard deviations
SHARED = 0.7  # of the size of each: a sum or difference louder than that is not shared noise, of which rounding alone is left
ENOUGH = 1 - 1e-3  # of the declared size: noise closer to it counts as equal
ROUNDED = 1e-6  # variance of the sum or difference of two rows of variance 1 that is one noise as it is declared
LAGS = 4


def check(case: Case) -> Iterator[Pitfall]:
    """Yield what the noise of a trace shows; that of the truth, where it is there, is judged first."""
    for read in (of_truth, of_trace):
        if found := list(judged(list(read(case)))):
            yield from found
            return


def judged(samples: list[Sample]) -> Iterator[Pitfall]:
    """Yield what noise is not as it is declared, given in samples of it or of gradients with it."""
    if not samples:
        return
    shared = list(_shared(samples))
    alone = [pick(s, [0]) for s in samples] if shared else samples
    law = list(_law(alone))
    quiet = [] if law else list(_size(alone))
    yield from (*shared, *law, *quiet, *([] if quiet else _tails(alone)))


def _size(samples: list[Sample]) -> Iterator[Pitfall]:
    """Compare the size of each node's noise, and of all nodes' together, with the declared one."""
    groups = [[s] for s in samples]
    if len(samples) > 1 and all(s.alone and s.gaussian == samples[0].gaussian for s in samples):
        groups.append(samples)
    level = LEVEL / len(groups)
    low = [(g, q) for g in groups if (q := quietness(g, level)).chance < level and q.size < ENOUGH]
    if not low:
        return
    group, worst = min(low, key=lambda pair: (pair[1].chance, len(pair[0])))
    declared, one = float(np.median(np.concatenate([s.std for s in group]))), group[0]
    who = f"node {one.node}" if len(group) == 1 else f"{len(group)} nodes together"
    says = (
        f"the noise of {who} is at most {worst.limit:.3g} of the declared {declared:.3g} (measured {worst.size:.3g}"
        f"{', if it is normal' * one.hidden}; {worst.numbers} numbers, chance {tiny(worst.chance)})"
    )
    figures: dict[str, Json] = {
        "nodes": [s.node for s in group],
        "declared": declared,
        "ratio": worst.size,
        "limit": worst.limit,
    }
    if not one.hidden and one.gaussian:
        figures["interval"] = [
            declared * worst.size * float(np.sqrt(worst.numbers / chi2.ppf(q, worst.numbers)))
            for q in (0.995, 0.005)
        ]
    yield Pitfall(
        20, Verdict.REFUTED, says, {**figures, "chance": worst.chance, "numbers": worst.numbers}
    )


def _shared(samples: list[Sample]) -> Iterator[Pitfall]:
    """Find two draws that are one."""
    pairs, found = [*_pairs(samples)], list[tuple[float, str, str]]()
    sizes = {id(s): min(1.0, quietness([s], LEVEL).size) for s in samples}
    for a, i, b, j in pairs:
        chance = _alike(a, i, b, j, LEVEL / len(pairs), SHARED * min(sizes[id(a)], sizes[id(b)]))
        if chance < LEVEL / len(pairs):
            found.append((chance, _where(a, i), _where(b, j)))
    if not found:
        return
    chance, one, other = min(found)
    says = (
        f"the noise on {one} and on {other} is not independent (chance {tiny(chance)}); "
        f"so are {len(found)} of {len(pairs)} pairs that were compared"
    )
    yield Pitfall(
        6,
        Verdict.REFUTED,
        says,
        {
            "first": one,
            "again": other,
            "chance": chance,
            "pairs": len(found),
            "compared": len(pairs),
        },
    )


def _where(sample: Sample, rows: Sequence[int]) -> str:
    """Name rows of a sample."""
    label = f"{sample.labels[rows[0]]} of node {sample.node}"
    return label if len(rows) == 1 else f"{label} and {len(rows) - 1} later ones"


def _pairs(samples: list[Sample]) -> Iterator[tuple[Sample, list[int], Sample, list[int]]]:
    """Yield what is compared: rounds of one node at small distances, the same rounds of two nodes, pooled; single rows of few."""
    for s in samples:
        rows = range(len(s.value))
        for lag in range(1, min(LAGS, len(rows) - 1) + 1):
            first = [k for k in rows if k % (2 * lag) < lag and k + lag < len(rows)]
            yield s, first, s, [k + lag for k in first]
        for i, j in itertools.combinations(rows[:16], 2):
            yield s, [i], s, [j]
    for a, b in itertools.combinations(samples, 2):
        both = [
            (a.rounds.index(t), b.rounds.index(t)) for t in sorted(set(a.rounds) & set(b.rounds))
        ]
        if both and a.alone and b.alone:
            yield a, [i for i, _ in both], b, [j for _, j in both]


def _alike(a: Sample, i: list[int], b: Sample, j: list[int], level: float, most: float) -> float:
    """Return the chance, at most, that independent noise looks as much alike, up to a common factor of either sign.

    most: size of the sum or difference, relative to the declared one, from which on it counts as independent.
    """
    if not a.hidden:
        x, y = a.value[i].ravel(), b.value[j].ravel()
        n, size = len(x), float(np.linalg.norm(x) * np.linalg.norm(y))
        if n < 2 or size == 0 or (not a.gaussian and n < 16):
            return 1.0
        cosine = min(1.0, abs(float(x @ y)) / size)
        return float(betaincc(0.5, (n - 1) / 2, cosine**2))
    chance = 1.0
    for sign in (1.0, -1.0):
        value = a.value[i] / a.std[i][:, None] + sign * b.value[j] / b.std[j][:, None]
        if a is b:
            factor = a.factor[i] / a.std[i][:, None] + sign * b.factor[j] / b.std[j][:, None]
        else:
            factor = np.hstack([a.factor[i] / a.std[i][:, None], b.factor[j] / b.std[j][:, None]])
        both = Sample(
            a.node,
            (),
            (),
            value,
            factor,
            a.norm,
            a.weight,
            a.coordinates,
            a.gaussian and b.gaussian,
            hidden=True,
        )
        q = quietness([both], level, ROUNDED)
        if q.size < most:
            chance = min(chance, 2 * q.chance)
    return chance


def _tails(samples: list[Sample]) -> Iterator[Pitfall]:
    """Find normal noise of the declared size whose large values are missing."""
    judged = list[tuple[float, float, int, int, Sample]]()
    for s in (s for s in samples if s.gaussian):
        for level in TAILS:
            above = int((np.abs(s.value) > level * s.std[:, None]).sum())
            chance = float(binom.cdf(above, s.value.size, 2 * ndtr(-level)))
            if _independent(s) and chance < LEVEL / (len(samples) * len(TAILS)):
                judged.append((chance, level, above, s.value.size, s))
    if judged:
        chance, level, above, n, s = min(judged, key=lambda one: one[0])
        says = (
            f"{above} of {n} numbers of node {s.node} lie beyond {level:g} standard deviations, where normal noise puts "
            f"{n * 2 * float(ndtr(-level)):.0f} or more (chance {tiny(chance)}): the noise has a boundary"
        )
        yield Pitfall(
            10,
            Verdict.REFUTED,
            says,
            {"node": s.node, "beyond": above, "numbers": n, "level": level, "chance": chance},
        )


def _independent(sample: Sample) -> bool:
    """Whether the declared noise of the rows is uncorrelated, so that all numbers may be counted together."""
    gram = sample.factor @ sample.factor.T
    return bool(
        (np.abs(gram - np.diag(np.diag(gram))) <= 1e-6 * np.outer(sample.std, sample.std)).all()
    )


def _law(samples: list[Sample]) -> Iterator[Pitfall]:
    """Compare noise that the truth holds with the normal law, where that is declared."""
    for s in (s for s in samples if s.gaussian and not s.hidden and s.value.size >= 100):
        numbers = (s.value / s.std[:, None]).ravel()
        numbers = numbers / max(1e-300, float(np.sqrt((numbers**2).mean())))
        if (chance := float(kstest(numbers, "norm").pvalue)) < LEVEL / len(samples):
            says = f"the noise of node {s.node} is not normal, as declared (Kolmogorov-Smirnov: {tiny(chance)}, {len(numbers)} numbers)"
            yield Pitfall(
                13,
                Verdict.REFUTED,
                says,
                {"node": s.node, "numbers": len(numbers), "chance": chance},
            )
            return
