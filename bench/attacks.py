"""How fast an attack runs: DLG and iDLG against a straight re-implementation of the published loop, in one process.

python bench/attacks.py        one JSON line a figure; the same networks, pictures and starting points for both
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leakaudit import data, labels, objectives, optimise, priors, registry
from leakaudit.leak import GradientLeak
from leakaudit.task import Task

torch.set_num_threads(1)
PICTURES = 5
SOLVED = 1e-3  # mean squared error


def published(task: Task, theta: Tensor, leaked: list[Tensor], x: Tensor, variables: Tensor, steps: int) -> tuple[Tensor, int, float]:
    """The loop of Zhu et al. 2019, float32: L-BFGS with torch's defaults over inputs and soft labels, a fixed number of steps.

    Returns the inputs, the number of evaluations and the seconds.
    """
    module = task.module
    torch.nn.utils.vector_to_parameters(theta.float(), module.parameters())
    x, variables = x.float().requires_grad_(), variables.float().requires_grad_()
    optimiser = torch.optim.LBFGS([x, variables])
    count = 0

    def closure() -> float:
        nonlocal count
        count += 1
        optimiser.zero_grad()
        loss = torch.mean(torch.sum(-F.softmax(variables, -1) * F.log_softmax(module(x), -1), 1))
        dummy = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
        distance = torch.stack([(a - b).pow(2).sum() for a, b in zip(dummy, leaked, strict=True)]).sum()
        distance.backward()
        return distance.item()

    start = time.perf_counter()
    for _ in range(steps):
        optimiser.step(closure)
    return x.detach(), count, time.perf_counter() - start


def cases() -> list[tuple[Task, GradientLeak, Tensor]]:
    """The LeNet of DLG with fresh weights for each picture; inputs in [0, 1] without normalisation, as published."""
    photos = data.load("photos")
    task = Task.build(replace(photos.spec("lenet"), mean=(0.0,), std=(1.0,)), dtype=torch.float64)
    out = []
    for k in range(PICTURES):
        g = torch.Generator().manual_seed(k)
        theta, x, y = task.init(g), photos.x[17 * k + 5 : 17 * k + 6].double(), photos.y[17 * k + 5 : 17 * k + 6]
        value = task.gradient(theta, x, y)[None]
        one = torch.ones(1, 1, dtype=torch.float64)
        leak = GradientLeak(0, torch.zeros(1), one, value, torch.zeros(1), (0, task.layout.size), theta=theta[None], batch=1)
        out.append((task, leak, x))
    return out


def step_by_step(steps: int = 10) -> dict[str, Any]:
    """Time of one evaluation (forward, gradient, its gradient) within L-BFGS steps: ours in float64, theirs in float32."""
    task, leak, _ = cases()[0]
    assert leak.theta is not None
    target = objectives.target(leak, task, 1, torch.float64)
    leaked = [p.float() for p in task.layout.split(leak.value[0]).values()]
    g = torch.Generator().manual_seed(0)
    x, variables = priors.start(task, 1, g, "normal", torch.float64), labels.raw(task, 1, g, torch.float64)
    ours, theirs = [], []
    for _ in range(5):
        start = time.perf_counter()
        run = optimise.lbfgs(lambda x, v: objectives.l2(target, task, x, labels.soft(task, v)), (x, variables), steps)
        ours.append((time.perf_counter() - start) / run.evaluations)
        _, count, seconds = published(task, leak.theta[0], leaked, x, variables, steps)
        theirs.append(seconds / count)
    return {
        "bench": "attacks/dlg-evaluation",
        "ratio": round(statistics.median(ours) / statistics.median(theirs), 2),
        "unit": "of the published loop's time an evaluation, in float64 against float32",
        "ms": round(1e3 * statistics.median(ours), 2),
        "published_ms": round(1e3 * statistics.median(theirs), 2),
        "target": 2,
    }


def solved_a_minute(name: str) -> dict[str, Any]:
    """Pictures recovered to a mean squared error below 1e-3 per minute: ours to its own convergence, theirs for 300 steps."""
    won, spent, theirs, theirs_spent = 0, 0.0, 0, 0.0
    for k, (task, leak, x) in enumerate(cases()):
        assert leak.theta is not None
        g = torch.Generator().manual_seed(k)
        start = time.perf_counter()
        found = registry.configure(registry.get("attacks", name), {})(leak, task, g)
        spent += time.perf_counter() - start
        won += float((found.x - x).square().mean()) < SOLVED
        leaked = [p.float() for p in task.layout.split(leak.value[0]).values()]
        dummy, variables = priors.start(task, 1, g, "normal", torch.float64), labels.raw(task, 1, g, torch.float64)
        guess, _, seconds = published(task, leak.theta[0], leaked, dummy, variables, 300)
        theirs, theirs_spent = theirs + int(float((guess - x).square().mean()) < SOLVED), theirs_spent + seconds
    rate, published_rate = 60 * won / spent, 60 * theirs / theirs_spent
    return {
        "bench": f"attacks/{name}-solved",
        "ratio": round(rate / published_rate, 2) if published_rate else None,
        "unit": "times the pictures a minute of the published DLG loop",
        "solved": f"{won} of {PICTURES}",
        "published_solved": f"{theirs} of {PICTURES}",
        "seconds_each": round(spent / PICTURES, 1),
        "published_seconds_each": round(theirs_spent / PICTURES, 1),
    }


if __name__ == "__main__":
    print(json.dumps(step_by_step()), flush=True)
    for name in ("dlg", "idlg"):
        print(json.dumps(solved_a_minute(name)), flush=True)
