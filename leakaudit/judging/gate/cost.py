"""Estimated duration of a gate, from one seed of each check."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

from leakaudit.judging.gate import controls, judge, linted
from leakaudit.judging.gate.cells import attack_all, empty, held
from leakaudit.judging.gate.config import Gate
from leakaudit.judging.gate.runs import ready


@dataclass(frozen=True)
class _CheckDuration:
    """Estimated duration of one check, in seconds."""

    check: str
    recording: float  # time to record all seeds
    attacks: float  # time to attack all seeds
    once: float  # time for the lint and the controls, which run for one seed only

    @property
    def total(self) -> float:
        return self.recording + self.attacks + self.once


def estimate(gate: Gate, seed: int) -> list[_CheckDuration]:
    """Run one seed of each check, and multiply by the number of seeds."""
    judge.validate(gate)
    costs = []
    for check in gate.checks:
        start = time.perf_counter()
        with closing(ready(check, gate.folder)) as run:
            made = run(seed)
        recorded = time.perf_counter()
        cells = empty(check)
        attack_all(cells, made)
        attacked = time.perf_counter()
        linted.rules(check, made)
        for cell in cells:
            controls.positive(cell, made, held(cell, made))
        end = time.perf_counter()
        costs.append(
            _CheckDuration(
                check=check.name,
                recording=gate.seeds * (recorded - start),
                attacks=gate.seeds * (attacked - recorded),
                once=end - attacked,
            )
        )
    return costs
