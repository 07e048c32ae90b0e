"""Clients of Flower in the NumPyClient API learn to tell faces from other pictures.

    python flower_numpy.py

The state of a normalisation layer travels with the parameters, and the arrays have no names.
"""

# What flwr defines has no types where it is not installed.
# mypy: disable-error-code="misc, untyped-decorator"

import argparse
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp
from skimage.data import lfw_subset
from torch import nn

Arrays = list[np.ndarray]
Config = dict[str, Any]

parser = argparse.ArgumentParser(description="Flower: faces, NumPyClient")
parser.add_argument("--clients", type=int, default=3)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--records", type=int, default=1, help="pictures of a client")
parser.add_argument("--batch", type=int, help="pictures of a round, drawn anew (default: all)")
parser.add_argument("--norm", action="store_true", help="use a model with batch normalisation")
parser.add_argument("--record-clients", help="record the clients in this folder")
parser.add_argument("--record-server", help="record the server in this folder")
parser.add_argument("--noise", action="store_true", help="add noise to what clients send")
args = parser.parse_args()


def records(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's pictures (n, 1, 25, 25), k/255, and whether they are faces."""
    pictures, faces = np.round(lfw_subset() * 255) / 255, np.arange(200) < 100
    mine = np.random.default_rng(11).permutation(200)[client * args.records :][: args.records]
    return torch.tensor(pictures[mine, None], dtype=torch.float32), torch.tensor(
        faces[mine], dtype=torch.int64
    )


def build() -> nn.Module:
    """Return a small classifier, in evaluation mode: a batch of one has no statistics."""
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(625, 32), nn.BatchNorm1d(32), nn.Sigmoid(), nn.Linear(32, 2)]
    if not args.norm:
        del layers[2]
    return nn.Sequential(*layers).eval()


def arrays(net: nn.Module) -> list[np.ndarray]:
    """Return the state of a model as Flower's tutorial does."""
    return [value.cpu().numpy() for _, value in net.state_dict().items()]


# Of every client, whose objects live for one round only in a simulation of one process.
DRAWS = [torch.Generator().manual_seed(k) for k in range(args.clients)]
USED: list[list[torch.Tensor]] = [[] for _ in range(args.clients)]


class FaceClient(NumPyClient):
    """A client with some pictures."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.random, self.used = DRAWS[number], USED[number]
        self.net = build()

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, Config]:
        """Take one step of SGD from the server's model."""
        names = self.net.state_dict().keys()
        state = {name: torch.tensor(a) for name, a in zip(names, parameters, strict=True)}
        self.net.load_state_dict(state)
        x, y = records(self.number)
        order = torch.randperm(len(x), generator=self.random)[: args.batch]
        x, y = x[order], y[order]
        self.used.append(x)
        torch.save({"x": torch.cat(self.used)}, f"kept{self.number}.pt")
        optimiser = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        nn.functional.cross_entropy(self.net(x), y).backward()
        optimiser.step()
        return arrays(self.net), len(x), {}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, Config]:
        """Return the loss."""
        x, y = records(self.number)
        return nn.functional.cross_entropy(self.net(x), y).item(), len(x), {}


def client_fn(context: Context) -> Client:
    """Return the client of a context."""
    return FaceClient(int(context.node_config["partition-id"])).to_client()


def server_fn(context: Context) -> ServerAppComponents:
    """Return the strategy and the number of rounds."""
    strategy = FedAvg(
        min_fit_clients=args.clients,
        min_available_clients=args.clients,
        initial_parameters=ndarrays_to_parameters(arrays(build())),
    )
    if args.record_server:
        from leakaudit.capture.tap.flower import server_strategy

        strategy = server_strategy(strategy, args.record_server)
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=args.rounds))


mods = []
if args.record_clients:
    from leakaudit.capture.tap.flower import client_mod

    mods.append(client_mod(args.record_clients))
if args.noise:
    from flwr.client.mod import LocalDpMod

    mods.append(LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=100.0, delta=1e-5))
client_app = ClientApp(client_fn=client_fn, mods=mods)
server_app = ServerApp(server_fn=server_fn)

if __name__ == "__main__":
    from flwr.simulation import run_simulation

    resources = {"client_resources": {"num_cpus": 1}}
    run_simulation(server_app, client_app, num_supernodes=args.clients, backend_config=resources)
