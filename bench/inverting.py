"""Inverting Gradients, GradInversion and R-GAP, measured beside the published recipe.

python bench/inverting.py --sweep
    PSNR of one picture at equal steps, over the weight of total variation
python bench/inverting.py --speed      loss reached and CPU seconds, over the number of steps
python bench/inverting.py --batch
    GradInversion and Inverting Gradients on four faces and a ResNet-10,
                                       at equal evaluations: from a layer's gradient, from gradients only,
                                       and without the batch statistics
python bench/inverting.py --layers
    R-GAP and Inverting Gradients on single pictures, over networks

Prints one JSON line per figure. Networks are drawn anew for each picture; our attacks read labels
from the gradient, the recipe receives them. The recipe (Inverting Gradients) is implemented here
from the published facts: 1 - cosine + a TV of pixels normalised by 1/2 and 1/2, sign of the slope
into Adam at .1, a tenth of it after 3/8, 5/8 and 7/8 of the steps, clamped to the box, from N(0,
1), no restart. Its `a` is half of our weight for the same smoothing, since our pixels lie in [0,
1].
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leakaudit._util import assignment
from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion.search import priors
from leakaudit.inversion.search.priors import Statistics
from leakaudit.tasks import batch_norm, data
from leakaudit.tasks.data import Dataset
from leakaudit.tasks.models import MODELS
from leakaudit.tasks.task import Task

torch.set_num_threads(1)
D = torch.float64
WEIGHTS = (2e-4, 2e-3, 2e-2, 6e-2, 2e-1)  # of total variation of pixels in [0, 1]
OURS = ((75, 1), (100, 1), (150, 1), (300, 1), (600, 1))  # steps and starts in --speed
BATCH_WEIGHTS = (1e-3, 1e-2, 1e-1, 3e-1, 1.0)
BATCHES: dict[
    str, tuple[str, bool, dict[str, Any]]
] = {  # attack, whether it knows the batch statistics, and its settings
    "inverting": ("inverting", False, {}),
    "gradinversion": ("gradinversion", True, {"seeds": 1}),
    "gradients": ("gradinversion", True, {"seeds": 1, "layers": False, "bn": 10.0}),
    "untold": ("gradinversion", False, {"seeds": 1}),
}
NETWORKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("lenet", {}),
    ("lenet", {"act": "relu"}),
    ("convnet", {}),
    ("convnet", {"act": "sigmoid"}),
    ("convnet", {"act": "tanh"}),
    ("convnet", {"width": 64}),
)


def leak_of(task: Task, x: Tensor, y: Tensor, seed: int) -> GradientLeak:
    """Return one gradient at a new model."""
    theta = task.init(Generator().manual_seed(seed))
    value, one = task.gradient(theta, x, y)[None], torch.ones(1, 1, dtype=D)
    return GradientLeak(
        0,
        torch.zeros(1),
        one,
        value,
        torch.zeros(1, dtype=D),
        (0, task.layout.size),
        theta=theta[None],
        batch=len(x),
    )


def cases(
    dataset: Dataset, task: Task, pictures: int, batch: int = 1, first: int = 0
) -> list[tuple[GradientLeak, Tensor, Tensor]]:
    """Leaks with their pictures and labels; single pictures are spread over the data set, batches
    are consecutive.
    """
    stride = batch if batch > 1 else max(1, (len(dataset) - first) // pictures)
    out = []
    for k in range(first, first + pictures * stride, stride):
        x, y = dataset.x[k : k + batch].double(), dataset.y[k : k + batch]
        out.append((leak_of(task, x, y, k), x, y))
    return out


def recipe(
    task: Task, leak: GradientLeak, y: Tensor, steps: int, weight: float, generator: Generator
) -> Tensor:
    """Run the published loop (Geiping et al. 2020) in float32; return pixels in [0, 1]. weight: of
    TV of such pixels.
    """
    assert leak.theta is not None
    module = copy.deepcopy(task.module).float()
    torch.nn.utils.vector_to_parameters(leak.theta[0].float(), module.parameters())
    parameters, aims = (
        list(module.parameters()),
        [p.float() for p in task.layout.split(leak.value[0]).values()],
    )
    size = torch.stack([a.pow(2).sum() for a in aims]).sum().sqrt()
    mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (task.spec.mean, task.spec.std))
    z = torch.randn(len(y), *task.spec.shape, generator=generator).requires_grad_()
    optimiser = torch.optim.Adam([z], lr=0.1)
    falls = torch.optim.lr_scheduler.MultiStepLR(
        optimiser, [int(steps * share) for share in (3 / 8, 5 / 8, 7 / 8)], 0.1
    )
    for _ in range(steps):
        out = F.cross_entropy(module((z * 0.5 + 0.5 - mean) / std), y)
        found = torch.autograd.grad(out, parameters, create_graph=True)
        dot = torch.stack([(g * a).sum() for g, a in zip(found, aims, strict=True)]).sum()
        smooth = (z[..., 1:] - z[..., :-1]).abs().mean() + (
            z[..., 1:, :] - z[..., :-1, :]
        ).abs().mean()
        loss = (
            1
            - dot / torch.stack([g.pow(2).sum() for g in found]).sum().sqrt() / size
            + 0.5 * weight * smooth
        )
        z.grad = torch.autograd.grad(loss, z)[0].sign()
        optimiser.step()
        falls.step()
        with torch.no_grad():
            z.clamp_(-1, 1)
    return z.detach() * 0.5 + 0.5


def attacked(
    name: str,
    leak: GradientLeak,
    task: Task,
    seed: int,
    known: Statistics | None = None,
    **settings: Any,
) -> Reconstruction:
    """Run one attack; known: the victim's batch statistics."""
    made = registry.configure(registry.get("attacks", name), settings)
    made = made if known is None else replace(made, statistics=known)
    found: Reconstruction = made(leak, task, Generator().manual_seed(seed))
    return found


def psnr(found: Tensor, x: Tensor) -> float:
    """Mean PSNR over a batch, each picture with its partner; at most 150 dB."""
    pairs = assignment.match(found, x)
    errors = (found[pairs.found].double() - x[pairs.true]).square().flatten(1).mean(1)
    return float((-10 * errors.log10()).clamp_max(150).mean())


def loss(task: Task, leak: GradientLeak, x: Tensor, y: Tensor, weight: float) -> float:
    """The objective of both attacks, at x, in float64."""
    assert leak.theta is not None
    g = task.gradient(leak.theta[0], x.double(), y)
    return float(
        1
        - (g @ leak.value[0]) / g.norm() / leak.value[0].norm()
        + weight * priors.total_variation(x.double())
    )


def both(
    dataset: Dataset, pictures: int, steps: int, weight: float, names: tuple[str, ...], first: int
) -> dict[str, dict[str, Any]]:
    """Mean PSNR, loss and CPU seconds of the recipe and of our attack on the same leaks."""
    task = Task.build(dataset.spec("convnet"), dtype=D)
    out: dict[str, dict[str, Any]] = {}
    for name in names:
        each = []
        for k, (leak, x, y) in enumerate(cases(dataset, task, pictures, first=first)):
            start = time.process_time()
            if name == "recipe":
                found = recipe(task, leak, y, steps, weight, Generator().manual_seed(k))
            else:
                found = attacked(name, leak, task, k, steps=steps, tv=weight).x
            seconds = time.process_time() - start
            each.append((psnr(found, x), loss(task, leak, found, y, weight), seconds))
        means = [statistics.mean(column) for column in zip(*each, strict=True)]
        out[name] = {
            "psnr": round(means[0], 2),
            "loss": round(means[1], 5),
            "seconds": round(means[2], 2),
        }
    return out


def emit(bench: str, **figures: Any) -> None:
    """Print one JSON line."""
    print(json.dumps({"bench": f"inverting/{bench}", **figures}), flush=True)


def sweep(dataset: Dataset, pictures: int, steps: int, first: int) -> None:
    """PSNR over the weight of total variation."""
    best = {"recipe": -math.inf, "inverting": -math.inf}
    for weight in WEIGHTS:
        got = both(dataset, pictures, steps, weight, ("recipe", "inverting"), first)
        emit(
            "sweep",
            data=dataset.name,
            pictures=pictures,
            steps=steps,
            tv=weight,
            **{n: g["psnr"] for n, g in got.items()},
        )
        best = {n: max(best[n], got[n]["psnr"]) for n in best}
    emit("sweep-best", data=dataset.name, steps=steps, **best)


def speed(dataset: Dataset, pictures: int, most: int, weight: float, first: int) -> None:
    """Loss and CPU seconds per picture: the recipe on one after the other, ours on all together.

    The ratio is to the cheapest of our runs such that it and all longer ones reach the loss of the
    recipe: every run ends in a different local minimum. The recipe runs on every second picture
    before ours and on the others after, so that other load slows both down.
    """
    task = Task.build(dataset.spec("convnet"), dtype=D)
    held, recipes = (
        cases(dataset, task, pictures, first=first),
        [s for s in (300, 600, 1200, 2400) if s <= most],
    )
    recipe(
        task, held[0][0], held[0][2], 2, weight, Generator().manual_seed(0)
    )  # torch loads code at its first step, which is not timed
    got: dict[str, list[tuple[float, float, float]]] = {}
    published(task, held, range(0, pictures, 2), recipes, weight, got)
    for steps, starts in OURS:
        attack = registry.configure(
            registry.get("attacks", "inverting"), {"steps": steps, "restarts": starts, "tv": weight}
        )
        begun = time.process_time()
        found = dict(
            attack.many(
                [leak for leak, _, _ in held],
                task,
                [Generator().manual_seed(k) for k in range(pictures)],
            )
        )
        seconds = (time.process_time() - begun) / pictures
        each = [
            (loss(task, leak, found[k].x, y, weight), psnr(found[k].x, x), seconds)
            for k, (leak, x, y) in enumerate(held)
        ]
        got[f"inverting {steps}" + (f" x {starts}" if starts > 1 else "")] = each
    published(task, held, range(1, pictures, 2), recipes, weight, got)
    means = {
        name: [statistics.mean(column) for column in zip(*each, strict=True)]
        for name, each in got.items()
    }
    for name, (left, decibels, seconds) in means.items():
        emit(
            "speed",
            who=name,
            data=dataset.name,
            tv=weight,
            loss=round(left, 5),
            psnr=round(decibels, 2),
            seconds=round(seconds, 2),
        )
    for name in (f"recipe {s}" for s in recipes):
        left, _, seconds = means[name]
        ours = sorted((m[2], m[0], n) for n, m in means.items() if n.startswith("inverting"))
        least = next(
            (ours[k] for k in range(len(ours)) if all(m[1] <= left for m in ours[k:])), None
        )
        emit(
            "speed-ratio",
            to=name,
            ours=least and least[2],
            times_faster=round(seconds / least[0], 1) if least else None,
            target=2,
        )


def published(
    task: Task,
    held: list[tuple[GradientLeak, Tensor, Tensor]],
    some: range,
    runs: list[int],
    weight: float,
    got: dict[str, Any],
) -> None:
    """Add loss, PSNR and CPU seconds of the recipe on some pictures, for several numbers of
    steps.
    """
    for k in some:
        leak, x, y = held[k]
        for steps in runs:
            begun = time.process_time()
            found = recipe(task, leak, y, steps, weight, Generator().manual_seed(k))
            seconds = time.process_time() - begun
            got.setdefault(f"recipe {steps}", []).append(
                (loss(task, leak, found, y, weight), psnr(found, x), seconds)
            )


def batch(
    dataset: Dataset,
    batches: int,
    evaluations: int,
    first: int,
    weights: Sequence[float],
    model: str,
    chosen: Sequence[str],
) -> None:
    """GradInversion and Inverting Gradients on four images and a network with batch normalisation,
    at equal evaluations.
    """
    task = Task.build(
        dataset.spec(model if model in MODELS else f"_resnets:{model}"), dtype=D, trusted=True
    )
    held = cases(dataset, task, batches, 4, first)
    for weight in weights:
        each: dict[str, list[float]] = {kind: [] for kind in chosen}
        seconds = dict.fromkeys(chosen, 0.0)
        for kind in chosen:
            name, told, settings = BATCHES[kind]
            for k, (leak, x, _) in enumerate(held):
                assert leak.theta is not None
                known = {
                    n: (m.detach(), v.detach())
                    for n, (m, v) in batch_norm.batch_statistics(task, leak.theta[0], x).items()
                }
                start = time.process_time()
                found = attacked(
                    name,
                    leak,
                    task,
                    k,
                    known if told else None,
                    tv=weight,
                    steps=evaluations,
                    **settings,
                )
                seconds[kind] += (time.process_time() - start) / batches
                each[kind].append(round(psnr(found.x, x), 2))
        for kind, values in each.items():
            mean, spent = round(statistics.mean(values), 2), round(seconds[kind], 1)
            emit(
                "batch",
                network=model,
                data=dataset.name,
                steps=evaluations,
                tv=weight,
                attack=kind,
                psnr=mean,
                each=values,
                seconds=spent,
            )


def layers(dataset: Dataset, pictures: int, steps: int, first: int, chosen: str) -> None:
    """R-GAP over networks, beside Inverting Gradients."""
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (("rgap", {}), ("inverting", {"steps": steps}))
    for model, args in NETWORKS:
        network = " ".join([model, *(f"{a}={v}" for a, v in args.items())])
        if chosen not in (network, "all"):
            continue
        task = Task.build(dataset.spec(model, args), dtype=D)
        for name, settings in kinds:
            each = []
            for k, (leak, x, _) in enumerate(cases(dataset, task, pictures, first=first)):
                start = time.process_time()
                found = attacked(name, leak, task, k, **settings)
                each.append(
                    (
                        psnr(found.x, x),
                        found.certificate is Certificate.EXACT,
                        time.process_time() - start,
                    )
                )
            values = [e[0] for e in each]
            emit(
                "layers",
                network=network,
                attack=name,
                data=dataset.name,
                median=round(statistics.median(values), 1),
                least=round(min(values), 1),
                above_25=f"{sum(v > 25 for v in values)} of {pictures}",
                bit_exact=f"{sum(v == 150 for v in values)} of {pictures}",
                certified=f"{sum(e[1] for e in each)} of {pictures}",
                seconds=round(statistics.mean(e[2] for e in each), 1),
            )


def main() -> None:
    """Run the requested parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for part in ("sweep", "speed", "batch", "layers"):
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument(
        "--data",
        default=None,
        help="name of a data set; default photos, or faces for --batch",
    )
    parser.add_argument("--pictures", type=int, default=8, help="number of pictures, or of batches")
    parser.add_argument("--first", type=int, default=0, help="first record to use")
    parser.add_argument(
        "--weights",
        type=float,
        nargs="+",
        default=BATCH_WEIGHTS,
        help="weights of total variation in --batch",
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=tuple(BATCHES),
        choices=tuple(BATCHES),
        help="attacks in --batch",
    )
    parser.add_argument(
        "--model", default="narrow", help="network in --batch: narrow, resnet10 or resnet18"
    )
    parser.add_argument(
        "--network", default="all", help="run only this one of --layers, e.g. 'convnet act=tanh'"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=300,
        help="steps of Inverting Gradients; maximum steps of the recipe in --speed",
    )
    parser.add_argument(
        "--tv", type=float, default=2e-2, help="weight of total variation in --speed"
    )
    asked = parser.parse_args()
    pictures = data.load(asked.data or "photos")
    if asked.sweep:
        sweep(pictures, asked.pictures, asked.steps, asked.first)
    if asked.speed:
        speed(pictures, asked.pictures, asked.steps, asked.tv, asked.first)
    if asked.batch:
        batch(
            data.load(asked.data or "faces"),
            asked.pictures,
            asked.steps,
            asked.first,
            asked.weights,
            asked.model,
            asked.kinds,
        )
    if asked.layers:
        layers(pictures, asked.pictures, asked.steps, asked.first, asked.network)


if __name__ == "__main__":
    main()
