"""Attacks and victims on CUDA against the CPU of the same machine, in one call.

python bench/gpu.py [--device cuda] [--threads N] [--only WORD …]
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
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core.adversary import Adversary
from leakaudit.inversion import attacking
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Task

TURNS = 3
VICTIMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("pdmm", {"model": "mlp", "set": {"hidden": 256}}),
    ("dpsgd", {"model": "lenet"}),
    ("fedavg", {"model": "convnet"}),
    ("dpsgd", {"model": "resnet18", "nodes": 8, "rounds": 3}),
)


@dataclass(frozen=True)
class Case:
    """An attack on node 0 of a small recording.

    Attributes:
        attack: Its name.
        scenario: What is recorded, as fields of a Scenario.
        settings: Settings of the attack; searches stop after a few steps.
        adversary: Who attacks.
    """

    attack: str
    scenario: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    adversary: str = "eavesdropper"

    @property
    def name(self) -> str:
        """The attack, the model, the number of records and that of searches."""
        many = f", {self.settings['restarts']} searches" if "restarts" in self.settings else ""
        return f"{self.attack} {self.scenario['model']}, {self.scenario['samples']} records{many}"


PDMM: dict[str, Any] = {
    "victim": "pdmm",
    "nodes": 4,
    "graph": "ring",
    "rounds": 20,
    "data": "faces",
    "samples": 1,
    "dtype": "float64",
    "wires": "node:0",
}
FEDSGD: dict[str, Any] = {
    "victim": "fedsgd",
    "nodes": 2,
    "rounds": 1,
    "data": "faces",
    "samples": 4,
    "dtype": "float64",
}
AVERAGED = {"differential": False, "z0": 0.1}
CASES = (
    Case("dlg", {**PDMM, "model": "lenet", "set": AVERAGED}, {"restarts": 32, "steps": 4}),
    Case("idlg", {**PDMM, "model": "lenet", "set": AVERAGED}, {"restarts": 32, "steps": 4}),
    Case("inverting", {**PDMM, "model": "convnet", "set": AVERAGED}, {"steps": 60, "restarts": 4}),
    Case(
        "inverting",
        {**FEDSGD, "model": "resnet18", "samples": 1, "set": {"bn": "eval"}},
        {"steps": 4},
    ),
    Case(
        "inverting",
        {**FEDSGD, "data": "photos", "model": "resnet18", "samples": 8, "set": {"bn": "eval"}},
        {"steps": 2, "restarts": 2},
    ),
    Case("gradinversion", {**FEDSGD, "model": "resnet10"}, {"steps": 4}),
    Case("analytic", {**PDMM, "model": "mlp", "set": {**AVERAGED, "hidden": 256}}),
    Case(
        "differential",
        {**PDMM, "nodes": 3, "model": "mlp", "wires": "all", "set": {"hidden": 32}},
        {"steps": 4, "adam_steps": 4, "restarts": 1},
        "node:1",
    ),
    Case("labels", {**FEDSGD, "model": "lenet"}),
    Case(
        "exact",
        {
            **PDMM,
            "samples": 8,
            "model": "mlp",
            "set": {"hidden": 256, "differential": True, "z0": 0.1},
        },
    ),
    Case("cone", {**FEDSGD, "model": "cnn", "set": {"channels": 16, "hidden": 64}}),
    Case("rgap", {**FEDSGD, "samples": 1, "model": "lenet"}),
    Case(
        "completion",
        {
            "victim": "choco",
            "nodes": 3,
            "graph": "ring",
            "rounds": 12,
            "data": "faces",
            "samples": 1,
            "model": "mlp",
            "dtype": "float64",
            "set": {"hidden": 64, "compress": "fixed", "share": 1 / 16},
        },
    ),
    Case("patches", {**FEDSGD, "data": "photos", "samples": 3, "model": "vit"}),
    Case("tokens", {**FEDSGD, "data": "text", "samples": 1, "model": "gpt"}),
    Case("sequences", {**FEDSGD, "data": "text", "samples": 3, "model": "gpt"}),
)


def sent(name: str, more: dict[str, Any], device: str) -> Tensor:
    """Return what a victim records: 32 nodes with 3 records each for ten rounds, only the channels
    of one node.
    """
    wires = "node:0" if name != "fedavg" else "all"
    size: dict[str, Any] = {"nodes": 32, "rounds": 10, **more}
    chosen = Scenario(name, graph="ring", data="faces", samples=3, wires=wires, **size)
    trace = recording.record(recording.plan(chosen, device=device), None).trace
    return torch.cat([m.payload.flatten() for m in trace.messages])


def attacker(case: Case) -> Callable[[str], Tensor]:
    """Return a function that attacks one node of a recording on a device."""
    trace = recording.record(recording.plan(Scenario(**case.scenario)), None).trace
    (leak,) = la.leaks(trace, Adversary.parse(case.adversary), nodes=[0])

    def attack(device: str) -> Tensor:
        task = Task.build(trace.task, device=device)
        generator = Generator().manual_seed(0)
        found = attacking.attack_one(leak, task, case.attack, generator, **case.settings)
        x = found.x.detach().cpu().double()
        return x[x.flatten(1).sum(1).argsort()]  # the records of a batch have no order

    return attack


def compared(name: str, work: Callable[[str], Tensor], device: str) -> dict[str, Any]:
    """Run on both, alternating."""
    places = ("cpu", device)
    times: tuple[list[float], list[float]] = ([], [])
    one, two = (work(place).double() for place in places)
    for _ in range(TURNS):
        for place, taken in zip(places, times, strict=True):
            start = time.perf_counter()
            work(place)
            if place.startswith("cuda"):
                torch.cuda.synchronize(place)
            taken.append(time.perf_counter() - start)
    slow, fast = (statistics.median(taken) for taken in times)
    apart = None
    if one.shape == two.shape and one.numel():
        apart = float((one - two).abs().max() / one.abs().max())
    return {
        "bench": f"gpu/{name}",
        "ratio": round(slow / fast, 2),
        "unit": f"times as fast on {device} as on the CPU",
        "cpu_s": round(slow, 3),
        "device_s": round(fast, 3),
        "apart": apart,
        "threads": torch.get_num_threads(),
    }


def figures(device: str, only: list[str]) -> Iterator[dict[str, Any]]:
    """Yield every figure whose name contains one of some words; an error ends only its own."""
    works: list[tuple[str, Callable[[], Callable[[str], Tensor]]]] = [
        (f"victim {name} {more['model']}", partial(partial, sent, name, more))
        for name, more in VICTIMS
    ]
    works += [(f"attack {case.name}", partial(attacker, case)) for case in CASES]
    for name, prepared in works:
        if only and not any(word in name for word in only):
            continue
        try:
            yield compared(name, prepared(), device)
        except Exception as error:  # a device may lack an operator
            yield {"bench": f"gpu/{name}", "failed": f"{type(error).__name__}: {error}"[:300]}


def main() -> None:
    """Measure, if the device exists."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of the CPU"
    )
    parser.add_argument("--only", nargs="*", default=[], help="figures whose names contain a word")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            json.dumps(
                {"bench": "gpu", "skipped": "torch finds no CUDA device; nothing was measured"}
            )
        )
        return
    failed = False
    for line in figures(asked.device, asked.only):
        print(json.dumps(line), flush=True)
        failed |= "failed" in line
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
