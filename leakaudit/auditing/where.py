"""Where an audit finds its data, and where it computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Where:
    """The source of the data, and the resources of the machine.

    Attributes:
        data_root: Folder of data sets; None for the default one.
        download: Whether missing data may be downloaded.
        device: Device on which runs and attacks compute.
        max_seconds: Time limit for attacks and replays together, 0 for no limit.
    """

    data_root: Path | None = None
    download: bool = False
    device: str = "cpu"
    max_seconds: float = 0.0
