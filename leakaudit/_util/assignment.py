"""Which reconstruction belongs to which true record: an attack on a batch returns its images in any order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.errors import LeakauditError


@dataclass(frozen=True)
class Match:
    """Pairs of rows, sorted by `true`.

    found: (k,) int64 rows of the reconstruction. true: (k,) int64 rows of the truth. missing: true rows left without a partner.
    """

    found: Tensor
    true: Tensor
    missing: int


def match(x: Tensor, y: Tensor) -> Match:
    """Pair reconstructions x (n, *shape) with true records y (m, *shape) so that the sum of their squared errors is smallest.

    Each record takes one guess, so only the first m rows of x that are finite can be paired: otherwise more guesses would score
    better, up to the whole data set handed in for one record. An attack puts the rows first of which it is surest.

    Args:
        x: (n, *shape) Reconstructions; rows with NaN or infinity are never paired.
        y: (m, *shape) True records; those that no row is left for are missing.

    Returns:
        min(m, number of finite rows) pairs.

    Raises:
        LeakauditError: The shapes of one record differ.
    """
    if x.shape[1:] != y.shape[1:]:
        raise LeakauditError(
            f"match: expected reconstructions of the truth's shape {tuple(y.shape[1:])}, got {tuple(x.shape[1:])}"
        )
    a, b = x.double().flatten(1), y.double().flatten(1)
    usable = torch.isfinite(a).all(1).nonzero().flatten()[: len(b)]
    cost = torch.cdist(a[usable], b, compute_mode="donot_use_mm_for_euclid_dist").square()
    pairs = assign(cost)
    return Match(usable[pairs.found], pairs.true, pairs.missing)


def match_labels(found: Tensor, true: Tensor) -> Match:
    """Pair labels found (n,) with true labels (m,): as many equal as possible, real targets as near as possible."""
    gap = (found[:, None].double() - true[None, :].double()).abs()
    return assign(gap if true.is_floating_point() else gap.sign())


def assign(cost: Tensor) -> Match:
    """Pair rows and columns of a finite cost (n, m) at the smallest sum; min(n, m) pairs come back."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = (
        torch.as_tensor(i, dtype=torch.int64) for i in linear_sum_assignment(cost.cpu().numpy())
    )
    order = columns.argsort()
    return Match(rows[order], columns[order], cost.shape[1] - len(columns))
