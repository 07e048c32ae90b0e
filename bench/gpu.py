"""Attacks and victims on CUDA against the CPU of the same machine, in one call.

python bench/gpu.py [--device cuda] [--threads N]
    prints one JSON line per figure; without such
                                                         a device one line states so, with code 0

ratio: wall seconds on the CPU over those on the device, with the same random numbers; medians of
alternating runs after a warm-up. apart: largest difference of the results, relative to the largest
value: rounding for victims and exact recovery; a search drifts over hundreds of steps, so searches
stop after a few. Times include the end of all kernels (torch.cuda.synchronize).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from leakaudit.adversary import Adversary
from leakaudit.extraction import hearing
from leakaudit.extraction.deduction import Deduction
from leakaudit.inversion import attacking
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Task

TURNS = 3
VICTIMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("pdmm", {"model": "mlp", "set": {"hidden": 256}}),
    ("dpsgd", {"model": "lenet"}),
    ("fedavg", {"model": "convnet"}),
)
ATTACKS: tuple[tuple[str, str, dict[str, Any]], ...] = (  # attack, model, settings
    ("dlg", "lenet", {"restarts": 32, "steps": 4}),
    ("idlg", "lenet", {"restarts": 32, "steps": 4}),
    ("inverting", "convnet", {"steps": 60, "restarts": 4}),
    ("exact", "mlp", {}),
)


def sent(name: str, more: dict[str, Any], device: str) -> Tensor:
    """Return what a victim records: 32 nodes with 3 records each for ten rounds, only the channels
    of one node.
    """
    wires = "node:0" if name != "fedavg" else "all"
    chosen = Scenario(
        name, nodes=32, graph="ring", rounds=10, data="faces", samples=3, wires=wires, **more
    )
    trace = recording.record(recording.plan(chosen, device=device), None).trace
    return torch.cat([m.payload.flatten() for m in trace.messages])


def attacker(name: str, model: str, settings: dict[str, Any]) -> Callable[[str], Tensor]:
    """Return a function that attacks one node of a recording on a device."""
    samples, differential = (8, True) if name == "exact" else (1, False)
    own: dict[str, Any] = {"hidden": 256} if model == "mlp" else {}
    base: dict[str, Any] = {
        "dtype": "float64",
        "set": {**own, "differential": differential, "z0": 0.1},
    }
    chosen = Scenario(
        "pdmm",
        nodes=4,
        graph="ring",
        rounds=20,
        data="faces",
        samples=samples,
        model=model,
        wires="node:0",
        **base,
    )
    trace = recording.record(recording.plan(chosen), None).trace
    (leak,) = hearing.deduce(Deduction(trace, Adversary()), [0], 20)

    def attack(device: str) -> Tensor:
        task = Task.build(trace.task, device=device)
        return (
            attacking.attack_one(leak, task, name, Generator().manual_seed(0), **settings)
            .x.detach()
            .cpu()
        )

    return attack


def compared(name: str, work: Callable[[str], Tensor], device: str) -> dict[str, Any]:
    """Run on both, alternating."""
    times: dict[str, list[float]] = {"cpu": [], device: []}
    results = {d: work(d) for d in times}
    for _ in range(TURNS):
        for d, taken in times.items():
            start = time.perf_counter()
            work(d)
            if d.startswith("cuda"):
                torch.cuda.synchronize(d)
            taken.append(time.perf_counter() - start)
    slow, fast = (statistics.median(t) for t in times.values())
    one, two = results["cpu"].double(), results[device].double()
    apart = (
        float((one - two).abs().max() / one.abs().max())
        if one.shape == two.shape and one.numel()
        else None
    )
    rest = {
        "cpu_s": round(slow, 3),
        "device_s": round(fast, 3),
        "apart": apart,
        "threads": torch.get_num_threads(),
    }
    return {
        "bench": f"gpu/{name}",
        "ratio": round(slow / fast, 2),
        "unit": f"times as fast on {device} as on the CPU",
        **rest,
    }


def figures(device: str) -> Iterator[dict[str, Any]]:
    """Yield every figure."""
    for name, more in VICTIMS:
        yield compared(f"victim {name} {more['model']}", partial(sent, name, more), device)
    for name, model, settings in ATTACKS:
        yield compared(f"attack {name} {model}", attacker(name, model, settings), device)


def main() -> None:
    """Measure, if the device exists."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of the CPU"
    )
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            json.dumps(
                {"bench": "gpu", "skipped": "torch finds no CUDA device; nothing was measured"}
            )
        )
        return
    for line in figures(asked.device):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
