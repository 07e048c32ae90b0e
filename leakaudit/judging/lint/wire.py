"""Findings from the messages themselves: participation, undeclared messages, coarse numbers."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakaudit._util.plain import Figures
from leakaudit.core.verdict import Verdict
from leakaudit.theory.bounds import gaussian
from leakaudit.views.conformance import loops
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.pitfall import MORE, Pitfall
from leakaudit.views.messages import MessageKey, keys, undeclared

LEVEL = 1e-5  # false-positive rate: a choice
# Of 65,536 normal numbers in float32, about 30 repeat another one, so under continuous noise almost
# all are distinct; on a coarse grid most are not. The thresholds in between are choices.
WIDE = 256  # smallest size of a payload whose distinct numbers are counted
DISTINCT = 0.5  # smallest fraction of distinct numbers under continuous noise
LOOKED = 64  # number of payloads per table that are examined: a choice that limits the time
PART = 1 << 16  # how many numbers of a payload are examined: likewise


def check(case: Case) -> Iterator[Pitfall]:
    """Yield findings from the index and the content of the messages."""
    sent = Counter(itertools.chain.from_iterable(map(keys, case.trace.messages)))
    yield from _undeclared(case, sent)
    yield from _twice(case, sent)
    yield from _participation(case, sent)
    if case.laws:
        yield from _coarse(case)
    if case.protocol is None and loops.noise(case.params):
        yield from _equal(case)


def _undeclared(case: Case, sent: Counter[MessageKey]) -> Iterator[Pitfall]:
    if case.relations is None:
        return
    early = [key for key in sent if key.round <= case.relations.round]
    extra = undeclared(early, case.relations.vectors)
    if extra:
        t, i, j, kind = min(extra)
        says = (
            f"{len(extra)} of {len(sent)} messages do not belong to the declared protocol; "
            f"the first is {kind!r} {i} -> {j} in round {t}: "
            "participation, schedule or rounds differ from the declaration"
        )
        figures: Figures = {
            "undeclared": len(extra),
            "messages": len(sent),
            "first": [t, i, j, kind],
        }
        yield Pitfall(7, case.broken, says, figures)


def _twice(case: Case, sent: Counter[MessageKey]) -> Iterator[Pitfall]:
    again = [key for key, count in sent.items() if count > 1]
    if again:
        t, i, j, kind = min(again)
        says = (
            f"{len(again)} messages were sent more than once, the first of them {kind!r} "
            f"{i} -> {j} in round {t}: every transmission is a separate release"
        )
        yield Pitfall(1, case.broken, says, {"repeated": len(again), "first": [t, i, j, kind]})


def _participation(case: Case, sent: Counter[MessageKey]) -> Iterator[Pitfall]:
    """Check claims that rely on sampling, if the trace shows which nodes were sampled."""
    rate = loops.number(case.params, "rate")
    if case.protocol is not None or not rate or rate >= 1 or not sent:
        return
    senders: dict[int, set[int]] = {}
    for key in sent:
        senders.setdefault(key.round, set()).add(key.src)
    counts = [len(senders[round_]) for round_ in sorted(senders)]
    nodes = case.trace.graph.nodes
    if set(counts) == {nodes}:
        return
    yield from _credited(case, counts, rate)
    yield from _not_poisson(case, counts, rate)


def _credited(case: Case, counts: list[int], rate: float) -> Iterator[Pitfall]:
    """Find a claim that credits visible sampling; counts are the numbers of senders per round."""
    claim = next((claim for claim in case.claims if claim.sampled), None)
    if claim is None:
        return
    mus = loops.gaussian_mus(case.trace, claim)
    if mus is None or not claim.delta:
        return
    epsilon = gaussian.epsilon(claim.delta, mus[0])
    if not epsilon > (claim.epsilon or 0.0) * MORE:
        return
    says = (
        f"the claimed epsilon {claim.epsilon:.4g} credits sampling at rate {rate:g}, but the "
        f"messages show which {min(counts)} to {max(counts)} of {case.trace.graph.nodes} nodes "
        f"participate in a round; without that credit it is {epsilon:.4g}"
    )
    figures: Figures = {
        "rate": rate,
        "claimed": claim.epsilon,
        "epsilon": epsilon,
        "participants": counts,
    }
    yield Pitfall(7, Verdict.UNSUPPORTED, says, figures)


def _not_poisson(case: Case, counts: list[int], rate: float) -> Iterator[Pitfall]:
    from scipy.stats import binom  # slow to import

    nodes = case.trace.graph.nodes
    of_one_round = binom.pmf(np.arange(nodes + 1), nodes, rate)
    alike = float(np.sum(of_one_round ** len(counts)))
    if len(set(counts)) == 1 and alike < LEVEL:
        says = (
            f"{counts[0]} of {nodes} nodes participate in each of {len(counts)} rounds; Poisson "
            f"sampling at rate {rate:g} gives equal numbers with probability {alike:.1g}"
        )
        verdict = Verdict.REFUTED if case.claims else Verdict.UNCLAIMED
        yield Pitfall(9, verdict, says, {"participants": counts[0], "chance": alike})


def _coarse(case: Case) -> Iterator[Pitfall]:
    """Find half precision, and messages with few distinct values, under continuous noise."""
    if case.trace.dtype in (torch.float16, torch.bfloat16):
        name = str(case.trace.dtype).removeprefix("torch.")
        says = (
            f"messages are {name}: noise in this format has gaps and a largest value that "
            "depend on the signal"
        )
        yield Pitfall(10, case.broken, says, {"dtype": name})
        return
    for values in _noisy_payloads(case):
        share = len(values.unique()) / values.numel()
        if share < DISTINCT:
            says = (
                f"only {share:.1%} of the {values.numel()} numbers of a message are distinct: "
                "it does not contain continuous noise"
            )
            figures: Figures = {"distinct": share, "coordinates": values.numel()}
            yield Pitfall(10, case.broken, says, figures)
            return


def _noisy_payloads(case: Case) -> Iterator[Tensor]:
    kinds = _noisy_kinds(case)
    for m in case.trace.messages:
        for at in range(0, len(m), max(1, len(m) // LOOKED)):
            values = m.payload[int(m.row[at])][:PART]
            noisy = kinds is None or m.kinds[int(m.kind[at])] in kinds
            if noisy and values.numel() >= WIDE and not bool(values.isnan().any()):
                yield values


def _noisy_kinds(case: Case) -> frozenset[str] | None:
    """Return the kinds of messages to which noise is added when they are sent.

    None if nothing is declared.
    """
    if case.relations is None:
        return None
    vectors = case.relations.vectors
    relations = case.relations.relations
    found: set[str] = set()
    for message, made_by in case.relations.sent.items():
        if any(vectors[k].kind == "noise" for k in relations[made_by].terms):
            found.add(vectors[message].name)
    return frozenset(found)


def _equal(case: Case) -> Iterator[Pitfall]:
    """Find equal messages of different rounds or nodes, although each should contain noise."""
    seen: dict[bytes, tuple[int, int]] = {}
    for m in case.trace.messages:
        first: NDArray[np.int64]
        rows, first = np.unique(m.row.numpy(), return_index=True)
        for row, at in zip(rows.tolist(), first.tolist(), strict=True):
            payload = m.payload[row]
            if not bool(payload.any()) or payload.numel() < 2:
                continue
            key = (int(m.round[at]), int(m.src[at]))
            other = seen.setdefault(_digest(payload), key)
            if other != key:
                says = (
                    f"round {key[0]} of node {key[1]} repeats the message of round {other[0]} of "
                    f"node {other[1]} bit for bit, noise included"
                )
                yield Pitfall(6, case.broken, says, {"first": list(other), "again": list(key)})
                return


def _digest(payload: Tensor) -> bytes:
    raw = payload.contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(raw).digest()
