"""Undeclared optimisers: certificates are withdrawn if their inputs do not give the messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core.evidence import Origin
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion import recomputed
from leakaudit.inversion.attacking import attack_one
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.reporting.findings.worst_case import AS_SENT
from leakaudit.tasks.task import Task

Array = NDArray[np.float64]
HIDDEN = 48
CLASSES = 10
NODES = 3
PROVEN = (Certificate.EXACT, Certificate.INTERVAL)
EXACT = la.RecorderOptions(dtype=torch.float64)


class Program:
    """A two-layer network that a program trains by hand, each node on one record."""

    def __init__(self, seed: int, picture: bool, hidden: int = HIDDEN) -> None:
        self.hidden = hidden
        self.random = np.random.default_rng(seed)
        self.picture = picture
        self.width = 64 if picture else 30
        self.x = self.random.normal(size=(NODES, self.width))
        if picture:
            self.x = self.random.integers(20, 250, size=(NODES, self.width)) / 255
        self.y = self.random.integers(CLASSES, size=NODES)
        head = hidden or self.width
        self.w = [
            self.random.normal(size=(CLASSES, head)) * head**-0.5,
            self.random.normal(size=CLASSES) * 0.1,
        ]
        if hidden:
            self.w = [
                self.random.normal(size=(hidden, self.width)) * self.width**-0.5,
                self.random.normal(size=hidden) * 0.1,
                *self.w,
            ]

    @property
    def task(self) -> la.TaskSpec:
        shape = (1, 8, 8) if self.picture else (self.width,)
        levels = 255 if self.picture else 0
        model, about = ("mlp", {"hidden": self.hidden}) if self.hidden else ("logistic", {})
        return la.TaskSpec(model, about, shape=shape, classes=CLASSES, levels=levels)

    def gradient(self, w: list[Array], node: int) -> list[Array]:
        x = self.x[node]
        h = x
        if self.hidden:
            before = w[0] @ x + w[1]
            h = np.maximum(before, 0)
        out = w[-2] @ h + w[-1]
        q = np.exp(out - out.max())
        q /= q.sum()
        q[self.y[node]] -= 1
        if not self.hidden:
            return [np.outer(q, x), q]
        delta = (w[2].T @ q) * (before > 0)
        return [np.outer(delta, x), delta, np.outer(q, h), q]

    def truth(self, recorder: la.Recorder) -> None:
        for node in range(NODES):
            x = self.x[node].reshape(1, *self.task.shape)
            recorder.truth(node=node, x=x, y=self.y[node : node + 1])


def flat(parts: list[Array]) -> Array:
    return np.concatenate([part.ravel() for part in parts])


def split(vector: Array, like: list[Array]) -> list[Array]:
    ends = np.cumsum([part.size for part in like])[:-1]
    pieces = np.split(vector, ends)
    return [piece.reshape(part.shape) for piece, part in zip(pieces, like, strict=True)]


def altered(kind: str, g: list[Array], w: list[Array]) -> list[Array]:
    """What a program sends in place of its gradient, without a word."""
    if kind == "lars":
        return [
            one * np.linalg.norm(of) / np.linalg.norm(one) for one, of in zip(g, w, strict=True)
        ]
    if kind == "clip per layer":
        return [one * min(1, 0.05 / float(np.linalg.norm(one))) for one in g]
    if kind == "another step for biases":
        return [one * (0.5 if one.ndim == 1 else 1) for one in g]
    if kind == "centralised":
        return [one - one.mean(1, keepdims=True) if one.ndim == 2 else one for one in g]
    if kind == "masked":
        return [g[0] * (np.arange(g[0].shape[1]) % 3 > 0), *g[1:]]
    if kind == "sign":
        return [np.sign(one) for one in g]
    if kind == "clipped":
        size = float(np.linalg.norm(flat(g)))
        return [one * min(1, 0.3 / size) for one in g]
    assert kind == "plain"
    return g


def fedsgd(folder: Path, kind: str, *, program: Program, known: bool, rounds: int = 6) -> Path:
    """Record FedSGD; without the server's messages, an eavesdropper does not know the models."""
    w = program.w
    out = folder / "trace.pt"
    public = {"public": {"w0": flat(w)}} if known else {}
    settings: dict[str, Any] = {"params": {"lr": 0.1, "samples": 1}, "rounds": rounds, **public}
    graph = la.Graph(NODES + 1, tuple((node, NODES) for node in range(NODES)))
    with la.Recorder(
        out, protocol="fedsgd", task=program.task, graph=graph, options=EXACT, **settings
    ) as recorder:
        for t in range(1, rounds + 1):
            if known:
                recorder.send(round=t, src=NODES, dst=range(NODES), kind="w", value=flat(w))
            sent = [flat(altered(kind, program.gradient(w, node), w)) for node in range(NODES)]
            for node in range(NODES):
                recorder.send(round=t, src=node, dst=NODES, kind="g", value=sent[node])
            w = split(flat(w) - 0.1 * np.mean(sent, 0), w)
        program.truth(recorder)
    return out


def fedavg(folder: Path, optimiser: str, *, seed: int) -> Path:
    """Record five local steps a round, of an optimiser that the declaration does not name."""
    program = Program(seed, picture=True)
    like = program.w
    w = flat(like)
    out = folder / "trace.pt"
    graph = la.Graph(NODES + 1, tuple((node, NODES) for node in range(NODES)))
    settings: dict[str, Any] = {"params": {"lr": 0.01, "epochs": 5, "samples": 1}, "rounds": 4}
    with la.Recorder(
        out,
        protocol="fedavg",
        task=program.task,
        graph=graph,
        options=EXACT,
        public={"w0": w},
        **settings,
    ) as recorder:
        for t in range(1, 5):
            recorder.send(round=t, src=NODES, dst=range(NODES), kind="w", value=w)
            after = []
            for node in range(NODES):
                u = w.copy()
                for step in steps(optimiser):
                    u = u - 0.01 * step(flat(program.gradient(split(u, like), node)))
                after.append(u)
                recorder.send(round=t, src=node, dst=NODES, kind="up", value=u)
            w = np.mean(after, 0)
        program.truth(recorder)
    return out


def steps(optimiser: str) -> Iterator[Any]:
    """Five steps, each from a gradient to what is subtracted."""
    m: Any = 0
    v: Any = 0
    for k in range(1, 6):

        def step(g: Array, k: int = k) -> Array:
            nonlocal m, v
            if optimiser == "sign":
                return np.sign(g)
            if optimiser == "adagrad":
                v = v + g * g
                return np.asarray(g / (np.sqrt(v) + 1e-10))
            if optimiser == "adam":
                m = 0.9 * m + 0.1 * g
                v = 0.999 * v + 0.001 * g * g
                return np.asarray(m / (1 - 0.9**k) / (np.sqrt(v / (1 - 0.999**k)) + 1e-12))
            assert optimiser == "sgd"
            return g

        yield step


def attacked(trace: Path) -> list[Reconstruction]:
    leaks = la.leaks(la.load(trace))
    return list(la.attack(leaks, generator=fresh()))


def fresh() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def origins(found: Reconstruction) -> set[Origin]:
    return {one.origin for one in found.evidence if one.subject == recomputed.SUBJECT}


@pytest.mark.parametrize("optimiser", ["sign", "adagrad", "adam"])
def test_local_steps_of_another_optimiser(optimiser: str, tmp_path: Path) -> None:
    for found in attacked(fedavg(tmp_path, optimiser, seed=5)):
        assert found.certificate not in PROVEN
        assert not found.certified


def test_local_steps_as_declared(tmp_path: Path) -> None:
    for found in attacked(fedavg(tmp_path, "sgd", seed=5)):
        assert found.certificate is Certificate.EXACT
        assert origins(found) == {Origin.VERIFIED}


@pytest.mark.parametrize("picture", [False, True], ids=["table", "pictures"])
@pytest.mark.parametrize(
    "kind",
    ["lars", "clip per layer", "another step for biases", "centralised", "masked", "sign"],
)
def test_altered_gradients_at_known_models(kind: str, picture: bool, tmp_path: Path) -> None:
    for found in attacked(fedsgd(tmp_path, kind, program=Program(3, picture), known=True)):
        assert found.certificate not in PROVEN, found.note
        assert not found.certified


@pytest.mark.parametrize("hidden", [HIDDEN, 0], ids=["network", "no hidden layer"])
@pytest.mark.parametrize("picture", [False, True], ids=["table", "pictures"])
def test_biases_of_zero_hide_no_other_step(hidden: int, picture: bool, tmp_path: Path) -> None:
    """Without biases, kernels and inputs of another size give the same directions of gradients."""
    program = Program(3, picture, hidden)
    program.x /= 2 if picture else 1
    for part in program.w:
        part *= part.ndim > 1
    kind = "another step for biases"
    for found in attacked(fedsgd(tmp_path, kind, program=program, known=True, rounds=1)):
        assert found.certificate not in PROVEN


@pytest.mark.parametrize(
    ("victim", "settings"),
    [
        ("dpsgd", {"steps": 3}),
        ("dpsgd", {"steps": 3, "order": "adapt", "slow": 0.3}),
        ("dpsgd", {"clip": 0.1}),
        ("fedavg", {"epochs": 2, "clip": 0.3}),
        ("fedavg", {"epochs": 5}),
    ],
)
def test_honest_local_steps_keep_their_certificates(victim: str, settings: dict[str, Any]) -> None:
    graph = "ring" if victim == "dpsgd" else "star"
    case = Scenario(
        victim=victim,
        nodes=3,
        graph=graph,
        rounds=3,
        model="mlp",
        set={"hidden": 32, **settings},
    )
    recorder = recording.record(recording.plan(case), None)
    for found in la.attack(la.leaks(recorder.trace), generator=fresh()):
        assert found.certificate is Certificate.EXACT
        assert Origin.CONTRADICTED not in origins(found)


@pytest.mark.parametrize("picture", [False, True], ids=["table", "pictures"])
@pytest.mark.parametrize("kind", ["plain", "clipped"])
def test_honest_gradients_at_known_models(kind: str, picture: bool, tmp_path: Path) -> None:
    wanted = Certificate.EXACT if picture else Certificate.INTERVAL
    for found in attacked(fedsgd(tmp_path, kind, program=Program(3, picture), known=True)):
        assert found.certificate is wanted
        assert origins(found) == {Origin.VERIFIED}


def test_signs_at_unknown_models_are_no_pictures(tmp_path: Path) -> None:
    """After several steps, each neuron has a magnitude of its own, so entries are not all alike."""
    trace = la.load(fedsgd(tmp_path, "plain", program=Program(11, True), known=False))
    leak = next(iter(la.leaks(trace)))
    random = np.random.default_rng(11)
    size = random.normal(size=(HIDDEN, 1))
    rows = flat([size * (random.random(64) < 0.5), size])
    value = leak.value.clone()
    value[:, : len(rows)] = torch.from_numpy(rows) * torch.arange(1, len(value) + 1)[:, None]
    found = attack_one(replace(leak, value=value), Task.build(trace.task), "analytic", fresh())
    assert found.certificate is Certificate.APPROXIMATE
    assert recomputed.COLOURLESS in found.note


def test_unknown_models_are_a_premise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = fedsgd(tmp_path, "plain", program=Program(3, True), known=False)
    for found in attacked(trace):
        assert found.certificate is Certificate.EXACT
        assert origins(found) == {Origin.DECLARED}
    out = str(tmp_path / "out")
    main(["attack", str(trace), "-o", out, "--truth", "none", "-q"])
    assert AS_SENT.lower() in capsys.readouterr().out.lower()


@pytest.mark.parametrize("size", [1e-308, 1e-120, 1e120])
def test_messages_whose_squares_are_no_numbers(size: float, tmp_path: Path) -> None:
    trace = la.load(fedsgd(tmp_path, "plain", program=Program(3, False), known=True))
    leak = next(iter(la.leaks(trace)))
    scaled = replace(leak, value=leak.value * size / leak.value.abs().max())
    found = attack_one(scaled, Task.build(trace.task), "auto", fresh())
    assert found.certificate is Certificate.FAILED
