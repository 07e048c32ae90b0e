"""The replays of published experiments under bench/: their restructured trainings against the victims' own runs, and tiny runs of both."""

from __future__ import annotations

import gzip
import importlib
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Graph, TaskSpec, Truth
from leakaudit.protocols import topology as graphs
from leakaudit.protocols.batches import batches
from leakaudit.tasks.task import Problem, Task
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.relations import account, know
from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage
from leakaudit.victims.dpsgd import DPSGD

NODES, CLASSES, FEATURES, RECORDS, ROUNDS, INNER, MU, RHO, L2 = 6, 4, 7, 12, 5, 3, 0.3, 0.05, 0.02
TRAINED: dict[str, dict[str, Any]] = {
    "dpnorm": {"mu": MU, "inner": INNER, "alpha": 0.2},
    "dpsgd": {"alpha": MU, "steps": INNER, "order": "adapt", "noise": "step"},
    "dpadmm": {"rho": RHO, "eta": 1 / MU, "steps": INNER},
    "single": {"mu": MU, "inner": INNER},
}
RING = graphs.make("ring", NODES, Generator())
Bench = Callable[[str], ModuleType]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, project: Path) -> Bench:
    """Import a module of bench/ by its name."""
    monkeypatch.syspath_prepend(str(project / "bench"))
    return importlib.import_module


@pytest.fixture
def softmax() -> Problem:
    """Softmax regression without intercept on a ring of six."""
    draw = Generator().manual_seed(1)
    x = torch.randn(NODES, RECORDS, FEATURES, generator=draw, dtype=torch.float64)
    task = Task.build(
        TaskSpec("logistic", {"bias": False, "l2": L2}, shape=(FEATURES,), classes=CLASSES),
        dtype=torch.float64,
    )
    return Problem(
        task,
        x / x.norm(dim=2, keepdim=True),
        torch.randint(CLASSES, (NODES, RECORDS), generator=draw),
    )


def truth(
    name: str,
    problem: Problem,
    start: Tensor,
    rounds: int,
    schedule: dict[str, Tensor],
    **constants: Any,
) -> Truth:
    """Record a victim's own run with its private states."""
    graph, task = graphs.make("ring", problem.nodes, Generator()), problem.task
    victim = registry.configure(registry.get("victims", name), constants)
    if name == "dpadmmserver":
        graph = Graph(problem.nodes + 1, tuple((i, problem.nodes) for i in range(problem.nodes)))
    recorder = Recorder(
        Storage(None, messages=0, rows=0),
        protocol=name,
        task=task.spec,
        graph=graph,
        rounds=rounds,
        public={"w0": start, **schedule},
        options=RecorderOptions(layout=task.layout, dtype=task.dtype, keep_states=True),
    )
    with recorder:
        victim.run(problem, graph, rounds, recorder, Generator().manual_seed(0), [])
    return recorder.truth_record


def start() -> Tensor:
    return torch.randn(
        CLASSES * FEATURES, generator=Generator().manual_seed(2), dtype=torch.float64
    )


def ring(
    bench: Bench, methods: list[str], draw: Callable[[tuple[int, ...]], Tensor], **levels: float
) -> Any:
    convex = bench("_convex")
    runs = [
        convex.Training(
            m, m, mu=MU, alpha=0.2 * (m == "dpnorm"), rho=RHO, l2=L2, sigma=levels.get(m, 0.0)
        )
        for m in methods
    ]
    return convex.Ring(runs, start().view(CLASSES, FEATURES), NODES, INNER, draw)


def silent(shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def test_all_methods_at_once_train_as_the_victims_do(bench: Bench, softmax: Problem) -> None:
    state = ring(bench, list(TRAINED), silent)
    for _ in range(ROUNDS):
        state.round([(softmax.x, softmax.y)] * INNER)
    for v, (name, constants) in enumerate(TRAINED.items()):
        quiet = {"sigma": 0.0} if name == "dpnorm" else {}
        kept = truth(name, softmax, start(), ROUNDS, {}, **constants, **quiet)
        assert torch.allclose(
            state.w[:, :, v].flatten(1), kept.states["w"][ROUNDS], rtol=0, atol=1e-13
        )


@pytest.mark.parametrize("name", ["dpnorm", "dpsgd", "dpadmm"])
def test_noise_enters_where_it_does_in_the_victim(
    bench: Bench, softmax: Problem, name: str
) -> None:
    sigma = 0.1
    given = sigma * (4 * RHO + 1 / MU) if name == "dpadmm" else sigma
    kept = truth(name, softmax, start(), ROUNDS, {}, sigma=given, **TRAINED[name])
    names = ["n"] if name == "dpnorm" else [f"n.{k}" for k in range(1, INNER + 1)]
    drawn = iter([kept.states[n][t] / sigma for t in range(1, ROUNDS + 1) for n in names])
    state = ring(
        bench,
        [name],
        lambda shape: next(drawn).view(NODES, CLASSES, 1, FEATURES).expand(shape),
        **{name: sigma},
    )
    for _ in range(ROUNDS):
        state.round([(softmax.x, softmax.y)] * INNER)
    assert torch.allclose(state.w[:, :, 0].flatten(1), kept.states["w"][ROUNDS], rtol=0, atol=1e-13)
    assert next(drawn, None) is None


def test_mini_batches_are_those_of_dp_norm(bench: Bench, softmax: Problem) -> None:
    state, random = ring(bench, ["dpnorm"], silent), Generator().manual_seed(0)
    for _ in range(ROUNDS):
        state.round((part.x, part.y) for part in batches(softmax, 4, INNER, random))
    kept = truth("dpnorm", softmax, start(), ROUNDS, {}, sigma=0.0, batch=4, **TRAINED["dpnorm"])
    assert torch.allclose(state.w[:, :, 0].flatten(1), kept.states["w"][ROUNDS], rtol=0, atol=1e-13)


def test_measures(bench: Bench, softmax: Problem) -> None:
    state = ring(bench, ["single", "dpadmm", "dpnorm"], silent)
    assert [r.method for r in state.trainings] == ["dpnorm", "dpadmm", "single"]
    state.round([(softmax.x, softmax.y)] * INNER)
    x, y = softmax.x.flatten(0, 1), softmax.y.flatten()
    found = state.measure(x, y)
    for v in range(3):
        models = state.w[:, :, v]
        right = [float(((x @ w.T).argmax(1) == y).double().mean()) for w in models]
        assert float(found["accuracy"][v]) == pytest.approx(np.mean(right))
        assert float(found["norm_w"][v]) == pytest.approx(
            np.mean([float(w.norm()) for w in models])
        )
    assert found["norm_dual"].isnan().tolist() == [False, False, True]
    assert float(found["norm_dual"][1]) == pytest.approx(
        float(state.lam.flatten(1).norm(dim=1).mean())
    )


def test_printed_noise_and_its_exact_epsilon(bench: Bench) -> None:
    """Published: 0.171 for DP-Norm; epsilons 3.44 and 0.957 of the printed DP-SGD and DP-ADMM where every inner model is seen."""
    budget = bench("_budget")
    s = budget.Setting(lipschitz=1.0)
    assert budget.printed("dpnorm", 0.2, 1.0, s) == pytest.approx(0.17105, abs=1e-5)
    assert budget.printed("dpsgd", 0.0, 1.0, s) == pytest.approx(
        math.sqrt(10 * 2000 * math.log(1000)) * 0.03 / 4000
    )
    for method, published in (("dpsgd", 3.44), ("dpadmm", 0.957)):
        level = budget.printed(method, 0.0, 1.0, s)
        assert budget.seen(method, published, s) == pytest.approx(level, rel=2e-3)
        assert budget.equal(method, 0.0, 1.0, s) == pytest.approx(
            budget.seen(method, 1.0, s) * math.sqrt(3 / 5), rel=1e-3
        )
    for method, alpha in (("dpnorm", 0.2), ("dpnorm", 0.0), ("dpsgd", 0.0), ("dpadmm", 0.0)):
        assert budget.exact(method, alpha, budget.equal(method, alpha, 0.5, s), s) == pytest.approx(
            0.5, abs=1e-9
        )


def test_shares_hide_a_shift_no_sooner_than_it_comes_with_the_least_squares(bench: Bench) -> None:
    shares = bench("_budget").shares
    assert shares([0, 1] * 5) == [0.0, *[0.5] * 8, 1.0]
    assert shares([1, 0] * 5) == [0.5] * 10
    draw = np.random.default_rng(0)
    for _ in range(20):
        moved = draw.integers(0, 3, 8).astype(float)
        best = np.array(shares(moved.tolist()))
        assert best.sum() == pytest.approx(moved.sum())
        assert (best.cumsum() <= moved.cumsum() + 1e-12).all()
        for _ in range(
            50
        ):  # nothing that is allowed and near has less: move a little of a share to a later or an earlier step
            i, j = draw.integers(0, 8, 2)
            other = best.copy()
            other[i], other[j] = other[i] - 0.01, other[j] + 0.01
            if (other.cumsum() <= moved.cumsum() + 1e-12).all():
                assert (other**2).sum() >= (best**2).sum() - 1e-12


def test_the_epsilon_of_noisy_inner_steps_lies_between_fixed_changes_and_inner_models_that_are_seen(
    bench: Bench,
) -> None:
    budget, rounds = bench("_budget"), 3
    s = budget.Setting(rounds=rounds)
    p = DPSGD(alpha=0.03, steps=10, order="adapt", batch=2000, sigma=1.0, noise="step").relations(
        RING, rounds, {}
    )
    targets = p.gradients(0)
    moved = [2 * math.sqrt(2) / 2000 * (k % 2) for k in range(len(targets))]
    fixed = account(know(p, Adversary()), targets, moved, certify=False).mu
    ours = budget.equal("dpsgd", 0.0, 1.0, s) * gaussian.least_mu(1.0, 1e-3)
    seen = budget.seen("dpsgd", 1.0, s) * gaussian.least_mu(1.0, 1e-3)
    assert [ours / fixed, seen / fixed] == pytest.approx(
        [math.sqrt(3 / 2.5), math.sqrt(5 / 2.5)], rel=1e-6
    )


@pytest.mark.parametrize(("alpha", "rounds"), [(0.2, 2000), (0.0, 70), (0.2, 7)])
def test_exact_noise_of_dp_norm_follows_the_recursion(
    bench: Bench, alpha: float, rounds: int
) -> None:
    """s+ = a (s + mu Delta) through the inner steps, squared and added up once a round, over all rounds and not over the settled ones."""
    budget, total, s = bench("_budget"), 0.0, 0.0
    eta = 1 / (0.03 * 2 * 10)
    a = (1 + alpha * eta) / (1 + alpha * eta + 1 / 10)
    for _ in range(rounds):
        for k in range(10):
            s = a * (s + 0.03 * (2 * math.sqrt(2) / 2000 if k % 2 else 0.0))
        total += s * s
    setting = budget.Setting(rounds=rounds)
    assert budget.equal("dpnorm", alpha, 1.0, setting) == pytest.approx(
        math.sqrt(total) / gaussian.least_mu(1.0, 1e-3), rel=1e-8
    )


QUADRATIC: dict[
    str, tuple[str, int, int]
] = {  # victim, rounds of the victim a unit of PLF, and whether a walk says who is active
    "recal": ("recal", 1, 1),
    "extra": ("extra", 1, 0),
    "nids": ("nids", 1, 0),
    "admm": ("pvpadmm", 1, 0),
    "rwadmm": ("rwadmm", 1, 1),
    "mradmm": ("mradmm", 2, 0),
}


@pytest.mark.parametrize(
    ("method", "l1"),
    [*((m, 0.0) for m in QUADRATIC), *((m, 0.05) for m in ("recal", "extra", "nids"))],
)
def test_least_squares_methods_run_as_the_victims_do(bench: Bench, method: str, l1: float) -> None:
    module, draw = bench("_quadratic"), np.random.default_rng(0)
    x, y = torch.tensor(draw.normal(size=(8, 20, 5))), torch.tensor(draw.normal(size=(8, 20)))
    q, scale, plf = (
        module.Quadratic.of(x, y, 50.0, l1),
        torch.tensor([0.03, 0.3], dtype=torch.float64),
        6,
    )
    *_, (reached, w) = getattr(module, method)(q, scale, plf, Generator().manual_seed(5))
    assert reached == plf
    ridge = float((q.h - x.mT @ x / 20)[0, 0, 0])
    task = Task.build(
        TaskSpec("linear", {"bias": False, "l2": ridge}, "squared", (5,), 1), dtype=torch.float64
    )
    name, per, walks = QUADRATIC[method]
    active = list(module._walk(8, plf, Generator().manual_seed(5))) if walks else []
    rounds = len(active) or per * plf
    schedule = {"active": torch.tensor([*active, (active[-1] + 1) % 8])} if walks else {}
    for k, part in enumerate(scale.tolist()):
        kept = truth(
            name,
            Problem(task, x, y),
            torch.zeros(5, dtype=torch.float64),
            rounds,
            schedule,
            **constants(method, q, part),
        )
        assert torch.allclose(w[:, :, k], kept.states["w"][rounds], rtol=0, atol=1e-12)


def test_the_server_s_method_runs_as_the_victim_does(bench: Bench) -> None:
    draw = np.random.default_rng(2)
    x, y = torch.tensor(draw.normal(size=(8, 20, 5))), torch.tensor(draw.normal(size=(8, 20)))
    q = bench("_quadratic").Quadratic.of(x, y, 50.0)
    *_, (_, w) = bench("_quadratic").server(
        q, torch.tensor([0.3], dtype=torch.float64), 9, Generator()
    )
    ridge = float((q.h - x.mT @ x / 20)[0, 0, 0])
    task = Task.build(
        TaskSpec("linear", {"bias": False, "l2": ridge}, "squared", (5,), 1), dtype=torch.float64
    )
    smooth = q.smooth.flatten()
    given = {"rho": 0.3 * float(smooth.mean()), "eta": 1 / float(smooth.max()), "fall": True}
    kept = truth(
        "dpadmmserver", Problem(task, x, y), torch.zeros(5, dtype=torch.float64), 9, {}, **given
    )
    assert torch.allclose(w[:, :, 0], kept.states["w"][9], rtol=0, atol=1e-12)


def constants(method: str, q: Any, scale: float) -> dict[str, Any]:
    """Name a step size in the victim's own words."""
    smooth = q.smooth.flatten()
    most, mean, l1 = float(smooth.max()), float(smooth.mean()), q.l1 / 8
    if method == "recal":
        s = scale * smooth
        tau = 0.95 / (smooth / 2 + 2 * s)
        reg = {"reg": "l1", "weight": q.l1} if l1 else {}
        return {
            "s": ",".join(map(repr, s.tolist())),
            "tau": ",".join(map(repr, tau.tolist())),
            **reg,
        }
    return {
        "extra": {"alpha": scale * 2 / 3 / most, "l1": l1},
        "nids": {"alphas": ",".join(map(repr, (scale / smooth).tolist())), "l1": l1},
        "admm": {"eta": scale * mean},
        "rwadmm": {"rho": scale * mean},
        "mradmm": {"eta": scale * mean, "theta": scale * mean, "gamma": most},
    }[method]


@pytest.mark.parametrize("l1", [0.0, 0.1])
def test_the_minimiser_meets_its_optimality_conditions(bench: Bench, l1: float) -> None:
    draw = np.random.default_rng(1)
    q = bench("_quadratic").Quadratic.of(
        torch.tensor(draw.normal(size=(8, 20, 6))),
        torch.tensor(draw.normal(size=(8, 20))),
        100.0,
        l1,
    )
    slope = (q.h.sum(0) @ q.best - q.c.sum(0)).flatten()
    inside = q.best.flatten() == 0
    assert (slope + q.l1 * q.best.flatten().sign())[~inside].abs().max() < 1e-10
    assert bool((slope[inside].abs() <= q.l1).all())
    assert bool(inside.any()) == bool(l1)
    assert float(q.smooth.max() / q.values.min()) <= 101.0


def write_idx(path: Path, values: np.ndarray) -> None:
    path.write_bytes(
        gzip.compress(
            struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            + values.tobytes()
        )
    )


def test_scripts_end_to_end_on_a_few_images(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw, folder = np.random.default_rng(0), tmp_path / "fashion_mnist"
    folder.mkdir()
    labels = np.arange(300, dtype=np.uint8) % 10
    for name, size in zip(bench("_files").FASHION, (300, 300, 50, 50), strict=True):
        values = (
            draw.integers(1, 255, (size, 4, 4), dtype=np.uint8)
            if "images" in name
            else labels[:size]
        )
        write_idx(folder / name, values)
    script = bench("dpnorm_accuracy")
    sizes = ["--records", "24", "--batch", "12", "--stop", "2", "--every", "1", "--threads", "1"]
    script.main([str(folder), "-o", str(tmp_path / "out"), *sizes])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["bench"] for line in lines[1:]} == {
        f"dpnorm_accuracy/{m}" for m in ("single node", "DP-Norm", "alpha = 0", "DP-SGD", "DP-ADMM")
    }
    assert len(lines) == 22
    assert all(0 <= line["accuracy"] <= 1 for line in lines[1:])
    kept = json.loads((tmp_path / "out" / "curves-0.json").read_text())
    assert kept["rounds"] == [0, 1, 2]
    for name in ("accuracy.png", "norms.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")

    bench("recal_table").main(
        [str(tmp_path), "--plf", "2", "5", "--condition", "10", "--threads", "1"]
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["method"] for row in rows if row["l1"]] == [
        *("RECAL", "DP, RECAL", "DP, RECAL, R = .99", "NIDS", "DP, NIDS", "EXTRA", "DP, EXTRA")
    ]
    assert all(row["RE(5)"] > 0 for row in rows)
    assert [row["epsilon of the print"] > 1e6 for row in rows if "epsilon of the print" in row] == [
        True
    ] * 2
    for name in ("dpnorm_accuracy", "recal_table"):
        bench(name).main([])
        assert "skipped" in capsys.readouterr().out
