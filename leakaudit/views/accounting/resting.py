"""What a view bound rests on, and where each of these inputs comes from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from leakaudit.core import registry
from leakaudit.core.evidence import Evidence, Origin
from leakaudit.core.trace import Json
from leakaudit.protocols.declared import Protocol
from leakaudit.views.accounting.basis import CONVEX
from leakaudit.views.accounting.view_bound import ViewBound


def rests_on(
    protocol: Protocol, bound: ViewBound, sensitivity: Evidence, *, asked: bool = False
) -> tuple[Evidence, ...]:
    """Return the inputs of a bound; none if there is no bound.

    What a recording says of its own inputs (`premises.KEY`) can only weaken them: no file vouches
    for itself.
    """
    if bound.refused or bound.mu == 0:
        return ()
    stated = _recorded(protocol.evidence)
    subject = sensitivity.subject
    if asked and bound.sensitivity > _contradicted(protocol.evidence, subject):
        stated.pop(subject, None)
    inputs = []
    for one in (sensitivity, *_declared(protocol, bound)):
        weaker = stated.pop(one.subject, one)
        inputs.append(min(one, weaker, key=lambda each: each.origin))
    inputs += [one for one in stated.values() if one.origin is Origin.CONTRADICTED]
    return tuple(inputs)


def _declared(protocol: Protocol, bound: ViewBound) -> Iterator[Evidence]:
    """Yield what the declaration says about every input but the sensitivity."""
    victim = protocol.victim
    values = registry.values(victim)
    if any(vector.kind == "noise" for vector in protocol.start.vectors):
        yield Evidence("noise", Origin.DECLARED)
    if values.get("clip"):
        yield Evidence("clip", Origin.DECLARED, f"{values['clip']:g}")
        if not protocol.records:
            yield Evidence("samples", Origin.UNKNOWN, "counted as 1")
    if bound.every_batch:
        yield Evidence("batch", Origin.ASSUMED, "a record is in every batch")
    elif values.get("batch"):
        yield Evidence("batch", Origin.DECLARED, f"{values['batch']}")
    if values.get("server") == "unknown":
        yield Evidence("server", Origin.UNKNOWN, "it may send anything that it knows")
    for (kind, _, _), _, _ in protocol.undeclared:
        yield Evidence(f"messages {kind!r}", Origin.UNKNOWN, "not declared")
    if bound.basis is not None and bound.basis.smoothness is not None:
        yield Evidence("smoothness", Origin.ASSUMED, f"{bound.basis.smoothness:g}")
    if bound.basis is not None and bound.basis.ground == CONVEX:
        yield Evidence("convexity", Origin.ASSUMED, "of the loss of each node")
    for name in protocol.defaulted:
        yield Evidence(name, Origin.ASSUMED, f"the default {values[name]}; not stated")


def _recorded(evidence: Mapping[str, Json]) -> dict[str, Evidence]:
    """Return what a recording says about inputs; anything of another form is ignored."""
    found = {}
    for subject, said in evidence.items():
        if not isinstance(said, list) or len(said) not in (2, 3):
            continue
        name, detail = said[:2]
        if name in Origin.__members__ and isinstance(detail, str):
            found[subject] = Evidence(subject, Origin[str(name)], detail)
    return found


def _contradicted(evidence: Mapping[str, Json], subject: str) -> float:
    """Return the largest value that a recording contradicts: all values if it does not say."""
    said = evidence.get(subject)
    if said is None:
        return 0.0
    if isinstance(said, list) and len(said) == 3 and isinstance(said[2], int | float):
        return float(said[2])
    return math.inf
