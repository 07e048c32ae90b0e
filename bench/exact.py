"""Images of a batch recovered bit for bit from differential PDMM: numbers, wrong claims, times,
noise.

python bench/exact.py                                          the bundled faces, batches of 2 to 16
python bench/exact.py --data fashion cifar10 --batch 1 2 4 8 16 32 64
    images outside the project (LEAKAUDIT_TEST_DATA)
python bench/exact.py --noise 1e-6 1e-5 1e-4 --data fashion --batch 1 2 4 8 median PSNR for quantised messages

Prints one JSON line per figure; seconds are those of the attack only, on one thread: cpu is process
time, wall is elapsed time.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _images import arrays

import leakaudit as la
from leakaudit.core.reconstruction import Certificate
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario

torch.set_num_threads(1)
NODES = {"ring": 4, "rgg": 8}
ROUNDS = {32: 50, 64: 100}  # batch -> rounds; 20 for smaller ones
LIMIT = {8: 1.5, 16: 8.0, 32: 40.0, 64: 120.0}  # batch -> seconds
# Size of the largest recording: CIFAR-10 in float64 for 50 rounds, seven neighbours
BYTES = 8_000_000_000
PUBLISHED: dict[
    int, dict[float, float | None]
] = {  # median PSNR of the first prototype in Gaussian noise of these standard deviations, None if it failed
    1: {1e-6: 97, 1e-5: 77, 1e-4: 57, 1e-3: 37},
    2: {1e-6: 93, 1e-5: 73, 1e-4: 53, 1e-3: None},
    4: {1e-6: 91, 1e-5: 71, 1e-4: None, 1e-3: None},
    8: {1e-6: 84, 1e-5: None, 1e-4: None, 1e-3: None},
}


@dataclass(frozen=True)
class Run:
    """Result of one attack: images, how many are bit-identical, claimed and wrongly claimed, PSNR
    of each, seconds.
    """

    images: int
    exact: int
    claimed: int
    false: int
    psnr: list[float]
    cpu: float
    wall: float


def once(scenario: Scenario, node: int | None, folder: Path) -> Run:
    """Record a scenario in a folder, attack a node (None: the one with the most neighbours), and
    count.
    """
    plan = recording.plan(scenario)
    node = max(range(plan.graph.nodes), key=plan.graph.degree) if node is None else node
    plan = recording.plan(Scenario(**{**vars(scenario), "wires": f"node:{node}"}))
    file = folder / "trace.pt"
    recording.record(plan, file, max_bytes=BYTES)
    leaks = la.leaks(la.load(file), nodes=[node], rounds=scenario.rounds)
    name = "exact" if scenario.samples > 1 else "auto"
    cpu, wall = time.process_time(), time.perf_counter()
    found = la.attack(leaks, name, generator=torch.Generator().manual_seed(0))[0]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    score = la.score(found, la.load_truth(folder / "trace.truth.pt"))[0]
    claims = [k for k, c in enumerate(found.certificates) if c is Certificate.EXACT]
    right = {k for k, e in zip(score.matched, score.exact or (), strict=False) if e}
    psnr = [float(p or 0.0) for p in score.psnr or [0.0] * scenario.samples]
    return Run(scenario.samples, len(right), len(claims), len(set(claims) - right), psnr, cpu, wall)


def figure(name: str, runs: list[Run]) -> dict[str, Any]:
    """Add up runs of one setting."""
    images, cpu = sum(r.images for r in runs), [r.cpu for r in runs]
    total = {key: sum(getattr(r, key) for r in runs) for key in ("exact", "claimed", "false")}
    seconds = {"cpu_median": round(statistics.median(cpu), 2), "cpu_most": round(max(cpu), 2)}
    seconds["wall_median"] = round(statistics.median(r.wall for r in runs), 2)
    return {
        "bench": f"exact/{name}",
        "ratio": round(total["exact"] / images, 4),
        "images": images,
        **total,
        **seconds,
    }


def batches(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Bit-identical images per setting, without noise."""
    settings = [
        (d, g, t, b) for b in args.batch for d in args.data for g in args.graph for t in args.dtype
    ]
    for data, graph, dtype, b in settings:
        shape: dict[str, Any] = {
            "nodes": NODES[graph],
            "graph": graph,
            "rounds": args.rounds or ROUNDS.get(b, 20),
            "samples": b,
        }
        constants = {"hidden": args.hidden, "z0": args.z0, "differential": not args.plain}
        whole = [
            Scenario(data=arrays(data, folder), dtype=dtype, seed=s, set=constants, **shape)
            for s in range(args.seeds)
        ]
        kind = "gradient" if args.plain else "difference"
        line = figure(f"{kind}-{data}-{graph}-{dtype}-{b}", [once(s, None, folder) for s in whole])
        yield {**line, "unit": "of the images bit for bit", "target": 1, "limit": LIMIT.get(b)}


def noise(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Median PSNR per setting and standard deviation of the messages' noise, produced by a
    quantiser with a cell of sqrt(12) times it.
    """
    for b in args.batch:
        for data in args.data:
            for std in args.noise:
                constants = {"hidden": args.hidden, "z0": args.z0, "quantize": std * math.sqrt(12)}
                shape: dict[str, Any] = {
                    "nodes": 5,
                    "graph": "ring",
                    "rounds": 40,
                    "samples": b,
                    "dtype": "float64",
                }
                runs = [
                    once(
                        Scenario(data=arrays(data, folder), seed=s, set=constants, **shape),
                        0,
                        folder,
                    )
                    for s in range(args.seeds)
                ]
                known = PUBLISHED.get(b, {}).get(std) if data == "fashion" else None
                psnr = statistics.median(p for r in runs for p in r.psnr)
                least = round(min(statistics.median(r.psnr) for r in runs), 1)
                line = {
                    **figure(f"noise-{data}-{b}-{std:g}", runs),
                    "psnr_median": round(psnr, 1),
                    "psnr_worst_seed": least,
                }
                yield {
                    **line,
                    "unit": "of the images bit for bit",
                    "prototype_psnr": known,
                    "target": known and known - 3,
                }


def arguments() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=["faces"])
    parser.add_argument("--batch", nargs="+", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--graph", nargs="+", default=["ring"], choices=[*NODES])
    parser.add_argument("--dtype", nargs="+", default=["float64", "float32"])
    parser.add_argument(
        "--noise", nargs="+", type=float, help="standard deviations; a ring of five for 40 rounds"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument(
        "--rounds", type=int, help="replaces 20, or 50 for a batch of 32 and 100 for 64"
    )
    parser.add_argument("--z0", type=float, default=0.1)
    parser.add_argument(
        "--plain", action="store_true", help="use single gradients instead of differences"
    )
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    with tempfile.TemporaryDirectory() as scratch:
        for line in (noise if given.noise else batches)(given, Path(scratch)):
            print(json.dumps(line), flush=True)
