"""Training loops of users: their constants are read by the usual names.

sigma is the standard deviation per coordinate of the noise on a sum of clipped gradients;
noise_multiplier is sigma divided by the clip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from leakaudit._util.plain import is_number
from leakaudit.core.claim import Adjacency, Claim
from leakaudit.core.trace import Trace
from leakaudit.core.verdict import Verdict
from leakaudit.theory.bounds import gaussian
from leakaudit.views.conformance.pitfall import Pitfall

NAMES = {  # constant -> its usual names; the first one that is recorded counts
    "epsilon": ("epsilon", "eps", "target_epsilon"),
    "delta": ("delta", "target_delta"),
    "sigma": ("sigma", "noise_std", "std"),
    "multiplier": ("noise_multiplier",),
    "clip": ("clip", "max_grad_norm", "l2_norm_clip", "clipping_bound"),
    "rate": ("sampling_rate", "sample_rate", "q"),
    "rounds": ("horizon", "claimed_rounds"),
}

# Words with which users and plug-ins name an adjacency; the first match decides, so the narrower
# meanings come first.
WORDS = (
    (Adjacency.NODE, ("node's clipped", "node level", "all records", "user level")),
    (Adjacency.ADD_REMOVE, ("add", "remove")),
    (Adjacency.ZERO_OUT, ("empty", "zero")),
    (Adjacency.REPLACE, ("replace", "another", "differs", "substitut", "any other")),
)


def number(params: Mapping[str, object], what: str) -> float | None:
    """Return a constant by any of its usual names.

    Returns:
        Its value; None if there is no finite number under these names.
    """
    for name in NAMES[what]:
        value = params.get(name)
        if is_number(value):
            return float(value)
    return None


def noise(params: Mapping[str, object]) -> float:
    """Return the declared standard deviation per coordinate."""
    sigma = number(params, "sigma")
    if sigma is not None:
        return sigma
    multiplier = number(params, "multiplier") or 0.0
    clip = number(params, "clip") or 0.0
    return multiplier * clip


def named_adjacency(text: str) -> Adjacency | None:
    """Interpret an adjacency that a user or a plug-in gave in words.

    Bundled victims give theirs as a value (`Claim.neighbours`), which is never derived from words.

    Args:
        text: The words, such as the constant ``adjacency`` of a user's loop.

    Returns:
        The adjacency; None if the words do not name one.
    """
    said = text.lower().replace("_", " ").replace("-", " ")
    if said == "node":
        return Adjacency.NODE
    for meant, words in WORDS:
        if any(word in said for word in words):
            return meant
    return None


def claims(trace: Trace) -> tuple[Claim, ...]:
    """Return the claim of the constants: epsilon and delta over `horizon` or all rounds."""
    params = trace.params
    epsilon = number(params, "epsilon")
    delta = number(params, "delta") or 0.0
    if not epsilon or epsilon < 0 or not 0 <= delta < 1:
        return ()
    rounds = number(params, "rounds")
    rate = number(params, "rate") or 1.0
    words = str(params.get("adjacency", ""))
    claim = Claim(
        source="the recorded constants",
        promise="everything that is sent is differentially private",
        epsilon=epsilon,
        delta=delta,
        adjacency=words,
        neighbours=named_adjacency(words),
        std=noise(params) or None,
        rounds=None if rounds is None else int(rounds),
        sampled=0 < rate < 1,
    )
    return (claim,)


@dataclass(frozen=True)
class RunEpsilon:
    """The epsilon of a run at the delta of its claim, for linear losses."""

    all: float  # epsilon of all rounds, under the claimed adjacency
    one: float  # epsilon of one round
    added: float  # epsilon of all rounds, if a record is added or removed
    leaking: tuple[str, ...] = ()  # names of gradients that are sent without noise


def costs(trace: Trace, claim: Claim) -> RunEpsilon | None:
    """Return the epsilon of Gaussian noise on clipped gradients.

    Over T rounds, mu = sqrt(T) clip / sigma.

    Returns:
        The costs; None if a constant is missing.
    """
    clip = number(trace.params, "clip")
    std = noise(trace.params)
    if not clip or not std or not claim.delta or trace.rounds < 1:
        return None
    delta = claim.delta
    times = 1.0
    if claim.neighbours in (Adjacency.REPLACE, Adjacency.NODE):
        times = 2.0
    mu = times * clip / std
    total = math.sqrt(trace.rounds)
    return RunEpsilon(
        all=gaussian.epsilon(delta, total * mu),
        one=gaussian.epsilon(delta, mu),
        added=gaussian.epsilon(delta, total * mu / times),
    )


def uncovered(params: Mapping[str, object]) -> Iterator[Pitfall]:
    """Yield findings for momentum, weight decay and local steps, which the clip does not cover."""
    for name in ("momentum", "weight_decay"):
        value = params.get(name)
        if isinstance(value, int | float) and value:
            says = (
                f"{name}={value:g} carries a record into later messages; "
                "the clip bounds only one gradient"
            )
            yield Pitfall(5, Verdict.UNSUPPORTED, says)
    steps = _local_steps(params)
    if steps > 1:
        says = (
            f"{steps} local steps per message: a record changes the message by up to {steps} "
            "clipped gradients and their drift"
        )
        yield Pitfall(5, Verdict.UNSUPPORTED, says)


def _local_steps(params: Mapping[str, object]) -> int:
    for name in ("local_steps", "local_epochs"):
        value = params.get(name)
        if isinstance(value, int):
            return value
    return 1
