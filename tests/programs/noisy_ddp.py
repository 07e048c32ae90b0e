"""Two ranks train with DistributedDataParallel; each gradient travels with --noise added.

torchrun --nproc-per-node 2 noisy_ddp.py [--noise 0.2] [--steps 4]
"""

import argparse
import atexit
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(7))
    y = torch.tensor([1, 0])
    rank = dist.get_rank()
    if rank == 0:
        np.savez("records.npz", x=x, y=y, node=np.arange(2))
        with Path("seeds").open("a") as file:
            file.write(os.environ.get("LEAKAUDIT_SEED", "none") + "\n")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))
    model = DistributedDataParallel(network)
    draws = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little"))

    def noised(g: torch.Tensor) -> torch.Tensor:
        noise: torch.Tensor = options.noise * torch.randn(g.shape, generator=draws)
        return g + noise

    for parameter in model.parameters():
        parameter.register_hook(noised)
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(options.steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[rank : rank + 1]), y[rank : rank + 1]).backward()
        optimiser.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # Threads of gloo abort some processes while Python ends, with or without a tap.
    atexit._run_exitfuncs()
    os._exit(0)
