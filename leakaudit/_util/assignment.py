"""Which reconstruction belongs to which true record.

An attack on a batch returns its images in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.errors import LeakauditError


@dataclass(frozen=True)
class Match:
    """Pairs of rows, sorted by `true`.

    Attributes:
        found: (k,) int64 rows of the reconstruction.
        true: (k,) int64 rows of the truth.
        missing: Number of true rows left without a partner.
    """

    found: Tensor
    true: Tensor
    missing: int


def match(x: Tensor, y: Tensor) -> Match:
    """Pair reconstructions with true records so that the sum of their squared errors is smallest.

    Each record takes one guess, so only the first m finite rows of x can be paired. Otherwise more
    guesses would score better, up to the whole data set handed in for one record. An attack puts
    the rows first of which it is surest.

    Args:
        x: (n, *shape) reconstructions; rows with NaN or infinity are never paired.
        y: (m, *shape) true records; those that no row is left for are missing.

    Returns:
        min(m, number of finite rows) pairs.

    Raises:
        LeakauditError: The shapes of one record differ.
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
    # Differences taken directly: through a matrix product, equal records would be 1e-8 apart.
    distance = torch.cdist(guesses[usable], records, compute_mode="donot_use_mm_for_euclid_dist")
    cost = distance.square()
    pairs = assign(cost)
    return Match(usable[pairs.found], pairs.true, pairs.missing)


def match_labels(found: Tensor, true: Tensor) -> Match:
    """Pair labels: as many equal as possible, or real targets as near as possible.

    Args:
        found: (n,) labels of a reconstruction.
        true: (m,) labels of the truth; real numbers if they are targets of a regression.

    Returns:
        min(m, n) pairs.
    """
    gap = (found[:, None].double() - true[None, :].double()).abs()
    if not true.is_floating_point():
        gap = gap.sign()
    return assign(gap)


def assign(cost: Tensor) -> Match:
    """Pair rows and columns at the smallest sum of costs.

    Args:
        cost: (n, m), finite.

    Returns:
        min(n, m) pairs.
    """
    if cost.shape == (1, 1):  # most often, and then scipy is not worth its import
        only = torch.zeros(1, dtype=torch.int64)
        return Match(only, only, 0)
    from scipy.optimize import linear_sum_assignment

    found, true = linear_sum_assignment(cost.cpu().numpy())
    rows = torch.as_tensor(found, dtype=torch.int64)
    columns = torch.as_tensor(true, dtype=torch.int64)
    order = columns.argsort()
    return Match(rows[order], columns[order], cost.shape[1] - len(columns))
