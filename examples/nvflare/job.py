"""Clients of NVFlare learn to tell faces from other pictures, in a simulation.

    python job.py

The job uses NVFlare as its "hello" examples do (nvflare 2.9) and does not know that it is recorded.
"""

import argparse
from pathlib import Path

import numpy as np
from model import Net, record
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import SimEnv

FILTERS = {"svt": SVTPrivacy, "percentile": PercentilePrivacy}
TRAIN = Path(__file__).resolve().parent / "client.py"

parser = argparse.ArgumentParser(description="NVFlare: faces")
parser.add_argument("--clients", type=int, default=3)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--epochs", type=int, default=1, help="local epochs of a round")
parser.add_argument("--difference", action="store_true", help="send differences, not models")
parser.add_argument("--filter", choices=sorted(FILTERS), help="a privacy filter of the clients")
parser.add_argument("--workspace", default="workspace", help="folder of the simulation")
parser.add_argument("--save", help="write all clients' records to this .npz file, for the score")
args = parser.parse_args()


def save() -> None:
    """Write all clients' records to a file, if the options name one."""
    if args.save:
        x, y = zip(*(record(k) for k in range(args.clients)), strict=True)
        np.savez(args.save, x=np.stack(x), y=np.array(y), node=np.arange(args.clients))


def build() -> FedAvgRecipe:
    """Return the job."""
    kind = TransferType.DIFF if args.difference else TransferType.FULL
    recipe = FedAvgRecipe(
        name="faces",
        model=Net(),
        min_clients=args.clients,
        num_rounds=args.rounds,
        train_script=str(TRAIN),
        train_args=f"--epochs {args.epochs}",
        params_transfer_type=kind,
    )
    if args.filter:
        recipe.add_client_output_filter(FILTERS[args.filter](), tasks=["train"])
    return recipe


def run(recipe: FedAvgRecipe) -> None:
    """Run a job in the simulator."""
    recipe.execute(SimEnv(num_clients=args.clients, workspace_root=args.workspace))


if __name__ == "__main__":
    save()
    run(build())
