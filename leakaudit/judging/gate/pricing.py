"""Epsilon of the declared protocol in every view, and whether recordings support it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from leakaudit.core.adversary import Adversary
from leakaudit.judging.gate.rule import PricedView
from leakaudit.protocols.declared import Protocol, clipped, constant, played
from leakaudit.views.accounting.compare import AssumedSensitivity, assumed_sensitivity, standing
from leakaudit.views.accounting.resting import rests_on
from leakaudit.views.accounting.view_bound import ViewBound, view_bounds
from leakaudit.views.extraction import hearing

if TYPE_CHECKING:
    from leakaudit.judging.gate.config import Check
    from leakaudit.judging.gate.fidelity import Fidelity
    from leakaudit.judging.gate.runs import SeedResults

ROUNDING = 1e-6  # relative rounding error of a sensitivity that is written with six digits
# Standard error of the gradients' coefficient above which the recordings leave doubt. At 0.2, a
# coefficient of 0 (noise without any gradient) is five standard errors below the expected 1.
BLUNT = 0.2
# In case of doubt, epsilon is computed for a coefficient that exceeds the measured one by this
# number of standard errors. A choice: the coefficient is larger with a probability of 0.1 %.
LIMIT = 3.0


def price_views(
    check: Check, made: SeedResults, shown: Fidelity, *, own_code: bool, most: int
) -> tuple[int, dict[str, PricedView]]:
    """Compute epsilon of one record in the view of each adversary of a check.

    Recordings of leakaudit's own victims (`own_code`) are not in doubt.
    """
    protocol = played(made.trace)
    assumed = assumed_sensitivity(protocol, protocol.claims, check.sensitivity)
    short = _too_small(check, made, protocol, assumed)
    views: dict[str, PricedView] = {}
    for who in check.adversaries:
        if short:
            views[who] = PricedView(why=short)
            continue
        adversary = Adversary.parse(who)
        nodes = check.nodes or hearing.targets(made.trace, adversary)
        prices = _prices(check, protocol, adversary, nodes, assumed.value)
        missing = next((one for one in prices if one.epsilon is None), None)
        if missing is not None:
            views[who] = PricedView(why=_unpriced(missing, check), nodes=(missing.node,))
        elif prices:
            worst = max(prices, key=lambda one: (_epsilon(one), one.node))
            inputs = rests_on(
                protocol, worst, assumed.evidence, asked=check.sensitivity is not None
            )
            priced = PricedView(
                epsilon=_epsilon(worst),
                nodes=(worst.node,),
                sensitivity=assumed.value,
                holds=standing(worst, inputs),
            )
            views[who] = priced
            if not own_code:
                views[who] = _doubted(priced, check, protocol, adversary, nodes, shown, most)
    return protocol.rounds, views


def _prices(
    check: Check,
    protocol: Protocol,
    adversary: Adversary,
    nodes: Sequence[int],
    sensitivity: float,
) -> list[ViewBound]:
    bounds = view_bounds(
        protocol, adversary, nodes, sensitivity, check.delta, check.smoothness, verified=True
    )
    return list(bounds)


def _epsilon(bound: ViewBound) -> float:
    return math.inf if bound.epsilon is None else bound.epsilon


def _largest(prices: Iterable[ViewBound]) -> float:
    return max(map(_epsilon, prices), default=math.inf)


def _doubted(
    priced: PricedView,
    check: Check,
    protocol: Protocol,
    adversary: Adversary,
    nodes: Sequence[int],
    shown: Fidelity,
    most: int,
) -> PricedView:
    """Add what epsilon may be according to the recordings, if they leave the declaration in doubt.

    Noise in which even `most` recordings could not detect the gradients is no reason for doubt: no
    program could remove it, and the rule about the recordings states it.
    """
    if protocol.turns is not None and not shown.compared:
        unordered = replace(protocol, ordered=False)
        why = (
            "if the order of records in mini-batches differs from the declared one, "
            "which a recording cannot show"
        )
        larger = _prices(check, unordered, adversary, nodes, priced.sensitivity)
        return replace(priced, doubted=_largest(larger), doubt=why)
    fit = shown.fit
    # The standard error falls with the square root of the number of recordings.
    needed = math.ceil(len(shown.seeds) * (fit.error / BLUNT) ** 2)
    if fit.error <= BLUNT or needed > most:
        return priced
    times = max(1.0, 1 + fit.shift + LIMIT * fit.error)
    why = (
        f"if the messages contain {times:.2g} times the declared gradients, which "
        f"{len(shown.seeds)} recordings cannot exclude because of noise; set seeds = {needed}"
    )
    # If gradients are larger by this factor, one record changes them by as much more.
    larger = _prices(check, protocol, adversary, nodes, priced.sensitivity * times)
    return replace(priced, doubted=_largest(larger), doubt=why)


def _too_small(
    check: Check, made: SeedResults, protocol: Protocol, assumed: AssumedSensitivity
) -> str:
    """Explain that the sensitivity is unknown or too small for the declared clip; "" if neither."""
    if not assumed.known:
        return (
            "it is not known how much one record changes a gradient, because neither a clip nor a "
            f"claim is declared; set sensitivity = S in [check.{check.name}]"
        )
    most = protocol.clipped
    if most is None:
        return ""
    hint = ""
    if "batch" in protocol.unstated:
        hint = ", or record batch, which is 0 if every gradient is of all records of its node"
    elif not constant(made.trace, "samples"):
        counts = made.truth.node.bincount()
        batch = int(constant(made.trace, "batch"))
        clip: float = getattr(protocol.victim, "clip", 0.0)
        most = clipped(clip, int(counts[counts > 0].min()), batch)
    if assumed.value >= most.sensitivity * (1 - ROUNDING):
        return ""
    return (
        f"sensitivity = {assumed.value:g}, but a gradient changes by up to {most.sensitivity:g}: "
        f"{most.words}; set sensitivity = {most.sensitivity:g} in [check.{check.name}]{hint}"
    )


def _unpriced(missing: ViewBound, check: Check) -> str:
    """Explain why a node has no epsilon per record, and what to add."""
    if missing.refused:
        return f"node {missing.node}: {missing.refused}"
    says = (
        f"node {missing.node} has no epsilon per record, because its messages "
        "do not determine the models at which it evaluates gradients"
    )
    if check.smoothness is None:
        constant = "a Lipschitz constant of a node's gradients"
        return f"{says}; add smoothness = L, {constant}, to [check.{check.name}]"
    unit = missing.unit or "none"
    return f"{says}, and smoothness = {check.smoothness:g} does not bound them ({unit} level only)"
