"""What a recording lacks of its run, as the engine that made it found out.

Messages may not have arrived, and nodes may have ended early. An engine writes that into the
provenance of a trace; a file may come from elsewhere, so nothing here relies on its form.
"""

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
SHOWN = 1000  # sentences at most, and letters of a sentence: a choice, against a file that has more


def sentences(trace: Trace) -> list[str]:
    """Say what is missing, in sentences that name the rounds.

    Args:
        trace: The recording.

    Returns:
        The sentences; none if nothing is missing, or if it is not stated in our form.
    """
    said = [*_each(trace, "missing", _missing), *_each(trace, "ended", _ended)]
    planned = trace.provenance.get("planned")
    if isinstance(planned, int) and not trace.complete and trace.rounds < planned:
        said.append(f"nothing was sent in {_rounds(trace.rounds + 1, planned)}")
    return said[:SHOWN]


def sound(trace: Trace) -> int | None:
    """Return the last round up to which the protocol's relations hold, None if they hold in all.

    Args:
        trace: The recording.

    Raises:
        LeakauditError: The provenance holds something else than a round.
    """
    last = trace.provenance.get("holds_until")
    if last is None:
        return None
    if type(last) is not int:
        raise LeakauditError(
            f"provenance: expected a round as 'holds_until', got {str(last)[:40]!r}"
        )
    return max(last, -1) if last < trace.rounds else None


def before(trace: Trace) -> Trace:
    """Return the trace up to the last round before the first message that is missing.

    Beyond it the relations are not those that the protocol declares.

    Args:
        trace: The recording.

    Raises:
        LeakauditError: That is before the first round.
    """
    last = sound(trace)
    if last is None:
        return trace
    if last < 1:
        raise LeakauditError(
            "messages of the first round are missing, "
            "and the protocol's relations hold in none; record without the fault"
        )
    return replace(trace, rounds=last, messages=tuple(_until(m, last) for m in trace.messages))


def limit(trace: Trace) -> str:
    """Say why rounds after a certain one are not used, empty if all are.

    Args:
        trace: The recording.
    """
    last = sound(trace)
    if last is None:
        return ""
    return f"messages of round {last + 1} are missing, so this rests on rounds up to {last}"


def lost(trace: Trace) -> str:
    """Say that messages are missing, empty if none is.

    Whatever the file states, it never makes a run look shorter than it is.

    Args:
        trace: The recording.
    """
    last = trace.provenance.get("holds_until")
    if last is None and not trace.provenance.get("missing"):
        return ""
    if type(last) is int and 0 <= last < trace.rounds:
        return f"messages of round {last + 1} or later are missing"
    return "messages are missing"


def _until(m: Messages, last: int) -> Messages:
    """Return the messages up to a round."""
    keep = m.round <= last
    return replace(
        m,
        round=m.round[keep],
        src=m.src[keep],
        dst=m.dst[keep],
        kind=m.kind[keep],
        row=m.row[keep],
        secure=m.secure[keep],
    )


def _each(trace: Trace, name: str, say: Callable[[Any], str]) -> Iterator[str]:
    """Say every record of a list in the provenance; anything of another form is passed over."""
    found = trace.provenance.get(name)
    if not isinstance(found, list):
        return
    for record in found:
        with suppress(KeyError, TypeError, ValueError):
            yield " ".join(say(record).split())[:SHOWN]


def _missing(m: Mapping[str, Any]) -> str:
    first, last = m["rounds"]
    ends = f"{int(m['src'])} -> {int(m['dst'])}"
    what = f"messages {str(m['kind'])!r} {ends} of {_rounds(int(first), int(last))}"
    return f"{what}: {WHY.get(m['why'], 'missing')}"


def _ended(e: Mapping[str, Any]) -> str:
    after = "before a round was over"
    if int(e["round"]) >= 0:
        after = f"after round {int(e['round'])}"
    return f"node {', '.join(str(int(n)) for n in e['nodes'])} ended {after}: {e['why']}"


def _rounds(first: int, last: int) -> str:
    return f"round {first}" if first == last else f"rounds {first} to {last}"
