"""Training loops of users: their constants are read by the usual names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from leakaudit._util.plain import is_number
from leakaudit.core.claim import Adjacency, Claim
from leakaudit.core.trace import Trace
from leakaudit.core.verdict import Verdict
from leakaudit.views.conformance.pitfall import Pitfall

# sigma is the standard deviation per coordinate of the noise on a sum of clipped gradients;
# noise_multiplier is sigma divided by the clip.

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


def gaussian_mus(trace: Trace, claim: Claim) -> tuple[float, float] | None:
    """Return the mu of Gaussian noise on clipped gradients, of all rounds T and of one.

    For linear losses, these are sqrt(T) clip / sigma and clip / sigma, twice as much if a record is
    replaced. None if a constant is missing.
    """
    clip = number(trace.params, "clip")
    std = noise(trace.params)
    if not clip or not std or trace.rounds < 1:
        return None
    mu = changes(claim) * clip / std
    return math.sqrt(trace.rounds) * mu, mu


def changes(claim: Claim) -> float:
    """Return by how many clipped gradients a sum changes in the adjacency of a claim."""
    return 2.0 if claim.neighbours in (Adjacency.REPLACE, Adjacency.NODE) else 1.0


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
