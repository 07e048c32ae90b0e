"""Programs whose ranks use several records, or new ones in every step: what the tap writes of them
is no more than their messages show. The logs are written here, by the programs' own arithmetic.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.capture.tap import merge
from leakaudit.capture.tap.guessing import origins
from leakaudit.capture.tap.guessing.explanation import explain
from leakaudit.capture.tap.guessing.guess import Guess, guess
from leakaudit.capture.tap.guessing.observed import collect
from leakaudit.capture.tap.log.reading import RankLog, read_logs
from leakaudit.capture.tap.log.writing import Log
from leakaudit.capture.tap.messages import description, wires
from leakaudit.core.evidence import Origin
from leakaudit.core.trace import Trace
from leakaudit.tasks.task import Task
from leakaudit.views.conformance import conformance

TASK = Task.build(
    la.TaskSpec("mlp", {"hidden": "6"}, shape=(1, 4, 4), classes=3), dtype=torch.float64
)
MODEL: dict[str, Any] = {"name": "mlp", "args": {"hidden": "6"}, "shape": [1, 4, 4], "classes": 3}
TASK_SIZES = [part.stop - part.start for part in TASK.layout.slices.values()]
CLIP, NOISE, LR, STEPS, BATCH = 0.5, 0.2, 0.1, 6, 4

Write = Callable[[Sequence[Log]], None]


def logged(folder: Path, ranks: int, write: Write) -> tuple[RankLog, ...]:
    """The log of a program with some ranks."""
    logs = [Log(folder, k, world=ranks) for k in range(ranks)]
    write(logs)
    for log in logs:
        log.close()
    return read_logs(folder)


def trace_of(found: description.MessageDescription, logs: Sequence[RankLog], path: Path) -> Trace:
    """The trace of a log, as written to the disk."""
    merge.write(wires.plan(found, logs), logs, path)
    return la.load(path)


def shuffled(rank: int, batch: int, owned: int = 12) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a rank's records, each epoch in a new order."""
    random = Generator().manual_seed(rank)
    x = torch.randint(256, (owned, 1, 4, 4), generator=random).double() / 255
    y = torch.randint(3, (owned,), generator=random)
    while True:
        order = torch.randperm(owned, generator=random)
        for some in order[: owned - owned % batch].split(batch):
            yield x[some], y[some]


def start() -> Tensor:
    return TASK.init(Generator().manual_seed(1))


def payloads(trace: Trace, kind: str) -> dict[tuple[int, int], Tensor]:
    """Round and sender -> payload."""
    (m,) = trace.messages
    return {
        (int(m.round[k]), int(m.src[k])): m.payload[int(m.row[k])]
        for k in range(len(m))
        if m.kinds[int(m.kind[k])] == kind
    }


# --- a factor of the gradients --------------------------------------------------------


def private(kept: dict[str, list[Tensor]]) -> Write:
    """Two ranks that add up clipped gradients of four records each, as Opacus does: rank 0 adds the
    noise, each rank divides by its batch, the sum is divided by the ranks.
    """

    def write(logs: Sequence[Log]) -> None:
        w = start()
        data = [shuffled(rank, BATCH) for rank in range(2)]
        random = Generator().manual_seed(7)
        about: dict[str, Any] = {"lane": "opacus 0", "last": True, "of": 4, "sizes": TASK_SIZES}
        about["parameters"] = [0, 1, 2, 3]
        for t in range(STEPS):
            kept.setdefault("w", []).append(w)
            logs[0].write("model", w, at=t, **about)
            sent = []
            for rank, log in enumerate(logs):
                x, y = next(data[rank])
                each = TASK.gradients(w.repeat(BATCH, 1), x[:, None], y[:, None])
                total = (each * (CLIP / each.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
                noise = torch.zeros_like(total)
                if rank == 0:
                    noise = CLIP * NOISE * torch.randn(len(w), generator=random, dtype=w.dtype)
                stated: dict[str, Any] = {
                    "noise_multiplier": NOISE,
                    "max_grad_norm": CLIP,
                    "divisor": float(BATCH),
                }
                size = float(noise.square().mean().sqrt())
                kept.setdefault(f"sum {rank}", []).append(total + noise)
                sent.append((total + noise) / BATCH)
                log.write("opacus", sent[-1], at=t, records=BATCH, noise=size, **about, **stated)
            w = w - LR * torch.stack(sent).mean(0)

    return write


def test_sums_over_a_batch_are_scaled_and_the_models_are_not(tmp_path: Path) -> None:
    kept: dict[str, list[Tensor]] = {}
    logs = logged(tmp_path / "log", 2, private(kept))
    named = Task.build(TASK.spec)
    found = guess(logs, named)
    assert found.description is not None
    assert found.description.scale == BATCH
    trace = trace_of(found.description, logs, tmp_path / "trace.pt")
    assert torch.equal(trace.public["w0"], kept["w"][0])
    models = payloads(trace, "w")
    sums = payloads(trace, "g")
    for t in range(STEPS):
        assert torch.equal(models[t + 1, 2], kept["w"][t])
        for rank in range(2):
            assert torch.allclose(sums[t + 1, rank], kept[f"sum {rank}"][t], atol=1e-12)
    assert trace.params["lr"] == pytest.approx(LR / BATCH)
    assert conformance.examine(trace, None).sentences == []


@pytest.mark.parametrize("scale", [3.0, -1.0])
def test_models_that_nodes_send_themselves_are_scaled_from_the_start(
    tmp_path: Path, scale: float
) -> None:
    """Between peers, the start is a message like the others: what a node sends, times the scale."""

    def write(logs: Sequence[Log]) -> None:
        for t in range(3):
            for rank, log in enumerate(logs):
                log.write("send", (start() + t * (rank + 1)) / scale, peer=1 - rank)

    logs = logged(tmp_path / "log", 2, write)
    values = {"payload": "weights", "params": {"alpha": 0.1}, "model": MODEL}
    found = description.of({**values, "messages": {"scale": scale}})
    trace = trace_of(found, logs, tmp_path / "trace.pt")
    assert torch.allclose(trace.public["w0"], start())
    assert torch.allclose(payloads(trace, "w")[2, 1], start() + 4)


@pytest.mark.parametrize("payload", ["gradients", "weights"])
def test_the_models_of_a_server_are_as_they_were_sent(tmp_path: Path, payload: str) -> None:
    """Clients divide by their number before the server adds up; the server's model is not."""

    def write(logs: Sequence[Log]) -> None:
        w = start()
        for t in range(3):
            for client in (1, 2):
                logs[0].write("send", w + t, peer=client)
                logs[client].write("send", (client * w) / 2, peer=0)

    logs = logged(tmp_path / "log", 3, write)
    values: dict[str, Any] = {"payload": payload, "model": MODEL, "messages": {"scale": 2.0}}
    up = "g"
    if payload == "weights":
        values |= {"protocol": "fedavg", "params": {"lr": 0.1}}
        up = "up"
    trace = trace_of(description.of(values), logs, tmp_path / "trace.pt")
    assert torch.equal(trace.public["w0"], start())
    assert torch.equal(payloads(trace, "w")[2, 2], start() + 1)
    assert torch.equal(payloads(trace, up)[2, 0], start())
    assert torch.equal(payloads(trace, up)[2, 1], 2 * start())


# --- how many records -----------------------------------------------------------------


def stepping(batch: int, owned: int, rounds: int = 9, momentum: float = 0.0) -> Write:
    """D-PSGD on a triangle whose nodes draw batches of their own records, shuffled."""

    def write(logs: Sequence[Log]) -> None:
        w = start().repeat(3, 1)
        data = [shuffled(rank, batch, owned) for rank in range(3)]
        memory = torch.zeros_like(w)
        for _ in range(rounds):
            for i, log in enumerate(logs):
                for j in {0, 1, 2} - {i}:
                    log.write("send", w[i], peer=j)
            drawn = [next(one) for one in data]
            x = torch.stack([x for x, _ in drawn])
            y = torch.stack([y for _, y in drawn])
            memory = momentum * memory + TASK.gradients(w, x, y)
            w = w.mean(0, keepdim=True) - 0.05 * memory

    return write


def described_by(found: Guess) -> dict[str, Any]:
    """The constants of a description as it is written, without those that are not known."""
    params = tomllib.loads(found.toml)["params"]
    return {name: value for name, value in params.items() if value != "NOT KNOWN"}


@pytest.mark.parametrize(("owned", "momentum"), [(1, 0.0), (1, 0.9), (12, 0.0), (2, 0.0)])
def test_one_record_per_step_is_one_of_a_node_only_if_all_steps_show_it(
    tmp_path: Path, owned: int, momentum: float
) -> None:
    logs = logged(tmp_path / "log", 3, stepping(1, owned, momentum=momentum))
    found = guess(logs)
    params = described_by(found)
    if owned == 1:
        assert params["samples"] == 1
        assert "batch" not in params
        return
    assert params["batch"] == 1
    assert "samples" not in params
    assert (
        "# samples = …              # records per node: not known; 24 gradients show one"
        in found.toml
    )
    assert (
        f"and 8 of a rank {min(owned, 8)} different inputs: later steps use new ones" in found.said
    )


def test_origins_of_the_numbers_of_records_are_in_the_trace(tmp_path: Path) -> None:
    logs = logged(tmp_path / "log", 3, stepping(1, 12))
    found = guess(logs).description
    assert found is not None
    for inferred in (True, False):
        by_name = {one.subject: one for one in origins.origins(found, logs, found.params, inferred)}
        assert by_name["batch"].origin is Origin.VERIFIED
        assert by_name["samples"].origin is Origin.UNKNOWN
        assert by_name["alpha"].origin is Origin.VERIFIED
    all_of_one = replace(found, params={"alpha": 0.05, "order": "combine", "samples": 1})
    wrong = origins.origins(all_of_one, logs, all_of_one.params, inferred=False)
    (samples,) = [one for one in wrong if one.subject == "samples"]
    assert samples.origin is Origin.CONTRADICTED
    assert "8 different inputs" in samples.detail
    kept = merge.write(replace(wires.plan(found, logs), evidence=wrong), logs, tmp_path / "t.pt")
    stored: Any = kept.provenance["evidence"]
    assert stored["samples"][0] == "CONTRADICTED"


@pytest.mark.parametrize("batch", [2, 4])
def test_the_rank_bounds_a_batch_and_nothing_says_that_steps_use_all(
    tmp_path: Path, batch: int
) -> None:
    """Sixteen hidden units: the rank of a gradient is at most its number of records."""
    wide = Task.build(la.TaskSpec("mlp", {"hidden": "16"}, shape=(1, 4, 4), classes=3))
    used: set[bytes] = set()

    def write(logs: Sequence[Log]) -> None:
        w = wide.init(Generator().manual_seed(1))
        data = [shuffled(rank, batch) for rank in range(2)]
        for _ in range(6):
            logs[0].write("broadcast", w)
            sent = []
            for rank, log in enumerate(logs):
                x, y = next(data[rank])
                used.update(one.numpy().tobytes() for one in x if rank == 0)
                g = wide.gradients(w[None], x[None].float(), y[None])[0]
                log.write("ddp", g, lane="model 0", of=4, parameters=[0, 1, 2, 3], last=True)
                sent.append(g)
            w = w - 0.1 * torch.stack(sent).mean(0)

    logs = logged(tmp_path / "log", 2, write)
    found = guess(logs, wide)
    params = described_by(found)
    assert "samples" not in params
    assert "batch" not in params
    assert found.said.startswith("gradients (sure), fedsgd")
    shown = explain(collect(logs, wide), wide).model.records
    assert shown is not None
    assert shown.most <= batch < shown.together <= len(used)
    assert not shown.single


def test_noise_shows_no_number_of_records(tmp_path: Path) -> None:
    def write(logs: Sequence[Log]) -> None:
        random = Generator().manual_seed(0)
        for _ in range(4):
            for log in logs:
                value = torch.randn(TASK.layout.size, generator=random)
                log.write("ddp", value, lane="model 0", of=4, parameters=[0, 1, 2, 3], last=True)

    logs = logged(tmp_path / "log", 2, write)
    assert explain(collect(logs, TASK), TASK).model.records is None


# --- what is sent ---------------------------------------------------------------------


def test_models_that_diverge_are_not_called_gradients(tmp_path: Path) -> None:
    """Peers whose models point elsewhere: a recomputed gradient proves them, nothing else does."""

    def write(logs: Sequence[Log], batch: int) -> None:
        w = torch.stack([TASK.init(Generator().manual_seed(k)) for k in range(3)])
        data = [shuffled(rank, batch) for rank in range(3)]
        for _ in range(6):
            for i, log in enumerate(logs):
                for j in {0, 1, 2} - {i}:
                    log.write("send", w[i], peer=j)
            drawn = [next(one) for one in data]
            x = torch.stack([x for x, _ in drawn])
            y = torch.stack([y for _, y in drawn])
            w = w.mean(0, keepdim=True) - 0.6 * TASK.gradients(w, x, y)

    single = guess(logged(tmp_path / "one", 3, partial(write, batch=1)))
    assert single.said.startswith("weights (sure), dpsgd")
    several = guess(logged(tmp_path / "four", 3, partial(write, batch=4)))
    assert several.said.startswith("payload NOT KNOWN, protocol NOT KNOWN")


def test_differences_of_models_in_a_sum_are_not_called_gradients(tmp_path: Path) -> None:
    """DiLoCo by all_reduce: what four local steps changed has the size of a gradient."""

    def write(logs: Sequence[Log]) -> None:
        w = start()
        data = [shuffled(rank, BATCH) for rank in range(2)]
        for _ in range(5):
            sent = []
            for rank, log in enumerate(logs):
                own = w
                for _ in range(4):
                    x, y = next(data[rank])
                    own = own - 0.05 * TASK.gradient(own, x, y)
                log.write("allreduce", w - own)
                sent.append(w - own)
            w = w - 0.7 * torch.stack(sent).mean(0)

    logs = logged(tmp_path / "log", 2, write)
    for named in (None, TASK):
        found = guess(logs, named)
        assert found.description is None
        assert found.said.startswith("payload NOT KNOWN, protocol NOT KNOWN")
        assert any("differences of models" in line for line in found.evidence)


def hooked(lane: str) -> dict[str, Any]:
    """Return what a hook notes with a bucket that holds all parameters."""
    return {
        "lane": lane,
        "of": 4,
        "parameters": [0, 1, 2, 3],
        "last": True,
        "sizes": TASK_SIZES,
    }


def equal_gradients(hook: bool) -> Write:
    """Two ranks with equal data, whose gradients are as alike as models in consensus."""

    def write(logs: Sequence[Log]) -> None:
        w = start()
        data = shuffled(0, BATCH)
        noted = hooked("fsdp 0") if hook else {}
        for _ in range(5):
            x, y = next(data)
            g = TASK.gradient(w, x, y)
            for log in logs:
                log.write("fsdp" if hook else "allreduce", g, **noted)
            w = w - 0.01 * g

    return write


@pytest.mark.parametrize(
    ("hook", "said"), [(True, "gradients (sure)"), (False, "payload NOT KNOWN")]
)
def test_what_a_hook_recorded_is_a_gradient_and_equal_vectors_are_not_named(
    tmp_path: Path, hook: bool, said: str
) -> None:
    found = guess(logged(tmp_path / "log", 2, equal_gradients(hook)), TASK)
    assert found.said.startswith(said)


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("hook", [True, False])
def test_numbers_that_are_nan_in_the_program_are_called_that(
    tmp_path: Path, at: int, hook: bool
) -> None:
    def write(logs: Sequence[Log]) -> None:
        random = Generator().manual_seed(0)
        for t in range(5):
            for rank, log in enumerate(logs):
                value = torch.randn(TASK.layout.size, generator=random)
                if rank == 1 and t >= at:
                    value[7] = float("nan")
                noted = hooked("model 0") if hook else {}
                log.write("ddp" if hook else "allreduce", value, **noted)

    logs = logged(tmp_path / "log", 2, write)
    found = guess(logs, TASK)
    assert "nan" not in found.toml.lower().replace("nan or infin", "")
    described = description.of({"payload": "gradients", "model": MODEL})
    (note,) = [note for note in wires.plan(described, logs).notes if "NaN" in note]
    assert note == (
        f"{5 - at} of 10 messages contain NaN or infinity, as the program computed them: first "
        f"that of rank 1 in round {1 + at}"
    )
    op = "ddp" if hook else "allreduce"
    said = (
        f"the program's own numbers contain NaN or infinity, first in message {at} of rank 1 ({op})"
    )
    assert said in found.evidence


# --- too few steps --------------------------------------------------------------------


@pytest.mark.parametrize("steps", [2, 3, 4, 5, 6, 8])
def test_an_optimiser_is_named_or_the_steps_are_called_too_few(tmp_path: Path, steps: int) -> None:
    """SGD with momentum and weight decay has two constants beside its step size."""

    def write(logs: Sequence[Log]) -> None:
        w = start()
        memory = torch.zeros_like(w)
        data = [shuffled(rank, 1) for rank in range(2)]
        noted = hooked("model 0")
        for t in range(steps):
            logs[0].write("model", w, at=t, **noted)
            sent = [TASK.gradient(w, *next(one)) for one in data]
            for log, g in zip(logs, sent, strict=True):
                log.write("ddp", g, at=t, **noted)
            memory = 0.9 * memory + torch.stack(sent).mean(0) + 1e-3 * w
            w = w - 0.1 * memory

    logs = logged(tmp_path / "log", 2, write)
    described = description.of({"payload": "gradients", "model": MODEL})
    plan = wires.plan(described, logs)
    (note,) = [note for note in plan.notes if "optimiser" in note]
    if steps >= 6:
        assert "sgd, step size 0.1, momentum 0.9, weight decay 0.001; it predicts" in note
        assert plan.description.params["momentum"] == 0.9
        return
    assert plan.description.params["server"] == "unknown"
    few = "1 step is" if steps == 2 else f"{steps - 1} steps are"
    assert f"{few} too few to test an optimiser with" in note
    assert "momentum and weight decay (record at least 6 rounds)" in note
