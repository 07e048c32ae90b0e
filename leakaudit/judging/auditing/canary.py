"""Canaries: replays with one of two records, and one run with a coin flip for each record."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from leakaudit._util.seeds import child
from leakaudit.core.adversary import Adversary
from leakaudit.core.leak import GradientLeak
from leakaudit.judging.auditing.evidence import LEAST, PILOT, OneRun, best_thresholds
from leakaudit.judging.auditing.promise import Promise
from leakaudit.judging.auditing.replays import (
    Replays,
    clipped_at,
    replayed,
    taken_at,
    unusable,
    whitening,
)
from leakaudit.protocols.recording import Plan, record
from leakaudit.tasks import clipping
from leakaudit.tasks.task import Task
from leakaudit.theory.bounds.empirical import Counts
from leakaudit.theory.bounds.joint import LARGEST, joint_test
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction

GUESSED = 0.5  # share of the canaries of one run that are guessed, the most certain ones: a choice
MOST = 200  # free records that are examined to find a pair: a choice


def pair(ready: Plan, node: int, most: int = MOST) -> tuple[int, int]:
    """Return the node's first record, and the free one whose gradient is farthest from its own."""
    free = free_rows(ready, node)[:most]
    task = Task.build(ready.task.spec, dtype=torch.float64)
    random = torch.Generator().manual_seed(child(ready.scenario.seed, 3))
    theta = ready.start(random).double().to(task.device)
    x = ready.source.x[free][:, None].double()
    y = ready.source.y[free][:, None]
    g = clipping.gradients(task, theta.expand(len(x), -1), x, y, clipped_at(ready))
    return free[0], free[int((g - g[0]).norm(dim=1).argmax())]


def free_rows(ready: Plan, node: int) -> list[int]:
    """Return the node's first record, then the records that no node holds."""
    return [int(ready.rows[node, 0]), *_spare(ready)]


def _spare(ready: Plan) -> list[int]:
    held = set(ready.rows.flatten().tolist())
    return [row for row in range(len(ready.source.x)) if row not in held]


def counted(found: Replays, promise: Promise | None, alpha: float) -> Counts:
    """Return guesses by a threshold on the likelihood ratio, the difference of the two scores.

    The first quarter of the replays chooses the threshold, and only the rest is counted, so that
    the test is fixed before its data.
    """
    ratio = torch.zeros(0)
    if len(found.scores):
        ratio = found.scores[:, 0] - found.scores[:, 1]
    there = found.drawn == 0
    cut = int(PILOT * len(ratio))
    positives = int(there[cut:].sum())
    negatives = len(ratio) - cut - positives
    threshold = 0.0
    if promise is not None and not promise.empty:
        threshold = _threshold(ratio[:cut], there[:cut], promise, alpha, positives, negatives)
    return _counts(ratio[cut:], there[cut:], threshold)


def _threshold(
    ratio: Tensor, there: Tensor, promise: Promise, alpha: float, positives: int, negatives: int
) -> float:
    """Return the threshold of greatest power for scores with the pilot's means and deviation.

    Under Gaussian noise, the log-likelihood ratio is normal, with one deviation and two means. With
    too few finite scores, it is 0, the middle of a likelihood ratio.
    """
    finite = ratio.isfinite()
    sides = [ratio[finite & side].double() for side in (there, ~there)]
    sizes = [len(side) for side in sides]
    fewest = min(positives, negatives)
    if min(sizes) < LEAST or fewest == 0 or max(positives, negatives) > LARGEST:
        return 0.0
    squares = sum(float((side - side.mean()).square().sum()) for side in sides)
    deviation = math.sqrt(squares / (sum(sizes) - 2))
    if not 0 < deviation < math.inf:
        return 0.0
    means = np.array([[float(side.mean()) for side in sides]])
    test = joint_test(promise.guarantee, positives, negatives)
    return float(best_thresholds(test, alpha, means, np.array([deviation]))[0])


def _counts(ratio: Tensor, there: Tensor, threshold: float) -> Counts:
    guess = ratio > threshold
    return Counts(
        int((guess & there).sum()),
        int(there.sum()),
        int((guess & ~there).sum()),
        int((~there).sum()),
    )


def one_run(ready: Plan, adversary: Adversary, gradients: int, seed: int) -> tuple[OneRun, str]:
    """Run once with a fair coin between two records at every place, and guess the coins.

    Adjacency: one record is replaced. Return why no guesses were made as well, otherwise "".
    """
    nodes, k = ready.rows.shape
    needed = nodes * k
    spare = _spare(ready)
    if len(spare) < needed:
        why = (
            f"one run with {needed} canaries needs {needed} records that no node holds, "
            f"but the data set has {len(spare)}"
        )
        return OneRun(0, 0, 0), why
    both = torch.stack([ready.rows, torch.tensor(spare[:needed]).reshape(nodes, k)])
    random = torch.Generator().manual_seed(child(ready.scenario.seed, seed, 4))
    coins = torch.randint(2, (nodes, k), generator=random)
    rows = torch.where(coins.bool(), both[1], both[0])
    trace = record(replayed(ready, rows, child(seed, 5)), None).trace
    targets = [n for n in range(nodes) if n not in adversary.corrupt]
    leaks = hearing.deduce(Deduction(trace, adversary), targets, gradients)
    reasons = [*leaks.undetermined.values(), *filter(None, map(unusable, leaks))]
    if reasons:
        return OneRun(0, 0, 0), reasons[0]
    task = Task.build(ready.task.spec, dtype=torch.float64)
    ratios = [_ratios(leak, task, ready, both[:, leak.node]) for leak in leaks]
    ratio = torch.cat(ratios).nan_to_num(0.0)
    truth = torch.cat([coins[leak.node] for leak in leaks])
    guesses = math.ceil(GUESSED * len(ratio))
    surest = ratio.abs().argsort(descending=True)[:guesses]
    right = int(((ratio > 0).long() == truth)[surest].sum())
    return OneRun(len(ratio), guesses, right), ""


def _ratios(leak: GradientLeak, task: Task, ready: Plan, both: Tensor) -> Tensor:
    """Return the log-likelihood ratio (k,) of the second record over the first at every place.

    All other places have their mean: with the combination C, the value V, the whitening W and the
    gradients A, B of the two records at a place, it is the sum over the leak of W (V - C mean) * W
    C (B - A) / k. `both` (2, k) are rows of the data set.
    """
    rows = both.flatten()
    x = ready.source.x[rows][:, None].double()
    y = ready.source.y[rows][:, None]
    each = taken_at(leak, task, x, y, clipped_at(ready))
    k = both.shape[1]
    first, second = each.split(k)
    white = whitening(leak)
    c = leak.combination.double()
    rest = white @ (leak.value.double() - c @ ((first + second) / 2).mean(0))
    ratios = []
    for a, b in zip(first, second, strict=True):
        ratios.append((rest * (white @ (c @ (b - a) / k))).sum())
    return torch.stack(ratios)
