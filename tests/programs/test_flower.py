"""Programs of Flower, tapped as they are: what is recorded, what is named, and what leaks.

Every verdict is compared with the program's own records. Most programs run with a grid of ours
(flower_local.py), which takes seconds; the others run in Ray, by `flwr run` or as processes.
"""

from __future__ import annotations

import itertools
import runpy
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tapping import Run, bit_for_bit, leakaudit, payloads, tapped

import leakaudit as la
from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.traces import trace_file

pytest.importorskip("flwr", reason="needs the extra 'flower'")
pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples" / "flower"
FACES = EXAMPLES / "faces.py"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep Flower's files in the folder of the test."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")


@pytest.fixture
def local(tmp_path: Path) -> Callable[..., Run]:
    """Run a program with a grid of ours, tapped."""

    def run(program: Path, *options: str, truth: bool = False) -> Run:
        command = ("python", str(HERE / "flower_local.py"), str(program), *options)
        return tapped(tmp_path, *command, truth=truth)

    return run


@pytest.mark.parametrize(
    "options",
    [("--fraction", "0.67", "--rounds", "6"), ("--strategy", "fedadam")],
    ids=["fraction", "fedadam"],
)
def test_an_unknown_step_of_the_server_leaves_what_clients_answer(
    local: Callable[..., Run], options: tuple[str, ...]
) -> None:
    run = local(FACES, *options, "--save", "data.npz", truth=True)
    assert run.code == 0, run.said
    named = run.description
    assert (named["payload"], named["protocol"]) == ("weights", "fedavg")
    params = {"samples": 1, "lr": 0.1, "epochs": 1, "batch": 0, "server": "unknown"}
    assert named["params"] == params
    trace = trace_file.load(run.folder / "trace.pt")
    assert trace.complete
    assert (trace.graph.nodes, len(trace.graph.edges)) == (4, 3)
    # FedAdam sends float64 to clients that compute in float32.
    assert bit_for_bit(run, rounded="fedadam" in options)


def test_one_step_of_fedprox_is_a_plain_step(local: Callable[..., Run]) -> None:
    # The proximal term has no gradient at the server's model.
    run = local(FACES, "--strategy", "fedprox", "--save", "data.npz", truth=True)
    assert run.code == 0, run.said
    params = {"samples": 1, "lr": 0.1, "epochs": 1, "batch": 0, "server": "mean"}
    assert run.description["params"] == params
    assert bit_for_bit(run)


def test_several_steps_of_fedprox_are_said_to_be_not_known(local: Callable[..., Run]) -> None:
    run = local(FACES, "--strategy", "fedprox", "--epochs", "5")
    assert run.code == 3
    assert "to be filled in: params.lr, params.epochs, params.batch" in run.said
    assert not (run.folder / "trace.pt").exists()


@pytest.mark.parametrize("records", [2, 4])
def test_training_on_several_records_is_said_to_be_not_known(
    local: Callable[..., Run], records: int
) -> None:
    run = local(FACES, "--records", str(records))
    assert run.code == 3
    assert "to be filled in: params.lr, params.epochs, params.batch" in run.said
    assert run.description["protocol"] == "fedavg"
    assert not (run.folder / "trace.pt").exists()


@pytest.mark.parametrize(("records", "batch"), [(2, 2), (12, 4), (12, 1)])
def test_what_is_exact_of_shuffled_pictures_was_used(
    local: Callable[..., Run], records: int, batch: int
) -> None:
    program = HERE / "flower_numpy.py"
    run = local(program, "--records", str(records), "--batch", str(batch), "--rounds", "5")
    described = run.description
    assert (described["payload"], described["protocol"]) == ("weights", "fedavg")
    assert run.code == (3 if batch > 1 else 0), run.said
    model = ("--model", "mlp", "--set", "hidden=32", "--set", "act=sigmoid")
    shape = ("--shape", "1,25,25", "--classes", "2")
    leakaudit(run.folder, "tap", "describe", "trace.tap", *model, *shape, "-o", "mine.toml")
    text = (run.folder / "mine.toml").read_text()
    text = text.replace('lr = "NOT KNOWN"', "lr = 0.1").replace('batch = "NOT KNOWN"', "batch = 0")
    text = text.replace('epochs = "NOT KNOWN"', "epochs = 1")
    if "\nsteps" not in text:
        text = text.replace("\nbatch = 0", f"\nsteps = 1\nbatch = {batch}")
    (run.folder / "mine.toml").write_text(text)
    leakaudit(run.folder, "tap", "merge", "trace.tap", "--describe", "mine.toml", "-o", "mine.pt")
    found = la.attack(
        la.leaks(la.load(run.folder / "mine.pt")), generator=torch.Generator().manual_seed(0)
    )
    exact = 0
    for one in found:
        own = run.kept(one.node)["x"]
        for x in one.x[: one.certified]:
            assert any(torch.equal(x.float(), used) for used in own)
        exact += one.certified
        assert one.certificate.name != "EXACT" or one.certified == len(one.x)
    distinct = sum(len(run.kept(one.node)["x"].flatten(1).unique(dim=0)) for one in found)
    assert exact == distinct if batch == 1 else exact <= distinct


def test_a_step_of_adam_shows_only_signs(local: Callable[..., Run]) -> None:
    run = local(FACES, "--optimiser", "adam")
    assert run.code == 3
    assert "to be filled in: params.lr, params.optimiser, params.epochs, params.batch" in run.said
    assert run.description["protocol"] == "fedavg"
    text = (run.folder / "trace.toml").read_text()
    assert "every coordinate that moves, moves by 0.01: one or a few first steps of Adam" in text
    filled = text.replace('optimiser = "NOT KNOWN"', 'optimiser = "adam"')
    filled = filled.replace('lr = "NOT KNOWN"', "lr = 0.01")
    filled = filled.replace('epochs = "NOT KNOWN"', "epochs = 1")
    filled = filled.replace('batch = "NOT KNOWN"', "batch = 0")
    (run.folder / "tap.toml").write_text(filled)
    leakaudit(run.folder, "tap", "merge", "trace.tap", "--describe", "tap.toml", "-o", "trace.pt")
    leaks = la.leaks(la.load(run.folder / "trace.pt"))
    assert not leaks
    assert all("show signs but not sizes" in why for why in leaks.undetermined.values())


def test_arrays_without_names_are_read_and_statistics_are_set_apart(
    local: Callable[..., Run],
) -> None:
    run = local(HERE / "flower_numpy.py", "--norm")
    assert run.code == 3
    assert run.description["protocol"] == "fedavg"
    text = (run.folder / "trace.toml").read_text()
    assert "beside the parameters are not in the trace: array 4, array 5, array 6" in text
    (run.folder / "mine.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(625, 32), nn.BatchNorm1d(32), nn.Sigmoid(), nn.Linear(32, 2))\n"
    )
    (run.folder / "tap.toml").write_text(
        'payload = "weights"\nprotocol = "fedavg"\n[params]\nlr = 0.1\n[model]\nname = "mine:net"\n'
        'args = { bn = "eval" }\nshape = [1, 25, 25]\nclasses = 2\n'
    )
    words = ("trace.tap", "--describe", "tap.toml", "--trust-model", "mine:net", "-o", "trace.pt")
    leakaudit(run.folder, "tap", "merge", *words)
    trace = trace_file.load(run.folder / "trace.pt")
    names = trace.layout.names
    assert names == ("1.weight", "1.bias", "2.weight", "2.bias", "4.weight", "4.bias")
    sent = [event for event in read_logs(run.folder / "trace.tap")[0].events if event.op == "send"]
    assert trace.layout.size == sum(e.numel for e in sent[:9]) - 32 - 32 - 1


def test_noise_of_a_mod_is_named_and_no_protocol_is(local: Callable[..., Run]) -> None:
    run = local(HERE / "flower_numpy.py", "--noise")
    assert run.code == 3
    assert run.description["protocol"] == "NOT KNOWN"
    said = (run.folder / "trace.toml").read_text()
    assert "clients ran LocalDpMod" in said
    assert "Flower's LocalDpMod states epsilon 100 at delta 1e-05 for one answer" in said


def test_secure_aggregation_is_refused_in_one_line(local: Callable[..., Run]) -> None:
    run = local(HERE / "flower_secure.py")
    assert run.code == 3
    last = run.said.strip().splitlines()[-1]
    assert last.startswith("leakaudit tap: clients answered no model: 12 answers hold no arrays")
    assert "secure aggregation, of which the server learns only sums" in last
    assert not (run.folder / "trace.pt").exists()


def test_one_line_in_the_client_or_in_the_server_records_what_the_tap_does(
    local: Callable[..., Run],
) -> None:
    run = local(
        HERE / "flower_numpy.py", "--record-clients", "client.tap", "--record-server", "server.tap"
    )
    assert run.code == 0, run.said
    traces = [trace_file.load(run.folder / "trace.pt")]
    for side in ("client", "server"):
        log = f"{side}.tap"
        leakaudit(run.folder, "tap", "describe", log, "-o", "tap.toml")
        leakaudit(run.folder, "tap", "merge", log, "--describe", "tap.toml", "-o", f"{side}.pt")
        traces.append(trace_file.load(run.folder / f"{side}.pt"))
    first, *others = traces
    for other in others:
        held = payloads(other)
        assert len(held) == len(first) == 18
        assert held.keys() == payloads(first).keys()
        for key, value in payloads(first).items():
            assert torch.equal(held[key], value)


def test_one_client_that_is_recorded_alone_is_attacked(local: Callable[..., Run]) -> None:
    run = local(HERE / "flower_numpy.py", "--record-clients", "client.tap")
    for path in (run.folder / "client.tap").glob("rank*"):
        if not path.name.startswith("rank2."):
            path.unlink()
    leakaudit(run.folder, "tap", "describe", "client.tap", "-o", "tap.toml")
    leakaudit(run.folder, "tap", "merge", "client.tap", "--describe", "tap.toml", "-o", "one.pt")
    named = tomllib.loads((run.folder / "tap.toml").read_text())
    assert named["params"]["lr"] == 0.1
    assert named["params"]["server"] == "unknown"
    trace = trace_file.load(run.folder / "one.pt")
    assert (trace.graph.nodes, len(trace)) == (2, 6)


def test_a_server_of_the_old_kind_is_recorded(tmp_path: Path) -> None:
    run = tapped(tmp_path, "python", str(HERE / "flower_old.py"))
    assert run.code == 0, run.said
    assert run.description["params"]["lr"] == 0.05
    assert run.description["model"]["args"] == {"hidden": "8", "act": "relu"}
    assert len(trace_file.load(tmp_path / "trace.pt")) == 12


def check_trained(run: Run, clients: int, epochs: int, optimiser: str) -> None:
    """Compare the verdict on clients that train with SGD or Adam with what the program does."""
    named = run.description
    if optimiser == "adam":
        assert run.code == 3, run.said
        assert not (run.folder / "trace.pt").exists()
        # Five steps move the models so far that the answers may be something else.
        assert named["protocol"] == ("fedavg" if epochs == 1 else "NOT KNOWN")
        said = "every coordinate that moves, moves by 0.01: one or a few first steps of Adam"
        assert (said in (run.folder / "trace.toml").read_text()) == (epochs == 1)
        return
    assert run.code == 0, run.said
    assert (named["payload"], named["protocol"]) == ("weights", "fedavg")
    params = {"samples": 1, "lr": 0.1, "epochs": epochs, "batch": 0, "server": "mean"}
    if optimiser == "momentum" and epochs > 1:  # the first step of a new optimiser is plain
        params["momentum"] = 0.9
    assert named["params"] == params
    trace = trace_file.load(run.folder / "trace.pt")
    assert trace.complete
    assert (trace.graph.nodes, len(trace.graph.edges)) == (1 + clients, clients)
    assert bit_for_bit(run)


TRAINED = list(itertools.product((1, 5), ("sgd", "momentum", "adam")))


@pytest.mark.parametrize(("epochs", "optimiser"), TRAINED)
def test_a_simulation_in_ray_is_recorded(tmp_path: Path, epochs: int, optimiser: str) -> None:
    options = ("--epochs", str(epochs), "--optimiser", optimiser, "--save", "data.npz")
    run = tapped(tmp_path, "python", str(FACES), *options, truth=True)
    check_trained(run, 3, epochs, optimiser)


def save(path: Path, clients: int) -> None:
    """Write the records of the app's clients."""
    load_data = runpy.run_path(str(EXAMPLES / "app" / "faces" / "task.py"))["load_data"]
    parts = [load_data(k) for k in range(clients)]
    x, y = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    np.savez(path, x=x, y=y, node=np.arange(clients))


def test_flwr_run_is_recorded_with_a_superlink_of_its_own(tmp_path: Path) -> None:
    save(tmp_path / "data.npz", 2)
    run = tapped(tmp_path, "flwr", "run", str(EXAMPLES / "app"), truth=True)
    assert run.code == 0, run.said
    assert "added --stream" in run.said
    assert run.description["params"]["lr"] == 0.1
    assert bit_for_bit(run)


@pytest.mark.parametrize(("epochs", "optimiser"), TRAINED)
def test_real_processes_over_loopback_are_recorded(
    tmp_path: Path, epochs: int, optimiser: str
) -> None:
    save(tmp_path / "data.npz", 2)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    lr = 0.01 if optimiser == "adam" else 0.1
    config = f"local-epochs={epochs} optimiser='{optimiser}' learning-rate={lr}"
    words = ("sh", str(EXAMPLES / "processes.sh"), str(EXAMPLES / "app"), "--run-config", config)
    run = tapped(tmp_path, *words, truth=True, PORT=str(port))
    check_trained(run, 2, epochs, optimiser)
