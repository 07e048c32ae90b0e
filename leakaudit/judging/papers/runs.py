"""What the judges share: a scenario becomes a declared protocol or a finished run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.trace import Trace, Truth
from leakaudit.core.verdict import Holds
from leakaudit.inversion import attacking
from leakaudit.protocols import recording
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.recording import Plan
from leakaudit.protocols.scenario import Scenario
from leakaudit.scoring.scoring import score
from leakaudit.tasks.task import Problem
from leakaudit.theory.relations import Expression, Knowledge, account

EXACT = 1e-6  # relative error below which inputs count as computed
NEWTON = 30  # steps; quadratic convergence reaches the rounding error in about ten


@dataclass(frozen=True)
class FinishedRun:
    """A finished run in memory, including its private states."""

    plan: Plan  # the scenario that was run
    trace: Trace
    truth: Truth  # the private side of the run

    @property
    def problem(self) -> Problem:
        """The task with the records of all nodes, x (N, n, …)."""
        task = self.plan.task
        source = self.plan.source
        rows = self.plan.rows
        return Problem(task, source.x[rows].to(task.dtype), source.y[rows])


# Logistic regression in the plane, which most rows train.
PLANE: Mapping[str, Any] = {"dtype": "float64", "data": "gaussians", "model": "logistic"}


def planned(**changes: Any) -> Plan:
    """Prepare a scenario: logistic regression in float64, unless the changes say otherwise."""
    return recording.plan(Scenario(**{**PLANE, **changes}))


def protocol(**changes: Any) -> Protocol:
    """Return the protocol of a scenario with its schedule, without running it."""
    return planned(**changes).declared


def attained_mu(
    view: Knowledge, gradients: Sequence[Expression], change: float | Sequence[float]
) -> float:
    """Return the mu of a view that linear losses attain; reject one that is only an upper bound.

    It refutes a claim whatever the certificate of the gradients, which concerns curved losses.
    """
    bound = account(view, gradients, change)
    if Holds.of(bound.mu, bound.attained) is Holds.EXACT:
        return bound.mu
    raise LeakauditError(
        f"mu is {Holds.AT_MOST.says(f'{bound.mu:.4g}')}, but a row needs its value"
    )


def run(**changes: Any) -> FinishedRun:
    """Run a scenario, as `planned` prepares it."""
    return finish(planned(**{"states": True, **changes}))


def finish(plan: Plan) -> FinishedRun:
    """Run a plan."""
    recorder = recording.record(plan, None)
    return FinishedRun(plan, recorder.trace, recorder.truth_record)


def input_errors(done: FinishedRun, leaks: Iterable[GradientLeak]) -> list[float]:
    """Return the relative error of the inputs of the analytic attack on each leak."""
    found = [attacking.attack_one(leak, done.plan.task, "analytic", fresh()) for leak in leaks]
    return [float((s.relative_error or (1.0,))[0] or 1.0) for s in score(found, done.truth)]


def optimum(problem: Problem, weights: Tensor | None = None) -> Tensor:
    """Return argmin sum_i weights_i f_i (d,) by Newton's method; weights (N,) are 1 by default."""
    task = problem.task
    weights = torch.ones(problem.nodes, dtype=task.dtype) if weights is None else weights
    w = task.init(fresh()).expand(problem.nodes, -1)
    for _ in range(NEWTON):
        slope = weights @ task.gradients(w, problem.x, problem.y)
        curvature = torch.einsum("n,nij->ij", weights, task.hessians(w, problem.x, problem.y))
        w = (w[0] - torch.linalg.solve(curvature, slope)).expand_as(w)
    return w[0]


def listed(phrase: str, values: Mapping[str, Any] | Mapping[int, Any], between: str = ", ") -> str:
    """Return a phrase for every entry, with the key for {0} and the value for {1}."""
    return between.join(phrase.format(*entry) for entry in values.items())


def fresh(seed: int = 0) -> torch.Generator:
    """Return a new generator, so that a row always gives the same result."""
    return torch.Generator().manual_seed(seed)
