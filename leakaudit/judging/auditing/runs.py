"""Runs of one point of the grid: every seed has different records, start and noise.

All runs have the same graph and schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Generator, Tensor

from leakaudit._util import seeds
from leakaudit.protocols import recording
from leakaudit.tasks import data
from leakaudit.traces.recorder import Recorder


def seeded(ready: recording.Plan, seed: int) -> recording.Plan:
    """Return the plan of one run.

    Args:
        seed: Number of the run; run 0 is the scenario's own. All share its graph and schedule.
    """
    scenario = ready.scenario
    chosen = child(scenario.seed, seed) if seed else scenario.seed
    random = dict(recording.generators(chosen, *recording.STREAMS))
    random["schedule"] = recording.generators(scenario.seed, *recording.STREAMS)["schedule"]
    rows = data.split(
        ready.source, scenario.nodes, scenario.samples, scenario.split, random["split"]
    )
    return replace(ready, rows=rows, random=random)


def replayed(ready: recording.Plan, rows: Tensor, seed: int) -> recording.Plan:
    """Return the plan with the same start model and schedule, different records and fresh noise.

    Args:
        rows: (N, samples) Records of every node, as rows of the data set.
    """
    noise = torch.Generator().manual_seed(child(ready.scenario.seed, seed, 1))
    random: Mapping[str, Generator] = {
        **recording.generators(ready.scenario.seed, *recording.STREAMS),
        "run": noise,
    }
    return replace(ready, rows=rows, random=random)


def recorded(ready: recording.Plan) -> Recorder:
    """Run and record in memory."""
    return recording.record(ready, None)


def child(*seed: int) -> int:
    """Return a seed that is independent of the seeds for other numbers.

    Args:
        seed: Any integers >= 0, with the seed of the scenario first.
    """
    return seeds.child(*seed)
