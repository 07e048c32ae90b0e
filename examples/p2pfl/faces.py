"""Nodes of p2pfl learn by gossip to tell faces from other pictures.

    python faces.py

The program uses p2pfl 0.4.4 as its examples do, and does not know that it is recorded.
"""

import argparse
from typing import Any

import lightning as L
import numpy as np
import torch
from datasets import Dataset, DatasetDict
from p2pfl.communication.protocols.protobuff.grpc import GrpcCommunicationProtocol
from p2pfl.communication.protocols.protobuff.memory import MemoryCommunicationProtocol
from p2pfl.learning.aggregators.fedavg import FedAvg
from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
from p2pfl.learning.frameworks.pytorch.lightning_model import LightningModel
from p2pfl.node import Node
from p2pfl.settings import Settings
from p2pfl.utils.topologies import TopologyFactory, TopologyType
from p2pfl.utils.utils import set_standalone_settings, wait_convergence, wait_to_finish
from skimage.data import lfw_subset
from torch import nn

parser = argparse.ArgumentParser(description="p2pfl: faces")
parser.add_argument("--nodes", type=int, default=3)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--epochs", type=int, default=1, help="local epochs of a round")
parser.add_argument("--grpc", action="store_true", help="send over sockets, not in memory")
parser.add_argument("--compress", choices=("ptq", "dp"), help="what p2pfl makes of a message")
parser.add_argument("--save", help="write all nodes' records to this .npz file, for the score")
args = parser.parse_args()


def record(node: int) -> tuple[np.ndarray, int]:
    """Return a node's picture (25, 25), k/255, and whether it is a face."""
    pictures, faces = np.round(lfw_subset() * 255) / 255, np.arange(200) < 100
    mine = np.random.default_rng(11).permutation(200)[node]
    return pictures[mine].astype(np.float32), int(faces[mine])


class Net(L.LightningModule):
    """A small classifier."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Flatten(), nn.Linear(625, 64), nn.Sigmoid(), nn.Linear(64, 2)
        self.net = nn.Sequential(*layers)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: dict[str, Any], number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch["image"].float(), batch["label"]
        return nn.functional.cross_entropy(self.net(x), y)

    def test_step(self, batch: dict[str, Any], number: int) -> None:
        """Log the loss of a batch."""
        self.log("test_loss", self.training_step(batch, number))


def data(node: int) -> P2PFLDataset:
    """Return a node's picture as p2pfl's data."""
    x, y = record(node)
    rows = Dataset.from_dict({"image": x[None], "label": [y]}).with_format("torch")
    return P2PFLDataset(DatasetDict({"train": rows, "test": rows}), batch_size=1)


def build(number: int) -> Node:
    """Return a node."""
    techniques = {"ptq": {"ptq": {}}, "dp": {"dp": {}}}
    model = LightningModel(Net(), compression=techniques.get(args.compress))
    protocol = GrpcCommunicationProtocol() if args.grpc else MemoryCommunicationProtocol()
    address = "127.0.0.1" if args.grpc else f"node-{number}"
    return Node(model, data(number), addr=address, protocol=protocol, aggregator=FedAvg())


def main() -> None:
    """Train."""
    set_standalone_settings()
    Settings.ssl.USE_SSL = False
    Settings.general.DISABLE_RAY = True
    Settings.heartbeat.TIMEOUT = 60  # on a busy machine, a node may be slow to answer
    nodes = [build(k) for k in range(args.nodes)]
    for node in nodes:
        node.start()
    try:
        edges = TopologyFactory.generate_matrix(TopologyType.FULL, len(nodes))
        TopologyFactory.connect_nodes(edges, nodes)
        wait_convergence(nodes, len(nodes) - 1, wait=60)
        nodes[0].set_start_learning(rounds=args.rounds, epochs=args.epochs)
        wait_to_finish(nodes, timeout=120)
    finally:
        for node in nodes:
            node.stop()


if __name__ == "__main__":
    if args.save:
        x, y = zip(*(record(k) for k in range(args.nodes)), strict=True)
        np.savez(args.save, x=np.stack(x)[:, None], y=np.array(y), node=np.arange(args.nodes))
    main()
