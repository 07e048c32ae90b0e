"""What the messages themselves show: who sends when, what was not declared, and numbers too coarse to hold noise."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom

from leakaudit.lint import loops
from leakaudit.lint.case import Case
from leakaudit.lint.pitfall import Pitfall
from leakaudit.verdict import Verdict

LEVEL = 1e-5  # chance of a false alarm
WIDE, DISTINCT = (
    256,
    0.5,
)  # coordinates from which on distinct values are counted, and their least share under continuous noise
LOOKED, PART = 64, 1 << 16  # payloads that are looked at, and how much of one
Key = tuple[int, int, int, str]


def check(case: Case) -> Iterator[Pitfall]:
    """Yield what the index and the bits of the messages show."""
    sent = _sent(case)
    yield from _undeclared(case, sent)
    yield from _twice(case, sent)
    yield from _participation(case, sent)
    if case.laws:
        yield from _coarse(case)
    if case.protocol is None and loops.noise(case.params):
        yield from _equal(case)


def _sent(case: Case) -> Counter[Key]:
    """Count messages by (round, src, dst, kind)."""
    found = Counter[Key]()
    for m in case.trace.messages:
        columns = (c.tolist() for c in (m.round, m.src, m.dst, m.kind))
        found.update((t, i, j, m.kinds[k]) for t, i, j, k in zip(*columns, strict=True))
    return found


def _undeclared(case: Case, sent: Counter[Key]) -> Iterator[Pitfall]:
    """Find messages that the protocol, at these constants and this schedule, does not send."""
    if case.relations is None:
        return
    allowed = set[Key]()
    for v in case.relations.vectors:
        if v.kind == "message" and v.owner is not None:
            allowed |= {
                (v.round, v.owner, j, v.name)
                for j in (range(case.trace.graph.nodes) if v.dst is None else v.dst)
            }
    extra = sorted(key for key in sent if key not in allowed and key[0] <= case.relations.round)
    if extra:
        t, i, j, kind = extra[0]
        says = (
            f"{len(extra)} of {len(sent)} messages are not of the declared protocol; the first is {kind!r} {i} -> {j} in round {t}: "
            "participation, schedule or rounds are not as declared"
        )
        yield Pitfall(
            7,
            case.broken,
            says,
            {"undeclared": len(extra), "messages": len(sent), "first": [t, i, j, kind]},
        )


def _twice(case: Case, sent: Counter[Key]) -> Iterator[Pitfall]:
    again = sorted(key for key, count in sent.items() if count > 1)
    if again:
        t, i, j, kind = again[0]
        says = f"{len(again)} messages were sent more than once, the first is {kind!r} {i} -> {j} in round {t}: each is a release of its own"
        yield Pitfall(1, case.broken, says, {"repeated": len(again), "first": [t, i, j, kind]})


def _participation(case: Case, sent: Counter[Key]) -> Iterator[Pitfall]:
    """Judge claims that rest on sampling, where it is nodes that are sampled and the trace shows which."""
    rate, rounds = loops.number(case.params, "rate"), sorted({key[0] for key in sent})
    if case.protocol is not None or not rate or rate >= 1 or not rounds:
        return
    counts = [len({i for t, i, _, _ in sent if t == r}) for r in rounds]
    n = case.trace.graph.nodes
    if max(counts) == n and min(counts) == n:
        return
    if (claim := next((c for c in case.claims if c.sampled), None)) is not None:
        costs = loops.costs(case.trace, claim)
        if costs is not None and costs.all > (claim.epsilon or 0.0) * (1 + 1e-6):
            says = (
                f"the claimed epsilon {claim.epsilon:.4g} credits sampling at rate {rate:g}, but the wire shows which {min(counts)} to "
                f"{max(counts)} of {n} nodes take part in a round; without that credit it is {costs.all:.4g}"
            )
            yield Pitfall(
                7,
                Verdict.UNSUPPORTED,
                says,
                {
                    "rate": rate,
                    "claimed": claim.epsilon,
                    "epsilon": costs.all,
                    "participants": counts,
                },
            )
    alike = float(np.sum(binom.pmf(np.arange(n + 1), n, rate) ** len(counts)))
    if len(set(counts)) == 1 and alike < LEVEL:
        says = (
            f"{counts[0]} of {n} nodes take part in each of {len(counts)} rounds; Poisson sampling at rate {rate:g} gives equal numbers "
            f"with chance {alike:.1g}"
        )
        yield Pitfall(
            9,
            Verdict.REFUTED if case.claims else Verdict.UNCLAIMED,
            says,
            {"participants": counts[0], "chance": alike},
        )


def _coarse(case: Case) -> Iterator[Pitfall]:
    """Find half precision, and messages with few distinct values, under noise that is declared continuous."""
    if case.trace.dtype in (torch.float16, torch.bfloat16):
        name = str(case.trace.dtype).removeprefix("torch.")
        says = f"messages are {name}: noise in it has gaps and a largest value, which depend on the signal"
        yield Pitfall(10, case.broken, says, {"dtype": name})
        return
    loud = _loud(case)
    for m in case.trace.messages:
        for at in range(0, len(m), max(1, len(m) // LOOKED)):
            values = m.payload[int(m.row[at])][:PART]
            if (loud is not None and m.kinds[int(m.kind[at])] not in loud) or bool(
                values.isnan().any()
            ):
                continue
            if (
                values.numel() >= WIDE
                and (share := len(values.unique()) / values.numel()) < DISTINCT
            ):
                says = f"a message of {values.numel()} numbers has {share:.1%} distinct ones: no continuous noise is on it"
                yield Pitfall(
                    10, case.broken, says, {"distinct": share, "coordinates": values.numel()}
                )
                return


def _loud(case: Case) -> frozenset[str] | None:
    """Return the kinds of messages to which noise is added as they are sent, None where nothing is declared."""
    if case.relations is None:
        return None
    vectors, relations = case.relations.vectors, case.relations.relations
    made = case.relations.sent.items()
    return frozenset(
        vectors[k].name
        for k, r in made
        if any(vectors[j].kind == "noise" for j in relations[r].terms)
    )


def _equal(case: Case) -> Iterator[Pitfall]:
    """Find messages of different rounds, or of different nodes, that are equal bit for bit, where every one should bear noise."""
    seen: dict[bytes, tuple[int, int]] = {}
    for m in case.trace.messages:
        first: NDArray[np.int64]
        rows, first = np.unique(m.row.numpy(), return_index=True)
        for row, at in zip(rows.tolist(), first.tolist(), strict=True):
            payload, key = m.payload[row], (int(m.round[at]), int(m.src[at]))
            if not bool(payload.any()) or payload.numel() < 2:
                continue
            other = seen.setdefault(
                hashlib.blake2b(payload.contiguous().view(torch.uint8).numpy().tobytes()).digest(),
                key,
            )
            if other != key:
                where = f"round {other[0]} of node {other[1]}"
                says = f"round {key[0]} of node {key[1]} repeats the message of {where} bit for bit, noise included"
                yield Pitfall(6, case.broken, says, {"first": list(other), "again": list(key)})
                return
