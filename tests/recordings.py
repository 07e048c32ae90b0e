"""Recordings as plain values, so that a test can spoil them in one line (see tests/adversarial)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core.trace import Json
from leakaudit.tasks.task import Task

NODES = 4
ROUNDS = 6
STEP = 0.1
RING = ((0, 1), (0, 3), (1, 2), (2, 3))
STAR = ((0, 3), (1, 3), (2, 3))
SPEC = la.TaskSpec("logistic", shape=(1, 6, 6), classes=3)


@dataclass
class Message:
    """One message to one receiver."""

    round: int
    src: int
    dst: int
    kind: str
    value: Tensor
    secure: bool = False


@dataclass
class Run:
    """What a program records: its declaration, its messages and its truth."""

    protocol: str
    params: dict[str, Json]
    edges: tuple[tuple[int, int], ...]
    x: Tensor
    y: Tensor
    w0: Tensor
    messages: list[Message] = field(default_factory=list)
    nodes: int = NODES
    rounds: int | None = ROUNDS
    task: la.TaskSpec = SPEC
    dtype: torch.dtype = torch.float32
    payload: str = "weights"

    @property
    def holders(self) -> range:
        """The nodes with data: a server has none."""
        return range(len(self.x))

    def record(self, path: Path, check: bool = True) -> None:
        """Write a trace with a Recorder, and its truth."""
        with la.Recorder(
            path,
            protocol=self.protocol,
            task=self.task,
            graph=la.Graph(self.nodes, self.edges),
            params=self.params,
            public={"w0": self.w0},
            rounds=self.rounds,
            options=la.RecorderOptions(dtype=self.dtype, check=check),
        ) as recorder:
            for node in self.holders:
                recorder.truth(node=node, x=self.x[node], y=self.y[node])
            recorder.pool(pictures(20, seed=99))
            for m in sorted(self.messages, key=lambda one: one.round):
                recorder.send(m.round, m.src, m.dst, m.kind, m.value, m.secure)

    def wire(self, folder: Path) -> Path:
        """Write the messages as a program without leakaudit does; returns the description."""
        folder.mkdir(exist_ok=True)
        start = [Message(0, i, j, "w", self.w0) for i, j in self._arcs()]
        sent = [m for m in self.messages if m.round] if self.protocol == "fedsgd" else self.messages
        if self.protocol == "dpsgd":
            sent = [*start, *sent]
        with (
            (folder / "m.bin").open("wb") as numbers,
            (folder / "messages.jsonl").open("w") as lines,
        ):
            for m in sent:
                line = {
                    "round": m.round,
                    "src": m.src,
                    "dst": m.dst,
                    "kind": m.kind,
                    "file": "m.bin",
                    "offset": numbers.tell(),
                    "dtype": "float32",
                    "shapes": [[len(m.value)]],
                }
                numbers.write(m.value.float().numpy().astype("<f4").tobytes())
                lines.write(json.dumps(line) + "\n")
        truth = folder / "truth.npz"
        counts = [len(self.x[node]) for node in self.holders]
        node = np.repeat(np.arange(len(counts)), counts)
        x = self.x.flatten(0, 1)
        np.savez(truth, x=x.numpy(), y=self.y.flatten().numpy(), node=node)
        described = folder / "own.toml"
        described.write_text(self._description())
        return described

    def _arcs(self) -> Iterator[tuple[int, int]]:
        for i, j in self.edges:
            yield i, j
            yield j, i

    def _description(self) -> str:
        lines = [f'payload = "{self.payload}"', f'protocol = "{self.protocol}"', "[params]"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in self.params.items()]
        lines += ["[model]", f'name = "{self.task.model}"', "shape = [1, 6, 6]", "classes = 3"]
        if self.payload == "gradients":
            lines += ["[messages]", "server = 3"]
        return "\n".join(lines) + "\n"


def pictures(count: int, seed: int) -> Tensor:
    """Smooth random pictures (count, 1, 6, 6) in [0, 1] with 256 levels."""
    random = Generator().manual_seed(seed)
    x = torch.rand(count, 1, 6, 6, generator=random)
    return (x * 255).round() / 255


def dpsgd(
    seed: int = 0, *, sigma: float = 0.0, clip: float = 0.0, samples: int = 1, declared: bool = True
) -> Run:
    """D-PSGD on a ring of four nodes, honestly recorded; declared: whether the noise is."""
    random = Generator().manual_seed(1000 + seed)
    task = Task.build(SPEC, dtype=torch.float64)
    x = pictures(NODES * samples, seed).reshape(NODES, samples, 1, 6, 6)
    y = torch.arange(NODES * samples).reshape(NODES, samples) % 3
    w0 = 0.1 * torch.randn(task.layout.size, generator=random, dtype=torch.float64)
    params: dict[str, Json] = {"alpha": STEP, "order": "combine", "samples": samples}
    if declared and sigma:
        params |= {"noise": "message", "sigma": sigma, "clip": clip}
    run = Run("dpsgd", params, RING, x, y, w0.float())
    neighbours = la.Graph(NODES, RING).neighbours
    w = w0.float().double().repeat(NODES, 1)
    for t in range(1, ROUNDS + 1):
        g = gradients(task, w, x, y, clip)
        if t == 1:
            sent = w
        mixed = [(sent[i] + sum(sent[j] for j in neighbours[i])) / 3 for i in range(NODES)]
        w = torch.stack(mixed) - STEP * g
        noise = sigma * torch.randn(w.shape, generator=random, dtype=torch.float64)
        sent = w + noise
        for i in range(NODES):
            for j in neighbours[i]:
                run.messages.append(Message(t, i, j, "w", sent[i].float()))
    return run


def fedsgd(seed: int = 0, *, samples: int = 1) -> Run:
    """FedSGD with three clients and a server, honestly recorded."""
    random = Generator().manual_seed(2000 + seed)
    task = Task.build(SPEC, dtype=torch.float64)
    x = pictures(3 * samples, seed).reshape(3, samples, 1, 6, 6)
    y = torch.arange(3 * samples).reshape(3, samples) % 3
    w = 0.1 * torch.randn(task.layout.size, generator=random, dtype=torch.float64)
    params: dict[str, Json] = {"lr": STEP, "samples": samples}
    run = Run("fedsgd", params, STAR, x, y, w.float(), payload="gradients")
    w = w.float().double()
    for t in range(1, ROUNDS + 1):
        for i in range(3):
            run.messages.append(Message(t, 3, i, "w", w.float()))
        g = gradients(task, w.float().double().expand(3, -1), x, y)
        for i in range(3):
            run.messages.append(Message(t, i, 3, "g", g[i].float()))
        w = w - STEP * g.mean(0)
    return run


def gradients(task: Task, w: Tensor, x: Tensor, y: Tensor, clip: float = 0.0) -> Tensor:
    """Each node's mean gradient (n, d), clipped for every record."""
    found = []
    for node in range(len(x)):
        rows = x[node][:, None].double()
        each = task.gradients(w[node].expand(len(rows), -1).contiguous(), rows, y[node][:, None])
        if clip:
            each = each * (clip / each.norm(dim=1, keepdim=True)).clamp(max=1.0)
        found.append(each.mean(0))
    return torch.stack(found)
