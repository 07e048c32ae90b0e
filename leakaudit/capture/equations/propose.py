"""Propose the equations of a protocol from the messages of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from leakaudit.capture.equations import linear, steps
from leakaudit.capture.equations.linear import Equation
from leakaudit.capture.equations.streams import SenderStreams
from leakaudit.capture.equations.written import protocol_file
from leakaudit.capture.fitting.stepping import obstacle
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace
from leakaudit.tasks.task import Task

RECORDS = 6  # records of a batch whose rank is looked for, at most: a choice


@dataclass(frozen=True)
class _Proposal:
    """What was found."""

    text: str | None  # the protocol file; None if an equation is not known
    said: tuple[str, ...]  # what each equation explains, or why it is not known: one line each
    nodes: tuple[str, ...] = ()  # the equation of every node, with its rounds: one line each


def propose(trace: Trace, task: Task, name: str) -> _Proposal:
    """Propose the equations of a protocol."""
    why = obstacle(task, trace.dtype) or _incomplete(trace)
    if why:
        return _Proposal(None, (why,))
    try:
        streams = SenderStreams.of(trace)
    except LeakauditError as error:
        return _Proposal(None, (str(error),))
    if not streams.kinds:
        return _Proposal(None, ("the trace contains no messages",))
    found: list[Equation] = []
    said: list[str] = []
    for kind in streams.kinds:
        equation, line = _equation(streams, task, kind)
        said.append(line)
        if equation is not None:
            found.append(equation)
    if len(found) < len(streams.kinds):
        return _Proposal(None, tuple(said))
    try:
        text = protocol_file(streams, task, found, name)
    except LeakauditError as error:
        return _Proposal(None, (*said, f"not known: {error}"))
    nodes: list[str] = []
    for one in found:
        nodes.extend(_of_nodes(one))
    return _Proposal(text, tuple(said), tuple(nodes))


def _incomplete(trace: Trace) -> str:
    if trace.columns != (0, trace.layout.size):
        return "only some of the parameters were recorded"
    if not trace.messages or not len(trace):
        return "the trace contains no messages"
    return ""


def _equation(streams: SenderStreams, task: Task, kind: str) -> tuple[Equation | None, str]:
    silent = _silent(streams, kind)
    if silent:
        return None, f"{kind}: not known: no messages of nodes {', '.join(map(str, silent))}"
    found = linear.search(streams, task, kind, 0)
    if found is not None:
        return found, f"{kind}: a combination of earlier messages{_tested(found)}"
    for rank in range(1, RECORDS + 1):
        found = linear.search(streams, task, kind, rank)
        if found is None:
            continue
        proved = steps.prove(found, task)
        if proved is not None:
            what = "one record" if rank == 1 else f"{rank} records"
            line = f"{kind}: recomputed gradients of {what} explain what remains"
            return proved, f"{line} up to {proved.miss:.1g}{_tested(found)}"
        weights = ", ".join(_weights(found, found.senders[0]))
        return None, (
            f"{kind}: not known: with the coefficients {weights or 'none'}, what remains has rank "
            f"{rank} in the first layer, but no recomputed gradient of {rank} records explains it"
        )
    return None, f"{kind}: not known: no combination of messages leaves gradients of few records"


def _silent(streams: SenderStreams, kind: str) -> list[int]:
    """Return the nodes whose messages are missing, so that their equations are unknown.

    What a server alone sends looks as if it computed the gradients of all clients itself.
    """
    senders = streams.senders(kind)
    if senders == (streams.server,):
        return []
    others = set(range(streams.graph.nodes)) - {streams.server}
    return sorted(others - set(senders))


def _of_nodes(one: Equation) -> Iterator[str]:
    kind = one.kind
    for node in one.senders:
        terms = list(_weights(one, node))
        if one.form:
            terms.append(f"{one.rate} g[t]")
        if one.other:
            before = {"momentum": "of what remained in round t-1", "difference": "g[t-1]"}
            terms.append(f"{one.other} {before[one.form]}")
        first, last = one.rounds[0], one.rounds[-1]
        yield f"node {node}, rounds {first} to {last}: {kind}[t] = {' + '.join(terms)}"


def _tested(found: Equation) -> str:
    return f" in rounds {found.rounds[0]} to {found.rounds[-1]}"


def _weights(found: Equation, node: int) -> Iterator[str]:
    for (term, owner, sender), weight in found.weights.items():
        if owner != node or not weight:
            continue
        age = "t" if term.lag == 0 else f"t-{term.lag}"
        who = f"the sum of {term.kind}" if sender == -1 else f"{term.kind} of node {sender}"
        yield f"{weight} {who}[{age}]"
