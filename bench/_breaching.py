"""Compare Inverting Gradients in this project with breaching: same ConvNet, pictures and gradients.

sh bench/_breaching.sh        creates an environment with breaching and runs this in it
python bench/_breaching.py --python PYTHON        uses the Python of such an environment

Prints one JSON line. Both take the same number of steps from their own start, otherwise with their
own defaults (breaching: total variation .2 of pixels normalised by 1/2 and 1/2, step .1, which
decreases at the same fractions of its own length). Labels are given to breaching and inferred by
our attack. ratio: CPU seconds of breaching over ours, medians over pictures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import statistics
import subprocess
import time
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from leakaudit import registry
from leakaudit.leak import GradientLeak
from leakaudit.tasks import _torchvision, data
from leakaudit.tasks.task import Task

D = torch.float64


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
    parser.add_argument("--pictures", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    asked = parser.parse_args()
    if asked.python:
        rest = ["--pictures", str(asked.pictures), "--steps", str(asked.steps)]
        raise SystemExit(subprocess.run([asked.python, __file__, *rest], check=False).returncode)
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
    photos = data.load("photos")
    task = Task.build(replace(photos.spec("convnet"), mean=(0.5,), std=(0.5,)), dtype=D)
    each = []
    for k in range(asked.pictures):
        x, y = photos.x[k : k + 1].double(), photos.y[k : k + 1]
        theta = task.init(Generator().manual_seed(k))
        value, one = task.gradient(theta, x, y)[None], torch.ones(1, 1, dtype=D)
        leak = GradientLeak(
            k,
            torch.zeros(1),
            one,
            value,
            torch.zeros(1, dtype=D),
            (0, task.layout.size),
            theta=theta[None],
            batch=1,
        )
        attack = registry.configure(registry.get("attacks", "inverting"), {"steps": asked.steps})
        start = time.process_time()
        ours = attack(leak, task, Generator().manual_seed(k)).x
        seconds = time.process_time() - start
        other, long = theirs(breaching, Task.build(task.spec), leak, y, asked.steps, k)
        each.append((long / seconds, psnr(ours, x), psnr(other, x), seconds, long))
    ratio, mine, others, short, long = (
        statistics.median(column) for column in zip(*each, strict=True)
    )
    figures = {
        "psnr": round(mine, 2),
        "breaching_psnr": round(others, 2),
        "seconds": round(short, 2),
        "breaching_seconds": round(long, 2),
    }
    about = {
        "steps": asked.steps,
        "pictures": asked.pictures,
        "unit": "times breaching's CPU seconds for the same number of steps",
    }
    print(
        json.dumps(
            {"bench": "breaching/inverting-convnet", "ratio": round(ratio, 2), **about, **figures}
        )
    )


if __name__ == "__main__":
    main()
