"""Clients of NVFlare take one step in a round, on a batch of their own records, drawn anew in every
epoch, and log what they used.

    python nvflare_batches.py [--batch 4] [--seed 0]

Each client keeps its records, and the places of those of every step, in kept<client>.pt.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "nvflare"
CLIENTS = 3

parser = argparse.ArgumentParser(description="NVFlare: batches of shuffled records")
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--own", type=int, default=12, help="records of a client")
parser.add_argument("--rounds", type=int, default=6)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--seed", type=int, default=0, help="of the records and their order")
parser.add_argument("--client", metavar="FOLDER", help="run as a client that keeps its log there")
args = parser.parse_args()


def model() -> nn.Module:
    """The model of the example."""
    sys.path.append(str(EXAMPLE))
    from model import Net  # type: ignore[import-not-found]

    found: nn.Module = Net()
    return found


def train() -> None:
    """Answer the server until it ends the job."""
    import nvflare.client as flare

    flare.init()
    number = int(flare.get_site_name().removeprefix("site-")) - 1
    random = torch.Generator().manual_seed(1000 * args.seed + 1 + number)
    x = torch.randint(256, (args.own, 1, 25, 25), generator=random) / 255
    y = torch.randint(2, (args.own,), generator=random)
    net = model()
    order: list[int] = []
    used: list[torch.Tensor] = []
    while flare.is_running():
        received = flare.receive()
        net.load_state_dict({name: torch.as_tensor(v) for name, v in received.params.items()})
        if len(order) < args.batch:
            order = torch.randperm(args.own, generator=random).tolist()
        batch, order = torch.tensor(order[: args.batch]), order[args.batch :]
        optimiser = torch.optim.SGD(net.parameters(), lr=args.lr)
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
        optimiser.step()
        used.append(batch)
        kept = {"x": x, "y": y, "used": torch.stack(used)}
        torch.save(kept, Path(args.client) / f"kept{number}.pt")
        meta = {"NUM_STEPS_CURRENT_ROUND": 1}
        flare.send(flare.FLModel(params=net.state_dict(), meta=meta))


def start() -> None:
    """Run the job in the simulator."""
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
    from nvflare.recipe import SimEnv

    options = f"--batch {args.batch} --own {args.own} --lr {args.lr} --seed {args.seed}"
    recipe = FedAvgRecipe(
        name="batches",
        model=model(),
        min_clients=CLIENTS,
        num_rounds=args.rounds,
        train_script=__file__,
        train_args=f"{options} --client {Path.cwd()}",
    )
    recipe.execute(SimEnv(num_clients=CLIENTS, workspace_root="workspace"))


if __name__ == "__main__":
    if args.client:
        train()
    else:
        start()
