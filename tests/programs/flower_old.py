"""A server and two clients of Flower as they were started before SuperLink and SuperNode.

python flower_old.py
"""

# What flwr defines has no types where it is not installed.
# mypy: disable-error-code="misc, untyped-decorator"

import multiprocessing
import socket
import sys
from typing import Any

import numpy as np
import torch
from flwr.client import NumPyClient, start_client
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg
from torch import nn

Arrays = list[np.ndarray]
Config = dict[str, Any]


def build() -> nn.Module:
    """Return a small classifier."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def arrays(net: nn.Module) -> list[np.ndarray]:
    """Return the state of a model."""
    return [value.numpy() for value in net.state_dict().values()]


class OldClient(NumPyClient):
    """A client with one record."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, Config]:
        """Take one step of SGD from the server's model."""
        net = build()
        names = net.state_dict().keys()
        net.load_state_dict(
            {name: torch.tensor(a) for name, a in zip(names, parameters, strict=True)}
        )
        x = torch.rand(1, 12, generator=torch.Generator().manual_seed(self.number))
        optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
        nn.functional.cross_entropy(net(x), torch.tensor([self.number])).backward()
        optimiser.step()
        return arrays(net), 1, {}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, Config]:
        """Return a loss."""
        return 0.0, 1, {}


def client(number: int, address: str) -> None:
    """Run a client."""
    start_client(server_address=address, client=OldClient(number).to_client())


def main() -> None:
    """Run the server in this process, and two clients in others."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    spawn = multiprocessing.get_context("spawn")
    clients = [spawn.Process(target=client, args=(k, address)) for k in range(2)]
    for process in clients:
        process.start()
    strategy = FedAvg(initial_parameters=ndarrays_to_parameters(arrays(build())))
    start_server(server_address=address, config=ServerConfig(num_rounds=3), strategy=strategy)
    for process in clients:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in clients))


if __name__ == "__main__":
    main()
