"""Cost of recording some layers and a sketch: CPU seconds of a recorded run over training alone.

python bench/layers.py [--model resnet18] [--nodes 8] [--rounds 10] [--repetitions 3]
    [--layers first first,last,sketch all]

D-PSGD on colour images of 32 x 32 pixels. The training alone is the same run with no recorded
channel; all runs alternate within one process. Prints one JSON line per selection.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from leakaudit.core.payload import StoredColumns
from leakaudit.core.trace import TaskSpec
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Task
from leakaudit.traces import layers
from leakaudit.traces.recorder import human

torch.set_num_threads(1)
TARGET = 1.1


def plan(model: str, nodes: int, rounds: int, samples: int) -> recording.Plan:
    """Return the plan of a run on random images."""
    scenario = Scenario(
        "dpsgd", nodes=nodes, graph="ring", rounds=rounds, data="gaussians", model="logistic"
    )
    base = recording.plan(replace(scenario, samples=samples))
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(nodes * samples, 3, 32, 32, generator=draw)
    y = torch.randint(10, (nodes * samples,), generator=draw)
    task = Task.build(TaskSpec(model, shape=(3, 32, 32), classes=10))
    return replace(
        base,
        source=replace(base.source, x=x, y=y),
        rows=torch.arange(nodes * samples).reshape(nodes, samples),
        task=task,
        kept=chosen("first", task),
    )


def chosen(text: str, task: Task) -> StoredColumns:
    """Return what is recorded."""
    first = task.first_linear or task.layout.names[:1]
    return layers.kept(text, task.layout, first, task.last_linear)


def seconds(run: recording.Plan, folder: Path) -> float:
    """Return the CPU seconds of one run, with its files."""
    path = folder / "trace.pt"
    before = time.process_time()
    recording.record(run, path, max_bytes=20_000_000_000)
    taken = time.process_time() - before
    for file in folder.iterdir():
        file.unlink()
    return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--layers", nargs="+", default=["first", "first,sketch", "first,last,sketch", "all"]
    )
    parser.add_argument("--folder", type=Path, help="folder of the files (default: temporary)")
    asked = parser.parse_args()
    base = plan(asked.model, asked.nodes, asked.rounds, asked.samples)
    runs = {text: replace(base, kept=chosen(text, base.task)) for text in asked.layers}
    runs["alone"] = replace(base, wires=[])
    found: dict[str, list[float]] = {name: [] for name in runs}
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        seconds(replace(runs["alone"], scenario=replace(base.scenario, rounds=1)), Path(name))
        for turn in range(asked.repetitions):
            for text, run in [*runs.items()][:: -1 if turn % 2 else 1]:
                found[text].append(seconds(run, Path(name)))
    alone = found.pop("alone")
    for text, taken in found.items():
        ratios = [one / other for one, other in zip(taken, alone, strict=True)]
        print(
            json.dumps(
                {
                    "bench": f"layers/{asked.model}: {text}",
                    "ratio": round(statistics.median(ratios), 3),
                    "unit": "times the CPU seconds of the training alone",
                    "target": TARGET if text != "all" else None,
                    "range": [round(min(ratios), 3), round(max(ratios), 3)],
                    "cpu_s": round(statistics.median(taken), 2),
                    "alone_s": round(statistics.median(alone), 2),
                    "trace": human(runs[text].size),
                    "parameters": base.task.layout.size,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
