"""Training loops of the user's own: the constants that the lint reads by their usual names, and what follows from them.

sigma is the standard deviation per coordinate on a sum of clipped gradients; noise_multiplier is sigma over the clip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from leakaudit.bounds import gaussian
from leakaudit.bounds.guarantee import Adjacency
from leakaudit.trace import Json, Trace
from leakaudit.verdict import Verdict
from leakaudit.victim import Claim

WORDS = {
    "epsilon": ("epsilon", "eps", "target_epsilon"),
    "delta": ("delta", "target_delta"),
    "sigma": ("sigma", "noise_std", "std"),
    "multiplier": ("noise_multiplier",),
    "clip": ("clip", "max_grad_norm", "l2_norm_clip", "clipping_bound"),
    "rate": ("sampling_rate", "sample_rate", "q"),
    "rounds": ("horizon", "claimed_rounds"),
}


def number(params: Mapping[str, Json], what: str) -> float | None:
    """Return a constant by any of its usual names, None where there is none that is a finite number."""
    for name in WORDS[what]:
        value = params.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def noise(params: Mapping[str, Json]) -> float:
    """Return the declared noise per coordinate, 0 where there is none."""
    sigma, multiplier, clip = (number(params, n) for n in ("sigma", "multiplier", "clip"))
    return sigma if sigma is not None else (multiplier or 0.0) * (clip or 0.0)


def adjacency(text: str) -> Adjacency | None:
    """Read an adjacency from the words of a claim, None where they name none."""
    said = text.lower().replace("_", " ").replace("-", " ")
    if (
        any(w in said for w in ("node's clipped", "node level", "all records", "user level"))
        or said == "node"
    ):
        return Adjacency.NODE
    if any(w in said for w in ("add", "remove")):
        return Adjacency.ADD_REMOVE
    if any(w in said for w in ("empty", "zero")):
        return Adjacency.ZERO_OUT
    return (
        Adjacency.REPLACE
        if any(w in said for w in ("replace", "another", "differs", "substitut", "any other"))
        else None
    )


def claims(trace: Trace) -> tuple[Claim, ...]:
    """Return what the recorded constants promise: an epsilon and a delta, over `horizon` rounds or all."""
    epsilon, delta, rounds = (number(trace.params, n) for n in ("epsilon", "delta", "rounds"))
    if not epsilon or epsilon < 0 or not 0 <= (delta or 0.0) < 1:
        return ()
    return (
        Claim(
            source="the recorded constants",
            promise="everything that is sent is differentially private",
            epsilon=epsilon,
            delta=delta or 0.0,
            adjacency=str(trace.params.get("adjacency", "")),
            std=noise(trace.params) or None,
            rounds=None if rounds is None else int(rounds),
            sampled=0 < (number(trace.params, "rate") or 1.0) < 1,
        ),
    )


@dataclass(frozen=True)
class Costs:
    """Epsilons of Gaussian noise on clipped gradients at the claim's delta: charged as claimed, and otherwise. alone: of one round."""

    all: float
    alone: float
    added: float


def costs(trace: Trace, claim: Claim) -> Costs | None:
    """Return what T rounds cost, sqrt(T) clip / sigma, twice the clip for a replaced record; None where a constant is missing."""
    clip, std = number(trace.params, "clip"), noise(trace.params)
    if not clip or not std or not claim.delta or trace.rounds < 1:
        return None
    times = 2.0 if adjacency(claim.adjacency) in (Adjacency.REPLACE, Adjacency.NODE) else 1.0
    mu = times * clip / std

    def epsilon(mu: float) -> float:
        return gaussian.epsilon(claim.delta or 0.0, mu)

    total = math.sqrt(trace.rounds)
    return Costs(epsilon(total * mu), epsilon(mu), epsilon(total * mu / times))


def odd(params: Mapping[str, Json]) -> Iterator[tuple[int, Verdict, str]]:
    """Yield what a claim of clipped gradients does not cover: momentum, several local steps, a seed in the open."""
    for name in ("momentum", "weight_decay"):
        if isinstance(params.get(name), int | float) and params[name]:
            yield (
                5,
                Verdict.UNSUPPORTED,
                f"{name}={params[name]:g} carries a record into later messages; the clip bounds one gradient alone",
            )
    steps = next(
        (params[n] for n in ("local_steps", "local_epochs") if isinstance(params.get(n), int)), 1
    )
    if steps > 1:
        yield (
            5,
            Verdict.UNSUPPORTED,
            f"{steps} local steps a message: what is sent moves by up to {steps} clipped gradients, and by their drift",
        )
