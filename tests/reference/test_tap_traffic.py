"""What real programs send, tapped unmodified: each test compares what was recorded with what the program itself saved."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.capture.tap.log.reading import RankLog, read_logs
from leakaudit.cli import main
from leakaudit.scoring.metrics import psnr
from leakaudit.traces import trace_file

pytestmark = pytest.mark.slow

MLP = """
payload = "gradients"
[model]
name = "mlp"
args = { hidden = "32" }
shape = [1, 8, 8]
classes = 10
"""

BEGIN = """
import contextlib, copy, os, sys, warnings
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
random = torch.Generator().manual_seed(rank)
x, y = torch.rand(4, 1, 8, 8, generator=random), torch.randint(10, (4,), generator=random)
kept = {}

def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

def vector(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])

def own(model, batches, half=False):
    # The gradient of this rank, by autograd on a copy that nobody listens to.
    copied, total = copy.deepcopy(model), 0
    for one in batches:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = nn.functional.cross_entropy(copied(x[list(one)]), y[list(one)])
        trained = [p for p in copied.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        some = [torch.zeros_like(p) if g is None else g for g, p in zip(found, trained)]
        total = total + torch.cat([g.flatten() for g in some])
    return total

"""
END = """
torch.save({"x": x, "y": y, **kept}, f"kept{rank}.pt")
dist.destroy_process_group()
"""

MODELS = (
    BEGIN
    + """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.spare, self.last = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)
        self.step = 0

    def forward(self, x):
        h = torch.relu(self.first(x.flatten(1)))
        if self.step == 1:
            h = torch.relu(self.spare(h))
        return self.last(h)

def train(name, model, steps=3, batches=((0,),), half=False, hook=None, state=None, size=0.001, **options):
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.1)
    ddp = DistributedDataParallel(model, bucket_cap_mb=size, **options)
    if hook is not None:
        ddp.register_comm_hook(state, hook)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    models, gradients, averaged = [], [], []
    for t in range(steps):
        model.step = t
        models.append(vector(model))
        gradients.append(own(model, batches, half))
        optimiser.zero_grad()
        for k, one in enumerate(batches):
            last = k + 1 == len(batches)
            with contextlib.nullcontext() if last else ddp.no_sync():
                with torch.autocast("cpu", torch.bfloat16, enabled=half):
                    loss = nn.functional.cross_entropy(ddp(x[list(one)]), y[list(one)])
                loss.backward()
        averaged.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        optimiser.step()
    kept[name] = {"models": torch.stack(models), "gradients": torch.stack(gradients), "averaged": averaged}

def short(state, bucket):
    value = bucket.buffer().bfloat16().div_(ranks)
    done = dist.all_reduce(value, async_op=True).get_future()
    return done.then(lambda done: bucket.buffer().copy_(done.value()[0]))

def noisy(state, bucket):
    value = bucket.buffer() + torch.randn_like(bucket.buffer())
    done = dist.all_reduce(value, async_op=True).get_future()
    return done.then(lambda done: done.value()[0] / ranks)

train("plain", mlp())
train("accumulated", mlp(), batches=((0,), (1,), (2, 3)))
train("static", mlp(), static_graph=True)
train("view", mlp(), gradient_as_bucket_view=True)
train("unused", Branch(), find_unused_parameters=True)
frozen = mlp()
frozen[3].requires_grad_(False)
train("frozen", frozen)
train("autocast", mlp(), half=True)
train("fp16", mlp(), hook=default_hooks.fp16_compress_hook)
train("bf16", mlp(), hook=short)
train("noisy", mlp(), hook=noisy)
low_rank = powerSGD_hook.PowerSGDState(
    None, matrix_approximation_rank=2, start_powerSGD_iter=3, min_compression_rate=1, use_error_feedback=False
)
# With gloo, the callbacks of several buckets may send in another order on another rank.
train("powersgd", mlp(), steps=5, size=1, hook=powerSGD_hook.powerSGD_hook, state=low_rank)
"""
    + END
)
STREAMS = (
    "plain",
    "accumulated",
    "static",
    "view",
    "unused",
    "frozen",
    "autocast",
    "fp16",
    "bf16",
    "noisy",
    "powersgd",
)

TWO = (
    BEGIN
    + """
maker = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 64)), bucket_cap_mb=0.001)
critic = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), bucket_cap_mb=0.001)
steps = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (maker, critic)]
mine = []
for t in range(4):
    noise = torch.rand(2, 6, generator=random)
    judge = copy.deepcopy(critic.module)
    loss = nn.functional.cross_entropy(judge(x[:1]), y[:1]) - judge(maker.module(noise).detach())[:, 0].mean()
    mine.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(judge.parameters()))]))
    critic.zero_grad()
    (nn.functional.cross_entropy(critic(x[:1]), y[:1]) - critic(maker(noise).detach())[:, 0].mean()).backward()
    steps[1].step()
    maker.zero_grad()
    for p in critic.parameters():
        p.requires_grad_(False)
    critic.module(maker(noise))[:, 0].mean().backward()
    for p in critic.parameters():
        p.requires_grad_(True)
    steps[0].step()
kept["critic"] = torch.stack(mine)
"""
    + END
)

OPERATIONS = (
    BEGIN
    + """
import torch.distributed._functional_collectives as functional

sent = []
D = 50 * ranks
everyone = dist.group.WORLD
others = [j for j in range(ranks) if j != rank]

def fresh(n=D):
    return torch.randn(n, generator=random)

def note(op, value, peer=None, lane=""):
    sent.append((op, value.detach().clone().flatten(), peer, lane))
    return value

def to_each(parts):
    for j in others:
        note("alltoall", parts[j], j)

dist.reduce_scatter_tensor(torch.empty(50), note("reduce_scatter", fresh()))
dist.reduce_scatter(torch.empty(50), list(note("reduce_scatter", fresh()).split(50)))
v = fresh()
to_each(v.split(50))
dist.all_to_all_single(torch.empty(D), v)
sizes = [10 * (j + 1) for j in range(ranks)]
v = fresh(sum(sizes))
to_each(v.split(sizes))
dist.all_to_all_single(torch.empty(ranks * sizes[rank]), v, [sizes[rank]] * ranks, sizes)
dist.all_gather_into_tensor(torch.empty(ranks * D), note("allgather", fresh()))
dist.all_reduce_coalesced([note("allreduce", fresh()), note("allreduce", fresh(30))])
with dist._coalescing_manager(async_ops=True) as works:
    for _ in range(2):
        dist.all_reduce(note("allreduce", fresh()))
works.wait()
functional.all_reduce(note("allreduce", fresh()), "sum", everyone).wait()
functional.all_gather_tensor(note("allgather", fresh()), 0, everyone).wait()
functional.reduce_scatter_tensor(note("reduce_scatter", fresh()), "sum", 0, everyone).wait()
v = fresh()
to_each(v.split(50))
functional.all_to_all_single(v, None, None, everyone).wait()
v = fresh()
if rank == 1:
    note("broadcast", v)
functional.broadcast(v, 1, everyone).wait()

some, all_again = dist.new_group([0, 2]), dist.new_group(list(range(ranks)))
if rank in (0, 2):
    lane = f"group {some.group_name}"
    for _ in range(3):
        dist.all_reduce(note("allreduce", fresh(), None, lane), group=some)
    if rank == 0:
        dist.send(note("send", fresh(), 2, lane), 2, group=some)
    else:
        dist.recv(torch.empty(D), 0, group=some)
dist.all_reduce(note("allreduce", fresh(), None, f"group {all_again.group_name}"), group=all_again)
dist.all_reduce(torch.sparse_coo_tensor([[0, 3]], [1.0, 2.0], (5,)))
dist.all_reduce(note("allreduce", fresh()))
kept["sent"] = sent
"""
    + END
)

SHARDED = (
    BEGIN
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

mesh = init_device_mesh("cpu", (ranks,))

def train(name, policy, steps=4):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 10))
    plain = copy.deepcopy(model)
    for layer in (model[1], model[3]):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    models, gradients = [], []
    for t in range(steps):
        with torch.no_grad():
            for p, q in zip(plain.parameters(), model.parameters()):
                p.copy_(q.full_tensor())
        models.append(vector(plain))
        gradients.append(own(plain, [(0,)]))
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[:1]), y[:1]).backward()
        optimiser.step()
    kept[name] = {"models": torch.stack(models), "gradients": torch.stack(gradients)}

train("plain", MixedPrecisionPolicy())
train("bf16", MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
"""
    + END
)

AVERAGED = (
    BEGIN
    + """
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

torch.manual_seed(0)
model, averager = mlp(), PeriodicModelAverager(period=3, warmup_steps=0)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
models, sums, total = [], [], 0
for t in range(13):
    total = total + own(model, [(0,)])
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x[:1]), y[:1]).backward()
    optimiser.step()
    before = vector(model)
    averager.average_parameters(model.parameters())
    if not torch.equal(before, vector(model)):
        models.append(before)
        sums.append(total)
        total = 0
kept["models"], kept["sums"] = torch.stack(models), torch.stack(sums)
"""
    + END
)

REUSED = (
    BEGIN
    + """
sent = []
buffers = [torch.empty(51), torch.empty(51)]
for t in range(6):
    works = []
    theirs = [torch.empty(51), torch.empty(51)]
    for tag, buffer in enumerate(buffers):
        buffer.copy_(torch.randn(51, generator=random))
        sent.append((1 - rank, tag, buffer.clone()))
        works.append(dist.isend(buffer, 1 - rank, tag=tag))
    works += [dist.irecv(theirs[tag], 1 - rank, tag=tag) for tag in (1, 0)]
    for k in torch.randperm(4, generator=random).tolist():
        works[k].wait()
kept["sent"] = sent
"""
    + END
)

RESTARTED = (
    BEGIN
    + """
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
sent = []
for t in range(5):
    if attempt == 0 and rank == 1 and t == 2:
        os._exit(3)
    value = torch.full((650,), float(100 * attempt + 10 * rank + t))
    theirs = torch.empty(650)
    sent.append(value)
    works = [dist.isend(value, 1 - rank), dist.irecv(theirs, 1 - rank)]
    for work in works:
        work.wait()
kept["sent"] = torch.stack(sent)
"""
    + END
)

SILENT = (
    BEGIN
    + """
for t in range(3):
    dist.all_to_all_single(torch.empty(2 * ranks, dtype=torch.int64), torch.arange(2 * ranks) + t)
    dist.broadcast_object_list([{"epoch": t}])
"""
    + END
)


@dataclass(frozen=True)
class Run:
    """A tapped run: its folder and exit code, and what was printed."""

    folder: Path
    code: int

    @property
    def logs(self) -> tuple[RankLog, ...]:
        return read_logs(self.folder / "trace.tap")

    def kept(self, rank: int) -> Any:
        return torch.load(self.folder / f"kept{rank}.pt", weights_only=True)

    def merged(self, name: str, description: str, *options: str) -> la.Trace:
        """The trace of one description."""
        (self.folder / f"{name}.toml").write_text(description)
        path = self.folder / f"{name}.pt"
        arguments = [
            str(self.folder / "trace.tap"),
            "--describe",
            str(self.folder / f"{name}.toml"),
        ]
        arguments += ["-o", str(path), "--progress", "none", *options]
        assert main(["tap", "merge", *arguments]) == 0
        return trace_file.load(path)


def tapped(
    folder: Path, ranks: int, program: str, *options: str, torchrun: tuple[str, ...] = ()
) -> Run:
    """Run a program under the tap, in a folder of its own; the raw log is kept."""
    (folder / "program.py").write_text(program)
    before = Path.cwd()
    os.chdir(folder)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", *torchrun]
    try:
        command = [*launcher, "--nproc-per-node", str(ranks), "program.py"]
        return Run(folder, main(["tap", "--keep", *options, "--", *command]))
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Runs by program; each program runs once."""
    made: dict[str, Run] = {}

    def run(ranks: int, program: str) -> Run:
        if program not in made:
            made[program] = tapped(tmp_path_factory.mktemp("run"), ranks, program)
        return made[program]

    return run


def payloads(trace: la.Trace, kind: str) -> dict[tuple[int, int], Tensor]:
    """Payload by (round, src), for one kind of message."""
    found: dict[tuple[int, int], Tensor] = {}
    for m in trace.messages:
        for k in range(len(m)):
            if m.kinds[int(m.kind[k])] == kind:
                found[int(m.round[k]), int(m.src[k])] = m.payload[int(m.row[k])]
    return found


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def stream(name: str) -> str:
    return f'{MLP}[messages]\nstream = "model {STREAMS.index(name)}"\n'


def recovered(trace: la.Trace, run: Run) -> None:
    """An attack on single records returns the program's own image of each rank."""
    found = la.attack(la.leaks(trace), generator=Generator().manual_seed(0))
    assert len(found) == 2
    for one in found:
        assert psnr(one.x.float()[:1], run.kept(one.node)["x"][:1], data_range=1.0).min() >= 60


# --- DistributedDataParallel ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "accumulated", "static", "view", "autocast"])
def test_the_gradient_of_each_rank_is_recorded(runs: Callable[..., Run], name: str) -> None:
    run = runs(2, MODELS)
    assert run.code == 0
    trace = run.merged(name, stream(name))
    assert trace.complete
    assert trace.params["lr"] == 0.1
    for rank in range(2):
        own = run.kept(rank)[name]
        for t in range(3):
            assert relative(payloads(trace, "g")[t + 1, rank], own["gradients"][t]) < 1e-6
            assert torch.equal(payloads(trace, "w")[t + 1, 2], own["models"][t])
    if name == "plain":
        recovered(trace, run)


def test_unused_parameters_travel_as_zeros(runs: Callable[..., Run]) -> None:
    run = runs(2, MODELS)
    (run.folder / "branch.py").write_text(
        "from torch import nn\n\ndef build(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10))\n"
    )
    branch = MLP.replace('"mlp"', '"branch:build"').replace('args = { hidden = "32" }\n', "")
    trace = run.merged("unused", branch, "--trust-model", "branch:build")
    for rank in range(2):
        own = run.kept(rank)["unused"]["gradients"]
        for t in range(3):
            assert relative(payloads(trace, "g")[t + 1, rank], own[t]) < 1e-6
        spare = slice(64 * 32 + 32, 64 * 32 + 32 + 32 * 32)
        assert [bool(payloads(trace, "g")[t, rank][spare].any()) for t in (1, 2, 3)] == [
            False,
            True,
            False,
        ]


def test_only_parameters_that_travel_are_recorded(
    runs: Callable[..., Run], capfd: pytest.CaptureFixture[str]
) -> None:
    run = runs(2, MODELS)
    capfd.readouterr()
    trace = run.merged("frozen", stream("frozen"))
    first = 64 * 32 + 32
    assert trace.columns == (0, first)
    said = capfd.readouterr().err
    assert "2 of 4 parameters are in the messages; missing: layer2.weight, layer2.bias" in said
    for rank in range(2):
        own = run.kept(rank)["frozen"]
        for t in range(3):
            assert relative(payloads(trace, "g")[t + 1, rank], own["gradients"][t]) < 1e-6
            assert torch.equal(payloads(trace, "w")[t + 1, 2], own["models"][t][:first])
    recovered(trace, run)


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_compressed_gradient_is_recorded_as_it_travels(
    runs: Callable[..., Run], capfd: pytest.CaptureFixture[str], name: str, dtype: torch.dtype
) -> None:
    run = runs(2, MODELS)
    capfd.readouterr()
    trace = run.merged(name, stream(name))
    hook = "fp16_compress_hook" if name == "fp16" else "short"
    assert f"were sent by {hook} in {str(dtype).removeprefix('torch.')}" in capfd.readouterr().err
    for rank in range(2):
        own = run.kept(rank)[name]
        for t in range(3):
            held, exact = payloads(trace, "g")[t + 1, rank], own["gradients"][t]
            assert relative(held, exact) < 2 * torch.finfo(dtype).eps
            assert relative(held, exact) > 1e-6
            assert torch.equal((held / 2).to(dtype).float(), held / 2)
            assert torch.equal(payloads(trace, "w")[t + 1, 2], own["models"][t])


def test_factors_of_powersgd_are_not_taken_for_a_gradient(
    runs: Callable[..., Run], capfd: pytest.CaptureFixture[str]
) -> None:
    """Three steps travel in full. The factors of the others give the approximation of rank 2 that the program uses."""
    run = runs(2, MODELS)
    capfd.readouterr()
    trace = run.merged("powersgd", stream("powersgd"))
    held = payloads(trace, "g")
    assert sorted(held) == [(t, rank) for t in (1, 2, 3) for rank in range(2)]
    said = capfd.readouterr().err
    assert "4 omitted because of powerSGD_hook does not send it as it is" in said
    for (t, rank), value in held.items():
        assert relative(value, run.kept(rank)["powersgd"]["gradients"][t - 1]) < 1e-6
    shapes = ((10, 32), (32, 64))  # of the matrices, in the order in which DDP sends them
    for t in range(2):
        factors = {rank: _factors(run.logs[rank], t, shapes) for rank in range(2)}
        for k, span in enumerate((slice(2080, 2400), slice(0, 2048))):
            common = _orthogonal(factors[0][k][0] + factors[1][k][0])
            for rank in range(2):
                exact = run.kept(rank)["powersgd"]["gradients"][3 + t][span].view(shapes[k])
                approximation = common @ factors[rank][k][1].T
                assert relative(approximation, common @ (common.T @ exact)) < 1e-4
            mean = common @ (factors[0][k][1] + factors[1][k][1]).T / 2
            used = run.kept(0)["powersgd"]["averaged"][3 + t][span].view(shapes[k])
            assert relative(mean, used) < 1e-4


def _factors(
    log: RankLog, step: int, shapes: tuple[tuple[int, int], ...]
) -> list[tuple[Tensor, Tensor]]:
    """P (n, 2) and Q (m, 2) of each matrix in one of the steps in which factors travel."""
    events = [
        e
        for e in log.events
        if e.notes.get("hook") == "powerSGD_hook" and "parameters" not in e.notes
    ]
    parts = [log.tensor(e).flatten() for e in events]
    p = [part for part in parts if len(part) == 2 * sum(n for n, _ in shapes)][step]
    q = [part for part in parts if len(part) == 2 * sum(m for _, m in shapes)][step]
    ps = p.split([2 * n for n, _ in shapes])
    qs = q.split([2 * m for _, m in shapes])
    return [(one.view(-1, 2), other.view(-1, 2)) for one, other in zip(ps, qs, strict=True)]


def _orthogonal(matrix: Tensor) -> Tensor:
    """Gram and Schmidt's orthogonal columns."""
    first = matrix[:, 0] / matrix[:, 0].norm()
    second = matrix[:, 1] - (first @ matrix[:, 1]) * first
    return torch.stack([first, second / second.norm()], dim=1)


def test_what_a_hook_alters_is_not_taken_for_a_gradient(
    runs: Callable[..., Run], capfd: pytest.CaptureFixture[str]
) -> None:
    run = runs(2, MODELS)
    (run.folder / "noisy.toml").write_text(stream("noisy"))
    capfd.readouterr()
    log = str(run.folder / "trace.tap")
    path = run.folder / "noisy.pt"
    assert (
        main(["tap", "merge", log, "--describe", str(run.folder / "noisy.toml"), "-o", str(path)])
        == 3
    )
    assert "noisy does not send it as it is" in capfd.readouterr().err
    assert not path.exists()


def test_two_models_of_one_program_are_not_mixed(
    runs: Callable[..., Run], capfd: pytest.CaptureFixture[str]
) -> None:
    run = runs(2, TWO)
    assert run.code == 3  # no gradient is that of a single record, so the model must be named
    capfd.readouterr()
    trace = run.merged("critic", MLP)
    assert "belong to a model of another size" in capfd.readouterr().err
    for rank in range(2):
        for t in range(4):
            assert relative(payloads(trace, "g")[t + 1, rank], run.kept(rank)["critic"][t]) < 1e-5


# --- collective operations --------------------------------------------------------------------------------------------


def test_the_contribution_to_every_operation_is_recorded_with_its_group(
    runs: Callable[..., Run],
) -> None:
    run = runs(3, OPERATIONS)
    for log in run.logs:
        wanted = run.kept(log.rank)["sent"]
        events = [e for e in log.events if e.kept]
        assert [e.op for e in events] == [op for op, *_ in wanted]
        for event, (_, value, peer, lane) in zip(events, wanted, strict=True):
            assert torch.equal(log.tensor(event).flatten(), value)
            assert (event.peer, event.notes.get("lane", "")) == (peer, lane)
        assert [e.op for e in log.events if not e.kept] == ["allreduce"]
    groups = [e.notes["group"] for e in run.logs[0].events if "group" in e.notes]
    assert groups == [[0, 2]] * 4 + [[0, 1, 2]]


def test_messages_of_a_group_are_not_mixed_with_those_of_another(runs: Callable[..., Run]) -> None:
    run = runs(3, OPERATIONS)
    name = next(e.notes["lane"] for e in run.logs[0].events if e.notes.get("group") == [0, 2])
    model = 'payload = "gradients"\n[model]\nname = "logistic"\nshape = [74]\nclasses = 2\n'
    trace = run.merged("group", f'{model}[messages]\nstream = "{name}"\nserver = 1\n')
    held = payloads(trace, "g")
    for node, rank in enumerate((0, 2)):
        wanted = [
            v for op, v, _, lane in run.kept(rank)["sent"] if op == "allreduce" and lane == name
        ]
        assert [t for t, src in sorted(held) if src == node] == [1, 2, 3]
        assert all(torch.equal(held[t + 1, node], v) for t, v in enumerate(wanted))


def test_the_gradient_of_a_sharded_model_is_recorded_with_its_parameters(
    runs: Callable[..., Run],
) -> None:
    run = runs(2, SHARDED)
    assert run.code == 0
    described = MLP.replace('"32"', '"33"')
    for number, name in enumerate(("plain", "bf16")):
        trace = run.merged(name, f'{described}[messages]\nstream = "fsdp {number}"\n')
        assert trace.complete
        for rank in range(2):
            own = run.kept(rank)[name]
            for t in range(4):
                held, exact = payloads(trace, "g")[t + 1, rank], own["gradients"][t]
                rounded = exact.bfloat16() if name == "bf16" else exact
                assert relative(held, rounded) < (1e-6 if name == "plain" else 2e-3)
                assert torch.equal(payloads(trace, "w")[t + 1, 2], own["models"][t])
        if name == "plain":
            recovered(trace, run)


# --- averages of models -----------------------------------------------------------------------------------------------


def test_averages_of_models_are_not_named_without_their_local_steps(
    runs: Callable[..., Run], capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    run = runs(2, AVERAGED)
    assert run.code == 3
    assert "to be filled in: protocol" in capfd.readouterr().err
    described = MLP.replace("gradients", "weights").replace(
        "[model]", 'protocol = "fedavg"\n[params]\nlr = 0.1\nepochs = 3\nsamples = 1\n[model]'
    )
    described = f"{described}[messages]\nscale = 2.0\n"
    trace = run.merged("averaged", described)
    for rank in range(2):
        own = run.kept(rank)
        for t, model in enumerate(own["models"]):
            assert torch.equal(payloads(trace, "up")[t + 1, rank], model)
    # What the ranks do with the average is not in the messages.
    assert not la.leaks(trace)
    trace = run.merged("described", described.replace("lr = 0.1", 'lr = 0.1\nserver = "mean"'))
    found = la.leaks(trace)
    assert len(found) == 2
    for leak in found:
        # From the second average on, the start of the local steps is the mean of the first one.
        sums = run.kept(leak.node)["sums"].double()
        values = torch.linalg.pinv(leak.combination) @ leak.value
        for t, value in zip(leak.theta_rounds.tolist(), values, strict=True):
            assert relative(value, sums[t - 1]) < 1e-4


LOCAL = (
    BEGIN
    + """
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

pair, alone = dist.new_group([0, 1]), dist.new_group([2])
ddp = DistributedDataParallel(mlp())
state = PostLocalSGDState(process_group=None, subgroup=pair if rank < 2 else alone, start_localSGD_iter=2)
ddp.register_comm_hook(state, post_localSGD_hook)
averager = PeriodicModelAverager(period=2, warmup_steps=2)
optimiser = torch.optim.SGD(ddp.parameters(), lr=0.1)
gradients = []
for t in range(5):
    gradients.append(own(ddp.module, [(0,)]))
    optimiser.zero_grad()
    nn.functional.cross_entropy(ddp(x[:1]), y[:1]).backward()
    optimiser.step()
    averager.average_parameters(ddp.parameters())
kept["gradients"] = torch.stack(gradients)
"""
    + END
)


def test_gradients_and_averages_of_models_of_one_program_are_not_mixed(
    runs: Callable[..., Run], capfd: pytest.CaptureFixture[str]
) -> None:
    """From the third step on, ranks 0 and 1 average their gradients, and rank 2 sends none."""
    run = runs(3, LOCAL)
    capfd.readouterr()
    trace = run.merged("local", MLP)
    said = capfd.readouterr().err
    assert "messages of the same size (allreduce) are of another kind" in said
    assert "process group of some ranks only ([0, 1])" in said
    held = payloads(trace, "g")
    for rank in range(3):
        steps = [t for t, src in sorted(held) if src == rank]
        assert steps == ([1, 2] if rank == 2 else [1, 2, 3, 4, 5])
        for t in steps:
            assert relative(held[t, rank], run.kept(rank)["gradients"][t - 1]) < 1e-6


# --- point to point ---------------------------------------------------------------------------------------------------


def test_a_buffer_that_is_used_again_was_recorded_before(runs: Callable[..., Run]) -> None:
    run = runs(2, REUSED)
    for log in run.logs:
        wanted = run.kept(log.rank)["sent"]
        events = [e for e in log.events if e.op == "send"]
        assert [(e.peer, e.tag) for e in events] == [(peer, tag) for peer, tag, _ in wanted]
        assert all(
            torch.equal(log.tensor(e), v) for e, (_, _, v) in zip(events, wanted, strict=True)
        )


def test_the_trace_of_a_restarted_program_is_that_of_the_last_attempt(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With the launcher's own store, the second attempt of any gloo program waits forever.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    (tmp_path / "tap.toml").write_text(
        'payload = "weights"\nfirst = "update"\n[params]\nalpha = 0.1\n[model]\nname = "logistic"\nshape = [1, 8, 8]\nclasses = 10\n'
    )
    run = tapped(tmp_path, 2, RESTARTED, "--describe", "tap.toml", torchrun=("--max-restarts", "1"))
    assert run.code == 0
    assert (
        "the program was started 2 times: the trace contains the last attempt"
        in capfd.readouterr().err
    )
    trace = trace_file.load(tmp_path / "trace.pt")
    assert trace.complete
    held = payloads(trace, "w")
    assert len(held) == 10
    for rank in range(2):
        for t, value in enumerate(run.kept(rank)["sent"]):
            assert torch.equal(held[t + 1, rank], value)


# --- some of the parameters -------------------------------------------------------------------------------------------

ONE = (
    BEGIN
    + """
torch.manual_seed(0)
ddp = DistributedDataParallel(mlp(), bucket_cap_mb=0.001)
optimiser = torch.optim.SGD(ddp.parameters(), lr=0.1)
gradients = []
for t in range(3):
    gradients.append(own(ddp.module, [(0,)]))
    optimiser.zero_grad()
    nn.functional.cross_entropy(ddp(x[:1]), y[:1]).backward()
    optimiser.step()
kept["gradients"] = torch.stack(gradients)
"""
    + END
)


@pytest.mark.parametrize(
    ("layers", "columns"), [("first", (0, 2080)), ("3.*", (2080, 2410)), ("1.weight", (0, 2048))]
)
def test_only_chosen_parameters_are_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], layers: str, columns: tuple[int, int]
) -> None:
    run = tapped(tmp_path, 2, ONE, "--layers", layers)
    assert run.code == 3  # a part of a model is not guessed
    assert "model.name" in capfd.readouterr().err
    trace = run.merged("some", MLP)
    assert trace.columns == columns
    assert "of 4 parameters were recorded (--layers)" in capfd.readouterr().err
    for rank in range(2):
        for t, value in enumerate(run.kept(rank)["gradients"]):
            assert relative(payloads(trace, "g")[t + 1, rank], value[slice(*columns)]) < 1e-6
    size = sum(log.path.with_suffix(".bin").stat().st_size for log in run.logs)
    assert size < 3 * 3 * 4 * (columns[1] - columns[0]) + 3 * 3 * 16 * 4
    if layers == "first":
        recovered(trace, run)


def test_the_first_layer_of_models_that_are_exchanged_reveals_the_records(
    tmp_path: Path, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = project / "examples" / "tap"
    program = tmp_path / "ring.py"
    program.write_text((here / "dpsgd_ring.py").read_text())
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "4",
        ]
        options = [
            "--describe",
            str(here / "dpsgd.toml"),
            "--layers",
            "first",
            "--max-bytes",
            "1e8",
        ]
        command = [*torchrun, "ring.py", "--rounds", "4", "--save", "records.npz"]
        assert main(["tap", *options, "--", *command]) == 0
    finally:
        os.chdir(before)
    said = capfd.readouterr().err
    assert "a message takes 321 kB on the disk (float32); 100 MB hold 312 of all processes" in said
    trace = trace_file.load(tmp_path / "trace.pt")
    assert trace.columns == (0, 626 * 128)
    with np.load(tmp_path / "records.npz") as file:
        x, node = torch.from_numpy(file["x"]), torch.from_numpy(file["node"])
    found = la.attack(la.leaks(trace), generator=Generator().manual_seed(0))
    assert len(found) == 4
    for one in found:
        assert psnr(one.x.float(), x[node == one.node], data_range=1.0).min() >= 60


def test_a_choice_of_parameters_that_do_not_exist_is_code_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tap.toml").write_text(MLP)
    options = ["--describe", str(tmp_path / "tap.toml"), "--layers", "layer9"]
    assert main(["tap", "-o", str(tmp_path / "trace.pt"), *options, "--", "true"]) == 2
    assert (
        "--layers: no parameter matches ['layer9']; the model has layer1.weight"
        in capfd.readouterr().err
    )
    assert not (tmp_path / "trace.tap").exists()


# --- nothing that is understood ---------------------------------------------------------------------------------------


def test_a_program_that_sends_nothing_understood_is_code_3_and_names_its_operations(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tapped(tmp_path, 2, SILENT)
    assert run.code == 3
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "alltoall" in line]
    assert "alltoall int64: 6 tensors" in line
    assert "broadcast" in line
    assert not (tmp_path / "trace.pt").exists()
