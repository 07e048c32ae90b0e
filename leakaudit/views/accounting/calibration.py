"""The noise that an epsilon requires."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from leakaudit._util.once import once
from leakaudit._util.plain import encoded
from leakaudit.core.trace import Graph, Json
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.victim import Victim
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.relations import Relations, Turns
from leakaudit.views.accounting.adversaries import Threat
from leakaudit.views.accounting.view_bound import ViewBound, view_bounds

# mu is inversely proportional to the scale of all Gaussian noise, so one view bound yields all
# others. This is confirmed once for each protocol, by recomputing a bound with scaled noise.

# Largest relative difference between the requested mu and the mu recomputed at the recommended
# noise: a choice, far above the rounding error of a view bound, far below the effect of another
# noise that is not scaled.
CLOSE = 1e-6
EQUAL = 1e-9  # largest relative difference of standard deviations that differ only by rounding


@dataclass(frozen=True)
class _ScaledNoise:
    """The declaration of a victim, with its noise scaled."""

    victim: Victim
    factor: float  # factor of every standard deviation

    @property
    def stationary(self) -> bool:
        return self.victim.stationary

    def turns(self, rounds: int) -> Turns | None:
        return self.victim.turns(rounds)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        declared = self.victim.relations(graph, rounds, public)
        for k, vector in enumerate(declared.vectors):
            if vector.kind == "noise":
                declared.vectors[k] = replace(vector, std=vector.std * self.factor)
        return declared


@dataclass(frozen=True)
class Calibration:
    """The noise that gives one view a requested epsilon."""

    epsilon: float
    delta: float
    # factor of all noise in the run; inf if a combination is sent without noise, so that no factor
    # suffices
    factor: float
    # name -> lowest and highest standard deviation of the node's own noise (of all noise, if it
    # adds none) after scaling
    noise: Mapping[str, tuple[float, float]]
    mu: float
    # mu at that noise, confirmed by recomputing it for the first view of a protocol
    reached: float | None
    leaking: tuple[str, ...] = ()  # combinations that none of these noises hides

    @property
    def holds(self) -> bool:
        """Whether the recomputed mu is at most the requested one."""
        return self.reached is not None and self.reached <= self.mu * (1 + CLOSE)

    @property
    def words(self) -> str:
        """The text of a table cell."""
        if self.factor == math.inf:
            return "no level of this noise suffices"
        if not self.factor:
            return "none needed"
        ranges = [f"{name} {_range(low, high)}" for name, (low, high) in self.noise.items()]
        scaled = f"x{self.factor:.4g}"
        if not self.holds:
            scaled += ", not confirmed"
        return f"{', '.join(ranges)} ({scaled})"

    def to_json(self) -> dict[str, Json]:
        """Plain values; infinity is the text ``inf``."""
        return {
            "epsilon": encoded(self.epsilon),
            "delta": self.delta,
            "factor": encoded(self.factor),
            "noise": dict(self.noise),
            "mu": encoded(self.mu),
            "reached": encoded(self.reached),
            "leaking": list(self.leaking),
            "holds": self.holds,
        }


@once
def _confirmed(protocol: Protocol) -> list[float]:
    """Return the factors that were found to divide mu of a protocol; `calibrate` adds the first."""
    return []


def calibrate(
    protocol: Protocol,
    threat: Threat,
    found: ViewBound,
    epsilon: float,
    delta: float,
    smoothness: float | None,
) -> Calibration | None:
    """Return the noise that makes this view (epsilon, delta)-DP; None if there is no mu."""
    if found.mu is None:
        return None
    wanted = _mu(epsilon, delta)
    if found.mu == math.inf or (not wanted and found.mu):
        return Calibration(epsilon, delta, math.inf, {}, wanted, None, found.leaking)
    if not found.mu:
        silent = _noise(protocol.start, threat.node, 0.0)
        return Calibration(epsilon, delta, 0.0, silent, wanted, 0.0)
    factor = found.mu / wanted
    noise = _noise(protocol.start, threat.node, factor)
    if not factor:  # any mu is allowed, by a delta of 1 or more
        return Calibration(epsilon, delta, factor, noise, wanted, 0.0)
    reached: float | None = found.mu / factor
    if not _confirmed(protocol):
        reached = _reached(protocol, threat, found, factor, delta, smoothness)
        if reached is not None and math.isclose(reached, found.mu / factor, rel_tol=CLOSE):
            _confirmed(protocol).append(factor)
            reached = found.mu / factor  # whichever view comes first, also in another process
    return Calibration(epsilon, delta, factor, noise, wanted, reached)


def _reached(
    protocol: Protocol,
    threat: Threat,
    found: ViewBound,
    factor: float,
    delta: float,
    smoothness: float | None,
) -> float | None:
    scaled = replace(protocol, victim=cast(Victim, _ScaledNoise(protocol.victim, factor)))
    (again,) = view_bounds(
        scaled,
        threat.adversary,
        [threat.node],
        found.sensitivity,
        delta or found.delta,
        smoothness,
    )
    return again.mu


def _mu(epsilon: float, delta: float) -> float:
    """Return the largest mu that (epsilon, delta)-DP allows; Gaussian noise has no delta of 0."""
    if delta == 0:
        return 0.0
    if not 0 < delta < 1:
        return math.inf
    return gaussian.least_mu(epsilon, delta)


def _noise(declared: Relations, node: int, factor: float) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest standard deviation of each noise, scaled."""
    noise = [vector for vector in declared.vectors if vector.kind == "noise"]
    own = [vector for vector in noise if vector.owner == node]
    stds = defaultdict[str, list[float]](list)
    for vector in own or noise:
        stds[vector.name].append(vector.std * factor)
    ranges = {}
    for name, scaled in stds.items():
        ranges[name] = (min(scaled), max(scaled))
    return ranges


def _range(low: float, high: float) -> str:
    if math.isclose(low, high, rel_tol=EQUAL):
        return f"{low:.4g}"
    return f"{low:.4g} to {high:.4g}"
