"""The input of a bound: a protocol over all its rounds, and valid limits."""

from __future__ import annotations

import math
import os
from pathlib import Path

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace
from leakaudit.protocols.declared import Protocol, played
from leakaudit.protocols.scenario import Scenario
from leakaudit.traces import trace_file


def check(
    sensitivity: float | None,
    smoothness: float | None,
    delta: float | None,
    epsilon: float | None,
) -> None:
    """Reject numbers for which no bound is defined.

    Args:
        sensitivity: Euclidean norm; above 0 and finite.
        smoothness: Lipschitz constant; at least 0 and finite.
        delta: Between 0 and 1.
        epsilon: Above 0 and finite. Any of the four may be None, which means not specified.
    """
    if smoothness is not None and not 0 <= smoothness < math.inf:
        raise LeakauditError(f"expected --smoothness >= 0 and finite, got {smoothness}")
    for name, value in (("--sensitivity", sensitivity), ("--epsilon", epsilon)):
        if value is not None and not 0 < value < math.inf:
            raise LeakauditError(f"expected {name} > 0 and finite, got {value}")
    if delta is not None and not 0 < delta < 1:
        raise LeakauditError(f"expected --delta between 0 and 1, got {delta}")


def protocol_of(
    source: Trace | Scenario | str | os.PathLike[str],
    data_root: Path | None = None,
    download: bool = False,
) -> tuple[Protocol, int]:
    """Return the protocol that a source declares."""
    if not isinstance(source, Trace | Scenario):
        path = Path(source)
        is_scenario = path.suffix == ".toml"
        source = Scenario.from_toml(path) if is_scenario else trace_file.load(path)
    if isinstance(source, Trace):
        protocol = played(source)
        return protocol, protocol.graph.nodes - protocol.victim.centralised
    from leakaudit.protocols import recording  # data sets and models, not needed for a trace

    plan = recording.plan(source, data_root=data_root, download=download)
    return plan.declared, plan.scenario.nodes
