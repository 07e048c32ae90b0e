"""Guess the meaning of a log's messages, and state how certain the guess is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakaudit.capture.fitting.factors import Factors
from leakaudit.capture.fitting.stepping import obstacle
from leakaudit.capture.tap.guessing import observed
from leakaudit.capture.tap.guessing.draft import add_order, blank, drafted
from leakaudit.capture.tap.guessing.explanation import (
    GuessedModel,
    MessageExplanation,
    best,
    explain,
)
from leakaudit.capture.tap.guessing.observed import ChannelVectors
from leakaudit.capture.tap.log.reading import RankLog
from leakaudit.capture.tap.messages import answers, description
from leakaudit.capture.tap.messages.description import ASK, MessageDescription
from leakaudit.capture.tap.messages.layouts import arrangements, places
from leakaudit.capture.tap.messages.stated import holds_parts
from leakaudit.capture.tap.messages.wires import latest
from leakaudit.tasks import remarks
from leakaudit.tasks.task import Task

SHOWN = 6  # names of parameters in one line
# Messages of a channel to which equations can be fitted: two rounds, two that are held back, and
# one before them.
FEWEST = 5
IN_PARTS = (
    "each process computes with a part of the model (tensor parallelism): what they exchange are "
    "outputs of layers and their gradients, which no protocol of leakaudit describes"
)
EQUATIONS = (
    'if no bundled protocol describes the program, enter protocol = "own:NAME" without [params]; '
    "then 'leakaudit trace equations' looks for its equations in the trace"
)


@dataclass(frozen=True)
class Guess:
    """The result of a guess."""

    said: str  # the finding in one line
    evidence: tuple[str, ...]  # the reasons, one line each
    toml: str  # a description to start from
    description: MessageDescription | None  # the same as a value; None if it has gaps
    # what may help if the protocol is not known, in one line; empty if nothing does
    advice: str = ""


def guess(
    logs: Sequence[RankLog], task: Task | None = None, named: bool = False, assumed: str = ""
) -> Guess:
    """Guess a description of a log; named: whether its tensors have names of their own."""
    answers.check(logs)
    changed = answers.changed(logs)
    readings = list(_readings(latest(logs), task))
    explanations = [explain(seen, task) for seen, _ in readings]
    possible = best([one.model for one in explanations])
    _, order = readings[possible[0]]
    explained = explanations[possible[0]]
    evidence = tuple(_evidence(explained, logs, task))

    if task is None and _fits_both(explained.model):
        assumed = "binary or squared: one output fits both"
    draft = drafted(explained, changed, assumed)
    usual = list(order) == [str(k) for k in range(len(order))]
    if order and (named or len(possible) > 1 or not usual):
        add_order(draft, explained.model, order, len(possible))
    values = draft.values
    gaps = draft.gaps
    if gaps:
        known = f"to be filled in: {', '.join(gaps)}"
    else:
        known = "; ".join(filter(None, (_listed(values["params"]), _named(values["model"]))))
        if task is None and explained.model.found is None:
            known += " (of the right size, not proved)"
    shown = explained.model.records
    beside = "" if task is None else task.spec.beside
    if shown is not None and shown.differ:
        known += f"; {shown.text}"
    return Guess(
        said=f"{_headline(gaps, values['protocol'], explained)}; {known}",
        evidence=evidence,
        toml=draft.toml(evidence),
        description=None if gaps else description.of(values, trusted=True, beside=beside),
        advice="" if changed else _advice(gaps, explained, logs),
    )


def _advice(gaps: Sequence[str], explained: MessageExplanation, logs: Sequence[RankLog]) -> str:
    open_ = [gap for gap in gaps if gap in ("payload", "protocol") or "params." in gap]
    if "payload" in gaps and holds_parts(logs):
        return IN_PARTS
    if not open_ or explained.stated is not None or explained.seen.missing:
        return ""
    streams = explained.seen.streams.values()
    if max(map(len, streams), default=0) < FEWEST:
        return ""
    task = explained.model.task
    dtypes = {message.dtype for stream in streams for message in stream}
    if task is not None and any(obstacle(task, dtype) for dtype in dtypes):
        return ""
    return EQUATIONS


def unknown(why: str, rounds: int) -> Guess:
    """Return a guess in which nothing is known."""
    draft = blank()
    return Guess(
        said=f"to be filled in: {', '.join(draft.gaps)}",
        evidence=(why,),
        toml=draft.toml((why,)),
        description=None,
        advice=EQUATIONS if rounds >= FEWEST else "",
    )


def _readings(
    logs: Sequence[RankLog], task: Task | None
) -> Iterator[tuple[ChannelVectors, Sequence[str]]]:
    """Yield the messages in each order and with the axes in which they may hold the parameters."""
    shapes = observed.shapes(logs, task)
    found = arrangements(shapes)
    if task is not None:
        lengths = observed.lengths_of(task.layout)
        found = [one for one in found if observed.lengths_of(one[0]) == lengths]
    if not found:
        yield observed.collect(logs, task), ()
    for layout, order in found:
        yield observed.collect(logs, task, places(order, layout)), order


def _headline(gaps: Sequence[str], protocol: str, explained: MessageExplanation) -> str:
    payload = f"{explained.sent.payload} ({explained.sent.sure})"
    if explained.stated is not None:
        payload = f"{explained.stated.words} (as Opacus states)"
    if "payload" in gaps:
        payload = f"payload {ASK}"
    if "protocol" in gaps:
        protocol = f"protocol {ASK}"
    return f"{payload}, {protocol}"


def _evidence(
    explained: MessageExplanation, logs: Sequence[RankLog], task: Task | None
) -> Iterator[str]:
    """Yield the reasons, one line each; task: the one given by the user."""
    seen = explained.seen
    size = seen.sizes[-1]
    count = sum(map(len, seen.streams.values()))
    yield explained.sent.why
    broken = seen.broken
    if broken is not None:
        yield (
            "the program's own numbers contain NaN or infinity, first in message "
            f"{broken.index} of rank {broken.src} ({broken.op})"
        )
    yield f"{count} messages of {size} numbers on {len(seen.streams)} channels"
    sent = "the recorded parameters and the sketch of the others" if seen.missing else ""
    yield _of_model(explained.model, task is not None, size, sent)
    if explained.model.records is not None:
        yield f"records: {explained.model.records.text}"
    if explained.program is not None:
        yield from explained.program.evidence
    yield from _partial(seen)
    yield from seen.notes
    yield from answers.remarks(logs)
    if task is not None:
        yield from remarks.of(task)
    if explained.stated is not None:
        yield from explained.stated.remarks


def _of_model(model: GuessedModel, given: bool, size: int, sent: str) -> str:
    """Return the evidence for the model; sent: what was compared, if not all that was sent."""
    found = model.found
    if found is not None and model.factors is not None:
        return _of_factors(model.factors, sent or "what was sent")
    if found is not None:
        what = "a gradient" if found.steps == 1 else f"{found.steps} local steps"
        return (
            f"{what} recomputed at the record that a message reveals matches "
            f"{sent or 'the message'} up to {found.miss:.1g}: model, loss and step are correct"
        )
    if model.moved:
        return (
            f"every coordinate that moves, moves by {model.moved:.3g}: one or a few first steps of "
            "Adam, Adagrad, RMSprop or signed gradients, which show the sign of a gradient and not "
            "its size"
        )
    if model.doubt:
        return model.doubt
    if given:
        return "the size of the model fits; nothing else could be proved from the messages"
    if _fits_both(model):
        return (
            "the widths are those of the tensors; one output fits loss binary as well as squared, "
            "and the activation is a guess"
        )
    if model.task is not None:
        return (
            "the widths are those of the tensors, or of a first layer that reveals single records; "
            "the activation is a guess"
        )
    return (
        f"no layer reveals single records, and {size} numbers fit many models: "
        "specify yours with --model, --shape and --classes"
    )


def _of_factors(found: Factors, sent: str) -> str:
    said = f"{found.which} recomputed at single records match {sent} up to {found.miss:.1g}"
    if found.coarse:
        return (
            f"{said}, where its rounding explains {found.allowed:.1g}: model, loss and step agree "
            "as far as this number format shows"
        )
    if found.is_loss_scale:
        return f"{said}: model and loss are correct; {found.why}"
    return f"{said}: model, loss and step are correct"


def _fits_both(model: GuessedModel) -> bool:
    """Return whether a model that was guessed has one output, which does not show its loss."""
    if model.task is None or model.found is not None:
        return False
    return model.task.spec.loss == "binary"


def _partial(seen: ChannelVectors) -> list[str]:
    found: list[str] = []
    missing = seen.missing
    if missing:
        what = "were not recorded (--layers)" if seen.chosen else "do not travel"
        found.append(
            f"{len(missing)} of {len(seen.sizes) - 1} parameters {what}: "
            f"{', '.join(missing[:SHOWN])}{', ...' if len(missing) > SHOWN else ''}"
        )
    if seen.lane is not None:
        found.append(f"several streams have messages of this size; this is stream {seen.lane!r}")
    return found


def _listed(params: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in params.items())


def _named(model: Mapping[str, Any]) -> str:
    shape = "x".join(map(str, model["shape"]))
    named = f"{model['name']} {_listed(model['args'])}".strip()
    return f"{named} for inputs {shape}"
