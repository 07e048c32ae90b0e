"""What a client does in each round: train the server's model on its own picture."""

import argparse

import nvflare.client as flare
import torch
from model import Net, record
from torch import nn

parser = argparse.ArgumentParser(description="NVFlare: a client")
parser.add_argument("--epochs", type=int, default=1)


def main() -> None:
    """Answer the server until it ends the job."""
    args = parser.parse_args()
    flare.init()
    number = int(flare.get_site_name().removeprefix("site-")) - 1
    picture, face = record(number)
    x, y = torch.tensor(picture[None]), torch.tensor([face])
    net = Net()
    while flare.is_running():
        received = flare.receive()
        net.load_state_dict({name: torch.as_tensor(v) for name, v in received.params.items()})
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(args.epochs):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
        meta = {"NUM_STEPS_CURRENT_ROUND": args.epochs}
        flare.send(flare.FLModel(params=net.state_dict(), metrics={"loss": loss.item()}, meta=meta))


if __name__ == "__main__":
    main()
