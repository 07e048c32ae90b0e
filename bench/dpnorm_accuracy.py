"""DP-Norm's Figures 2 and 4 on Fashion-MNIST: accuracy and norms, with printed and with exact
noise.

python bench/dpnorm_accuracy.py FOLDER -o OUT
    FOLDER contains the four idx files; full length, one seed
python bench/dpnorm_accuracy.py FOLDER -o OUT --rounds 200 --seeds 3

A ring of 6 nodes with 4,000 images of 6 of 10 classes per node, rows of norm 1, softmax regression,
by default without intercept. All methods share start, mini-batches and test set. The exact noise
gives every method the same epsilon. Prints one JSON line per curve; OUT receives curves-SEED.json,
which grows during the training, and accuracy.png and norms.png of the first seed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from _budget import Setting, equal, exact, printed
from _convex import Ring, Training
from _files import fashion, unit
from torch import Generator, Tensor

from leakaudit.core.trace import TaskSpec
from leakaudit.protocols.batches import batches
from leakaudit.reporting.figures import plots, training_chart
from leakaudit.tasks import data
from leakaudit.tasks.task import Problem, Task

COMPARED = (
    ("DP-Norm", "dpnorm", 0.2),
    ("alpha = 0", "dpnorm", 0.0),
    ("DP-SGD", "dpsgd", 0.0),
    ("DP-ADMM", "dpadmm", 0.0),
)
LABELS = ("single node", *(label for label, _, _ in COMPARED))
Curves = dict[str, Tensor]


def trainings(
    s: Setting, epsilons: Sequence[float], l2: float, labels: Sequence[str] = LABELS
) -> list[Training]:
    """List the curves: every method without noise, and at each epsilon with both noises; the single
    node has no noise.
    """
    out = [Training("single", "single node", mu=s.mu, l2=l2)]
    for label, method, alpha in COMPARED:
        bare = Training(method, label, mu=s.mu, alpha=alpha, rho=s.rho, l2=l2)
        out.append(bare)
        for epsilon in epsilons:
            for noise, level in (("printed", printed), ("equal", equal)):
                out.append(
                    replace(
                        bare, epsilon=epsilon, noise=noise, sigma=level(method, alpha, epsilon, s)
                    )
                )
    return [r for r in out if r.label in labels]


def with_one(x: Tensor) -> Tensor:
    """Scale every row to norm 1 and add a constant 1 for the intercept; a gradient then has norm at
    most 2.
    """
    return torch.cat((unit(x), torch.ones(len(x), 1)), 1)


def nodes(x: Tensor, y: Tensor, s: Setting, generator: Generator) -> Problem:
    """Distribute equally many images to each node, from 6 classes chosen at random."""
    classes = int(y.max()) + 1
    source = data.Dataset(x, y, "fashion", classes, 255, (), (), ())
    rows = data.split(source, s.nodes, s.records, "classes:6", generator)
    task = Task.build(TaskSpec("logistic", {"bias": False}, shape=(x.shape[1],), classes=classes))
    return Problem(task, x[rows], y[rows])


def train(
    runs: Sequence[Training],
    problem: Problem,
    test: tuple[Tensor, Tensor],
    s: Setting,
    stop: int,
    every: int,
    random: Sequence[Generator],
) -> Iterator[tuple[int, Ring, Curves]]:
    """Yield (round, state, measures) at round 0, every `every` rounds and at `stop`. random:
    generators of start, batches and noise.
    """
    classes, size = problem.task.spec.classes, problem.x.shape[2]
    start = 0.01 * torch.randn(classes, size, generator=random[0])
    ring = Ring(
        runs, start, s.nodes, s.inner, lambda shape: torch.randn(shape, generator=random[2])
    )
    yield 0, ring, ring.measure(*test)
    for t in range(1, stop + 1):
        ring.round((part.x, part.y) for part in batches(problem, s.batch, s.inner, random[1]))
        if t % every == 0 or t == stop:
            yield t, ring, ring.measure(*test)


def one_seed(
    seed: int, images: tuple[Tensor, ...], s: Setting, args: argparse.Namespace
) -> tuple[list[Training], list[int], Curves]:
    """Train with one seed; return the trainings in the order of the curves, (evaluations, V) each,
    and their rounds.
    """
    split, *random = (
        Generator().manual_seed(int(k))
        for k in np.random.SeedSequence(seed).generate_state(4, np.uint64) >> 1
    )
    shape = with_one if args.intercept else unit
    problem, test = nodes(shape(images[0]), images[1], s, split), (shape(images[2]), images[3])
    kept: list[Curves] = []
    at, began = [], time.perf_counter()
    runs = trainings(s, args.epsilons, args.l2, args.methods)
    for t, ring, measured in train(
        runs, problem, test, s, args.stop or s.rounds, args.every, random
    ):
        at.append(t)
        kept.append(measured)
        order, curves = (
            ring.trainings,
            {name: torch.stack([m[name] for m in kept]) for name in measured},
        )
        report(
            args.output / f"curves-{seed}.json",
            order,
            at,
            curves,
            (time.perf_counter() - began) / max(t, 1),
        )
    return order, at, curves


def report(
    path: Path, order: Sequence[Training], at: Sequence[int], curves: Curves, seconds: float
) -> None:
    """Write the curves so far."""
    rows = [
        {**vars(r), "epsilon": str(r.epsilon), **{n: c[:, v].tolist() for n, c in curves.items()}}
        for v, r in enumerate(order)
    ]
    path.write_text(json.dumps({"rounds": list(at), "seconds_per_round": seconds, "curves": rows}))


def figures(order: Sequence[Training], at: Sequence[int], curves: Curves, folder: Path) -> None:
    """Draw accuracy, and norms of models and duals: one panel per epsilon and noise, one line per
    method; noise-free curves appear in all.
    """
    rounds = np.arange(at[-1] + 1)
    cases = list(dict.fromkeys((r.epsilon, r.noise) for r in order))
    for file, names in (("accuracy.png", ("accuracy",)), ("norms.png", ("norm_w", "norm_dual"))):
        runs: dict[str, Curves] = {}
        for (epsilon, noise), name in (
            (c, n)
            for c in sorted(cases, key=lambda c: (c[1] != "none", c[1], -c[0]))
            for n in names
        ):
            panel = f"{training_chart.title(name)}, " + (
                "no noise" if noise == "none" else f"epsilon {epsilon:g}, {noise} noise"
            )
            for v, r in enumerate(order):
                values = curves[name][:, v].numpy()
                if (
                    (r.epsilon, r.noise) == (epsilon, noise) or r.method == "single"
                ) and np.isfinite(values).all():
                    runs.setdefault(r.label, {})[panel] = torch.from_numpy(
                        np.interp(rounds, at, values)
                    )
        plots.save(training_chart.chart(runs), folder / file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, train, print and draw."""
    args = parser().parse_args(arguments)
    if args.folder is None:
        print(
            json.dumps(
                {
                    "bench": "dpnorm_accuracy",
                    "skipped": "specify the folder with Fashion-MNIST's four idx files",
                }
            )
        )
        return
    torch.set_num_threads(args.threads)
    args.output.mkdir(parents=True, exist_ok=True)
    images, results = fashion(args.folder), []
    s = Setting(
        rounds=args.rounds,
        batch=args.batch,
        records=args.records,
        lipschitz=2.0 if args.intercept else math.sqrt(2),
    )
    for seed in range(args.seeds):
        began = time.perf_counter()
        order, at, curves = one_seed(seed, images, s, args)
        results.append(curves["accuracy"][-1])
        if seed == 0:
            figures(order, at, curves, args.output)
        print(
            json.dumps(
                {
                    "bench": "dpnorm_accuracy/time",
                    "seed": seed,
                    "rounds": at[-1],
                    "seconds": round(time.perf_counter() - began),
                }
            ),
            flush=True,
        )
    final = torch.stack(results)
    for v, r in enumerate(order):
        epsilon = exact(r.method, r.alpha, r.sigma, s) if r.sigma else math.inf
        print(json.dumps({
            "bench": f"dpnorm_accuracy/{r.label}", "noise": r.noise, "epsilon": str(r.epsilon), "exact_epsilon": f"{epsilon:.3g}",
            "sigma": round(r.sigma, 5), "rounds": at[-1], "accuracy": round(float(final[:, v].mean()), 4),
            "least": round(float(final[:, v].min()), 4), "most": round(float(final[:, v].max()), 4),
        }))  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Build the command-line parser."""
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="folder with the four gzipped idx files of Fashion-MNIST",
    )
    out.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("leakaudit-out"),
        help="folder for curves and figures",
    )
    out.add_argument(
        "--rounds", type=int, default=2000, help="number of rounds for which the noise is set, R"
    )
    out.add_argument("--records", type=int, default=4000, help="images per node")
    out.add_argument(
        "--batch", type=int, default=2000, help="images per mini-batch, half of a node's"
    )
    out.add_argument("--stop", type=int, default=0, help="rounds to train, 0 for all R")
    out.add_argument("--every", type=int, default=20, help="rounds between two measurements")
    out.add_argument("--seeds", type=int, default=1, help="number of seeds")
    out.add_argument("--threads", type=int, default=2, help="threads")
    out.add_argument(
        "--intercept", action="store_true", help="train an intercept, as a constant column"
    )
    out.add_argument(
        "--l2",
        type=float,
        default=1e-4,
        help="weight of l2 / 2 |w|^2; the paper does not print its own",
    )
    out.add_argument(
        "--methods",
        nargs="*",
        choices=LABELS,
        default=LABELS,
        metavar="NAME",
        help=f"by default {', '.join(LABELS)}",
    )
    out.add_argument(
        "--epsilons",
        type=float,
        nargs="*",
        default=[1.0, 0.5],
        help="privacy levels in addition to no noise",
    )
    return out


if __name__ == "__main__":
    main()
