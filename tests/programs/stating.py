"""Two processes train in one of several ways that a program may state.

    torchrun --nproc-per-node 2 stating.py WAY

Batches of eight records are new in every step, as those of a shuffled loader.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WAY = sys.argv[1]
STEPS = 4
BATCH = 8

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 4))
if WAY == "sharded":
    for part in (net[1], net[3], net):
        fully_shard(part)
if WAY == "frozen":  # the optimiser gets all parameters
    net[1].bias.requires_grad_(False)
model: Callable[[Tensor], Tensor] = net
if WAY not in ("local", "flat", "by hand", "sharded"):
    model = averaging = DistributedDataParallel(net)
if WAY == "compiled":
    model = torch.compile(averaging, backend="eager")
random = torch.Generator().manual_seed(1 + dist.get_rank())

weights = list(net.parameters())
groups: list[dict[str, Any]] = [{"params": weights}]
if WAY == "groups":
    groups = [{"params": weights[::2], "weight_decay": 0.1}, {"params": weights[1::2]}]
optimiser: torch.optim.Optimizer = torch.optim.SGD(groups, 0.1, momentum=0.9, weight_decay=1e-4)
if WAY == "betas":
    optimiser = torch.optim.AdamW(weights, 1e-2, betas=(0.8, 0.9))
if WAY in ("local", "flat"):
    optimiser = torch.optim.Adam(weights, 1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 20)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=WAY in ("scaled", "clipped scaled"))
if WAY == "overflow":
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-117)


def batch(count: int) -> tuple[Tensor, Tensor]:
    """Return new records."""
    x = torch.randint(256, (count, 1, 6, 6), generator=random) / 255
    return x, torch.randint(4, (count,), generator=random)


def losses(size: int) -> Iterator[Tensor]:
    """Yield the losses of one step, to be differentiated one by one."""
    x, y = batch(size)
    if WAY == "twice":
        yield nn.functional.cross_entropy(model(x) + model(x.flip(0)), y)
        return
    if WAY == "accumulated":
        with averaging.no_sync():
            yield nn.functional.cross_entropy(model(x), y) / 2
        x, y = batch(size)
        yield nn.functional.cross_entropy(model(x), y) / 2
        return
    if WAY == "smoothed":
        yield nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
        return
    yield nn.functional.cross_entropy(model(x), y)


def average() -> None:
    """Let all ranks continue from the mean of their parameters."""
    ranks = dist.get_world_size()
    if WAY == "local":
        for p in weights:
            dist.all_reduce(p.data)
            p.data /= ranks
    else:
        whole = nn.utils.parameters_to_vector(weights).detach() / ranks
        dist.all_reduce(whole)
        nn.utils.vector_to_parameters(whole, weights)


for step in range(STEPS):
    if WAY == "evaluated":
        model(batch(100)[0])  # with gradients, which nothing uses
        with torch.no_grad():
            model(batch(50)[0])
    optimiser.zero_grad()
    for loss in losses(3 if (WAY, step) == ("last", STEPS - 1) else BATCH):
        factor = 4 if (WAY, step) == ("overflow", 0) else 1
        scaler.scale(factor * loss).backward()
    if WAY in ("clipped", "sharded", "clipped scaled"):
        factor = 1024 if WAY == "clipped scaled" else 1
        nn.utils.clip_grad_norm_(net.parameters(), 0.3 * factor)
    if WAY == "by hand":
        for p in weights:
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
    with contextlib.suppress(AssertionError):
        scaler.step(optimiser)
        scaler.update()
    if WAY in ("local", "flat") and step % 2:
        average()
    if WAY == "scheduled":
        schedule.step()
    if WAY == "moved":  # by something that no statement covers
        with torch.no_grad():
            weights[0].mul_(0.99)
    if WAY == "raises" and step == STEPS - 2:
        raise RuntimeError("ends early")
dist.barrier()  # gloo aborts if a rank ends while another one still talks
dist.destroy_process_group()
