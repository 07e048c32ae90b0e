"""Which rounds of a recording are compared with its declaration: all that fit into a budget."""

from __future__ import annotations

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace
from leakaudit.protocols.declared import Protocol, protocol_of
from leakaudit.protocols.equations.written import TextProtocol
from leakaudit.theory.relations import Relations
from leakaudit.views.messages import LARGE

# Every round is compared if possible, because messages may differ from the declared ones from any
# round on. A relation of a round contains private states that the rounds before determine, so the
# rounds that are compared are the first ones, without gaps.

ROUNDS = 8  # compared in any case, whatever their size
# Number of declared vectors of the rounds that are compared. The messages of ten rounds of PDMM
# between 1,024 nodes on a grid are among 108,000. A choice: about ten seconds for as many.
VECTORS = 1 << 17
# The same for a large recording, of which little is kept in memory: at least 256 columns of each.
FEWER = 1 << 14


def last(trace: Trace) -> int:
    """Return the last round whose messages are compared."""
    if trace.rounds <= ROUNDS:
        return trace.rounds
    first = protocol_of(trace, ROUNDS).whole
    affordable = ROUNDS * _most(trace) // max(1, len(first.vectors))
    return max(ROUNDS, min(trace.rounds, affordable))


def relations(trace: Trace) -> Relations:
    """Return the relations of the rounds that are compared."""
    rounds = last(trace)
    first = protocol_of(trace, min(rounds, ROUNDS))
    if rounds <= ROUNDS:
        return first.whole
    try:
        found = _declared(protocol_of(trace, rounds))
    except LeakauditError:  # such as too many vectors in later rounds
        return first.whole
    # Later rounds may declare more vectors than the first ones.
    if len(found.vectors) > 2 * _most(trace):
        return first.whole
    return found


def _most(trace: Trace) -> int:
    if trace.payload_bytes > LARGE:
        return FEWER
    return VECTORS


def _declared(protocol: Protocol) -> Relations:
    """Return the relations of all rounds, as copies of the first ones if they repeat.

    Copies take a fifth of the time. Equations of a file may repeat with a delay that the first
    rounds do not show, so they are always declared.
    """
    if isinstance(protocol.victim, TextProtocol) or not protocol.repeats:
        return protocol.whole
    everything = range(len(protocol.start.relations))
    return protocol.continued(everything, range(1, protocol.rounds + 1))
