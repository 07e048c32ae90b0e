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

NO_GRADIENT = (
    "no recomputed gradient equals those of the messages (several records per gradient, another "
    "kind of first layer, or a wrong description)"
)


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
        *_of_program(described, explained),
        *_of_rest(described, explained.seen),
    ]
    if not wrong and _doubt(described, explained):
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


def doubt(described: MessageDescription, logs: Sequence[RankLog]) -> str:
    """Return why recomputed gradients do not confirm model and order; empty if they do."""
    return _doubt(described, _explained(described, logs))


def _doubt(described: MessageDescription, explained: MessageExplanation) -> str:
    wrong = next(_of_scale(described, explained), "")
    if wrong or explained.model.found is not None:
        return wrong
    return explained.model.doubt or NO_GRADIENT


def _of_axes(described: MessageDescription, logs: Sequence[RankLog]) -> Iterator[str]:
    for order in layouts.toggled(described.order, described.task.layout):
        other = replace(described, order=order)
        if not _doubt(other, _explained(other, logs)):
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
    if found is None or described.payload != "gradients" or not found.proved or found.clipped:
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
    if described.protocol != USUAL["gradients"]:
        yield f"protocol: {described.protocol} contradicts the program: Opacus sends {stated.words}"
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
    for name, (proved, agrees) in compared(described, explained).items():
        if not agrees:
            shown = f"{proved:.6g}" if isinstance(proved, float) else repr(proved)
            yield (
                f"params.{name}: {declared[name]!r} contradicts the messages, which show {shown}"
            )


def _of_program(described: MessageDescription, explained: MessageExplanation) -> Iterator[str]:
    """Compare the constants with those that the program states, if the messages confirm these."""
    program = explained.program
    if program is None or program.replayed is None or not program.replayed.agrees:
        return
    for name, stated in program.params.items():
        declared = described.params.get(name, stated)
        if declared != "unknown" and not _agree(declared, stated, PROVED):
            yield f"params.{name}: {declared!r} contradicts {stated!r}, which is {program.comment}"


def compared(
    described: MessageDescription, explained: MessageExplanation
) -> dict[str, tuple[Any, bool]]:
    """Return each constant that the messages prove, and whether the described one agrees."""
    declared = described.constants
    found = explained.model.found
    near = PROVED if found is None else max(SPREADS * found.spread, PROVED)
    shown: dict[str, tuple[Any, bool]] = {}
    for name, proved in _proved(described, explained).items():
        if name in declared:
            shown[name] = proved, _agree(declared[name], proved, near)
    return shown


def _proved(described: MessageDescription, explained: MessageExplanation) -> dict[str, Any]:
    model = explained.model
    found = model.found
    if described.payload != explained.sent.payload:
        return {}
    if model.solved is not None:
        return {"alpha": model.solved.alpha, "rho": model.solved.rho}
    if found is None or described.payload != "weights":
        return {}
    chosen = found.optimiser
    shown: dict[str, Any] = {"optimiser": chosen.kind, "decay": chosen.decay}
    if model.stepping is not None or found.steps > 1:
        shown["momentum"] = chosen.momentum
        if chosen.momentum:
            shown["nesterov"] = chosen.nesterov
    if described.protocol == "fedavg":
        return {**shown, **_of_training(described, found)} if explained.server is not None else {}
    if model.stepping is None:
        return {}
    shown["order"] = found.point
    if model.stepping.rate is not None:
        shown["alpha"] = found.step
    return shown


def _of_training(described: MessageDescription, found: fit.ModelFit) -> dict[str, Any]:
    """Return the number and the size of the steps that clients of FedAvg take."""
    declared = described.constants
    shown: dict[str, Any] = {"lr": found.step}
    if found.steps == 1 and declared["nesterov"]:
        # A first step shows momentum only in its size: Nesterov's is lr (1 + momentum).
        shown["lr"] /= 1 + declared["momentum"]
    if declared["steps"]:
        shown["steps"] = found.steps
    elif not declared["batch"]:
        shown["epochs"] = found.steps
    return shown
