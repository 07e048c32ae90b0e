"""How often EXACT is wrong, and how often it is claimed, for similar images and difficult messages.

python bench/certificates.py                              a few minutes on two processes: faces, one seed
python bench/certificates.py --data faces cifar10 fashion mnist --seeds 3 --processes 16

One line per family or setting: images, images claimed as exact, wrong claims among them, and images
recovered bit for bit.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _images import ROOT, arrays

from leakaudit.protocols.scenario import Scenario

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import lookalikes

torch.set_num_threads(1)
ROUNDS = 12
NOISES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
Job = tuple[str, str, dict[str, Any]]


def jobs(data: list[str], seeds: int, batches: list[int]) -> Iterator[Job]:
    """List (name, kind, arguments) of every run."""
    shape: dict[str, Any] = {"nodes": 3, "graph": "ring", "rounds": ROUNDS, "model": "mlp"}
    for seed in range(seeds):
        for name in data:
            for dtype in ("float32", "float64"):
                common = {**shape, "data": name, "dtype": dtype, "seed": seed}
                for family in lookalikes.FAMILIES:
                    for victim in ("dpsgd", "pdmm"):
                        for samples in batches:
                            case = {
                                **common,
                                "victim": victim,
                                "samples": samples,
                                "set": {"hidden": 256},
                            }
                            yield (
                                family,
                                "run",
                                {
                                    "scenario": case,
                                    "family": family,
                                    "seed": seed,
                                    "attack": "auto",
                                },
                            )
                for samples in (1, 4):
                    yield from _noisy(common, samples, seed)
                yield from _rgap(common, seed)
            for dtype in ("bfloat16", "float16"):
                for family in ("ordinary", "noise of one level", "binary"):
                    for batch, model, rounds in (
                        (1, "logistic", 1),
                        (1, "logistic", 4),
                        (1, "mlp", 1),
                        (1, "mlp", 3),
                        (2, "mlp", 6),
                    ):
                        told = {
                            "family": family,
                            "dtype": dtype,
                            "batch": batch,
                            "seed": seed,
                            "model": model,
                            "rounds": rounds,
                        }
                        yield f"messages in {dtype}", "half", {**told, "data": name}


def _noisy(common: dict[str, Any], samples: int, seed: int) -> Iterator[Job]:
    """List settings with noisy or rounded messages."""
    settings: list[tuple[str, str, dict[str, Any]]] = []
    for noise in NOISES:
        settings.append((f"noise {noise:.0e}", "dpsgd", {"sigma": noise}))
        settings.append((f"quantised {noise:.0e}", "pdmm", {"quantize": noise}))
    for clip in (0.1, 1.0):
        settings.append(("clipped", "dpsgd", {"clip": clip}))
    for decay in (0.01, 0.5):
        settings.append(("weight decay", "pdmm", {"l2": decay}))
        settings.append(("weight decay", "dpsgd", {"l2": decay}))
    for name, victim, extra in settings:
        for family in ("ordinary", "noise of one level") if samples > 1 else ("ordinary",):
            told = {**common, "victim": victim, "samples": samples, "set": {"hidden": 256, **extra}}
            yield name, "run", {"scenario": told, "family": family, "seed": seed, "attack": "auto"}
    for rounds in (1, 2, 3):
        told = {
            **common,
            "victim": "pdmm",
            "samples": samples,
            "rounds": rounds,
            "model": "logistic",
            "set": {"l2": 0.5},
        }
        yield (
            "few rows with weight decay",
            "run",
            {"scenario": told, "family": "ordinary", "seed": seed, "attack": "auto"},
        )


def _rgap(common: dict[str, Any], seed: int) -> Iterator[Job]:
    """Layer by layer, with noise that was once mistaken for rounding."""
    for noise in (0.0, 1e-6, 1e-4, 1e-3):
        extra = {"hidden": 700, "act": "sigmoid", "sigma": noise}
        told = {**common, "victim": "dpsgd", "samples": 1, "rounds": 3, "set": extra}
        yield (
            f"R-GAP, noise {noise:.0e}",
            "run",
            {"scenario": told, "family": "ordinary", "seed": seed, "attack": "rgap"},
        )


def work(job: Job) -> tuple[Job, lookalikes.Count]:
    """Run one job."""
    name, kind, told = job
    try:
        if kind == "half":
            dtype = getattr(torch, told["dtype"])
            rest = {k: v for k, v in told.items() if k != "dtype"}
            return job, lookalikes.half(dtype=dtype, **rest)
        return job, lookalikes.attacked(
            Scenario(**told["scenario"]), told["family"], told["seed"], told["attack"]
        )
    except Exception as error:
        return job, lookalikes.Count(cases=[f"{name}: {type(error).__name__}: {error}"])


def main() -> None:
    """Run all jobs and print their counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", nargs="+", default=["faces"], choices=["faces", "cifar10", "fashion", "mnist"]
    )
    parser.add_argument("--batch", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", help="names of families and settings to run")
    parser.add_argument("-o", "--output", help="JSON file for the counts of every run")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        names = {
            name: mnist(Path(folder)) if name == "mnist" else arrays(name, Path(folder))
            for name in asked.data
        }
        todo = [
            job
            for job in jobs([names[name] for name in asked.data], asked.seeds, asked.batch)
            if asked.only in (None, job[0])
        ]
        total: dict[str, lookalikes.Count] = {}
        runs = []
        with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
            for at, (job, count) in enumerate(pool.imap_unordered(work, todo, chunksize=1)):
                total.setdefault(job[0], lookalikes.Count()).add(count)
                runs.append(
                    {
                        "job": repr(job),
                        "images": count.images,
                        "claims": count.claims,
                        "false": count.false,
                        "bits": count.bits,
                    }
                )
                sys.stderr.write(f"\r{at + 1} of {len(todo)} runs")
                if asked.output:
                    Path(asked.output).write_text(json.dumps(runs), encoding="utf-8")
    sys.stderr.write("\n")
    print(f"{'':30s} {'images':>8s} {'exact':>8s} {'wrong':>8s} {'bit for bit':>12s}")
    for name, count in total.items():
        print(f"{name:30s} {count.images:8d} {count.claims:8d} {count.false:8d} {count.bits:12d}")
        for case in count.cases[:3]:
            print(f"    {case}")


def mnist(folder: Path) -> str:
    """Return the name of a part of MNIST for a scenario."""
    file = folder / "mnist.npz"
    with np.load(ROOT / "mnist_subset.npz") as given:
        x, y = (
            given[next(name for name in given.files if name.startswith(first))]
            for first in ("x", "y")
        )
    np.savez(file, x=x, y=y.astype(np.int64))
    return f"npz:{file}"


if __name__ == "__main__":
    main()
