"""Exact attacks on mini-batches: every round by itself, and what they recover together.

If each round uses other records, the gradients of several rounds have no common batch. But an exact
attack that needs a single gradient can take them one at a time, and every record that was drawn in
one of these rounds comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from leakaudit.leak import GradientLeak
from leakaudit.progress import expired, step
from leakaudit.reconstruction import Certificate, Reconstruction

# Rounds in a row without a certified input after which no other is tried. A choice: rounds differ
# by their records, and an attack that fails at three batches usually fails at all of them.
PATIENCE = 3

Attempt = Callable[[GradientLeak], Reconstruction]


def applies(leak: GradientLeak) -> bool:
    """Whether the rounds of a leak use different records, and each has an equation of its own.

    Args:
        leak: Gradients of one node.
    """
    if leak.steady or leak.gaps:
        return False
    return bool((leak.combination.count_nonzero(dim=1) == 1).any())


def attack(leak: GradientLeak, attempt: Attempt) -> Reconstruction:
    """Attack all rounds together, then one by one until all records are found.

    Args:
        leak: Gradients of one node, to which `applies`.
        attempt: Runs an exact attack.

    Returns:
        The union of the inputs that are certified in any round; if none is, the best result.
    """
    best = _counted(attempt(leak))
    if best.certified == leak.records or best.tokens is not None:
        return best
    alone = (leak.combination.count_nonzero(dim=1) == 1).nonzero().flatten().tolist()
    certified = best if best.certified else None
    tried: list[Reconstruction] = []
    missed = 0
    for done, k in enumerate(alone):
        step("rounds", done, len(alone))
        found = _counted(attempt(leak.equation(k)))
        tried.append(found)
        if _rank(found) > _rank(best):
            best = found
        if found.certified:
            certified = _union(certified, found)
        missed = 0 if found.certified else missed + 1
        complete = certified is not None and certified.certified == leak.records
        if complete or missed == PATIENCE or expired():
            break
    step("rounds", len(alone), len(alone))
    if certified is None:
        return best
    whole = sum(one.certificate is Certificate.EXACT for one in tried)
    records = "" if leak.records is None else f" of {leak.records}"
    note = (
        f"{certified.certified}{records} records certified, from {len(tried)} rounds of "
        f"mini-batches, each by itself; in {whole} of them, the whole batch"
    )
    reasons = [one.note for one in tried if one.certificate is not Certificate.EXACT]
    everything = not reasons or certified.certified == leak.records
    return replace(
        certified,
        certificate=Certificate.EXACT if everything else Certificate.APPROXIMATE,
        residual=max(one.residual for one in (certified, *tried) if one.certified),
        note="; ".join([note, *reasons[:1]]),
        interval=None,
        choices={},
    )


def _counted(found: Reconstruction) -> Reconstruction:
    """Count the inputs of an exact reconstruction as certified one by one."""
    if found.certificate is Certificate.EXACT:
        return replace(found, certified=len(found.x))
    return found


def _rank(found: Reconstruction) -> tuple[int, bool, int]:
    return found.certified, found.certificate is not Certificate.FAILED, len(found.x)


def _union(known: Reconstruction | None, found: Reconstruction) -> Reconstruction:
    """Add the certified inputs of a round to those that are known, each once."""
    x = found.x[: found.certified]
    y = None if found.y is None else found.y[: found.certified]
    if known is None:
        known = replace(found, x=x[:0], y=None if y is None else y[:0], certified=0)
    kept = known.x[: known.certified]
    labels = None if known.y is None else known.y[: known.certified]
    new = torch.tensor([not bool((kept == one).flatten(1).all(1).any()) for one in x])
    # A label that one round does not show leaves all unknown: y has an entry for every input.
    both = None if y is None or labels is None else torch.cat([labels, y[new]])
    together = torch.cat([kept, x[new]])
    return replace(known, x=together, y=both, certified=len(together))
