"""The space of a batch's inputs from rows whose same entries were observed in every round."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.inversion import linear

# If messages hold the same coordinates in every round, neuron r is observed at a set S_r of pixels.
# Its rows over time are W_r = A_r V on S_r, with V (b, p) any basis of the inputs and A_r (m, b)
# the slopes over time in this basis. No neuron shows all pixels, but sets overlap, and the pieces
# can be glued:
#
# 1. **Core.** If all b inputs are active at a neuron at some time, its rows span V on S_r exactly:
#    V on S_r has no part outside the row space of W_r. These are linear equations for V, whatever
#    the other pieces are. Summed over such neurons, sum_r (I - P_r) is a positive semidefinite p x
#    p matrix whose null space is V. No start value and no iteration is needed.
# 2. **Extension.** On pixels in the core, the slopes A_r of every neuron follow by least squares,
#    and with them further pixels from all neurons that show them, also from those where some inputs
#    are never active.
# 3. **Refinement.** A few alternations over all observed entries remove the error that the core's
#    choice of neurons left.
#
# Only observed entries are used, and `worst` compares all of them with the result: a completed
# entry is never evidence.

# Minimum ratio of a neuron's b-th singular value to the noise for all inputs to be active at it.
FULL = 30.0

# Minimum number of neurons with all inputs active that show a pixel of the core: with one, its
# pixel adds an unknown for every equation.
TWICE = 2

# Maximum ratio of the last eigenvalue of the null space to the first one after it. A choice: these
# are squares, so directions of the space are at least 30 times clearer than others.
GAP = 1e-3

# Number of observed pixels of a neuron beyond b from which its slopes are computed.
SPARE = 4

# Minimum singular value, relative to the largest one, of a least-squares problem that is solved.
REGULAR = 1e-6

# Alternations over all observed entries. Each multiplies the error by a constant below one half in
# the recordings of tests/reference/test_completion.py.
SWEEPS = 4

# Maximum number of extensions; each adds pixels that share a neuron with those before.
EXTENSIONS = 6


@dataclass(frozen=True)
class GluedSpace:
    """The space of the inputs on the pixels that could be connected."""

    basis: Tensor  # (b, n) orthonormal rows, on the n connected columns
    columns: Tensor  # (p + 1,) bool, these columns
    neurons: Tensor  # (k,) indices of the neurons whose slopes are known
    slopes: Tensor  # (k, m, b) their slopes over time, in coordinates of the basis
    # (k,) standard deviation of the slopes' errors in the least certain direction, for rows with
    # errors of unit variance
    noise: Tensor
    # largest singular value of what is unexplained in a neuron's rows, in units of that of white
    # noise
    worst: float
    misfit: float  # norm of what is unexplained relative to the rows

    def completed(self, stack: Tensor, seen: Tensor) -> Tensor:
        """Return the rows (m, k, n) of the neurons on all connected columns, not whitened."""
        places = torch.cumsum(self.columns, 0) - 1
        rows = []
        for r in self.neurons.tolist():
            mine = seen[r] & self.columns
            part = self.basis[:, places[mine]]
            rows.append(stack[:, r, mine] @ torch.linalg.pinv(part) @ self.basis)
        return torch.stack(rows, dim=1)


@dataclass(frozen=True)
class _Neuron:
    """The observed rows of one neuron."""

    index: int
    pixels: Tensor  # (s,) the observed columns
    rows: Tensor  # (m, s) their entries over time, with errors of unit variance

    @property
    def edge(self) -> float:
        """The largest singular value of white noise of this size, or of rounding in float64."""
        rounding = torch.finfo(self.rows.dtype).eps * float(self.rows.norm())
        return max(linear.edge(*self.rows.shape), rounding)

    @property
    def rank(self) -> int:
        return int((torch.linalg.svdvals(self.rows) > FULL * self.edge).sum())


def glue(white: Tensor, seen: Tensor, most: int) -> GluedSpace | None:
    """Find the space of the inputs from whitened rows (m, H, p + 1), zero where not observed.

    There are at most `most` inputs. None if too few neurons with all inputs active overlap, or
    the last column, the bias, is not connected.
    """
    neurons = []
    for r in range(seen.shape[0]):
        pixels = seen[r].nonzero().flatten()
        if len(pixels) >= most + SPARE:
            neurons.append(_Neuron(r, pixels, white[:, r, pixels]))
    ranks = [min(most, neuron.rank) for neuron in neurons]
    if len(ranks) < TWICE:
        return None
    # The largest number of directions that some neurons show together.
    batch = sorted(ranks)[-TWICE]
    if not batch:
        return None
    space, known = _core(neurons, seen.shape[1], batch)
    if not bool(known.any()):
        return None
    for _ in range(EXTENSIONS):
        grown = _extended(neurons, space, known, batch)
        if grown is None:
            break
        space, known = grown
    for _ in range(SWEEPS):
        space = _refined(neurons, space, known, batch)
    if not bool(known[-1]):
        return None
    return _result(neurons, space, known, batch)


def _core(neurons: list[_Neuron], columns: int, batch: int) -> tuple[Tensor, Tensor]:
    """Return V (b, p + 1) on the columns that full neurons determine, and which these are."""
    like = neurons[0].rows
    nowhere = (like.new_zeros(batch, columns), torch.zeros(columns, dtype=torch.bool))
    full = []
    for neuron in neurons:
        _, sizes, right = torch.linalg.svd(neuron.rows, full_matrices=False)
        if len(sizes) >= batch and float(sizes[batch - 1]) > FULL * neuron.edge:
            full.append((neuron, right[:batch]))
    known = torch.ones(columns, dtype=torch.bool)
    while True:
        count = torch.zeros(columns, dtype=torch.long)
        for neuron, _ in full:
            if int(known[neuron.pixels].sum()) > batch:
                count[neuron.pixels] += 1
        fewer = known & (count >= TWICE)
        if torch.equal(fewer, known):
            break
        known = fewer
    places = known.nonzero().flatten()
    if len(places) <= batch:
        return nowhere
    at = torch.full((columns,), -1, dtype=torch.long)
    at[places] = torch.arange(len(places))
    outside = like.new_zeros(len(places), len(places))
    for neuron, right in full:
        inside = known[neuron.pixels]
        if int(inside.sum()) <= batch:
            continue
        part = torch.linalg.qr(right[:, inside].T).Q
        here = at[neuron.pixels[inside]]
        identity = torch.eye(len(here), dtype=like.dtype)
        outside[here[:, None], here] += identity - part @ part.T
    sizes, vectors = torch.linalg.eigh(outside)
    if not float(sizes[batch - 1]) < GAP * float(sizes[batch]):
        return nowhere
    space = like.new_zeros(batch, columns)
    space[:, places] = vectors[:, :batch].T
    return space, known


def _slopes(neuron: _Neuron, space: Tensor, known: Tensor, batch: int) -> Tensor | None:
    """Return the slopes A_r (m, b) of a neuron; None if it shows too few connected pixels."""
    inside = known[neuron.pixels]
    if int(inside.sum()) < batch + SPARE:
        return None
    part = space[:, neuron.pixels[inside]]
    left, sizes, right = torch.linalg.svd(part, full_matrices=False)
    if not float(sizes[-1]) > REGULAR * float(sizes[0]):
        return None
    slopes: Tensor = ((neuron.rows[:, inside] @ right.T) / sizes) @ left.T
    return slopes


def _extended(
    neurons: list[_Neuron], space: Tensor, known: Tensor, batch: int
) -> tuple[Tensor, Tensor] | None:
    """Return V on further columns; None if no column can be added."""
    new = space.clone()
    grown = known.clone()
    grams, sides = _equations(neurons, space, known, batch)
    for column in (~known).nonzero().flatten().tolist():
        sizes = torch.linalg.eigvalsh(grams[column])
        if float(sizes[0]) > REGULAR * float(sizes[-1]):
            new[:, column] = torch.linalg.solve(grams[column], sides[column])
            grown[column] = True
    if torch.equal(grown, known):
        return None
    return new, grown


def _refined(neurons: list[_Neuron], space: Tensor, known: Tensor, batch: int) -> Tensor:
    """Return V after one alternation over all observed entries."""
    grams, sides = _equations(neurons, space, known, batch)
    new = torch.zeros_like(space)
    inverse = torch.linalg.pinv(grams[known], hermitian=True)
    new[:, known] = (inverse @ sides[known][:, :, None])[:, :, 0].T
    # Orthonormal rows keep the equations well conditioned.
    turned: Tensor = torch.linalg.qr(new.T).Q.T
    return turned


def _equations(
    neurons: list[_Neuron], space: Tensor, known: Tensor, batch: int
) -> tuple[Tensor, Tensor]:
    """Return the normal equations of every column of V: matrices (p + 1, b, b) and sides."""
    columns = space.shape[1]
    grams = space.new_zeros(columns, batch, batch)
    sides = space.new_zeros(columns, batch)
    for neuron in neurons:
        slopes = _slopes(neuron, space, known, batch)
        if slopes is not None:
            grams[neuron.pixels] += slopes.T @ slopes
            sides[neuron.pixels] += neuron.rows.T @ slopes
    return grams, sides


def _result(neurons: list[_Neuron], space: Tensor, known: Tensor, batch: int) -> GluedSpace:
    """Return the space with orthonormal rows, the slopes, and what remains unexplained."""
    basis = torch.linalg.qr(space[:, known].T).Q.T
    whole = torch.zeros_like(space)
    whole[:, known] = basis
    indices = []
    slopes = []
    noise = []
    worst = 0.0
    missed = 0.0
    total = 0.0
    for neuron in neurons:
        found = _slopes(neuron, whole, known, batch)
        if found is None:
            continue
        part = whole[:, neuron.pixels[known[neuron.pixels]]]
        left = neuron.rows[:, known[neuron.pixels]] - found @ part
        missed += float(left.square().sum())
        total += float(neuron.rows.square().sum())
        worst = max(worst, float(torch.linalg.matrix_norm(left, ord=2)) / neuron.edge)
        indices.append(neuron.index)
        slopes.append(found)
        noise.append(1 / float(torch.linalg.svdvals(part)[-1]))
    return GluedSpace(
        basis,
        known,
        torch.tensor(indices),
        torch.stack(slopes),
        torch.tensor(noise, dtype=space.dtype),
        worst,
        math.sqrt(missed / total),
    )
