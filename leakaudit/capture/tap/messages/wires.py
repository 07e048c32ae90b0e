"""Convert the logs of a program to messages in the terms of its protocol."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby

from leakaudit._util.plural import counted
from leakaudit.capture.tap.log.capture import HOOK
from leakaudit.capture.tap.log.layers import shortened
from leakaudit.capture.tap.log.reading import RankLog, node_names
from leakaudit.capture.tap.log.writing import LEFT_OUT, UNRANKED
from leakaudit.capture.tap.messages import answers
from leakaudit.capture.tap.messages.arranged import (
    NAME,
    ArrangedLog,
    peers,
    star,
)
from leakaudit.capture.tap.messages.description import MessageDescription
from leakaudit.capture.tap.messages.private import private
from leakaudit.capture.tap.messages.server_step import with_server
from leakaudit.capture.tap.messages.skipped import without_skipped
from leakaudit.capture.tap.messages.states import sort_out
from leakaudit.capture.tap.messages.streams import (
    GRADIENTS,
    LoggedMessage,
    assemble,
    one_kind,
    one_lane,
    operations,
)
from leakaudit.core.errors import LeakauditError, NotUnderstood
from leakaudit.core.trace import Json

# Every missing round costs a line in the trace, so a log with far more rounds than messages is
# rejected. A choice: programs that number their rounds with gaps stay well below it.
SPARSE = 10  # rounds per message ...
SPARE = 100  # ... and messages that are added even for a short log
SHORT = ("float16", "bfloat16")  # number formats to which hooks compress gradients
CHOSEN = ("rounds", "ranks", "max_bytes")  # why the user wants payloads to be left out
SKIPPED = (
    "{} of the program had gradients that overflowed, because the loss is scaled; it skipped them, "
    "and they count as no rounds"
)
PROCESSES = 100_000  # more than any program has: a larger number in a log is wrong


def latest(logs: Iterable[RankLog]) -> list[RankLog]:
    """Return each rank's last process, because a restarted rank began anew."""
    # If torchrun restarted the program, only its last attempt counts. Of processes that share the
    # work of one rank in one run, as those of a simulated client of Flower do, all are returned; so
    # are logs without messages.
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


def _restarts(logs: Sequence[RankLog]) -> Iterator[str]:
    used = latest(logs)
    unused = len(logs) - len(used)
    if not unused:
        return
    last = max(map(_restart, logs))
    if last:
        yield (
            f"the program was started {last + 1} times: the trace contains the last attempt; "
            f"the messages of {unused} earlier processes are not in it"
        )
    else:
        again = ", ".join(map(str, sorted({log.rank for log in logs if log not in used})))
        yield f"several processes had rank {again}: the trace contains the messages of the last one"


def plan(description: MessageDescription, logs: Sequence[RankLog]) -> ArrangedLog:
    """Arrange a log according to its description."""
    answers.check(logs)
    sorted_logs, states = sort_out(latest(logs), description.task, description.tags)
    streams = assemble(
        sorted_logs, description.places, description.tags, by_tag=bool(description.kinds)
    )
    messages, dropped = one_lane(streams.messages, description.stream)
    messages, others = one_kind(messages, description.payload == "gradients")
    messages, skipped = without_skipped(messages)
    found = _found(messages.values())
    if not found and not streams.vectors:
        raise NotUnderstood(
            f"no message may contain the model; the log contains {operations(latest(logs))}"
        )
    if not found:
        listed = ", ".join(f"{count} {what}" for what, count in streams.others.most_common(3))
        raise LeakauditError(
            f"no message has the size of the model ({description.task.layout.size} numbers in one "
            f"tensor, or one tensor per parameter); the log contains {listed or 'nothing at all'}; "
            "describe the model that was trained, or its order of parameters"
        )
    nodes = _processes(logs, found)
    _require_gradients(found)
    if description.victim.centralised:
        arranged = with_server(star(description, found, nodes, answers.partitions(logs)))
    else:
        arranged = peers(description, found, nodes)
    arranged = _counted(arranged, found)
    stated = private(sent.message for sent in arranged.sent)
    named = [f"node {rank} is {name[:NAME]}" for rank, name in node_names(logs).items()]
    notes = (
        *arranged.notes,
        *([", ".join(named)] if named else []),
        *_restarts(logs),
        *_apart(dropped, others, streams.models),
        *([SKIPPED.format(counted(skipped, "step"))] if skipped else []),
        *_content(arranged),
        *(() if stated is None else stated.remarks),
        *_not_finite(arranged),
        *states,
        *answers.remarks(logs),
    )
    return replace(arranged, notes=notes)


def _processes(logs: Iterable[RankLog], found: Iterable[LoggedMessage]) -> int:
    nodes = 0
    for log in logs:
        if log.rank != UNRANKED:
            world = log.about.get("world", 1)
            if type(world) is not int or not 0 < world <= PROCESSES:
                world = 1
            nodes = max(nodes, log.rank + 1, world)
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
    return nodes


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


def _apart(
    dropped: Counter[str], others: Counter[str], models: Counter[tuple[str, str]]
) -> Iterator[str]:
    for op, count in sorted(others.items()):
        yield f"{count} messages of the same size ({op}) are of another kind and not in the trace"
    for lane, count in sorted(dropped.items()):
        yield (
            f"{count} messages of the same size in stream {lane!r} are not in the trace; "
            f"[messages] stream = {lane!r} selects them"
        )
    for (op, lane), count in sorted(models.items()):
        yield f"{count} tensors of {lane} ({op}) belong to a model of another size"


def _content(plan: ArrangedLog) -> Iterator[str]:
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


def _not_finite(plan: ArrangedLog) -> Iterator[str]:
    bad = [sent for sent in plan.sent if not bool(sent.message.value.isfinite().all())]
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


def _counted(plan: ArrangedLog, found: list[LoggedMessage]) -> ArrangedLog:
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


def _missing(plan: ArrangedLog, last: int) -> Iterator[dict[str, Json]]:
    """Yield, for every channel, the rounds up to the last one in which nothing was sent."""
    # Each message to a node that never sent implies an answer that is missing. If a server asks
    # some clients in each round, only answers can be missing.
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
        yield from absent(*wire, [t for t in range(1, last + 1) if t not in there])


def _unanswered(plan: ArrangedLog) -> Iterator[dict[str, Json]]:
    """Yield the answers that did not arrive at the server, which is the last node."""
    hub = plan.graph.nodes - 1
    kind = next((sent.kind for sent in plan.sent if sent.src != hub), "")
    answered = {(sent.src, sent.round) for sent in plan.sent if sent.src != hub}
    silent: dict[int, list[int]] = defaultdict(list)
    for sent in plan.sent:
        for dst in sent.dst:
            if sent.src == hub and (dst, sent.round) not in answered:
                silent[dst].append(sent.round)
    for src, rounds in sorted(silent.items()):
        yield from absent(src, hub, kind, sorted(rounds))


def absent(src: int, dst: int, kind: str, rounds: Sequence[int]) -> Iterator[dict[str, Json]]:
    """Yield the messages of a channel in each run of consecutive rounds."""
    for _, run in groupby(enumerate(rounds), key=lambda pair: pair[1] - pair[0]):
        held = [number for _, number in run]
        yield {"src": src, "dst": dst, "kind": kind, "rounds": [held[0], held[-1]]}
