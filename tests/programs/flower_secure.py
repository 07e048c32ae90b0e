"""Clients of Flower whose answers are masked by secure aggregation (SecAgg+).

python flower_secure.py
"""

# What flwr defines has no types where it is not installed.
# mypy: disable-error-code="misc, untyped-decorator"

import argparse
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

Arrays = list[np.ndarray]
Config = dict[str, Any]

parser = argparse.ArgumentParser(description="Flower: SecAgg+")
parser.add_argument("--clients", type=int, default=3)
args = parser.parse_args()


class AddingClient(NumPyClient):
    """A client that adds one to the model."""

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, Config]:
        """Return a model."""
        return [array + 1 for array in parameters], 1, {}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, Config]:
        """Return a loss."""
        return 0.0, 1, {}


def client_fn(context: Context) -> Client:
    """Return a client."""
    return AddingClient().to_client()


client_app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod])
server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one round of SecAgg+."""
    strategy = FedAvg(
        min_fit_clients=args.clients,
        min_available_clients=args.clients,
        initial_parameters=ndarrays_to_parameters([np.zeros((4, 3), np.float32)]),
    )
    config = ServerConfig(num_rounds=1)
    secured = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)
    workflow = DefaultWorkflow(fit_workflow=secured)
    workflow(grid, LegacyContext(context=context, config=config, strategy=strategy))
