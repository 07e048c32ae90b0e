"""A training loop of Hugging Face accelerate: two processes average gradients.

    torchrun --nproc-per-node 2 accelerated.py

Each process keeps what it knows in kept<rank>.pt: its records, and the models and gradients of
every step, by autograd on a copy.
"""

import argparse
import copy

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="accelerate")
parser.add_argument("--optimiser", default="sgd", choices=["sgd", "momentum", "adam"])
parser.add_argument("--batch", type=int, default=1, help="records per process and step")
parser.add_argument("--own", type=int, help="records per process, shuffled (default: --batch)")
parser.add_argument("--steps", type=int, default=6)
args = parser.parse_args()

accelerator = Accelerator(cpu=True)
rank, ranks = accelerator.process_index, accelerator.num_processes
random = torch.Generator().manual_seed(0)
owned = (args.own or args.batch) * ranks
x = torch.randint(256, (owned, 1, 8, 8), generator=random) / 255
y = torch.randint(10, (owned,), generator=random)
torch.manual_seed(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
plain = copy.deepcopy(net)
if args.optimiser == "adam":
    steps: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
else:
    momentum = 0.9 if args.optimiser == "momentum" else 0.0
    steps = torch.optim.SGD(net.parameters(), lr=0.05, momentum=momentum)
loader = DataLoader(TensorDataset(x, y), batch_size=args.batch, shuffle=bool(args.own))
model, optimiser, loader = accelerator.prepare(net, steps, loader)

kept: dict[str, list[torch.Tensor]] = {"x": [], "models": [], "gradients": []}
for _ in range(args.steps):
    for xs, ys in loader:
        plain.load_state_dict(accelerator.unwrap_model(model).state_dict())
        loss = nn.functional.cross_entropy(plain(xs), ys)
        found = torch.autograd.grad(loss, list(plain.parameters()))
        kept["x"].append(xs)
        kept["models"].append(torch.cat([p.detach().flatten() for p in plain.parameters()]))
        kept["gradients"].append(torch.cat([g.flatten() for g in found]))
        optimiser.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(xs), ys))
        optimiser.step()
state = {name: torch.stack(values) for name, values in kept.items() if name != "x"}
torch.save({"x": torch.cat(kept["x"]), **state}, f"kept{rank}.pt")
accelerator.end_training()
