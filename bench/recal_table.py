"""DP-RECAL's Table IV: relative error of decentralised least squares over the privacy leakage
frequency.

python bench/recal_table.py FOLDER
    FOLDER contains fashion_mnist/, ijcnn1/ and mnist_subset.npz;
                                              data sets that are missing are omitted

Prints one table per data set. A ring of 8 nodes, features in [0, 1], targets -1 and 1, equally many
records per node. PLF counts how often the busiest node's gradient was used in a message.
RE = |x - x*| / |x*| over all nodes. Every method uses the step size of its grid with the smallest
final error. With noise, the exact mu over the last PLF is that of (epsilon, delta)-DP for one
replaced record, and each release hides the same share; a record is assumed to change a gradient by
at most C, computed at the optimum (nothing is clipped, as in the paper).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from _files import fashion
from _quadratic import Quadratic, Steps, admm, extra, mradmm, nids, recal, rwadmm, server
from torch import Generator, Tensor

from leakaudit.tasks.data_files import read_libsvm
from leakaudit.theory.bounds import gaussian

NODES = 8
DUAL = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
METHODS: dict[
    str, tuple[Callable[..., Steps], tuple[float, ...], int]
] = {  # grid of step sizes, messages per unit of PLF
    "RECAL": (recal, DUAL, 8),
    "RECAL, R = .99": (partial(recal, decay=0.99), DUAL, 8),
    "NIDS": (nids, (0.25, 0.5, 1.0, 1.5, 1.9), 16),
    "EXTRA": (extra, (0.25, 0.5, 0.75, 0.95), 16),
    "DP-ADMM [12]": (admm, DUAL, 16),
    "DP-ADMM [13]": (server, DUAL, 16),
    "RW-ADMM": (rwadmm, DUAL, 16),
    "MR-ADMM [17]": (mradmm, DUAL, 32),
}
SMOOTH_ONLY = (
    "DP-ADMM [12]",
    "DP-ADMM [13]",
    "RW-ADMM",
    "MR-ADMM [17]",
)  # with l1 the updates in their papers need an inner loop, or are not given
PRINTED = {
    "ijcnn1": 5.8e-15,
    "MNIST 0/1": 4.7e-15,
    "Fashion-MNIST 0/1": 6.8e-15,
}  # Table IV, DP-RECAL at PLF 300


def sets(folder: Path) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (name, records (n, p) in [0, 1], targets (n,) -1 and 1) of the available data sets;
    float64.
    """
    if (folder / "ijcnn1" / "ijcnn1.trn.bz2").exists():
        x, y, *_ = read_libsvm(folder / "ijcnn1" / "ijcnn1.trn.bz2")
        low, high = x.amin(0), x.amax(0)
        yield "ijcnn1", ((x - low) / (high - low).clamp_min(1e-9)).double(), 2 * y.double() - 1
    if (folder / "mnist_subset.npz").exists():
        with np.load(folder / "mnist_subset.npz", allow_pickle=False) as file:
            x, y = (
                torch.from_numpy(np.concatenate([file[f"{k}_train"], file[f"{k}_test"]]))
                for k in ("x", "y")
            )
        yield "MNIST 0/1", *_two(x.flatten(1).double(), y)
    if (folder / "fashion_mnist").is_dir():
        x, y, *_ = fashion(folder / "fashion_mnist")
        yield "Fashion-MNIST 0/1", *_two(x.double(), y)


def nodes(x: Tensor, y: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Shuffle the records and distribute equally many to each node; the remainder is omitted."""
    rows = torch.randperm(len(x), generator=generator)[: len(x) // NODES * NODES].view(NODES, -1)
    return x[rows], y[rows]


def curve(
    method: Callable[..., Steps],
    grid: Sequence[float],
    q: Quadratic,
    marks: Sequence[int],
    seed: int,
) -> tuple[Tensor, float]:
    """Return the errors at each mark of PLF (marks,) for the choice with the smallest final error,
    and that choice.
    """
    errors: dict[int, Tensor] = {}
    for plf, w in method(
        q, torch.tensor(grid).to(q.best), max(marks), Generator().manual_seed(seed)
    ):
        if plf in marks:
            errors[plf] = q.error(w)
    table = torch.stack([errors[m] for m in marks])
    best = int(table[-1].nan_to_num(torch.inf).argmin())
    return table[:, best], grid[best]


def implied(q: Quadratic, error: float, delta: float) -> float:
    """Return an estimate of the smallest epsilon at which DP-RECAL can reach a relative error.

    It uses only the last release, regardless of earlier ones. This release leaves x_i with noise of
    standard deviation tau_i C / mu in each of p coordinates. error: its square root is used, the
    reading of the print that requires least; tau_i: the smallest of the grid.
    """
    tau = 0.95 / (q.smooth / 2 + 2 * max(DUAL) * q.smooth)
    spread = float((tau * q.change).square().mean().sqrt()) * q.best.shape[0] ** 0.5
    return gaussian.epsilon(delta, spread / (error**0.5 * float(q.best.norm())))


def rows(
    q: Quadratic,
    methods: Sequence[str],
    marks: Sequence[int],
    epsilon: float,
    delta: float,
    seed: int,
) -> Iterator[dict[str, object]]:
    """Yield one row per method, without noise and with noise."""
    noisy = replace(q, level=max(marks) ** 0.5 / gaussian.least_mu(epsilon, delta))
    for name in methods:
        method, grid, messages = METHODS[name]
        if q.l1 and name in SMOOTH_ONLY:
            continue
        for private in (False, True):
            if "R = " in name and not private:
                continue
            began = time.perf_counter()
            errors, scale = curve(method, grid, noisy if private else q, marks, seed)
            yield {
                "method": f"DP, {name}" if private else name,
                "scale": scale,
                "messages": messages * max(marks),
                "seconds": round(time.perf_counter() - began, 1),
                **{
                    f"RE({m})": float(f"{e:.2e}")
                    for m, e in zip(marks, errors.tolist(), strict=True)
                },
            }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one JSON line per row."""
    out = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("folder", nargs="?", type=Path, help="folder with the data files")
    out.add_argument(
        "--plf",
        type=int,
        nargs="*",
        default=[50, 100, 200, 300],
        help="PLF at which the error is printed",
    )
    out.add_argument(
        "--condition",
        type=float,
        nargs="*",
        default=[10.0, 100.0],
        help="ratio of the largest to the smallest curvature, set by a ridge",
    )
    out.add_argument(
        "--l1",
        type=float,
        nargs="*",
        default=[0.0, 0.01],
        help="weights of l1, as fractions of the smallest with x* = 0",
    )
    out.add_argument(
        "--methods",
        nargs="*",
        choices=METHODS,
        default=list(METHODS),
        metavar="NAME",
        help="by default all",
    )
    out.add_argument("--epsilon", type=float, default=1.0)
    out.add_argument("--delta", type=float, default=1e-3)
    out.add_argument("--seed", type=int, default=0)
    out.add_argument("--threads", type=int, default=2)
    args = out.parse_args(arguments)
    if args.folder is None:
        print(
            json.dumps(
                {"bench": "recal_table", "skipped": "specify the folder with the data files"}
            )
        )
        return
    torch.set_num_threads(args.threads)
    for name, x, y in sets(args.folder):
        for condition in args.condition:
            for l1 in args.l1:
                q = Quadratic.of(*nodes(x, y, Generator().manual_seed(args.seed)), condition, l1)
                case = {
                    "bench": f"recal_table/{name}",
                    "records": len(x),
                    "features": x.shape[1],
                    "condition": condition,
                    "l1": l1,
                }
                for row in rows(
                    q, args.methods, sorted(args.plf), args.epsilon, args.delta, args.seed
                ):
                    if row["method"] == "DP, RECAL":
                        row["epsilon of the print"] = float(
                            f"{implied(q, PRINTED[name], args.delta):.1e}"
                        )
                    print(json.dumps(case | row), flush=True)


def _two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Keep classes 0 and 1 of images with pixels in 0..255."""
    kept = y < 2
    return x[kept] / 255, 2.0 * y[kept].double() - 1


if __name__ == "__main__":
    main()
