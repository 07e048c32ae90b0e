"""Compare the constants of a description with those that the messages prove.

The messages prove them where a gradient that is recomputed at a record equals what was sent (see
`fit`). Where they prove nothing, the description is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from leakaudit import registry
from leakaudit.capture.tap import duals, fit, hub, local, observed
from leakaudit.capture.tap.description import USUAL, Description
from leakaudit.capture.tap.guess import PROVED, SPREADS
from leakaudit.capture.tap.reading import RankLog
from leakaudit.errors import LeakauditError


def contradictions(described: Description, logs: Sequence[RankLog]) -> list[str]:
    """Return how a description contradicts the messages.

    Only descriptions in the form that `guess` writes are compared: a usual protocol, all messages,
    their values up to the sign, and the model's own order of parameters.

    Args:
        described: the description.
        logs: the logs of all processes.

    Returns:
        One line per value, with the value that the messages prove.
    """
    protocol = described.protocol
    usual = protocol == "fedavg" or USUAL[described.payload] == protocol
    if not usual or abs(described.scale) != 1:
        return []
    if described.order or described.tags is not None or described.kinds:
        return []
    try:
        seen = observed.collect(logs, described.task)
    except LeakauditError:
        return []
    if protocol == "fedavg":
        return list(_of_clients(described, seen))
    if described.payload == "weights":
        return list(_of_weights(described, seen))
    if described.payload == "duals":
        return list(_of_duals(described, seen))
    return []


def _of_weights(described: Description, seen: observed.Observed) -> Iterator[str]:
    """Compare order and step size of decentralised SGD."""
    samples = observed.samples(seen, "weights")
    declared = {**registry.values(described.victim), **described.params}
    order = declared["order"]
    fits = {}
    for point in ("combine", "adapt"):
        fitted = fit.at(described.task, point, samples)
        if fitted is not None and fitted.miss < PROVED:
            fits[point] = fitted
    if not fits:
        return
    if order not in fits:
        other = next(iter(fits))
        yield (
            f"params.order: {order!r} contradicts the messages, "
            f"whose gradients were computed as in {other!r}"
        )
        return
    found = fits[order]
    yield from _unequal("alpha", declared["alpha"], found.step, found.spread)


def _of_clients(described: Description, seen: observed.Observed) -> Iterator[str]:
    """Compare the server's step and the clients' training of FedAvg."""
    server = hub.server(seen)
    if server is None:
        return
    declared = {**registry.values(described.victim), **described.params}
    if declared["server"] == "mean" and hub.is_mean(seen, server) is False:
        yield "params.server: 'mean' contradicts the messages, which show another combination"
    if not hub.examples(seen) <= {1}:
        return
    samples = hub.samples(seen, server, "weights")
    proved = local.several([described.task], samples, hub.POINT)
    if proved is None:
        return
    if declared["epochs"] != proved.steps and not declared["batch"]:
        yield (
            f"params.epochs: {declared['epochs']} contradicts the messages, "
            f"which show {proved.steps}"
        )
    yield from _unequal("lr", declared["lr"], proved.lr, proved.miss)


def _of_duals(described: Description, seen: observed.Observed) -> Iterator[str]:
    """Compare sign, step size and penalty of PDMM."""
    solved = duals.solve(seen, [described.task])
    if solved is None or solved.fit.miss > PROVED or abs(solved.fit.step - 1) > PROVED:
        return
    if solved.sign != described.scale:
        yield (
            f"messages.scale: {described.scale:g} contradicts the messages, "
            f"which show {solved.sign}"
        )
    declared = {**registry.values(described.victim), **described.params}
    yield from _unequal("alpha", declared["alpha"], solved.alpha, solved.fit.spread)
    yield from _unequal("rho", declared["rho"], solved.rho, solved.fit.spread)


def _unequal(name: str, declared: float, proved: float, spread: float) -> Iterator[str]:
    """Yield a line if a constant is not the one that the messages prove."""
    if abs(declared - proved) > max(SPREADS * spread, PROVED) * abs(proved):
        yield f"params.{name}: {declared:g} contradicts the messages, which show {proved:.6g}"
