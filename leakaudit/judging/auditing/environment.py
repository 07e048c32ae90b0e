"""Where scenarios find their data and compute, and the plans of their recordings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit._util.own_code import Trust
from leakaudit.protocols.calibration import EXACT
from leakaudit.protocols.scenario import Scenario

if TYPE_CHECKING:
    from leakaudit.protocols.recording import Plan
    from leakaudit.tasks.shared import SharedData


@dataclass(frozen=True)
class RunEnvironment:
    """Where a run finds its data, and where it computes."""

    data_root: Path | None = None  # folder of data sets; None for the default one
    download: bool = False  # whether missing data may be downloaded
    device: str = "cpu"  # device on which runs and attacks compute
    max_seconds: float = 0.0  # time limit for attacks and replays together, 0 for no limit
    trusted: Trust = False  # the ``package.module:factory`` that may execute its code

    def plan(self, scenario: Scenario, shared: SharedData | None = None) -> Plan:
        """Plan the recording of a scenario; the exact view may set its noise."""
        wanted = scenario.target()
        if wanted is not None and scenario.calibrate == EXACT:
            from leakaudit.judging.auditing.levels import calibrated  # it loads scipy

            return calibrated(self, scenario, wanted, shared)
        from leakaudit.protocols import recording  # data sets and models, not needed for a trace

        return recording.plan(
            scenario,
            data_root=self.data_root,
            download=self.download,
            device=self.device,
            trusted=self.trusted,
            shared=shared,
        )


HERE = RunEnvironment()
