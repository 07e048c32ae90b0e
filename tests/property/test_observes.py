"""Who hears what is decided once; two independent statements of the rule agree with it, message by message."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakaudit.core import adversary as module
from leakaudit.core.adversary import Adversary, View
from leakaudit.core.trace import Graph
from leakaudit.theory.relations import Relations, know

NODES = 5
NODE = st.integers(0, NODES - 1)
ARC = st.tuples(NODE, NODE).filter(lambda arc: arc[0] != arc[1])
ADVERSARIES = st.builds(
    Adversary,
    hears=st.one_of(st.just("all"), st.just("none"), st.frozensets(ARC, max_size=6)),
    corrupt=st.frozensets(NODE, max_size=2),
)


def stated(who: Adversary, src: int, dst: int, secure: bool) -> bool:
    """Return the rule as docs/threat-models.md states it: own traffic always, tapped traffic unless it is encrypted."""
    own = bool({src, dst} & who.corrupt)
    arcs = {(i, j) for i in range(NODES) for j in range(NODES)}
    tapped = {"all": arcs, "none": set()}.get(who.hears, who.hears)  # type: ignore[arg-type]
    return own or ((src, dst) in tapped and not secure)


@settings(derandomize=True, max_examples=300)
@given(who=ADVERSARIES, arc=ARC, secure=st.booleans())
def test_one_message(who: Adversary, arc: tuple[int, int], secure: bool) -> None:
    assert who.observes(*arc, secure=secure) == stated(who, *arc, secure)


@settings(derandomize=True, max_examples=100)
@given(who=ADVERSARIES, secure=st.booleans())
def test_a_public_board_is_read_by_everybody_and_if_encrypted_by_nodes(
    who: Adversary, secure: bool
) -> None:
    assert who.observes(0, None, secure=secure) == (not secure or bool(who.corrupt))


@settings(derandomize=True, max_examples=100)
@given(
    who=ADVERSARIES,
    src=NODE,
    to=st.frozensets(NODE, min_size=1),
    secure=st.booleans(),
)
def test_a_declared_message_is_known_if_one_of_its_copies_is_heard(
    who: Adversary, src: int, to: frozenset[int], secure: bool
) -> None:
    receivers = sorted(to - {src})
    if not receivers:
        return
    declared = Relations(Graph(NODES, tuple((i, j) for j in range(NODES) for i in range(j))))
    message = declared.send(src, receivers, declared.secret("x", src), secure=secure)
    heard = message.vector in know(declared, who, own=False).known
    assert heard == any(stated(who, src, dst, secure) for dst in receivers)


class _Graph:
    nodes = NODES


@pytest.mark.parametrize("table_nodes", [0, NODES])
@settings(derandomize=True, max_examples=60)
@given(who=ADVERSARIES, sent=st.lists(st.tuples(ARC, st.booleans()), max_size=40))
def test_recorded_messages_are_decided_alike_with_a_table_and_without(
    table_nodes: int, who: Adversary, sent: list[tuple[tuple[int, int], bool]]
) -> None:
    view = View.__new__(View)
    view.adversary = who
    view.graph = _Graph()  # type: ignore[assignment]
    src = np.array([arc[0] for arc, _ in sent], np.int64)
    dst = np.array([arc[1] for arc, _ in sent], np.int64)
    secure = np.array([closed for _, closed in sent], bool)
    before = module.TABLE_NODES
    module.TABLE_NODES = table_nodes
    try:
        found = view._observed(src, dst, secure)
    finally:
        module.TABLE_NODES = before
    assert found.tolist() == [stated(who, *arc, closed) for arc, closed in sent]
