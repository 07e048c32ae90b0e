"""Dual vectors where the wire's noise counts, found by descent from many starts and chosen by the likelihood of all rows.

At a neuron where its sample is inactive, the rows along a dual vector are noise of known size, elsewhere they hold signal of some
size. Directions in which the whole batch is weak look like noise everywhere, so what counts is how much likelier noise is than signal
of the size that is usual along a vector, not how many neurons look like noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from leakaudit.inversion.exact import likelihood
from leakaudit.inversion.exact.likelihood import Fit
from leakaudit.progress import expired

MOST = 16  # samples; beyond, starts rarely lead to a dual vector
PRIOR = 0.15  # of a sample to be inactive at a neuron through all rounds
SHARES = (1.0, 0.3, 0.1, 0.03, 0.01)  # of the usual size of signals that active neurons may have
STARTS = 300  # of each kind
DESCENTS = 30  # reweighted eigenproblems; the rounding of a weight falls by DECAY each time
DECAY = 0.6
POLISH = 8  # reweighted eigenproblems with likelihoods as weights
TWINS = 0.995  # cosine of two estimates of one dual vector, in scaled coordinates
APART = 0.1  # least part of a dual vector outside those chosen before, in scaled coordinates
SPARES = 4  # candidates kept, in units of the batch
PLACES = 3  # duals that a candidate may take the place of
BETTER = 1.0  # fall of the cost that makes an exchange worth it
EXCHANGES = 4  # at most, in units of the batch


@dataclass(frozen=True)
class Evidence:
    """All neurons' rows with errors of unit variance.

    rows: (G, n, b). gram: (G, b, b) L_g^T L_g. scale: (b, b), q = scale @ p, such that the signals of all neurons together have size
    1 along every unit p. noise: (b, b), the share of noise in scaled coordinates.
    """

    rows: Tensor
    gram: Tensor
    scale: Tensor
    noise: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> Evidence:
        """Take rows (G, n, b) together."""
        rows = likelihood.condensed(rows)
        gram, count = rows.mT @ rows, rows.shape[0] * rows.shape[1]
        size, turn = torch.linalg.eigh(gram.sum(0))
        scale = turn / (size - count).clamp_min(3 * math.sqrt(2 * count)).sqrt()
        return cls(rows, gram, scale, rows.shape[1] * scale.T @ scale)

    @property
    def batch(self) -> int:
        """Number of samples b."""
        return self.rows.shape[2]

    def zero(self, q: Tensor) -> Tensor:
        """Log odds (N, G) that unit vectors q (N, b) meet noise alone at a neuron, and not signal of a usual size."""
        n = self.rows.shape[1]
        size = _forms(q, self.gram)
        usual = (size.mean(1, keepdim=True) / n - 1).clamp_min(1e-3)
        signal = [-0.5 * n * torch.log1p(usual * s) - 0.5 * size / (1 + usual * s) for s in SHARES]
        return (
            -0.5 * size
            - torch.logsumexp(torch.stack(signal), dim=0)
            + math.log(len(SHARES) * PRIOR / (1 - PRIOR))
        )

    def scaled(self, q: Tensor) -> Tensor:
        """Unit vectors p (N, b) of q (N, b) in scaled coordinates."""
        return _unit(torch.linalg.solve(self.scale, q.T).T)


def search(evidence: Evidence, generator: Generator) -> Fit:
    """Return the likeliest coordinates and patterns of all samples."""
    pool = _candidates(evidence, generator)
    duals = _independent(evidence, pool)
    best, changes, again = _fit(evidence, duals), 0, True
    while again and changes < EXCHANGES * evidence.batch and not expired():
        again = False
        for new in pool:
            for place in _places(evidence, duals, new):
                trial = duals.clone()
                trial[place] = new
                if (found := _fit(evidence, trial)).cost < best.cost - BETTER:
                    best, duals, again, changes = found, trial, True, changes + 1
                    break
    return likelihood.refined(evidence.rows, best, best.m[:0])


def settled(evidence: Evidence, m: Tensor, known: int) -> Fit:
    """Refine coordinates m (b, b) of all samples, of which the first `known` are exact."""
    m = _unit(m)
    inverse, info = torch.linalg.inv_ex(m)
    active = (
        torch.ones(len(evidence.rows), len(m), dtype=torch.bool)
        if int(info)
        else (evidence.zero(_unit(inverse.T)) < 0).T
    )
    return likelihood.refined(evidence.rows, likelihood.fit(evidence.rows, m, active), m[:known])


def _candidates(evidence: Evidence, generator: Generator) -> Tensor:
    """Descend from random vectors, and from those that up to three random neurons see least; returns (k, b), likeliest first."""
    b = evidence.batch
    gram = evidence.scale.T @ evidence.gram @ evidence.scale
    start = torch.randn(STARTS, b, generator=generator, dtype=gram.dtype)
    pick = torch.randint(len(gram), (STARTS, 3), generator=generator)
    used = torch.arange(3) < torch.randint(1, 4, (STARTS, 1), generator=generator)
    some = torch.einsum(
        "sk,skij->sij",
        used.to(gram),
        (gram / gram.diagonal(dim1=1, dim2=2).sum(1)[:, None, None])[pick],
    )
    chance = 1e-4 * torch.randn(STARTS, b, generator=generator, dtype=gram.dtype).square()
    p = torch.cat([start, torch.linalg.eigh(some + torch.diag_embed(chance))[1][:, :, 0]])
    least = 1 / len(gram)
    for _ in range(DESCENTS):
        p = _unit(p)
        floor = (1.5 * _forms(p, evidence.noise[None])).clamp_min(least)
        p, least = _least(1 / (_forms(p, gram) + floor), gram), DECAY * least
    q = _unit(p @ evidence.scale.T)
    for _ in range(POLISH):
        q = _least(evidence.zero(q).sigmoid() + 1e-9, evidence.gram)
    score = evidence.zero(q).clamp_min(0).sum(1)
    order = score.argsort(descending=True)
    q = q[order[score[order] > 0]]
    p, kept = evidence.scaled(q), list[int]()
    for k in range(len(q)):
        if not kept or float((p[kept] @ p[k]).abs().max()) < TWINS:
            kept.append(k)
    return q[kept[: SPARES * b]]


def _independent(evidence: Evidence, pool: Tensor) -> Tensor:
    """Choose independent vectors greedily, and fill up with directions outside them; returns (b, b)."""
    b, chosen = evidence.batch, list[int]()
    basis = pool.new_zeros(b, 0)
    for k, p in enumerate(evidence.scaled(pool)):
        rest = p - basis @ (basis.T @ p)
        rest = rest - basis @ (basis.T @ rest)
        if len(chosen) < b and float(rest.norm()) > APART:
            chosen.append(k)
            basis = torch.cat([basis, (rest / rest.norm())[:, None]], dim=1)
    outside = (
        torch.linalg.svd(basis, full_matrices=True).U[:, len(chosen) :]
        if chosen
        else torch.eye(b, dtype=pool.dtype)
    )
    return torch.cat([pool[chosen], _unit((evidence.scale @ outside).T)])


def _places(evidence: Evidence, duals: Tensor, new: Tensor) -> list[int]:
    """Return the duals (b, b) that a vector holds most of."""
    held = (
        torch.linalg.solve_ex(evidence.scaled(duals).T, evidence.scaled(new[None]).T)
        .result[:, 0]
        .abs()
    )
    return [int(k) for k in held.argsort(descending=True)[:PLACES] if float(held[k]) > APART / 2]


def _fit(evidence: Evidence, duals: Tensor) -> Fit:
    """Turn duals (b, b) into coordinates and settle their patterns."""
    inverse, info = torch.linalg.inv_ex(duals.T)
    if int(info):
        return Fit(duals, torch.zeros(len(evidence.rows), len(duals), dtype=torch.bool), math.inf)
    return likelihood.fit(evidence.rows, inverse, (evidence.zero(duals) < 0).T)


def _forms(q: Tensor, forms: Tensor) -> Tensor:
    """Values q^T F q (N, G) of quadratic forms (G, b, b) at vectors (N, b)."""
    return torch.as_tensor((q[:, :, None] * q[:, None]).flatten(1) @ forms.flatten(1).T)


def _least(weight: Tensor, forms: Tensor) -> Tensor:
    """Unit vectors (N, b) where sums of forms (G, b, b), weighted by (N, G), are least."""
    together = (weight / weight.sum(1, keepdim=True)) @ forms.flatten(1)
    return torch.as_tensor(torch.linalg.eigh(together.reshape(-1, *forms.shape[1:]))[1][:, :, 0])


def _unit(x: Tensor) -> Tensor:
    length = x.norm(dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    unit: Tensor = x / length
    return unit
