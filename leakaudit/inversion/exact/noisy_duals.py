"""Inputs from noisy messages: dual vectors are chosen by the likelihood of all rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from leakaudit.core.progress import expired
from leakaudit.inversion.exact import first_layer_rows
from leakaudit.inversion.exact.duals_to_inputs import KnownInputs, merged
from leakaudit.inversion.exact.first_layer_rows import Span
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.linear import edge, independent, positive
from leakaudit.inversion.search import batched_search

# Along a dual vector, the rows of a neuron are noise of known size if its sample is inactive there,
# and contain signal of some size otherwise (`activation_patterns`). Close to the noise level, a
# threshold at each neuron fails: directions in which the whole batch is weak look like noise
# everywhere. The criterion is therefore how much likelier noise is than signal of the size that is
# usual along the vector, not how many neurons look like noise (`_NeuronRows.zero`).
#
# 1. **Candidates.** A dual vector is a unit vector p along which many neurons vanish: a minimum of
#    sum_g log |L_g p|^2. The logarithm rewards values near zero far more than values that are
#    merely small. It has many minima, so descents start from random vectors, and from those along
#    which one to three random neurons are smallest (`_candidates`). Each step is an eigenproblem,
#    because the logarithm lies below its tangent in |L_g p|^2: iteratively reweighted least
#    squares.
# 2. **Choice.** First, b clearly independent candidates are selected greedily. Then other
#    candidates replace them as long as the likelihood of all rows improves (`fit`,
#    `search`).
# 3. **The grid.** Inputs that lie on the data's grid are exact and are kept fixed, while the others
#    are estimated again. The part of the others outside the space of the certified ones is clearer
#    than the smallest singular values of the whole (`recover`).
#
# **Sensitivity.** Each constant below except `MOST`, `NOISE_SHARE`, `LEAST_WEIGHT` and `TURNS` was
# changed by a factor of two to three in both directions, for recordings of Fashion-MNIST with
# quantised messages (docs/exact.md): batches of 4 at a standard deviation of 1e-4 and 1e-5, of 2 at
# 1e-3, and of 8 at 1e-4. Unless its comment states otherwise, the number of exact images did not
# change, nor did any median PSNR by more than 1 dB. None is tuned to a decimal.

# Largest batch: above it, starts rarely lead to a dual vector.
MOST = 16

# Prior probability that a sample is inactive at a neuron in all rounds. Walks find 0.3 in short
# recordings and less than 0.1 in long ones; 0.05 to 0.45 give the same results.
PRIOR = 0.15

# Sizes of the signals that active neurons may have, relative to the usual one along a vector, with
# equal probability. They cover two decades, as slopes do; only the usual size, (1.0,), gives the
# same results.
SHARES = (1.0, 0.3, 0.1, 0.03, 0.01)

# Number of starts of each of the two kinds. With 100, a batch of 8 loses 1 dB; with 30, 7 dB.
STARTS = 300

# Steps of a descent. The value added to |L_g p|^2 before taking the logarithm decreases by the
# factor `DECAY` in each step, from the mean over neurons to 0.6^30 = 2e-7 of it, but never below
# the noise: from a smooth function with few minima to the sharp one. 10 steps, down to 0.6 %, give
# the same results.
DESCENTS = 30
DECAY = 0.6

# Part of the noise's own share that is always added: one and a half times, so that a neuron cannot
# have more weight because noise happens to be small there.
NOISE_SHARE = 1.5

# Steps that follow, weighted by the probability that a neuron contains only noise.
POLISH = 8

# Minimum weight of a neuron in those steps, so that no eigenproblem is all zeros.
LEAST_WEIGHT = 1e-9

# Cosine above which two vectors are estimates of one dual vector, in scaled coordinates (5.7
# degrees).
TWINS = 0.995

# Minimum part of a dual vector outside those chosen before, in scaled coordinates. An exchange is
# tried for duals of which the new one contains half of this.
APART = 0.1

# Number of candidates to keep, in units of the batch. Two are as good; with one, the wrong ones
# cannot be exchanged any more, and the batch of 8 falls from 53 to 27 dB.
SPARES = 4

# Number of duals that a candidate may replace: those that it contains most of.
PLACES = 3

# Minimum decrease of the cost for an exchange. Costs are minus twice a log likelihood, so 1 is
# within the effect of noise.
BETTER = 1.0

# Maximum number of exchanges, in units of the batch. One is enough; the loop ends when nothing
# improves.
EXCHANGES = 4

# Maximum number of turns of certifying inputs and estimating the others again. Each requires a
# newly certified input.
TURNS = 4

# Let L_g (n, b) be the rows of neuron g in coordinates of the inputs' space, with errors of unit
# variance, and m_k the coordinates of sample k. If the samples A_g are active at g, the rows lie in
# span{m_k : k in A_g} up to noise, and the unexplained part is
#
#     |L_g (1 - P_g)|^2,    P_g the projector onto that span.
#
# Minus twice the logarithm of the Gaussian likelihood is the sum of this over all neurons.
# Declaring another sample active always lowers it: a sample that is actually inactive reduces the
# sum by a chi^2 with n degrees of freedom. Each active sample therefore adds a penalty larger than
# that, n + 3.5 sqrt(2 n) (`penalty`), which is model selection with a threshold on false alarms.
#
# Unlike a test of one dual vector, the sum does not require that a weak direction can be
# distinguished from noise at every single neuron: evidence from all neurons adds up.
#
# Patterns and coordinates are determined alternately: for given coordinates, each neuron changes
# one sample at a time (`fit`); for given patterns, L-BFGS moves the coordinates (`refined`).

# A sample counts as active if it explains this many standard deviations of chi^2 more than its
# mean. Noise exceeds this with a probability of 0.5 % for n = 8 and of 0.2 % for n = 40. Measured
# as above: from 2 to 5, the median PSNR changes by at most 1 dB.
SIGMAS = 3.5

# Sweeps over all neurons, with one change of each pattern per sweep. Starts are correct except for
# one or two samples at most neurons; the loop ends when nothing changes.
SWEEPS = 4

# Alternations between patterns and coordinates. As with the sweeps, most end earlier.
ALTERNATIONS = 4

# Change of the coordinates (unit vectors) below which the alternation ends.
SETTLED = 1e-3

# Singular values of pure noise stay below this many times their edge, sqrt(rows) + sqrt(columns).
ABOVE = 1.15


def recover(white: Tensor, span: Span, grid: PixelGrid, generator: Generator) -> KnownInputs:
    """Find the inputs behind rows (m, H, p + 1) whose noise is white."""
    basis = span.basis
    certified = white.new_zeros(0, len(grid.mean))
    x = certified
    for _ in range(TURNS):
        if len(certified):
            exact = grid.rows(certified)
            basis = first_layer_rows.around(white, exact, len(span.basis), generator)
        evidence = _NeuronRows.of(torch.einsum("mhp,bp->hmb", white, basis) / span.level)
        if len(x):
            rows = grid.rows(torch.cat([certified, x]))
            likeliest = settled(evidence, rows @ basis.T, len(certified))
        else:
            likeliest = search(evidence, generator)
        guesses = grid.pixels(likeliest.m @ basis)
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
class _NeuronRows:
    """The rows of all neurons, with independent errors of unit variance."""

    rows: Tensor  # (G, n, b), condensed to the directions in time that contain signal
    gram: Tensor  # (G, b, b) the products L_g^T L_g, so that q^T gram q = |L_g q|^2
    # (b, b) scaled coordinates p, with q = scale @ p, in which the total signal of all neurons has
    # size 1 along every unit vector
    scale: Tensor
    noise: Tensor  # (b, b) the share of noise in scaled coordinates

    @classmethod
    def of(cls, rows: Tensor) -> _NeuronRows:
        """Combine the rows (G, n, b)."""
        rows = condensed(rows)
        gram = rows.mT @ rows
        count = rows.shape[0] * rows.shape[1]
        size, turn = torch.linalg.eigh(gram.sum(0))
        # Noise adds `count` to every direction, with a standard deviation of sqrt(2 count). A
        # direction with less signal than three of these is treated as having that much.
        signal = (size - count).clamp_min(3 * math.sqrt(2 * count))
        scale = turn / signal.sqrt()
        return cls(rows, gram, scale, rows.shape[1] * scale.T @ scale)

    @property
    def batch(self) -> int:
        """The number of samples b."""
        return self.rows.shape[2]

    def zero(self, q: Tensor) -> Tensor:
        """Return log odds (N, G) that a neuron contains noise, not signal, along vectors (N, b).

        The n rows along q are Gaussian with variance 1 if there is only noise, and with 1 +
        v if there is signal of variance v. Up to a common constant, the log densities of
        their sum of squares s are -s / 2 and -n / 2 log(1 + v) - s / (2 (1 + v)), the
        latter mixed over v.
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
        """Return unit vectors p (N, b) of q (N, b) in scaled coordinates."""
        return _unit(torch.linalg.solve(self.scale, q.T).T)


def search(evidence: _NeuronRows, generator: Generator) -> _SampleFit:
    """Find the likeliest coordinates and patterns of all samples."""
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
    return refined(evidence.rows, best, best.m[:0])


def settled(evidence: _NeuronRows, m: Tensor, known: int) -> _SampleFit:
    """Refine coordinates (b, b) of all samples, of which the first `known` ones are exact."""
    m = _unit(m)
    inverse, info = torch.linalg.inv_ex(m)
    if int(info):
        active = torch.ones(len(evidence.rows), len(m), dtype=torch.bool)
    else:
        active = (evidence.zero(_unit(inverse.T)) < 0).T
    start = fit(evidence.rows, m, active)
    return refined(evidence.rows, start, m[:known])


def _candidates(evidence: _NeuronRows, generator: Generator) -> Tensor:
    """Descend from random vectors, and from those along which up to three neurons are smallest.

    Returns unit vectors (k, b), those with the most evidence of zeros first.
    """
    b = evidence.batch
    gram = evidence.scale.T @ evidence.gram @ evidence.scale
    start = torch.randn(STARTS, b, generator=generator, dtype=gram.dtype)
    pick = torch.randint(len(gram), (STARTS, 3), generator=generator)
    used = torch.arange(3) < torch.randint(1, 4, (STARTS, 1), generator=generator)
    by_neuron = gram / gram.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    some = torch.einsum("sk,skij->sij", used.to(gram), by_neuron[pick])
    # Neurons with several inactive samples leave a space: a small random term selects a direction
    # in it.
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


def _independent(evidence: _NeuronRows, pool: Tensor) -> Tensor:
    """Choose independent vectors of a pool (k, b) greedily, completed with directions outside."""
    b = evidence.batch
    chosen, basis = independent(evidence.scaled(pool), APART, b)
    outside = torch.eye(b, dtype=pool.dtype)
    if chosen:
        outside = torch.linalg.svd(basis, full_matrices=True).U[:, len(chosen) :]
    return torch.cat([pool[chosen], _unit((evidence.scale @ outside).T)])


def _places(evidence: _NeuronRows, duals: Tensor, new: Tensor) -> list[int]:
    """Return the indices of the duals (b, b) that a vector contains most of."""
    all_of_them = evidence.scaled(duals).T
    parts = torch.linalg.solve_ex(all_of_them, evidence.scaled(new[None]).T).result
    held = parts[:, 0].abs()
    return [int(k) for k in held.argsort(descending=True)[:PLACES] if float(held[k]) > APART / 2]


def _fit(evidence: _NeuronRows, duals: Tensor) -> _SampleFit:
    """Convert duals (b, b) into coordinates and determine their patterns."""
    inverse, info = torch.linalg.inv_ex(duals.T)
    if int(info):
        nowhere = torch.zeros(len(evidence.rows), len(duals), dtype=torch.bool)
        return _SampleFit(duals, nowhere, math.inf)
    return fit(evidence.rows, inverse, (evidence.zero(duals) < 0).T)


def _forms(q: Tensor, forms: Tensor) -> Tensor:
    """Return the values q^T F q (N, G) of quadratic forms (G, b, b) at vectors (N, b)."""
    return torch.as_tensor((q[:, :, None] * q[:, None]).flatten(1) @ forms.flatten(1).T)


def _least(weight: Tensor, forms: Tensor) -> Tensor:
    """Return unit vectors (N, b) that minimise sums of forms (G, b, b), weighted by (N, G)."""
    summed = (weight / weight.sum(1, keepdim=True)) @ forms.flatten(1)
    vectors = torch.linalg.eigh(summed.reshape(-1, *forms.shape[1:]))[1]
    return torch.as_tensor(vectors[:, :, 0])


def _unit(x: Tensor) -> Tensor:
    """Scale rows (N, b) to length 1."""
    length = positive(x.norm(dim=1, keepdim=True))
    unit: Tensor = x / length
    return unit


@dataclass(frozen=True)
class _SampleFit:
    """Samples and their activity, and how badly they explain the rows."""

    m: Tensor  # (b, b) coordinates of the samples, each of length 1
    active: Tensor  # (G, b) bool, where they are active
    # the unexplained part, plus a penalty for each active sample; infinite if not finite
    cost: float


def condensed(rows: Tensor) -> Tensor:
    """Keep the directions in time of rows (G, n, b) that contain signal: (G, k, b), k <= n."""
    groups, n, b = rows.shape
    left, sizes, _ = torch.linalg.svd(rows.transpose(0, 1).flatten(1), full_matrices=False)
    keep = max(min(n, b), int((sizes > ABOVE * edge(n, groups * b)).sum()))
    return torch.einsum("gnb,nk->gkb", rows, left[:, :keep])


def penalty(n: int) -> float:
    """Return what a sample must explain in the n rows of a neuron to count as active.

    chi^2 with n degrees of freedom has mean n and variance 2 n.
    """
    return n + SIGMAS * math.sqrt(2 * n)


def fit(rows: Tensor, m: Tensor, active: Tensor) -> _SampleFit:
    """Determine the patterns (G, b) for coordinates (b, b) of any length.

    In each sweep, every neuron changes the one sample whose activity is most clearly wrong.
    """
    m = m / m.norm(dim=1, keepdim=True)
    limit = penalty(rows.shape[1])
    for _ in range(SWEEPS):
        gain = _explained(rows, m, active)
        differs = (gain > limit) != active
        if not bool(differs.any()):
            break
        sure = torch.where(differs, (gain.clamp_min(1) / limit).log().abs(), -1.0)
        at = torch.nn.functional.one_hot(sure.argmax(1), len(m)).bool() & differs
        active = active ^ at
    cost = float(_unexplained(rows, m, active)) + limit * float(active.sum())
    return _SampleFit(m, active, cost if math.isfinite(cost) else math.inf)


def refined(rows: Tensor, start: _SampleFit, known: Tensor) -> _SampleFit:
    """Move the coordinates to explain the rows best, except the first `known` ones (k, b)."""
    best = start
    if len(known):
        best = fit(rows, torch.cat([known, start.m[len(known) :]]), start.active)
    now = best
    for _ in range(ALTERNATIONS):
        fixed = now.m[: len(known)]
        free = now.m[len(known) :]
        active = now.active
        if not len(free):
            break
        size = float(rows[0].numel() * len(rows))

        def objective(
            move: Tensor, fixed: Tensor = fixed, active: Tensor = active, size: float = size
        ) -> Tensor:
            m = torch.cat([fixed, move / move.norm(dim=1, keepdim=True)])
            return _unexplained(rows, m, active) / size

        moved = batched_search.lbfgs(objective, (free,), 1, what="exact").point[0]
        new = fit(rows, torch.cat([fixed, moved]), active)
        away = float((new.m - now.m).norm())
        now = new
        if new.cost < best.cost:
            best = new
        if away < SETTLED or bool((new.active == active).all()):
            break
    return best


def _span(m: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Return active coordinates (G, b, b), zero elsewhere, and their dual vectors in their span.

    Inactive samples have a 1 on the diagonal of the Gram matrix, so that one batched solve
    serves patterns of every size.
    """
    on = active.to(m.dtype)
    mine = on[:, :, None] * m
    gram = on[:, :, None] * (m @ m.T) * on[:, None] + torch.diag_embed(1 - on)
    solved, _ = torch.linalg.solve_ex(gram, mine)
    return mine, solved


def _unexplained(rows: Tensor, m: Tensor, active: Tensor) -> Tensor:
    """Return the remaining sum of squares; the projector onto the span is dual^T mine."""
    mine, dual = _span(m, active)
    return (rows - rows @ dual.mT @ mine).square().sum()


def _explained(rows: Tensor, m: Tensor, active: Tensor) -> Tensor:
    """Return what each sample explains, or would explain, at each neuron (G, b).

    An active sample explains the part of the rows along its dual vector within the span, an
    inactive one the part along its component outside the span.
    """
    mine, dual = _span(m, active)
    outside = m - (m @ dual.mT) @ mine
    along = torch.where(active[:, :, None], dual, outside)
    along = along / positive(along.norm(dim=2, keepdim=True))
    return torch.as_tensor((rows @ along.mT).square().sum(1))
