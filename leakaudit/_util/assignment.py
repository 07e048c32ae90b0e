"""Assignment of reconstructions to true records, which an attack returns in arbitrary order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError

LARGEST = 1e300
"""Largest cost of a pair, so that sums of costs are finite."""


@dataclass(frozen=True)
class Match:
    """Pairs of rows, sorted by `true`."""

    found: Tensor  # (k,) int64 rows of the reconstruction
    true: Tensor  # (k,) int64 rows of the truth
    missing: int  # number of true rows without a partner


def match(x: Tensor, y: Tensor, tokens: bool = False) -> Match:
    """Pair reconstructions with true records such that the sum of squared errors is minimal.

    There is one guess per record: only the first m finite rows of x, of which an attack is most
    certain, can be paired. Otherwise one could submit the whole data set for one record.

    Args:
        x: (n, *shape) reconstructions.
        y: (m, *shape) true records; those without a partner are missing.
    """
    if x.shape[1:] != y.shape[1:]:
        raise LeakauditError(
            f"match: expected reconstructions of the truth's shape {tuple(y.shape[1:])}, "
            f"got {tuple(x.shape[1:])}"
        )
    guesses = x.double().flatten(1)
    records = y.double().flatten(1)
    finite = torch.isfinite(guesses).all(1)
    usable = finite.nonzero().flatten()[: len(records)]
    # Differences are computed directly: with a matrix product, equal records would differ by 1e-8.
    distance = torch.cdist(guesses[usable], records, compute_mode="donot_use_mm_for_euclid_dist")
    cost = distance.square()
    if tokens:
        cost = torch.cdist(guesses[usable], records, p=0)
    pairs = assign(cost)
    return Match(usable[pairs.found], pairs.true, pairs.missing)


def kept(pairs: Match, true: Tensor) -> Match:
    """Keep the pairs of some true records, given by a mask (m,), which are counted anew."""
    chosen = true[pairs.true]
    place = true.cumsum(0) - 1
    rows = place[pairs.true[chosen]]
    return Match(pairs.found[chosen], rows, int(true.sum()) - len(rows))


def match_labels(found: Tensor, true: Tensor) -> Match:
    """Pair labels (n,) and (m,) so that most are equal, or real targets as close as possible."""
    gap = (found[:, None].double() - true[None, :].double()).abs()
    if not true.is_floating_point():
        gap = gap.sign()
    return assign(gap)


def assign(cost: Tensor) -> Match:
    """Pair rows and columns of cost (n, m) with the minimal sum.

    Non-finite costs count as `LARGEST`.
    """
    cost = cost.double().nan_to_num(nan=LARGEST, posinf=LARGEST).clamp(max=LARGEST)
    clear = _each_its_cheapest(cost)
    if clear is not None:
        return clear
    from scipy.optimize import linear_sum_assignment

    found, true = linear_sum_assignment(cost.cpu().numpy())
    rows = torch.as_tensor(found, dtype=torch.int64)
    columns = torch.as_tensor(true, dtype=torch.int64)
    order = columns.argsort()
    return Match(rows[order], columns[order], cost.shape[1] - len(columns))


def _each_its_cheapest(cost: Tensor) -> Match | None:
    """Pair every row with its cheapest column; None if two rows want the same, or one has a tie.

    No other pairing costs as little, so that the import of scipy is spared.
    """
    if cost.shape[0] > cost.shape[1]:
        return None
    if cost.shape[0] == 0:
        none = torch.zeros(0, dtype=torch.int64)
        return Match(none, none, cost.shape[1])
    least, wanted = cost.min(1)
    ties = (cost == least[:, None]).sum(1) > 1
    if bool(ties.any()) or len(wanted.unique()) < len(wanted):
        return None
    columns, rows = wanted.sort()
    return Match(rows.cpu(), columns.cpu(), cost.shape[1] - len(columns))
