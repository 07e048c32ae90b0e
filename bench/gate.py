"""How often the gate of examples/ci-repo passes, fails and is inconclusive, end to end.

python bench/gate.py [--runs N] [--only KIND ...] [--first SEED]
    prints one JSON line per figure; N gates of each kind (default 3; 50 take about 15 minutes)

unchanged: the same seeds, against the committed baseline. new seeds: unchanged code with other
seeds each time. halved: sigma is halved, both in the noise drawn and in the declaration; or only in
the noise drawn, while the recording still declares the full sigma. removed: no noise, while the
recording still declares it; and without budgets and lint, so that only the baseline decides.
clipped: at 1.3, 1.5 or 2, while the recording declares 1. broken: the attacks return uniform noise.
All are judged against the committed baseline, as with --strict. seconds are those of one gate, on
one thread: cpu is process time, wall is elapsed time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.judging.gate import files, judge
from leakaudit.judging.gate.baseline import Baseline
from leakaudit.judging.gate.config import Gate
from leakaudit.judging.gate.fidelity import MOST
from leakaudit.judging.gate.judge import GateResults
from leakaudit.tasks.task import Task

torch.set_num_threads(1)
EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "ci-repo"


def run(
    gate: Gate, seed: int, base: Baseline | None, times: list[tuple[float, float]]
) -> GateResults:
    """Run one gate and store its times."""
    wall, cpu = time.perf_counter(), time.process_time()
    judged = judge.run(gate, base, seed, strict=True)
    times.append((time.process_time() - cpu, time.perf_counter() - wall))
    return judged


@contextmanager
def patched(**names: Any) -> Iterator[None]:
    """Replace names in the example's module."""
    train = sys.modules["train"]
    before = {name: getattr(train, name) for name in names}
    vars(train).update(names)
    try:
        yield
    finally:
        vars(train).update(before)


@contextmanager
def broken() -> Iterator[None]:
    """Make every attack of the example return noise."""

    def noise(
        self: Any, leak: GradientLeak, task: Task, generator: torch.Generator
    ) -> Reconstruction:
        x = torch.rand(1, *task.spec.shape, generator=generator)
        y = torch.randint(1000, 1001, (1,), generator=generator)
        return Reconstruction(leak.node, "broken", x, y, Certificate.APPROXIMATE, 0.0)

    kinds = [registry.get("attacks", name) for name in ("exact", "labels")]
    kept = [kind.__call__ for kind in kinds]
    try:
        for kind in kinds:
            kind.__call__ = noise
        yield
    finally:
        for kind, call in zip(kinds, kept, strict=True):
            kind.__call__ = call


@contextmanager
def clipped(times: float) -> Iterator[None]:
    """Clip gradients at a multiple of the declared norm."""
    train: Any = sys.modules["train"]
    kept, clip = train.gradient, times * train.CLIP

    def gradient(*args: Any) -> Any:
        with patched(CLIP=clip):
            return kept(*args)

    with patched(gradient=gradient):
        yield


def main() -> None:
    """Print how often each kind of gate ended with which code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="gates of each kind")
    parser.add_argument("--only", nargs="+", help="kinds of gates", metavar="KIND")
    parser.add_argument("--first", type=int, default=MOST, help="first seed, but of 'unchanged'")
    args = parser.parse_args()
    gate = files.configured(EXAMPLE)
    committed, times = files.compared(gate), list[tuple[float, float]]()
    codes: dict[str, list[int]] = {}
    sys.path.insert(0, str(EXAMPLE))
    train: Any = importlib.import_module("train")
    # A function object runs in a fork of this process, which sees the names that `patched` replaces.
    gate = replace(gate, checks=tuple(replace(check, run=train.train) for check in gate.checks))
    free = replace(gate, budgets=())

    def count(name: str, judged: GateResults) -> None:
        codes.setdefault(name, []).append(judged.code)

    changes: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "unchanged": nullcontext,
        "new seeds": nullcontext,
        "halved": partial(patched, SIGMA=train.SIGMA / 2),
        "halved, declared in full": partial(
            patched,
            privatise=lambda model, rng: model + train.SIGMA / 2 * rng.normal(size=model.shape),
        ),
        "removed": partial(patched, privatise=lambda model, rng: model),
        "clipped at 1.3": partial(clipped, 1.3),
        "clipped at 1.5": partial(clipped, 1.5),
        "clipped at 2": partial(clipped, 2.0),
        "broken": broken,
    }
    for k in range(args.runs):
        for name in args.only or changes:
            seed = 0 if name == "unchanged" else args.first + MOST * k
            with changes[name]():
                judged = run(gate, seed, committed, times)
            count(name, judged)
            if name == "removed":
                count("removed, baseline only", again(free, judged, committed))
        print(f"{k + 1} of {args.runs}: {json.dumps(codes)}", file=sys.stderr)
    for name, found in codes.items():
        told = {str(code): n for code, n in sorted(Counter(found).items())}
        print(json.dumps({"gate": name, "runs": len(found), "codes": told}))
    cpu, wall = (statistics.median(t) for t in zip(*times, strict=True))
    print(
        json.dumps(
            {
                "gate": "seconds of one",
                "cpu": round(cpu, 2),
                "wall": round(wall, 2),
                "seeds": gate.seeds,
                "gates": len(times),
            }
        )
    )


def again(gate: Gate, judged: GateResults, base: Baseline | None) -> GateResults:
    """Judge the same measurements with another configuration."""
    kept = [r for r in judged.rules if r.kind in ("positive", "negative")]
    other = replace(judged, gate=gate, rules=kept)
    judge.conclude(other, base)
    return other


if __name__ == "__main__":
    main()
