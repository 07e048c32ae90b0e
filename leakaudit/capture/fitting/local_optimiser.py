"""Name the optimiser of nodes that send models, from the records that their first steps reveal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from torch import Tensor

from leakaudit.capture.fitting import fit, stepping
from leakaudit.capture.fitting.fit import GradientSample
from leakaudit.capture.fitting.rank_one import undecayed
from leakaudit.tasks.task import Task

# Miss of the first step, as a sum of gradient and weight decay, above which the record is wrong.
# Correct records miss by 1e-5 or less; a choice.
FIRST = 1e-3
CLEARER = 10  # times that an assumption must miss by to be dropped: a choice
NODES = 3  # nodes that are examined: a choice that bounds the time


def identify(task: Task, samples: Sequence[GradientSample]) -> tuple[str, stepping.Stepping] | None:
    """Name the models at which local steps compute gradients, and the optimiser.

    None if a node's steps are not explained, or if all took fewer than `stepping.LEAST`.
    """
    by_rank: dict[int, list[GradientSample]] = defaultdict(list)
    for sample in samples:
        if sample.index == len(by_rank[sample.rank]):
            by_rank[sample.rank].append(sample)
    series = [of_rank for of_rank in by_rank.values() if len(of_rank) >= stepping.LEAST]
    if not series:
        return None
    for point in sorted(samples[0].thetas):
        first, *others = ([one.at(point) for one in node] for node in series[:NODES])
        found = _of_node(task, first)
        if found is None:
            continue
        if all(any(map(found.predicts, _moves(task, samples))) for samples in others):
            return point, found
    return None


def first_miss(
    found: stepping.Stepping, task: Task, samples: Sequence[GradientSample]
) -> int | None:
    """Return the first step of a node's whole run that an optimiser does not explain, if any."""
    misses: list[int] = []
    for moves in _moves(task, samples, most=len(samples)):
        wrong = found.first_miss_of(moves)
        if wrong is None:
            return None
        misses.append(wrong)
    return max(misses, default=None)


def _of_node(task: Task, samples: Sequence[GradientSample]) -> stepping.Stepping | None:
    for moves in _moves(task, samples):
        found = stepping.identify(moves, linear=True)
        if found is not None:
            return found
    return None


def _moves(
    task: Task, samples: Sequence[GradientSample], most: int = stepping.MOST
) -> Iterator[stepping.ModelMoves]:
    """Yield a node's moves with recomputed gradients, for some assumptions about its records."""
    # Either each step uses the record that it reveals, or all use that of the first step, which
    # contains neither momentum nor other records. Both without and with weight decay.
    found = list(_assumed(task, samples, most))
    best = min((miss for miss, _ in found), default=0.0)
    for miss, moves in found:
        if miss <= max(CLEARER * best, 2 * moves.floor):
            yield moves


def _assumed(
    task: Task, samples: Sequence[GradientSample], most: int
) -> Iterator[tuple[float, stepping.ModelMoves]]:
    """Yield the moves for every assumption, with the miss of the first one."""
    plain = [sample.value.double() for sample in samples]
    models = [sample.base for sample in samples if sample.base is not None]
    # The record comes from a move, and adds its rounding to that of the models.
    rounding = 2 * samples[0].rounding
    tried: list[Tensor] = []
    less = [undecayed(task, *pair) for pair in zip(plain, models, strict=True)]
    for values in (plain, less):
        revealed = [fit.labelled(task, value) for value in values]
        for records in (revealed, revealed[:1] * len(samples)):
            gradients = list(_gradients(task, samples, records))
            if len(gradients) < len(samples):
                continue
            moves = stepping.observed(models, plain, gradients, rounding, most=most)
            miss = stepping.first_miss(moves)
            if miss > FIRST:
                continue
            if any(_are_equal(moves.gradients, others, moves.floor) for others in tried):
                continue
            tried.append(moves.gradients)
            yield miss, moves


def _gradients(
    task: Task,
    samples: Sequence[GradientSample],
    records: Sequence[tuple[Tensor, Tensor] | None],
) -> Iterator[Tensor]:
    for found, sample in zip(records, samples, strict=True):
        if found is None:
            continue
        g = fit.recomputed(task, *found, sample.theta)
        if g is not None:
            yield g


def _are_equal(one: Tensor, other: Tensor, floor: float) -> bool:
    return float((one - other).norm()) <= floor * float(one.norm())
