"""Convert the logs of a program to messages in the terms of its protocol."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from leakaudit.capture.tap.log import nodes as nodes_of
from leakaudit.capture.tap.log.capture import HOOK
from leakaudit.capture.tap.log.layers import shortened
from leakaudit.capture.tap.log.reading import RankLog
from leakaudit.capture.tap.log.writing import LEFT_OUT, UNRANKED
from leakaudit.capture.tap.messages import answers
from leakaudit.capture.tap.messages.arranged import ArrangedLog, MissingMessages
from leakaudit.capture.tap.messages.description import MessageDescription
from leakaudit.capture.tap.messages.peers import peers
from leakaudit.capture.tap.messages.private import private
from leakaudit.capture.tap.messages.star import star
from leakaudit.capture.tap.messages.states import sort_out
from leakaudit.capture.tap.messages.streams import (
    GRADIENTS,
    LoggedMessage,
    LogStreams,
    assemble,
    one_kind,
    one_lane,
    operations,
)
from leakaudit.core.errors import LeakauditError, NotUnderstood

# Every missing round costs a line in the trace, so a log with far more rounds than messages is
# rejected. A choice: programs that number their rounds with gaps stay well below it.
SPARSE = 10  # rounds per message ...
SPARE = 100  # ... and messages that are added even for a short log
SHORT = ("float16", "bfloat16")  # number formats to which hooks compress gradients
CHOSEN = ("rounds", "ranks", "max_bytes")  # why the user wants payloads to be left out
PROCESSES = 100_000  # more than any program has: a larger number in a log is wrong


def latest(logs: Iterable[RankLog]) -> list[RankLog]:
    """Return each rank's last process, because a restarted rank began anew.

    If torchrun started the program again, only the processes of its last attempt count: a rank that
    sent nothing in it has no log, and those of earlier attempts belong to another training.
    Of processes that share the work of one rank in one run, as those of a simulated client of
    Flower do, all are returned; so are logs without messages.

    Args:
        logs: the logs of all processes, in any order.
    """
    logs = list(logs)
    last = max(map(_restart, logs), default=0)
    by_rank: dict[int, list[RankLog]] = {}
    for log in sorted(logs, key=lambda log: (log.rank, log.attempt)):
        if _restart(log) != last:
            continue
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


def _restart(log: RankLog) -> int:
    """Return how often torchrun had started the program before this process; 0 if unknown."""
    count = log.about.get("restart", 0)
    if type(count) is not int:
        return 0
    return count


def restarts(logs: Sequence[RankLog]) -> list[str]:
    """Return remarks about processes whose messages are not in the trace."""
    used = latest(logs)
    unused = len(logs) - len(used)
    if not unused:
        return []
    last = max(map(_restart, logs))
    if last:
        return [
            f"the program was started {last + 1} times: the trace contains the last attempt; "
            f"the messages of {unused} earlier processes are not in it"
        ]
    again = sorted({log.rank for log in logs if log not in used})
    ranks = ", ".join(map(str, again))
    return [f"several processes had rank {ranks}: the trace contains the messages of the last one"]


def plan(description: MessageDescription, logs: Sequence[RankLog]) -> ArrangedLog:
    """Arrange a log according to its description.

    Raises:
        LeakauditError: nothing in the log has the model's size, or the protocol's kinds cannot be
            distinguished.
    """
    by_tag = bool(description.kinds)
    answers.check(logs)
    sorted_out = sort_out(latest(logs), description.task, description.tags)
    streams = assemble(sorted_out.logs, description.sizes, description.tags, by_tag)
    messages, dropped = one_lane(streams.messages, description.stream)
    messages, others = one_kind(messages, description.payload == "gradients")
    found = _found(messages.values())
    if not found and not streams.vectors:
        raise NotUnderstood(
            f"no message may contain the model; the log contains {operations(latest(logs))}"
        )
    if not found:
        raise LeakauditError(
            f"no message has the size of the model ({description.task.layout.size} numbers in one "
            f"tensor, or one tensor per parameter); the log contains {listed(streams.others)}; "
            "describe the model that was trained, or its order of parameters"
        )
    nodes = max(_processes(log) for log in logs if log.rank != UNRANKED)
    for message in found:
        group = message.group or (message.src,)
        if message.src not in group:
            raise LeakauditError(
                f"the log says that rank {message.src} sends to a process group without it"
            )
        nodes = max(nodes, 1 + message.src, 1 + (message.dst or 0), 1 + max(group))
    if nodes > PROCESSES:
        raise LeakauditError(
            f"the log names rank {nodes - 1}, expected at most {PROCESSES} processes"
        )
    _require_gradients(found)
    if description.victim.centralised:
        arranged = star(description, found, nodes, answers.partitions(logs))
    else:
        arranged = peers(description, found, nodes)
    arranged = _counted(arranged, found)
    notes = (
        *arranged.notes,
        *nodes_of.remark(logs),
        *restarts(logs),
        *_apart(dropped, others, streams),
        *_content(arranged),
        *_private(arranged),
        *_not_finite(arranged),
        *sorted_out.notes,
        *answers.remarks(logs),
    )
    return replace(arranged, notes=notes)


def _require_gradients(found: Sequence[LoggedMessage]) -> None:
    """Reject a log with the models of a hook's gradients, but none of the gradients."""
    altered = Counter[str]()
    for message in found:
        if message.op not in GRADIENTS or message.op == "model":
            continue
        if message.kept:
            return
        reasons = [str(p.notes[LEFT_OUT]) for p in message.pieces if LEFT_OUT in p.notes]
        altered.update(reason for reason in reasons[:1] if reason not in CHOSEN)
    if altered:
        counted = ", ".join(f"{count}: {reason}" for reason, count in altered.items())
        raise NotUnderstood(f"no gradient of a rank travels as it is ({counted})")


def listed(others: Counter[str]) -> str:
    """Return what a log contains besides models, in words."""
    counted = [f"{count} {what}" for what, count in others.most_common(3)]
    return ", ".join(counted) or "nothing at all"


def _apart(dropped: Counter[str], others: Counter[str], streams: LogStreams) -> Iterator[str]:
    """Yield remarks about messages of other models, process groups and kinds."""
    for op, count in sorted(others.items()):
        yield f"{count} messages of the same size ({op}) are of another kind and not in the trace"
    for lane, count in sorted(dropped.items()):
        yield (
            f"{count} messages of the same size in stream {lane!r} are not in the trace; "
            f"[messages] stream = {lane!r} selects them"
        )
    for (op, lane), count in sorted(streams.models.items()):
        yield f"{count} tensors of {lane} ({op}) belong to a model of another size"


def _content(plan: ArrangedLog) -> Iterator[str]:
    """Yield remarks about messages that are not all of what a rank computed."""
    names = plan.description.order or plan.description.task.layout.names
    covers = plan.covers
    missing = [names[k] for k in range(len(names)) if k not in covers]
    if missing:
        what = "were recorded (--layers)" if plan.chosen else "are in the messages"
        yield f"{len(covers)} of {len(names)} parameters {what}; missing: {shortened(missing)}"
    hooks = Counter[tuple[str, str]]()
    groups: dict[str, None] = {}
    for sent in plan.sent:
        for piece in sent.message.pieces:
            if HOOK in piece.notes and piece.dtype in SHORT:
                hooks[str(piece.notes[HOOK]), str(piece.dtype)] += 1
            if "within" in piece.notes:
                groups[str(piece.notes["within"])] = None
    if groups:
        yield (
            f"some messages went to a process group of some ranks only ({', '.join(groups)}): the "
            "node that stands for the sum then stands for one sum per group"
        )
    for (hook, dtype), count in sorted(hooks.items()):
        yield (
            f"{count} tensors were sent by {hook} in {dtype}: the trace contains what was sent, "
            "which is rounded to this format"
        )


def _private(plan: ArrangedLog) -> Iterator[str]:
    """Yield what Opacus states about clipping and noise."""
    found = private((sent.message for sent in plan.sent), plan.slices)
    if found is not None:
        yield from found.remarks


def _not_finite(plan: ArrangedLog) -> Iterator[str]:
    """Yield which message is the first with numbers that are NaN or infinite."""
    bad = [sent for sent in plan.sent if not bool(sent.message.value(plan.slices).isfinite().all())]
    if bad:
        first = bad[0]
        yield (
            f"{len(bad)} of {len(plan.sent)} messages contain NaN or infinity, as the program "
            f"computed them: first that of rank {first.message.src} in round {first.round}"
        )


def _found(streams: Iterable[Sequence[LoggedMessage]]) -> list[LoggedMessage]:
    """Return each message once: from its sender's log if kept there, else from the receiver's."""
    found: list[LoggedMessage] = []
    received: list[LoggedMessage] = []
    for message in chain.from_iterable(streams):
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
        reasons = [p.notes[LEFT_OUT] for p in message.pieces if LEFT_OUT in p.notes]
        if reasons:
            left_out[str(reasons[0])] += 1
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


def _missing(plan: ArrangedLog, last: int) -> Iterator[MissingMessages]:
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
            yield MissingMessages(*wire, first, end)


def _unanswered(plan: ArrangedLog) -> Iterator[MissingMessages]:
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
            yield MissingMessages(src, hub, kind, first, end)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of consecutive numbers."""
    begin = None
    for k, number in enumerate(numbers):
        if begin is None:
            begin = number
        if k + 1 == len(numbers) or numbers[k + 1] != number + 1:
            yield begin, number
            begin = None
