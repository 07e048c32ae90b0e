"""DP-Norm and ECL against the paper's formulas in plain loops, their optimum, their leak and Theorem 1."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

import leakaudit as la
from leakaudit.core.trace import Graph, TaskSpec, Trace, Truth
from leakaudit.protocols import declared, recording
from leakaudit.protocols.dpnorm_family import guaranteed, level, sensitivity
from leakaudit.protocols.recording import generators
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Problem, Task
from leakaudit.theory.relations import account, estimate, know
from leakaudit.theory.relations import recorded as messages
from leakaudit.traces.recorder import Recorder, RecorderOptions
from leakaudit.victims.dpnorm import DPNorm
from leakaudit.victims.single import Single

Array = NDArray[np.float64]
RING = Graph(6, tuple(sorted((min(i, (i + 1) % 6), max(i, (i + 1) % 6)) for i in range(6))))
STAR = Graph(6, tuple((0, i) for i in range(1, 6)))


class Squares:
    """Six nodes with 40 rows of least squares in 5 dimensions, whose local optima differ."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        self.x = np.stack([draw.normal(size=(40, 5)) for _ in range(6)])
        self.y = np.stack([x @ draw.normal(size=5) + 0.1 * draw.normal(size=40) for x in self.x])

    def gradient(self, i: int, w: Array) -> Array:
        return np.asarray(self.x[i].T @ (self.x[i] @ w - self.y[i]) / 40)

    def optimum(self, weights: Array) -> Array:
        h = sum(c * x.T @ x for c, x in zip(weights, self.x, strict=True))
        b = sum(c * x.T @ y for c, x, y in zip(weights, self.x, self.y, strict=True))
        return np.asarray(np.linalg.solve(h, b))


SQUARES = Squares()


def record(
    victim: DPNorm,
    graph: Graph,
    rounds: int,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    wires: bool = True,
) -> Recorder:
    spec = TaskSpec("linear", {"bias": False}, "squared", (5,), 1)
    task, random = Task.build(spec, dtype=dtype), generators(seed, "model", "run", "schedule")
    recorder = Recorder(
        None,
        protocol="dpnorm",
        task=task,
        graph=graph,
        params={**la.registry.values(victim), "samples": 40},
        rounds=rounds,
        public={
            "w0": task.init(random["model"]),
            **victim.schedule(graph, rounds, random["schedule"]),
        },
        options=RecorderOptions(dtype=dtype, keep_states=True),
    )
    x, y = torch.tensor(SQUARES.x, dtype=dtype), torch.tensor(SQUARES.y, dtype=dtype)
    with recorder:
        for i in range(6):
            recorder.truth(i, x[i], y[i])
        victim.run(
            Problem(task, x, y),
            graph,
            rounds,
            recorder,
            random["run"],
            graph.edges if wires else [],
        )
    return recorder


def recorded(
    victim: DPNorm,
    graph: Graph = RING,
    rounds: int = 30,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> tuple[Trace, Truth]:
    recorder = record(victim, graph, rounds, dtype, seed)
    return recorder.trace, recorder.truth_record


def noise_of(truth: Truth, victim: DPNorm, t: int, k: int, i: int) -> Array:
    """Return n_i of an inner step."""
    name = "n" if victim.noise == "round" else f"n.{k}"
    return np.asarray(truth.states[name][t, i].double()) if name in truth.states else np.zeros(5)


def replay(
    victim: DPNorm, graph: Graph, rounds: int, w0: Array, truth: Truth
) -> tuple[dict[tuple[int, ...], Array], Array, Array]:
    """Run Algorithm 1 line by line with the noise that was drawn.

    Returns y by (round, i, j), the models, and sum_k a^{K-1-k} g_k of every round and node (rounds, 6, 5).
    """
    near, w = graph.neighbours, np.tile(w0, (6, 1))
    z = {(i, j): np.zeros(5) for i in range(6) for j in near[i]}
    sent: dict[tuple[int, ...], Array] = {}
    sums = np.zeros((rounds, 6, 5))
    for t in range(1, rounds + 1):
        for i in range(6):
            size = len(near[i]) if victim.eta == "node" else float(np.mean([len(n) for n in near]))
            eta = 1 / (victim.mu * size * victim.inner)
            gamma = 1 + victim.alpha * eta
            a = gamma / (gamma + eta * victim.mu * len(near[i]))
            for k in range(victim.inner):
                n, g = noise_of(truth, victim, t, k, i), SQUARES.gradient(i, w[i])
                sums[t - 1, i] = a * sums[t - 1, i] + g
                pull = sum((1 if i < j else -1) * z[i, j] for j in near[i]) - (
                    len(near[i]) * n if victim.noise == "inner" else 0
                )
                w[i] = a * (w[i] - victim.mu * g + victim.mu * eta / gamma * pull)
            for j in near[i]:
                dual = eta / gamma * (z[i, j] - (1 if i < j else -1) * (w[i] + n))
                sent[t, i, j] = 2 / eta * dual - z[i, j]
        z = {(i, j): sent[t, j, i] for i, j in z}
    return sent, w, sums


@pytest.mark.parametrize("graph", [RING, STAR], ids=["ring", "star"])
@pytest.mark.parametrize("eta", ["node", "common"])
@pytest.mark.parametrize("noise", ["round", "inner"])
def test_it_sends_what_algorithm_1_sends(graph: Graph, eta: Any, noise: Any) -> None:
    victim = DPNorm(inner=3, alpha=0.2, sigma=0.05, eta=eta, noise=noise)
    trace, truth = recorded(victim, graph, 8)
    sent, w, _ = replay(victim, graph, 8, trace.public["w0"].numpy(), truth)
    view = la.Adversary().view(trace)
    for (t, i, j), y in sent.items():
        assert np.abs(view.message(t, i, j, "y").numpy() - y).max() < 1e-12
    assert np.abs(truth.states["w"][8].numpy() - w).max() < 1e-12


def algorithm_1(
    victim: DPNorm, graph: Graph, trace: Trace, truth: Truth
) -> tuple[dict[tuple[int, ...], Array], Array]:
    """Run lines 4 to 20 of Algorithm 1 as printed: lines 16 to 19 stand inside the loop over k.

    Channel j -> i transmits at the k that the trace publishes. All nodes are equally fast: in each
    k, all execute lines 9 to 15 before any of them transmits. Returns y by (round, j, i), and w.
    """
    n_nodes, big_k, mu = 6, victim.inner, victim.mu
    e = graph.neighbours
    a = {(i, j): 1.0 if i < j else -1.0 for i in range(n_nodes) for j in e[i]}
    eta = [1 / (mu * len(e[i]) * big_k) for i in range(n_nodes)]
    if victim.eta == "common":
        mean = sum(len(some) for some in e) / n_nodes
        eta = [1 / (mu * mean * big_k)] * n_nodes
    gamma = [1 + victim.alpha * step for step in eta]
    w = [trace.public["w0"].double().numpy().copy() for _ in range(n_nodes)]
    z = {arc: np.zeros(5) for arc in a}
    transmitted: dict[tuple[int, ...], Array] = {}
    for r in range(trace.rounds):
        moment = dict(zip(graph.arcs, trace.public["moments"][r].tolist(), strict=True))
        for k in range(big_k):
            y = {}
            for i in range(n_nodes):
                n_i = noise_of(truth, victim, r + 1, k, i)  # line 6: the same for every k
                g = SQUARES.gradient(i, w[i])  # line 11
                bracket = w[i] - mu * g
                for j in e[i]:
                    pull = a[i, j] * z[i, j]
                    if victim.noise == "inner":  # the appendix
                        pull = pull - n_i
                    bracket = bracket + mu * eta[i] / gamma[i] * pull
                w[i] = gamma[i] / (gamma[i] + eta[i] * mu * len(e[i])) * bracket  # line 12
                for j in e[i]:
                    lam = eta[i] / gamma[i] * (z[i, j] - a[i, j] * (w[i] + n_i))  # line 14
                    y[i, j] = 2 / eta[i] * lam - z[i, j]  # line 15
            for i in range(n_nodes):
                for j in e[i]:  # line 17
                    if moment[j, i] == k + 1:
                        transmitted[r + 1, j, i] = y[j, i]  # line 18
                        z[i, j] = y[j, i]  # line 19
    return transmitted, np.stack(w)


@pytest.mark.parametrize("graph", [RING, STAR], ids=["ring", "star"])
@pytest.mark.parametrize(
    "settings",
    [
        {"inner": 4, "sigma": 0.0},
        {"inner": 4, "alpha": 0.2, "sigma": 0.05},
        {"inner": 3, "alpha": 0.2, "sigma": 0.05, "noise": "inner", "eta": "common"},
    ],
    ids=["ECL", "round", "appendix"],
)
def test_messages_at_random_times_are_those_of_the_printed_lines(
    graph: Graph, settings: dict[str, Any]
) -> None:
    victim = DPNorm(order="random", **settings)
    trace, truth = recorded(victim, graph, 8)
    assert len(trace.public["moments"].unique()) == victim.inner
    transmitted, w = algorithm_1(victim, graph, trace, truth)
    assert len(transmitted) == len(trace) == 8 * len(graph.arcs)
    view = la.Adversary().view(trace)
    for (t, j, i), y in transmitted.items():
        assert np.abs(view.message(t, j, i, "y").numpy() - y).max() < 1e-12
    assert np.abs(truth.states["w"][8].numpy() - w).max() < 1e-12


def test_with_one_inner_step_random_times_change_nothing() -> None:
    plain, random = (
        recorded(DPNorm(alpha=0.2, order=order))[1] for order in ("synchronous", "random")
    )
    assert torch.allclose(plain.states["w"], random.states["w"], rtol=0, atol=1e-12)


def test_at_random_times_the_noise_of_a_round_cancels() -> None:
    """Two channels of a node at different times show two inner models under one n_i."""
    victim = DPNorm(inner=2, sigma=0.1, alpha=0.2, order="random", batch=40)
    trace, truth = recorded(victim, rounds=4)
    p = victim.relations(RING, 4, trace.public)
    when = [
        dict(zip(RING.arcs, moments, strict=True)) for moments in trace.public["moments"].tolist()
    ]
    apart = [t for t in range(4) if len({when[t][0, j] for j in RING.neighbours[0]}) == 2]
    assert 0 < len(apart) < 4
    bound = account(know(p, la.Adversary()), p.gradients(0), 1.0, certify=False)
    assert math.isinf(bound.mu)
    assert len(bound.leaking) == len(apart)
    for row in bound.leaking:
        quiet = estimate(know(p, la.Adversary(), own=False), [row], rounding=1e-16)
        assert quiet.std[0] < 1e-12
        value = quiet.apply(messages(la.Adversary().view(trace)))[0].numpy()
        true = np.zeros_like(value)
        for place, factor in row.terms.items():
            v = row.home[place]
            true = true + float(factor) * truth.states[f"g.{v.index}"][v.round, 0].numpy()
        assert np.abs(value - true).max() < 1e-10
    one_channel = la.Adversary(hears=frozenset({(0, 1), (1, 0)}))
    assert math.isfinite(account(know(p, one_channel), p.gradients(0), 1.0, certify=False).mu)
    fresh = DPNorm(inner=2, sigma=0.1, alpha=0.2, order="random", noise="inner")
    q = fresh.relations(RING, 4, trace.public)
    assert math.isfinite(account(know(q, la.Adversary()), q.gradients(0), 1.0, certify=False).mu)


def test_at_random_times_an_epsilon_of_1_hides_no_image() -> None:
    """The paper's K, alpha and timing, and the noise of its theorem for epsilon = 1."""
    constants = {"hidden": 64, "inner": 10, "alpha": 0.2, "mu": 0.003, "epsilon": 1.0}
    plan = recording.plan(
        Scenario(
            "dpnorm",
            nodes=4,
            graph="ring",
            rounds=6,
            data="faces",
            model="mlp",
            samples=1,
            seed=1,
            set={**constants, "order": "random"},
        )
    )
    made = recording.record(plan, None)
    found = la.attack(la.leaks(made.trace), generator=torch.Generator().manual_seed(0))
    scores = la.score(found, made.truth_record)
    assert {score.node for score in scores} == {0, 1, 2, 3}
    for score in scores:
        assert score.psnr is not None
        assert (score.psnr[0] or 0) > 60


def test_theorem_1_says_that_it_does_not_cover_random_times() -> None:
    constants: dict[str, Any] = {"inner": 2, "epsilon": 1.0, "records": 40}
    plain, random = (
        DPNorm(**constants, order=order).claims(RING, 9)[0] for order in ("synchronous", "random")
    )
    assert set(random.assumes) - set(plain.assumes) == {
        "synchronous exchanges (section V), which this run does not have"
    }
    assert random.epsilon == plain.epsilon


def test_a_recording_from_before_the_option_was_synchronous() -> None:
    """It states no order, and its public tensors contain no times of messages."""
    trace, _ = recorded(DPNorm(sigma=0.3), rounds=3)
    older = replace(trace, params={k: v for k, v in trace.params.items() if k != "order"})
    protocol = declared.protocol_of(older)
    assert protocol.unstated == ("order",)
    assert protocol.defaulted == ()
    later, _ = recorded(DPNorm(sigma=0.3, inner=2, order="random"), rounds=3)
    untold = replace(later, params={k: v for k, v in later.params.items() if k != "order"})
    assert declared.protocol_of(untold).defaulted == ("order",)


@pytest.mark.parametrize(
    ("moments", "words"),
    [
        (None, "expected a public tensor 'moments' of 12 integers for each of 3 rounds"),
        (torch.ones(3, 11, dtype=torch.long), "12 integers"),
        (torch.ones(2, 12, dtype=torch.long), "each of 3 rounds"),
        (torch.ones(3, 12), "integers"),
        (torch.zeros(3, 12, dtype=torch.long), "outside 1 to 2"),
        (torch.full((3, 12), 3), "outside 1 to 2"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(moments: torch.Tensor | None, words: str) -> None:
    public = {} if moments is None else {"moments": moments}
    with pytest.raises(la.LeakauditError, match=words) as caught:
        DPNorm(inner=2, order="random").relations(RING, 3, public)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sigma": 0.0},
        {"inner": 3, "alpha": 0.2},
        {"inner": 4, "alpha": 0.2, "noise": "inner", "resend": True},
        {"inner": 3, "batch": 15, "resend": True, "eta": "common"},
        {"epsilon": 1.0, "records": 40, "inner": 2, "batch": 20, "alpha": 0.3},
        {"order": "random"},
        {"order": "random", "inner": 4, "alpha": 0.2},
        {"order": "random", "inner": 3, "noise": "inner", "batch": 15, "eta": "common"},
    ],
    ids=[
        *("default", "ECL", "inner", "appendix", "batches", "theorem"),
        *("random times, one step", "random times", "random times, appendix"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_the_declaration_is_what_runs(settings: dict[str, Any], dtype: torch.dtype) -> None:
    for graph in (RING, STAR):
        found = declared.check(*recorded(DPNorm(**settings), graph, 4, dtype))
        assert found.skipped == 0
        assert found.worst < 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize(("inner", "rounds"), [(1, 1500), (5, 300)])
def test_the_optimum_on_a_ring_and_not_on_a_star_unless_eta_is_common(
    inner: int, rounds: int
) -> None:
    def ending(graph: Graph, eta: Any) -> Array:
        recorder = record(DPNorm(sigma=0.0, inner=inner, eta=eta), graph, rounds, wires=False)
        w = recorder.truth_record.states["w"][-1].numpy()
        assert np.abs(w - w.mean(0)).max() < 1e-12
        return np.asarray(w.mean(0))

    plain, degrees = SQUARES.optimum(np.ones(6)), SQUARES.optimum(np.array([5.0, 1, 1, 1, 1, 1]))
    assert np.abs(ending(RING, "node") - plain).max() < 1e-12
    assert np.abs(ending(STAR, "node") - plain).max() == pytest.approx(0.505, abs=0.01)
    assert np.abs(ending(STAR, "node") - degrees).max() < 1e-12
    assert np.abs(ending(STAR, "common") - plain).max() < 1e-12


def test_at_random_times_ecl_reaches_the_optimum() -> None:
    victim = DPNorm(sigma=0.0, inner=5, order="random")
    w = record(victim, RING, 400, wires=False).truth_record.states["w"][-1].numpy()
    assert np.abs(w - SQUARES.optimum(np.ones(6))).max() < 1e-9


@pytest.mark.parametrize(("alpha", "apart"), [(0.01, 0.038), (0.1, 0.32), (1.0, 1.27)])
def test_the_denoising_term_moves_the_models_apart(alpha: float, apart: float) -> None:
    w = (
        record(DPNorm(sigma=0.0, alpha=alpha), RING, 1000, wires=False)
        .truth_record.states["w"][-1]
        .numpy()
    )
    assert np.abs(w - w.mean(0)).max() == pytest.approx(apart, rel=0.02)


@dataclass
class Heard:
    """What an eavesdropper learns of sum_k a^{K-1-k} g_k by `la.leaks`: error and truth (6, T, 5), std (6, T)."""

    error: Array
    true: Array
    std: Array


def heard(
    victim: DPNorm,
    graph: Graph = RING,
    rounds: int = 30,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Heard:
    trace, truth = recorded(victim, graph, rounds, dtype, seed)
    _, _, sums = replay(victim, graph, rounds, trace.public["w0"].double().numpy(), truth)
    found = []
    for leak in la.leaks(trace, rounds=rounds):
        scale = leak.combination.diagonal()
        assert leak.inner == victim.inner
        assert torch.equal(leak.combination, scale.diag())
        g = sums[leak.theta_rounds.numpy(), leak.node]
        found.append(((leak.value / scale[:, None]).numpy() - g, g, (leak.std / scale).numpy()))
    return Heard(*(np.stack(part) for part in zip(*found, strict=True)))


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 2e-13), (torch.float32, 1e-4)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("graph", [RING, STAR], ids=["ring", "star"])
@pytest.mark.parametrize("inner", [1, 3])
def test_without_noise_the_weighted_sum_of_a_round_is_on_the_wire(
    graph: Graph, inner: int, dtype: torch.dtype, limit: float
) -> None:
    found = heard(DPNorm(sigma=0.0, alpha=0.2, inner=inner), graph, dtype=dtype)
    assert found.error.shape == (6, 30, 5)
    assert np.abs(found.error).max() < limit


@pytest.mark.parametrize(("inner", "std", "median"), [(1, 0.333, 0.31), (3, 0.277, 0.11)])
def test_the_noise_of_the_leak_is_as_predicted(inner: int, std: float, median: float) -> None:
    victim = DPNorm(sigma=0.01, alpha=0.2, inner=inner)
    runs = [heard(victim, rounds=12, seed=seed) for seed in range(24)]
    error, predicted = np.stack([r.error for r in runs]), runs[0].std
    assert predicted[:, 1:] == pytest.approx(std, rel=0.005)
    assert error[:, :, 1:].std() / predicted[0, 1] == pytest.approx(1, abs=0.02)
    assert error[:, :, 0].std() / predicted[0, 0] == pytest.approx(
        1, abs=0.08
    )  # the first step starts from a model without noise
    long = heard(victim)
    relative = np.linalg.norm(long.error, axis=2) / np.linalg.norm(long.true, axis=2)
    assert np.median(relative) == pytest.approx(median, rel=0.1)


@pytest.mark.parametrize("inner", [1, 3])
def test_the_mean_over_rounds_is_far_quieter(inner: int) -> None:
    victim, rounds = DPNorm(sigma=0.01, alpha=0.2, inner=inner), 12
    p = victim.relations(RING, rounds, {})
    a = 0.75 if inner == 1 else 5 / 6
    weights = [a ** (inner - 1 - k) / rounds for k in range(inner)] * rounds
    mean = sum(
        (str(w) * g for w, g in zip(weights, p.gradients(0), strict=True)),
        start=0 * p.gradients(0)[0],
    )
    predicted = float(estimate(know(p, la.Adversary()), [mean]).std[0])
    found = [heard(victim, rounds=rounds, seed=seed) for seed in range(24)]
    assert predicted < 0.4 * found[0].std[0, 1]
    assert np.stack([f.error.mean(1) for f in found]).std() / predicted == pytest.approx(
        1, abs=0.08
    )


@pytest.mark.parametrize(("inner", "expected"), [(1, 2.9522), (3, 6.0160)])
def test_exact_mu_is_the_sum_of_the_shifts_that_add_up_in_the_model(
    inner: int, expected: float
) -> None:
    victim = DPNorm(sigma=0.1, alpha=0.2, inner=inner)
    p = victim.relations(RING, 8, {})
    found = account(know(p, la.Adversary()), p.gradients(0), 1.0)
    a, shift, total = 0.75 if inner == 1 else 5 / 6, 0.0, 0.0
    for _ in range(8):
        for _ in range(inner):
            shift = a * (shift + victim.mu)
        total += shift**2 / victim.sigma**2
    assert found.mu == pytest.approx(math.sqrt(total), rel=1e-9)
    assert found.mu == pytest.approx(expected, rel=1e-4)
    assert found.certificate[0] == 2
    assert set(found.certificate[inner:]) == {1}


@pytest.mark.parametrize(("noise", "exact"), [("round", 3), ("inner", 0)])
def test_sending_twice_in_a_round_cancels_its_noise(noise: Any, exact: int) -> None:
    victim = DPNorm(inner=2, alpha=0.2, resend=True, noise=noise, batch=40)
    trace, truth = recorded(victim, rounds=3)
    p = victim.relations(RING, 3, {})
    bound = account(know(p, la.Adversary()), p.gradients(0), 1.0, certify=False)
    assert len(bound.leaking) == exact
    assert math.isinf(bound.mu) == bool(exact)
    once = DPNorm(inner=2, alpha=0.2).relations(RING, 3, {})
    assert math.isfinite(
        account(know(once, la.Adversary()), once.gradients(0), 1.0, certify=False).mu
    )
    g = {
        f"g[0|{k},{t}]": truth.states[f"g.{k}"][t, 0].numpy() for k in range(2) for t in range(1, 4)
    }
    for row in bound.leaking:
        quiet = estimate(know(p, la.Adversary(), own=False), [row], rounding=1e-16)
        assert quiet.std[0] < 1e-12
        value = quiet.apply(messages(la.Adversary().view(trace)))[0].numpy()
        true = sum(float(v) * g[row.home[k].label] for k, v in row.terms.items())
        assert np.abs(value - true).max() < 1e-11


def exact_delta(mu: float, epsilon: float) -> float:
    """Return delta(epsilon) of a Gaussian mechanism of shift mu."""
    return float(
        norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    )


def test_theorem_1_at_the_papers_constants() -> None:
    ratio = level(1.0, 1e-3, 2000, "eq8")
    assert ratio == pytest.approx(167.7, abs=0.05)
    needed = brentq(lambda s: exact_delta(math.sqrt(2000) / s, 1.0) - 1e-3, 1, 1e4)
    assert needed == pytest.approx(115.1, abs=0.05)
    assert ratio / needed == pytest.approx(1.46, abs=0.005)
    delta = sensitivity(1 + 0.2 / (0.03 * 2 * 10), 0.03, 10, 4000, 2000, 1.0)
    assert delta == pytest.approx(0.00102, abs=5e-6)
    assert ratio * delta == pytest.approx(0.171, abs=5e-4)


@pytest.mark.parametrize(("nominal", "true"), [(0.25, 0.33), (0.1, 0.215), (0.05, 0.157)])
def test_theorem_1_as_printed_is_too_quiet_below_epsilon_04(nominal: float, true: float) -> None:
    def real(form: Any) -> float:
        shift = math.sqrt(2000) / level(nominal, 1e-3, 2000, form)
        return float(brentq(lambda e: exact_delta(shift, e) - 1e-3, 1e-9, 50))

    assert real("printed") == pytest.approx(true, abs=0.005)
    assert real("printed") > nominal > real("eq8")
    assert level(1.0, 1e-3, 2000, "printed") == level(1.0, 1e-3, 2000, "eq8")


@pytest.mark.parametrize("form", ["eq8", "printed"])
def test_the_epsilon_of_a_noise_level_inverts_the_theorem(form: Any) -> None:
    for epsilon in (0.05, 1.0, 20.0):
        assert guaranteed(level(epsilon, 1e-3, 300, form), 1e-3, 300, form) == pytest.approx(
            epsilon, rel=1e-9
        )


def test_claims_in_both_forms() -> None:
    victim = DPNorm(mu=0.03, inner=10, alpha=0.2, epsilon=0.1, batch=2000, records=4000)
    printed, eq8 = sorted(victim.claims(RING, 2000), key=lambda c: c.source, reverse=False)
    assert "printed" in printed.source
    assert printed.epsilon == eq8.epsilon == 0.1
    assert printed.std is not None
    assert eq8.std is not None
    assert printed.std * 3 < eq8.std
    assert float(victim.schedule(RING, 2000, torch.Generator())["sigma"][0]) == pytest.approx(
        eq8.std
    )
    given = DPNorm(mu=0.03, inner=10, alpha=0.2, sigma=eq8.std, batch=2000, records=4000)
    assert sorted(c.epsilon or 0 for c in given.claims(RING, 2000))[1] == pytest.approx(0.1)
    (optimum,) = DPNorm(sigma=0.0).claims(STAR, 10)
    assert optimum.epsilon is None
    assert DPNorm().claims(RING, 10) == ()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mu": 0.0}, "mu, lipschitz > 0"),
        ({"sigma": -1.0}, "sigma"),
        ({"delta": 1.0}, "0 < delta < 1"),
        ({"epsilon": 1.0}, "set records"),
        ({"resend": True}, "set inner=2"),
    ],
)
def test_wrong_constants_are_refused_in_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(la.LeakauditError, match=words) as caught:
        DPNorm(**settings)
    assert "\n" not in str(caught.value)


def test_the_records_that_set_the_noise_must_be_those_held() -> None:
    with pytest.raises(la.LeakauditError, match="records=30"):
        record(DPNorm(epsilon=1.0, records=30), RING, 2)
    with pytest.raises(la.LeakauditError, match="batch"):
        record(DPNorm(batch=41), RING, 2)
    with pytest.raises(la.LeakauditError, match="each of 6 nodes"):
        DPNorm().relations(RING, 2, {"sigma": torch.ones(5)})


def test_the_single_node_reference_descends_on_everybodys_records_and_sends_nothing() -> None:
    task, random = (
        Task.build(TaskSpec("linear", {"bias": False}, "squared", (5,), 1), dtype=torch.float64),
        generators(0, "model", "run"),
    )
    victim, w0 = Single(mu=0.2, inner=2), task.init(random["model"])
    recorder = Recorder(
        None,
        protocol="single",
        task=task,
        graph=RING,
        params=la.registry.values(victim),
        public={"w0": w0},
        rounds=80,
        options=RecorderOptions(dtype=w0.dtype, keep_states=True),
    )
    x, y = torch.tensor(SQUARES.x), torch.tensor(SQUARES.y)
    with recorder:
        for i in range(6):
            recorder.truth(i, x[i], y[i])
        victim.run(Problem(task, x, y), RING, 80, recorder, random["run"], RING.edges)
    assert len(recorder.trace) == victim.messages(RING, 80, RING.edges) == 0
    assert declared.check(recorder.trace, recorder.truth_record).skipped == 0
    w, plain = recorder.truth_record.states["w"].numpy(), w0.numpy()
    for t in range(1, 81):
        for _ in range(2):
            plain = plain - 0.2 * np.mean([SQUARES.gradient(i, plain) for i in range(6)], axis=0)
        assert np.abs(w[t] - plain).max() < 1e-13
    assert np.abs(w[80] - SQUARES.optimum(np.ones(6))).max() < 1e-10
    assert set(la.leaks(recorder.trace).undetermined) == set(range(6))


def test_faces_come_back_bit_for_bit_from_messages_without_noise() -> None:
    made = Scenario(
        "dpnorm", nodes=3, graph="star", rounds=4, set={"hidden": "32", "sigma": 0.0, "alpha": 0.2}
    )
    recorder = recording.record(recording.plan(made), None)
    found = la.attack(la.leaks(recorder.trace), generator=torch.Generator().manual_seed(0))
    assert [s.exact for s in la.score(found, recorder.truth_record)] == [(True,)] * 3
