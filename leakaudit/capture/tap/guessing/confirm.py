"""Compare the constants of a description with those that the messages prove.

The messages prove them where a gradient that is recomputed at a record equals what was sent (see
`fit`). Where they prove nothing, the description is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from leakaudit.capture.fitting import factors, fit, local, local_optimiser, stepping
from leakaudit.capture.fitting.part import FactorDeviation
from leakaudit.capture.tap.guessing import duals, gradients, hub, observed
from leakaudit.capture.tap.guessing.draft import SPREADS
from leakaudit.capture.tap.guessing.explanation import PROVED
from leakaudit.capture.tap.guessing.payloads import Payload
from leakaudit.capture.tap.log.reading import RankLog
from leakaudit.capture.tap.messages import layouts
from leakaudit.capture.tap.messages.description import USUAL, MessageDescription
from leakaudit.capture.tap.messages.private import PrivateGradients, private
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError


def contradictions(described: MessageDescription, logs: Sequence[RankLog]) -> list[str]:
    """Return how a description contradicts the messages.

    Only descriptions in the form that `guess` writes are compared: a usual protocol, all messages,
    and their values up to the sign.
    """
    protocol = described.protocol
    usual = protocol == "fedavg" or USUAL[described.payload] == protocol
    if abs(described.scale) != 1 and described.payload != "gradients":
        usual = False
    if not usual or described.tags is not None or described.kinds:
        return []
    if described.stream is not None:
        return []
    try:
        seen = observed.collect(logs, described.task, described.places)
    except LeakauditError:
        return []
    stated = private(chain.from_iterable(seen.streams.values()), seen.slices)
    if stated is not None:
        return list(_of_private(described, stated))
    if protocol == "fedavg":
        return list(_of_clients(described, seen))
    if described.payload == "weights":
        wrong = list(_of_weights(described, seen))
    elif described.payload == "duals":
        wrong = list(_of_duals(described, seen))
    else:
        wrong = list(_of_gradients(described, seen))
    wrong += _of_rest(described, seen)
    if not wrong and not is_proved(described, seen):
        return list(_of_axes(described, logs))
    return wrong


def verified(described: MessageDescription, logs: Sequence[RankLog]) -> list[str]:
    """Return what the sketches of parameters that were left out show, in words."""
    try:
        seen = observed.collect(logs, described.task, described.places)
    except LeakauditError:
        return []
    sketched = [m for stream in seen.streams.values() for m in stream if m.sketched() is not None]
    if not sketched:
        return []
    misses = [one for one in _misses(described, seen) if max(one.kept, one.rest) < PROVED]
    if not misses or described.stream is not None:
        return ["the sketch of the other parameters was not compared with a recomputed gradient"]
    largest = max(one.rest for one in misses)
    return [
        f"{len(misses)} recomputed gradients equal the recorded parameters, and the sketch of the "
        f"others up to {largest:.1g}"
    ]


def _misses(
    described: MessageDescription, seen: observed.ChannelVectors
) -> Iterator[FactorDeviation]:
    """Yield how gradients recomputed from a part of the parameters differ from what was sent."""
    if described.payload == "duals":
        return
    payload: Payload = "weights" if described.payload == "weights" else "gradients"
    for sample in gradients.samples(seen, payload):
        if sample.part is None:
            continue
        for point in sorted(sample.thetas)[:1]:
            found = fit.misses(described.task, sample, point)
            if found is not None:
                yield found


def _of_rest(described: MessageDescription, seen: observed.ChannelVectors) -> Iterator[str]:
    """Yield a line if a gradient fits the recorded parameters, but not the sketch of the others."""
    for one in _misses(described, seen):
        if one.kept < PROVED <= one.rest:
            yield (
                f"model: a recomputed gradient equals the recorded parameters to {one.kept:.1g}, "
                f"but misses the sketch of the others by {one.rest:.2g}: there, the model or what "
                "the program does with its gradient is another"
            )
            return


def is_proved(described: MessageDescription, seen: observed.ChannelVectors) -> bool:
    """Return whether recomputed gradients equal those of the messages.

    Args:
        seen: the messages, in the order that it declares.
    """
    if described.payload == "weights":
        return _optimiser(described, seen) is not None
    if described.payload == "duals":
        solved = duals.solve(seen, [described.task])
        return solved is not None and solved.proved
    found = _gradient(described, seen)
    if found is None:
        return False
    return all(_is_one(one.factor * described.scale_in(one.index)) for one in found.compared)


def _of_axes(described: MessageDescription, logs: Sequence[RankLog]) -> Iterator[str]:
    """Yield a line if the messages prove other axes of the parameters than those described."""
    for order in layouts.toggled(described.order, described.task.layout):
        other = replace(described, order=order)
        seen = observed.collect(logs, other.task, other.places)
        if is_proved(other, seen):
            yield (
                f"messages.order: {_written(described)} contradicts the messages; the gradients "
                f"that follow from them show {_written(other)}"
            )
            return


def _written(described: MessageDescription) -> str:
    entries = described.order or described.task.layout.names
    return f"[{', '.join(entries)}]"


def _optimiser(
    described: MessageDescription, seen: observed.ChannelVectors
) -> tuple[str, stepping.Stepping] | None:
    """Return the optimiser of the nodes, and where they compute gradients, if both are proved."""
    samples = gradients.samples(seen, "weights")
    if not samples:
        return None
    return local_optimiser.identify(described.task, sorted(samples[0].thetas), samples)


def _of_weights(described: MessageDescription, seen: observed.ChannelVectors) -> Iterator[str]:
    """Compare order, optimiser and step size of decentralised SGD."""
    declared = {**registry.values(described.victim), **described.params}
    order = declared["order"]
    found = _optimiser(described, seen)
    if found is None:
        return
    point, named = found
    if point != order:
        yield (
            f"params.order: {order!r} contradicts the messages, "
            f"whose gradients were computed as in {point!r}"
        )
        return
    if declared["optimiser"] != named.optimiser.kind:
        yield (
            f"params.optimiser: {declared['optimiser']!r} contradicts the messages, "
            f"which show {named.text}"
        )
        return
    for name in ("momentum", "decay"):
        yield from _unequal(name, declared[name], getattr(named.optimiser, name), named.miss)
    if named.rate is not None:
        yield from _unequal("alpha", declared["alpha"], named.rate, named.miss)


def _gradient(
    described: MessageDescription, seen: observed.ChannelVectors
) -> factors.Factors | None:
    """Return how recomputed gradients equal those that were sent; None if they do not."""
    samples = gradients.samples(seen, "gradients")
    found = fit.fit([described.task], samples)
    if found is None:
        return None
    run = gradients.run(seen)
    ranks = len(seen.own)
    rounds = gradients.rounds(seen)
    shown = factors.compare(described.task, found.point, run, ranks, rounds)
    return shown if shown.proved else None


def _of_gradients(described: MessageDescription, seen: observed.ChannelVectors) -> Iterator[str]:
    """Compare the factor of gradients: a program may send multiples of them."""
    found = _gradient(described, seen)
    if found is None:
        return
    for one in found.compared:
        scale = described.scale_in(one.index)
        if not _is_one(one.factor * scale):
            yield (
                f"messages.scale: {scale:g} contradicts the messages of round {one.index}, which "
                f"are {one.factor:.6g} times the recomputed gradients and need {1 / one.factor:.6g}"
            )
            return


def _of_private(described: MessageDescription, stated: PrivateGradients) -> Iterator[str]:
    """Compare the constants with those that Opacus states; messages show them only in part."""
    if stated.why:
        yield f"protocol: {described.protocol} contradicts the program: {stated.why}"
        return
    declared = {**registry.values(described.victim), **described.params}
    known = {"clip": 0.0, "sigma": 0.0, "noisy": "all", **stated.params, "scale": stated.scale}
    known.pop("samples", None)
    for name, value in known.items():
        held = described.scale if name == "scale" else declared[name]
        same = held == value
        if isinstance(value, float):
            same = abs(held - value) <= PROVED * abs(value)
        if not same:
            where = "messages" if name == "scale" else "params"
            yield f"{where}.{name}: {held} contradicts Opacus, which states {value}"


def _is_one(factor: float) -> bool:
    return abs(factor - 1) < PROVED


def _of_clients(described: MessageDescription, seen: observed.ChannelVectors) -> Iterator[str]:
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
    name = "steps" if declared["steps"] else "epochs"
    if declared[name] != proved.steps and (declared["steps"] or not declared["batch"]):
        yield (
            f"params.{name}: {declared[name]} contradicts the messages, which show {proved.steps}"
        )
    for name in ("momentum", "decay"):
        shown = getattr(proved.optimiser, name)
        yield from _unequal(name, declared[name], shown, proved.miss)
    yield from _unequal("lr", declared["lr"], proved.lr, proved.miss)


def _of_duals(described: MessageDescription, seen: observed.ChannelVectors) -> Iterator[str]:
    """Compare sign, step size and penalty of PDMM."""
    solved = duals.solve(seen, [described.task])
    if solved is None or not solved.proved:
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
