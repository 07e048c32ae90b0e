"""One input from those entries of a first layer's rows that were observed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# If a gradient has one sample, its first layer's rows have rank one: entry (r, j) is d_r x_j, the
# slope of neuron r times pixel j, and the bias entry is d_r itself. Each observed entry that is not
# zero is thus one linear equation, log|d_r| + log|x_j| = log|entry|, and one equation for signs.
# Neurons (in every leaked equation) and pixels form a bipartite graph with an edge for each of
# them. In the connected component of the bias column, all ratios are determined, so 1/16 of the
# entries of one gradient is often enough for all pixels. Three steps follow from this picture:
#
# 1. **Spanning tree.** Products along the paths of the tree with the smallest errors give all
#    values.
# 2. **Least squares.** All edges together correct the logarithms. The equations form the graph's
#    Laplacian, weighted by the accuracy of every entry; its inverse contains the error of every
#    pixel relative to the bias column (the effective resistance between the two).
# 3. **Zeros.** A pixel whose entries are zero at neurons with known slopes is zero, with an error.
#
# Nothing here fills in what was not observed: only observed entries are evidence, and pixels that
# no observed entry connects to the bias column remain unknown.

# scipy.sparse is imported where it is used: the import takes a third of a second.

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# Minimum size of an entry, in units of its error, for its logarithm to be used. The logarithm of
# 1 + e differs from e by half its square, 5e-4 here, which is much less than e = 0.03 itself.
CLEAR = 30.0

# Minimum relative error of an entry. It bounds the range of the weights to 1e11, so that float64
# solves the equations to several digits, and is far below a grey level.
LEAST = 1e-7

# Minimum number of observed entries beyond unknowns for the fit to be evidence, as in
# `pixel_errors.MANY`.
MANY = 30

# Minimum number of observed entries that confirm every pixel: with one, any value would fit.
CONFIRM = 2

# Maximum root mean square difference of entries from the product, in units of the errors that the
# leak states, that is explained by errors: the same margin as for singular values
# (`certify.ENDS`).
NOISE = 10.0

# Largest difference of a single entry in units of the standard deviation that it suggests: a
# Gaussian error exceeds 8 with probability 1e-15. Rounding of large numbers does more often.
FAR = 8.0

# Entries of a pixel must show a change of one grey level by this many times their error to confirm
# the pixel.
TOLD = 10.0


@dataclass(frozen=True)
class CompletedInput:
    """One input, as far as observed entries determine it."""

    # (p + 1,) the input as the first layer receives it, followed by a 1; zero where unknown
    row: Tensor
    # (p + 1,) standard deviations of its values, for errors of the stated size; infinite where
    # unknown
    error: Tensor
    known: Tensor  # (p + 1,) bool, the values that are determined
    checked: Tensor  # (p + 1,) int64, how many observed entries would show a change of `step`
    worst: float  # largest difference of an observed entry from the product, in units of its error
    spread: float  # root mean square of these differences per degree of freedom
    freedom: int  # number of observed entries beyond unknowns
    misfit: float  # norm of these differences relative to the entries


@dataclass(frozen=True)
class _Entries:
    """Observed entries."""

    left: Indices  # (n,) the neuron and equation of each
    right: Indices  # (n,) its pixel
    value: Array  # (n,) the entry
    error: Array  # (n,) its standard deviation

    def where(self, chosen: NDArray[np.bool_]) -> _Entries:
        """Return some of the entries."""
        return _Entries(
            self.left[chosen], self.right[chosen], self.value[chosen], self.error[chosen]
        )


def single(stack: Tensor, seen: Tensor, std: Tensor, step: Tensor) -> CompletedInput | None:
    """Find the one input behind the observed entries of rows (m, H, p + 1).

    `std` (m,) is the deviation of their errors, `step` (p,) a change of a value that matters,
    such as a grey level. None if no observed bias entry is clearly above the noise.
    """
    pixels = stack.shape[2]
    entries = _entries(stack, seen, std)
    clear = entries.where(np.abs(entries.value) > CLEAR * entries.error)
    if not (clear.right == pixels - 1).any():
        return None
    slopes, row = _along_tree(clear, stack.shape[0] * stack.shape[1], pixels)
    inside = clear.where((slopes[clear.left] != 0) & (row[clear.right] != 0))
    slopes, row, error = _least_squares(inside, slopes, row)
    told = entries.where(slopes[entries.left] != 0)
    _add_zeros(told, slopes, row, error)
    known = np.isfinite(error)
    used = told.where(known[told.right])
    off = used.value - slopes[used.left] * row[used.right]
    unit = np.hypot(used.error, LEAST * np.abs(used.value))
    apart = np.abs(off) / unit
    unknowns = np.count_nonzero(slopes) + int(known.sum()) - 1
    freedom = max(0, len(apart) - int(unknowns))
    steps = np.append(step.cpu().numpy(), 1.0)
    showing = np.abs(slopes[told.left]) * steps[told.right] > TOLD * told.error
    checked = np.bincount(told.right[showing], minlength=pixels)
    row[~known] = 0
    return CompletedInput(
        torch.from_numpy(row),
        torch.from_numpy(error),
        torch.from_numpy(known),
        torch.from_numpy(checked),
        float(apart.max(initial=0.0)),
        float(np.sqrt(np.square(apart).sum() / max(1, freedom))),
        freedom,
        float(np.linalg.norm(off) / np.linalg.norm(used.value)),
    )


def _entries(stack: Tensor, seen: Tensor, std: Tensor) -> _Entries:
    """List the observed entries of neurons that have at least two, because one reveals nothing."""
    neurons = stack.shape[1]
    useful = seen & (seen.sum(2, keepdim=True) > 1)
    equation, neuron, pixel = useful.nonzero(as_tuple=True)
    size = float(stack[useful].abs().max()) if len(pixel) else 0.0
    # Errors are never smaller than the rounding of the entries themselves in float64.
    floor = max(torch.finfo(torch.float64).eps * size, torch.finfo(torch.float64).tiny)
    error = std.double().clamp_min(floor)[equation]
    return _Entries(
        (equation * neurons + neuron).cpu().numpy(),
        pixel.cpu().numpy(),
        stack[useful].double().cpu().numpy(),
        error.cpu().numpy(),
    )


def _along_tree(entries: _Entries, lefts: int, pixels: int) -> tuple[Array, Array]:
    """Find slopes (lefts,) and values (pixels,) by products along a tree, from the bias column on.

    They are zero outside its component.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    root = lefts + pixels - 1
    size = lefts + pixels
    relative = entries.error / np.abs(entries.value)
    ends = (entries.left, lefts + entries.right)
    graph = csr_array((relative, ends), shape=(size, size))
    tree = minimum_spanning_tree(graph)
    order, before = breadth_first_order(tree, root, directed=False)
    child = order[1:]
    parent = before[child]
    # Every edge is found again by its ends, neuron first.
    names = entries.left * size + lefts + entries.right
    sorting = np.argsort(names)
    wanted = np.minimum(child, parent).astype(np.int64) * size + np.maximum(child, parent)
    product = entries.value[sorting[np.searchsorted(names, wanted, sorter=sorting)]]
    values = np.zeros(size)
    values[root] = 1.0
    # Parents come before their children.
    for node, origin, entry in zip(child.tolist(), parent.tolist(), product, strict=True):
        values[node] = entry / values[origin]
    return values[:lefts], values[lefts:]


def _least_squares(entries: _Entries, slopes: Array, row: Array) -> tuple[Array, Array, Array]:
    """Correct slopes and values by all entries, and return the errors (pixels,) of the values."""
    from scipy.linalg import cho_factor, cho_solve
    from scipy.sparse import csr_array, diags_array

    product = slopes[entries.left] * row[entries.right]
    missed = np.log(np.abs(entries.value / product))
    weight = 1 / (np.square(entries.error / entries.value) + LEAST**2)
    shape = (len(slopes), len(row))
    edges: Any = csr_array((weight, (entries.left, entries.right)), shape=shape)
    pull: Any = csr_array((weight * missed, (entries.left, entries.right)), shape=shape)
    of_left = edges.sum(axis=1)
    used = of_left > 0
    inverse = np.zeros_like(of_left)
    inverse[used] = 1 / of_left[used]
    # Slopes are eliminated first: each depends on the pixels of its own neuron only.
    scaled = diags_array(inverse) @ edges
    reduced = -(edges.T @ scaled).toarray()
    reduced[np.diag_indices_from(reduced)] += edges.sum(axis=0)
    wanted = pull.sum(axis=0) - scaled.T @ pull.sum(axis=1)
    free = np.flatnonzero(row[:-1])  # the bias column stays 1
    correction = np.zeros(len(row))
    error = np.full(len(row), np.inf)
    error[-1] = 0.0
    if len(free):
        factor = cho_factor(reduced[np.ix_(free, free)])
        correction[free] = cho_solve(factor, wanted[free])
        spread = np.diagonal(cho_solve(factor, np.eye(len(free))))
        error[free] = np.sqrt(spread) * np.abs(row[free])
    row = row * np.exp(correction)
    moved = inverse * (pull.sum(axis=1) - edges @ correction)
    return slopes * np.exp(moved), row, error


def _add_zeros(entries: _Entries, slopes: Array, row: Array, error: Array) -> None:
    """Estimate the values outside the graph from entries at neurons with known slopes."""
    rest = entries.where(~np.isfinite(error)[entries.right])
    weight = np.square(slopes[rest.left] / rest.error)
    total = np.bincount(rest.right, weight, minlength=len(row))
    part = np.bincount(rest.right, weight * rest.value / slopes[rest.left], minlength=len(row))
    found = total > 0
    row[found] = part[found] / total[found]
    error[found] = 1 / np.sqrt(total[found])
