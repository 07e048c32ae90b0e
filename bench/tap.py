"""Overhead of the tap for a program that sends a model of 800k parameters, with and without it.

python bench/tap.py [--repetitions 60] [--rounds 5] [--records 64] [--ranks 2] [--folder DIR]

Two programs: ``train`` is D-PSGD (a gradient on --records records, an exchange, an average);
``exchange`` only sends and receives. Each writes one log, as a program does, and blocks of rounds
with and without the tap alternate in the same processes. ``ratio_cpu`` is the median of the ratios
of consecutive blocks, in CPU time of all ranks, including the kernel's work for them;
``ratio_wall`` is that of the slowest rank's elapsed time; their quartiles follow. ``copy_cpu`` and
``copy_wall`` are the same ratios for merely writing the sent bytes to a file, measured after the
tap; they are the target of ``exchange``. Each writes 3.2 MB per rank and round, 2 GB with the
defaults.

--model resnet measures a step of ResNet-18 instead (11 million parameters, --records images of
32x32), and --model gpt one of a small GPT (10.7 million parameters, --records sequences of 64
characters), each with DistributedDataParallel: a model with the tap's hook and one without it take
turns. ``all`` records all parameters; ``sketched`` is the default for models of this size in its
first steps, in which the parameters that are left out are sketched, and ``default`` is the same
afterwards. The very first step, in which the whole model is recorded, is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakaudit.capture.tap.hooks import group
from leakaudit.capture.tap.log.capture import Capture, CaptureSettings
from leakaudit.capture.tap.log.layers import SKETCHED

TARGET = 1.15
LENGTH = 64  # characters of a sequence
CHOICES: dict[str, list[str] | None] = {"all": ["all"], "sketched": None, "default": None}
METHODS = tuple(group.HEARD)


def program(rank: int, ranks: int, records: int) -> dict[str, Callable[[], None]]:
    """Return one round of each program, for this rank."""
    random = Generator().manual_seed(rank)
    model = nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))
    x, y = (
        torch.rand(records, 784, generator=random),
        torch.randint(0, 10, (records,), generator=random),
    )
    near = sorted({(rank - 1) % ranks, (rank + 1) % ranks} - {rank})
    theirs = [torch.empty(sum(p.numel() for p in model.parameters())) for _ in near]
    fixed = [
        torch.rand_like(theirs[0]),
        torch.rand_like(theirs[0]),
    ]  # alternating, because a payload that is sent twice is logged once

    def swap(w: Tensor) -> None:
        works = [dist.isend(w, j) for j in near] + [
            dist.irecv(v, j) for j, v in zip(near, theirs, strict=True)
        ]
        for work in works:
            if work is not None:
                work.wait()

    def train() -> None:
        w = parameters_to_vector(model.parameters()).detach()
        swap(w)
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        g = parameters_to_vector(p.grad for p in model.parameters() if p.grad is not None)
        vector_to_parameters(
            (w + torch.stack(theirs).sum(0)) / (1 + len(near)) - 0.1 * g, model.parameters()
        )

    def exchange() -> None:
        fixed.reverse()
        swap(fixed[0])

    return {"train": train, "exchange": exchange}


@contextmanager
def hooked(install: Callable[[], None]) -> Iterator[None]:
    """Replace the process group's methods inside the context, as `leakaudit tap` does in a process
    of a program.
    """
    before = {
        name: vars(dist.ProcessGroup)[name] for name in METHODS if name in vars(dist.ProcessGroup)
    }
    install()
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(dist.ProcessGroup, name, method)


def copy(file: BinaryIO) -> None:
    """Only write what is sent to a file: the minimum cost of any recording."""
    real = dist.ProcessGroup.send

    def send(self: Any, tensors: list[Tensor], *args: Any) -> Any:
        for tensor in tensors:
            file.write(tensor.numpy().data)
        return real(self, tensors, *args)

    setattr(dist.ProcessGroup, "send", send)  # noqa: B010


def block(play: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Run some rounds; return CPU seconds of all ranks and elapsed seconds of the slowest."""
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        play()
    spent = torch.tensor(
        [time.process_time() - cpu, time.perf_counter() - wall], dtype=torch.float64
    )
    total, slowest = spent[:1].clone(), spent[1:].clone()
    dist.all_reduce(total)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(total), float(slowest)


def compare(
    play: Callable[[], None], args: argparse.Namespace, install: Callable[[], None]
) -> dict[str, list[float]]:
    """Return milliseconds per round of consecutive blocks, plain and hooked, in alternating order,
    and their ratios.
    """
    out = defaultdict[str, list[float]](list)
    block(play, 3)
    for k in range(args.repetitions):
        times: dict[bool, tuple[float, float]] = {}
        for hook in (k % 2 == 0, k % 2 == 1):
            with hooked(install) if hook else nullcontext():
                times[hook] = block(play, args.rounds)
        for which, clock in enumerate(("cpu", "wall")):
            out[f"ratio_{clock}"].append(times[True][which] / times[False][which])
            for hook, name in ((False, "plain"), (True, "hooked")):
                out[f"{name}_{clock}"].append(1000 * times[hook][which] / args.rounds)
    return out


class Gpt(nn.Module):
    """A small GPT for characters: 6 layers of width 384, as in nanoGPT's example."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(65, 384)
        self.places = nn.Embedding(LENGTH, 384)
        layer = nn.TransformerEncoderLayer(
            384, 6, 1536, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(384, 65)
        self.mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (b, 65, LENGTH) of the next characters."""
        held = self.tokens(x) + self.places(torch.arange(LENGTH))
        logits: Tensor = self.head(self.layers(held, self.mask, is_causal=True))
        return logits.transpose(1, 2)


def step(args: argparse.Namespace, capture: Capture | None) -> Callable[[], None]:
    """Return one training step of a model, with the tap's hook if there is a capture."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    from leakaudit.capture.tap.hooks import ddp
    from leakaudit.tasks.models import MODELS

    random = Generator().manual_seed(dist.get_rank())
    bare: nn.Module = Gpt()
    x = torch.randint(0, 65, (args.records, LENGTH), generator=random)
    y = torch.randint(0, 65, (args.records, LENGTH), generator=random)
    if args.model == "resnet":
        bare = MODELS["resnet18"]()((3, 32, 32), 10)
        x = torch.rand(args.records, 3, 32, 32, generator=random)
        y = torch.randint(0, 10, (args.records,), generator=random)
    model = nn.parallel.DistributedDataParallel(bare)
    if capture is not None:
        hook = ddp.hook_of_average(model, 0, capture, allreduce_hook)
        model.register_comm_hook(model.process_group, hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)

    def play() -> None:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()

    return play


def model_worker(rank: int, args: argparse.Namespace, folder: str) -> None:
    """Measure a step of a model, in one rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=args.ranks
    )
    plain = step(args, None)
    out: dict[str, dict[str, list[float]]] = {}
    for name, layers in CHOICES.items():
        capture = Capture(f"{folder}/{name}", CaptureSettings(layers=layers))
        tapped = step(args, capture)
        if name == "sketched":
            setattr(capture, "sketches", lambda at: True)  # noqa: B010
        block(plain, 1)
        block(tapped, SKETCHED if name == "default" else 1)
        found = defaultdict[str, list[float]](list)
        for k in range(args.repetitions):
            times: dict[bool, tuple[float, float]] = {}
            for hook in (k % 2 == 0, k % 2 == 1):
                times[hook] = block(tapped if hook else plain, args.rounds)
            for which, clock in enumerate(("cpu", "wall")):
                found[f"ratio_{clock}"].append(times[True][which] / times[False][which])
                found[f"plain_{clock}"].append(1000 * times[False][which] / args.rounds)
        out[name] = dict(found)
        capture.end()
        dist.barrier()
        if rank == 0:
            shutil.rmtree(f"{folder}/{name}")
    if rank == 0:
        (Path(folder) / "results.json").write_text(json.dumps(out))
    dist.barrier()
    dist.destroy_process_group()


def worker(rank: int, args: argparse.Namespace, folder: str) -> None:
    """Measure, in one rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=args.ranks
    )
    out: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name, play in program(rank, args.ranks, args.records).items():
        capture = Capture(f"{folder}/{name}")
        capture.event("start", torch.zeros(4))  # opens the log, which happens once per program
        tapped = compare(play, args, partial(group.listen, dist, capture))
        capture.end()
        dist.barrier()
        if rank == 0:
            shutil.rmtree(f"{folder}/{name}")
        with open(f"{folder}/copy{rank}", "wb", buffering=0) as file:
            out[name] = {"tapped": tapped, "copied": compare(play, args, partial(copy, file))}
        os.unlink(f"{folder}/copy{rank}")
    if rank == 0:
        (Path(folder) / "results.json").write_text(json.dumps(out))
    dist.barrier()
    dist.destroy_process_group()


def print_model(args: argparse.Namespace) -> None:
    """Print one JSON line per choice of parameters: times with the tap over those without it."""
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        spawn(model_worker, args=(args, folder), nprocs=args.ranks)
        found = json.loads((Path(folder) / "results.json").read_text())
    for layers in CHOICES:
        line = {
            "bench": "tap",
            "program": args.model,
            "recorded": layers,
            "ranks": args.ranks,
            "records": args.records,
            "repetitions": args.repetitions,
        }
        for clock in ("cpu", "wall"):
            ratios = found[layers][f"ratio_{clock}"]
            quartiles = statistics.quantiles(ratios, n=4)[::2]
            line[f"ratio_{clock}"] = round(statistics.median(ratios), 4)
            line[f"ratio_{clock}_quartiles"] = [round(q, 4) for q in quartiles]
            plain = statistics.median(found[layers][f"plain_{clock}"])
            line[f"plain_{clock}_ms_a_round"] = round(plain, 1)
        print(json.dumps(line), flush=True)


def main() -> None:
    """Print one JSON line per program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--folder", help="folder of the logs (default: the system's temporary folder)"
    )
    parser.add_argument("--model", choices=("resnet", "gpt"))
    args = parser.parse_args()
    if args.model:
        print_model(args)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        spawn(worker, args=(args, folder), nprocs=args.ranks)
        found = json.loads((Path(folder) / "results.json").read_text())
    for name, ways in found.items():
        line = {
            "bench": "tap",
            "program": name,
            "parameters": 795_010,
            "ranks": args.ranks,
            "records": args.records,
        }
        for clock in ("cpu", "wall"):
            middle = {
                way: {k: statistics.median(v) for k, v in samples.items()}
                for way, samples in ways.items()
            }
            quartiles = statistics.quantiles(ways["tapped"][f"ratio_{clock}"], n=4)[::2]
            line[f"ratio_{clock}"] = round(middle["tapped"][f"ratio_{clock}"], 3)
            line[f"ratio_{clock}_quartiles"] = [round(q, 3) for q in quartiles]
            line[f"copy_{clock}"] = round(middle["copied"][f"ratio_{clock}"], 3)
            line[f"plain_{clock}_ms_a_round"] = round(middle["tapped"][f"plain_{clock}"], 2)
            line[f"tapped_{clock}_ms_a_round"] = round(middle["tapped"][f"hooked_{clock}"], 2)
        line["target"] = TARGET if name == "train" else line["copy_cpu"]
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
