"""Compare Inverting Gradients in this project with breaching: same network, pictures and gradients.

sh bench/_breaching.sh        creates an environment with breaching and runs this in it
python bench/_breaching.py --python PYTHON        uses the Python of such an environment
    --steps 300 600 1200 24000   numbers of steps of breaching; its default is 24,000
    --pictures 8 --long 1        number of pictures, and of those with more than 2400 steps
    --model resnet18 --ours 60   another network, and fewer steps of our attack than its default

Prints one JSON line for each number of steps of breaching: pictures above 25 dB per CPU second, and
`ratio`, our rate over it. Everything else is at the defaults of either (breaching: total variation
.2 of pixels normalised by 1/2 and 1/2, step .1, which decreases at the same fractions of its own
length). Labels are given to breaching and inferred by our attack, which processes all pictures at
once; breaching processes one after another.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import math
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.reporting.results import intervals
from leakaudit.tasks import _torchvision, data
from leakaudit.tasks.task import Task

D = torch.float64
LONG = 2400  # steps above which only a few pictures are attacked
NETWORKS: dict[str, dict[str, Any]] = {
    "convnet": {},
    "vit": {"patch": 16, "depth": 1, "width": 48},
    "resnet18": {"bn": "eval"},
}


def psnr(found: Tensor, x: Tensor) -> float:
    """PSNR in dB, for pixels in [0, 1]."""
    return float(-10 * (found.double().clamp(0, 1) - x.double()).square().mean().log10())


def theirs(
    breaching: Any, task: Task, leak: GradientLeak, y: Tensor, steps: int, seed: int
) -> tuple[Tensor, float]:
    """Run breaching's attack; return pixels in [0, 1] and CPU seconds."""
    assert leak.theta is not None
    changes = [
        "attack=invertinggradients",
        f"attack.optim.max_iterations={steps}",
        "attack.optim.callback=100000",
    ]
    case = breaching.get_config(overrides=changes)
    torch.nn.utils.vector_to_parameters(leak.theta[0].float(), task.module.parameters())
    setup = {"device": torch.device("cpu"), "dtype": torch.float}
    attacker = breaching.attacks.prepare_attack(
        task.module, torch.nn.CrossEntropyLoss(), case.attack, setup
    )
    about = case.case.data
    about.shape, about.mean, about.std = (
        list(task.spec.shape),
        list(task.spec.mean),
        list(task.spec.std),
    )
    about.classes, about.modality = task.spec.classes, "vision"
    parameters = [p.detach().clone() for p in task.module.parameters()]
    payload = [
        {"parameters": parameters, "buffers": list(task.module.buffers()), "metadata": about}
    ]
    told = {"num_data_points": len(y), "labels": y, "local_hyperparams": None, "data_key": "inputs"}
    shared = [
        {
            "gradients": [g.float() for g in task.layout.split(leak.value[0]).values()],
            "buffers": None,
            "metadata": told,
        }
    ]
    with torch.random.fork_rng():  # breaching uses the global random state
        torch.default_generator.manual_seed(seed)
        start = time.process_time()
        found, _ = attacker.reconstruct(payload, shared, {}, dryrun=False)
        seconds = time.process_time() - start
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (task.spec.mean, task.spec.std))
    return found["data"].detach() * std + mean, seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", help="Python of the environment with breaching; by default this one"
    )
    parser.add_argument("--pictures", type=int, default=8)
    parser.add_argument("--long", type=int, default=1)
    parser.add_argument("--steps", type=int, nargs="+", default=[300, 600, 1200])
    parser.add_argument("--model", choices=tuple(NETWORKS), default="convnet")
    parser.add_argument("--ours", type=int, help="steps of our attack instead of its default")
    asked = parser.parse_args()
    if asked.python:
        rest = sys.argv[1:]
        where = rest.index("--python")
        command = [asked.python, __file__, *rest[:where], *rest[where + 2 :]]
        raise SystemExit(subprocess.run(command, check=False).returncode)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    try:
        _torchvision.torchvision()
        breaching = importlib.import_module("breaching")
    except ImportError as error:
        print(
            json.dumps(
                {
                    "bench": "breaching",
                    "skipped": f"breaching cannot be imported ({error}); see bench/_breaching.sh",
                }
            )
        )
        return
    held = cases(asked.model, asked.pictures)
    task = held[0][0]
    settings = {"steps": asked.ours} if asked.ours else {}
    attack = registry.configure(registry.get("attacks", "inverting"), settings)
    begun = time.process_time()
    generators = [Generator().manual_seed(k) for k in range(len(held))]
    found = dict(attack.many([leak for _, leak, _, _ in held], task, generators))
    seconds = time.process_time() - begun
    mine = [psnr(found[k].x, x) for k, (_, _, x, _) in enumerate(held)]
    ours = described("", mine, seconds)
    for steps in asked.steps:
        count = asked.pictures if steps <= LONG else min(asked.long, asked.pictures)
        got = []
        spent = 0.0
        for k, (_, leak, x, y) in enumerate(held[:count]):
            # in float32, and without changing our module
            other, more = theirs(breaching, Task.build(task.spec), leak, y, steps, k)
            got.append(psnr(other, x))
            spent += more
        rate = above(got) / spent
        line = {
            "bench": f"breaching/inverting-{asked.model}-{steps}",
            "ratio": round(above(mine) / seconds / rate, 2) if rate else None,
            "unit": "times the pictures above 25 dB that breaching reaches in a CPU second; "
            "null if it reached none",
            "target": 4,
            "steps": asked.ours or attack.steps,
            **ours,
            "breaching_steps": steps,
            **described("breaching_", got, spent),
        }
        print(json.dumps(line), flush=True)


def cases(model: str, pictures: int) -> list[tuple[Task, GradientLeak, Tensor, Tensor]]:
    """Photographs, each with its gradient at a new model."""
    photos = data.load("photos")
    spec = replace(photos.spec(model, NETWORKS[model]), mean=(0.5,), std=(0.5,))
    task = Task.build(spec, dtype=D)
    held = []
    for k in range(pictures):
        x, y = photos.x[k : k + 1].double(), photos.y[k : k + 1]
        theta = task.init(Generator().manual_seed(k))
        value, one = task.gradient(theta, x, y)[None], torch.ones(1, 1, dtype=D)
        zero, columns = torch.zeros(1, dtype=D), (0, task.layout.size)
        leak = GradientLeak(
            k, torch.zeros(1), one, value, zero, columns, theta=theta[None], batch=1
        )
        held.append((task, leak, x, y))
    return held


def above(values: list[float]) -> int:
    """Number of pictures above 25 dB."""
    return sum(v > 25 for v in values)


def described(whose: str, values: list[float], seconds: float) -> dict[str, Any]:
    """Successes with their 95 % interval, PSNR and CPU seconds of one side."""
    interval = intervals.of_rate(above(values), len(values)) or (math.nan, math.nan)
    return {
        f"{whose}above_25": f"{above(values)} of {len(values)}",
        f"{whose}interval": [round(end, 3) for end in interval],
        f"{whose}psnr": round(statistics.median(values), 2),
        f"{whose}seconds_each": round(seconds / len(values), 2),
    }


if __name__ == "__main__":
    main()
