"""The input of a bound: a protocol over all its rounds, and valid limits."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace
from leakaudit.protocols.declared import Protocol, played
from leakaudit.protocols.scenario import Scenario
from leakaudit.traces import trace_file

if TYPE_CHECKING:
    from leakaudit.protocols.recording import Plan


@dataclass(frozen=True)
class BoundOptions:
    """What a bound rarely needs.

    Attributes:
        smoothness: Lipschitz constant of a node's gradients, for protocols that do not send their
            models.
        epsilon: Target of the recommended noise; by default the claimed epsilon.
        data_root: Folder of data sets that are not bundled.
        download: Whether missing data sets may be downloaded.
    """

    smoothness: float | None = None
    epsilon: float | None = None
    data_root: str | os.PathLike[str] | None = None
    download: bool = False


class _Limits(TypedDict):
    sensitivity: float | None
    smoothness: float | None
    delta: float | None
    epsilon: float | None


def checked(
    sensitivity: float | None,
    smoothness: float | None,
    delta: float | None,
    epsilon: float | None,
) -> _Limits:
    """Return numbers for which a bound is defined; None means not specified."""
    if smoothness is not None and not 0 <= smoothness < math.inf:
        raise LeakauditError(f"expected --smoothness >= 0 and finite, got {smoothness}")
    for name, value in (("--sensitivity", sensitivity), ("--epsilon", epsilon)):
        if value is not None and not 0 < value < math.inf:
            raise LeakauditError(f"expected {name} > 0 and finite, got {value}")
    if delta is not None and not 0 < delta < 1:
        raise LeakauditError(f"expected --delta between 0 and 1, got {delta}")
    return _Limits(sensitivity=sensitivity, smoothness=smoothness, delta=delta, epsilon=epsilon)


def protocol_of(
    source: Trace | Scenario | str | os.PathLike[str],
    planned: Callable[[Scenario], Plan] | None = None,
) -> tuple[Protocol, int]:
    """Return the protocol that a source declares, and the number of its nodes with data.

    Args:
        planned: Plans a scenario; None for `recording.plan`, which searches no noise by views.
    """
    if not isinstance(source, Trace | Scenario):
        path = Path(source)
        is_scenario = path.suffix == ".toml"
        source = Scenario.from_toml(path) if is_scenario else trace_file.load(path)
    if isinstance(source, Trace):
        protocol = played(source)
        return protocol, protocol.graph.nodes - protocol.victim.centralised
    from leakaudit.protocols import recording  # data sets and models, not needed for a trace

    plan = (planned or recording.plan)(source)
    return plan.declared, plan.scenario.nodes
