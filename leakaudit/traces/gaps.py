"""What a recording lacks of its run, as the engine that made it found out: messages that did not arrive, nodes that ended early."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from leakaudit.errors import LeakauditError
from leakaudit.trace import Messages, Trace

WHY = {
    "lost": "lost on their way",
    "ended": "their sender had ended",
    "closed": "their sender's process was gone",
    "silent": "not in time",
}
SHOWN = 1000  # sentences at most, and letters of a word that a file gives


def sentences(trace: Trace) -> list[str]:
    """Say what is missing, in sentences that name the rounds; empty where nothing is, or where it is not said in our form."""
    said = [*_each(trace, "missing", _missing), *_each(trace, "ended", _ended)]
    planned = trace.provenance.get("planned")
    if isinstance(planned, int) and not trace.complete and trace.rounds < planned:
        said.append(f"nothing was sent in {_rounds(trace.rounds + 1, planned)}")
    return said[:SHOWN]


def sound(trace: Trace) -> int | None:
    """Return the last round up to which the protocol's relations hold, None where they hold in all."""
    last = trace.provenance.get("holds_until")
    if last is None:
        return None
    if type(last) is not int:
        raise LeakauditError(
            f"provenance: expected a round as 'holds_until', got {str(last)[:40]!r}"
        )
    return max(last, -1) if last < trace.rounds else None


def before(trace: Trace) -> Trace:
    """Return the trace up to the last round before the first message that is missing: beyond it the relations are not those declared.

    Raises LeakauditError where that is before the first round.
    """
    if (last := sound(trace)) is None:
        return trace
    if last < 1:
        raise LeakauditError(
            "messages of the first round are missing, and the protocol's relations hold in none; record without the fault"
        )
    return replace(trace, rounds=last, messages=tuple(_until(m, last) for m in trace.messages))


def limit(trace: Trace) -> str:
    """Say in words why rounds after some one are not used, empty where all are."""
    last = sound(trace)
    return (
        ""
        if last is None
        else f"messages of round {last + 1} are missing, so this rests on rounds up to {last}"
    )


def lost(trace: Trace) -> str:
    """Say that messages are missing, empty if none is. Whatever the file states, it never makes a run look shorter."""
    last, missing = trace.provenance.get("holds_until"), trace.provenance.get("missing")
    if last is None and not missing:
        return ""
    if type(last) is int and 0 <= last < trace.rounds:
        return f"messages of round {last + 1} or later are missing"
    return "messages are missing"


def _until(m: Messages, last: int) -> Messages:
    keep = m.round <= last
    return replace(
        m,
        **{
            name: getattr(m, name)[keep]
            for name in ("round", "src", "dst", "kind", "row", "secure")
        },
    )


def _each(trace: Trace, name: str, say: Callable[[Any], str]) -> Iterator[str]:
    """Say every record of a list in the provenance; what is no such list or record is passed over."""
    found = trace.provenance.get(name)
    for record in found if isinstance(found, list) else ():
        with suppress(KeyError, TypeError, ValueError):
            yield " ".join(say(record).split())[:SHOWN]


def _missing(m: Mapping[str, Any]) -> str:
    first, last = m["rounds"]
    what = f"messages {str(m['kind'])!r} {int(m['src'])} -> {int(m['dst'])} of {_rounds(int(first), int(last))}"
    return f"{what}: {WHY.get(m['why'], 'missing')}"


def _ended(e: Mapping[str, Any]) -> str:
    after = f"after round {int(e['round'])}" if int(e["round"]) >= 0 else "before a round was over"
    return f"node {', '.join(str(int(n)) for n in e['nodes'])} ended {after}: {e['why']}"


def _rounds(first: int, last: int) -> str:
    return f"round {first}" if first == last else f"rounds {first} to {last}"
