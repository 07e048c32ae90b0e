"""The exact Gaussian-DP mu of a view, and how far it can be trusted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakaudit.core.errors import LeakauditError, Unexplained
from leakaudit.theory.relations.determine import determined
from leakaudit.theory.relations.expression import DEFINED, SECRET, Expression, labels, places
from leakaudit.theory.relations.kkt import Array, solve, spanning, system
from leakaudit.theory.relations.knowledge import Knowledge
from leakaudit.theory.relations.modular import (
    PRIMES,
    Row,
    Staircase,
    echelon,
    eliminate,
    modular,
)
from leakaudit.theory.relations.semidefinite import supremum

# See docs/relations.md, account.
#
# In the worst case, the adversary knows all secrets except the targets. Let the relations be B e +
# S s + G d = 0 plus known terms, with noise e of unit variance, states s, and targets d. Without
# the states (N S = 0, A = N G, Bn = N B), the view is Gaussian: its mean moves by A d if the
# targets move by d, and its covariance is Bn Bn'. Two Gaussians of equal covariance are exactly
# mu-GDP with mu their Mahalanobis distance (Dong, Roth, Su 2022), so mu^2 = sup { sum_st M_st <d_s,
# d_t> : |d_t| <= Delta_t } with the Fisher matrix M = A'(Bn Bn')^+ A. All coordinates of the model
# share M, and the changes d_t are vectors (`semidefinite`). Equivalently, d' M d is the least |e|^2
# of a noise shift e that hides d, B e + S s + G d = 0; M is computed in this way, without N. If no
# shift hides some d, messages reveal that combination without noise, and mu is inf.
#
# Adjacency: all targets of one node are replaced by arbitrary vectors, |change of target t| <=
# Delta_t; everything else, such as start values and the order of records, remains unchanged and is
# public: sampling never amplifies privacy.
#
# A mu bounds the effect of gradients that change by a sensitivity. This is the change of one record
# only if the gradients are evaluated at the same models with and without it, that is, if each point
# is a function of what was observed before (`certificates`).

# Number of right-hand sides that are solved together. Affects only speed: a block of 128 columns of
# a few thousand rows stays in the processor's cache, while thousands at once would not. A choice.
AT_ONCE = 128
# Number of targets up to which M is a dense matrix, of 2 MB; a choice.
DENSE = 512
# Largest number of floats of shifts and of M, 4 GB; a choice.
LARGEST = 500_000_000


@dataclass(frozen=True)
class Bound:
    """What theory allows a view to reveal about some vectors of one node."""

    mu: float  # certified upper value; inf if messages reveal a combination without noise
    attained: float  # value attained by some change of the targets
    targets: tuple[Expression, ...]  # the targets, in the order of `fisher`
    leaking: tuple[Expression, ...]  # combinations of targets that messages reveal without noise
    # for every gradient, 2: the point at which it was evaluated is a function of the view before
    # it, so sensitivities at record level hold. 1: the point is a function of the view and of the
    # node's own past gradients; record level requires a drift bound (`drift`), and mu refers to
    # gradients that differ by at most the sensitivity wherever they are evaluated. 0: hidden noise
    # influences the point, or that of a gradient of another node; mu refers to gradients that do
    # not depend on the model (`record` has stronger adversaries). Targets that are not gradients
    # have 2, or 0 if another gradient reacts.
    certificate: tuple[int, ...]
    fisher: Any  # (T, T) M, sparse beyond `DENSE` targets; None if mu is inf


def lowest_level(certificate: Sequence[int], m: Any) -> int:
    """Return the lowest certificate, given M or None if mu is inf.

    A gradient that no message reveals does not affect the view, wherever it was evaluated, so its
    certificate 1 is ignored. Its certificate 0 counts: a revealed gradient of another node may
    react to it.
    """
    shown = None if m is None else m.diagonal()
    lowest = 2
    for k, level in enumerate(certificate):
        is_shown = shown is None or shown[k] != 0
        if is_shown or level == 0:
            lowest = min(lowest, level)
    return lowest


def account(
    knowledge: Knowledge,
    targets: Sequence[Expression],
    sensitivity: float | Sequence[float],
    *,
    certify: bool = True,
    least: bool = False,
) -> Bound:
    """Return the exact mu of a view for one node's targets.

    Errors of channels (`std` of a message) do not count as protection; if one that is not observed
    reaches the view, there is no value, because it is a function of private data. If vectors that
    the declaration does not explain reach the view, there is no upper value: they may contain
    anything that their owner knows.

    Args:
        knowledge: Of the whole network: a part of the relations would not give a bound.
        targets: Secrets or gradients of one node, each once.
        sensitivity: Maximum change of each target, in Euclidean norm; one for all, or (T,).
        certify: Whether to compute the certificate; it is empty otherwise.
        least: Whether to return instead a lower value, which holds whatever unexplained vectors
            contain and is attained by gradients that do not depend on the model.

    Raises:
        Unexplained: Such vectors reach the view, and no lower value is requested.
        LeakauditError: The targets belong to several nodes, are known, or have priors or noise that
            is not Gaussian; or the view does not determine the inputs of a nonlinear step.
    """
    limits = sensitivities(targets, sensitivity)
    worst, view = worst_case(knowledge, targets, least=least)
    wanted = set(places(targets))
    certificate: tuple[int, ...] = ()
    if certify:
        others = knowledge.declared.points.keys() & view.used - wanted
        certificate = certificates(worst, targets, others)
    # Targets that do not reach the view, or do not move, have a row of zeros in M.
    at: list[int] = []
    moving: list[Expression] = []
    for j, target in enumerate(targets):
        if target.vector in view.used and limits[j] > 0:
            at.append(j)
            moving.append(target)
    view = replace(view, known=view.known | (wanted - set(places(moving))))
    leaking = determined(view, moving)
    if leaking:
        return Bound(math.inf, math.inf, tuple(targets), tuple(leaking), certificate, None)
    only_noise(view, moving)
    m: Any = np.zeros((0, 0))
    if moving:
        m = fisher(view, moving)
    m = _among(m, at, len(targets))
    attained, upper = supremum(m, limits)
    return Bound(upper, attained, tuple(targets), (), certificate, m)


def fisher(knowledge: Knowledge, targets: Sequence[Expression]) -> Any:
    """Return M (T, T) = A'(Bn Bn')^+ A; sparse if there are more than `DENSE` targets.

    Neither N nor a pseudo-inverse is needed. Let e_t be the least noise shift that hides a unit
    change of target t, B e_t + S s + G_t = 0 for some s. The least shift that hides d is sum_t d_t
    e_t, so M_st is the inner product of e_s and e_t. Relations fall into components that share no
    unknown: shifts of different ones are orthogonal, and one right-hand side serves one target of
    every component.

    Args:
        knowledge: Every flat unknown except the targets must be a state.
        targets: None of their combinations may leak without noise.
    """
    import scipy.sparse as sp

    s = system(knowledge, 0.0)
    own = np.array([s.columns[k] for k in places(targets)], np.int64)
    states = np.setdiff1d(np.arange(s.flat.shape[1]), own)
    scale = float(np.abs(s.noise.data).max(initial=0)) or 1.0
    flat = s.flat[:, states]
    noise = s.noise[:, : len(knowledge.noise)] / scale
    of_flat, of_noise = _components(s.flat, noise)
    nth = _nth(of_flat[own])
    width = int(nth.max(initial=-1)) + 1
    _fits(noise.shape[1] * width, width, len(own))
    sides = sp.csr_array((np.ones(len(own)), (np.arange(len(own)), nth)), (len(own), width))
    right = -(s.flat[:, own] @ sides).tocsc()  # B e + S s = -G
    e = np.empty((noise.shape[1], width))

    def independent_states() -> NDArray[np.int64]:
        return spanning(knowledge, [knowledge.flat[j] for j in states])

    for at in range(0, width, AT_ONCE):
        hidden = right[:, at : at + AT_ONCE].toarray()
        nothing = np.zeros((len(states), hidden.shape[1]))
        e[:, at : at + AT_ONCE], _ = solve(noise, flat, nothing, hidden, independent_states)
    e /= scale  # B was divided by the scale, so e was multiplied by it
    if width == len(own) and len(own) <= DENSE:
        m = e.T @ e
    else:
        apart = _apart(e, of_noise, of_flat[own], nth)
        m = apart.T @ apart
        if len(own) <= DENSE:
            m = m.toarray()
    return m


def _among(m: Any, at: Sequence[int], count: int) -> Any:
    """Insert rows and columns of zeros for targets that do not move."""
    if len(at) == count:
        return m
    if count <= DENSE:
        every = np.zeros((count, count))
        every[np.ix_(at, at)] = m
        return every
    import scipy.sparse as sp

    place = sp.csr_array((np.ones(len(at)), (at, range(len(at)))), (count, len(at)))
    return place @ m @ place.T


def _components(flat: Any, noise: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the component of each column of F and of B; columns of one relation share one."""
    import scipy.sparse as sp
    from scipy.sparse.csgraph import connected_components

    occurs = sp.hstack([flat, noise], format="csr")
    rows, columns = occurs.shape
    ties = sp.block_array(
        [[sp.csr_array((rows, rows)), occurs], [None, sp.csr_array((columns,) * 2)]]
    )
    of = connected_components(ties, directed=False)[1][rows:].astype(np.int64)
    return of[: flat.shape[1]], of[flat.shape[1] :]


def _nth(of: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many earlier elements are in the same component, for each element."""
    order = np.argsort(of, kind="stable")
    start = np.r_[0, np.flatnonzero(np.diff(of[order])) + 1]
    counts = np.diff(np.r_[start, len(of)])
    nth = np.empty(len(of), np.int64)
    nth[order] = np.arange(len(of)) - np.repeat(start, counts)
    return nth


def _fits(shifts: int, width: int, count: int) -> None:
    needed = shifts + width * min(count, 2 * width)
    if needed > LARGEST:
        raise LeakauditError(
            f"the noise of the rounds is connected, so {width} gradients require "
            f"{needed * 8 / 1e9:.0f} GB of memory; use fewer rounds"
        )


def _apart(
    e: Array, of_noise: NDArray[np.int64], of_target: NDArray[np.int64], nth: NDArray[np.int64]
) -> Any:
    """Return the shift of each target, as sparse columns, from the sums over components."""
    import scipy.sparse as sp

    by_noise = np.argsort(of_noise, kind="stable")
    known = of_noise[by_noise]
    start = np.searchsorted(known, of_target)
    counts = np.searchsorted(known, of_target, side="right") - start
    target = np.repeat(np.arange(len(of_target)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    row = by_noise[np.repeat(start, counts) + within]
    return sp.csc_array((e[row, nth[target]], (row, target)), (len(e), len(of_target)))


def sensitivities(targets: Sequence[Expression], sensitivity: float | Sequence[float]) -> Array:
    """Return a sensitivity (T,) for each target, from one for all or (T,)."""
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


def worst_case(
    knowledge: Knowledge, targets: Sequence[Expression], *, least: bool = False
) -> tuple[Knowledge, Knowledge]:
    """Return the knowledge of an adversary who knows all secrets except the targets.

    Outputs of nonlinear steps that this view determines are post-processing, and therefore known.
    """
    vectors = knowledge.declared.vectors
    wanted = set(places(targets))
    owners = {vectors[k].owner for k in wanted}
    kinds = {vectors[k].kind for k in wanted}
    if len(owners) != 1 or len(wanted) < len(targets) or not SECRET.issuperset(kinds):
        raise LeakauditError("account: expected secrets or gradients of one node, each once")
    known = sorted(wanted & knowledge.known)
    if known:
        raise LeakauditError(
            f"account: this adversary knows {vectors[known[0]].label}; there is nothing to bound"
        )
    _no_prior(knowledge, wanted)
    secrets = {k for k, vector in enumerate(vectors) if vector.kind in SECRET}
    # Those of a round may contain data, unless they are the targets themselves.
    doubtful = knowledge.declared.drawn
    if wanted & doubtful:
        doubtful = set()
    worst = replace(knowledge, known=knowledge.known | (secrets - wanted - doubtful))
    outs = knowledge.declared.opaques.keys()
    view = _reaching(worst)
    if not least:
        missing = unexplained(worst, wanted)
        if missing is not None:
            raise missing
    # Only these are shown to be functions of the view; one that just moves a model is not known.
    _post_processing(worst, outs & (view.used | knowledge.known))
    return worst, replace(view, known=view.known | outs)


def unexplained(knowledge: Knowledge, targets: Collection[int] = ()) -> Unexplained | None:
    """Return which vectors reach a view that the declaration does not explain, if any.

    Targets do not count.

    A known one is harmless only if all that its owner knew before is known as well.
    """
    free = knowledge.declared.unexplained.difference(targets)
    if not free:
        return None
    known = free & knowledge.known
    vectors = knowledge.declared.vectors
    found = _reaching(knowledge, free).used & free - known
    if known:
        first = _first_unknown(knowledge)
        found |= {k for k in known if min(first.get(vectors[k].owner, k), first.get(None, k)) < k}
    if not found:
        return None
    owners = frozenset(vectors[k].owner for k in found)
    return Unexplained(vectors[min(found)].label, owners)


def unheard_rounding(knowledge: Knowledge) -> Unexplained | None:
    """Return a message whose rounding error reaches a view that does not contain it, if any."""
    found = _reaching(knowledge).used & rounded(knowledge).keys()
    if not found:
        return None
    vectors = knowledge.declared.vectors
    owners = frozenset(vectors[k].owner for k in found)
    return Unexplained(vectors[min(found)].label, owners, rounded=True)


def _first_unknown(knowledge: Knowledge) -> Mapping[int | None, int]:
    """Return the first vector that each node held or received and that is not known.

    That of None is a message to everybody.
    """
    first: dict[int | None, int] = {}
    for k, vector in enumerate(knowledge.declared.vectors):
        if k in knowledge.known or vector.kind == "public":
            continue
        holders: Sequence[int | None] = (vector.owner,)
        if vector.kind == "message":
            holders = vector.dst or (None,)
        elif vector.owner is None:
            continue
        for node in holders:
            first.setdefault(node, k)
    return first


def _reaching(worst: Knowledge, fixed: frozenset[int] = frozenset()) -> Knowledge:
    """Drop relations that only define a state, or an unobserved message, with no other use.

    The defined vector can take any value, unless it is a fixed one, so such a relation says nothing
    about the rest. Dropping it may leave other vectors in a single relation.
    """
    vectors = worst.declared.vectors
    occurs_in = defaultdict[int, set[int]](set)  # free vector -> relations that contain it
    fixed = fixed | worst.known | worst.declared.opaques.keys()
    for r in worst.rows:
        for k in worst.declared.relations[r].terms:
            if k not in fixed and vectors[k].kind in DEFINED:
                occurs_in[k].add(r)
    rows = set(worst.rows)
    todo = [k for k, some in occurs_in.items() if len(some) == 1]
    while todo:
        for r in list(occurs_in[todo.pop()]):
            rows.discard(r)
            for k in worst.declared.relations[r].terms:
                if r in occurs_in[k]:
                    occurs_in[k].discard(r)
                    if len(occurs_in[k]) == 1:
                        todo.append(k)
    return replace(worst, rows=tuple(sorted(rows)))


def _post_processing(worst: Knowledge, outs: Collection[int]) -> None:
    """Raise LeakauditError if a nonlinear step without determined inputs reaches the view."""
    if not outs:
        return
    past = _PastRelations(worst, worst.known)
    past.advance(len(worst.declared.relations))
    steps = dict(past.pending)
    for out in sorted(outs):
        for part in steps[out]:
            if not past.holds(part, len(worst.declared.vectors)):
                label = worst.declared.vectors[out].label
                how = "a nonlinear function of"
                if out in past.rounded:
                    how = "rounded from"
                raise LeakauditError(
                    f"account: {label} is {how} {part}, which this view does not determine"
                )


def _no_prior(knowledge: Knowledge, wanted: Collection[int]) -> None:
    """Raise LeakauditError if relations connect targets to each other or to noise, not messages."""
    vectors = knowledge.declared.vectors
    for row in _without_states(knowledge):
        if row.keys().isdisjoint(wanted):
            continue
        kinds = {vectors[k].kind for k in row}
        if "public" not in kinds:
            raise LeakauditError(
                f"account: the relation between {labels(vectors, row)} is a prior, which a "
                "worst-case bound does not have; leave it out"
            )


def _without_states(knowledge: Knowledge) -> list[Row]:
    """Return what remains of the relations after eliminating all states and messages."""
    vectors = knowledge.declared.vectors
    prime = PRIMES[0]
    stairs = Staircase(prime)
    # States and messages are numbered last, so that they are the pivots of their definitions. Rows
    # with other pivots are what remains.
    late = [len(vectors) * (vector.kind in DEFINED) for vector in vectors]
    for relation in knowledge.relations:
        stairs.add({k + late[k]: v for k, v in modular(relation.terms, prime).items()})
    return [row for column, row in stairs.pivots.items() if column < len(vectors)]


def only_noise(view: Knowledge, moving: Sequence[Expression]) -> None:
    """Raise LeakauditError if a view of moving targets contains more than Gaussian noise.

    Rounding errors that reach it are functions of what was sent.
    """
    hidden = rounded(view)
    if hidden:
        _post_processing(view, view.used & hidden.keys())
    gaussian(view, moving)


def rounded(knowledge: Knowledge) -> dict[int, Expression]:
    """Return the content of each unobserved message that a channel rounds.

    Whoever uses such a message uses a nonlinear function of its content. An observed one is known,
    and so is its content, which does not make the rest of the view more harmless.
    """
    declared = knowledge.declared
    found = {}
    for m, row in declared.sent.items():
        if declared.vectors[m].std and m not in knowledge.known:
            terms = declared.relations[row].terms
            content = {k: -value / terms[m] for k, value in terms.items() if k != m}
            found[m] = Expression(declared.vectors, content)
    return found


def gaussian(worst: Knowledge, moving: Sequence[Expression]) -> None:
    """Raise LeakauditError if the view contains non-Gaussian noise together with the targets.

    Exact: the reduced echelon form of the view splits into independent components that share no
    column; one without targets reveals nothing about them.
    """
    vectors = worst.declared.vectors
    prime = PRIMES[0]
    other = {k for k in worst.noise if vectors[k].law != "gaussian"}
    if not other:
        return
    targets = places(moving)
    unwanted = set(worst.flat).difference(targets)
    left = eliminate(worst.modular(prime, worst.known), unwanted, prime)
    seen = _component(echelon(left, [*worst.noise, *targets], prime), targets)
    mixed_in = sorted(other & seen)
    if mixed_in:
        first = vectors[mixed_in[0]]
        raise LeakauditError(
            f"account: {first.label} is {first.law} noise, but a mu requires Gaussian noise; "
            "declare it known (knowledge.also) for an upper value without its protection, or "
            "compose its releases one by one"
        )


def _component(rows: Sequence[Row], start: Collection[int]) -> set[int]:
    seen = set(start)
    apart = list(rows)
    grown = True
    while grown:
        grown = False
        left = []
        for row in apart:
            if seen.isdisjoint(row):
                left.append(row)
            else:
                seen.update(row)
                grown = True
        apart = left
    return seen


class _PastRelations:
    """What follows from the relations added so far, including nonlinear functions of it."""

    def __init__(self, knowledge: Knowledge, known: Collection[int]) -> None:
        self.knowledge = knowledge
        self.rows = Staircase()
        self.known = known
        declared = knowledge.declared
        self.rounded = rounded(knowledge)
        self.pending = declared.opaques | {m: (form,) for m, form in self.rounded.items()}
        self._skipped = {declared.sent[m] for m in self.rounded}
        self._added = 0  # relations that `advance` has considered

    def advance(self, before: int) -> None:
        """Add the relations that were declared before a place."""
        rows = self.knowledge.rows
        while self._added < len(rows) and rows[self._added] < before:
            if rows[self._added] not in self._skipped:
                terms = self.knowledge.relations[self._added].terms
                self.rows.add(modular(terms, dropped=self.known))
            self._added += 1

    def holds(self, form: Expression, before: int) -> bool:
        """Return whether a form follows, also by nonlinear steps declared before a place."""
        for out, parts in list(self.pending.items()):
            if out < before and all(map(self._follows, parts)):
                self.rows.add({out: 1})
                del self.pending[out]
        return self._follows(form)

    def _follows(self, form: Expression) -> bool:
        return self.rows.holds(modular(form.terms, dropped=self.known))


def certificates(
    worst: Knowledge, targets: Sequence[Expression], others: Collection[int]
) -> tuple[int, ...]:
    """Return the certificate of every target, by the relations before each gradient (`Bound`).

    Args:
        worst: The knowledge of an adversary who knows all secrets except the targets.
        others: Gradients that are not targets and reach the view. One whose point is not a function
            of the view reacts to everything declared before it, so targets declared before it have
            0. If hidden noise moves its point, the noise is not the declared one, so all targets
            have 0.
    """
    wanted = set(places(targets))
    seen = _PastRelations(worst, worst.known)
    own = _PastRelations(worst, worst.known | wanted)
    points = worst.declared.points
    level = dict.fromkeys(wanted, 2)
    reacts: float = -1  # the last gradient of others that reacts
    for k in sorted(points):
        if k not in wanted and k not in others:
            continue
        at = points[k]
        before = worst.declared.before[k]
        seen.advance(before)
        if seen.holds(at, k):  # a function of the view: certificate 2
            continue
        own.advance(before)
        moved_only_by_targets = own.holds(at, k)
        if k in wanted:
            level[k] = int(moved_only_by_targets)
        else:
            reacts = max(reacts, k if moved_only_by_targets else math.inf)
    for k in wanted:
        if k < reacts:
            level[k] = 0
    return tuple(map(level.__getitem__, places(targets)))
