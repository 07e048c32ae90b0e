"""What a gate would take, from one seed of each check; nothing is judged or kept."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

from leakaudit.gate import controls, judge, linted
from leakaudit.gate.cells import attack_all, empty, held
from leakaudit.gate.config import Gate
from leakaudit.gate.runs import ready


@dataclass(frozen=True)
class Cost:
    """Seconds of one check: to record and to attack all seeds, and for what is done once, lint and controls."""

    check: str
    recording: float
    attacks: float
    once: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.recording + self.attacks + self.once


def estimate(gate: Gate, seed: int) -> list[Cost]:
    """Run one seed of each check, and multiply."""
    judge.validate(gate)
    out = []
    for check in gate.checks:
        times = [time.perf_counter()]
        with closing(ready(check, gate.folder)) as run:
            made = run(seed)
        times.append(time.perf_counter())
        cells = empty(check)
        attack_all(cells, made)
        times.append(time.perf_counter())
        linted.rules(check, made)
        for cell in cells:
            controls.positive(cell, made, held(cell, made))
        times.append(time.perf_counter())
        recording, attacks, once = (b - a for a, b in pairwise(times))
        out.append(Cost(check.name, gate.seeds * recording, gate.seeds * attacks, once))
    return out
