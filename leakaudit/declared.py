"""A trace's declaration: the relations of its protocol at its constants, and their check on a run whose truth is there."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from leakaudit import registry
from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.relations import Relations, Residuals, Vector, residuals
from leakaudit.relations.estimate import recorded
from leakaudit.scoring import same_run
from leakaudit.task import Task
from leakaudit.trace import Trace, Truth
from leakaudit.victim import Victim

SLACK = 2000.0  # rounding units of the number format that a relation may miss by


def victim_of(trace: Trace) -> Victim:
    """Return the victim that a trace names, with the trace's constants; raises LeakauditError where it is not registered."""
    kind = registry.get("victims", trace.protocol)
    return cast(Victim, registry.configure(kind, {k: v for k, v in trace.params.items() if k in registry.parameters(kind)}))


def relations_of(trace: Trace, rounds: int | None = None) -> Relations:
    """Return the relations of a trace's first rounds, of all by default."""
    return victim_of(trace).relations(trace.graph, trace.rounds if rounds is None else rounds, trace.public)


def check(trace: Trace, truth: Truth, task: Task | None = None) -> Residuals:
    """Check the declaration on a run: every relation on its messages, its private states and gradients by autograd.

    truth: recorded with states. task: needed only where the model is a user's own.
    Raises LeakauditError that names the first relation that misses by more than rounding, or says what the check lacks.
    """
    same_run(trace, truth)
    if trace.columns != (0, trace.layout.size) or not truth.states:
        lacks = "all columns of the model" if truth.states else "the private states; record with --states"
        raise LeakauditError(f"relations are checked on a recording that holds {lacks}")
    task = task or Task.build(trace.task)
    read = recorded(Adversary(corrupt=frozenset(range(trace.graph.nodes))).view(trace))
    data = {i: truth.of(i) for i in truth.node.unique().tolist()}

    def fetch(vector: Vector) -> Tensor | None:
        if vector.kind in ("message", "public"):
            return read(vector)
        return _state(truth, vector)

    def gradient(vector: Vector, theta: Tensor) -> Tensor:
        x, y = data[cast(int, vector.owner)]
        return task.gradient(theta.to(task.device), x.to(task.device, torch.float64), y.to(task.device)).cpu()

    tolerance = SLACK * torch.finfo(trace.dtype).eps
    return residuals(relations_of(trace), fetch, tolerance, gradient)


def _state(truth: Truth, vector: Vector) -> Tensor | None:
    """Return a private vector by its name (``g.2`` for index 2) and round, where it was kept."""
    kept = truth.states.get(vector.name if vector.index is None else f"{vector.name}.{vector.index}")
    if kept is None or vector.owner is None or vector.round >= len(kept) or kept.dim() != 3 or vector.owner >= kept.shape[1]:
        return None
    value = kept[vector.round, vector.owner]
    return None if bool(value.isnan().all()) else value
