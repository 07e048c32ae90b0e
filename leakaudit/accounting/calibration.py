"""How much noise an epsilon needs.

mu falls as one over the scale of all Gaussian noise, so one exact view gives every other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import cast

from torch import Tensor

from leakaudit.accounting.listeners import Listener
from leakaudit.accounting.pricing import Price, price
from leakaudit.bounds import gaussian
from leakaudit.protocols.declared import Protocol
from leakaudit.relations import Relations, Turns
from leakaudit.trace import Graph, Json
from leakaudit.victim import Victim

CLOSE = 1e-6  # relative; of the mu that was asked for and the mu that the recommended noise gives


@dataclass(frozen=True)
class Louder:
    """The declaration of a victim, with its noise scaled.

    Attributes:
        victim: Whose declaration it is.
        factor: Of every standard deviation.
    """

    victim: Victim
    factor: float

    @property
    def stationary(self) -> bool:
        """As the victim's."""
        return self.victim.stationary

    def turns(self, rounds: int) -> Turns | None:
        """As the victim's."""
        return self.victim.turns(rounds)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the victim's relations with every noise scaled by `factor`.

        Args:
            graph: As for the victim.
            rounds: As for the victim.
            public: As for the victim.
        """
        p = self.victim.relations(graph, rounds, public)
        p.vectors[:] = [
            replace(v, std=v.std * self.factor) if v.kind == "noise" else v for v in p.vectors
        ]
        return p


@dataclass(frozen=True)
class Advice:
    """The noise that gives an epsilon to one view.

    Attributes:
        epsilon: Asked for.
        delta: Asked for.
        factor: Of all noise in the run; inf if a combination is on the wire without noise, so that
            none helps.
        noise: Name -> lowest and highest standard deviation of the node's own noise (of all noise,
            if it adds none) after that.
        mu: Asked for.
        reached: Computed anew at that noise.
        leaking: What no noise of these places hides.
    """

    epsilon: float
    delta: float
    factor: float
    noise: Mapping[str, tuple[float, float]]
    mu: float
    reached: float | None
    leaking: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the view computed anew is the one that was asked for."""
        return self.reached is not None and self.reached <= self.mu * (1 + CLOSE)

    @property
    def words(self) -> str:
        """For a cell of a table."""
        if self.factor == math.inf:
            return "no noise in these places helps"
        if not self.factor:
            return "none needed"
        levels = ", ".join(
            f"{name} {_range(low, high)}" for name, (low, high) in self.noise.items()
        )
        if self.holds:
            return f"{levels} (x{self.factor:.4g})"
        return f"{levels} (x{self.factor:.4g}, not confirmed)"

    def to_json(self) -> dict[str, Json]:
        """Plain values; infinity is the text ``inf``."""
        return {
            k: "inf" if v == math.inf else list(v) if isinstance(v, tuple) else v
            for k, v in {**asdict(self), "holds": self.holds}.items()
        }


def advise(
    protocol: Protocol,
    listener: Listener,
    found: Price,
    epsilon: float,
    delta: float,
    smoothness: float | None,
) -> Advice | None:
    """Return the noise that makes this view (epsilon, delta)-DP; None if there is no mu.

    Args:
        protocol: With its constants and graph.
        listener: The adversary and the node.
        found: The bound on its view.
        epsilon: Wanted.
        delta: Wanted.
        smoothness: As for `price`.
    """
    if found.mu is None:
        return None
    if 0 < delta < 1:
        wanted = gaussian.least_mu(epsilon, delta)
    else:
        wanted = 0.0 if delta == 0 else math.inf
    if found.mu == math.inf or (not wanted and found.mu):
        return Advice(epsilon, delta, math.inf, {}, wanted, None, found.leaking)
    factor = found.mu / wanted if found.mu else 0.0
    levels = _levels(protocol.start, listener.node, factor)
    if not factor:
        return Advice(epsilon, delta, factor, levels, wanted, 0.0)
    louder = replace(protocol, victim=cast(Victim, Louder(protocol.victim, factor)))
    (again,) = price(
        louder,
        listener.adversary,
        [listener.node],
        found.sensitivity,
        delta or found.delta,
        smoothness,
    )
    return Advice(epsilon, delta, factor, levels, wanted, again.mu)


def _levels(declared: Relations, node: int, factor: float) -> dict[str, tuple[float, float]]:
    noise = [v for v in declared.vectors if v.kind == "noise"]
    found = defaultdict[str, list[float]](list)
    for v in [v for v in noise if v.owner == node] or noise:
        found[v.name].append(v.std * factor)
    return {name: (min(stds), max(stds)) for name, stds in found.items()}


def _range(low: float, high: float) -> str:
    return f"{low:.4g}" if math.isclose(low, high, rel_tol=1e-9) else f"{low:.4g} to {high:.4g}"
