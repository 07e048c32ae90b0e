"""Compare the constants of a description with those that the messages prove."""

# The messages prove them where a gradient that is recomputed at a record equals what was sent (see
# `fit`). Where they prove nothing, the description is believed.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from leakaudit.capture.fitting import factors, fit, local, local_optimiser, stepping
from leakaudit.capture.fitting.sketch import FactorDeviation
from leakaudit.capture.tap.guessing import duals, gradients, hub, observed
from leakaudit.capture.tap.guessing.draft import SPREADS
from leakaudit.capture.tap.guessing.explanation import PROVED
from leakaudit.capture.tap.guessing.payloads import Payload
from leakaudit.capture.tap.log.reading import RankLog
from leakaudit.capture.tap.messages import layouts
from leakaudit.capture.tap.messages.description import USUAL, MessageDescription
from leakaudit.capture.tap.messages.private import PrivateGradients, private
from leakaudit.core.errors import LeakauditError


def contradictions(described: MessageDescription, logs: Sequence[RankLog]) -> list[str]:
    """Return how a description of the form that `guess` writes contradicts the messages."""
    usual = described.protocol in ("fedavg", USUAL[described.payload])
    scaled = abs(described.scale) != 1 and described.payload != "gradients"
    selected = described.tags is not None or described.kinds or described.stream is not None
    if not usual or scaled or selected:
        return []
    try:
        seen = observed.collect(logs, described.task, described.places)
    except LeakauditError:
        return []
    stated = private(chain.from_iterable(seen.streams.values()), seen.slices)
    if stated is not None:
        return list(_of_private(described, stated))
    if described.protocol == "fedavg":
        return list(_of_clients(described, seen))
    by_payload = {"weights": _of_weights, "duals": _of_duals, "gradients": _of_gradients}
    wrong = [*by_payload[described.payload](described, seen), *_of_rest(described, seen)]
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
    misses = [one for one in _misses(described, seen) if one.miss < PROVED]
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
    """Return whether recomputed gradients equal those of the messages, in the described order."""
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
            given = described.order or described.task.layout.names
            yield (
                f"messages.order: [{', '.join(given)}] contradicts the messages; the gradients "
                f"that follow from them show [{', '.join(order)}]"
            )
            return


def _optimiser(
    described: MessageDescription, seen: observed.ChannelVectors
) -> tuple[str, stepping.Stepping] | None:
    """Return the optimiser of the nodes, and where they compute gradients, if both are proved."""
    samples = gradients.samples(seen, "weights")
    if not samples:
        return None
    return local_optimiser.identify(described.task, sorted(samples[0].thetas), samples)


def _of_weights(described: MessageDescription, seen: observed.ChannelVectors) -> Iterator[str]:
    declared = described.constants
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
    shown = {"momentum": named.optimiser.momentum, "decay": named.optimiser.decay}
    if named.rate is not None:
        shown["alpha"] = named.rate
    yield from _unequal(declared, shown, named.miss)


def _gradient(
    described: MessageDescription, seen: observed.ChannelVectors
) -> factors.Factors | None:
    """Return how recomputed gradients equal those that were sent; None if they do not."""
    found = fit.fit([described.task], gradients.samples(seen, "gradients"))
    if found is None:
        return None
    shown = gradients.compared(seen, found, gradients.run(seen))
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
    declared = described.constants
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
    server = hub.server(seen)
    if server is None:
        return
    declared = described.constants
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
    optimiser = proved.optimiser
    shown = {"momentum": optimiser.momentum, "decay": optimiser.decay, "lr": proved.lr}
    yield from _unequal(declared, shown, proved.miss)


def _of_duals(described: MessageDescription, seen: observed.ChannelVectors) -> Iterator[str]:
    solved = duals.solve(seen, [described.task])
    if solved is None or not solved.proved:
        return
    if solved.sign != described.scale:
        yield (
            f"messages.scale: {described.scale:g} contradicts the messages, "
            f"which show {solved.sign}"
        )
    shown = {"alpha": solved.alpha, "rho": solved.rho}
    yield from _unequal(described.constants, shown, solved.fit.spread)


def _unequal(
    declared: Mapping[str, Any], shown: Mapping[str, float], spread: float
) -> Iterator[str]:
    """Yield a line for each constant that is not the one that the messages prove."""
    for name, proved in shown.items():
        if abs(declared[name] - proved) > max(SPREADS * spread, PROVED) * abs(proved):
            yield (
                f"params.{name}: {declared[name]:g} contradicts the messages, "
                f"which show {proved:.6g}"
            )
