"""The exact Gaussian-DP mu of a view, and how far it may be trusted (docs/relations.md, account).

Assume the worst case: the adversary knows all secrets but the targets. Let the relations be B e + S
s + G d = 0 beside what is known: noise e of unit variance, states s, and targets d. Eliminating the
states (N S = 0, A = N G, Bn = N B) leaves a Gaussian view whose mean moves by A d when the targets
move by d, and whose covariance is Bn Bn'. Two Gaussians of one covariance are exactly mu-GDP with
mu their Mahalanobis distance (Dong, Roth, Su 2022), so mu^2 = sup { sum_st M_st <d_s, d_t> : |d_t|
<= Delta_t } with the Fisher matrix M = A'(Bn Bn')^+ A. The coordinates of the model share M, and
the changes d_t are vectors (`semidefinite`). Equivalently d' M d is the least |e|^2 of a noise
shift e that hides d, B e + S s + G d = 0, and that is how M is computed, without N. If no shift
hides some d, that combination of targets is on the wire without noise, and mu is inf.

Adjacency: one node's targets are replaced by any other vectors, |change of target t| <= Delta_t,
all at once; everything else, such as start values that are no targets, stays and is public. The
order of a protocol is public too: sampling never amplifies.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leakaudit.errors import LeakauditError
from leakaudit.relations.certificate import Past, certificates
from leakaudit.relations.determine import determined
from leakaudit.relations.expression import Expression
from leakaudit.relations.kkt import Array, solve, spanning, system
from leakaudit.relations.knowledge import Knowledge
from leakaudit.relations.modular import PRIMES, Staircase, echelon, eliminate, residue
from leakaudit.relations.semidefinite import supremum

SECRET = {"secret", "gradient"}
DEFINED = {"state", "message"}
AT_ONCE = 128  # right sides that are solved for together; fewer stay in faster memory. A choice


@dataclass(frozen=True)
class Bound:
    """What theory allows a view to tell about some vectors of one node.

    Attributes:
        mu: Certified upper value; inf if a combination is on the wire without noise.
        attained: Reached by some change of the targets.
        targets: In the order of `fisher`.
        leaking: Combinations of targets that are on the wire without noise.
        certificate: For every gradient, 2: the point where it was taken is a function of the view
            before it, so sensitivities at record level hold. 1: it is a function of the view and of
            the node's own past gradients; record level needs a drift bound (`drift`), and mu is of
            gradients that differ by at most the sensitivity wherever they are taken. 0: hidden
            noise steers it, or steers another gradient that reacts to it; mu is of gradients that
            do not depend on the model (`record` has stronger adversaries). Targets that are not
            gradients have 2, or 0 if another gradient reacts.
        fisher: (T, T) M; None if mu is inf.
    """

    mu: float
    attained: float
    targets: tuple[Expression, ...]
    leaking: tuple[Expression, ...]
    certificate: tuple[int, ...]
    fisher: Array | None


def account(
    knowledge: Knowledge,
    targets: Sequence[Expression],
    sensitivity: float | Sequence[float],
    *,
    certify: bool = True,
) -> Bound:
    """Return the exact mu of a view for one node's targets.

    Errors of channels (`std` of a message) count as no protection.

    Args:
        knowledge: Of the whole network: a part of the relations would not bound anything.
        targets: Secrets or gradients of one node, each once.
        sensitivity: How far each target changes at most, in Euclidean norm; one for all, or (T,).
        certify: Whether to compute the certificate; it is empty otherwise.

    Raises:
        LeakauditError: The view cannot be accounted for: targets of several nodes, targets that are
            known, priors on them, noise on them that is not Gaussian, or nonlinear steps whose
            inputs the view does not determine.
    """
    limits = sensitivities(targets, sensitivity)
    worst, view = worst_case(knowledge, targets)
    wanted = [t.vector for t in targets]
    certificate: tuple[int, ...] = ()
    if certify:
        others = knowledge.declared.points.keys() & view.used - set(wanted)
        certificate = certificates(worst, targets, others)
    # Targets that do not reach the view, or do not move, have a row of zeros in M.
    at = [j for j, k in enumerate(wanted) if k in view.used and limits[j] > 0]
    moving = [targets[j] for j in at]
    view = replace(view, known=view.known | (set(wanted) - {t.vector for t in moving}))
    leaking = determined(view, moving)
    if leaking:
        return Bound(math.inf, math.inf, tuple(targets), tuple(leaking), certificate, None)
    gaussian(view, moving)
    m = np.zeros((len(targets), len(targets)))
    if moving:
        m[np.ix_(at, at)] = fisher(view, moving)
    attained, upper = supremum(m, limits)
    return Bound(upper, attained, tuple(targets), (), certificate, m)


def fisher(knowledge: Knowledge, targets: Sequence[Expression]) -> Array:
    """Return M (T, T) = A'(Bn Bn')^+ A.

    Args:
        knowledge: Every flat unknown besides the targets must be a state.
        targets: None of their combinations may leak without noise.
    """
    s = system(knowledge, 0.0)
    own = [s.columns[t.vector] for t in targets]
    states = np.setdiff1d(np.arange(s.flat.shape[1]), own)
    scale = float(np.abs(s.noise.data).max(initial=0)) or 1.0
    flat = s.flat[:, states]
    noise = s.noise[:, : len(knowledge.noise)] / scale
    # For each target d alone, the least e with B e + S s = -G d; then M = e'e, since B was scaled
    # to 1.
    e = np.empty((noise.shape[1], len(own)))
    for at in range(0, len(own), AT_ONCE):
        hidden = -s.flat[:, own[at : at + AT_ONCE]].toarray()
        nothing = np.zeros((len(states), hidden.shape[1]))
        e[:, at : at + AT_ONCE], _ = solve(
            noise,
            flat,
            nothing,
            hidden,
            lambda: spanning(knowledge, [knowledge.flat[j] for j in states]),
        )
    return np.asarray(e.T @ e / scale**2)


def sensitivities(targets: Sequence[Expression], sensitivity: float | Sequence[float]) -> Array:
    """Return a sensitivity (T,) for each target.

    Args:
        targets: T vectors.
        sensitivity: One for all, or (T,).

    Raises:
        LeakauditError: One is not finite or negative, or their number is wrong.
    """
    if isinstance(sensitivity, int | float):
        limits = np.full(len(targets), sensitivity, float)
    else:
        limits = np.array(sensitivity, float)
    if len(limits) != len(targets) or not (np.isfinite(limits) & (limits >= 0)).all():
        raise LeakauditError(
            f"expected one finite sensitivity >= 0 for each of {len(targets)} targets, got "
            f"{sensitivity}"
        )
    return limits


def worst_case(knowledge: Knowledge, targets: Sequence[Expression]) -> tuple[Knowledge, Knowledge]:
    """Return the knowledge of an adversary with all secrets but the targets.

    Outputs of nonlinear steps that this view determines are post-processing, and so known.

    Args:
        knowledge: Of the whole network.
        targets: Secrets or gradients of one node, each once.

    Returns:
        The knowledge over all relations, and over those that reach the view.

    Raises:
        LeakauditError: As for `account`.
    """
    vectors = knowledge.declared.vectors
    wanted = {t.vector for t in targets}
    owners = {vectors[k].owner for k in wanted}
    kinds = {vectors[k].kind for k in wanted}
    if len(owners) != 1 or len(wanted) < len(targets) or not kinds <= SECRET:
        raise LeakauditError("account: expected secrets or gradients of one node, each once")
    known = sorted(wanted & knowledge.known)
    if known:
        raise LeakauditError(
            f"account: this adversary knows {vectors[known[0]].label}; there is nothing to bound"
        )
    _no_prior(knowledge, wanted)
    others = {k for k, v in enumerate(vectors) if v.kind in SECRET} - wanted
    worst = replace(knowledge, known=knowledge.known | others)
    outs = knowledge.declared.opaques.keys()
    view = _reaching(worst)
    _post_processing(worst, view.used & outs)
    return replace(worst, known=worst.known | outs), replace(view, known=worst.known | outs)


def _reaching(worst: Knowledge) -> Knowledge:
    """Drop relations that only define a state or an unheard message that no other relation holds.

    Such a relation says nothing of the rest, since the defined vector can take any value. Dropping
    it may leave the vectors in it with one relation only, so the search goes on from those.
    """
    vectors = worst.declared.vectors
    places = defaultdict[int, set[int]](set)
    fixed = worst.known | worst.declared.opaques.keys()
    for r in worst.rows:
        for k in worst.declared.relations[r].terms:
            if k not in fixed and vectors[k].kind in DEFINED:
                places[k].add(r)
    rows = set(worst.rows)
    todo = [k for k, at in places.items() if len(at) == 1]
    while todo:
        for r in list(places[todo.pop()]):
            rows.discard(r)
            for k in worst.declared.relations[r].terms:
                if r in places[k]:
                    places[k].discard(r)
                    if len(places[k]) == 1:
                        todo.append(k)
    return replace(worst, rows=tuple(sorted(rows)))


def _post_processing(worst: Knowledge, outs: Collection[int]) -> None:
    """Raise LeakauditError if a nonlinear step reaches the view but its inputs do not.

    They must be determined, so that its output is post-processing.
    """
    if not outs:
        return
    past = Past(worst, worst.known)
    for r in worst.relations:
        past.add(Expression(worst.declared.vectors, r.terms))
    for out in sorted(outs):
        for part in worst.declared.opaques[out]:
            if not past.holds(part):
                label = worst.declared.vectors[out].label
                raise LeakauditError(
                    f"account: {label} is a nonlinear function of {part}, which this view does not "
                    "determine"
                )


def _no_prior(knowledge: Knowledge, wanted: Collection[int]) -> None:
    """Raise LeakauditError if relations tie targets to each other or to noise, without messages."""
    vectors = knowledge.declared.vectors
    prime = PRIMES[0]
    rows = Staircase(prime)
    # States and messages are numbered last, so that they are the pivots of their definitions, and
    # rows whose pivot is not one of them are what remains when all are eliminated.
    late = [len(vectors) * (v.kind in DEFINED) for v in vectors]
    for r in knowledge.relations:
        rows.add({k + late[k]: residue(v, prime) for k, v in r.terms.items()})
    for column, row in rows.pivots.items():
        if column >= len(vectors):
            continue
        if any(k in wanted for k in row) and not any(vectors[k].kind == "public" for k in row):
            names = ", ".join(vectors[k].label for k in sorted(row))
            raise LeakauditError(
                f"account: a relation between {names} alone is a prior, which a worst case does "
                "not have; leave it out"
            )


def gaussian(worst: Knowledge, moving: Sequence[Expression]) -> None:
    """Raise LeakauditError if noise of another law is seen together with the targets.

    The decision is exact. The reduced echelon form of what is seen splits into components that
    share no column. They are independent, and one without targets tells nothing about them.

    Args:
        worst: What is known to one who knows all secrets but the targets.
        moving: Targets that change.
    """
    vectors = worst.declared.vectors
    prime = PRIMES[0]
    if all(vectors[k].law == "gaussian" for k in worst.noise):
        return
    rows = (
        {k: residue(v, prime) for k, v in r.terms.items() if k not in worst.known}
        for r in worst.relations
    )
    targets = [t.vector for t in moving]
    left = eliminate(rows, (k for k in worst.flat if k not in targets), prime)
    rows_left = echelon(left, [*worst.noise, *targets], prime)
    seen = set(targets)
    while True:
        touched = [r for r in rows_left if not seen.isdisjoint(r)]
        if not touched:
            break
        rows_left = [r for r in rows_left if seen.isdisjoint(r)]
        seen.update(*touched)
    other = [vectors[k] for k in sorted(seen) if vectors[k].law != "gaussian"]
    if other:
        raise LeakauditError(
            f"account: {other[0].label} is {other[0].law} noise, and a mu is of Gaussian noise "
            "alone; "
            "declare it known (knowledge.also) for an upper value without its protection, or "
            "compose its releases one by one"
        )
