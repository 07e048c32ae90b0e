"""Canaries: replays with one record or another, and one run with a coin for each of many records."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from leakaudit.adversary import Adversary
from leakaudit.auditing.evidence import LEAST, PILOT, best_thresholds
from leakaudit.auditing.promise import Promise
from leakaudit.auditing.replays import (
    Replays,
    clipped_at,
    gradients_of,
    taken_at,
    unusable,
    whitening,
)
from leakaudit.auditing.runs import child, recorded, replayed
from leakaudit.bounds.empirical import Counts
from leakaudit.bounds.joint import LARGEST, joint_test
from leakaudit.extraction import hearing
from leakaudit.extraction.deduction import Deduction
from leakaudit.leak import GradientLeak
from leakaudit.protocols.recording import Plan
from leakaudit.tasks.task import Task

GUESSED = 0.5  # share of the canaries of one run that are guessed, the surest


def pair(ready: Plan, node: int, most: int = 200) -> tuple[int, int]:
    """Return the node's first record and the free record whose gradient is farthest from its own at a start model; no run is looked at."""
    free = free_rows(ready, node)[:most]
    task = Task.build(ready.task.spec, dtype=torch.float64)
    theta = (
        ready.task.init(torch.Generator().manual_seed(child(ready.scenario.seed, 3)))
        .double()
        .to(task.device)
    )
    x, y = ready.source.x[free][:, None].double(), ready.source.y[free][:, None]
    g = gradients_of(task, theta, x, y, clipped_at(ready))
    return free[0], free[int((g - g[0]).norm(dim=1).argmax())]


def free_rows(ready: Plan, node: int) -> list[int]:
    """Return the node's first record, then the records that nobody holds."""
    own, held = int(ready.rows[node, 0]), set(ready.rows.flatten().tolist())
    return [own, *(k for k in range(len(ready.source.x)) if k not in held)]


def counted(found: Replays, promise: Promise | None, alpha: float) -> Counts:
    """Return guesses by a threshold on the likelihood ratio that the first quarter of the replays chose; only the rest is counted.

    Args:
        found: The replays, with the log-likelihoods of both records in the columns of their scores.
        promise: What the counts are to test; it decides which threshold serves best. None if nothing is promised.
        alpha: Level of that test.

    Returns:
        The counts. NaN counts as a guess that the record was not there.
    """
    ratio = (found.scores[:, 0] - found.scores[:, 1]) if len(found.scores) else torch.zeros(0)
    there, cut = found.drawn == 0, int(PILOT * len(ratio))
    positives = int(there[cut:].sum())
    threshold = 0.0
    if promise is not None and not promise.empty:
        threshold = _threshold(
            ratio[:cut], there[:cut], promise, alpha, positives, len(ratio) - cut - positives
        )
    return _counts(ratio[cut:], there[cut:], threshold)


def _threshold(
    ratio: Tensor, there: Tensor, promise: Promise, alpha: float, positives: int, negatives: int
) -> float:
    """Return the threshold of greatest power if the scores are normal with the pilot's means and its common deviation.

    Under Gaussian noise the likelihood ratio is such a pair of normals. The error rates of a pilot by themselves could not tell
    thresholds apart whose false positive rate is a fraction of one count. 0, the middle of a likelihood ratio, if the pilot or the
    rest has too few finite scores.
    """
    finite = ratio.isfinite()
    sides = [ratio[finite & side].double() for side in (there, ~there)]
    if (
        min(map(len, sides)) < LEAST
        or not 0 < min(positives, negatives) <= max(positives, negatives) <= LARGEST
    ):
        return 0.0
    squares = sum(float((side - side.mean()).square().sum()) for side in sides)
    deviation = math.sqrt(squares / (sum(map(len, sides)) - 2))
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


def one_run(
    ready: Plan, adversary: Adversary, gradients: int, seed: int
) -> tuple[int, int, int, str]:
    """Run once with a fair coin between two records at every place, and return canaries, guesses, right ones, and why none.

    The adversary's own nodes hold no canary. Adjacency: one record is replaced.
    """
    nodes, k = ready.rows.shape
    held = set(ready.rows.flatten().tolist())
    spare = [r for r in range(len(ready.source.x)) if r not in held]
    if len(spare) < nodes * k:
        return (
            0,
            0,
            0,
            f"one run with {nodes * k} canaries needs as many records that nobody holds, the data set has {len(spare)}",
        )
    both = torch.stack([ready.rows, torch.tensor(spare[: nodes * k]).reshape(nodes, k)])
    coins = torch.randint(
        2, (nodes, k), generator=torch.Generator().manual_seed(child(ready.scenario.seed, seed, 4))
    )
    rows = torch.where(coins.bool(), both[1], both[0])
    trace = recorded(replayed(ready, rows, child(seed, 5))).trace
    targets = [n for n in range(nodes) if n not in adversary.corrupt]
    leaks = hearing.deduce(Deduction(trace, adversary), targets, gradients)
    reasons = [*leaks.undetermined.values(), *(why for leak in leaks if (why := unusable(leak)))]
    if reasons:
        return 0, 0, 0, reasons[0]
    task = Task.build(ready.task.spec, dtype=torch.float64)
    ratio = torch.cat(
        [_ratios(leak, task, ready, both[:, leak.node]) for leak in leaks]
    ).nan_to_num(0.0)
    truth = torch.cat([coins[leak.node] for leak in leaks])
    guesses = math.ceil(GUESSED * len(ratio))
    surest = ratio.abs().argsort(descending=True)[:guesses]
    return len(ratio), guesses, int(((ratio > 0).long() == truth)[surest].sum()), ""


def _ratios(leak: GradientLeak, task: Task, ready: Plan, both: Tensor) -> Tensor:
    """Return the log-likelihood ratio (k,) of the second record over the first at every place, all other places at their mean."""
    rows = both.flatten()
    each = taken_at(
        leak,
        task,
        ready.source.x[rows][:, None].double(),
        ready.source.y[rows][:, None],
        clipped_at(ready),
    )
    first, second = each.split(both.shape[1])
    white, c, k = whitening(leak), leak.combination.double(), both.shape[1]
    rest = white @ (leak.value.double() - c @ ((first + second) / 2).mean(0))
    return torch.stack(
        [(rest * (white @ (c @ (b - a) / k))).sum() for a, b in zip(first, second, strict=True)]
    )
