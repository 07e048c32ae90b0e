"""The exact Gaussian-DP mu of a view, and how far it may be trusted (docs/relations.md, account).

With all other secrets known and the states S eliminated (N S = 0, A = N G, Bn = N B) the view is a Gaussian whose mean moves by
A d when the targets move by d. mu^2 = sup { sum_st M_st <d_s, d_t> : |d_t| <= Delta_t }, M = A'(Bn Bn')^+ A. Equivalently d' M d
is the least |e|^2 of a noise shift e that hides d: B e + S s + G d = 0, and that is how M is computed.
Adjacency: one node's targets are replaced by any other vectors, |change of target t| <= Delta_t, all at once; everything else, such as
start values that are no targets, stays and is public. The order of a protocol is public too: sampling never amplifies.
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

SECRET, DEFINED = {"secret", "gradient"}, {"state", "message"}
AT_ONCE = 128


@dataclass(frozen=True)
class Bound:
    """What theory allows a view to tell about some vectors of one node.

    mu: certified upper value, inf where a combination is on the wire without noise; attained: reached by some change of the targets.
    leaking: those combinations. targets: in the order of `fisher` (T, T), None where mu is inf.
    certificate: for every gradient, 2: the point where it was taken is a function of the view before it, so sensitivities at record
    level hold; 1: a function of the view and of the node's own past gradients, record level needs a drift bound (`drift`), and mu
    is of gradients that differ by the sensitivity at most wherever they are taken; 0: hidden noise steers it, or steers another
    gradient that reacts to it: mu is of gradients that do not depend on the model (`record` has stronger listeners).
    Targets that are no gradients have 2, or 0 where another gradient reacts.
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
    """Return the exact mu of a view for one node's targets, each of which changes by at most its sensitivity in Euclidean norm.

    Give the knowledge of the whole network: a part of the relations would not bound anything. certify=False leaves the
    certificate empty. Errors of channels (`std` of a message) count as no protection. Refuses, with LeakauditError, what it
    cannot account for: targets of several nodes, targets that are known, priors on them, noise on them that is not Gaussian, and
    nonlinear steps whose inputs the view does not determine.
    """
    limits = sensitivities(targets, sensitivity)
    worst, view = worst_case(knowledge, targets)
    wanted = [t.vector for t in targets]
    others = knowledge.declared.points.keys() & view.used - set(wanted)
    certificate = certificates(worst, targets, others) if certify else ()
    at = [j for j, k in enumerate(wanted) if k in view.used and limits[j] > 0]
    moving = [targets[j] for j in at]
    view = replace(view, known=view.known | (set(wanted) - {t.vector for t in moving}))
    if leaking := determined(view, moving):
        return Bound(math.inf, math.inf, tuple(targets), tuple(leaking), certificate, None)
    gaussian(view, moving)
    m = np.zeros((len(targets), len(targets)))
    if moving:
        m[np.ix_(at, at)] = fisher(view, moving)
    attained, upper = supremum(m, limits)
    return Bound(upper, attained, tuple(targets), (), certificate, m)


def fisher(knowledge: Knowledge, targets: Sequence[Expression]) -> Array:
    """Return M (T, T) = A'(Bn Bn')^+ A; every other flat unknown must be a state, and no combination may leak without noise."""
    s = system(knowledge, 0.0)
    own = [s.columns[t.vector] for t in targets]
    states = np.setdiff1d(np.arange(s.flat.shape[1]), own)
    scale = float(np.abs(s.noise.data).max(initial=0)) or 1.0
    flat, noise = s.flat[:, states], s.noise[:, : len(knowledge.noise)] / scale
    e = np.empty((noise.shape[1], len(own)))
    for at in range(0, len(own), AT_ONCE):  # fewer right sides at once stay in faster memory
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
    """Return one sensitivity a target (T,). Raises LeakauditError where they are not finite, negative, or of another number."""
    limits = (
        np.full(len(targets), sensitivity, float)
        if isinstance(sensitivity, int | float)
        else np.array(sensitivity, float)
    )
    if len(limits) != len(targets) or not (np.isfinite(limits) & (limits >= 0)).all():
        raise LeakauditError(
            f"expected one finite sensitivity >= 0 for each of {len(targets)} targets, got {sensitivity}"
        )
    return limits


def worst_case(knowledge: Knowledge, targets: Sequence[Expression]) -> tuple[Knowledge, Knowledge]:
    """Return what is known to one who knows all secrets but the targets: over all relations, and over those that reach the view.

    Outputs of nonlinear steps that this view determines are post-processing: known. Raises LeakauditError for what `account` refuses.
    """
    vectors, wanted = knowledge.declared.vectors, {t.vector for t in targets}
    if (
        len({vectors[k].owner for k in wanted}) != 1
        or len(wanted) < len(targets)
        or not {vectors[k].kind for k in wanted} <= SECRET
    ):
        raise LeakauditError("account: expected secrets or gradients of one node, each once")
    if known := sorted(wanted & knowledge.known):
        raise LeakauditError(
            f"account: this adversary knows {vectors[known[0]].label}; there is nothing to bound"
        )
    _no_prior(knowledge, wanted)
    others = {k for k, v in enumerate(vectors) if v.kind in SECRET} - wanted
    worst, outs = (
        replace(knowledge, known=knowledge.known | others),
        knowledge.declared.opaques.keys(),
    )
    view = _reaching(worst)
    _post_processing(worst, view.used & outs)
    return replace(worst, known=worst.known | outs), replace(view, known=worst.known | outs)


def _reaching(worst: Knowledge) -> Knowledge:
    """Drop relations that only define a state or an unheard message that nothing else holds, one after the other."""
    vectors, places = worst.declared.vectors, defaultdict[int, set[int]](set)
    fixed = worst.known | worst.declared.opaques.keys()
    for r in worst.rows:
        for k in worst.declared.relations[r].terms:
            if k not in fixed and vectors[k].kind in DEFINED:
                places[k].add(r)
    rows, todo = set(worst.rows), [k for k, at in places.items() if len(at) == 1]
    while todo:
        for r in list(places[todo.pop()]):
            rows.discard(r)
            for k in worst.declared.relations[r].terms:
                if r in places[k]:
                    places[k].discard(r)
                    todo += [k] if len(places[k]) == 1 else []
    return replace(worst, rows=tuple(sorted(rows)))


def _post_processing(worst: Knowledge, outs: Collection[int]) -> None:
    """Raise LeakauditError where the output of a nonlinear step reaches the view and its inputs are not determined."""
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
                    f"account: {label} is a nonlinear function of {part}, which this view does not determine"
                )


def _no_prior(knowledge: Knowledge, wanted: Collection[int]) -> None:
    """Raise LeakauditError where relations tie targets to each other or to noise without any message."""
    vectors, prime, rows = knowledge.declared.vectors, PRIMES[0], Staircase(PRIMES[0])
    first = [
        v.kind in DEFINED for v in vectors
    ]  # states and messages last, so that definitions cost nothing
    for r in knowledge.relations:
        rows.add({k + len(vectors) * first[k]: residue(v, prime) for k, v in r.terms.items()})
    for row in (row for column, row in rows.pivots.items() if column < len(vectors)):
        if any(k in wanted for k in row) and not any(vectors[k].kind == "public" for k in row):
            names = ", ".join(vectors[k].label for k in sorted(row))
            raise LeakauditError(
                f"account: a relation between {names} alone is a prior, which a worst case does not have; leave it out"
            )


def gaussian(worst: Knowledge, moving: Sequence[Expression]) -> None:
    """Raise LeakauditError where noise of another law shares a component of what is seen with the targets, in exact arithmetic.

    Components that share no column of the reduced echelon form are independent, and one without targets tells nothing about them.
    """
    vectors, prime = worst.declared.vectors, PRIMES[0]
    if all(vectors[k].law == "gaussian" for k in worst.noise):
        return
    rows = (
        {k: residue(v, prime) for k, v in r.terms.items() if k not in worst.known}
        for r in worst.relations
    )
    targets = [t.vector for t in moving]
    left = eliminate(rows, (k for k in worst.flat if k not in targets), prime)
    seen, rows_left = set(targets), echelon(left, [*worst.noise, *targets], prime)
    while touched := [r for r in rows_left if not seen.isdisjoint(r)]:
        rows_left = [r for r in rows_left if seen.isdisjoint(r)]
        seen.update(*touched)
    if other := [vectors[k] for k in sorted(seen) if vectors[k].law != "gaussian"]:
        raise LeakauditError(
            f"account: {other[0].label} is {other[0].law} noise, and a mu is of Gaussian noise alone; "
            "declare it known (knowledge.also) for an upper value without its protection, or compose its releases one by one"
        )
