"""Programs whose ranks use several records, or new ones in every step: what the tap writes of them
is no more than their messages show. The logs are written here, by the programs' own arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.capture.tap import merge
from leakaudit.capture.tap.guessing.guess import guess
from leakaudit.capture.tap.log.reading import RankLog, read_logs
from leakaudit.capture.tap.log.writing import Log
from leakaudit.capture.tap.messages import description, wires
from leakaudit.lint import conformance
from leakaudit.tasks.task import Task
from leakaudit.trace import Trace

TASK = Task.build(
    la.TaskSpec("mlp", {"hidden": "6"}, shape=(1, 4, 4), classes=3), dtype=torch.float64
)
MODEL: dict[str, Any] = {"name": "mlp", "args": {"hidden": "6"}, "shape": [1, 4, 4], "classes": 3}
CLIP, NOISE, LR, STEPS, BATCH = 0.5, 0.2, 0.1, 6, 4

Write = Callable[[Sequence[Log]], None]


def logged(folder: Path, ranks: int, write: Write) -> tuple[RankLog, ...]:
    """The log of a program with some ranks."""
    logs = [Log(folder, k, world=ranks) for k in range(ranks)]
    write(logs)
    for log in logs:
        log.close()
    return read_logs(folder)


def trace_of(found: description.Description, logs: Sequence[RankLog], path: Path) -> Trace:
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


# --- a factor of the gradients ----------------------------------------------------------------------------------------


def private(kept: dict[str, list[Tensor]]) -> Write:
    """Two ranks that add up clipped gradients of four records each, as Opacus does: rank 0 adds the
    noise, each rank divides by its batch, the sum is divided by the ranks.
    """

    def write(logs: Sequence[Log]) -> None:
        w = start()
        data = [shuffled(rank, BATCH) for rank in range(2)]
        random = Generator().manual_seed(7)
        sizes = [part.stop - part.start for part in TASK.layout.slices.values()]
        about = {"lane": "opacus 0", "last": True, "of": 4, "parameters": [0, 1, 2, 3]}
        for t in range(STEPS):
            kept.setdefault("w", []).append(w)
            logs[0].write("model", w, at=t, sizes=sizes, **about)
            sent = []
            for rank, log in enumerate(logs):
                x, y = next(data[rank])
                each = TASK.gradients(w.repeat(BATCH, 1), x[:, None], y[:, None])
                total = (each * (CLIP / each.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
                noise = torch.zeros_like(total)
                if rank == 0:
                    noise = CLIP * NOISE * torch.randn(len(w), generator=random, dtype=w.dtype)
                stated = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "divisor": float(BATCH)}
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
