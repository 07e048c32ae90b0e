"""The epsilon that the framework of a tapped program states, beside which the exact one stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from leakaudit.core.trace import Trace

KEY = "framework_epsilon"  # in the provenance of a trace
Positive = Annotated[float, Meta(ge=0)]


class FrameworkEpsilon(Struct, frozen=True, kw_only=True):
    """What a framework states, in its own words and numbers."""

    by: Literal["Opacus", "Flower's LocalDpMod"]
    epsilon: Positive
    delta: Annotated[float, Meta(ge=0, le=1)]
    method: Literal["rdp", "prv", "gdp", ""] = ""
    steps: Annotated[int, Meta(ge=0)] = 0
    rate: Annotated[float, Meta(ge=0, le=1)] = 1.0  # share of the records in a batch
    clip: Positive = 0.0
    sensitivity: Positive = 0.0

    @property
    def sentence(self) -> str:
        """The statement, and what it assumes that the bound of a view does not."""
        said = f"{self.by} states epsilon {self.epsilon:.4g} at delta {self.delta:g}"
        if self.by != "Opacus":
            why = (
                f" for one answer of a client, which one record changes by {self.sensitivity:g}; "
                f"answers are clipped to norm {self.clip:g}, so that another client's data changes "
                f"one by up to {2 * self.clip:g}"
            )
            return f"{said}{why}, and each round adds to it"
        secret = ""
        if self.rate < 1:
            secret = f", each of which holds a record with probability {self.rate:.3g} in secret,"
        return (
            f"{said} by {self.method or 'its accountant'} after {self.steps} steps{secret} "
            "for one record added or removed, if only sums with noise are seen"
        )


def of(trace: Trace) -> list[FrameworkEpsilon]:
    """Return what the frameworks of a tapped program stated; empty if nothing is understood."""
    return _understood(trace.provenance.get(KEY))


def last(notes: Iterable[Mapping[str, Any]]) -> list[FrameworkEpsilon]:
    """Return the last statement of each framework among the notes of a log."""
    found: dict[str, FrameworkEpsilon] = {}
    for one in notes:
        found |= {each.by: each for each in _understood([one])}
    return list(found.values())


def _understood(values: object) -> list[FrameworkEpsilon]:
    try:
        return msgspec.convert(values or [], list[FrameworkEpsilon])
    except msgspec.ValidationError:
        return []
