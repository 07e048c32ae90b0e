"""Write throughput of the Recorder against plain writing of the same bytes; prints one JSON line.

python bench/recorder.py [--megabytes 256] [--repetitions 9] [--folder DIR]

Both alternate in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from leakaudit.core.trace import Graph, Layout, TaskSpec
from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage

WIDTH, NODES = 250_000, 16  # 1 MB per message, 16 MB per round


def plain(path: Path, chunk: torch.Tensor, rounds: int) -> None:
    """Write only the payloads, with write(2)."""
    with path.open("wb", buffering=0) as file:
        for _ in range(rounds):
            file.write(chunk.numpy().data)


def recorder(path: Path, rounds: int, hash: bool, sized: bool = True) -> Recorder:
    """Open a recorder for this benchmark."""
    graph = Graph(NODES + 1, tuple((i, NODES) for i in range(NODES)))
    layout = Layout(("weight",), ((WIDTH,),))
    messages, task = rounds * NODES if sized else None, TaskSpec("benchmark", shape=(1,))
    return Recorder(
        Storage(path, messages=messages, hash=hash, max_bytes=8e9),
        protocol="own:benchmark",
        task=task,
        graph=graph,
        options=RecorderOptions(layout=layout),
    )


def copied(
    path: Path, chunk: torch.Tensor, rounds: int, hash: bool = False, sized: bool = True
) -> None:
    """Record one round at a time, written directly into the mapped file."""
    source, target = torch.arange(NODES), torch.full((NODES,), NODES)
    with recorder(path, rounds, hash, sized) as file:
        for t in range(rounds):
            file.send_many(t, source, target, "w").copy_(chunk)
            file.end_round(t)


def sent(path: Path, chunk: torch.Tensor, rounds: int) -> None:
    """Record one message at a time, as a user's own loop does."""
    with recorder(path, rounds, hash=False) as file:
        for t in range(rounds):
            for i in range(NODES):
                file.send(t, i, NODES, "w", chunk[i])


def peak() -> int:
    """Return the largest resident memory of this process so far, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def speed(write: Callable[[], None], path: Path, size: int) -> float:
    """Return the MB/s of one run; the file is removed afterwards."""
    start = time.perf_counter()
    write()
    seconds = time.perf_counter() - start
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    return size / seconds / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256, help="payload of one file")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument(
        "--folder", type=Path, help="folder of the files (default: a temporary one)"
    )
    options = parser.parse_args()
    chunk = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(0))
    rounds = max(2, options.megabytes * 1_000_000 // chunk.nbytes)
    size = rounds * chunk.nbytes
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "trace.pt"
        ways: dict[str, Callable[[], None]] = {
            "plain": lambda: plain(path, chunk, rounds),
            "send_many": lambda: copied(path, chunk, rounds),
            "send": lambda: sent(path, chunk, rounds),
            "send_many_unknown_size": lambda: copied(path, chunk, rounds, sized=False),
            "send_many_and_sha256": lambda: copied(path, chunk, rounds, hash=True),
        }
        for write in ways.values():  # warm up, and let the disk allocate blocks
            speed(write, path, size)
        before = peak()
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(options.repetitions):
            for name, write in [*ways.items()][:: -1 if turn % 2 else 1]:
                found[name].append(speed(write, path, size))
        after = peak()
    middle = {name: statistics.median(values) for name, values in found.items()}
    ratios = {
        name: round(
            statistics.median(a / b for a, b in zip(found[name], found["plain"], strict=True)), 3
        )
        for name in ways
    }
    print(
        json.dumps(
            {
                "bench": "recorder",
                "ratio": ratios["send_many"],
                "unit": "recorder MB/s over plain MB/s",
                "ratios": ratios,
                "MB/s": {name: round(value) for name, value in middle.items()},
                "file_MB": size // 1_000_000,
                "repetitions": options.repetitions,
                "peak_memory_MB": round(after / 1e6),
                "peak_memory_growth_MB": round((after - before) / 1e6, 1),
                "threads": torch.get_num_threads(),
                "cpus": os.cpu_count(),
            }
        )
    )


if __name__ == "__main__":
    main()
