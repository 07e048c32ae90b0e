"""Training loops that average gradients, tapped as they are: plain torch, accelerate, Lightning.

Every verdict is compared with what each process computed itself by autograd.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tapping import Run, leakaudit, tapped, torchrun

import leakaudit as la

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
    # Lightning gives the records to other processes in every epoch, so a rank has several.
    assert params["batch" if framework == "lightning" else "samples"] == 1
    check_gradients(seen)


@pytest.mark.parametrize("framework", PROGRAMS)
@pytest.mark.parametrize("options", [("--batch", "2"), ("--batch", "4", "--own", "12")], ids=str)
def test_batches_are_recorded_and_their_size_is_the_stated_one(
    tmp_path: Path, framework: str, options: tuple[str, ...]
) -> None:
    """Two records of a rank in every step, or four of twelve in a new order."""
    seen = train(tmp_path, framework, *options)
    assert seen.code == 3, seen.said
    assert (seen.description["payload"], seen.description["protocol"]) == ("gradients", "fedsgd")
    params = seen.description["params"]
    shuffled = "--own" in options or framework == "lightning"
    name = "batch" if shuffled else "samples"
    assert {key: params[key] for key in ("batch", "samples") if key in params} == {
        name: int(options[1])
    }
    check_sent(seen)
    model = ("--model", "mlp", "--set", "hidden=32", "--shape", "1,8,8", "--classes", "10")
    leakaudit(tmp_path, "tap", "describe", "trace.tap", *model, "-o", "mine.toml")
    leakaudit(tmp_path, "tap", "merge", "trace.tap", "--describe", "mine.toml", "-o", "mine.pt")
    trace = la.load(tmp_path / "mine.pt")
    assert trace.params["lr"] == pytest.approx(0.05)
    assert (trace.params["server"], trace.params["momentum"]) == ("sgd", 0)
    evidence = trace.provenance["evidence"]
    assert isinstance(evidence, dict)
    assert evidence[name][0] == "STATED"
    assert evidence["lr"][0] == "VERIFIED"
    shown = re.search(r"show at least (\d+)", evidence[name][1])
    assert shown is not None
    assert 1 < int(shown[1]) <= int(options[1])
    for found in la.attack(la.leaks(trace), generator=torch.Generator().manual_seed(0)):
        own = seen.kept(found.node)["x"]
        count = len(found.x) if found.certificate.name == "EXACT" else found.certified
        for x in found.x[:count]:
            assert any(torch.equal(x.float(), one) for one in own)


def test_a_mean_gradient_that_is_clipped_gets_no_wrong_optimiser(tmp_path: Path) -> None:
    seen = train(tmp_path, "torch", "--clip", "0.5")
    assert seen.code == 0, seen.said
    # FedSGD has no constant for it, so nothing is derived from the server's step.
    assert seen.trace.params["server"] == "unknown"
    check_gradients(seen)


def test_a_sharded_model_is_recorded_as_an_averaged_one(tmp_path: Path) -> None:
    seen = train(tmp_path, "torch", "--wrap", "fsdp2", "--optimiser", "momentum")
    assert seen.code == 0, seen.said
    params = seen.trace.params
    assert seen.trace.protocol == "fedsgd"
    assert {name: params[name] for name in ("server", "lr", "momentum", "samples")} == {
        "server": "sgd",
        "lr": pytest.approx(0.05),
        "momentum": pytest.approx(0.9),
        "samples": 1,
    }
    check_gradients(seen, "fsdp")


def test_a_schedule_is_seen_and_no_step_size_is_claimed(tmp_path: Path) -> None:
    seen = train(tmp_path, "torch", "--cosine")
    assert seen.code == 0, seen.said
    # FedSGD has one step size, so nothing is derived from the server's step.
    assert seen.trace.params["server"] == "unknown"
    check_gradients(seen)


def test_a_gradient_in_mixed_precision_is_recorded_and_its_picture_is_not_called_exact(
    tmp_path: Path,
) -> None:
    """Autocast rounds the picture itself to bfloat16 before the first layer uses it."""
    seen = train(tmp_path, "torch", "--autocast")
    assert seen.code == 0, seen.said
    params = seen.trace.params
    assert params["server"] == "sgd"
    assert params["lr"] == pytest.approx(0.05)
    check_sent(seen)
    shown = seen.pictures()
    for rank in (0, 1):
        certificate, picture = shown[rank]
        own = seen.kept(rank)["x"][0].flatten()  # rounded values do not prove pixels
        assert certificate != "EXACT" or torch.equal(picture.float(), own)
        # bfloat16 has eight binary digits, of which products lose half a unit each.
        assert float((picture - own).abs().max()) < 3 * 2**-8


def test_accumulated_gradients_are_recorded_and_no_single_record_is_claimed(
    tmp_path: Path,
) -> None:
    seen = train(tmp_path, "torch", "--accumulate", "3")
    assert seen.code == 3, seen.said
    named = seen.description
    assert (named["payload"], named["protocol"]) == ("gradients", "fedsgd")
    assert named["model"]["name"] == "NOT KNOWN"
    assert "samples" not in named["params"]
    assert not (tmp_path / "trace.pt").exists()
    check_sent(seen)


def test_steps_with_powersgd_are_left_out_and_the_trace_is_incomplete(tmp_path: Path) -> None:
    """Gradients travel in the first three steps, and factors of low rank in the others."""
    seen = train(tmp_path, "torch", "--powersgd", "3")
    assert "6 omitted because of powerSGD_hook does not send it as it is" in seen.said
    assert "6 messages that the protocol sends were not recorded" in seen.said
    assert seen.code == 0  # of the program
    shown = seen.pictures()
    for rank in (0, 1):
        sent = torch.stack(seen.sent(rank, "ddp")).double()
        exact = seen.kept(rank)["gradients"][:3].double()
        misses = (sent - exact).norm(dim=1) / exact.norm(dim=1)
        assert float(misses.max()) < 1e-4
        certificate, picture = shown[rank]
        assert certificate == "EXACT"
        assert torch.equal(picture.float(), seen.kept(rank)["x"][0])
