"""Processes on a ring learn to tell faces from other pictures by edge consensus (ECL).

Only dual variables are sent, never models.

    torchrun --nproc-per-node 4 ecl.py

Niwa et al. 2020, with one gradient step per round and averaging theta = 1 (PDMM):

    w_i  <- w_i - step (grad f_i(w_i) + sum_j A_ij z_ij + penalty d_i w_i)
    z_ji <- z_ij + 2 penalty A_ij w_i          travels i -> j, tensor by tensor

with A_ij = 1 for i < j, else -1.

The program uses only torch.distributed and does not know that it is recorded.
"""

import argparse

import numpy as np
import torch
import torch.distributed as dist
from skimage.data import lfw_subset
from torch import nn

Tensors = list[torch.Tensor]


def records(rank: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this process's pictures (count, 1, 25, 25), k/255, and whether each is a face."""
    pictures, faces = np.round(lfw_subset() * 255) / 255, np.arange(200) < 100
    mine = np.random.default_rng(11).permutation(200)[rank * count : (rank + 1) * count]
    return torch.tensor(pictures[mine, None], dtype=torch.float32), torch.tensor(
        faces[mine], dtype=torch.int64
    )


def build(hidden: int = 64) -> nn.Module:
    """Return a small classifier, the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(625, hidden), nn.Sigmoid(), nn.Linear(hidden, 2))


def swap(sent: dict[int, Tensors]) -> dict[int, Tensors]:
    """Send every neighbour its tensors, and return what the neighbours sent."""
    theirs = {j: [torch.empty_like(t) for t in tensors] for j, tensors in sent.items()}
    works = [dist.isend(t, j) for j, tensors in sent.items() for t in tensors]
    works += [dist.irecv(t, j) for j, tensors in theirs.items() for t in tensors]
    for work in works:
        work.wait()
    return theirs


def train(rounds: int, step: float, penalty: float, count: int) -> float:
    """Train this process's part; returns its last loss."""
    rank, world = dist.get_rank(), dist.get_world_size()
    neighbours = sorted({(rank - 1) % world, (rank + 1) % world} - {rank})
    sign = {j: 1 if rank < j else -1 for j in neighbours}
    x, y = records(rank, count)
    model, loss = build(), torch.tensor(0.0)
    w = list(model.parameters())
    z = {j: [torch.zeros_like(p) for p in w] for j in neighbours}
    for _ in range(rounds):
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for k, p in enumerate(w):
                pull = sum(sign[j] * z[j][k] for j in neighbours)
                p -= step * (p.grad + pull + penalty * len(neighbours) * p)
            z = swap(
                {
                    j: [z[j][k] + 2 * penalty * sign[j] * p for k, p in enumerate(w)]
                    for j in neighbours
                }
            )
    return loss.item()


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description="edge consensus on a ring")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--step", type=float, default=0.1)
    parser.add_argument("--penalty", type=float, default=0.2)
    parser.add_argument("--records", type=int, default=1, help="pictures of each process")
    parser.add_argument(
        "--save",
        help="write all processes' records to this .npz file, so that an audit can be scored",
    )
    args = parser.parse_args()
    dist.init_process_group("gloo")
    loss = train(args.rounds, args.step, args.penalty, args.records)
    if dist.get_rank() == 0:
        print(f"loss of process 0: {loss:.3f}")
        if args.save:
            parts = [records(k, args.records) for k in range(dist.get_world_size())]
            x, y = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
            np.savez(args.save, x=x, y=y, node=np.arange(len(x)) // args.records)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
