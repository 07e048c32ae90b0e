"""Ranks train with Opacus, as its own documentation describes it.

    torchrun --nproc-per-node 2 private_training.py [--wrap dpddp|ddp|models]
    python private_training.py --wrap alone

Each rank keeps what it knows in kept<rank>.pt: its records, the models and the gradient of every
step, clipped record by record, computed by autograd.
"""

import argparse
import copy
from typing import Any

import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description="Opacus")
parser.add_argument("--wrap", default="dpddp", choices=["dpddp", "ddp", "models", "alone"])
parser.add_argument("--clipping", default="flat", choices=["flat", "per_layer"])
parser.add_argument("--noise", type=float, default=1.0, help="noise multiplier")
parser.add_argument("--norm", type=float, default=0.5, help="clipping norm")
parser.add_argument("--records", type=int, default=1, help="records per rank and step")
parser.add_argument("--own", type=int, help="records that a rank owns, shuffled (default: a batch)")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--poisson", action="store_true")
parser.add_argument("--strange", action="store_true", help="add twice the stated noise")
args = parser.parse_args()

rank, ranks = 0, 1
if args.wrap != "alone":
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
random = torch.Generator().manual_seed(0)
count = (args.own or args.records) * ranks
x = torch.randint(256, (count, 1, 8, 8), generator=random) / 255
y = torch.randint(10, (count,), generator=random)

torch.manual_seed(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
plain_net = copy.deepcopy(net)  # without the hooks of Opacus
model: nn.Module = net
if args.wrap == "dpddp":
    model = DifferentiallyPrivateDistributedDataParallel(net)
elif args.wrap == "ddp":
    model = DistributedDataParallel(net)
data = TensorDataset(x, y)
sampler: DistributedSampler[Any] = DistributedSampler(data, ranks, rank, shuffle=bool(args.own))
loader = DataLoader(data, batch_size=args.records, sampler=sampler)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
norm = args.norm
if args.clipping == "per_layer":
    norm = [args.norm] * len(list(model.parameters()))
engine = PrivacyEngine()
model, optimiser, loader = engine.make_private(
    module=model,
    optimizer=sgd,
    data_loader=loader,
    noise_multiplier=args.noise,
    max_grad_norm=norm,
    poisson_sampling=args.poisson,
    clipping=args.clipping,
)
torch.manual_seed(1 + rank)  # of the noise
if args.strange:
    honest = optimiser.add_noise

    def twice() -> None:
        honest()
        for p in optimiser.params:
            p.grad = p.summed_grad + 2 * (p.grad - p.summed_grad)

    type(optimiser).add_noise = lambda self: twice()


def clipped(xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the clipped gradients of single records, and that of the gradients."""
    parameters = list(plain_net.parameters())
    with torch.no_grad():
        for copied, trained in zip(parameters, net.parameters(), strict=True):
            copied.copy_(trained)
    total = torch.zeros(sum(p.numel() for p in parameters))
    plain = total.clone()
    for one, label in zip(xs, ys, strict=True):
        loss = nn.functional.cross_entropy(plain_net(one[None]), label[None])
        found = torch.autograd.grad(loss, parameters)
        g = torch.cat([part.flatten() for part in found])
        total += g * min(1.0, args.norm / float(g.norm()))
        plain += g
    return total, plain


kept: dict[str, list[Tensor]] = {"models": [], "clipped": [], "plain": []}
batches = []
for epoch in range(args.steps):
    sampler.set_epoch(epoch)
    batches += list(loader)
for xs, ys in batches[: args.steps]:
    kept["models"].append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    total, plain = clipped(xs, ys)
    kept["clipped"].append(total)
    kept["plain"].append(plain)
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(xs), ys).backward()
    optimiser.step()
    if args.wrap == "models":
        with torch.no_grad():
            for p in net.parameters():
                dist.all_reduce(p)
                p.div_(ranks)
epsilon = torch.tensor(engine.get_epsilon(1e-5) if args.noise else float("inf"))
mine = list(sampler)
state = {name: torch.stack(values) for name, values in kept.items()}
torch.save({"x": x[mine], "y": y[mine], "epsilon": epsilon, **state}, f"kept{rank}.pt")
if args.wrap != "alone":
    dist.destroy_process_group()
