"""Honest programs that change their gradients as they declare: none of them is refuted.

Every case has a twin that does not do what it declares, which is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import leakaudit as la
from leakaudit.core.verdict import Verdict
from leakaudit.judging.lint.checks import Lint
from leakaudit.views.conformance.pitfall import Pitfall

Floats = NDArray[np.float64]
CLIENTS, RECORDS, ROUNDS, LR = 3, 4, 4, 0.5
FEATURES, CLASSES = 5, 3
SIZE = CLASSES * (FEATURES + 1)
SERVER = CLIENTS
STAR = la.Graph(CLIENTS + 1, tuple((i, SERVER) for i in range(CLIENTS)))
GRAD = "grad(w[server -> i])"
PLAIN = f"u[i -> server] = w[server -> i] - 0.5*{GRAD}"
Step = Callable[["Client", Floats, int], Floats]


@dataclass
class Client:
    """A client of a program: its records, and what it keeps from round to round."""

    x: Floats
    y: NDArray[np.int64]
    memory: Floats = field(default_factory=lambda: np.zeros(SIZE))

    def each(self, w: Floats, l2: float = 0.0) -> Floats:
        """Return the gradients (b, d) of softmax regression, written out by hand."""
        rows = []
        for x, y in zip(self.x, self.y, strict=True):
            power = np.exp(w[:-CLASSES].reshape(CLASSES, FEATURES) @ x + w[-CLASSES:])
            error = power / power.sum() - np.eye(CLASSES)[y]
            rows.append(np.concatenate([np.outer(error, x).ravel(), error]))
        return np.array(rows) + l2 * w


def cut(rows: Floats, norm: float) -> Floats:
    """Clip every row to a norm."""
    short: Floats = rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True) / norm)
    return short


def plain(client: Client, w: Floats, t: int) -> Floats:
    """One step with the mean gradient."""
    sent: Floats = w - LR * client.each(w).mean(0)
    return sent


def clipped(client: Client, w: Floats, t: int) -> Floats:
    """One step with the mean of clipped gradients."""
    sent: Floats = w - LR * cut(client.each(w), 0.7).mean(0)
    return sent


def clipped_as_a_whole(client: Client, w: Floats, t: int) -> Floats:
    """One step with the mean gradient, clipped."""
    sent: Floats = w - LR * cut(client.each(w).mean(0)[None], 0.7)[0]
    return sent


def summed(client: Client, w: Floats, t: int) -> Floats:
    """One step with the sum of clipped gradients, over a number that is not the data's."""
    sent: Floats = w - LR * cut(client.each(w), 0.7).sum(0) / 8
    return sent


def regularised(client: Client, w: Floats, t: int) -> Floats:
    """One step with clipped gradients of a loss with an l2 term."""
    sent: Floats = w - LR * cut(client.each(w, l2=0.1), 0.7).mean(0)
    return sent


def decayed(client: Client, w: Floats, t: int) -> Floats:
    """One step with clipped gradients and, after clipping, weight decay."""
    sent: Floats = w - LR * (cut(client.each(w), 0.7).mean(0) + 0.1 * w)
    return sent


def moved(client: Client, w: Floats, t: int) -> Floats:
    """One step with momentum of clipped gradients."""
    client.memory = 0.9 * client.memory + cut(client.each(w), 0.7).mean(0)
    return w - LR * client.memory


def accumulated(client: Client, w: Floats, t: int) -> Floats:
    """One step with clipped gradients that are added up in two parts."""
    rows = cut(client.each(w), 0.7)
    sent: Floats = w - LR * (rows[:1].sum(0) + rows[1:].sum(0)) / RECORDS
    return sent


def slower(client: Client, w: Floats, t: int) -> Floats:
    """One step whose size falls."""
    sent: Floats = w - LR / (1 + t) * cut(client.each(w), 0.7).mean(0)
    return sent


def twice(client: Client, w: Floats, t: int) -> Floats:
    """Two steps with clipped gradients."""
    return clipped(client, clipped(client, w, t), t)


def half_of_the_records(client: Client, w: Floats, t: int) -> Floats:
    """One step with a mini-batch."""
    sent: Floats = w - LR * client.each(w)[::2].mean(0)
    return sent


@dataclass(frozen=True)
class Case:
    """What a program declares, what it does, and what a dishonest one does."""

    equations: str
    constants: str
    honest: Step
    dishonest: Step | None
    params: dict[str, Any] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)
    start: str = ""


CASES = {
    "clip": Case(PLAIN, "clip = 0.7", clipped, plain),
    "clip-of-the-recorder": Case(PLAIN, "clip = 70.0", clipped, plain, params={"clip": 0.7}),
    "nothing-to-clip": Case(PLAIN, "clip = 70.0", plain, clipped),
    "sum": Case(
        f"u[i -> server] = w[server -> i] - 0.5*samples*{GRAD}/8",
        "clip = 0.7\nsamples = 4",
        summed,
        clipped,
    ),
    "l2": Case(PLAIN, "clip = 0.7", regularised, decayed, args={"l2": 0.1}),
    "decay": Case(
        f"u[i -> server] = w[server -> i] - 0.5*({GRAD} + 0.1*w[server -> i])",
        "clip = 0.7",
        decayed,
        regularised,
    ),
    "momentum": Case(
        f"v[i] = 0.9*v[i] + {GRAD}\nu[i -> server] = w[server -> i] - 0.5*v[i]",
        "clip = 0.7",
        moved,
        clipped,
        start="v[i] = 0",
    ),
    "accumulation": Case(PLAIN, "clip = 0.7", accumulated, summed),
    "schedule": Case(
        f"u[i -> server] = w[server -> i] - 0.5/(1+t)*{GRAD}", "clip = 0.7", slower, clipped
    ),
    "two-steps": Case(
        "m[i] = w[server -> i]\nrepeat 2:\n    m[i] = m[i] - 0.5*grad(m[i])\nu[i -> server] = m[i]",
        "clip = 0.7",
        twice,
        clipped,
    ),
    "a-batch-of-all": Case(PLAIN, "batch = 4\nsamples = 4", plain, half_of_the_records),
    "mini-batches": Case(PLAIN, "batch = 2\nsamples = 4", half_of_the_records, None),
}


def recorded(folder: Path, case: Case, step: Step) -> list[Pitfall]:
    """Run a program of `case` whose clients take `step`, and return the findings on its record."""
    file = folder / "program.toml"
    file.write_text(
        f'name = "program"\ngraph = "server"\n'
        f'start = """\nw[server] = w0\n{case.start}\n"""\n'
        f'round = """\nw[server -> clients] = w[server]\n{case.equations}\n'
        f'w[server] = mean(i in clients: u[i -> server])\n"""\n'
        f"[constants]\n{case.constants}\n"
    )
    random = np.random.default_rng(0)
    x = 3 * random.random((CLIENTS, RECORDS, FEATURES))
    y = random.integers(CLASSES, size=(CLIENTS, RECORDS))
    w = random.standard_normal(SIZE)
    clients = [Client(x[i], y[i]) for i in range(CLIENTS)]
    task = la.TaskSpec("logistic", shape=(FEATURES,), classes=CLASSES, args=case.args)
    with la.Recorder(
        folder / "run.pt",
        protocol=str(file),
        task=task,
        graph=STAR,
        params=case.params,
        rounds=ROUNDS,
        public={"w0": w},
    ) as recorder:
        for t in range(1, ROUNDS + 1):
            recorder.send(round=t, src=SERVER, dst=list(range(CLIENTS)), kind="w", value=w)
            sent = [step(client, w, t) for client in clients]
            for i in range(CLIENTS):
                recorder.send(round=t, src=i, dst=SERVER, kind="u", value=sent[i])
            w = np.mean(sent, 0)
        for i in range(CLIENTS):
            recorder.truth(node=i, x=x[i], y=y[i])
    found = Lint(la.load(folder / "run.pt"), la.load_truth(folder / "run.truth.pt")).findings
    return [pitfall for pitfall in found if pitfall.verdict is Verdict.REFUTED]


@pytest.mark.parametrize("name", CASES)
def test_an_honest_program_is_not_refuted(tmp_path: Path, name: str) -> None:
    """What a program declares and does contradicts nothing."""
    assert recorded(tmp_path, CASES[name], CASES[name].honest) == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.dishonest])
def test_a_program_that_does_something_else_is(tmp_path: Path, name: str) -> None:
    """The same declaration is refuted if the program does something else."""
    step = CASES[name].dishonest
    assert step is not None
    assert recorded(tmp_path, CASES[name], step)


def test_what_is_clipped_is_named(tmp_path: Path) -> None:
    """A program that clips means in place of records learns which of the two it does."""
    (found,) = recorded(tmp_path, CASES["clip"], clipped_as_a_whole)
    assert "all equations hold if means over a node's records are clipped" in found.says
    (found,) = recorded(tmp_path, CASES["clip"], plain)
    assert "all equations hold without any clipping" in found.says


def test_defaults_of_a_bundled_protocol(tmp_path: Path) -> None:
    """A recording that does not state a constant is compared with the one of its protocol."""
    random = np.random.default_rng(0)
    x = 3 * random.random((2, RECORDS, FEATURES))
    y = random.integers(CLASSES, size=(2, RECORDS))
    w = random.standard_normal(SIZE)
    with la.Recorder(
        tmp_path / "run.pt",
        protocol="muffliato",  # which clips to norm 1 unless it is told otherwise
        task=la.TaskSpec("logistic", shape=(FEATURES,), classes=CLASSES),
        graph=la.Graph(2, ((0, 1),)),
        params={"sigma": 0.0, "gossips": 1, "lr": LR},
        rounds=1,
        public={"w0": w},
    ) as recorder:
        for i in range(2):
            sent = w - LR * cut(Client(x[i], y[i]).each(w), 1.0).mean(0)
            recorder.send(round=1, src=i, dst=[1 - i], kind="w", value=sent)
            recorder.truth(node=i, x=x[i], y=y[i])
    findings = Lint(la.load(tmp_path / "run.pt"), la.load_truth(tmp_path / "run.truth.pt")).findings
    assert [one for one in findings if one.verdict is Verdict.REFUTED] == []
