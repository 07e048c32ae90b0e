"""Two processes fine-tune low-rank adapters with DistributedDataParallel, on shuffled batches.

torchrun --nproc-per-node 2 adapted.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 3
RANK = 6


class Adapted(nn.Module):
    """A frozen layer with trained factors A and B."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        """Return W x + c + 2 B A x."""
        out: Tensor = self.base(x) + 2 * (x @ self.A.T) @ self.B.T
        return out


dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Flatten(), Adapted(nn.Linear(144, 64)), nn.ReLU(), nn.Linear(64, 10))
model = DistributedDataParallel(net)
optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
random = torch.Generator().manual_seed(1 + dist.get_rank())
x = torch.randint(256, (6, 1, 12, 12), generator=random) / 255
y = torch.randint(10, (6,), generator=random)
torch.save({"x": x, "y": y}, f"kept{dist.get_rank()}.pt")
for _ in range(2):
    for some in torch.randperm(6, generator=random).split(BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[some]), y[some]).backward()
        optimiser.step()
dist.barrier()  # gloo aborts if a rank ends while another one still talks
dist.destroy_process_group()
