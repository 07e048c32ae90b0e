"""The sketch of the parameters that a tap leaves out.

What it is, and what it proves of programs whose middle layers differ.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import shake_128
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.capture.fitting.sketch import ROWS, WIDTH, ModelSketch, RecordedPart, deviation
from leakaudit.capture.tap.guessing.guess import guess
from leakaudit.capture.tap.log.capture import Capture, CaptureSettings
from leakaudit.capture.tap.log.layers import LARGE, REST, SKETCHED, flat, select
from leakaudit.capture.tap.log.reading import RankLog, read_logs
from leakaudit.capture.tap.messages import description
from leakaudit.cli import main
from leakaudit.scoring.metrics import psnr
from leakaudit.tasks.models import MODELS
from leakaudit.traces import trace_file

SIZES = (600, 40, 256 * 9, 1, 5000)


def vectors(count: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    random = Generator().manual_seed(0)
    return [torch.randn(sum(SIZES), generator=random, dtype=dtype) for _ in range(count)]


def sketched(vector: Tensor, seed: int = 0) -> Tensor:
    """The sketch of all parameters."""
    sketch = ModelSketch(SIZES, seed)
    total: Tensor | None = None
    for place, part in enumerate(vector.split(SIZES)):
        total = sketch.added(total, place, part)
    assert total is not None
    return total


# --- the map --------------------------------------------------------------------------------------


def test_the_sketch_is_the_documented_sum() -> None:
    """Entry by entry, with the bits of SHAKE128."""
    (x,) = vectors(1)
    heights = [-(-size // WIDTH) for size in SIZES]
    digest = shake_128(b"leakaudit sketch 7").digest(ROWS * sum(heights))
    bits = "".join(f"{byte:08b}" for byte in digest)
    expected = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    row = 0
    for part, height in zip(x.split(SIZES), heights, strict=True):
        for k, number in enumerate(part.tolist()):
            for r in range(ROWS):
                sign = 1 if bits[r * sum(heights) + row + k // WIDTH] == "1" else -1
                expected[r, k % WIDTH] += sign * number
        row += height
    torch.testing.assert_close(sketched(x, 7), expected, rtol=0, atol=1e-11)


def test_the_sketch_is_linear_and_depends_on_the_seed() -> None:
    x, y = vectors(2)
    torch.testing.assert_close(sketched(2 * x - 3 * y), 2 * sketched(x) - 3 * sketched(y))
    assert not torch.equal(sketched(x, 1), sketched(x, 2))


def test_the_sketch_is_about_as_long_as_the_vector() -> None:
    """E |S x|^2 = ROWS |x|^2, even if x is aligned with the rows."""
    x = vectors(1)[0]
    aligned = torch.zeros_like(x)
    aligned[-5000 : -5000 + 19 * WIDTH] = torch.ones(19 * WIDTH)
    for vector in (x, aligned):
        ratios = [
            float(sketched(vector, s).square().sum() / vector.square().sum()) for s in range(200)
        ]
        assert abs(sum(ratios) / len(ratios) / ROWS - 1) < 0.15
        assert min(ratios) / ROWS > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_sums_are_rounded_little(dtype: torch.dtype) -> None:
    x = vectors(1)[0].to(dtype)
    exact = sketched(x.double())
    found = sketched(x)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert float((found.double() - exact).norm() / exact.norm()) < 1e-6


def test_parameters_may_come_in_any_order() -> None:
    x = vectors(1)[0]
    sketch = ModelSketch(SIZES, 0)
    parts = x.split(SIZES)
    total: Tensor | None = None
    for place in (4, 0, 2, 3, 1):
        total = sketch.added(total, place, parts[place])
    torch.testing.assert_close(total, sketched(x))


def test_a_small_difference_in_the_middle_is_found_and_rounding_is_not() -> None:
    x = vectors(1)[0]
    kept = torch.zeros(len(x), dtype=torch.bool)
    kept[:600] = True
    begin = 640
    others = {2: slice(begin, begin + SIZES[2]), 4: slice(begin + SIZES[2] + 1, len(x))}
    part = RecordedPart(kept, others, ModelSketch(SIZES, 3), torch.zeros(ROWS, WIDTH))
    part = RecordedPart(kept, others, part.sketch, part.of(x))
    rounded = deviation(0.5 * x, (0.5 * x).float(), part)
    assert rounded.kept < 1e-6
    wrong = x.clone()
    wrong[begin : begin + SIZES[2]] *= 1.1
    found = deviation(x, wrong, part)
    assert found.kept == 0
    true = float((wrong - x)[~kept].norm() / x[~kept].norm())
    assert 0.5 * true < found.rest < 2 * true


# --- the choice -----------------------------------------------------------------------------------


def test_the_default_depends_on_the_size() -> None:
    names = ["a.weight", "a.bias", "b.weight", "c.weight", "c.bias"]
    assert select(names, [10, 2, LARGE - 24, 10, 2], None) is None
    large = select(names, [10, 2, LARGE, 10, 2], None)
    assert large is not None
    assert (large.kept, large.sketch is not None) == (frozenset({0, 1, 3, 4}), True)
    assert select(names, [10, 2, LARGE, 10, 2], ["all"]) is None
    assert select(names, [LARGE, 2, 10, 10, 2], None) is None  # the rest is shorter than a sketch
    plain = select(names, [10, 2, 5000, 10, 2], ["b"])
    assert plain is not None
    assert (plain.kept, plain.sketch) == (frozenset({2}), None)


def test_parameters_that_do_not_travel_do_not_count() -> None:
    names = ["a.weight", "b.weight", "c.weight", "d.weight"]
    assert select(names, [10 * LARGE, 100, 5000, 100], None, 0, [1, 2, 3]) is None
    found = select(names, [10 * LARGE, 100, 2 * LARGE, 100], None, 0, [1, 2, 3])
    assert found is not None
    assert found.kept == frozenset({1, 3})


def test_layers_are_found_whatever_the_axes_of_their_kernels() -> None:
    values = tomllib.loads(MODEL)
    order = [f"layer{k}.{name}" for k in range(1, 5) for name in ("bias", "weight.T")]
    values["messages"] = {"order": order}
    described = description.of(values)
    found = select(described.names, described.sizes[:-1], ["first", "last", "sketch"])
    assert found is not None
    assert found.kept == frozenset({0, 1, 6, 7})


def test_a_sketch_alone_is_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["-o", str(tmp_path / "trace.pt"), "--layers", "sketch"]
    assert main(["tap", *options, "--", "true"]) == 2
    assert "name some to record, e.g. --layers first,last,sketch" in capfd.readouterr().err
    assert not (tmp_path / "trace.tap").exists()


def test_a_model_that_is_sent_one_parameter_at_a_time_has_one_sketch(tmp_path: Path) -> None:
    sizes = [30, 5000, 40, 7]
    capture = Capture(
        str(tmp_path),
        CaptureSettings(
            layers=["a", "c", "sketch"],
            names=["a", "b", "b2", "c"],
            sizes=[*sizes, sum(sizes)],
            seed=5,
        ),
        rank=0,
    )
    random = Generator().manual_seed(0)
    messages = [[torch.randn(size, generator=random) for size in sizes] for _ in range(3)]
    for message in messages:
        for part in message:
            capture.event("send", part, peer=1)
    capture.event("send", torch.cat(messages[0]), peer=2)
    capture.event("send", torch.cat(messages[1]), peer=2)
    capture.end()
    (log,) = read_logs(tmp_path)
    rest = [event for event in log.events if REST in event.notes]
    kinds = [(event.peer, event.notes[REST]) for event in rest]
    assert kinds == [
        (1, "whole"),
        (1, "whole"),
        (1, "sketch"),
        (1, "sketch"),
        (2, "whole"),
        (2, "sketch"),
    ]
    assert torch.equal(log.tensor(rest[0]), messages[0][1])
    sketch = ModelSketch(sizes, 5)
    total = sketch.added(None, 1, messages[1][1])
    total = sketch.added(total, 2, messages[1][2])
    assert torch.equal(log.tensor(rest[2]), total)
    assert torch.equal(log.tensor(rest[5]), total)
    assert rest[2].notes["parameters"] == [1, 2]


def test_only_the_first_messages_are_sketched_from_the_first_round_that_is_kept(
    tmp_path: Path,
) -> None:
    names = ["a", "b", "c"]
    sizes = [30, 5000, 7]
    capture = Capture(
        str(tmp_path),
        CaptureSettings(
            layers=["a", "c", "sketch"],
            rounds=(4, 90),
            names=names,
            sizes=[*sizes, sum(sizes)],
        ),
        rank=0,
    )
    for t in range(30):
        capture.event("send", torch.full((sum(sizes),), float(t)), peer=1)
    capture.end()
    (log,) = read_logs(tmp_path)
    kept = [event for event in log.events if event.kept]
    rest = [event for event in kept if REST in event.notes]
    assert [event.notes[REST] for event in rest] == ["whole"] + ["sketch"] * (SKETCHED - 1)
    assert float(log.tensor(rest[0])[0]) == 3  # the first round is 1
    assert len(kept) - len(rest) == 27


# --- programs -------------------------------------------------------------------------------------

BEGIN = """
import sys
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
random = torch.Generator().manual_seed(rank)
x, y = torch.rand(1, 1, 8, 8, generator=random), torch.randint(10, (1,), generator=random)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Flatten(),
    nn.Linear(64, 32),
    nn.ReLU(),
    nn.Linear(32, 48),
    nn.ReLU(),
    nn.Linear(48, 24),
    nn.ReLU(),
    nn.Linear(24, 10),
)
"""
END = """
torch.save({"x": x, "y": y}, f"kept{rank}.pt")
dist.destroy_process_group()
"""
AVERAGED = """
from torch.nn.parallel import DistributedDataParallel

if sys.argv[1] == "altered":
    # What it sends of a middle layer changes; its first and last layers are those of the model.
    model[3].weight.register_hook(lambda g: g * 1.2)
if sys.argv[1] == "swapped":
    model[5].weight.register_hook(lambda g: g.flip(0))
ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
optimiser = torch.optim.SGD(ddp.parameters(), lr=0.1)
for t in range(4):
    optimiser.zero_grad()
    nn.functional.cross_entropy(ddp(x), y).backward()
    optimiser.step()
"""
PROGRAM = BEGIN + AVERAGED + END
MODEL = """
payload = "gradients"
[params]
samples = 1
[model]
name = "mlp"
args = { hidden = "32,48,24" }
shape = [1, 8, 8]
classes = 10
"""
SPEC = la.TaskSpec("mlp", {"hidden": "32,48,24"}, shape=(1, 8, 8), classes=10)
TASK = la.Task.build(SPEC)


@dataclass(frozen=True)
class Run:
    """A tapped run: its folder and what was said."""

    folder: Path
    said: str

    @property
    def logs(self) -> tuple[RankLog, ...]:
        return read_logs(self.folder / "trace.tap")

    def merge(self, description: str, output: str = "again.pt") -> int:
        (self.folder / "tap.toml").write_text(description)
        options = ["--describe", str(self.folder / "tap.toml"), "-o", str(self.folder / output)]
        return main(["tap", "merge", str(self.folder / "trace.tap"), *options])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Runs of the program, by what it does to its middle layers."""
    made: dict[str, Run] = {}

    def run(kind: str) -> Run:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            made[kind] = tapped(folder, PROGRAM, [kind], "--layers", "first,last,sketch")
        return made[kind]

    return run


def tapped(folder: Path, program: str, arguments: list[str], *options: str) -> Run:
    """Run a program on two ranks under the tap, in a folder of its own."""
    (folder / "program.py").write_text(program)
    before = Path.cwd()
    os.chdir(folder)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", "2", "program.py", *arguments]
    with pytest.MonkeyPatch.context() as patched:
        said: list[str] = []
        patched.setattr(sys.stderr, "write", said.append)
        try:
            main(["tap", "--keep", *options, "--", *command])
        finally:
            os.chdir(before)
    return Run(folder, "".join(said))


@pytest.mark.slow
def test_the_right_model_is_confirmed_by_the_sketch_of_its_middle(
    runs: Callable[[str], Run], capfd: pytest.CaptureFixture[str]
) -> None:
    run = runs("plain")
    found = guess(run.logs, TASK)
    assert any(
        "the recorded parameters and the sketch of the others up to" in line
        for line in found.evidence
    )
    assert found.description is not None
    capfd.readouterr()
    assert run.merge(MODEL) == 0
    said = capfd.readouterr().err
    assert (
        "2 recomputed gradients equal the recorded parameters, and the sketch of the others up to"
        in said
    )
    assert "4 of 8 parameters were recorded (--layers)" in said
    assert "optimiser, of the recorded parameters and by their sketch of the others: sgd" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["altered", "swapped"])
def test_what_differs_only_in_the_middle_is_refused(
    runs: Callable[[str], Run], capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    run = runs(kind)
    found = guess(run.logs, TASK)
    assert found.description is None
    assert "model.name" in found.said
    capfd.readouterr()
    assert run.merge(MODEL) == 2
    said = capfd.readouterr().err
    assert "equals the recorded parameters to" in said
    assert "misses the sketch of the others by" in said
    assert not (run.folder / "again.pt").exists()


@pytest.mark.slow
def test_a_middle_layer_with_a_step_of_its_own_is_found_by_its_sketch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The gradients are those of the model; only the step of a left-out layer is another."""
    others = ", ".join(f"*model[{k}].parameters()" for k in (1, 5, 7))
    groups = f"[{{'params': model[3].parameters(), 'lr': 0.3}}, {{'params': [{others}]}}]"
    program = PROGRAM.replace("SGD(ddp.parameters()", f"SGD({groups}")
    run = tapped(tmp_path, program, ["plain"], "--layers", "first,last,sketch")
    capfd.readouterr()
    assert run.merge(MODEL) == 0
    said = capfd.readouterr().err
    assert "2 recomputed gradients equal the recorded parameters" in said
    assert (
        "of the recorded parameters (the others follow another step, as their sketch shows): "
        "sgd, step size 0.1" in said
    )


@pytest.mark.slow
def test_clipping_is_not_taken_for_a_schedule_if_only_some_parameters_are_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 0.5); optimiser.step()"
    program = PROGRAM.replace("optimiser.step()", clip)
    run = tapped(tmp_path, program, ["plain"], "--layers", "first,last,sketch")
    capfd.readouterr()
    assert run.merge(MODEL) == 0
    said = capfd.readouterr().err
    assert "the server's optimiser is not known" in said
    assert "step size" not in said.replace("a changing step size look alike", "")
    assert trace_file.load(run.folder / "again.pt").params["server"] == "unknown"


@pytest.mark.slow
def test_another_seed_is_not_confirmed(runs: Callable[[str], Run], tmp_path: Path) -> None:
    """The seed of the log is used: with another one, a correct sketch is that of another vector."""
    run = runs("plain")
    for path in (run.folder / "trace.tap").iterdir():
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(content.replace(b'"seed":0', b'"seed":1'))
    assert guess(read_logs(tmp_path), TASK).description is None


@pytest.mark.slow
def test_the_first_and_the_last_layer_are_attacked_in_traces_of_their_own(
    runs: Callable[[str], Run],
) -> None:
    run = runs("plain")
    assert run.merge(MODEL, "both.pt") == 0
    first = trace_file.load(run.folder / "both.pt")
    last = trace_file.load(run.folder / "both-layer4.pt")
    assert first.columns == (0, 64 * 32 + 32)
    assert last.columns[1] - last.columns[0] == 24 * 10 + 10
    kept = [torch.load(run.folder / f"kept{rank}.pt", weights_only=True) for rank in range(2)]
    found = la.attack(la.leaks(first), generator=Generator().manual_seed(0))
    assert len(found) == 2
    for one in found:
        assert psnr(one.x.float()[:1], kept[one.node]["x"], data_range=1.0).min() >= 60
    labels = la.attack(la.leaks(last), "labels", generator=Generator().manual_seed(0))
    assert len(labels) == 2
    for one in labels:
        assert one.y is not None
        assert set(one.y.tolist()) == set(kept[one.node]["y"].tolist())


@pytest.mark.slow
def test_every_message_costs_what_was_stated(runs: Callable[[str], Run]) -> None:
    run = runs("plain")
    kept = 64 * 32 + 32 + 24 * 10 + 10
    whole = kept + 32 * 48 + 48 + 48 * 24 + 24
    assert (
        f"model 0: {kept:,} of {whole:,} parameters are recorded" not in run.said
    )  # another process says it
    sizes = {log.rank: log.path.with_suffix(".bin").stat().st_size for log in run.logs}
    message = 4 * (kept + ROWS * WIDTH)
    assert sizes[1] <= 4 * (message + 5 * 16)
    assert sizes[0] <= 4 * whole + (3 + 4) * message + 16 * 50


# --- the default ----------------------------------------------------------------------------------

LARGER = (
    PROGRAM.replace("nn.Linear(32, 48)", "nn.Linear(32, 4000)")
    .replace("nn.Linear(48, 24)", "nn.Linear(4000, 240)")
    .replace("nn.Linear(24, 10)", "nn.Linear(240, 10)")
    .replace("bucket_cap_mb=0.001", "bucket_cap_mb=1")
)


@pytest.mark.slow
def test_by_default_a_large_model_is_cut_and_confirmed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tapped(tmp_path, LARGER, ["plain"])
    said = run.said + capfd.readouterr().err
    assert "at most 4 GB of messages are recorded (--max-bytes)" in said
    assert "of models with more than 1,000,000 parameters, the first and the last layer" in said
    assert (
        "model 0: 4,490 of 1,096,730 parameters are recorded (1.weight, 1.bias, 7.weight, 7.bias)"
        in said
    )
    assert "attacks that match whole gradients need --layers all; a message takes 0.0221 MB" in said
    assert run.merge(MODEL.replace("32,48,24", "32,4000,240")) == 0
    assert "2 recomputed gradients equal the recorded parameters" in capfd.readouterr().err


@pytest.mark.slow
def test_all_records_everything(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tapped(tmp_path, LARGER, ["plain"], "--layers", "all")
    assert "model 0: all 1,096,730 parameters are recorded" in capfd.readouterr().err
    assert run.merge(MODEL.replace("32,48,24", "32,4000,240")) == 0
    assert trace_file.load(run.folder / "again.pt").columns == (0, 1_096_730)


def test_a_resnet_keeps_its_first_and_last_layer() -> None:
    model: Any = MODELS["resnet18"]()((3, 32, 32), 10)
    named_parameters = list(model.named_parameters())
    found = select(
        [name for name, _ in named_parameters], [p.numel() for _, p in named_parameters], None
    )
    assert found is not None
    kept = sorted(found.names[place] for place in found.kept)
    assert len(kept) == 3
    assert found.numbers < 20_000


# --- models that a program sends itself, and FSDP2 ------------------------------------------------

EXCHANGED = """
w = nn.utils.parameters_to_vector(model.parameters()).detach()
for t in range(4):
    theirs = torch.empty_like(w)
    for work in [dist.isend(w, 1 - rank), dist.irecv(theirs, 1 - rank)]:
        work.wait()
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    gradients = [p.grad for p in model.parameters()]
    if sys.argv[1] == "altered":
        gradients[2] *= 1.2
    w = (w + theirs) / 2 - 0.1 * torch.cat([g.flatten() for g in gradients])
    nn.utils.vector_to_parameters(w, model.parameters())
"""
EXCHANGE = BEGIN + EXCHANGED + END
WEIGHTS = MODEL.replace("gradients", "weights").replace(
    "[params]", '[params]\nalpha = 0.1\norder = "combine"'
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "altered"])
def test_models_that_a_program_sends_itself_are_confirmed_or_refused(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "told.toml").write_text(WEIGHTS)
    options = ["--describe", "told.toml", "--layers", "first,last,sketch"]
    run = tapped(tmp_path, EXCHANGE, [kind], *options)
    said = run.said
    if kind == "altered":
        assert "misses the sketch of the others by" in said
        assert not (run.folder / "trace.pt").exists()
        return
    assert "2 recomputed gradients equal the recorded parameters, and the sketch" in said
    found = la.attack(
        la.leaks(trace_file.load(run.folder / "trace.pt")), generator=Generator().manual_seed(0)
    )
    assert len(found) == 2
    for one in found:
        x = torch.load(run.folder / f"kept{one.node}.pt", weights_only=True)["x"]
        assert psnr(one.x.float()[:1], x, data_range=1.0).min() >= 60


STEPS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cpu", (2,))
for layer in (model[1], model[3], model[5]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for t in range(4):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()
"""
SHARDED = BEGIN + STEPS + END


@pytest.mark.slow
def test_a_sharded_model_is_confirmed_by_its_sketch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tapped(tmp_path, SHARDED, ["plain"], "--layers", "first,last,sketch")
    capfd.readouterr()
    assert run.merge(MODEL) == 0
    said = capfd.readouterr().err
    assert "2 recomputed gradients equal the recorded parameters, and the sketch" in said
    assert "optimiser, of the recorded parameters and by their sketch of the others: sgd" in said


def test_neighbours_in_memory_are_one_vector_without_a_copy() -> None:
    whole = torch.arange(12.0)
    shares = [whole[2:6].view(2, 2), whole[6:6], whole[6:11]]
    apart = [whole[2:6], whole[7:11]]
    crossed = [whole[6:8], whole[2:6]]
    turned = [whole[:4].view(2, 2).T, whole[4:6]]
    for parts in (shares, apart, crossed, turned, [torch.ones(2), whole[2:4]]):
        assert torch.equal(flat(parts), torch.cat([part.reshape(-1) for part in parts]))
    assert flat(shares).data_ptr() == whole[2:].data_ptr()
