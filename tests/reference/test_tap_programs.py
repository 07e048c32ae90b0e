"""The examples and a DDP program, tapped unmodified: what is recorded is what was sent, and what follows from it is what the data gave."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="call-overload, index, operator"

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

import leakaudit as la
from leakaudit.capture.tap.guessing.guess import guess
from leakaudit.capture.tap.log.reading import read_logs
from leakaudit.cli import main
from leakaudit.scoring.metrics import psnr
from leakaudit.tasks.task import Task
from leakaudit.traces import trace_file

pytestmark = pytest.mark.slow

WRAPPER = """
import os, runpy, sys
import torch, torch.distributed as dist

kept, point, isend = [], dist.P2POp, dist.isend

def noting_point(op, tensor, peer=None, *args, **named):
    if op is isend:
        kept.append((peer, tensor.detach().clone()))
    return point(op, tensor, peer, *args, **named)

def noting_isend(tensor, dst=None, *args, **named):
    kept.append((dst, tensor.detach().clone()))
    return isend(tensor, dst, *args, **named)

program = sys.argv[1]
if "P2POp" in open(program).read():
    dist.P2POp = noting_point
else:
    dist.isend = noting_isend
sys.argv = sys.argv[1:]
runpy.run_path(program, run_name="__main__")
torch.save(kept, f"sent{os.environ['RANK']}.pt")
"""

DDP = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), bucket_cap_mb=0.001)
x, y = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(rank)), torch.tensor([rank])
momentum, called = float(sys.argv[1]), []

def own(state, bucket):
    called.append(bucket.index())
    return dist.all_reduce(bucket.buffer() / 2, async_op=True).get_future().then(lambda done: done.value()[0])

if momentum:
    model.register_comm_hook(None, own)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
models = []
for _ in range(5):
    models.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()
torch.save({"x": x, "y": y, "models": torch.stack(models), "called": torch.tensor(called)}, f"kept{rank}.pt")
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Run:
    """A tapped run: its folder, trace and exit code."""

    folder: Path
    code: int

    @property
    def trace(self) -> la.Trace:
        return trace_file.load(self.folder / "trace.pt")

    def sent(self, rank: int) -> dict[int, list[Tensor]]:
        """What the program itself says it sent, by receiver."""
        out: dict[int, list[Tensor]] = {}
        for peer, tensor in torch.load(self.folder / f"sent{rank}.pt", weights_only=True):
            out.setdefault(peer, []).append(tensor)
        return out

    @property
    def records(self) -> dict[str, np.ndarray]:
        with np.load(self.folder / "records.npz") as file:
            return dict(file)


def tapped(folder: Path, ranks: int, options: list[str], program: list[str]) -> Run:
    """Run a program under the tap, in a folder of its own."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
        ]
        return Run(folder, main(["tap", "-q", *options, "--", *torchrun, *program]))
    finally:
        os.chdir(before)


def example(name: str, folder: Path, project: Path, **options: str) -> Run:
    (folder / "wrapper.py").write_text(WRAPPER)
    here = project / "examples" / "tap"
    description = [
        "--describe",
        str(here / f"{name.split('_')[0]}.toml"),
        "--truth",
        "records.npz",
        "--keep",
    ]
    run = tapped(
        folder,
        4,
        description,
        ["wrapper.py", str(here / f"{name}.py"), "--rounds", "6", "--save", "records.npz"],
    )
    assert run.code == 0
    return run


@pytest.fixture(scope="module")
def dpsgd(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Run:
    return example("dpsgd_ring", tmp_path_factory.mktemp("dpsgd"), project)


@pytest.fixture(scope="module")
def ecl(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Run:
    return example("ecl", tmp_path_factory.mktemp("ecl"), project)


def payloads(trace: la.Trace) -> dict[tuple[int, int, int], Tensor]:
    """Payload by (round, src, dst)."""
    (m,) = trace.messages
    return {
        (int(m.round[k]), int(m.src[k]), int(m.dst[k])): m.payload[int(m.row[k])]
        for k in range(len(m))
    }


def network(act: nn.Module, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(625, hidden), act, nn.Linear(hidden, 2)).double()


def gradient(model: nn.Module, theta: Tensor, x: np.ndarray, y: np.ndarray) -> Tensor:
    """Gradient of the mean loss by autograd in double precision, by torch's own module."""
    nn.utils.vector_to_parameters(theta.double(), model.parameters())
    loss = nn.functional.cross_entropy(model(torch.from_numpy(x).double()), torch.from_numpy(y))
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


# --- D-PSGD -----------------------------------------------------------------------------------------------------------


def test_the_trace_of_dpsgd_is_bit_equal_to_what_was_sent(dpsgd: Run) -> None:
    trace = dpsgd.trace
    held = payloads(trace)
    assert trace.graph.edges == ((0, 1), (0, 3), (1, 2), (2, 3))
    assert trace.complete
    assert len(held) == 8 * 5
    for rank in range(4):
        for peer, tensors in dpsgd.sent(rank).items():
            assert len(tensors) == 6
            assert torch.equal(trace.public["w0"], tensors[0])
            assert all(torch.equal(held[t, rank, peer], tensors[t]) for t in range(1, 6))


def test_the_gradients_of_dpsgd_are_recovered(dpsgd: Run) -> None:
    trace, records = dpsgd.trace, dpsgd.records
    model = network(nn.ReLU(), 128)
    found = la.leaks(trace)
    assert len(found) == 4
    for leak in found:
        mine = records["node"] == leak.node
        sent = dpsgd.sent(leak.node)[(leak.node + 1) % 4]
        assert leak.batch == 1
        assert leak.is_plain
        for t, value in enumerate(torch.linalg.pinv(leak.combination) @ leak.value):
            assert (
                relative(value, gradient(model, sent[t], records["x"][mine], records["y"][mine]))
                < 1e-5
            )


@pytest.mark.parametrize("which", ["dpsgd", "ecl"])
def test_single_records_are_recovered(which: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(which)
    found = la.attack(la.leaks(run.trace), generator=Generator().manual_seed(0))
    records = run.records
    assert len(found) == 4
    for one in found:
        truth = torch.from_numpy(records["x"][records["node"] == one.node])
        assert psnr(one.x.float(), truth, data_range=1.0).min() >= 60
        assert one.certificate.name == "EXACT"


def test_the_truth_beside_the_trace_is_the_programs(dpsgd: Run) -> None:
    truth = trace_file.load_truth(dpsgd.folder / "trace.truth.pt", id=dpsgd.trace.id)
    assert np.array_equal(truth.x.numpy(), dpsgd.records["x"])
    assert truth.node.tolist() == [0, 1, 2, 3]


def test_the_share_of_time_in_the_tap_is_reported(dpsgd: Run) -> None:
    facts = dpsgd.trace.provenance["tap"]
    assert facts["processes"] == 4
    assert 0 < facts["share"] < 0.9
    assert facts["exit"] == 0


def test_dpsgd_is_guessed_from_its_messages_alone(dpsgd: Run) -> None:
    found = guess(read_logs(dpsgd.folder / "trace.tap"))
    described = found.description
    assert described is not None
    assert (described.payload, described.protocol, described.first) == ("weights", "dpsgd", "start")
    assert dict(described.params) == {"alpha": 0.1, "order": "combine", "samples": 1}
    spec = described.task.spec
    assert (spec.model, spec.args, spec.shape, spec.classes, spec.levels) == (
        "mlp",
        {"hidden": "128", "act": "relu"},
        (1, 25, 25),
        2,
        255,
    )
    assert "sure" in found.said


def test_what_was_sent_to_two_is_logged_once(dpsgd: Run) -> None:
    (log, *_) = read_logs(dpsgd.folder / "trace.tap")
    assert log.path.with_suffix(".bin").stat().st_size < 1.01 * 6 * 4 * dpsgd.trace.layout.size
    sent = [event for event in log.events if event.op == "send"]
    assert len({event.offset for event in sent}) * 2 == len(sent)


# --- edge consensus ---------------------------------------------------------------------------------------------------


def test_the_trace_of_ecl_is_bit_equal_to_what_was_sent_tensor_by_tensor(ecl: Run) -> None:
    held = payloads(ecl.trace)
    assert len(held) == 8 * 6
    for rank in range(4):
        for peer, tensors in ecl.sent(rank).items():
            assert len(tensors) == 4 * 6
            for t in range(6):
                assert torch.equal(
                    held[t + 1, rank, peer],
                    torch.cat([v.flatten() for v in tensors[4 * t : 4 * t + 4]]),
                )


def test_the_gradients_of_ecl_are_recovered(ecl: Run) -> None:
    """The models follow from the duals: w = (z_ji - z_ij of the round before) / (2 rho A)."""
    trace, records = ecl.trace, ecl.records
    held, model = payloads(trace), network(nn.Sigmoid(), 64)
    found = la.leaks(trace)
    assert len(found) == 4
    for leak in found:
        i, j = leak.node, (leak.node + 1) % 4
        mine, sign = records["node"] == i, 1 if i < j else -1
        values = torch.linalg.pinv(leak.combination) @ leak.value
        for t, value in zip(leak.theta_rounds.tolist(), values, strict=True):
            before = (
                held[t - 1, j, i].double()
                if t > 1
                else torch.zeros(trace.layout.size, dtype=torch.float64)
            )
            w = (held[t, i, j].double() - before) / (2 * 0.2 * sign)
            assert (
                relative(value, gradient(model, w, records["x"][mine], records["y"][mine])) < 1e-5
            )


def test_ecl_is_guessed_from_its_messages_alone(ecl: Run) -> None:
    found = guess(read_logs(ecl.folder / "trace.tap"))
    described = found.description
    assert described is not None
    assert (described.payload, described.protocol, described.first, described.scale) == (
        "duals",
        "pdmm",
        "update",
        1.0,
    )
    assert dict(described.params) == {
        "alpha": 0.1,
        "rho": 0.2,
        "theta": 1.0,
        "differential": False,
        "z0": 0.0,
        "samples": 1,
    }
    spec = described.task.spec
    assert (spec.args, spec.shape, spec.levels) == (
        {"hidden": "64", "act": "sigmoid"},
        (1, 25, 25),
        255,
    )


# --- DistributedDataParallel ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    made: dict[str, Run] = {}

    def run(momentum: str) -> Run:
        if momentum not in made:
            folder = tmp_path_factory.mktemp("ddp")
            (folder / "program.py").write_text(DDP)
            made[momentum] = tapped(folder, 2, [], ["program.py", momentum])
        return made[momentum]

    return run


def kept(run: Run, rank: int) -> Any:
    return torch.load(run.folder / f"kept{rank}.pt", weights_only=True)


@pytest.mark.parametrize("momentum", ["0", "0.9"])
def test_each_ranks_own_gradient_is_heard_before_it_is_averaged(
    ddp: Callable[[str], Run], momentum: str
) -> None:
    run = ddp(momentum)
    assert run.code == 0
    trace = run.trace
    task = Task.build(trace.task, dtype=torch.float64)
    assert (trace.protocol, trace.graph.nodes) == ("fedsgd", 3)
    assert (trace.params["server"], trace.params["momentum"]) == ("sgd", float(momentum))
    for leak in la.leaks(trace):
        own = kept(run, leak.node)
        values = torch.linalg.pinv(leak.combination) @ leak.value
        assert leak.theta_rounds.tolist() == [1, 2, 3, 4, 5]
        assert leak.theta is not None
        for theta, known, value in zip(own["models"], leak.theta, values, strict=True):
            assert relative(known, theta.double()) < 1e-6
            assert (
                relative(value, task.gradient(theta.double(), own["x"].double(), own["y"])) < 1e-5
            )


def test_a_programs_own_communication_hook_is_called_as_before(ddp: Callable[[str], Run]) -> None:
    for rank in range(2):
        called = kept(ddp("0.9"), rank)["called"].tolist()
        assert called.count(0) == 5
        assert max(called) >= 1
        assert not len(kept(ddp("0"), rank)["called"])


def test_listening_leaves_ddps_training_as_it_is(ddp: Callable[[str], Run]) -> None:
    """All ranks end with the same models, and they are those of plain SGD on the mean of both ranks' losses."""
    run = ddp("0")
    both = [kept(run, rank) for rank in range(2)]
    assert torch.equal(both[0]["models"], both[1]["models"])
    task, w = Task.build(run.trace.task), both[0]["models"][0].double()
    for after in both[0]["models"][1:]:
        w = w - 0.1 * torch.stack([task.gradient(w, b["x"].double(), b["y"]) for b in both]).mean(0)
        assert relative(after.double(), w) < 1e-5


def test_a_description_is_written_where_none_was_given(ddp: Callable[[str], Run]) -> None:
    text = (ddp("0").folder / "trace.toml").read_text()
    assert 'payload = "gradients"      # sure' in text
    assert json.dumps([1, 8, 8]) in text
    assert not (ddp("0").folder / "trace.tap").exists()
