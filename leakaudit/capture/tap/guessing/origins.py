"""Where the constants of a description come from: the messages, the program, or a user's word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leakaudit.capture.fitting.records import RecordCounts
from leakaudit.capture.tap.guessing import confirm, hub, observed
from leakaudit.capture.tap.guessing.explanation import GuessedModel, MessageExplanation, explain
from leakaudit.capture.tap.guessing.program import StatedRecords
from leakaudit.capture.tap.log.reading import RankLog
from leakaudit.capture.tap.messages.description import MessageDescription
from leakaudit.core.errors import LeakauditError
from leakaudit.core.evidence import Evidence, Origin

COUNTS = ("samples", "batch")


def origins(
    described: MessageDescription,
    logs: Sequence[RankLog],
    params: Mapping[str, Any],
    inferred: bool,
) -> tuple[Evidence, ...]:
    """Return where payload, constants and numbers of records of a trace come from."""
    word = Origin.ASSUMED if inferred else Origin.DECLARED
    try:
        seen = observed.collect(logs, described.task, described.places)
        explained = explain(seen, described.task)
    except LeakauditError:
        known = [Evidence(name, word) for name in ("payload", *described.params)]
        return (*known, *_unknown({*COUNTS} - described.params.keys(), ""))
    return (
        _payload(described, explained, word),
        *_constants(described, explained, params, word),
        *_records(described, explained, word),
    )


def remark(found: Sequence[Evidence]) -> list[str]:
    """Return what is known about the numbers of records, in one line if there is anything."""
    counts = [one for one in found if one.subject in COUNTS]
    shown = [one.detail for one in counts if one.detail]
    if not shown:
        return []
    origins = ", ".join(f"{one.subject} {one.origin.words}" for one in counts)
    return [f"{origins}: {shown[0]}"]


def _payload(
    described: MessageDescription, explained: MessageExplanation, word: Origin
) -> Evidence:
    sent = explained.sent
    origin = word
    if sent.payload == described.payload and sent.sure == "sure":
        origin = Origin.STATED if explained.seen.hooked else Origin.VERIFIED
    return Evidence("payload", origin, sent.why)


def _constants(
    described: MessageDescription,
    explained: MessageExplanation,
    params: Mapping[str, Any],
    word: Origin,
) -> Iterator[Evidence]:
    stated = explained.stated
    program = explained.program
    shown = confirm.compared(described, explained)
    for name in params:
        if name in COUNTS:
            continue
        if params[name] == "unknown":
            yield Evidence(name, Origin.UNKNOWN)
        elif program is not None and program.params.get(name) == params[name]:
            sure = program.replayed is not None and program.replayed.agrees
            yield Evidence(name, Origin.VERIFIED if sure else Origin.STATED, program.comment)
        elif name not in described.params:
            yield Evidence(name, Origin.VERIFIED, "it predicts models that it was not fitted to")
        elif stated is not None and name in stated.params:
            yield Evidence(name, Origin.STATED, "Opacus' optimiser")
        elif name in shown and shown[name][1]:
            miss = 0.0 if explained.model.found is None else explained.model.found.miss
            yield Evidence(name, Origin.VERIFIED, f"recomputed gradients miss by {miss:.1g}")
        else:
            yield Evidence(name, word)


def _records(
    described: MessageDescription, explained: MessageExplanation, word: Origin
) -> Iterator[Evidence]:
    shown = explained.model.records
    text = "" if shown is None else shown.text
    samples = described.params.get("samples") or 0
    batch = described.params.get("batch") or 0
    program = StatedRecords() if explained.program is None else explained.program.records
    if batch:
        yield _count("batch", batch, shown, explained.model, word, program)
    if samples:
        if shown is not None and max(shown.together, shown.most) > samples:
            yield Evidence("samples", Origin.CONTRADICTED, text)
        elif explained.model.reused and samples == 1:
            yield Evidence("samples", Origin.VERIFIED, explained.model.reused)
        elif program.reused and samples == program.batch:
            yield Evidence("samples", Origin.STATED, _joined(program.text, text))
        elif samples in hub.examples(explained.seen):
            yield Evidence("samples", Origin.STATED, "clients report it")
        else:
            yield Evidence("samples", word, text)
    missing = {name for name, value in (("samples", samples), ("batch", batch)) if not value}
    if samples and (explained.model.reused or program.reused):
        missing.discard("batch")  # one record of one is all of them
    elif word is Origin.DECLARED and described.params.get("batch") == 0:
        missing.discard("batch")
        differ = shown is not None and shown.differ
        yield Evidence("batch", Origin.CONTRADICTED if differ else word, text)
    yield from _unknown(missing, text)


def _count(
    name: str,
    batch: int,
    shown: RecordCounts | None,
    model: GuessedModel,
    word: Origin,
    program: StatedRecords,
) -> Evidence:
    text = "" if shown is None else shown.text
    if shown is not None and shown.most > batch:
        return Evidence(name, Origin.CONTRADICTED, text)
    if batch == program.batch and not program.reused:
        return Evidence(name, Origin.STATED, _joined(program.text, text))
    if shown is None:
        return Evidence(name, word)
    if batch == 1 and shown.single and model.found is not None:
        return Evidence(name, Origin.VERIFIED, shown.text)
    return Evidence(name, word, shown.text)


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))


def _unknown(names: set[str], text: str) -> Iterator[Evidence]:
    for name in sorted(names):
        yield Evidence(name, Origin.UNKNOWN, text)
