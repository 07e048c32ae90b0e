"""Compare claims with the recorded constants and the exact bound of the view."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from leakaudit._util.plain import Figures
from leakaudit.core.adversary import Adversary
from leakaudit.core.claim import Adjacency, Claim
from leakaudit.core.verdict import Holds, Verdict
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.bounds.mechanisms import classic_std
from leakaudit.views.accounting.view_bound import view_bounds
from leakaudit.views.conformance import loops
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.pitfall import MORE, Pitfall

NEAR = 1.25  # a cost below a claim by at most this factor counts as claimed: a choice
MOST = 400  # largest number of rounds that is evaluated: a choice that limits the time
SAME = 1e-3  # relative difference of two standard deviations that is rounding: a choice
SHOWN = 3  # largest number of names in a sentence


def check(case: Case) -> Iterator[Pitfall]:
    """Yield the problems of the claims."""
    if not case.claims:
        return
    rounds = case.trace.rounds
    covering = [one for one in case.claims if one.rounds is None or one.rounds >= rounds]
    if not covering:
        yield _rounds(case, max(case.claims, key=lambda claim: claim.rounds or 0))
    for claim in covering:
        found = _cost(case, claim)
        if found is not None:
            yield found
            break
    for claim in case.claims:
        if claim.neighbours is None:
            said = repr(claim.adjacency) if claim.adjacency else "nothing"
            says = f"{_quote(claim)} does not define neighbouring data sets (it states {said})"
            yield Pitfall(2, Verdict.UNSUPPORTED, says)
            break
    yield from _node(case)
    yield from _delta(case)
    yield from _classic(case)


def _rounds(case: Case, claim: Claim) -> Pitfall:
    times = math.ceil(case.trace.rounds / (claim.rounds or 1))
    epsilon = claim.epsilon or 0.0
    delta = claim.delta or 0.0
    figures: Figures = {
        "claimed": epsilon,
        "rounds": case.trace.rounds,
        "covered": claim.rounds,
        "sum": times * epsilon,
    }
    says = (
        f"{_quote(claim)} covers {claim.rounds} of the {case.trace.rounds} rounds: all rounds "
        f"together have an epsilon of {Holds.AT_MOST.says(f'{times * epsilon:.4g}')} by basic "
        "composition"
    )
    if case.laws == {"gaussian"} and 0 < delta < 1:
        # mu of k compositions is sqrt(k) mu.
        mu = gaussian.least_mu(epsilon, delta)
        composed = gaussian.epsilon(delta, math.sqrt(times) * mu)
        figures["gaussian"] = composed
        says += f", and {Holds.AT_MOST.says(f'{composed:.4g}')} for Gaussian noise"
    verdict = Verdict.UNCLAIMED if claim.rounds == 1 else Verdict.UNSUPPORTED
    return Pitfall(1, verdict, says, figures)


def _cost(case: Case, claim: Claim) -> Pitfall | None:
    """Compare a claim with the epsilon that the recorded constants give.

    The pitfall is the mistake that explains the difference; None if there is no difference.
    """
    if claim.sampled:
        return None
    leaking: Sequence[str] = ()
    if case.protocol is None:
        mus = loops.gaussian_mus(case.trace, claim)
        rounds = case.trace.rounds
        seen = ""
    else:
        mus, leaking = _exact(case, claim)
        rounds = min(case.trace.rounds, MOST)
        seen = " for an outsider (linear losses attain it)"
    if mus is None or not claim.delta:
        return None
    epsilon = claim.epsilon or 0.0
    of_all = gaussian.epsilon(claim.delta, mus[0])
    of_one = gaussian.epsilon(claim.delta, mus[1])
    # Adding or removing a record changes a sum half as much as replacing one.
    of_added = gaussian.epsilon(claim.delta, mus[0] / loops.changes(claim))
    if of_all <= epsilon * MORE:
        return None
    figures: Figures = {
        "claimed": epsilon,
        "delta": claim.delta,
        "all": of_all,
        "one": of_one,
        "add_or_remove": of_added,
    }
    if of_all == math.inf:
        some = ", ".join(leaking[:SHOWN]) or "a signal"
        says = f"{_quote(claim)}, but {some} is sent without noise: mu is infinite"
        return Pitfall(6, Verdict.UNSUPPORTED, says, figures)
    what = (
        f"{_quote(claim)}; with the recorded constants, epsilon is {of_all:.4g} over {rounds} "
        f"rounds{seen}"
    )
    added = _if_claimed(of_added, epsilon)
    one = _if_claimed(of_one, epsilon)
    if added and added >= one:
        says = f"{what} if a record is replaced, and {of_added:.4g} if one is added or removed"
        return Pitfall(2, Verdict.UNSUPPORTED, says, figures)
    number = 1 if one else 20
    says = f"{what}, and {of_one:.4g} for a single round"
    return Pitfall(number, Verdict.UNSUPPORTED, says, figures)


def _if_claimed(cost: float, epsilon: float) -> float:
    """Return a cost if it matches the claim, else 0."""
    if epsilon / NEAR <= cost <= epsilon * MORE:
        return cost
    return 0.0


def _exact(case: Case, claim: Claim) -> tuple[tuple[float, float] | None, Sequence[str]]:
    """Bound the outsider's view of one node at the claim's sensitivity, in all rounds and in one.

    The node is the one with the most gradients and the fewest neighbours. None if the claim or the
    view does not allow a bound; the gradients that leak without noise are named as well.
    """
    relations = case.relations
    if case.protocol is None or relations is None:
        return None, ()
    if claim.sensitivity is None or not claim.delta or claim.pair is not None:
        return None, ()

    def exposure(node: int) -> tuple[int, int]:
        return len(relations.gradients(node)), -case.trace.graph.degree(node)

    node = max(case.holders, key=exposure, default=0)
    first = min((relations.vectors[g.vector].round for g in relations.gradients(node)), default=1)
    bounds = []
    for rounds in (min(case.trace.rounds, MOST), max(1, first)):
        protocol = replace(case.protocol, rounds=rounds)
        found = view_bounds(protocol, Adversary(), [node], claim.sensitivity, claim.delta)
        bounds.append(next(found))
    of_all, of_one = bounds
    if of_all.reached is None or of_one.reached is None:
        return None, ()
    return (of_all.reached, of_one.reached), of_all.leaking


def _node(case: Case) -> Iterator[Pitfall]:
    count = max(case.records.values(), default=1)
    if count < 2:
        return
    for claim in case.claims:
        if claim.neighbours in (None, Adjacency.NODE):
            continue
        epsilon = claim.epsilon or 0.0
        delta = claim.delta or 0.0
        total = count * epsilon
        if case.laws == {"gaussian"} and 0 < delta < 1:
            mu = gaussian.group(gaussian.least_mu(epsilon, delta), count)
            total = gaussian.epsilon(delta, mu)
        says = (
            f"{_quote(claim)} concerns one record; the {count} records of a node together have "
            f"an epsilon of {Holds.AT_MOST.says(f'{total:.4g}')}"
        )
        figures: Figures = {"claimed": epsilon, "records": count, "node": total}
        yield Pitfall(3, Verdict.UNCLAIMED, says, figures)
        return


def _delta(case: Case) -> Iterator[Pitfall]:
    count = sum(case.records.values())
    claim = max(case.claims, key=lambda claim: claim.delta or 0.0)
    delta = claim.delta or 0.0
    if count and delta * count >= 1:
        says = (
            f"delta {claim.delta:g} times the number of records, {count}, is {delta * count:.3g}: "
            "such a delta allows the mechanism to publish one of them"
        )
        yield Pitfall(14, Verdict.UNCLAIMED, says, {"delta": claim.delta, "records": count})


def _classic(case: Case) -> Iterator[Pitfall]:
    """Find noise of sqrt(2 log(1.25 / delta)) / epsilon if epsilon is too large for its proof."""
    if "gaussian" not in case.laws:
        return
    for claim in case.claims:
        epsilon = claim.epsilon or 0.0
        delta = claim.delta or 0.0
        if epsilon < 1 or not 0 < delta < 1 or not _textbook(case, claim):
            continue
        classic = classic_std(epsilon, delta)
        needed = 1 / gaussian.least_mu(epsilon, delta)
        figures: Figures = {
            "epsilon": epsilon,
            "delta": delta,
            "classic": classic,
            "needed": needed,
        }
        says = (
            f"{_quote(claim)} uses noise of {classic:.4g} times the sensitivity by "
            "sqrt(2 log(1.25 / delta)) / epsilon, which is proved only for epsilon < 1; the factor "
        )
        if classic < needed:
            yield Pitfall(18, Verdict.REFUTED, f"{says}{needed:.4g} is required", figures)
        else:
            yield Pitfall(18, Verdict.UNSUPPORTED, f"{says}{needed:.4g} would suffice", figures)
        return


def _textbook(case: Case, claim: Claim) -> bool:
    """Return whether a claim uses the classical calibration.

    Either the claim states it, or its noise equals that of the calibration for a record that is
    added or replaced.
    """
    if claim.classic:
        return True
    clip = loops.number(case.params, "clip")
    if case.protocol is not None or clip is None or claim.std is None:
        return False
    wanted = clip * classic_std(claim.epsilon or 1.0, claim.delta or 0.5)
    added = math.isclose(claim.std, wanted, rel_tol=SAME)
    replaced = math.isclose(claim.std, 2 * wanted, rel_tol=SAME)
    return added or replaced


def _quote(claim: Claim) -> str:
    return f"({claim.epsilon:.4g}, {claim.delta or 0:g}) of {claim.source}"
