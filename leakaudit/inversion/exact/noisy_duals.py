"""Inputs if the wire's noise counts: dual vectors are chosen by the likelihood of all rows.

Along a dual vector, the rows of a neuron are noise of known size if its sample is inactive there,
and hold signal of some size otherwise (`activation_patterns`). Near the noise, a threshold at each
neuron fails: directions in which the whole batch is weak look like noise everywhere. So what counts
is how much likelier noise is than signal of the size that is usual along the vector, not how many
neurons look like noise (`NeuronRows.zero`).

1. **Candidates.** A dual vector is a unit vector p that many neurons do not see at all: a minimum
   of sum_g log |L_g p|^2. The logarithm rewards values near zero far more than small ones in
   general. It has many minima, so descents start from random vectors, and from those that one to
   three random neurons see least (`_candidates`). Each step is an eigenproblem, since the logarithm
   lies below its tangent in |L_g p|^2: iteratively reweighted least squares.
2. **Choice.** Candidates that are clearly independent are taken greedily, b of them. Then other
   candidates replace them as long as the likelihood of all rows improves (`likelihood`, `search`).
3. **The grid.** What lies on the data's grid is exact, is taken as given, and the others are
   estimated anew beside it. Their part outside what is certified shows more clearly than the
   smallest singular values of the whole (`recover`).

**How sensitive this is.** Each constant below but `MOST`, `NOISE_SHARE`, `LEAST_WEIGHT` and `TURNS`
was moved by a factor of two to three either way, for recordings of Fashion-MNIST with quantised
wires (docs/exact.md): batches of 4 at a standard deviation of 1e-4 and 1e-5, of 2 at 1e-3, and of 8
at 1e-4. Unless its comment says otherwise, the count of exact images did not change, nor did any
median PSNR by more than 1 dB. None is tuned to a decimal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from leakaudit.inversion.exact import first_layer_rows, likelihood
from leakaudit.inversion.exact.duals_to_inputs import KnownInputs, merged
from leakaudit.inversion.exact.first_layer_rows import Span
from leakaudit.inversion.exact.likelihood import SampleFit
from leakaudit.inversion.exact.pixel_grid import Grid
from leakaudit.progress import expired

# Largest batch: beyond it, starts rarely lead to a dual vector.
MOST = 16

# Prior probability that a sample is inactive at a neuron through all rounds. Walks find 0.3 in
# short recordings and less than 0.1 in long ones; 0.05 to 0.45 give the same results.
PRIOR = 0.15

# Sizes of the signals that active neurons may have, relative to the usual one along a vector,
# equally likely. They spread over two decades, since slopes do; the usual size alone (1.0,) gives
# the same.
SHARES = (1.0, 0.3, 0.1, 0.03, 0.01)

# Starts of each of the two kinds. At 100 of them a batch of 8 loses 1 dB, at 30 it loses 7 dB.
STARTS = 300

# Steps of a descent. What is added to |L_g p|^2 before the logarithm is taken falls by `DECAY` each
# time, from the mean over neurons to 0.6^30 = 2e-7 of it, but never below the noise: from a smooth
# function with few minima to the sharp one. 10 steps, down to 0.6 %, give the same results.
DESCENTS = 30
DECAY = 0.6

# Part of the noise's own share that is always added: one and a half times, so that a neuron cannot
# count for more because noise happens to be small there.
NOISE_SHARE = 1.5

# Steps that follow with the probability that a neuron is silent as its weight.
POLISH = 8

# Least weight of a neuron in those steps, so that no eigenproblem is all zeros.
LEAST_WEIGHT = 1e-9

# Cosine of two estimates of one dual vector, in scaled coordinates (5.7 degrees).
TWINS = 0.995

# Least part of a dual vector outside those chosen before, in scaled coordinates. An exchange is
# tried for duals of which the new one holds half of it.
APART = 0.1

# Candidates that are kept, in units of the batch. Two are as good; with one, the wrong ones cannot
# be exchanged any more, and the batch of 8 falls from 53 to 27 dB.
SPARES = 4

# Duals that a candidate may replace: those it holds most of.
PLACES = 3

# Fall of the cost that makes an exchange worth it. Costs are minus twice a log likelihood, so 1 is
# within what noise changes.
BETTER = 1.0

# Most exchanges, in units of the batch. One is enough; the loop ends when nothing improves.
EXCHANGES = 4

# Most turns of certifying inputs and estimating the others anew. Each needs a newly certified
# input.
TURNS = 4


def recover(
    white: Tensor, span: Span, grid: Grid, known: Tensor, generator: Generator
) -> KnownInputs:
    """Find the inputs behind a whitened stack whose noise is white.

    Args:
        white: (m, H, p + 1) rows.
        span: The space that they span.
        grid: Of the data.
        known: (n, p) inputs that are certified already.
        generator: For all random choices.

    Returns:
        Certified inputs and estimates of the others.
    """
    basis = span.basis
    certified = known
    x = known[:0]
    for _ in range(TURNS):
        if len(certified):
            exact = grid.rows(certified)
            basis = first_layer_rows.around(white, exact, len(span.basis), generator)
        evidence = NeuronRows.of(torch.einsum("mhp,bp->hmb", white, basis) / span.level)
        if len(x):
            rows = grid.rows(torch.cat([certified, x]))
            fit = settled(evidence, rows @ basis.T, len(certified))
        else:
            fit = search(evidence, generator)
        guesses = grid.pixels(fit.m @ basis)
        new = merged(certified, guesses, grid)
        x = guesses[~grid.holds(guesses)]
        nothing_new = len(new) == len(certified)
        everything = len(new) == len(basis)
        # Two estimates may have been certified as one image.
        lost = len(new) + len(x) != len(basis)
        if nothing_new or everything or lost or expired():
            return KnownInputs(new, x)
        certified = new
    return KnownInputs(certified, x)


@dataclass(frozen=True)
class NeuronRows:
    """The rows of all neurons, with independent errors of unit variance.

    Attributes:
        rows: (G, n, b), condensed to the directions in time that hold signal.
        gram: (G, b, b) the products L_g^T L_g, so that q^T gram q = |L_g q|^2.
        scale: (b, b) scaled coordinates p, with q = scale @ p, in which the signals of all neurons
            together have size 1 along every unit vector.
        noise: (b, b) the share of noise in scaled coordinates.
    """

    rows: Tensor
    gram: Tensor
    scale: Tensor
    noise: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> NeuronRows:
        """Take rows (G, n, b) together."""
        rows = likelihood.condensed(rows)
        gram = rows.mT @ rows
        count = rows.shape[0] * rows.shape[1]
        size, turn = torch.linalg.eigh(gram.sum(0))
        # Noise alone adds `count` to every direction, with a standard deviation of sqrt(2 count).
        # A direction with less signal than three of these counts as having that much.
        signal = (size - count).clamp_min(3 * math.sqrt(2 * count))
        scale = turn / signal.sqrt()
        return cls(rows, gram, scale, rows.shape[1] * scale.T @ scale)

    @property
    def batch(self) -> int:
        """Number of samples b."""
        return self.rows.shape[2]

    def zero(self, q: Tensor) -> Tensor:
        """Log odds that unit vectors meet noise at a neuron, and not signal of a usual size.

        The n rows along q are Gaussian with variance 1 if there is only noise, and with 1 + v if
        there is signal of variance v. Up to a common constant, the log densities of their sum of
        squares s are -s / 2 and -n / 2 log(1 + v) - s / (2 (1 + v)), the latter mixed over v.

        Args:
            q: (N, b) unit vectors.

        Returns:
            (N, G), positive where noise is likelier.
        """
        n = self.rows.shape[1]
        size = _forms(q, self.gram)
        # Mean over all neurons of the signal's variance along q; hardly ever zero.
        usual = (size.mean(1, keepdim=True) / n - 1).clamp_min(1e-3)
        signal = []
        for share in SHARES:
            signal.append(-0.5 * n * torch.log1p(usual * share) - 0.5 * size / (1 + usual * share))
        prior = math.log(len(SHARES) * PRIOR / (1 - PRIOR))
        return -0.5 * size - torch.logsumexp(torch.stack(signal), dim=0) + prior

    def scaled(self, q: Tensor) -> Tensor:
        """Unit vectors p (N, b) of q (N, b) in scaled coordinates."""
        return _unit(torch.linalg.solve(self.scale, q.T).T)


def search(evidence: NeuronRows, generator: Generator) -> SampleFit:
    """Find the likeliest coordinates and patterns of all samples.

    Args:
        evidence: Rows of all neurons.
        generator: Draws the starts of the descents.
    """
    pool = _candidates(evidence, generator)
    duals = _independent(evidence, pool)
    best = _fit(evidence, duals)
    changes = 0
    again = True
    while again and changes < EXCHANGES * evidence.batch and not expired():
        again = False
        for new in pool:
            for place in _places(evidence, duals, new):
                trial = duals.clone()
                trial[place] = new
                found = _fit(evidence, trial)
                if found.cost < best.cost - BETTER:
                    best = found
                    duals = trial
                    again = True
                    changes += 1
                    break
    return likelihood.refined(evidence.rows, best, best.m[:0])


def settled(evidence: NeuronRows, m: Tensor, known: int) -> SampleFit:
    """Refine coordinates of all samples.

    Args:
        evidence: Rows of all neurons.
        m: (b, b) coordinates, of any length.
        known: How many of them, the first ones, are exact and stay.
    """
    m = _unit(m)
    inverse, info = torch.linalg.inv_ex(m)
    if int(info):
        active = torch.ones(len(evidence.rows), len(m), dtype=torch.bool)
    else:
        active = (evidence.zero(_unit(inverse.T)) < 0).T
    start = likelihood.fit(evidence.rows, m, active)
    return likelihood.refined(evidence.rows, start, m[:known])


def _candidates(evidence: NeuronRows, generator: Generator) -> Tensor:
    """Descend from random vectors, and from those that up to three random neurons see least.

    Returns:
        (k, b) unit vectors, those with the most evidence of zeros first.
    """
    b = evidence.batch
    gram = evidence.scale.T @ evidence.gram @ evidence.scale
    start = torch.randn(STARTS, b, generator=generator, dtype=gram.dtype)
    pick = torch.randint(len(gram), (STARTS, 3), generator=generator)
    used = torch.arange(3) < torch.randint(1, 4, (STARTS, 1), generator=generator)
    by_neuron = gram / gram.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    some = torch.einsum("sk,skij->sij", used.to(gram), by_neuron[pick])
    # Neurons with several inactive samples leave a space: a little chance picks a direction in it.
    chance = 1e-4 * torch.randn(STARTS, b, generator=generator, dtype=gram.dtype).square()
    p = torch.cat([start, torch.linalg.eigh(some + torch.diag_embed(chance))[1][:, :, 0]])
    least = 1 / len(gram)
    for _ in range(DESCENTS):
        p = _unit(p)
        floor = (NOISE_SHARE * _forms(p, evidence.noise[None])).clamp_min(least)
        p = _least(1 / (_forms(p, gram) + floor), gram)
        least = DECAY * least
    q = _unit(p @ evidence.scale.T)
    for _ in range(POLISH):
        q = _least(evidence.zero(q).sigmoid() + LEAST_WEIGHT, evidence.gram)
    score = evidence.zero(q).clamp_min(0).sum(1)
    order = score.argsort(descending=True)
    q = q[order[score[order] > 0]]
    p = evidence.scaled(q)
    kept: list[int] = []
    for k in range(len(q)):
        if not kept or float((p[kept] @ p[k]).abs().max()) < TWINS:
            kept.append(k)
    return q[kept[: SPARES * b]]


def _independent(evidence: NeuronRows, pool: Tensor) -> Tensor:
    """Choose independent vectors of a pool (k, b) greedily.

    Returns:
        (b, b), filled up with directions outside them.
    """
    b = evidence.batch
    chosen: list[int] = []
    basis = pool.new_zeros(b, 0)
    for k, p in enumerate(evidence.scaled(pool)):
        rest = p - basis @ (basis.T @ p)
        rest = rest - basis @ (basis.T @ rest)
        if len(chosen) < b and float(rest.norm()) > APART:
            chosen.append(k)
            basis = torch.cat([basis, (rest / rest.norm())[:, None]], dim=1)
    if chosen:
        outside = torch.linalg.svd(basis, full_matrices=True).U[:, len(chosen) :]
    else:
        outside = torch.eye(b, dtype=pool.dtype)
    return torch.cat([pool[chosen], _unit((evidence.scale @ outside).T)])


def _places(evidence: NeuronRows, duals: Tensor, new: Tensor) -> list[int]:
    """Return the places of the duals (b, b) that a vector holds most of."""
    all_of_them = evidence.scaled(duals).T
    parts = torch.linalg.solve_ex(all_of_them, evidence.scaled(new[None]).T).result
    held = parts[:, 0].abs()
    return [int(k) for k in held.argsort(descending=True)[:PLACES] if float(held[k]) > APART / 2]


def _fit(evidence: NeuronRows, duals: Tensor) -> SampleFit:
    """Turn duals (b, b) into coordinates and settle their patterns."""
    inverse, info = torch.linalg.inv_ex(duals.T)
    if int(info):
        nowhere = torch.zeros(len(evidence.rows), len(duals), dtype=torch.bool)
        return SampleFit(duals, nowhere, math.inf)
    return likelihood.fit(evidence.rows, inverse, (evidence.zero(duals) < 0).T)


def _forms(q: Tensor, forms: Tensor) -> Tensor:
    """Values q^T F q (N, G) of quadratic forms (G, b, b) at vectors (N, b)."""
    return torch.as_tensor((q[:, :, None] * q[:, None]).flatten(1) @ forms.flatten(1).T)


def _least(weight: Tensor, forms: Tensor) -> Tensor:
    """Unit vectors (N, b) where sums of forms (G, b, b), weighted by (N, G), are least."""
    summed = (weight / weight.sum(1, keepdim=True)) @ forms.flatten(1)
    vectors = torch.linalg.eigh(summed.reshape(-1, *forms.shape[1:]))[1]
    return torch.as_tensor(vectors[:, :, 0])


def _unit(x: Tensor) -> Tensor:
    """Rows (N, b) at length 1."""
    length = x.norm(dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    unit: Tensor = x / length
    return unit
