"""Pictures that DLG and iDLG recover per second, against a re-implementation of the published loop.

python bench/attacks.py        prints one JSON line per figure; both sides use the same networks and
                               pictures, in one process, in CPU time
python bench/attacks.py memory prints the peak memory of one search of 32 starts for a batch of 8

The published loop processes its targets one by one, so eight of them suffice to measure its rate;
our attack processes all 32 at once. Each has its own stopping rule: the loop stops after 300 steps
or below 1e-6 (iDLG checks every 10 steps), ours at a relative residual of 5e-4 or at convergence.
For `ratio_at_once` the loop stops when its picture is recovered for the first time, which it
cannot know.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leakaudit import registry
from leakaudit.inversion.labels import soft_labels
from leakaudit.inversion.search import priors
from leakaudit.leak import GradientLeak
from leakaudit.tasks import data
from leakaudit.tasks.task import Task

torch.set_num_threads(1)
TOGETHER = 32
PUBLISHED = 8  # targets or starts with which the published loop is timed
SOLVED = 1e-3  # mean squared error
GOAL = 5e-4
STEPS = 300


@dataclass
class Rate:
    """Attempts, recovered pictures, CPU seconds, evaluations; pictures recovered at any time, and
    seconds until then or the end.
    """

    tried: int = 0
    solved: int = 0
    seconds: float = 0.0
    evaluations: int = 0
    met: int = 0
    until: float = 0.0


def published(
    task: Task,
    theta: Tensor,
    leaked: list[Tensor],
    x: Tensor,
    y: Tensor,
    search_labels: bool,
    truth: Tensor,
) -> tuple[Tensor, int, float]:
    """The loops of Zhu et al. 2019 and of Zhao et al. 2020, float32: L-BFGS with torch's defaults
    over inputs, and over labels for DLG.

    y: (1, classes) label variables for DLG, (1,) the label for iDLG. Returns the inputs, the number
    of evaluations, and the process time of the first one that had recovered the truth, infinite if
    there was none.
    """
    module = task.module
    torch.nn.utils.vector_to_parameters(theta.float(), module.parameters())
    x, y = x.float().requires_grad_(), y.float().requires_grad_() if search_labels else y
    optimiser = torch.optim.LBFGS([x, y] if search_labels else [x])
    count, last, first = 0, math.inf, math.inf

    def closure() -> float:
        nonlocal count, last, first
        count += 1
        if math.isinf(first) and float((x.detach() - truth).square().mean()) < SOLVED:
            first = time.process_time()
        optimiser.zero_grad()
        out = module(x)
        loss = (
            torch.mean(torch.sum(-F.softmax(y, -1) * F.log_softmax(out, -1), 1))
            if search_labels
            else F.cross_entropy(out, y)
        )
        dummy = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
        distance = torch.stack(
            [(a - b).pow(2).sum() for a, b in zip(dummy, leaked, strict=True)]
        ).sum()
        distance.backward()
        last = distance.item()
        return last

    for k in range(STEPS):
        optimiser.step(closure)
        if not search_labels and k % 10 == 0 and last < 1e-6:
            break
    return x.detach(), count, first


def cases(count: int, batch: int = 1) -> list[tuple[Task, GradientLeak, Tensor, Tensor]]:
    """The LeNet of DLG with new weights for each picture or batch; inputs in [0, 1] without
    normalisation, as published.
    """
    photos = data.load("photos")
    task = Task.build(replace(photos.spec("lenet"), mean=(0.0,), std=(1.0,)), dtype=torch.float64)
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1)
    out = []
    for k in range(count):
        rows = (17 * k + 5 + 3 * torch.arange(batch) + k // 10) % len(photos.x)
        theta, x, y = task.init(Generator().manual_seed(k)), photos.x[rows].double(), photos.y[rows]
        value = task.gradient(theta, x, y)[None]
        leak = GradientLeak(
            k,
            torch.zeros(1),
            one,
            value,
            zero,
            (0, task.layout.size),
            theta=theta[None],
            batch=batch,
        )
        out.append((task, leak, x, y))
    return out


def ours(name: str, wanted: list[tuple[Task, GradientLeak, Tensor, Tensor]]) -> Rate:
    """Attack all targets together, with one start each."""
    task = wanted[0][0]
    attack = registry.configure(registry.get("attacks", name), {"restarts": 1, "goal": GOAL})
    start = time.process_time()
    found = dict(
        attack.many(
            [leak for _, leak, _, _ in wanted],
            task,
            [Generator().manual_seed(k) for k in range(len(wanted))],
        )
    )
    seconds = time.process_time() - start
    solved = sum(
        float((found[k].x - x).square().mean()) < SOLVED for k, (_, _, x, _) in enumerate(wanted)
    )
    evaluations = sum(int(one.note.split("(")[1].split()[0]) for one in found.values())
    return Rate(len(wanted), solved, seconds, evaluations)


def theirs(name: str, wanted: list[tuple[Task, GradientLeak, Tensor, Tensor]], seed: int) -> Rate:
    """Attack targets one by one with the published loop, from N(0, 1)."""
    rate = Rate()
    for k, (task, leak, x, y) in enumerate(wanted):
        assert leak.theta is not None
        g = Generator().manual_seed(seed + k)
        leaked = [p.float() for p in task.layout.split(leak.value[0]).values()]
        dummy = priors.start(task, 1, g, "normal", torch.float64)
        variables = soft_labels.raw(task, 1, g, torch.float64) if name == "dlg" else y
        start = time.process_time()
        guess, count, first = published(
            task, leak.theta[0], leaked, dummy, variables, name == "dlg", x
        )
        seconds = time.process_time() - start
        rate.seconds, rate.until = rate.seconds + seconds, rate.until + min(seconds, first - start)
        rate.met += math.isfinite(first)
        rate.tried, rate.evaluations = rate.tried + 1, rate.evaluations + count
        rate.solved += float((guess - x).square().mean()) < SOLVED
    return rate


def compared(name: str, what: str, mine: Rate, others: Rate) -> dict[str, Any]:
    """Compare the attempts, and the recovered pictures, per CPU second with those of the published
    loop.
    """
    attempts = (mine.tried / mine.seconds) / (others.tried / others.seconds)
    solved = (
        (mine.solved / mine.seconds) / (others.solved / others.seconds) if others.solved else None
    )
    return {
        "bench": f"attacks/{name}-{what}",
        "ratio": None if solved is None else round(solved, 1),
        "unit": "times the pictures that the published loop recovers in a CPU second; null if it recovered none",
        "ratio_of_attempts": round(attempts, 1),
        "ratio_at_once": round(mine.solved / mine.seconds * others.until / others.met, 1)
        if others.met
        else None,
        "solved": f"{mine.solved} of {mine.tried}",
        "published_solved": f"{others.solved} of {others.tried}",
        "seconds_each": round(mine.seconds / mine.tried, 2),
        "published_seconds_each": round(others.seconds / others.tried, 2),
        "ms_an_evaluation": round(1e3 * mine.seconds / mine.evaluations, 2),
        "published_ms_an_evaluation": round(1e3 * others.seconds / others.evaluations, 2),
        "evaluations_each": round(mine.evaluations / mine.tried),
        "published_evaluations_each": round(others.evaluations / others.tried),
        "target": 10,
    }


def warm() -> None:
    """Let torch load the code of its first optimiser, which is not timed."""
    x = torch.ones(1, requires_grad=True)
    torch.optim.LBFGS([x]).step(lambda: (x * x).sum())


def interleaved(mine: Callable[[], Rate], others: Callable[[int], Rate]) -> tuple[Rate, Rate]:
    """Time the published loop before and after ours, so that other load slows both down."""
    warm()
    before, own, after = others(0), mine(), others(1)
    return own, Rate(*(getattr(before, f.name) + getattr(after, f.name) for f in fields(Rate)))


def targets(name: str) -> dict[str, Any]:
    """32 pictures, each with its own gradient."""
    wanted = cases(TOGETHER)
    some = wanted[:: TOGETHER // PUBLISHED]
    mine, others = interleaved(
        lambda: ours(name, wanted), lambda part: theirs(name, some[part::2], 0)
    )
    return compared(name, f"{TOGETHER}-targets", mine, others)


def restarts(name: str) -> dict[str, Any]:
    """One picture from 32 starts, each until its own end."""
    wanted = cases(1) * TOGETHER
    mine, others = interleaved(
        lambda: ours(name, wanted), lambda part: theirs(name, wanted[: PUBLISHED // 2], 10 * part)
    )
    return compared(name, f"{TOGETHER}-restarts", mine, others)


def memory() -> None:
    """Search 32 starts for a batch of 8 for a few steps; print the peak."""
    wanted = cases(1, batch=8) * TOGETHER
    attack = registry.configure(registry.get("attacks", "dlg"), {"restarts": 1, "steps": 8})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dict(
        attack.many(
            [leak for _, leak, _, _ in wanted],
            wanted[0][0],
            [Generator().manual_seed(k) for k in range(TOGETHER)],
        )
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figure = {
        "bench": "attacks/dlg-memory",
        "gb": round(peak / 2**20, 2),
        "before_gb": round(before / 2**20, 2),
    }
    print(
        json.dumps(
            {**figure, "unit": "GiB of peak RSS, LeNet, batch of 8, 32 starts", "target": 2}
        ),
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["memory"]:
        memory()
    else:
        subprocess.run([sys.executable, __file__, "memory"], check=True)
        print(json.dumps(targets("idlg")), flush=True)
        print(json.dumps(restarts("dlg")), flush=True)
