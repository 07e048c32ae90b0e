"""The noise that an epsilon requires."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from leakaudit._util.bisection import crossing, geometric
from leakaudit._util.once import once
from leakaudit._util.plain import encoded
from leakaudit.core.trace import Graph, Json
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.victim import Victim
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.bounds.guarantee import Adjacency, Guarantee
from leakaudit.theory.bounds.releases import Release, composed
from leakaudit.theory.relations import Relations, Turns
from leakaudit.views.accounting.adversaries import Threat
from leakaudit.views.accounting.view_bound import ViewBound, view_bounds

# mu is inversely proportional to the scale of all Gaussian noise, so one view bound yields all
# others; releases of other noise are composed again with scaled noise. This is confirmed once for
# each protocol, by recomputing a bound with scaled noise.

# Largest relative difference between the requested mu and the mu recomputed at the recommended
# noise: a choice, far above the rounding error of a view bound, far below the effect of another
# noise that is not scaled.
CLOSE = 1e-6
FARTHEST = 1e9  # largest factor of noise that is tried for releases without a mu, and its inverse
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
                std, width = vector.std * self.factor, vector.width * self.factor
                declared.vectors[k] = replace(vector, std=std, width=width)
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
    # the mu that the epsilon allows; None if the noise has no mu
    mu: float | None
    # mu at that noise, confirmed by recomputing it for the first view of a protocol; epsilon if the
    # noise has no mu
    reached: float | None
    leaking: tuple[str, ...] = ()  # combinations that none of these noises hides

    @property
    def holds(self) -> bool:
        """Whether the recomputed mu, or epsilon, is at most the requested one."""
        allowed = self.epsilon if self.mu is None else self.mu
        return self.reached is not None and self.reached <= allowed * (1 + CLOSE)

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
    if found.releases:
        return _by_release(protocol, threat, found, epsilon, delta, smoothness)
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


def _by_release(
    protocol: Protocol,
    threat: Threat,
    found: ViewBound,
    epsilon: float,
    delta: float,
    smoothness: float | None,
) -> Calibration:
    factor = _least_factor(found.releases, epsilon, delta)
    if factor == math.inf:
        return Calibration(epsilon, delta, factor, {}, None, None)
    noise = _noise(protocol.start, threat.node, factor)
    reached: float | None = _scaled(found.releases, factor).epsilon(delta)
    if factor and not _confirmed(protocol):
        again = _recomputed(protocol, threat, found, factor, delta, smoothness).guarantee
        confirmed = again is not None and math.isclose(
            again.epsilon(delta), reached or 0.0, rel_tol=CLOSE, abs_tol=CLOSE
        )
        if confirmed:
            _confirmed(protocol).append(factor)
        else:
            reached = None
    return Calibration(epsilon, delta, factor, noise, None, reached)


def required_factor(found: ViewBound, epsilon: float, delta: float) -> float | None:
    """Return the factor on all noise at which a record, or else the node, has an epsilon.

    It is inf if none suffices, and None if there is no bound.
    """
    mu = found.mu if found.mu is not None else found.node_mu
    releases = found.releases or found.node_releases
    if found.mu is None and releases:
        return _least_factor(releases, epsilon, delta)
    if mu is None:
        return None
    return mu / gaussian.least_mu(epsilon, delta)


def _least_factor(releases: Sequence[Release], epsilon: float, delta: float) -> float:
    """Return the least factor on all noise at which releases are (epsilon, delta)-DP, rounded up.

    It is 0 if none is needed, and inf if none up to `FARTHEST` suffices.
    """

    def enough(factor: float) -> bool:
        return _scaled(releases, factor).delta(epsilon) <= delta

    if not enough(FARTHEST):
        return math.inf
    if enough(1 / FARTHEST):
        return 0.0
    high = 1.0
    while not enough(high):
        high *= 4
    low = high / 4
    while low > 1 / FARTHEST and enough(low):
        high = low
        low = high / 4
    return crossing(enough, low, high, side="above", middle=geometric, tolerance=EQUAL)


def _scaled(releases: Sequence[Release], factor: float) -> Guarantee:
    """Return the guarantee of releases if all noise is multiplied by a factor."""
    made = []
    for one in releases:
        noise = one.noise
        noise = replace(noise, scale=noise.scale * factor, width=noise.width * factor)
        made.append(replace(one, noise=noise))
    return composed(tuple(made), Adjacency.REPLACE)


def _reached(
    protocol: Protocol,
    threat: Threat,
    found: ViewBound,
    factor: float,
    delta: float,
    smoothness: float | None,
) -> float | None:
    return _recomputed(protocol, threat, found, factor, delta, smoothness).mu


def _recomputed(
    protocol: Protocol,
    threat: Threat,
    found: ViewBound,
    factor: float,
    delta: float,
    smoothness: float | None,
) -> ViewBound:
    """Return the bound of a view with all noise multiplied by a factor."""
    scaled = replace(protocol, victim=cast(Victim, _ScaledNoise(protocol.victim, factor)))
    (again,) = view_bounds(
        scaled,
        threat.adversary,
        [threat.node],
        found.sensitivity,
        delta or found.delta,
        smoothness,
    )
    return again


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
