"""Ranks train on batches of their own records, drawn anew in every epoch, and log what they used.

    torchrun --nproc-per-node 3 drawing.py --send KIND [--batch 4] [--optimiser momentum] ...

Each rank keeps in kept<rank>.pt what it computed itself: `used`, the places of the records of every
gradient; `gradients`; `models` at which they were computed; and its records.
"""

import argparse
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description="batches of shuffled records")
kinds = ["ddp", "fsdp2", "reduce", "ring", "adapt", "tracking", "fedavg", "fedsgd", "diloco", "ecl"]
parser.add_argument("--send", default="ddp", choices=kinds)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--own", type=int, default=12, help="records of a rank")
parser.add_argument("--steps", type=int, default=9)
parser.add_argument("--optimiser", default="sgd", choices=["sgd", "momentum", "adam"])
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--smoothing", type=float, default=0.0, help="of labels")
parser.add_argument("--seed", type=int, default=0, help="of the records and their order")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
criterion = nn.CrossEntropyLoss(label_smoothing=args.smoothing)
random = torch.Generator().manual_seed(1000 * args.seed + 1 + rank)
x = torch.randint(256, (args.own, 1, 8, 8), generator=random) / 255
y = torch.randint(4, (args.own,), generator=random)
kept: dict[str, list[Tensor]] = {"used": [], "gradients": [], "models": []}
order: list[int] = []


def drawn() -> Tensor:
    """The places of the next batch; every epoch has an order of its own."""
    global order
    if len(order) < args.batch:
        order = torch.randperm(args.own, generator=random).tolist()
    batch, order = order[: args.batch], order[args.batch :]
    return torch.tensor(batch)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([one.detach().reshape(-1) for one in tensors]).clone()


def gradient() -> Tensor:
    """The gradient of the next batch at the current model, which is kept."""
    places = drawn()
    parameters = list(net.parameters())
    loss = criterion(net(x[places]), y[places])
    found = flat(torch.autograd.grad(loss, parameters))
    kept["used"].append(places)
    kept["models"].append(flat(parameters))
    kept["gradients"].append(found)
    return found


def model() -> Tensor:
    return flat(net.parameters())


def load(value: Tensor) -> None:
    """Let the network continue from a vector."""
    at = 0
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(value[at : at + p.numel()].view_as(p))
            at += p.numel()


def stepped(value: Tensor, g: Tensor, memory: Tensor) -> Tensor:
    """A step of SGD, with momentum if the program uses it."""
    memory.mul_(0.9 if args.optimiser == "momentum" else 0.0).add_(g)
    return value.sub(memory, alpha=args.lr)


def swapped(mine: Tensor) -> list[Tensor]:
    """Send a vector to both neighbours on the ring, and return theirs."""
    near = sorted({(rank - 1) % ranks, (rank + 1) % ranks})
    theirs = [torch.empty_like(mine) for _ in near]
    ops = [dist.P2POp(dist.isend, mine, j) for j in near]
    ops += [dist.P2POp(dist.irecv, got, j) for got, j in zip(theirs, near, strict=True)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return theirs


def averaged(mine: Tensor) -> Tensor:
    theirs = swapped(mine)
    return (mine + torch.stack(theirs).sum(0)) / (1 + len(theirs))


def by_hook() -> None:
    """Gradients are averaged by DistributedDataParallel or FSDP2."""
    trained: nn.Module = net
    if args.send == "ddp":
        trained = DistributedDataParallel(net)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(net, mesh=init_device_mesh("cpu", (ranks,)))
    momentum = 0.9 if args.optimiser == "momentum" else 0.0
    optimiser: torch.optim.Optimizer = torch.optim.SGD(
        trained.parameters(), lr=args.lr, momentum=momentum
    )
    if args.optimiser == "adam":
        optimiser = torch.optim.Adam(trained.parameters(), lr=args.lr)
    for _ in range(args.steps):
        places = drawn()
        kept["used"].append(places)
        optimiser.zero_grad()
        criterion(trained(x[places]), y[places]).backward()
        optimiser.step()


def by_sum() -> None:
    """Gradients, or what four local steps changed, are added up by all_reduce."""
    w = model()
    memory = torch.zeros_like(w)
    for _ in range(args.steps):
        load(w)
        if args.send == "reduce":
            sent = gradient()
        else:
            for _ in range(4):
                load(model() - args.lr * gradient())
            sent = w - model()
        dist.all_reduce(sent)
        if args.send == "reduce":
            w = stepped(w, sent / ranks, memory)
        else:
            w = w - 0.7 * sent / ranks


def on_a_ring() -> None:
    """D-PSGD in both orders, and gradient tracking with two messages in a round."""
    w = model()
    memory = torch.zeros_like(w)
    tracked = old = torch.zeros_like(w)
    for t in range(args.steps):
        load(w)
        if args.send == "ring":
            mean = averaged(w)
            w = stepped(mean, gradient(), memory)
        elif args.send == "adapt":
            w = averaged(stepped(w, gradient(), memory))
        else:
            g = gradient()
            tracked = g if t == 0 else averaged(tracked) + g - old
            old = g
            w = averaged(w) - args.lr * tracked


def duals() -> None:
    """PDMM with theta = 1 and one gradient step in a round."""
    near = sorted({(rank - 1) % ranks, (rank + 1) % ranks})
    sign = {j: 1.0 if rank < j else -1.0 for j in near}
    rho = 0.4
    w = model()
    got = {j: torch.zeros_like(w) for j in near}
    for _ in range(args.steps):
        load(w)
        pull = rho * len(near) * w + sum(sign[j] * got[j] for j in near)
        w = w - args.lr * (gradient() + pull)
        sent = {j: got[j] + 2 * rho * sign[j] * w for j in near}
        theirs = {j: torch.empty_like(w) for j in near}
        ops = [dist.P2POp(dist.isend, sent[j], j) for j in near]
        ops += [dist.P2POp(dist.irecv, theirs[j], j) for j in near]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        got = theirs


def with_a_server() -> None:
    """Rank 0 sends its model; the others answer a trained one, or a gradient."""
    w = model()
    clients = range(1, ranks)
    for _ in range(args.steps):
        if rank == 0:
            for j in clients:
                dist.send(w, j)
            answers = [torch.empty_like(w) for _ in clients]
            for j, answer in zip(clients, answers, strict=True):
                dist.recv(answer, j)
            mean = torch.stack(answers).mean(0)
            w = mean if args.send == "fedavg" else w - args.lr * mean
            continue
        dist.recv(w, 0)
        load(w)
        g = gradient()
        dist.send(w - args.lr * g if args.send == "fedavg" else g, 0)


if args.send in ("ddp", "fsdp2"):
    by_hook()
elif args.send in ("reduce", "diloco"):
    by_sum()
elif args.send in ("fedavg", "fedsgd"):
    with_a_server()
elif args.send == "ecl":
    duals()
else:
    on_a_ring()
state = {name: torch.stack(values) for name, values in kept.items() if values}
torch.save({"x": x, "y": y, **state}, f"kept{rank}.pt")
dist.barrier()  # gloo aborts if a rank ends while another one still talks
dist.destroy_process_group()
