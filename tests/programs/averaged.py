"""A training loop with DistributedDataParallel: two processes average gradients.

    torchrun --nproc-per-node 2 averaged.py

Each process keeps what it knows in kept<rank>.pt: its records, and the models and gradients of
every step, by autograd on a copy.
"""

import argparse
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description="DistributedDataParallel")
parser.add_argument("--optimiser", default="sgd")
parser.add_argument("--clip", type=float, help="norm to which the mean gradient is clipped")
parser.add_argument("--steps", type=int, default=6)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
random = torch.Generator().manual_seed(0)
x = torch.randint(256, (ranks, 1, 8, 8), generator=random)[rank : rank + 1] / 255
y = torch.randint(10, (ranks,), generator=random)[rank : rank + 1]
torch.manual_seed(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
model = DistributedDataParallel(net)
steps: torch.optim.Optimizer
if args.optimiser == "adam":
    steps = torch.optim.Adam(net.parameters(), lr=0.001)
elif args.optimiser == "momentum":
    steps = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
elif args.optimiser == "decay":
    steps = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
else:
    steps = torch.optim.SGD(net.parameters(), lr=0.05)

kept: dict[str, list[torch.Tensor]] = {"x": [], "models": [], "gradients": []}
for _ in range(args.steps):
    copied = copy.deepcopy(net)
    found = torch.autograd.grad(
        nn.functional.cross_entropy(copied(x), y), list(copied.parameters())
    )
    kept["x"].append(x[0])
    kept["models"].append(torch.cat([p.detach().flatten() for p in copied.parameters()]))
    kept["gradients"].append(torch.cat([g.flatten() for g in found]))
    steps.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    if args.clip:
        nn.utils.clip_grad_norm_(net.parameters(), args.clip)
    steps.step()
torch.save({name: torch.stack(values) for name, values in kept.items()}, f"kept{rank}.pt")
dist.destroy_process_group()
