"""Processes on a ring learn to tell faces from other pictures by D-PSGD.

Each sends its model to two neighbours; no process sends data.

    torchrun --nproc-per-node 4 dpsgd_ring.py

Lian et al. 2017, Algorithm 1. The program uses only torch.distributed and does not know that it is
recorded.
"""

import argparse

import numpy as np
import torch
import torch.distributed as dist
from skimage.data import lfw_subset
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def records(rank: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this process's pictures (count, 1, 25, 25), k/255, and whether each is a face."""
    pictures, faces = np.round(lfw_subset() * 255) / 255, np.arange(200) < 100
    mine = np.random.default_rng(7).permutation(200)[rank * count : (rank + 1) * count]
    return torch.tensor(pictures[mine, None], dtype=torch.float32), torch.tensor(
        faces[mine], dtype=torch.int64
    )


def build(hidden: int = 128) -> nn.Module:
    """Return a small classifier, the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(625, hidden), nn.ReLU(), nn.Linear(hidden, 2))


def swap(w: torch.Tensor, neighbours: list[int]) -> list[torch.Tensor]:
    """Send a model to all neighbours, and return theirs."""
    theirs = [torch.empty_like(w) for _ in neighbours]
    calls = [dist.P2POp(dist.isend, w, j) for j in neighbours]
    calls += [dist.P2POp(dist.irecv, v, j) for j, v in zip(neighbours, theirs, strict=True)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return theirs


def train(rounds: int, step: float, count: int) -> float:
    """Train this process's part; returns its last loss."""
    rank, world = dist.get_rank(), dist.get_world_size()
    neighbours = sorted({(rank - 1) % world, (rank + 1) % world} - {rank})
    x, y = records(rank, count)
    model, loss = build(), torch.tensor(0.0)
    for _ in range(rounds):
        w = parameters_to_vector(model.parameters()).detach()
        theirs = swap(w, neighbours)
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        g = parameters_to_vector(p.grad for p in model.parameters())
        mean = (w + sum(theirs)) / (1 + len(neighbours))
        vector_to_parameters(mean - step * g, model.parameters())
    return loss.item()


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description="D-PSGD on a ring")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--step", type=float, default=0.1)
    parser.add_argument("--records", type=int, default=1, help="pictures of each process")
    parser.add_argument(
        "--save",
        help="write all processes' records to this .npz file, so that an audit can be scored",
    )
    args = parser.parse_args()
    dist.init_process_group("gloo")
    loss = train(args.rounds, args.step, args.records)
    if dist.get_rank() == 0:
        print(f"loss of process 0: {loss:.3f}")
        if args.save:
            parts = [records(k, args.records) for k in range(dist.get_world_size())]
            x, y = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
            np.savez(args.save, x=x, y=y, node=np.arange(len(x)) // args.records)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
