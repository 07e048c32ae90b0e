"""Training loops that average gradients, tapped as they are: plain torch, accelerate, Lightning.

Every verdict is compared with what each process computed itself by autograd.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tapping import Run, tapped, torchrun

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
PROGRAMS = {  # framework -> the command that starts its program
    "torch": torchrun(HERE / "averaged.py"),
    "accelerate": torchrun(HERE / "accelerated.py"),
    "lightning": (sys.executable, str(HERE / "lightened.py")),
}
OPTIMISERS = {  # option of the programs -> constants in the trace
    "sgd": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "decay": {"lr": 0.05, "momentum": 0.9, "decay": 0.01},
    "nesterov": {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    "adam": {"lr": 0.001},
    "adamw": {"lr": 0.001, "decay": 0.01},
    "adagrad": {"lr": 0.01},
}
ADAPTIVE = ("adam", "adamw", "adagrad")
CASES = [("torch", name) for name in OPTIMISERS]
CASES += [("accelerate", "momentum"), ("accelerate", "adam")]
CASES += [("lightning", "sgd"), ("lightning", "adam")]


def train(folder: Path, framework: str, *options: str) -> Run:
    """Tap a program of a framework; skips if it is not installed."""
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is in the environment of `make programs`")
    return tapped(folder, *PROGRAMS[framework], *options, operators=True)


def check_sent(seen: Run, op: str = "ddp") -> None:
    """Compare gradients and models with those of each process."""
    for rank in (0, 1):
        sent = torch.stack(seen.sent(rank, op)).double()
        exact = seen.kept(rank)["gradients"].double()
        misses = (sent - exact).norm(dim=1) / exact.norm(dim=1)
        assert float(misses.max()) < 1e-4
    assert torch.equal(torch.stack(seen.sent(0, "model")), seen.kept(0)["models"])


def check_gradients(seen: Run, op: str = "ddp") -> None:
    """Compare gradients, models and reconstructed pictures with those of each process."""
    check_sent(seen, op)
    shown = seen.pictures()
    for rank in (0, 1):
        kept = seen.kept(rank)
        certificate, picture = shown[rank]
        assert certificate == "EXACT"
        # Lightning gives the records to other processes in every epoch.
        assert any(torch.equal(picture.float(), own) for own in kept["x"])


@pytest.mark.parametrize(("framework", "optimiser"), CASES)
def test_gradients_optimiser_and_pictures_are_those_of_the_program(
    tmp_path: Path, framework: str, optimiser: str
) -> None:
    seen = train(tmp_path, framework, "--optimiser", optimiser)
    assert seen.code == 0, seen.said
    params = seen.trace.params
    assert seen.trace.protocol == "fedsgd"
    stated = {name: params[name] for name in OPTIMISERS[optimiser]}
    assert stated == pytest.approx(OPTIMISERS[optimiser])
    assert params["server"] == (optimiser if optimiser in ADAPTIVE else "sgd")
    assert params["samples"] == 1
    check_gradients(seen)


def test_a_mean_gradient_that_is_clipped_gets_no_wrong_optimiser(tmp_path: Path) -> None:
    seen = train(tmp_path, "torch", "--clip", "0.5")
    assert seen.code == 0, seen.said
    # FedSGD has no constant for it, so nothing is derived from the server's step.
    assert seen.trace.params["server"] == "unknown"
    check_gradients(seen)
