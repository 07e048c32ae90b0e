"""Where an audit finds its data, and where it computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunEnvironment:
    """The source of the data, and the resources of the machine."""

    data_root: Path | None = None  # folder of data sets; None for the default one
    download: bool = False  # whether missing data may be downloaded
    device: str = "cpu"  # device on which runs and attacks compute
    max_seconds: float = 0.0  # time limit for attacks and replays together, 0 for no limit
