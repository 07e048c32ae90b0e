"""How fast the optimisation attacks run, against a straight re-implementation of the published DLG loop in the same process.

python bench/attacks.py        one JSON line a figure
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leakaudit as la
from leakaudit import data, objectives, registry
from leakaudit.leak import GradientLeak

torch.set_num_threads(1)
IMAGES = 3


def case(i: int) -> tuple[la.Task, Tensor, Tensor, GradientLeak]:
    """One photograph on LeNet with sigmoid, and its gradient."""
    photos = data.load("photos")
    task = la.Task.build(photos.spec("lenet"), dtype=torch.float64)
    x, y = photos.x[5::17][i : i + 1].double(), photos.y[5::17][i : i + 1]
    theta = task.init(torch.Generator().manual_seed(i))
    value = task.gradient(theta, x, y)[None]
    one, std = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    return task, x, y, GradientLeak(0, torch.arange(1), one, value, std, (0, task.layout.size), theta=theta[None], batch=1)


def published(task: la.Task, theta: Tensor) -> tuple[nn.Module, list[Tensor]]:
    """The module with its parameters set, as the published code holds it."""
    module = task.module.to(torch.float64)
    with torch.no_grad():
        for p, value in zip(module.parameters(), task.layout.split(theta).values(), strict=True):
            p.copy_(value)
    return module, list(module.parameters())


def distance(module: nn.Module, parameters: list[Tensor], target: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Sum of squares between gradients, a parameter at a time (Zhu et al. 2019, Algorithm 1)."""
    out = module((x - 0.5) / 0.5)
    loss = torch.mean(torch.sum(-F.softmax(y, -1) * F.log_softmax(out, -1), 1))
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    return torch.stack([((g - t) ** 2).sum() for g, t in zip(gradients, target, strict=True)]).sum()


def clock(work: Callable[[], object], repeat: int) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    for _ in range(repeat):
        work()
    return (time.perf_counter() - start) / repeat


def evaluation() -> dict[str, object]:
    """One objective with its slope: ours over the published loop's."""
    task, x, _, leak = case(0)
    target, theta = objectives.target(leak, task, 1, torch.float64), leak.value[0]
    module, parameters = published(task, leak.theta[0] if leak.theta is not None else theta)
    aims = list(task.layout.split(leak.value[0]).values())
    dummy = torch.rand(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    label = torch.randn(1, task.spec.classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def ours() -> None:
        torch.autograd.grad(objectives.l2(target, task, dummy, label.softmax(-1)), (dummy, label))

    def theirs() -> None:
        torch.autograd.grad(distance(module, parameters, aims, dummy, label), (dummy, label))

    pairs = [(clock(ours, 20), clock(theirs, 20)) for _ in range(9)]
    ratio = statistics.median(a / b for a, b in pairs)
    ms = 1e3 * statistics.median(a for a, _ in pairs)
    return {
        "bench": "attacks/dlg evaluation",
        "ratio": round(ratio, 2),
        "unit": "times the published loop's evaluation",
        "ms": round(ms, 2),
    }


def solved() -> dict[str, object]:
    """Photographs below 1e-3 in MSE within 300 steps, and seconds: ours and the published loop (torch's L-BFGS defaults, float64)."""
    ours, theirs, seconds = 0, 0, [0.0, 0.0]
    for i in range(IMAGES):
        task, x, _, leak = case(i)
        start = time.perf_counter()
        found = registry.get("attacks", "dlg")(restarts=1, goal=1e-4)(leak, task, torch.Generator().manual_seed(i))
        seconds[0] += time.perf_counter() - start
        ours += int(float((found.x.double() - x).square().mean()) < 1e-3)
        start = time.perf_counter()
        theirs += int(float((_published_run(task, leak, x.shape, i) - x).square().mean()) < 1e-3)
        seconds[1] += time.perf_counter() - start
    times = {"seconds": round(seconds[0], 1), "published_seconds": round(seconds[1], 1)}
    return {"bench": "attacks/dlg solved", "ratio": f"{ours} to {theirs} of {IMAGES}", "unit": "images below 1e-3 in MSE", **times}


def _published_run(task: la.Task, leak: GradientLeak, shape: torch.Size, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    module, parameters = published(task, leak.theta[0] if leak.theta is not None else leak.value[0])
    aims = list(task.layout.split(leak.value[0]).values())
    dummy = torch.randn(shape, dtype=torch.float64, generator=g).requires_grad_()
    label = torch.randn(1, task.spec.classes, dtype=torch.float64, generator=g).requires_grad_()
    optimiser = torch.optim.LBFGS([dummy, label])

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = distance(module, parameters, aims, dummy, label)
        value.backward()
        return value

    for _ in range(300):
        optimiser.step(closure)
    return dummy.detach()


if __name__ == "__main__":
    for figure in (evaluation, solved):
        print(json.dumps(figure()), flush=True)
