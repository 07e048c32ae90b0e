"""Clients of Flower learn to tell faces from other pictures, in a simulation.

    python faces.py

The program uses Flower as its tutorial does (flwr 1.41) and does not know that it is recorded.
"""

import argparse

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx
from flwr.simulation import run_simulation
from skimage.data import lfw_subset
from torch import nn

parser = argparse.ArgumentParser(description="Flower: faces")
parser.add_argument("--clients", type=int, default=3)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--epochs", type=int, default=1, help="local epochs of a round")
parser.add_argument("--records", type=int, default=1, help="pictures of each client")
parser.add_argument("--optimiser", choices=("sgd", "momentum", "adam"), default="sgd")
parser.add_argument("--strategy", choices=("fedavg", "fedadam", "fedprox"), default="fedavg")
parser.add_argument("--fraction", type=float, default=1.0, help="of the clients, in each round")
parser.add_argument("--save", help="write all clients' records to this .npz file, for the score")
args = parser.parse_args()

client_app = ClientApp()
server_app = ServerApp()


def records(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's pictures (count, 1, 25, 25), k/255, and whether each is a face."""
    pictures, faces = np.round(lfw_subset() * 255) / 255, np.arange(200) < 100
    start = client * args.records
    mine = np.random.default_rng(11).permutation(200)[start : start + args.records]
    return torch.tensor(pictures[mine, None], dtype=torch.float32), torch.tensor(
        faces[mine], dtype=torch.int64
    )


def build() -> nn.Module:
    """Return a small classifier."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(625, 64), nn.Sigmoid(), nn.Linear(64, 2))


def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor, mu: float) -> None:
    """Train on all records of a client at once, for some epochs; mu is FedProx's."""
    optimisers = {
        "sgd": lambda w: torch.optim.SGD(w, lr=0.1),
        "momentum": lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9),
        "adam": lambda w: torch.optim.Adam(w, lr=0.01),
    }
    optimiser = optimisers[args.optimiser](net.parameters())
    start = [w.detach().clone() for w in net.parameters()]
    for _ in range(args.epochs):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        if mu:
            pairs = zip(net.parameters(), start, strict=True)
            loss = loss + mu / 2 * sum((w - w0).square().sum() for w, w0 in pairs)
        loss.backward()
        optimiser.step()


@client_app.train()
def fit(message: Message, context: Context) -> Message:
    """Train the server's model on this client's records."""
    net = build()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = records(context.node_config["partition-id"])
    config = message.content.config_records.get("config", {})
    train(net, x, y, float(config.get("proximal-mu", 0.0)))
    content = RecordDict(
        {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": len(x)}),
        }
    )
    return Message(content=content, reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the loss of the server's model on this client's records."""
    net = build()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = records(context.node_config["partition-id"])
    loss = nn.functional.cross_entropy(net(x), y).item()
    metrics = MetricRecord({"num-examples": len(x), "loss": loss})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    if args.strategy == "fedprox":
        strategy = FedProx(fraction_train=args.fraction, proximal_mu=0.5)
    else:
        kind = {"fedavg": FedAvg, "fedadam": FedAdam}[args.strategy]
        strategy = kind(fraction_train=args.fraction)
    start = ArrayRecord(build().state_dict())
    strategy.start(grid=grid, initial_arrays=start, num_rounds=args.rounds)


def save() -> None:
    """Write all clients' records to a file, if the options name one."""
    if args.save:
        parts = [records(k) for k in range(args.clients)]
        x, y = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
        np.savez(args.save, x=x, y=y, node=np.arange(len(x)) // args.records)


if __name__ == "__main__":
    save()
    resources = {"client_resources": {"num_cpus": 1}}
    run_simulation(server_app, client_app, num_supernodes=args.clients, backend_config=resources)
