"""What an adversary learns about the nodes' gradients: from observed messages to leaks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from leakaudit.core import mapping, registry
from leakaudit.core.adversary import Adversary, node_list
from leakaudit.core.errors import LeakauditError, NotDetermined
from leakaudit.core.leak import GradientLeak, Leaks
from leakaudit.core.trace import Trace
from leakaudit.views.extraction import changes, gradient_values, two_steps
from leakaudit.views.extraction.deduction import ChosenRelations, Deduction

# Defaults for the bytes of the values of one leak, and for the number of gradients. Choices.
MEMORY = 512_000_000
MOST = 128

# Bytes of a gradient and its model in float64, and of an attack's copies of both, for each column.
HELD = 32

# Bytes for each column while one gradient is attacked and verified, in addition. Measured for the
# analytic attack on networks of 12 and 100 million parameters (83), and rounded up.
WORKING = 88

# Ratio of noise from which on a sum over several nodes replaces the gradients of one. A choice: its
# batch is larger, and therefore harder to attack.
CLEARER = 2.0


def leaks(
    trace: Trace,
    adversary: Adversary | str | None = None,
    nodes: Iterable[int] | None = None,
    rounds: int | None = None,
    estimator: str = "",
) -> Leaks:
    """Return what an adversary learns about the nodes' gradients.

    Args:
        trace: The recording.
        adversary: Who observes it, also as text such as "node:3"; by default an eavesdropper on
            all channels.
        nodes: Nodes to analyse, as a list; by default all that hold data and that the adversary
            does not control.
        rounds: Largest number of gradients; by default as many as fit into 512 MB, at most 128.
        estimator: How an attack wants them estimated (`Attack.estimator`); empty for the values
            that the relations determine.

    Raises:
        LeakauditError: A node does not exist or is the adversary's own, or a message holds NaN.
    """
    heard = Deduction(trace, Adversary() if adversary is None else Adversary.of(adversary))
    chosen = node_list(nodes)
    check_nodes(heard.view.adversary, chosen)
    found = deduce(heard, chosen, rounds, incomplete=True, estimator=estimator)
    mapping.verify()
    return replace(found, items=tuple(each_sum_once(found)))


def each_sum_once(leaks: Iterable[GradientLeak]) -> Iterator[GradientLeak]:
    """Yield the leaks, without those of sums that an earlier one contains."""
    covered: set[int] = set()
    for leak in leaks:
        if leak.node not in covered:
            covered.update(leak.others)
            yield leak


def deduce(
    heard: Deduction,
    nodes: Iterable[int] | None = None,
    rounds: int | None = None,
    *,
    incomplete: bool = False,
    estimator: str = "",
) -> Leaks:
    """Do what `leaks` does, for a deduction that is reused in several calls.

    A sum over several nodes is returned for each of them. An estimator is the local update that
    two-step estimates assume (`two_steps`); by default, the relations determine the values.
    """
    trace = heard.trace
    check_rounds(rounds)
    if rounds is None:
        rounds = _usual(trace)
    found: list[GradientLeak] = []
    reasons: dict[int, str] = {}
    not_understood: set[int] = set()
    if nodes is None:
        nodes = targets(trace, heard.view.adversary)
    for node in nodes:
        trace.graph.require(node, "trace")
        try:
            if estimator:
                found.append(two_steps.leak(heard, node, rounds, two_steps.expect(estimator)))
            else:
                found.append(_leak(heard, node, rounds))
        except NotDetermined as e:
            some = None
            if not estimator and (e.understood or not e.explained):
                some = _other(heard, node, rounds, incomplete)
            if some is not None:
                found.append(some)
                continue
            reasons[node] = str(e)
            if not e.understood:
                not_understood.add(node)
    return Leaks(trace.task, tuple(found), reasons, frozenset(not_understood))


def _usual(trace: Trace) -> int:
    """Return the default of the largest number of gradients of a node."""
    return max(4, min(MOST, MEMORY // (8 * (trace.columns[1] - trace.columns[0]))))


def check_nodes(adversary: Adversary, nodes: Collection[int] | None) -> None:
    """Reject nodes that the adversary controls: it learns nothing about what it knows."""
    own = sorted(adversary.corrupt & {*(nodes or ())})
    if own:
        raise LeakauditError(
            f"node {own[0]} is controlled by {adversary}, who knows its data; name other nodes"
        )


def check_rounds(rounds: int | None) -> None:
    """Reject a number of gradients that leaves nothing to examine."""
    if rounds is not None and rounds < 1:
        raise LeakauditError(f"gradients: expected a number of at least 1, got {rounds}")


def affordable(trace: Trace, rounds: int | None, memory: int) -> int | None:
    """Return the largest number of gradients of a node that an attack within some memory may use.

    Memory that does not depend on the model (programs, relations and blocks of messages) is left
    out.

    Args:
        rounds: The requested number; None for the default.
    """
    columns = trace.columns[1] - trace.columns[0]
    fits = max(0, memory - WORKING * columns) // (HELD * columns)
    wanted = min(rounds or 1, max(1, trace.rounds))
    if fits < wanted:
        fewer = "use a smaller --gradients" if fits else "record fewer columns (--layers)"
        gradients = "gradient" if wanted == 1 else "gradients"
        raise LeakauditError(
            f"{wanted} {gradients} of a node with {columns} columns need "
            f"{(HELD * wanted + WORKING) * columns} bytes, but --max-memory allows {memory}; "
            f"raise --max-memory or {fewer}"
        )
    if rounds is None and fits < min(_usual(trace), trace.rounds):
        return fits
    return rounds


def _leak(heard: Deduction, node: int, rounds: int) -> GradientLeak:
    """Return the node's own gradients, or a sum with other nodes' if noise hides it less."""
    what = heard.of(node, rounds)
    own = gradient_values.leak(heard, what)
    return clearer_sum(heard, what, float(own.std.min()), rounds) or own


def clearer_sum(
    heard: Deduction, what: ChosenRelations, noise: float, rounds: int
) -> GradientLeak | None:
    """Return a sum with gradients of other nodes that noise hides less than those of a node.

    Returns:
        None if there is none.
    """
    if not heard.loses_noise(what):
        return None
    summed = gradient_values.sum_leak(heard, what.node, rounds)
    if summed is None:
        return None
    # A mean over k nodes with independent noise has 1 / sqrt(k) of it, which shows nothing more.
    expected = noise / len(summed.nodes) ** 0.5
    return summed if CLEARER * float(summed.std.min()) < expected else None


def _other(heard: Deduction, node: int, rounds: int, incomplete: bool) -> GradientLeak | None:
    """Return a leak of sums of gradients.

    If incomplete, it may instead be one of some coordinates, or of what local steps changed.
    """
    if heard.base.changes:
        return changes.leak(heard, node, rounds) if incomplete else None
    if heard.base.omits:
        return gradient_values.partial_leak(heard, node, rounds) if incomplete else None
    return gradient_values.sum_leak(heard, node, rounds)


def targets(trace: Trace, adversary: Adversary) -> tuple[int, ...]:
    """Return the nodes that hold data and that the adversary does not control."""
    holders = trace.graph.nodes
    if registry.of_trace(trace.protocol, trace.provenance).centralised:
        holders -= 1  # the server, which is the last node
    return tuple(n for n in range(holders) if n not in adversary.corrupt)
