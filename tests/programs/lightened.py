"""A LightningModule, trained by two processes that average gradients.

    python lightened.py

Each process keeps what it knows in kept<rank>.pt: its records, and the models and gradients of
every step, by autograd on a copy.
"""

# What Lightning defines has no types where it is not installed.
# mypy: disable-error-code="misc"

import argparse
import copy

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="Lightning")
parser.add_argument("--optimiser", default="sgd", choices=["sgd", "momentum", "adam"])
parser.add_argument("--batch", type=int, default=1, help="records per process and step")
parser.add_argument("--own", type=int, help="records per process, shuffled (default: --batch)")
parser.add_argument("--steps", type=int, default=6)
args = parser.parse_args()


class Classifier(LightningModule):
    """A network of fully connected layers that keeps its own gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.kept: dict[str, list[Tensor]] = {"x": [], "models": [], "gradients": []}

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        copied = copy.deepcopy(self.net)
        found = torch.autograd.grad(
            nn.functional.cross_entropy(copied(x), y), list(copied.parameters())
        )
        self.kept["x"].append(x)
        self.kept["models"].append(torch.cat([p.detach().flatten() for p in copied.parameters()]))
        self.kept["gradients"].append(torch.cat([g.flatten() for g in found]))
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser."""
        if args.optimiser == "adam":
            return torch.optim.Adam(self.parameters(), lr=0.001)
        momentum = 0.9 if args.optimiser == "momentum" else 0.0
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=momentum)

    def on_train_end(self) -> None:
        """Keep what this process knows."""
        state = {name: torch.stack(values) for name, values in self.kept.items() if name != "x"}
        torch.save({"x": torch.cat(self.kept["x"]), **state}, f"kept{self.global_rank}.pt")


if __name__ == "__main__":
    random = torch.Generator().manual_seed(0)
    owned = 2 * (args.own or args.batch)
    x = torch.randint(256, (owned, 1, 8, 8), generator=random) / 255
    y = torch.randint(10, (owned,), generator=random)
    torch.manual_seed(0)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=args.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(x, y)
    trainer.fit(Classifier(), DataLoader(data, batch_size=args.batch, shuffle=bool(args.own)))
