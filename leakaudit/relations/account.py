"""The exact Gaussian-DP mu of a view, and how far it may be trusted (docs/relations.md, account).

With all other secrets known and the states S eliminated (N S = 0, A = N G, Bn = N B) the view is a Gaussian whose mean moves by
A d when the gradients move by d. mu^2 = sup { sum_st M_st <d_s, d_t> : |d_t| <= Delta_t }, M = A'(Bn Bn')^+ A. Equivalently d' M d
is the least |e|^2 of a noise shift e that hides d: B e + S s + G d = 0, and that is how M is computed.
Adjacency: one node's targets are replaced by any other vectors, |change of target t| <= Delta_t; start values are public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from leakaudit.errors import LeakauditError
from leakaudit.relations.determine import determined, is_determined
from leakaudit.relations.expression import Expression
from leakaudit.relations.kkt import Array, solve, spanning, system
from leakaudit.relations.knowledge import Knowledge
from leakaudit.relations.modular import PRIMES, eliminate, residue

SWEEPS = 300


@dataclass(frozen=True)
class Bound:
    """What theory allows a view to tell about some vectors of one node.

    mu: certified upper value, inf where a combination is on the wire without noise; attained: reached by some change of the targets.
    leaking: those combinations. targets: in the order of `fisher` (T, T), None where mu is inf.
    certificate: for every gradient, 2: the point where it was taken is a function of the view before it, so sensitivities at record
    level hold; 1: a function of the view and of the node's own past gradients, record level needs a drift bound; 0: hidden noise
    steers it, the bound holds for changes that are fixed beforehand alone. Targets that are no gradients have 2.
    """

    mu: float
    attained: float
    targets: tuple[Expression, ...]
    leaking: tuple[Expression, ...]
    certificate: tuple[int, ...]
    fisher: Array | None


def account(knowledge: Knowledge, targets: Sequence[Expression], sensitivity: float | Sequence[float], *, certify: bool = True) -> Bound:
    """Return the exact mu of a view for one node's targets, each of which changes by at most its sensitivity in Euclidean norm.

    Give the knowledge of the whole network: a part of the relations would not bound anything. certify=False leaves the
    certificate empty. Errors of channels (`std` of a message) count as no protection. Refuses, with LeakauditError, what it
    cannot account for: targets of several nodes, targets that are known, priors on them, and nonlinear steps whose inputs the
    view does not determine.
    """
    wanted = [t.vector for t in targets]
    limits = np.full(len(targets), sensitivity, float) if isinstance(sensitivity, int | float) else np.array(sensitivity, float)
    if len(limits) != len(targets) or not (np.isfinite(limits) & (limits >= 0)).all():
        raise LeakauditError(f"expected one finite sensitivity >= 0 for each of {len(targets)} targets, got {sensitivity}")
    _refuse(knowledge, targets)
    vectors = knowledge.declared.vectors
    others = {k for k, v in enumerate(vectors) if v.kind in ("secret", "gradient") and k not in set(wanted)}
    worst = replace(knowledge, known=knowledge.known | others)
    certificate = tuple(_level(worst, t, targets) for t in targets) if certify else ()
    seen = [t for t, k in zip(targets, wanted, strict=True) if k in worst.used]
    moving = [t for t, limit in zip(targets, limits, strict=True) if limit > 0 and t in seen]
    if leaking := determined(replace(worst, known=worst.known | ({t.vector for t in seen} - {t.vector for t in moving})), moving):
        return Bound(math.inf, math.inf, tuple(targets), tuple(leaking), certificate, None)
    m = np.zeros((len(targets), len(targets)))
    at = [j for j, k in enumerate(wanted) if k in worst.used and limits[j] > 0]
    if moving:
        m[np.ix_(at, at)] = fisher(worst, moving)
    attained, upper = supremum(m, limits)
    return Bound(upper, attained, tuple(targets), (), certificate, m)


def fisher(knowledge: Knowledge, targets: Sequence[Expression]) -> Array:
    """Return M (T, T) = A'(Bn Bn')^+ A; every other flat unknown must be a state, and no combination may leak without noise."""
    s = system(knowledge, 0.0)
    own = [s.columns[t.vector] for t in targets]
    states = np.setdiff1d(np.arange(s.flat.shape[1]), own)
    scale = float(np.abs(s.noise.data).max(initial=0)) or 1.0
    hidden, nothing = -s.flat[:, own].toarray(), np.zeros((len(states), len(own)))
    noise = s.noise[:, : len(knowledge.noise)] / scale
    e, _ = solve(noise, s.flat[:, states], nothing, hidden, lambda: spanning(knowledge, [knowledge.flat[j] for j in states]))
    return np.asarray(e.T @ e / scale**2)


def supremum(m: Array, limits: Array) -> tuple[float, float]:
    """Return sqrt of sup { sum_st M_st <d_s, d_t> : |d_t| <= limits_t }: a value attained, and a certified upper value.

    The d_t are vectors, so this is max <X, C> over correlation matrices C: all aligned where X >= 0, else by the mixing method
    (Wang, Chang, Kolter 2017), certified by the dual sum(y) + n max(0, lambda_max(X - diag y)).
    """
    x = (m + m.T) / 2 * np.outer(limits, limits)
    n = len(x)
    if n == 0 or (x > -1e-12 * np.abs(x).max()).all():
        aligned = math.sqrt(max(float(x.sum()), 0.0))
        return aligned, aligned
    if (largest := float(x.diagonal().max())) <= 0:  # nothing but rounding: a matrix without a diagonal has no positive part
        return 0.0, math.sqrt(float(np.abs(x).sum()))
    values, q = np.linalg.eigh(x)
    v = q * np.sqrt(np.maximum(values, 0)) + 1e-3 * math.sqrt(largest) * np.eye(n)
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    for _ in range(SWEEPS):
        for i in range(n):
            pull = x[i] @ v - x[i, i] * v[i]
            if (length := np.linalg.norm(pull)) > 0:
                v[i] = pull / length
    y = np.linalg.norm(x @ v, axis=1)
    excess = max(0.0, float(np.linalg.eigvalsh(x - np.diag(y))[-1]))
    attained = max(float(np.trace(v.T @ x @ v)), 0.0)
    return math.sqrt(attained), math.sqrt(max(attained, float(y.sum()) + n * excess))


def _level(worst: Knowledge, target: Expression, targets: Sequence[Expression]) -> int:
    """Return the certificate of one gradient from the relations declared before it."""
    if target.vector not in worst.declared.points:
        return 2
    at, past = worst.declared.points[target.vector].at, worst.before(target)
    if is_determined(past, at):
        return 2
    return int(is_determined(past.also(t for t in targets if t.vector < target.vector), at))


def _refuse(knowledge: Knowledge, targets: Sequence[Expression]) -> None:
    vectors, wanted = knowledge.declared.vectors, {t.vector for t in targets}
    owners = {vectors[k].owner for k in wanted}
    if len(owners) != 1 or len(wanted) < len(targets) or not all(vectors[k].kind in ("secret", "gradient") for k in wanted):
        raise LeakauditError("account: expected secrets or gradients of one node, each once")
    if known := sorted(wanted & knowledge.known):
        raise LeakauditError(f"account: this adversary knows {vectors[known[0]].label}; there is nothing to bound")
    for out, parts in knowledge.declared.opaques.items():
        for part in parts:
            if not is_determined(knowledge, part):
                raise LeakauditError(f"account: {vectors[out].label} is a nonlinear function of {part}, which this view does not determine")
    prime = PRIMES[0]
    rows = ({k: residue(v, prime) for k, v in r.terms.items()} for r in knowledge.relations)
    left = eliminate(rows, (k for k in knowledge.used if vectors[k].kind in ("state", "message")), prime)
    for row in left:
        if not wanted.isdisjoint(row) and not any(vectors[k].kind == "public" for k in row):
            names = ", ".join(vectors[k].label for k in sorted(row))
            raise LeakauditError(f"account: a relation between {names} alone is a prior, which a worst case does not have; leave it out")
