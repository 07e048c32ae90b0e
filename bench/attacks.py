"""Pictures that DLG and iDLG recover per CPU second, against a re-implementation of the published loop.

python bench/attacks.py        prints one JSON line per figure; both sides use the same networks and
                               pictures, in one process, in CPU time
    --published 32             number of the 32 targets that the published loop attacks (8)
    --network vit --targets 4  another network: lenet (default), vit or resnet18
    --steps 10                 fewer steps of 20 evaluations, on both sides
python bench/attacks.py --memory   prints the peak memory of one search of 32 starts for a batch of 8

Our attacks run with their defaults, as `leakaudit attack --attack dlg` does, and process all
targets at once. The published loop processes them one by one, from N(0, 1), with its own stopping
rule: after 300 steps or below 1e-6, which iDLG checks every 10 steps. A picture counts as recovered
below a mean squared error of 1e-3. `ratio_as_near` counts only those below the median error of
what the loop recovers, on both sides; for `ratio_at_once` the loop stops when its picture is
recovered for the first time, which it cannot know.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.inversion import attacking
from leakaudit.inversion.labels import soft_labels
from leakaudit.inversion.search import priors
from leakaudit.reporting.results import intervals
from leakaudit.tasks import data
from leakaudit.tasks.task import Task

torch.set_num_threads(1)
TOGETHER = 32
PUBLISHED = 8  # targets with which the published loop is timed
SOLVED = 1e-3  # mean squared error
STEPS = 300
NETWORKS: dict[str, dict[str, Any]] = {
    "lenet": {},
    "vit": {"patch": 16, "depth": 1, "width": 48},
    "resnet18": {"bn": "eval"},  # one sample has no batch statistics
}


@dataclass
class Rate:
    """Mean squared errors, CPU seconds, evaluations; pictures recovered at any time, and seconds
    until then or the end.
    """

    errors: list[float] = field(default_factory=list)
    seconds: float = 0.0
    evaluations: int = 0
    met: int = 0
    until: float = 0.0

    @property
    def tried(self) -> int:
        """Number of targets."""
        return len(self.errors)

    def below(self, error: float) -> int:
        """Number of targets with a smaller error."""
        return sum(e < error for e in self.errors)

    def add(self, other: Rate) -> Rate:
        """Return both together."""
        return Rate(
            self.errors + other.errors,
            self.seconds + other.seconds,
            self.evaluations + other.evaluations,
            self.met + other.met,
            self.until + other.until,
        )


def published(
    module: nn.Module,
    theta: Tensor,
    leaked: list[Tensor],
    x: Tensor,
    y: Tensor,
    search_labels: bool,
    truth: Tensor,
    steps: int,
) -> tuple[Tensor, int, float]:
    """The loops of Zhu et al. 2019 and of Zhao et al. 2020, float32: L-BFGS with torch's defaults
    over inputs, and over labels for DLG.

    y: (1, classes) label variables for DLG, (1,) the label for iDLG. Returns the inputs, the number
    of evaluations, and the process time of the first one that had recovered the truth, infinite if
    there was none.
    """
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

    for k in range(steps):
        optimiser.step(closure)
        if not search_labels and k % 10 == 0 and last < 1e-6:
            break
    return x.detach(), count, first


def cases(
    count: int, batch: int = 1, network: str = "lenet"
) -> list[tuple[Task, GradientLeak, Tensor, Tensor]]:
    """A network, by default the LeNet of DLG, with new weights for each picture or batch; inputs in
    [0, 1] without normalisation, as published.
    """
    photos = data.load("photos")
    spec = replace(photos.spec(network, NETWORKS[network]), mean=(0.0,), std=(1.0,))
    task = Task.build(spec, dtype=torch.float64)
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


def ours(name: str, wanted: list[tuple[Task, GradientLeak, Tensor, Tensor]], steps: int) -> Rate:
    """Attack all targets together, with the defaults of the attack."""
    task = wanted[0][0]
    settings = {} if steps == STEPS else {"steps": steps}
    start = time.process_time()
    found = {
        settled.place: settled.found
        for settled in attacking.attack_together(
            [leak for _, leak, _, _ in wanted],
            task,
            name,
            [Generator().manual_seed(k) for k in range(len(wanted))],
            **settings,
        )
    }
    seconds = time.process_time() - start
    errors = [float((found[k].x - x).square().mean()) for k, (_, _, x, _) in enumerate(wanted)]
    evaluations = sum(int(one.note.split("(")[1].split()[0]) for one in found.values())
    return Rate(errors, seconds, evaluations)


def theirs(
    name: str, wanted: list[tuple[Task, GradientLeak, Tensor, Tensor]], steps: int, part: int
) -> Rate:
    """Attack every second target with the published loop, from N(0, 1)."""
    rate = Rate()
    module = Task.build(wanted[0][0].spec).module  # in float32; ours is not changed
    for k, (task, leak, x, y) in list(enumerate(wanted))[part::2]:
        assert leak.theta is not None
        g = Generator().manual_seed(k)
        leaked = [p.float() for p in task.layout.split(leak.value[0]).values()]
        dummy = priors.start(task, 1, g, "normal", torch.float64)
        variables = soft_labels.raw(task, 1, g, torch.float64) if name == "dlg" else y
        start = time.process_time()
        guess, count, first = published(
            module, leak.theta[0], leaked, dummy, variables, name == "dlg", x, steps
        )
        seconds = time.process_time() - start
        error = float((guess - x).square().mean())
        met = math.isfinite(first)
        rate = rate.add(Rate([error], seconds, count, int(met), min(seconds, first - start)))
    return rate


def compared(name: str, what: str, mine: Rate, others: Rate) -> dict[str, Any]:
    """Compare the attempts, and the recovered pictures, per CPU second with those of the published
    loop.
    """
    speed = others.seconds / mine.seconds

    def ratio(error: float) -> float | None:
        if not others.below(error):
            return None
        return round(mine.below(error) / others.below(error) * speed, 1)

    recovered = [e for e in others.errors if e < SOLVED]
    # an error that half of the recovered pictures of the loop do not exceed
    near = statistics.median_high(recovered) * (1 + 1e-9) if recovered else None
    at_once = None
    if others.met:
        at_once = round(mine.below(SOLVED) / mine.seconds * others.until / others.met, 1)
    return {
        "bench": f"attacks/{name}-{what}",
        "ratio": ratio(SOLVED),
        "unit": "times the pictures that the published loop recovers in a CPU second; null if it recovered none",
        "ratio_of_attempts": round(mine.tried / others.tried * speed, 1),
        "ratio_as_near": near and ratio(near),
        "as_near": near and float(f"{near:.2g}"),
        "ratio_at_once": at_once,
        **described("", mine),
        **described("published_", others),
        "target": 10,
    }


def described(whose: str, rate: Rate) -> dict[str, Any]:
    """Successes with their 95 % interval, errors and costs of one side."""
    solved = rate.below(SOLVED)
    interval = intervals.of_rate(solved, rate.tried) or (math.nan, math.nan)
    recovered = [e for e in rate.errors if e < SOLVED]
    return {
        f"{whose}solved": f"{solved} of {rate.tried}",
        f"{whose}interval": [round(end, 3) for end in interval],
        f"{whose}median_error": float(f"{statistics.median(rate.errors):.2g}"),
        f"{whose}median_error_of_solved": float(f"{statistics.median(recovered):.2g}")
        if recovered
        else None,
        f"{whose}seconds_each": round(rate.seconds / rate.tried, 2),
        f"{whose}ms_an_evaluation": round(1e3 * rate.seconds / rate.evaluations, 2),
        f"{whose}evaluations_each": round(rate.evaluations / rate.tried),
    }


def warm() -> None:
    """Let torch load the code of its first optimiser, which is not timed."""
    x = torch.ones(1, requires_grad=True)
    torch.optim.LBFGS([x]).step(lambda: (x * x).sum())


def targets(name: str, count: int, some: int, network: str, steps: int) -> dict[str, Any]:
    """Pictures with a gradient each; the published loop runs before and after ours, so that other
    load slows both down.
    """
    warm()
    wanted = cases(count, network=network)
    chosen = wanted[:: count // some][:some]
    before = theirs(name, chosen, steps, 0)
    mine = ours(name, wanted, steps)
    others = before.add(theirs(name, chosen, steps, 1))
    what = f"{count}-targets" if network == "lenet" else f"{network}-{count}-targets"
    return compared(name, what, mine, others)


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--attacks", nargs="+", choices=("idlg", "dlg"), default=("idlg", "dlg"))
    parser.add_argument("--network", choices=tuple(NETWORKS), default="lenet")
    parser.add_argument("--targets", type=int, default=TOGETHER)
    parser.add_argument("--published", type=int, default=PUBLISHED)
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    if asked.memory:
        memory()
        return
    if asked.network == "lenet" and asked.steps == STEPS:
        # in a process of its own, because memory that was used before would count
        subprocess.run([sys.executable, __file__, "--memory"], check=True)
    some = min(asked.published, asked.targets)
    for name in asked.attacks:
        figures = targets(name, asked.targets, some, asked.network, asked.steps)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
