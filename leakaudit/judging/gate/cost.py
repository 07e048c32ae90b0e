"""Estimated duration of a gate, from one seed of each check."""

from __future__ import annotations

import time
from contextlib import closing

from leakaudit.judging.gate import controls, judge, linted
from leakaudit.judging.gate.cells import attack_all, empty, held
from leakaudit.judging.gate.config import Gate
from leakaudit.judging.gate.runs import ready


def estimate(gate: Gate, seed: int) -> list[tuple[str, dict[str, float]]]:
    """Run one seed of each check; return the seconds of all seeds by part, with the name."""
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
        cost = {
            "recording": gate.seeds * (recorded - start),
            "attacks": gate.seeds * (attacked - recorded),
            "once": end - attacked,
        }
        costs.append((check.name, {**cost, "total": sum(cost.values())}))
    return costs
