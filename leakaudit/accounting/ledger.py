"""Every adversary's exact view beside the paper's claim.

A row has mu, epsilon, their ratio to the claim, and the noise that the claim needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from leakaudit.accounting.calibration import Advice, advise
from leakaudit.accounting.listeners import Listener
from leakaudit.accounting.pricing import Price, price
from leakaudit.accounting.symmetry import Symmetry
from leakaudit.bounds import gaussian
from leakaudit.progress import step
from leakaudit.protocols.declared import Protocol
from leakaudit.trace import Json
from leakaudit.verdict import Verdict
from leakaudit.victim import Claim

# If neither the caller nor a claim says otherwise.
DELTA = 1e-5
SENSITIVITY = 1.0

# Relative; by which a computed epsilon or mu may exceed another one and still count as equal.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Entry:
    """One view of one node.

    Attributes:
        listener: The adversary and the node.
        price: The bound on its view.
        claim: The strongest one that speaks of this view.
        verdict: On the claim.
        why: Of the verdict.
        exact: Epsilon of a record at the claim's delta, as an upper value; None if there is none.
        least: The same, as linear (and quadratic) losses reach it.
        ratio: Exact over claimed.
        advice: The noise that the claim needs.
        like: The adversary whose view is the same by symmetry.
        moved: Where the sensitivity comes from, in words.
    """

    listener: Listener
    price: Price
    claim: Claim | None
    verdict: Verdict
    why: str
    exact: float | None = None
    least: float | None = None
    ratio: float | None = None
    advice: Advice | None = None
    like: Listener | None = None
    moved: str = ""

    def to_json(self) -> dict[str, Json]:
        """Plain values; infinity is the text ``inf``."""
        c = self.claim
        claim: dict[str, Json] | None = None
        if c is not None:
            claim = asdict(c)
            del claim["pair"]
            del claim["met"]
        same_as: dict[str, Json] | None = None
        if self.like is not None:
            same_as = {"node": self.like.node, "adversary": str(self.like.adversary)}
        rest = {"exact": self.exact, "least": self.least, "ratio": self.ratio}
        return {
            **self.price.to_json(),
            "sensitivity_from": self.moved,
            "kind": self.listener.kind,
            "claim": claim,
            **{k: "inf" if v == math.inf else v for k, v in rest.items()},
            "verdict": self.verdict.name,
            "why": self.why,
            "recommended": None if self.advice is None else self.advice.to_json(),
            "same_as": same_as,
        }


@dataclass(frozen=True)
class Moved:
    """How far a record moves a gradient.

    Attributes:
        sensitivity: In Euclidean norm.
        words: Where it comes from.
        comparable: Whether claims are judged at it.
    """

    sensitivity: float
    words: str
    comparable: bool


def assumed(protocol: Protocol, claims: Sequence[Claim], asked: float | None) -> Moved:
    """Return the sensitivity to price at.

    Args:
        protocol: Its constants may declare a clip.
        claims: The first that states a sensitivity counts.
        asked: By the user, None if it is left open.
    """
    clipped = protocol.clipped
    if asked is not None:
        return Moved(asked, "as given", True)
    claim = next((c for c in claims if c.sensitivity), None)
    if claim is not None and claim.sensitivity:
        words = "as the claim assumes"
        if clipped is not None and clipped.sensitivity > claim.sensitivity * (1 + ROUNDING):
            words += (
                f"; the run allows {clipped.sensitivity:.6g}, since {clipped.words} "
                "(--sensitivity prices that)"
            )
        return Moved(claim.sensitivity, words, True)
    if clipped is not None:
        return Moved(clipped.sensitivity, clipped.words, False)
    return Moved(
        SENSITIVITY,
        "assumed, because neither a claim nor a clip is declared; give --sensitivity",
        False,
    )


def entries(
    protocol: Protocol,
    listeners: Sequence[Listener],
    *,
    sensitivity: float | Moved | None = None,
    delta: float | None = None,
    epsilon: float | None = None,
    smoothness: float | None = None,
) -> Iterator[Entry]:
    """Yield the entry of every adversary; those that are the same by symmetry are computed once.

    Args:
        protocol: With its constants and graph.
        listeners: The adversaries, each with a node.
        sensitivity: As for `price`, or with its origin; by default `assumed` chooses it.
        delta: As for `price`; by default that of the claim, else 1e-5.
        epsilon: For which noise is recommended; by default the claim's.
        smoothness: As for `price`.

    Raises:
        LeakauditError: As for `price`.
    """
    claims = tuple(
        c
        for c in protocol.victim.claims(protocol.graph, protocol.rounds, protocol.public)
        if _speaks(c, protocol)
    )
    moved = (
        sensitivity if isinstance(sensitivity, Moved) else assumed(protocol, claims, sensitivity)
    )
    symmetry = Symmetry(protocol.graph, protocol.start)
    known: dict[Listener, Entry] = {}
    for k, one in enumerate(listeners):
        step("views", k, len(listeners))
        special = one.kind == "named" or smoothness is not None or any(c.pair for c in claims)
        like = None if special else symmetry.like(one)
        if like is not None and like in known:
            old = known[like]
            yield replace(
                old,
                listener=one,
                price=replace(old.price, node=one.node, adversary=str(one.adversary)),
                like=like,
            )
            continue
        known[one] = _entry(
            protocol, one, _strongest(claims, one), moved, delta, epsilon, smoothness
        )
        yield known[one]
    step("views", len(listeners), len(listeners))


def _entry(
    protocol: Protocol,
    one: Listener,
    claim: Claim | None,
    moved: Moved,
    delta: float | None,
    epsilon: float | None,
    smoothness: float | None,
) -> Entry:
    if delta is not None:
        at = delta
    else:
        at = claim.delta if claim and claim.delta else DELTA
    (found,) = price(protocol, one.adversary, [one.node], moved.sensitivity, at, smoothness)
    target = epsilon
    if epsilon is None and claim and moved.comparable:
        target = claim.epsilon
    level = at if epsilon is not None or claim is None or claim.delta is None else claim.delta
    advice = None
    if target is not None and target != math.inf:
        advice = advise(protocol, one, found, target, level, smoothness)
    unjudged = Entry(one, found, claim, Verdict.UNCLAIMED, "", advice=advice, moved=moved.words)
    return judged(unjudged, moved.comparable)


def judged(entry: Entry, comparable: bool) -> Entry:
    """Return the entry with its verdict.

    REFUTED requires that losses of one kind exceed the claim: with constant gradients, or quadratic
    ones within the smoothness, for a record in as many gradients as one can enter. NOT_REFUTED
    requires that no loss does.

    Args:
        entry: Without a verdict.
        comparable: Whether it is known how far a gradient moves between the claim's neighbours.
    """
    claim, found = entry.claim, entry.price
    if claim is None or claim.epsilon is None or claim.delta is None:
        return replace(entry, why="no claim speaks of this view at these constants")
    if found.refused:
        return replace(entry, verdict=Verdict.INCONCLUSIVE, why=found.refused)
    if not comparable:
        why = "the claim does not say how far a gradient moves; give --sensitivity"
        return replace(entry, verdict=Verdict.UNSUPPORTED, why=why)
    limit = claim.epsilon * (1 + ROUNDING)
    least = None if found.reached is None else gaussian.epsilon(claim.delta, found.reached)
    shown = replace(entry, least=least)
    if found.mu is not None:
        upper = gaussian.epsilon(claim.delta, found.mu)
        shown = replace(shown, exact=upper, ratio=_ratio(upper, claim.epsilon))
        if upper <= limit:
            why = f"no change within the sensitivity exceeds the claimed {claim.epsilon:.4g}"
            return replace(shown, verdict=Verdict.NOT_REFUTED, why=why)
    if claim.sampled:
        return replace(
            shown,
            verdict=Verdict.INCONCLUSIVE,
            why="mini-batches are drawn in secret, which the exact view does not credit",
        )
    if least is not None and least > limit:
        return replace(
            shown,
            verdict=Verdict.REFUTED,
            why=f"epsilon {least:.4g} is reached, {claim.epsilon:.4g} is claimed",
        )
    return replace(shown, verdict=Verdict.INCONCLUSIVE, why=_between(shown))


def _between(entry: Entry) -> str:
    """Say why neither verdict follows."""
    if entry.exact is None:
        return "there is no epsilon for records to compare with the claim; give a smoothness"
    if entry.least is None:
        return f"epsilon is {entry.exact:.4g} at most, and nothing is known to reach it"
    return f"epsilon lies between {entry.least:.4g} and {entry.exact:.4g}, the claim between them"


def worst(found: Sequence[Entry]) -> list[Entry]:
    """Return, for each node and kind of adversary, the first entry with the largest mu.

    Args:
        found: All entries.
    """
    best: dict[tuple[int, str, bool], Entry] = {}
    for one in found:
        key = one.price.node, one.listener.kind, one.price.mu is None
        if key not in best or (one.price.largest or 0.0) > (best[key].price.largest or 0.0) * (
            1 + ROUNDING
        ):
            best[key] = one
    return list(best.values())


def alike(found: Sequence[Entry]) -> dict[int, int]:
    """Return the nodes of which every view is, by symmetry, one of another node: node -> that node.

    Args:
        found: All entries.
    """
    likes: dict[int, set[int | None]] = {}
    for one in found:
        likes.setdefault(one.price.node, set()).add(
            one.like.node if one.like and one.like.node != one.price.node else None
        )
    return {
        node: next(iter(of)) or 0 for node, of in likes.items() if len(of) == 1 and None not in of
    }


def _speaks(claim: Claim, protocol: Protocol) -> bool:
    """Whether a claim is about everything that is sent in this run."""
    if (
        claim.epsilon is None
        or claim.delta is None
        or not claim.met
        or math.isnan(claim.epsilon)
        or not 0 <= claim.delta < 1
    ):
        return False
    return claim.rounds is None or claim.rounds >= protocol.rounds


def _strongest(claims: Sequence[Claim], one: Listener) -> Claim | None:
    """Return the claim of the smallest epsilon that speaks of this view."""
    who = one.adversary
    mine = [
        c
        for c in claims
        if c.pair is None
        or (who.hears == "none" and (tuple(who.corrupt), one.node) == ((c.pair[0],), c.pair[1]))
    ]
    return min(mine, key=lambda c: c.epsilon or 0.0, default=None)


def _ratio(exact: float, claimed: float) -> float:
    if claimed:
        return exact / claimed if claimed < math.inf else 0.0
    return math.inf if exact else 1.0
