"""The plan of a recording whose noise the exact view may set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit._util.own_code import Trust
from leakaudit.protocols.calibration import EXACT
from leakaudit.protocols.scenario import Scenario

if TYPE_CHECKING:
    from leakaudit.protocols.recording import Plan
    from leakaudit.tasks.shared import SharedData


def planned(
    scenario: Scenario,
    *,
    data_root: Path | None = None,
    download: bool = False,
    device: str = "cpu",
    trusted: Trust = False,
    shared: SharedData | None = None,
) -> Plan:
    """Plan a recording as `recording.plan`; ``calibrate="exact"`` sets the noise of an epsilon."""
    if scenario.calibrate == EXACT:  # it loads scipy, which few recordings need
        from leakaudit.judging.auditing.levels import RunEnvironment

        where = RunEnvironment(data_root, download, device, trusted=trusted)
        return where.plan(scenario, shared)
    from leakaudit.protocols import recording  # data sets and models, not needed for a trace

    return recording.plan(
        scenario,
        data_root=data_root,
        download=download,
        device=device,
        trusted=trusted,
        shared=shared,
    )
