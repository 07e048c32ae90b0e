"""Gradients that overflowed because their loss was scaled, and that no step used."""

# `torch.amp.GradScaler` begins with a large factor. If a gradient of a rank is not finite, no rank
# takes a step, and the factor is lowered. Such a gradient is of no round: the model does not move.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from leakaudit.capture.tap.messages.stated import intervals
from leakaudit.capture.tap.messages.streams import (
    GRADIENTS,
    MODELS,
    LogChannel,
    LoggedMessage,
)

Streams = Mapping[LogChannel, list[LoggedMessage]]


def without_skipped(streams: Streams) -> tuple[dict[LogChannel, list[LoggedMessage]], int]:
    """Return messages without those of skipped steps, and the number of these steps."""
    gradients = [
        stream for wire, stream in streams.items() if wire.op in GRADIENTS and wire.op not in MODELS
    ]
    steps = _skipped(gradients)
    if not steps:
        return dict(streams), 0
    kept: dict[LogChannel, list[LoggedMessage]] = {}
    for wire, stream in streams.items():
        kept[wire] = [
            replace(message, index=message.index - sum(step < message.index for step in steps))
            for message in stream
            if message.index not in steps
        ]
    return {wire: stream for wire, stream in kept.items() if stream}, len(steps)


def _skipped(gradients: Sequence[Sequence[LoggedMessage]]) -> set[int]:
    """Return the positions of messages that all ranks skipped, and that are not finite on one."""
    without: list[set[int]] = []
    for stream in gradients:
        scaled = pairwise(intervals(stream))
        found: set[int] = set()
        for message, (before, after) in zip(stream, scaled, strict=True):
            if before.last.loss_scale != 1 and not after.steps:
                found.add(message.index)
        without.append(found)
    if not without:
        return set()
    some = set.intersection(*without)
    return {
        message.index
        for stream in gradients
        for message in stream
        if message.index in some and message.kept and not bool(message.value.isfinite().all())
    }
