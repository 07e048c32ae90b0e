"""Claims against the recorded constants and the exact view: rounds, adjacency, whose privacy, delta, classic calibration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from leakaudit.accounting.pricing import price
from leakaudit.adversary import Adversary
from leakaudit.bounds import gaussian
from leakaudit.bounds.guarantee import Adjacency
from leakaudit.bounds.mechanisms import classic_std
from leakaudit.lint import loops
from leakaudit.lint.case import Case
from leakaudit.lint.pitfall import Pitfall
from leakaudit.verdict import Verdict
from leakaudit.victim import Claim

MORE = 1 + 1e-6
NEAR = 1.25  # a figure this close below a claim is what was claimed
MOST = 400  # rounds that are priced
TEXTBOOK = ("1.25", "eps < 1", "epsilon < 1")


def check(case: Case) -> Iterator[Pitfall]:
    """Yield what is wrong with the claims."""
    if not case.claims:
        return
    covering = [c for c in case.claims if c.rounds is None or c.rounds >= case.trace.rounds]
    if not covering:
        yield _rounds(case, max(case.claims, key=lambda c: c.rounds or 0))
    for claim in covering:
        if (found := _priced(case, claim)) is not None:
            yield found
            break
    if (
        nameless := next((c for c in case.claims if loops.adjacency(c.adjacency) is None), None)
    ) is not None:
        said = repr(nameless.adjacency) if nameless.adjacency else "nothing"
        yield Pitfall(
            2,
            Verdict.UNSUPPORTED,
            f"{_quote(nameless)} says {said} of what two neighbouring data sets differ in",
        )
    yield from _node(case)
    yield from _delta(case)
    yield from _classic(case)


def _rounds(case: Case, claim: Claim) -> Pitfall:
    times = math.ceil(case.trace.rounds / (claim.rounds or 1))
    epsilon, delta = claim.epsilon or 0.0, claim.delta or 0.0
    figures = {
        "claimed": epsilon,
        "rounds": case.trace.rounds,
        "covered": claim.rounds,
        "sum": times * epsilon,
    }
    says = f"{_quote(claim)} covers {claim.rounds} of the {case.trace.rounds} rounds: together {times * epsilon:.4g} by basic composition"
    if case.laws == {"gaussian"} and 0 < delta < 1:
        figures["gaussian"] = gaussian.epsilon(
            delta, math.sqrt(times) * gaussian.least_mu(epsilon, delta)
        )
        says += f", {figures['gaussian']:.4g} for Gaussian noise"
    return Pitfall(
        1, Verdict.UNCLAIMED if claim.rounds == 1 else Verdict.UNSUPPORTED, says, figures
    )


@dataclass(frozen=True)
class _Costs:
    """Epsilons that linear losses reach: of all rounds, of one gradient alone, of all where a record is added or removed; and leaks."""

    all: float
    alone: float
    added: float
    leaking: Sequence[str] = ()


def _priced(case: Case, claim: Claim) -> Pitfall | None:
    """Compare a claim with what the recorded constants cost, and name the slip that explains the difference."""
    if claim.sampled:
        return None
    costs = loops.costs(case.trace, claim) if case.protocol is None else _exact(case, claim)
    epsilon = claim.epsilon or 0.0
    if costs is None or costs.all <= epsilon * MORE:
        return None
    figures = {
        "claimed": epsilon,
        "delta": claim.delta,
        "all": costs.all,
        "one": costs.alone,
        "add_or_remove": costs.added,
    }
    if costs.all == math.inf:
        some = ", ".join(costs.leaking[:3]) if isinstance(costs, _Costs) else ""
        return Pitfall(
            6,
            Verdict.UNSUPPORTED,
            f"{_quote(claim)}, but {some or 'a signal'} travels without noise: mu is infinite",
            figures,
        )
    rounds = case.trace.rounds if case.protocol is None else min(case.trace.rounds, MOST)
    what = f"{_quote(claim)}; the recorded constants give {costs.all:.4g} over {rounds} rounds"
    if case.protocol is not None:
        what += " to an outsider, as linear losses reach it"
    added, alone = (
        cost if epsilon / NEAR <= cost <= epsilon * MORE else 0.0
        for cost in (costs.added, costs.alone)
    )
    if added and added >= alone:
        says = f"{what} where a record is replaced, {costs.added:.4g} where one is added or removed"
        return Pitfall(2, Verdict.UNSUPPORTED, says, figures)
    return Pitfall(
        1 if alone else 20,
        Verdict.UNSUPPORTED,
        f"{what}, and {costs.alone:.4g} for one round alone",
        figures,
    )


def _exact(case: Case, claim: Claim) -> _Costs | None:
    """Price the outsider's view of one node at the claim's sensitivity; None where claim or view do not allow it."""
    protocol, relations = case.protocol, case.relations
    if (
        protocol is None
        or relations is None
        or claim.sensitivity is None
        or not claim.delta
        or claim.pair is not None
    ):
        return None
    node = max(
        case.holders,
        key=lambda i: (len(relations.gradients(i)), -case.trace.graph.degree(i)),
        default=0,
    )
    first = min((relations.vectors[g.vector].round for g in relations.gradients(node)), default=1)
    found = [
        next(
            price(
                replace(protocol, rounds=rounds),
                Adversary(),
                [node],
                claim.sensitivity,
                claim.delta,
            )
        )
        for rounds in (min(case.trace.rounds, MOST), max(1, first))
    ]
    mus = [p.reached for p in found if p.reached is not None]
    if len(mus) < len(found):
        return None
    replaced = loops.adjacency(claim.adjacency) in (Adjacency.REPLACE, Adjacency.NODE)
    together, alone, added = (
        gaussian.epsilon(claim.delta, mu) for mu in (*mus, mus[0] / (2 if replaced else 1))
    )
    return _Costs(together, alone, added, found[0].leaking)


def _node(case: Case) -> Iterator[Pitfall]:
    """Say what a claim of one record means for a node with several."""
    k = max(case.records.values(), default=1)
    claim = next(
        (c for c in case.claims if loops.adjacency(c.adjacency) not in (None, Adjacency.NODE)), None
    )
    if claim is None or k < 2:
        return
    epsilon, delta = claim.epsilon or 0.0, claim.delta or 0.0
    total = k * epsilon
    if case.laws == {"gaussian"} and 0 < delta < 1:
        total = gaussian.epsilon(delta, gaussian.group(gaussian.least_mu(epsilon, delta), k))
    says = f"{_quote(claim)} is of one record; the {k} records of a node together have {total:.4g}"
    yield Pitfall(3, Verdict.UNCLAIMED, says, {"claimed": epsilon, "records": k, "node": total})


def _delta(case: Case) -> Iterator[Pitfall]:
    n, claim = sum(case.records.values()), max(case.claims, key=lambda c: c.delta or 0.0)
    if n and (claim.delta or 0.0) * n >= 1:
        says = f"delta {claim.delta:g} is {(claim.delta or 0.0) * n:.3g} over the {n} records: it permits to publish one of them"
        yield Pitfall(14, Verdict.UNCLAIMED, says, {"delta": claim.delta, "records": n})


def _classic(case: Case) -> Iterator[Pitfall]:
    """Find sqrt(2 log(1.25 / delta)) / epsilon at an epsilon for which it is not proved."""
    for claim in case.claims:
        epsilon, delta = claim.epsilon or 0.0, claim.delta or 0.0
        if (
            epsilon < 1
            or not 0 < delta < 1
            or "gaussian" not in case.laws
            or not _textbook(case, claim)
        ):
            continue
        classic, needed = classic_std(epsilon, delta), 1 / gaussian.least_mu(epsilon, delta)
        figures = {"epsilon": epsilon, "delta": delta, "classic": classic, "needed": needed}
        says = f"{_quote(claim)} with noise of {classic:.4g} sensitivities by sqrt(2 log(1.25 / delta)) / epsilon, proved below 1 alone; "
        if classic < needed:
            yield Pitfall(18, Verdict.REFUTED, f"{says}{needed:.4g} are needed", figures)
        else:
            yield Pitfall(18, Verdict.UNSUPPORTED, f"{says}{needed:.4g} would do", figures)
        return


def _textbook(case: Case, claim: Claim) -> bool:
    """Whether a claim names the textbook calibration, or its noise is that of one of the recorded sensitivities."""
    if any(word in part for part in (claim.source, *claim.assumes) for word in TEXTBOOK):
        return True
    clip = loops.number(case.params, "clip")
    if case.protocol is not None or clip is None or claim.std is None:
        return False
    wanted = classic_std(claim.epsilon or 1.0, claim.delta or 0.5)
    return any(math.isclose(claim.std, times * clip * wanted, rel_tol=1e-3) for times in (1, 2))


def _quote(claim: Claim) -> str:
    return f"({claim.epsilon:.4g}, {claim.delta or 0:g}) of {claim.source}"
