"""What is missing from a recording, as its engine noted in the provenance.

A trace may come from elsewhere, so nothing here relies on the form of these notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Messages, Trace
from leakaudit.traces._storage.wellformed import INDEX

WHY = {
    "lost": "lost in transit",
    "ended": "their sender had ended",
    "closed": "their sender's process had terminated",
    "silent": "not received in time",
}
# Maximum number of sentences, and of characters per sentence: a choice, to limit malicious files.
SHOWN = 1000


def sentences(trace: Trace) -> list[str]:
    """Describe what is missing, in sentences that name the rounds."""
    said = [*_each(trace, "missing", _missing), *_each(trace, "ended", _ended)]
    planned = trace.provenance.get("planned")
    if isinstance(planned, int) and not trace.complete and trace.rounds < planned:
        said.append(f"nothing was sent in {_rounds(trace.rounds + 1, planned)}")
    return said[:SHOWN]


def sound(trace: Trace) -> int | None:
    """Return the last round up to which the protocol's relations hold; None if they hold in all."""
    last = trace.provenance.get("holds_until")
    if last is None:
        return None
    if type(last) is not int:
        raise LeakauditError(
            f"provenance: expected a round number as 'holds_until', got {str(last)[:40]!r}"
        )
    return max(last, -1) if last < trace.rounds else None


def before(trace: Trace) -> Trace:
    """Return the trace up to the last round before the first missing message.

    From there on, the relations are not those that the protocol declares.
    """
    last = sound(trace)
    if last is None:
        return trace
    if last < 1:
        raise LeakauditError(
            "messages of the first round are missing, "
            "so the protocol's relations hold in no round; record without the fault"
        )
    return replace(trace, rounds=last, messages=tuple(between(m, 0, last) for m in trace.messages))


def limit(trace: Trace) -> str:
    """Explain why rounds after a certain one are not used; empty if all are."""
    last = sound(trace)
    if last is None:
        return ""
    return f"messages of round {last + 1} are missing, so only rounds up to {last} are used"


def lost(trace: Trace) -> str:
    """Return a statement that messages are missing; empty if none is.

    Whatever the file states, this never makes a run look shorter than it is.
    """
    last = trace.provenance.get("holds_until")
    if last is None and not trace.provenance.get("missing"):
        return ""
    if type(last) is int and 0 <= last < trace.rounds:
        return since(last + 1)
    return "messages are missing"


def since(first: int) -> str:
    """Return the statement that messages are missing from some round on."""
    return f"messages of round {first} or later are missing"


def between(m: Messages, first: int, last: int) -> Messages:
    """Return the messages of some rounds."""
    keep = (m.round >= first) & (m.round <= last)
    return replace(m, **{name: getattr(m, name)[keep] for name in (*INDEX, "secure")})


def _each(trace: Trace, name: str, say: Callable[[Any], str]) -> Iterator[str]:
    """Describe every record of a list in the provenance; skip anything of another form."""
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
    after = "before completing a round"
    if int(e["round"]) >= 0:
        after = f"after round {int(e['round'])}"
    return f"node {', '.join(str(int(n)) for n in e['nodes'])} ended {after}: {e['why']}"


def _rounds(first: int, last: int) -> str:
    return f"round {first}" if first == last else f"rounds {first} to {last}"
