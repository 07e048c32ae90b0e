"""Compare the constants of a description with those that the messages prove."""

# The messages prove them where a gradient that is recomputed at a record equals what was sent (see
# `fit`). Where they prove nothing, the description is believed.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from leakaudit.capture.fitting import fit
from leakaudit.capture.fitting.sketch import FactorDeviation
from leakaudit.capture.tap.guessing import gradients, hub, observed
from leakaudit.capture.tap.guessing.draft import SPREADS
from leakaudit.capture.tap.guessing.explanation import PROVED, MessageExplanation, explain
from leakaudit.capture.tap.log.reading import RankLog
from leakaudit.capture.tap.messages import layouts
from leakaudit.capture.tap.messages.description import USUAL, MessageDescription
from leakaudit.capture.tap.messages.private import PrivateGradients
from leakaudit.core.errors import LeakauditError


def contradictions(described: MessageDescription, logs: Sequence[RankLog]) -> list[str]:
    """Return how a description of the form that `guess` writes contradicts the messages."""
    usual = described.protocol in ("fedavg", USUAL[described.payload])
    scaled = abs(described.scale) != 1 and described.payload != "gradients"
    selected = described.tags is not None or described.kinds or described.stream is not None
    if not usual or scaled or selected:
        return []
    try:
        explained = _explained(described, logs)
    except LeakauditError:
        return []
    if explained.stated is not None:
        return list(_of_private(described, explained.stated))
    wrong = [
        *_of_scale(described, explained),
        *_of_constants(described, explained),
        *_of_rest(described, explained.seen),
    ]
    if not wrong and not _is_proved(described, explained):
        return list(_of_axes(described, logs))
    return wrong


def _explained(described: MessageDescription, logs: Sequence[RankLog]) -> MessageExplanation:
    seen = observed.collect(logs, described.task, described.places)
    return explain(seen, described.task, described.payload)


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
    for sample in gradients.samples(seen, described.payload):
        found = fit.misses(described.task, sample)
        if found is not None:
            yield found


def _of_rest(described: MessageDescription, seen: observed.ChannelVectors) -> Iterator[str]:
    for one in _misses(described, seen):
        if one.kept < PROVED <= one.rest:
            yield (
                f"model: a recomputed gradient equals the recorded parameters to {one.kept:.1g}, "
                f"but misses the sketch of the others by {one.rest:.2g}: there, the model or what "
                "the program does with its gradient is another"
            )
            return


def is_proved(described: MessageDescription, logs: Sequence[RankLog]) -> bool:
    """Return whether recomputed gradients equal those of the messages, in the described order."""
    return _is_proved(described, _explained(described, logs))


def _is_proved(described: MessageDescription, explained: MessageExplanation) -> bool:
    return explained.model.found is not None and not any(_of_scale(described, explained))


def _of_axes(described: MessageDescription, logs: Sequence[RankLog]) -> Iterator[str]:
    for order in layouts.toggled(described.order, described.task.layout):
        if is_proved(replace(described, order=order), logs):
            given = described.order or described.task.layout.names
            yield (
                f"messages.order: [{', '.join(given)}] contradicts the messages; the gradients "
                f"that follow from them show [{', '.join(order)}]"
            )
            return


def _of_scale(described: MessageDescription, explained: MessageExplanation) -> Iterator[str]:
    """Compare the factor of what is sent: a program may send multiples of it."""
    solved = explained.model.solved
    if solved is not None and solved.sign != described.scale:
        yield (
            f"messages.scale: {described.scale:g} contradicts the messages, "
            f"which show {solved.sign}"
        )
    found = explained.model.factors
    if found is None or described.payload != "gradients" or not found.proved:
        return
    for one in found.compared:
        scale = described.scale_in(one.index)
        if abs(one.factor * scale - 1) >= PROVED:
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
    known = {"clip": 0.0, "sigma": 0.0, "noisy": "all", **stated.params, "scale": stated.scale}
    known.pop("samples", None)
    for name, value in known.items():
        held = described.scale if name == "scale" else described.constants[name]
        if not _agree(held, value, PROVED):
            where = "messages" if name == "scale" else "params"
            yield f"{where}.{name}: {held} contradicts Opacus, which states {value}"


def _agree(declared: Any, shown: Any, near: float) -> bool:
    if isinstance(shown, float):
        return bool(abs(declared - shown) <= near * abs(shown))
    return bool(declared == shown)


def _of_constants(described: MessageDescription, explained: MessageExplanation) -> Iterator[str]:
    declared = described.constants
    server = explained.server
    stated = described.protocol == "fedavg" and declared["server"] == "mean"
    if stated and server is not None and hub.is_mean(explained.seen, server) is False:
        yield "params.server: 'mean' contradicts the messages, which show another combination"
    found = explained.model.found
    for name, proved in _proved(described, explained).items():
        near = PROVED if found is None else max(SPREADS * found.spread, PROVED)
        if not _agree(declared[name], proved, near):
            shown = f"{proved:.6g}" if isinstance(proved, float) else repr(proved)
            yield (
                f"params.{name}: {declared[name]!r} contradicts the messages, which show {shown}"
            )


def _proved(described: MessageDescription, explained: MessageExplanation) -> dict[str, Any]:
    model = explained.model
    found = model.found
    if model.solved is not None:
        return {"alpha": model.solved.alpha, "rho": model.solved.rho}
    if found is None or described.payload != "weights":
        return {}
    memory = {"momentum": found.optimiser.momentum, "decay": found.optimiser.decay}
    declared = described.constants
    if described.protocol == "fedavg" and explained.server is not None:
        shown: dict[str, Any] = {**memory, "lr": found.step}
        if declared["steps"]:
            shown["steps"] = found.steps
        elif not declared["batch"]:
            shown["epochs"] = found.steps
        return shown
    if described.protocol == "fedavg" or model.stepping is None:
        return {}
    shown = {"order": found.point, "optimiser": found.optimiser.kind, **memory}
    if model.stepping.rate is not None:
        shown["alpha"] = found.step
    return shown
