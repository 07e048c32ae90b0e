"""A training loop in plain torch: two processes average gradients.

    torchrun --nproc-per-node 2 averaged.py

Each process keeps what it knows in kept<rank>.pt: its records, and the models and gradients of
every step, by autograd on a copy.
"""

import argparse
import contextlib
import copy
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

Build = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
OPTIMISERS: dict[str, Build] = {
    "sgd": lambda w: torch.optim.SGD(w, lr=0.05),
    "momentum": lambda w: torch.optim.SGD(w, lr=0.05, momentum=0.9),
    "decay": lambda w: torch.optim.SGD(w, lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda w: torch.optim.SGD(w, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda w: torch.optim.Adam(w, lr=0.001),
    "adamw": lambda w: torch.optim.AdamW(w, lr=0.001, weight_decay=0.01),
    "adagrad": lambda w: torch.optim.Adagrad(w, lr=0.01),
}

parser = argparse.ArgumentParser(description="DistributedDataParallel and fully_shard")
parser.add_argument("--optimiser", default="sgd", choices=list(OPTIMISERS))
parser.add_argument("--wrap", default="ddp", choices=["ddp", "fsdp2"])
parser.add_argument("--clip", type=float, help="norm to which the mean gradient is clipped")
parser.add_argument("--cosine", action="store_true", help="use a schedule of step sizes")
parser.add_argument("--autocast", action="store_true", help="compute in bfloat16")
parser.add_argument("--accumulate", type=int, default=1, help="records whose gradients are added")
parser.add_argument("--batch", type=int, default=1, help="records per step")
parser.add_argument("--own", type=int, help="records of a process, shuffled (default: --batch)")
parser.add_argument("--powersgd", type=int, help="first step in which PowerSGD sends factors")
parser.add_argument("--steps", type=int, default=6)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
random = torch.Generator().manual_seed(0)
owned = args.own or args.batch * args.accumulate
mine = slice(rank * owned, (rank + 1) * owned)
x = torch.randint(256, (ranks * owned, 1, 8, 8), generator=random)[mine] / 255
y = torch.randint(10, (ranks * owned,), generator=random)[mine]
order = torch.arange(owned)
torch.manual_seed(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
plain = copy.deepcopy(net)
model: nn.Module = net
if args.wrap == "fsdp2":
    for layer in (net[1], net[3], net):
        fully_shard(layer)
else:
    model = DistributedDataParallel(net)
    if args.powersgd is not None:
        state = powerSGD_hook.PowerSGDState(
            None, start_powerSGD_iter=args.powersgd, min_compression_rate=1
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimiser = OPTIMISERS[args.optimiser](net.parameters())
schedule = None
if args.cosine:
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 20)


def vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return parameters as one vector, those of other processes included."""
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in parameters]
    return torch.cat([p.detach().flatten() for p in whole])


def loss(module: nn.Module, k: int) -> Tensor:
    """Return the loss of a batch."""
    some = order[k * args.batch : (k + 1) * args.batch]
    with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
        return nn.functional.cross_entropy(module(x[some]), y[some])


def own() -> Tensor:
    """Return the gradient of this process, on a copy to which nobody listens."""
    total = torch.zeros(sum(p.numel() for p in plain.parameters()))
    for k in range(args.accumulate):
        found = torch.autograd.grad(loss(plain, k), list(plain.parameters()))
        total += torch.cat([g.flatten() for g in found])
    return total


kept: dict[str, list[Tensor]] = {"models": [], "gradients": []}
for _ in range(args.steps):
    if args.own:
        order = torch.randperm(owned, generator=random)
    kept["models"].append(vector(net.parameters()))
    nn.utils.vector_to_parameters(kept["models"][-1].clone(), plain.parameters())
    kept["gradients"].append(own())
    optimiser.zero_grad()
    for k in range(args.accumulate):
        with contextlib.ExitStack() as quiet:
            if isinstance(model, DistributedDataParallel) and k + 1 < args.accumulate:
                quiet.enter_context(model.no_sync())
            loss(model, k).backward()
    if args.clip:
        nn.utils.clip_grad_norm_(net.parameters(), args.clip)
    optimiser.step()
    if schedule is not None:
        schedule.step()
torch.save(
    {"x": x, "y": y, **{name: torch.stack(values) for name, values in kept.items()}},
    f"kept{rank}.pt",
)
dist.destroy_process_group()
