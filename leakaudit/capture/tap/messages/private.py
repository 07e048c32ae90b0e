"""What Opacus states about the clipped gradients of a log, as constants of FedSGD."""

# The constants are those of the program's own optimiser. They are compared with the messages: the
# noise in a message must have the stated size, and a message without noise must not be longer than
# clipping allows.

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from leakaudit._util.plain import is_number
from leakaudit.capture.tap.messages.streams import LoggedMessage

OPERATION = "opacus"  # the word for a rank's clipped gradient in a log
# The root of the mean square of d normal numbers is within 6 / sqrt(2 d) of their standard
# deviation, except once in 10^9 messages.
DEVIATIONS = 6.0
ROUNDING = 1e-4  # relative rounding of a norm, and of a factor of clipping: a choice


@dataclass(frozen=True)
class _Stated:
    multiplier: float
    clip: float  # the norm to which each record's gradient is clipped
    divisor: float  # what the rank divides the sum of clipped gradients by
    by_layer: bool  # whether every layer is clipped on its own

    @property
    def sigma(self) -> float:
        return self.multiplier * self.clip


@dataclass(frozen=True)
class PrivateGradients:
    """Clipped gradients, of which some have noise."""

    # FedSGD then describes sums over the records of a rank: the sent value times `scale`.

    noisy: tuple[int, ...]  # ranks whose messages have noise
    silent: tuple[int, ...]  # ranks whose messages have none
    stated: _Stated | None  # None if the log is damaged, or if it changes
    why: str = ""  # why FedSGD does not describe the messages; empty if it does
    # the constants of FedSGD; empty if it does not describe the messages
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        """What a rank divides its sum by."""
        return 1.0 if self.stated is None else self.stated.divisor

    @property
    def words(self) -> str:
        """What the messages are."""
        if not self.noisy:
            return "clipped gradients"
        if not self.silent:
            return "clipped gradients with noise"
        return f"clipped gradients, those of rank {_listed(self.noisy)} with noise"

    @property
    def remarks(self) -> Iterator[str]:
        """What the program states, and what the messages show, one line each."""
        stated = self.stated
        if stated is None:
            return
        what = f"gradients of single records are clipped to norm {stated.clip:g}"
        if stated.by_layer:
            what = (
                f"each layer of a gradient is clipped on its own, to norm {stated.clip:g} together"
            )
        yield f"Opacus: {what}, and added up; noise multiplier {stated.multiplier:g}"
        if self.noisy and self.silent:
            yield (
                f"only rank {_listed(self.noisy)} adds the noise before the sum: what rank "
                f"{_listed(self.silent)} sends has none, so Opacus' epsilon holds for the sum of "
                "all ranks, not for an adversary who observes single ranks"
            )


def private(messages: Iterable[LoggedMessage]) -> PrivateGradients | None:
    """Return what is known about the clipped gradients among messages; None if there are none."""
    sent = [message for message in messages if message.op == OPERATION and message.kept]
    if not sent:
        return None
    noisy = {message.src for message in sent if message.note("noise")}
    silent = {message.src for message in sent if not message.note("noise")}
    every = {_stated(message) for message in sent}
    stated = every.pop()
    if stated is None or every:
        stated = None
        why = "the constants of Opacus' optimiser change during the run"
    else:
        why = _unlike(sent, stated) or _uneven(stated, noisy, silent)
    params: dict[str, Any] = {}
    if stated is not None and not why:
        params["clip"] = stated.clip
        if noisy:
            params["sigma"] = stated.sigma
        if noisy and silent:
            params["noisy"] = "first"
        if {message.note("records") for message in sent} == {1}:
            params["samples"] = 1
    return PrivateGradients(tuple(sorted(noisy)), tuple(sorted(silent)), stated, why, params)


def _stated(message: LoggedMessage) -> _Stated | None:
    values = [message.note(name) for name in ("noise_multiplier", "max_grad_norm", "divisor")]
    numbers: list[float] = []
    for value in values:
        if not is_number(value):
            return None
        numbers.append(float(value))
    multiplier, clip, divisor = numbers
    if not (multiplier >= 0 and clip > 0 and divisor > 0 and math.isfinite(sum(numbers))):
        return None
    return _Stated(multiplier, clip, divisor, message.note("by_layer") is True)


def _uneven(stated: _Stated, noisy: set[int], silent: set[int]) -> str:
    """Return why noise of some ranks is not what FedSGD describes; empty if it is."""
    if noisy & silent:
        return f"rank {min(noisy & silent)} adds noise in some rounds only"
    if noisy and silent and noisy != {min(noisy | silent)}:
        return f"rank {_listed(noisy)} adds noise, and the others do not"
    if stated.multiplier and not noisy:
        return "Opacus states noise, but no message has any"
    return ""


def _unlike(sent: Sequence[LoggedMessage], stated: _Stated) -> str:
    """Return how the messages differ from what Opacus states; empty if they do not."""
    if stated.by_layer:
        return "Opacus clips every layer on its own, which no protocol here describes"
    for message in sent:
        value = message.value.double()
        noise = message.note("noise")
        if not isinstance(noise, float) or not math.isfinite(noise):
            return "Opacus does not show the sum to which it adds noise"
        allowed = DEVIATIONS / math.sqrt(2 * value.numel()) * stated.sigma
        if noise and not abs(noise - stated.sigma) < allowed:
            return (
                f"the noise of rank {message.src} has standard deviation {noise:.3g}, but Opacus "
                f"states {stated.sigma:.3g}"
            )
        records = message.note("records")
        if noise or records is None:
            continue
        longest = records * stated.clip / stated.divisor
        if float(value.norm()) > longest * (1 + ROUNDING):
            return f"a message of rank {message.src} is longer than its clipping norm allows"
    return ""


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
