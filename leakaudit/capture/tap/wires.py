"""Convert the logs of a program to messages in the terms of its protocol."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from leakaudit.capture.tap import answers
from leakaudit.capture.tap.arranged import ArrangedLog, Missing
from leakaudit.capture.tap.description import Description
from leakaudit.capture.tap.log import LEFT_OUT, UNRANKED
from leakaudit.capture.tap.peers import peers
from leakaudit.capture.tap.reading import RankLog
from leakaudit.capture.tap.star import star
from leakaudit.capture.tap.states import sort_out
from leakaudit.capture.tap.streams import LoggedMessage, Streams, assemble
from leakaudit.errors import LeakauditError

# Every missing round costs a line in the trace, so a log with far more rounds than messages is
# rejected. A choice: programs that number their rounds with gaps stay well below it.
SPARSE = 10  # rounds per message ...
SPARE = 100  # ... and messages that are added even for a short log
PROCESSES = 100_000  # more than any program has: a larger number in a log is ignored


def latest(logs: Iterable[RankLog]) -> list[RankLog]:
    """Return each rank's last process, because a restarted rank began anew.

    Of processes that share the work of one rank in one run, as those of a simulated client of
    Flower do, all are returned; so are logs without messages.

    Args:
        logs: the logs of all processes, in any order.
    """
    by_rank: dict[int, list[RankLog]] = {}
    for log in sorted(logs, key=lambda log: (log.rank, log.attempt)):
        before = by_rank.setdefault(log.rank, [])
        if before and not _continues(log, before[0]):
            before.clear()
        before.append(log)
    return [log for logs in by_rank.values() for log in logs]


def _continues(log: RankLog, other: RankLog) -> bool:
    """Return whether two processes of a rank worked in the same run."""
    if log.rank == UNRANKED:
        return True
    run = log.about.get("run")
    return run is not None and run == other.about.get("run")


def plan(description: Description, logs: Sequence[RankLog]) -> ArrangedLog:
    """Arrange a log according to its description.

    Args:
        description: the description of the program's messages.
        logs: the logs of all processes.

    Raises:
        LeakauditError: nothing in the log has the model's size, or the protocol's kinds cannot be
            distinguished.
    """
    by_tag = bool(description.kinds)
    answers.check(logs)
    sorted_out = sort_out(latest(logs), description.task, description.tags)
    streams = assemble(sorted_out.logs, description.sizes, description.tags, by_tag)
    found = _found(streams)
    if not found:
        counted = [f"{count} {what}" for what, count in streams.others.most_common(3)]
        others = ", ".join(counted) or "nothing at all"
        raise LeakauditError(
            f"no message has the size of the model ({description.task.layout.size} numbers in one "
            f"tensor, or one tensor per parameter); the log contains {others}; describe the model "
            "that was trained, or its order of parameters"
        )
    nodes = max(_processes(log) for log in logs if log.rank != UNRANKED)
    for message in found:
        nodes = max(nodes, 1 + message.src, 1 + (message.dst or 0))
    if description.victim.centralised:
        arranged = star(description, found, nodes, answers.partitions(logs))
    else:
        arranged = peers(description, found, nodes)
    arranged = replace(arranged, notes=(*arranged.notes, *sorted_out.notes, *answers.remarks(logs)))
    return _counted(arranged, found)


def _found(streams: Streams) -> list[LoggedMessage]:
    """Return each message once: from its sender's log if kept there, else from the receiver's."""
    found: list[LoggedMessage] = []
    received: list[LoggedMessage] = []
    for message in streams:
        if message.op == "recv":
            received.append(message)
        else:
            found.append(message)
    kept = {(message.src, message.dst) for message in found if message.kept}
    found += [message for message in received if (message.src, message.dst) not in kept]
    return found


def _processes(log: RankLog) -> int:
    """Return the minimum number of processes of the program, according to one of its logs."""
    world = log.about.get("world", 1)
    if type(world) is not int or not 0 < world <= PROCESSES:
        world = 1
    return max(log.rank + 1, world)


def _counted(plan: ArrangedLog, found: list[LoggedMessage]) -> ArrangedLog:
    """Add which rounds are incomplete, and why payloads are missing."""
    left_out = Counter[str]()
    for message in found:
        notes = message.pieces[0].notes
        if LEFT_OUT in notes:
            left_out[str(notes[LEFT_OUT])] += 1
    kept = [sent for sent in plan.sent if sent.message.kept]
    last = max((sent.round for sent in plan.sent), default=0)
    if last > SPARSE * (len(found) + SPARE):
        raise LeakauditError(
            f"a message claims to be of round {last}, but the log contains {len(found)} messages; "
            "it is damaged"
        )
    return replace(
        plan,
        sent=tuple(sorted(kept, key=lambda s: (s.round, s.src, s.kind, s.dst))),
        rounds=last,
        missing=tuple(_missing(plan, last)),
        left_out=dict(left_out),
    )


def _missing(plan: ArrangedLog, last: int) -> Iterator[Missing]:
    """Yield, for every channel, the rounds up to the last one in which nothing was sent.

    A channel is known from its messages. A node that never sent has none, so each message to it
    implies an answer that is missing. Where a server asks some clients in each round, only answers
    can be missing.
    """
    if plan.asks:
        yield from _unanswered(plan)
        return
    rounds: dict[tuple[int, int, str], set[int]] = defaultdict(set)
    for sent in plan.sent:
        for dst in sent.dst:
            rounds[sent.src, dst, sent.kind].add(sent.round)
    senders = {src for src, _, _ in rounds} | plan.optional_senders
    for src, dst, kind in list(rounds):
        if dst not in senders:
            rounds[dst, src, kind] = set()
    for wire, there in sorted(rounds.items()):
        absent = [t for t in range(1, last + 1) if t not in there]
        for first, end in _runs(absent):
            yield Missing(*wire, first, end)


def _unanswered(plan: ArrangedLog) -> Iterator[Missing]:
    """Yield the answers that did not arrive at the server, which is the last node."""
    hub = plan.graph.nodes - 1
    kind = next((sent.kind for sent in plan.sent if sent.src != hub), "")
    answered = {(sent.src, sent.round) for sent in plan.sent if sent.src != hub}
    absent: dict[int, list[int]] = defaultdict(list)
    for sent in plan.sent:
        for dst in sent.dst:
            if sent.src == hub and (dst, sent.round) not in answered:
                absent[dst].append(sent.round)
    for src, rounds in sorted(absent.items()):
        for first, end in _runs(sorted(rounds)):
            yield Missing(src, hub, kind, first, end)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of consecutive numbers."""
    begin = None
    for k, number in enumerate(numbers):
        if begin is None:
            begin = number
        if k + 1 == len(numbers) or numbers[k + 1] != number + 1:
            yield begin, number
            begin = None
