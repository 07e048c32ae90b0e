"""What Opacus states about the clipped gradients of a log, as constants of FedSGD."""

# The constants are those of the program's own optimiser. They are compared with the messages: the
# noise in a message must have the stated size, and a message without noise must not be longer than
# clipping allows.

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from leakaudit._util.plain import is_number
from leakaudit.capture.tap.messages.streams import LoggedMessage

OPERATION = "opacus"  # the word for a rank's clipped gradient in a log
# The root of the mean square of d normal numbers is within 6 / sqrt(2 d) of their standard
# deviation, except once in 10^9 messages.
DEVIATIONS = 6.0
ROUNDING = 1e-4  # relative rounding of a norm, and of a factor of clipping: a choice


@dataclass(frozen=True)
class PrivateGradients:
    """Clipped gradients, of which some have noise."""

    # FedSGD then describes sums over the records of a rank: the sent value times `scale`.

    # the constants of FedSGD; empty if it does not describe the messages
    params: dict[str, Any] = field(default_factory=dict)
    scale: float = 1.0  # what a rank divides its sum by
    why: str = ""  # why FedSGD does not describe the messages; empty if it does
    noisy: tuple[int, ...] = ()  # ranks whose messages have noise
    silent: tuple[int, ...] = ()  # ranks whose messages have none
    # what the program states, and what the messages show, one line each
    remarks: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What the messages are."""
        if not self.noisy:
            return "clipped gradients"
        if not self.silent:
            return "clipped gradients with noise"
        return f"clipped gradients, those of rank {_listed(self.noisy)} with noise"


@dataclass(frozen=True)
class _Stated:
    multiplier: float
    clip: float  # the norm to which each record's gradient is clipped
    divisor: float  # what the rank divides the sum of clipped gradients by
    by_layer: bool  # whether every layer is clipped on its own

    @property
    def sigma(self) -> float:
        return self.multiplier * self.clip


def private(messages: Iterable[LoggedMessage]) -> PrivateGradients | None:
    """Return what is known about the clipped gradients among messages; None if there are none."""
    sent = [message for message in messages if message.op == OPERATION and message.kept]
    if not sent:
        return None
    noisy: set[int] = set()
    silent: set[int] = set()
    for message in sent:
        ranks = noisy if message.note("noise") else silent
        ranks.add(message.src)
    known = PrivateGradients(noisy=tuple(sorted(noisy)), silent=tuple(sorted(silent)))
    stated = {_stated(message) for message in sent}
    first = next(iter(stated))
    if first is None or len(stated) > 1:
        return replace(known, why="the constants of Opacus' optimiser change during the run")
    remarks = tuple(_remarks(first, noisy, silent))
    known = replace(known, scale=first.divisor, remarks=remarks)
    why = _unlike(sent, first) or _uneven(first, noisy, silent)
    if why:
        return replace(known, why=why)
    return replace(known, params=_params(first, noisy, silent, sent))


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


def _params(
    stated: _Stated, noisy: set[int], silent: set[int], sent: Sequence[LoggedMessage]
) -> dict[str, Any]:
    """Return the constants of FedSGD, whose gradients are sums over the records of a rank."""
    found: dict[str, Any] = {"clip": stated.clip}
    if noisy:
        found["sigma"] = stated.sigma
    if noisy and silent:
        found["noisy"] = "first"
    if {message.note("records") for message in sent} == {1}:
        found["samples"] = 1
    return found


def _remarks(stated: _Stated, noisy: set[int], silent: set[int]) -> Iterable[str]:
    what = f"gradients of single records are clipped to norm {stated.clip:g}"
    if stated.by_layer:
        what = f"each layer of a gradient is clipped on its own, to norm {stated.clip:g} together"
    yield f"Opacus: {what}, and added up; noise multiplier {stated.multiplier:g}"
    if noisy and silent:
        yield (
            f"only rank {_listed(noisy)} adds the noise before the sum: what rank "
            f"{_listed(silent)} sends has none, so Opacus' epsilon holds for the sum of all "
            "ranks, not for an adversary who observes single ranks"
        )


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
