"""DP-dKM: Algorithm 1 in plain loops with three operators, its bias floors, its mechanisms, its leak, and its theorems."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import integrate, stats

import leakaudit as la
from leakaudit.core.trace import Graph, TaskSpec, Trace, Truth
from leakaudit.protocols import declared, recording
from leakaudit.protocols import topology as graphs
from leakaudit.protocols.noises import Noise, calibrated
from leakaudit.protocols.recording import generators
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Problem, Task
from leakaudit.theory.relations import account, determined, know
from leakaudit.traces.recorder import Recorder, RecorderOptions
from leakaudit.victims.dkm import DKM

Array = NDArray[np.float64]
MECHANISMS = ("laplace", "gaussian", "truncated_laplace", "truncated_gaussian")
KINDS = ("ring", "star", "complete")


class Lasso:
    """Five agents with 40 rows of least squares in 8 dimensions, a sparse truth, and the largest step of all operators."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        self.x = np.stack([draw.normal(size=(40, 8)) for _ in range(5)])
        truth = draw.normal(size=8) * (draw.random(8) < 0.6)
        self.y = np.stack([x @ truth + 0.1 * draw.normal(size=40) for x in self.x])
        self.h = np.stack([x.T @ x / 40 for x in self.x])
        self.c = np.stack([x.T @ y / 40 for x, y in zip(self.x, self.y, strict=True)])
        self.gamma = 0.9 / max(float(np.linalg.eigvalsh(h)[-1]) for h in self.h)

    def optimum(self, l1: float) -> Array:
        h, c = self.h.mean(0), self.c.mean(0)
        x = np.linalg.solve(h, c)
        for _ in range(20000 if l1 else 0):
            x = soft(x - self.gamma * (h @ x - c), self.gamma * l1)
        return np.asarray(x)


def soft(x: Array, by: float) -> Array:
    return np.asarray(np.sign(x) * np.maximum(np.abs(x) - by, 0))


LASSO = Lasso()
L1 = 0.025


def graph(kind: str) -> Graph:
    return graphs.make(kind, 5, torch.Generator())


def record(
    victim: DKM,
    kind: str,
    rounds: int,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    wires: bool = True,
) -> tuple[Trace, Truth]:
    task, random = (
        Task.build(TaskSpec("linear", {"bias": False}, "squared", (8,), 1), dtype=dtype),
        generators(seed, "model", "run"),
    )
    around = graph(kind)
    recorder = Recorder(
        None,
        protocol="dkm",
        task=task,
        graph=around,
        params={**la.registry.values(victim), "samples": 40},
        rounds=rounds,
        public={"w0": task.init(random["model"])},
        options=RecorderOptions(dtype=dtype, keep_states=True),
    )
    x, y = torch.tensor(LASSO.x, dtype=dtype), torch.tensor(LASSO.y, dtype=dtype)
    with recorder:
        for i in range(5):
            recorder.truth(i, x[i], y[i])
        victim.run(
            Problem(task, x, y),
            around,
            rounds,
            recorder,
            random["run"],
            around.edges if wires else [],
        )
    return recorder.trace, recorder.truth_record


def metropolis(around: Graph) -> Array:
    w = np.zeros((5, 5))
    for i, j in around.arcs:
        w[i, j] = 1 / (1 + max(around.degree(i), around.degree(j)))
    return np.asarray(w + np.diag(1 - w.sum(1)))


def operator(victim: DKM) -> Callable[[int, Array], Array]:
    """Return T, with the proximal point of the squares in closed form."""
    g, shrink = victim.gamma, victim.gamma * victim.l1

    def near(m: int, x: Array) -> Array:
        return np.asarray(np.linalg.solve(np.eye(8) + g * LASSO.h[m], x + g * LASSO.c[m]))

    if victim.operator == "dr":
        return lambda m, x: x + near(m, 2 * soft(x, shrink) - x) - soft(x, shrink)
    return lambda m, x: soft(x - g * (LASSO.h[m] @ x - LASSO.c[m]), shrink)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"operator": "pgd", "l1": L1}, {"operator": "dr", "l1": L1}],
    ids=["gd", "pgd", "dr"],
)
@pytest.mark.parametrize("mechanism", ["none", "truncated_gaussian"])
def test_it_broadcasts_what_algorithm_1_broadcasts(
    kind: str, settings: dict[str, Any], mechanism: Any
) -> None:
    victim = DKM(
        gamma=LASSO.gamma, alpha=0.8, fade=5.0, mechanism=mechanism, sensitivity=0.01, **settings
    )
    trace, truth = record(victim, kind, 10)
    w, t_of, view = metropolis(graph(kind)), operator(victim), la.Adversary().view(trace)
    x = told = np.tile(trace.public["w0"].numpy(), (5, 1))
    for k in range(10):
        step = np.stack([t_of(m, x[m]) - x[m] for m in range(5)])
        x = w @ told + 0.8 / (1 + k / 5) * step
        noise = truth.states["n"][k + 1].numpy() if mechanism != "none" else np.zeros_like(x)
        told = x + noise
        for i, j in trace.graph.arcs:
            assert np.abs(view.message(k + 1, i, j, "x").numpy() - told[i]).max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("mechanism", ["none", *MECHANISMS])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batch": 7, "fade": 3.0},
        {"operator": "pgd", "l1": L1, "batch": 7},
        {"operator": "pgd"},
        {"operator": "dr", "l1": L1},
        {"operator": "dr"},
    ],
    ids=["gd", "sgd", "spgd", "pgd without l1", "dr", "dr without l1"],
)
def test_the_declaration_is_what_runs(
    settings: dict[str, Any], mechanism: Any, dtype: torch.dtype
) -> None:
    found = declared.check(
        *record(DKM(mechanism=mechanism, sensitivity=0.01, **settings), "ring", 4, dtype)
    )
    assert found.skipped == 0
    assert found.worst < 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", ["ring", "complete"])
def test_gd_reaches_the_optimum_and_pgd_stops_at_its_bias(kind: str) -> None:
    def off(rounds: int, **settings: Any) -> Array:
        """Return how far the agents' mean is from the optimum after every round."""
        _, truth = record(
            DKM(gamma=LASSO.gamma, alpha=1.0, fade=20.0, **settings), kind, rounds, wires=False
        )
        return np.asarray(
            np.abs(truth.states["w"].mean(1).numpy() - LASSO.optimum(settings.get("l1", 0.0))).max(
                1
            )
        )

    plain = off(3000)
    assert plain[3000] < 0.6 * plain[1500] < 3e-5
    assert off(3000, operator="pgd", l1=L1)[-1] == pytest.approx(1.36e-4, rel=0.05)


@pytest.mark.slow
def test_douglas_rachford_stops_at_its_bias() -> None:
    victim = DKM(gamma=LASSO.gamma, alpha=1.0, fade=20.0, operator="dr", l1=L1)
    _, truth = record(victim, "complete", 3000, wires=False)
    model = soft(truth.states["w"][-1].numpy(), LASSO.gamma * L1).mean(0)
    assert np.abs(model - LASSO.optimum(L1)).max() == pytest.approx(2.84e-3, rel=0.01)


def gradients(truth: Truth, node: int, rounds: torch.Tensor, at: str = "w") -> Array:
    w = truth.states[at].double().numpy()
    return np.stack([LASSO.h[node] @ w[t, node] - LASSO.c[node] for t in rounds.tolist()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-13), (torch.float32, 1e-4)], ids=["float64", "float32"]
)
@pytest.mark.parametrize(("how", "at"), [("gd", "w"), ("pgd", "w"), ("dr", "v")])
def test_an_eavesdropper_computes_every_gradient(
    kind: str, how: Any, at: str, dtype: torch.dtype, limit: float
) -> None:
    trace, truth = record(DKM(operator=how, gamma=LASSO.gamma, fade=5.0), kind, 20, dtype)
    leaks = la.leaks(trace, rounds=20)
    assert [leak.node for leak in leaks] == list(range(5))
    for leak in leaks:
        assert leak.combination.shape == (20, 20)
        assert leak.is_plain
        assert (
            np.abs(leak.value.numpy() - gradients(truth, leak.node, leak.theta_rounds, at)).max()
            < limit
        )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_noise_of_one_round_is_all_that_is_on_it(mechanism: Any) -> None:
    victim, ratios = DKM(gamma=LASSO.gamma, mechanism=mechanism, sensitivity=0.01), []
    noise = calibrated(mechanism, victim.epsilon, victim.delta, victim.sensitivity)
    assert noise is not None
    for seed in range(8):
        trace, truth = record(victim, "ring", 40, seed=seed)
        for leak in la.leaks(trace, rounds=40):
            assert leak.std.numpy() == pytest.approx(noise.std / (0.5 * LASSO.gamma), rel=1e-6)
            ratios.append(
                (leak.value.numpy() - gradients(truth, leak.node, leak.theta_rounds))
                / leak.std.numpy()[:, None]
            )
    assert np.stack(ratios).std() == pytest.approx(1, abs=0.03)


def test_with_a_regulariser_the_step_leaks_and_not_the_gradient() -> None:
    for how in ("pgd", "dr"):
        p = DKM(operator=how, l1=L1).relations(graph("ring"), 4, {})
        k = know(p, la.Adversary())
        assert determined(k, p.gradients(0)) == []
        if how == "pgd":
            assert determined(k, p.select("state", 0, "v")) == p.select("state", 0, "v")


def test_exact_mu_of_gaussian_broadcasts_and_no_mu_of_others() -> None:
    rounds, bound = 12, 1.5
    victim = DKM(mechanism="gaussian", alpha=1.0, fade=5.0, sensitivity=0.2)
    p = victim.relations(graph("ring"), rounds, {})
    noise = calibrated("gaussian", 0.5, 1e-3, 0.2)
    assert noise is not None
    found = account(know(p, la.Adversary()), p.gradients(0), 2 * bound / victim.gamma)
    shifts = [2 * bound / (1 + k / 5) for k in range(rounds)]
    assert found.mu == pytest.approx(math.sqrt(sum(s * s for s in shifts)) / noise.std, rel=1e-6)
    assert found.certificate == (2, *[1] * (rounds - 1))
    for other in ("laplace", "truncated_laplace", "truncated_gaussian"):
        p = DKM(mechanism=other, sensitivity=0.01).relations(graph("ring"), 2, {})
        with pytest.raises(la.LeakauditError, match=other):
            account(know(p, la.Adversary()), p.gradients(0), 1.0)


def density(noise: Noise) -> Callable[[float], float]:
    def plain(z: float) -> float:
        return math.exp(-((abs(z) / noise.scale) ** noise.power)) if abs(z) <= noise.width else 0.0

    edge = min(noise.width, 50 * noise.scale)
    mass = 2 * integrate.quad(plain, 0, edge, epsabs=1e-14, limit=200)[0]
    return lambda z: plain(z) / mass


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-3), (2.0, 1e-6)])
def test_noise_has_the_density_and_the_std_that_it_says(
    mechanism: Any, epsilon: float, delta: float
) -> None:
    noise = calibrated(mechanism, epsilon, delta, 0.3)
    assert noise is not None
    assert noise.law == mechanism
    edge, f = min(noise.width, 50 * noise.scale), density(noise)
    variance = 2 * integrate.quad(lambda z: z * z * f(z), 0, edge, epsabs=1e-14, limit=200)[0]
    assert noise.std == pytest.approx(math.sqrt(variance), rel=1e-6)
    drawn = noise.draw(
        torch.zeros(20000, dtype=torch.float64), torch.Generator().manual_seed(1)
    ).numpy()
    grid = np.linspace(-edge, edge, 40001)
    cumulative = integrate.cumulative_trapezoid([f(z) for z in grid], grid, initial=0)
    assert np.abs(drawn).max() <= noise.width

    def p_value(scale: float) -> float:
        return float(stats.kstest(drawn * scale, lambda z: np.interp(z, grid, cumulative)).pvalue)

    assert p_value(1.0) > 0.01
    assert max(p_value(2 / 3), p_value(3 / 2)) < 1e-6


def test_the_papers_constants() -> None:
    laplace, cut = (calibrated(m, 1.0, 1e-5, 1.0) for m in ("laplace", "truncated_laplace"))
    assert laplace is not None
    assert cut is not None
    assert (laplace.scale, laplace.width) == (1.0, math.inf)
    assert [cut.scale, cut.width] == pytest.approx([1.0, 11.36111478])
    assert cut.std**2 == pytest.approx(1.998233152)
    gauss = calibrated("truncated_gaussian", 0.5, 1e-3, 1.0)
    assert gauss is not None
    assert gauss.scale**2 == pytest.approx(2.0)
    assert gauss.width == pytest.approx(4.08, abs=0.005)
    normal = calibrated("gaussian", 0.5, 1e-3, 1.0)
    assert normal is not None
    assert normal.std == pytest.approx(math.sqrt(2 * math.log(1250)) / 0.5)
    with pytest.raises(la.LeakauditError, match="no A"):
        calibrated("truncated_gaussian", 0.5, 1e-300, 1.0)


def true_delta(noise: Noise, epsilon: float) -> float:
    """Return delta of a shift by 1 of one coordinate."""
    f, edge = density(noise), noise.width
    z = np.linspace(-edge, edge + 1, 200001)
    p, q = np.array([f(v) for v in z]), np.array([f(v - 1) for v in z])
    return float(integrate.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), z))


@pytest.mark.parametrize(
    ("epsilon", "delta", "true"),
    [(0.5, 1e-3, 0.238), (1.0, 1e-3, 0.286), (0.5, 1e-5, 0.238), (2.0, 1e-3, 0.332)],
)
def test_truncated_laplace_keeps_its_delta_on_one_coordinate_and_truncated_gaussian_does_not(
    epsilon: float, delta: float, true: float
) -> None:
    laplace, gauss = (
        calibrated(m, epsilon, delta, 1.0) for m in ("truncated_laplace", "truncated_gaussian")
    )
    assert laplace is not None
    assert gauss is not None
    assert true_delta(laplace, epsilon) == pytest.approx(delta, rel=0.1)
    assert true_delta(gauss, epsilon) == pytest.approx(true, abs=0.002)


def test_claims() -> None:
    assert DKM().claims(graph("ring"), 10) == ()
    for mechanism in MECHANISMS:
        release, total = la.registry.configure(
            DKM, {"mechanism": mechanism, "sensitivity": 0.01}
        ).claims(graph("ring"), 10)
        assert release.epsilon == 0.5
        assert (release.delta == 0) == (mechanism == "laplace")
        assert total.epsilon == pytest.approx(0.5 * 50)
        assert total.std == release.std
    given = DKM(mechanism="gaussian", records=100, alpha=0.1, horizon=10, batch=2, gamma=0.4)
    release, whole, _ = given.claims(graph("complete"), 10)
    assert (release.rounds, whole.rounds, whole.epsilon) == (1, 10, 0.5)
    assert whole.sensitivity == pytest.approx(2 * 1 / 0.4 / 2)  # gamma |g| <= B, mean of 2 records
    assert whole.sampled
    (first,) = DKM(records=100, alpha=0.1).claims(graph("complete"), 10)
    double = sum(1.2 * 0.1 for k in range(1, 10))  # with lambda = 0 the last term alone
    assert f"{2 * 10 * 0.1 / 500 + 4 * double:.4g}" in first.promise
    ring = DKM(records=100, alpha=0.1, fade=7.0)._theorem_1(graph("ring"), 6)
    alpha, mixing = (
        [0.1 / (1 + k / 7) for k in range(6)],
        float(np.sort(np.abs(np.linalg.eigvalsh(metropolis(graph("ring")))))[-2]),
    )
    assert mixing == pytest.approx(0.539, abs=5e-4)
    pairs = sum(
        (1 + 2 * alpha[k]) * alpha[j] * mixing ** (k - 1 - j) for k in range(6) for j in range(k)
    )
    assert ring == pytest.approx(2 * sum(alpha) / 500 + 4 * pairs)
    assert ring > 2 * sum(alpha)  # above the trivial bound


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"alpha": 1.5}, "alpha <= 1"),
        ({"gamma": 0.0}, "gamma"),
        ({"delta": 0.5}, "delta < 0.5"),
        ({"epsilon": 0.0}, "epsilon > 0"),
        ({"l1": 0.1}, "operator=pgd or dr"),
    ],
)
def test_wrong_constants_are_refused_in_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(la.LeakauditError, match=words) as caught:
        DKM(**settings)
    assert "\n" not in str(caught.value)


def test_faces_come_back_bit_for_bit_from_broadcasts_without_noise() -> None:
    made = Scenario("dkm", nodes=3, graph="star", rounds=4, set={"hidden": "32"})
    recorder = recording.record(recording.plan(made), None)
    found = la.attack(la.leaks(recorder.trace), generator=torch.Generator().manual_seed(0))
    assert [s.exact for s in la.score(found, recorder.truth_record)] == [(True,)] * 3


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("fade", [0.0, 3.0])
def test_the_noise_is_calibrated_to_delta_k_of_theorem_1(mechanism: Any, fade: float) -> None:
    """E Delta_K <= 2B sum_k a_k / (N M) + 4B sum_k (1 + 2 a_k) sum_{j<k} a_j lambda^{k-1-j}."""
    bound, records, rounds, ring = 0.3, 7, 6, graph("ring")
    w = np.linalg.eigvalsh(metropolis(ring))
    mixing = sorted(abs(w))[-2]
    alpha = [0.5 / (1 + k / fade) if fade else 0.5 for k in range(rounds)]
    far = sum(
        (1 + 2 * alpha[k]) * sum(alpha[j] * mixing ** (k - 1 - j) for j in range(k))
        for k in range(rounds)
    )
    most = 2 * bound * sum(alpha) / (records * ring.nodes) + 4 * bound * far
    made = DKM(mechanism=mechanism, bound=bound, records=records, horizon=rounds, fade=fade)
    wanted = calibrated(mechanism, 0.5, 1e-3, most)
    assert wanted is not None
    # The noise of a shorter recording of the same run is the same.
    for told in (2, rounds):
        declared_noise = [v for v in made.relations(ring, told, {}).vectors if v.kind == "noise"]
        assert [v.std for v in declared_noise] == pytest.approx([wanted.std] * 5 * told, rel=1e-12)
    assert made.claims(ring, rounds)[0].calibrated_to == pytest.approx(most, rel=1e-12)


def test_theorem_1_needs_what_it_depends_on() -> None:
    with pytest.raises(la.LeakauditError, match="set records and horizon for it, or sensitivity=…"):
        DKM(mechanism="laplace")
