"""What the tap costs a program that sends a model of 800k parameters: rounds with and without it, alternated in the same processes.

python bench/tap.py [--repetitions 15] [--rounds 10] [--records 64] [--ranks 2] [--folder DIR]

Two programs: ``train`` is D-PSGD (a gradient on --records records, an exchange, an average); ``exchange`` sends and receives alone.
Blocks of rounds with and without the tap follow each other. ``ratio`` is that of the lower quartiles of both, in CPU time of all ranks
and in wall time, which other work on the machine disturbs least; ``ratio_…_median`` is the median of the ratios of neighbouring blocks.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakaudit.tap import group
from leakaudit.tap.capture import Capture

TARGET = 1.15
METHODS = ("send", "allreduce", "broadcast", "allgather", "_allgather_base", "gather", "reduce", "scatter", *group.UNHEARD)


def program(rank: int, ranks: int, records: int) -> dict[str, Callable[[], None]]:
    """Return one round of each program, for this rank."""
    random = Generator().manual_seed(rank)
    model = nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))
    x, y = torch.rand(records, 784, generator=random), torch.randint(0, 10, (records,), generator=random)
    near = sorted({(rank - 1) % ranks, (rank + 1) % ranks} - {rank})
    theirs = [torch.empty(sum(p.numel() for p in model.parameters())) for _ in near]
    fixed = [torch.rand_like(theirs[0]), torch.rand_like(theirs[0])]  # in turns: what is sent twice is logged once

    def swap(w: Tensor) -> None:
        works = [dist.isend(w, j) for j in near] + [dist.irecv(v, j) for j, v in zip(near, theirs, strict=True)]
        for work in works:
            if work is not None:
                work.wait()

    def train() -> None:
        w = parameters_to_vector(model.parameters()).detach()
        swap(w)
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        g = parameters_to_vector(p.grad for p in model.parameters() if p.grad is not None)
        vector_to_parameters((w + torch.stack(theirs).sum(0)) / (1 + len(near)) - 0.1 * g, model.parameters())

    def exchange() -> None:
        fixed.reverse()
        swap(fixed[0])

    return {"train": train, "exchange": exchange}


@contextmanager
def tapped(folder: Path) -> Iterator[None]:
    """Listen while inside, as `leakaudit tap` does in a process of a program."""
    before = {name: vars(dist.ProcessGroup)[name] for name in METHODS if name in vars(dist.ProcessGroup)}
    capture = Capture(str(folder))
    group.listen(dist, capture)
    capture.event("start", torch.zeros(4))  # opens the log, which happens once in a program
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(dist.ProcessGroup, name, method)
        capture.end()


def block(play: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Play some rounds; returns CPU seconds of all ranks and wall seconds of the slowest."""
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        play()
    spent = torch.tensor([time.process_time() - cpu, time.perf_counter() - wall], dtype=torch.float64)
    total, slowest = spent[:1].clone(), spent[1:].clone()
    dist.all_reduce(total)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(total), float(slowest)


def worker(rank: int, args: argparse.Namespace, folder: str) -> None:
    """Measure, in one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=args.ranks)
    out: dict[str, dict[str, list[float]]] = {}
    for name, play in program(rank, args.ranks, args.records).items():
        block(play, 3)
        ratios: dict[str, list[float]] = {name: [] for name in ("cpu", "wall", "plain_cpu", "plain_wall", "tapped_cpu", "tapped_wall")}
        for k in range(args.repetitions):
            times: dict[bool, tuple[float, float]] = {}
            for listening in (k % 2 == 0, k % 2 == 1):
                if listening:
                    place = Path(folder) / f"{name}{k}"
                    with tapped(place):
                        times[listening] = block(play, args.rounds)
                    dist.barrier()
                    if rank == 0:
                        shutil.rmtree(place)
                else:
                    times[listening] = block(play, args.rounds)
            for which, name_ in enumerate(("cpu", "wall")):
                ratios[name_].append(times[True][which] / times[False][which])
                ratios[f"plain_{name_}"].append(1000 * times[False][which] / args.rounds)
                ratios[f"tapped_{name_}"].append(1000 * times[True][which] / args.rounds)
        out[name] = ratios
    if rank == 0:
        (Path(folder) / "results.json").write_text(json.dumps(out))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Print one JSON line a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--records", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", help="where the logs go (default: the system's temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        spawn(worker, args=(args, folder), nprocs=args.ranks)
        found = json.loads((Path(folder) / "results.json").read_text())
    for name, ratios in found.items():
        low = {k: statistics.quantiles(v, n=4)[0] for k, v in ratios.items()}
        line = {"bench": "tap", "program": name, "parameters": 795_010, "ranks": args.ranks, "records": args.records, "target": TARGET}
        line |= {
            "ratio_cpu": round(low["tapped_cpu"] / low["plain_cpu"], 3),
            "ratio_wall": round(low["tapped_wall"] / low["plain_wall"], 3),
        }
        line |= {f"ratio_{k}_median": round(statistics.median(ratios[k]), 3) for k in ("cpu", "wall")}
        line |= {f"{k}_ms_a_round": round(low[k], 2) for k in ("plain_cpu", "tapped_cpu", "plain_wall", "tapped_wall")}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
