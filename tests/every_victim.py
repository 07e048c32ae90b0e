"""Honest recordings of every bundled victim, with its main settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from leakaudit.core import registry
from leakaudit.judging.gate.runs import SeedResults
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "dpsgd": [
        {},
        {"sigma": 0.3, "noise": "message", "order": "adapt"},
        {"sigma": 0.3, "noise": "message", "own": "plain"},
        {"sigma": 0.2, "noise": "step"},
        {"steps": 3},
        {"clip": 0.5, "sigma": 0.1},
        {"batch": 1},
        {"slow": 0.1, "sigma": 0.1},
    ],
    "gossip": [{}, {"sigma": 0.2}],
    "fedavg": [{}, {"epochs": 3}, {"batch": 1}],
    "muffliato": [{}, {"clip": 0.5}],
}
CASES = [
    (name, settings) for name in registry.names("victims") for settings in SETTINGS.get(name, [{}])
]


def run(name: str, settings: dict[str, Any], seed: int) -> SeedResults:
    """One honest recording; the protocols that solve a small problem exactly need a convex one."""
    exact = name in ("mradmm", "pvpadmm", "rwadmm")
    task: dict[str, Any] = (
        {"data": "gaussians", "model": "logistic"} if exact else {"data": "faces", "model": "mlp"}
    )
    size: dict[str, Any] = (
        {"nodes": 9, "graph": "complete"}
        if name in ("secagg", "secured")
        else {"nodes": 6, "graph": "ring"}
    )
    hidden = {} if exact else {"hidden": 8}
    plan = recording.plan(
        Scenario(name, rounds=5, samples=2, seed=seed, set={**hidden, **settings}, **task, **size)
    )
    made = recording.record(plan, None)
    # A program's own Recorder announces its rounds; the victims' engine need not.
    said = {**made.trace.provenance, "checked": True, "planned": made.trace.rounds}
    return SeedResults(seed, replace(made.trace, provenance=said), made.truth_record, plan.task)
