"""Runs of one point of the grid: other records, start and noise for every seed, on one graph with one schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Generator, Tensor

from leakaudit._util import seeds
from leakaudit.protocols import recording
from leakaudit.tasks import data
from leakaudit.traces.recorder import Recorder

NAMES = ("data", "split", "graph", "model", "run", "schedule")


def seeded(ready: recording.Plan, seed: int) -> recording.Plan:
    """Return the plan of run `seed`; run 0 is the scenario's own, and all share its graph and schedule."""
    random = dict(
        recording.generators(
            child(ready.scenario.seed, seed) if seed else ready.scenario.seed, *NAMES
        )
    )
    random["schedule"] = recording.generators(ready.scenario.seed, *NAMES)["schedule"]
    scenario = ready.scenario
    rows = data.split(
        ready.source, scenario.nodes, scenario.samples, scenario.split, random["split"]
    )
    return replace(ready, rows=rows, random=random)


def replayed(ready: recording.Plan, rows: Tensor, seed: int) -> recording.Plan:
    """Return the plan with the same start model and schedule, these records (N, samples), and fresh noise."""
    base = recording.generators(ready.scenario.seed, *NAMES)
    random: Mapping[str, Generator] = {
        **base,
        "run": torch.Generator().manual_seed(child(ready.scenario.seed, seed, 1)),
    }
    return replace(ready, rows=rows, random=random)


def recorded(ready: recording.Plan) -> Recorder:
    """Run and record in memory."""
    return recording.record(ready, None)


def child(*seed: int) -> int:
    """Return a seed that is independent for other numbers."""
    return seeds.child(*seed)
