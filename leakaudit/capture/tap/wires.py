"""From the logs of a program to what its protocol declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from leakaudit.capture.tap.arranged import Missing, Plan
from leakaudit.capture.tap.description import Description
from leakaudit.capture.tap.log import LEFT_OUT
from leakaudit.capture.tap.peers import peers
from leakaudit.capture.tap.reading import RankLog
from leakaudit.capture.tap.star import star
from leakaudit.capture.tap.streams import Message, assemble
from leakaudit.errors import LeakauditError

SPARSE = 10  # rounds a message, above which a log is not believed


def latest(logs: Iterable[RankLog]) -> list[RankLog]:
    """Return each rank's last process: a rank that was started again began anew."""
    return list(
        {log.rank: log for log in sorted(logs, key=lambda log: (log.rank, log.attempt))}.values()
    )


def plan(description: Description, logs: Sequence[RankLog]) -> Plan:
    """Arrange a log as its description says.

    Raises LeakauditError where nothing in it has the model's size, or the protocol's kinds cannot be told apart.
    """
    streams = assemble(
        latest(logs), description.sizes, description.tags, by_tag=bool(description.kinds)
    )
    found = [m for m in streams if m.op != "recv"]
    heard = {(m.src, m.dst) for m in found if m.kept}
    found += [m for m in streams if m.op == "recv" and (m.src, m.dst) not in heard]
    if not found:
        others = (
            ", ".join(f"{n} {what}" for what, n in streams.others.most_common(3))
            or "nothing at all"
        )
        raise LeakauditError(
            f"no message has the size of the model, {description.task.layout.size} numbers in one tensor or one tensor a parameter; "
            f"heard were {others}; describe the model that was trained, or its order of parameters"
        )
    nodes = 1 + max(max(m.src, -1 if m.dst is None else m.dst) for m in found)
    nodes = max(nodes, *(_count(log) for log in logs))
    arranged = (star if description.victim.centralised else peers)(description, found, nodes)
    return _counted(arranged, found)


def _count(log: RankLog) -> int:
    world = log.about.get("world", 1)
    return max(log.rank + 1, world if type(world) is int and 0 < world <= 100_000 else 1)


def _counted(plan: Plan, found: list[Message]) -> Plan:
    """Say which rounds are not whole, and why payloads are not there."""
    left = Counter(
        str(p.notes[LEFT_OUT]) for m in found for p in m.pieces[:1] if LEFT_OUT in p.notes
    )
    kept = [s for s in plan.sent if s.message.kept]
    last = max((s.round for s in plan.sent), default=0)
    if last > SPARSE * (len(found) + 100):
        raise LeakauditError(
            f"a message says that it is of round {last}, and the log holds {len(found)} messages; it is damaged"
        )
    return replace(
        plan,
        sent=tuple(sorted(kept, key=lambda s: (s.round, s.src, s.kind, s.dst))),
        rounds=last,
        missing=tuple(_missing(plan, last)),
        left_out=dict(left),
    )


def _missing(plan: Plan, last: int) -> Iterator[Missing]:
    """Yield, for every wire, the rounds up to the last one in which nothing was sent; a node that never sent lacks all its answers."""
    there = {(s.src, j, s.kind, s.round) for s in plan.sent for j in s.dst}
    wires = {w[:3] for w in there}
    senders = {src for src, _, _ in wires} | plan.quiet
    wires |= {(dst, src, kind) for src, dst, kind in wires if dst not in senders}
    for wire in sorted(wires):
        for first, end in _runs([t for t in range(1, last + 1) if (*wire, t) not in there]):
            yield Missing(*wire, first, end)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    begin = None
    for k, n in enumerate(numbers):
        begin = n if begin is None else begin
        if k + 1 == len(numbers) or numbers[k + 1] != n + 1:
            yield begin, n
            begin = None
