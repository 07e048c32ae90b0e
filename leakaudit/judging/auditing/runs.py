"""Runs of one point of the grid, with different records, start and noise, but one schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Generator, Tensor

from leakaudit._util.seeds import child
from leakaudit.protocols import recording
from leakaudit.tasks import data


def seeded(ready: recording.Plan, seed: int) -> recording.Plan:
    """Return the plan of one run; run 0 is the scenario's own."""
    scenario = ready.scenario
    chosen = child(scenario.seed, seed) if seed else scenario.seed
    random = dict(recording.generators(chosen, *recording.STREAMS))
    random["schedule"] = recording.generators(scenario.seed, *recording.STREAMS)["schedule"]
    rows = data.split(
        ready.source, scenario.nodes, scenario.samples, scenario.split, random["split"]
    )
    return replace(ready, rows=rows, random=random)


def replayed(ready: recording.Plan, rows: Tensor, seed: int) -> recording.Plan:
    """Return the plan with the same start and schedule, but other records (N, k) and noise."""
    noise = torch.Generator().manual_seed(child(ready.scenario.seed, seed, 1))
    random: Mapping[str, Generator] = {
        **recording.generators(ready.scenario.seed, *recording.STREAMS),
        "run": noise,
    }
    return replace(ready, rows=rows, random=random)
