"""The ADMM baselines against plain loops of their papers' updates, measured figures of those, and what an eavesdropper recovers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import leakaudit as la
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Graph, TaskSpec
from leakaudit.protocols import declared, recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Problem, Task
from leakaudit.theory.relations import Relations, account, is_determined, know
from leakaudit.traces.recorder import Recorder, RecorderOptions

NODES = 8
RING = Graph(
    NODES, tuple(sorted((min(i, (i + 1) % NODES), max(i, (i + 1) % NODES)) for i in range(NODES)))
)
STAR = Graph(NODES + 1, tuple((i, NODES) for i in range(NODES)))
NEAR = [((i - 1) % NODES, (i + 1) % NODES) for i in range(NODES)]


@dataclass(frozen=True)
class Loss:
    """Losses of eight nodes: x (8, m, d), y (8, m); least squares, or logistic with labels -1 and 1 and l2/2 |w|^2."""

    x: np.ndarray
    y: np.ndarray
    l2: float

    @property
    def logistic(self) -> bool:
        return self.l2 > 0

    def gradient(self, i: int, w: np.ndarray) -> np.ndarray:
        a, b = self.x[i], self.y[i]
        if not self.logistic:
            return np.asarray(a.T @ (a @ w - b) / len(b))
        return np.asarray(-a.T @ (b / (1 + np.exp(b * (a @ w)))) / len(b) + self.l2 * w)

    def gradients(self, w: np.ndarray) -> np.ndarray:
        return np.stack([self.gradient(i, w[i]) for i in range(NODES)])

    def hessian(self, i: int, w: np.ndarray) -> np.ndarray:
        a, b, size = self.x[i], self.y[i], self.x.shape[2]
        if not self.logistic:
            return np.asarray(a.T @ a / len(b))
        q = 1 / (1 + np.exp(b * (a @ w)))
        return np.asarray((a.T * (q * (1 - q))) @ a / len(b) + self.l2 * np.eye(size))

    def argmin(self, i: int, linear: np.ndarray, weight: float) -> np.ndarray:
        """argmin f_i(w) + linear'w + weight/2 |w|^2 by Newton."""
        w = np.zeros(self.x.shape[2])
        for _ in range(30):
            w = w - np.linalg.solve(
                self.hessian(i, w) + weight * np.eye(len(w)),
                self.gradient(i, w) + linear + weight * w,
            )
        return w

    @property
    def optimum(self) -> np.ndarray:
        w = np.zeros(self.x.shape[2])
        for _ in range(30):
            w = w - np.linalg.solve(
                sum(self.hessian(i, w) for i in range(NODES)),
                sum(self.gradient(i, w) for i in range(NODES)),
            )
        return w

    @property
    def lipschitz(self) -> float:
        """The largest curvature, as the documents' figures take it."""
        if self.logistic:
            return 0.25 + self.l2
        return max(
            float(np.linalg.eigvalsh(self.hessian(i, self.x[0, 0]))[-1]) for i in range(NODES)
        )

    @property
    def task(self) -> Task:
        name, loss, outputs = (
            ("logistic", "binary", 2) if self.logistic else ("linear", "squared", 1)
        )
        args = {"bias": False, "l2": self.l2}
        return Task.build(
            TaskSpec(name, args, loss, (self.x.shape[2],), outputs), dtype=torch.float64
        )


def squares() -> Loss:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(30, 10)) for _ in range(NODES)]
    y = [a @ (2 * rng.normal(size=10)) + 0.1 * rng.normal(size=30) for a in x]
    return Loss(np.stack(x), np.stack(y), 0.0)


def classes() -> Loss:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(40, 5)) for _ in range(NODES)]
    x = [a / np.maximum(1, np.linalg.norm(a, axis=1, keepdims=True)) for a in x]
    y = [
        np.where(rng.random(40) < 1 / (1 + np.exp(-3 * a @ rng.normal(size=5))), 1.0, -1.0)
        for a in x
    ]
    return Loss(np.stack(x), np.stack(y), 0.1)


LOSSES = {"squares": squares(), "logistic": classes()}
both = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def victim(name: str, **settings: Any) -> Any:
    return registry.configure(registry.get("victims", name), settings)


def run(loss: Loss, name: str, rounds: int, seed: int = 0, **settings: Any) -> Recorder:
    """Run from zero in float64 on the ring, or on a star."""
    chosen, task, random = victim(name, **settings), loss.task, torch.Generator().manual_seed(seed)
    graph = STAR if chosen.centralised else RING
    start = {
        "w0": torch.zeros(loss.x.shape[2], dtype=torch.float64),
        **chosen.schedule(graph, rounds, random),
    }
    recorder = Recorder(
        None,
        protocol=name,
        task=task,
        graph=graph,
        params={**registry.values(chosen), "samples": loss.x.shape[1]},
        rounds=rounds,
        public=start,
        options=RecorderOptions(dtype=torch.float64, keep_states=True),
    )
    with recorder:
        y = torch.tensor((loss.y + 1) / 2 if loss.logistic else loss.y)
        chosen.run(
            Problem(task, torch.tensor(loss.x), y), graph, rounds, recorder, random, graph.edges
        )
    return recorder


def states(recorder: Recorder) -> dict[str, np.ndarray]:
    return {
        name: np.nan_to_num(value.numpy()) for name, value in recorder.truth_record.states.items()
    }


def distance(recorder: Recorder, loss: Loss) -> np.ndarray:
    """Largest error of a coordinate in every round, (rounds + 1,)."""
    error: np.ndarray = abs(states(recorder)["w"] - loss.optimum).max((1, 2))
    return error


def summed(v: np.ndarray) -> np.ndarray:
    """sum_j v_j over the neighbours on the ring."""
    out: np.ndarray = np.stack([sum(v[j] for j in NEAR[i]) for i in range(NODES)])
    return out


def recovered(recorder: Recorder, rounds: int, taken: Callable[[int, int], np.ndarray]) -> float:
    """Largest error of what an eavesdropper says about gradients; taken(i, t): the truth of node i in the relations' round t."""
    worst, leaks = 0.0, la.leaks(recorder.trace, rounds=rounds)
    assert len(leaks) == NODES
    for leak in leaks:
        assert leak.is_plain
        assert torch.equal(leak.combination, leak.combination.diag().diag())
        for k, t in enumerate(leak.theta_rounds.tolist()):
            worst = max(
                worst,
                float(
                    abs(
                        leak.value[k].numpy() / float(leak.combination[k, k]) - taken(leak.node, t)
                    ).max()
                ),
            )
    return worst


def epsilon_of(mu: float, delta: float) -> float:
    """Exact epsilon of mu-Gaussian differential privacy."""

    def phi(z: float) -> float:
        return 0.5 * math.erfc(-z / math.sqrt(2))

    low, high = 0.0, 60.0
    for _ in range(100):
        middle = (low + high) / 2
        value = phi(mu / 2 - middle / mu) - math.exp(middle) * phi(-mu / 2 - middle / mu)
        low, high = (middle, high) if value > delta else (low, middle)
    return high


# ---------------------------------------------------------------- Zhang and Zhu


def zhang(
    loss: Loss, settings: Mapping[str, Any], noise: np.ndarray, phi: float = 0.0
) -> np.ndarray:
    """D-ADMM, DVP and PVP node by node; noise (rounds + 1, N, d) as it is added."""
    eta, size = settings["eta"], loss.x.shape[2]
    w, lam = np.zeros((NODES, size)), np.zeros((NODES, size))
    sent = w
    for n in noise[1:]:
        mu = lam + n if settings["perturb"] == "dual" else lam
        centre = eta * (2 * sent + summed(sent))
        if settings["update"] == "exact":
            w = np.stack(
                [loss.argmin(i, 2 * mu[i] - centre[i], 4 * eta + phi) for i in range(NODES)]
            )
        else:
            beta = settings["curvature"]
            w = (beta * w + centre - 2 * mu - loss.gradients(w)) / (beta + 4 * eta + phi)
        sent = w + n if settings["perturb"] == "primal" else w
        lam = lam + eta / 2 * (2 * sent - summed(sent))
    return w


@both
@pytest.mark.parametrize("perturb", ["none", "dual", "primal"])
@pytest.mark.parametrize("update", ["exact", "gradient"])
def test_zhang_and_zhu_is_the_plain_loop(loss: Loss, perturb: str, update: str) -> None:
    settings: dict[str, Any] = {
        "eta": 0.3,
        "curvature": 3.0,
        "perturb": perturb,
        "update": update,
        "records": 40,
    }
    got = states(run(loss, "pvpadmm", 25, **settings))
    np.testing.assert_allclose(got["w"][-1], zhang(loss, settings, got["n"]), atol=1e-13)
    assert got["n"].any() == (perturb != "none")


@both
def test_d_admm_converges_and_leaks_every_gradient(loss: Loss) -> None:
    """BASELINES.md 1: 1.9e-15 and 9e-16 in the end."""
    recorder = run(loss, "pvpadmm", 350, eta=0.3)
    w = states(recorder)["w"]
    assert distance(recorder, loss)[-1] < 1e-14
    assert recovered(recorder, 20, lambda i, t: loss.gradient(i, w[t, i])) < 1e-13


@both
def test_what_the_perturbed_variables_leave_of_the_gradient(loss: Loss) -> None:
    """The gradient + 2n (DVP), - 2 eta E_i q (PVP): one noise on each, nothing accumulates."""
    for perturb, factor in (("dual", 2), ("primal", -2 * 0.3 * 2)):
        recorder = run(loss, "pvpadmm", 30, perturb=perturb, records=40)
        got, p = states(recorder), declared.protocol_of(recorder.trace).whole
        assert (
            recovered(
                recorder,
                20,
                lambda i, t, f=factor, s=got: loss.gradient(i, s["w"][t, i]) + f * s["n"][t, i],  # type: ignore[misc]
            )
            < 1e-12
        )
        std = abs(factor) * p.vectors[p.find("n", 0, 5).vector].std
        assert float(la.leaks(recorder.trace)[0].std[4]) == pytest.approx(std, rel=1e-6)


@pytest.mark.slow
@both
def test_perturbed_variables_stop_at_a_plateau(loss: Loss) -> None:
    """BASELINES.md 1: noise of sd .02 a coordinate leaves .04 to .12 (squares .068, .041; logistic .088, .054), no growth."""
    size = 0.02 / math.sqrt(loss.x.shape[2] + 1)  # 1 / rate of the noise
    for perturb, alpha in (("dual", 1 / size), ("primal", 2 / size)):
        recorder = run(loss, "pvpadmm", 600, eta=0.3, perturb=perturb, alpha=alpha, convexity=1.0)
        assert states(recorder)["n"][1:].std() == pytest.approx(0.02, rel=0.02)
        error = distance(recorder, loss)
        assert 0.02 < error[-50:].mean() < 0.12
        assert error[-50:].mean() < 1.5 * error[50:100].mean()


def test_the_noise_has_the_density_that_is_claimed() -> None:
    """Density exp(-|n| / size): |n| has mean d size and variance d size^2; two thirds and three halves of it are told apart."""
    loss = LOSSES["squares"]
    got = states(
        run(
            loss,
            "pvpadmm",
            250,
            perturb="primal",
            update="gradient",
            alpha=4.0,
            records=5,
            convexity=0.5,
        )
    )
    length, size = np.linalg.norm(got["n"][1:].reshape(-1, 10), axis=1), 2 / (5 * 0.5 * 4.0)
    assert length.mean() / 10 == pytest.approx(size, rel=0.03)
    assert length.var() / 10 == pytest.approx(size**2, rel=0.15)
    direction = got["n"][1:].reshape(-1, 10) / length[:, None]
    assert abs(direction.mean(0)).max() < 0.03
    np.testing.assert_allclose(
        direction.T @ direction / len(direction), np.eye(10) / 10, atol=0.015
    )


def worst_ratio(zeta: str) -> float:
    """Log density ratio of DVP's output under two data sets that realise the worst case (B = 10, eta = rho = .05, two neighbours)."""
    chosen = victim(
        "pvpadmm", eta=0.05, perturb="dual", zeta=zeta, alpha=1.0, records=10, convexity=0.05
    )
    p = chosen.relations(RING, 1, {"w0": torch.zeros(2)})
    rate = (
        math.sqrt(3) / p.vectors[p.find("n", 0, 1).vector].std
    )  # of n = C/(2B) e, so that zeta = rate / (2 B)
    weight, f, side = 0.05 + 4 * 0.05, np.array([200.0, 0.0]), math.sqrt(1 - 0.01)
    linear, log_density = -weight * f + np.array([0.0, 100.0]), []
    for record in ([-0.1, side], [-0.1, -side]):
        z = np.tile([[1.0, 0.0]], (10, 1))
        z[0] = record
        q = 1 / (1 + np.exp(np.clip(z @ f, -50, 50)))
        e = z.T @ q - 10 * (weight * f + linear)
        jacobian = (z.T * (q * (1 - q))) @ z + 10 * weight * np.eye(2)
        log_density.append(-rate / 20 * np.linalg.norm(e) + np.linalg.slogdet(jacobian)[1])
    return float(abs(log_density[0] - log_density[1]))


def test_half_of_alpha_hat_is_the_rate_that_keeps_alpha() -> None:
    """BASELINES.md 1: .805 with zeta = alpha_hat / 2 (alpha_hat .809), 1.611 with zeta = alpha_hat, at a claimed 1."""
    assert worst_ratio("half") == pytest.approx(0.805, abs=2e-3)
    assert worst_ratio("full") == pytest.approx(1.611, abs=2e-3)


def test_dual_perturbation_adds_curvature_where_alpha_is_small() -> None:
    settings: dict[str, Any] = {
        "eta": 0.3,
        "perturb": "dual",
        "update": "exact",
        "alpha": 0.05,
        "records": 2,
        "convexity": 0.1,
    }
    phi = 0.25 / (2 * math.expm1(0.05 / 4)) - 0.1 - 4 * 0.3
    assert phi > 1
    got = states(run(LOSSES["logistic"], "pvpadmm", 10, **settings))
    np.testing.assert_allclose(
        got["w"][-1], zhang(LOSSES["logistic"], settings, got["n"], phi), rtol=1e-10
    )


# ---------------------------------------------------------------- Huang et al.


def server(
    loss: Loss, rho: float, slope: Callable[[int], float], noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    w, v, gam = (
        np.zeros(loss.x.shape[2]),
        np.zeros((NODES, loss.x.shape[2])),
        np.zeros((NODES, loss.x.shape[2])),
    )
    for k, n in enumerate(noise[1:], 1):
        v = (v * slope(k) + rho * w + gam - loss.gradients(v)) / (rho + slope(k)) + n
        w = (v - gam / rho).mean(0)
        gam = gam - rho * (v - w)
    return v, w


@both
@pytest.mark.parametrize("fall", [False, True])
@pytest.mark.parametrize("sigma", [0.0, 0.05])
def test_dp_admm_with_a_server_is_the_plain_loop(loss: Loss, fall: bool, sigma: float) -> None:
    recorder = run(loss, "dpadmmserver", 40, rho=0.5, eta=0.4, fall=fall, sigma=sigma)
    got = states(recorder)
    slopes = [math.sqrt(k) / 0.4 if fall else 1 / 0.4 for k in range(1, 41)]
    noise = got.get("n", np.zeros((41, NODES, loss.x.shape[2])))
    v, w = server(loss, 0.5, lambda k: slopes[k - 1], noise)
    np.testing.assert_allclose(got["w"][-1], v, atol=1e-13)
    np.testing.assert_allclose(
        Adversary().view(recorder.trace).message(40, NODES, 3, "down").numpy(), w, atol=1e-13
    )
    error = recovered(
        recorder,
        30,
        lambda i, t: loss.gradient(i, got["w"][t, i]) - (0.5 + slopes[t]) * noise[t + 1, i],
    )
    assert error < (
        1e-10 if sigma else 1e-12
    )  # beside loud noise the weights of redundant messages are chance
    assert torch.allclose(
        la.leaks(recorder.trace)[0].std, torch.tensor(sigma, dtype=torch.float64), atol=1e-12
    )


@both
def test_dp_admm_with_a_server_converges(loss: Loss) -> None:
    """BASELINES.md 2: 9e-16 with eta = 1/L, 6e-12 (mean model) after 3000 iterations where it falls."""
    assert (
        distance(run(loss, "dpadmmserver", 800, rho=0.5, eta=1 / loss.lipschitz), loss)[-1] < 3e-15
    )


@pytest.mark.slow
def test_dp_admm_with_a_falling_step_and_its_noise() -> None:
    loss = LOSSES["squares"]
    recorder = run(loss, "dpadmmserver", 3000, rho=0.5, eta=1 / loss.lipschitz, fall=True)
    mean = Adversary().view(recorder.trace).message(3000, NODES, 0, "down").numpy()
    assert abs(mean - loss.optimum).max() < 2e-11
    recorder = run(
        loss, "dpadmmserver", 3000, rho=0.5, eta=1 / loss.lipschitz, fall=True, sigma=0.05
    )
    mean = Adversary().view(recorder.trace).message(3000, NODES, 0, "down").numpy()
    assert 5e-4 < abs(mean - loss.optimum).max() < 8e-3  # 2.3e-3
    scaled = (
        states(recorder)["n"][1:]
        * (0.5 + loss.lipschitz * np.sqrt(np.arange(1, 3001)))[:, None, None]
    )
    assert scaled[:100].std() == pytest.approx(0.05, rel=0.03)
    assert scaled[2900:].std() == pytest.approx(0.05, rel=0.03)


@pytest.mark.parametrize(("rounds", "exact"), [(1, 0.037), (10, 0.159), (100, 0.634)])
def test_the_exact_total_of_dp_admm_with_a_server(rounds: int, exact: float) -> None:
    """BASELINES.md 2: per iteration .1 at delta 1e-3; all that goes up is seen, so the points are too (certificate 2)."""
    chosen = victim("dpadmmserver", epsilon=0.1, records=20, lipschitz=3.0, fall=True)
    p = chosen.relations(Graph(3, ((0, 2), (1, 2))), rounds, {})
    found = account(know(p, Adversary()), p.gradients(0), 2 * 3.0 / 20)
    assert found.certificate == (2,) * rounds
    assert epsilon_of(found.mu, 1e-3) == pytest.approx(exact, abs=6e-4)
    (claim,) = chosen.claims(STAR, rounds)
    assert claim.epsilon == pytest.approx(0.1)
    assert claim.std == pytest.approx(
        2 * 3.0 * math.sqrt(2 * math.log(1250)) / (20 * 0.1) / (0.5 + 2)
    )


def multistep(
    loss: Loss, rho: float, eta: float, steps: int, rounds: int, got: Mapping[str, np.ndarray]
) -> np.ndarray:
    w, lam = np.zeros((NODES, loss.x.shape[2])), np.zeros((NODES, loss.x.shape[2]))
    for t in range(1, rounds + 1):
        pull = rho * (2 * w + summed(w)) - 2 * lam
        for k in range(1, steps + 1):
            name = "n" if steps == 1 else f"n.{k}"
            w = (eta * w + pull - loss.gradients(w)) / (4 * rho + eta) + (
                got[name][t] if name in got else 0
            )
        lam = lam + rho / 2 * (2 * w - summed(w))
    return w


@both
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("sigma", [0.0, 0.05])
def test_dp_admm_of_table_ii_is_the_plain_loop(loss: Loss, steps: int, sigma: float) -> None:
    recorder = run(loss, "dpadmm", 20, rho=0.3, eta=2.5, steps=steps, sigma=sigma)
    got, curve = states(recorder), 4 * 0.3 + 2.5
    np.testing.assert_allclose(got["w"][-1], multistep(loss, 0.3, 2.5, steps, 20, got), atol=1e-13)
    leak = la.leaks(recorder.trace)[2]
    inner = (2.5 / curve) ** np.arange(steps - 1, -1, -1)
    assert leak.is_plain
    np.testing.assert_allclose(
        leak.std.numpy(),
        sigma * np.linalg.norm(inner) * leak.combination.diag().numpy() / inner[-1],
        atol=1e-12,
    )
    for k, t in enumerate(leak.theta_rounds.tolist()):
        w, total = got["w"][t, 2], np.zeros(loss.x.shape[2])
        pull = 0.3 * (2 * w + got["w"][t, 1] + got["w"][t, 3]) - 2 * (got["lam"][t, 2] if t else 0)
        for s, a in enumerate(inner, 1):
            g = loss.gradient(2, w)
            n = got["n" if steps == 1 else f"n.{s}"][t + 1, 2] if sigma else 0.0
            w, total = (2.5 * w + pull - g) / curve + n, total + a * (g - curve * n)
        np.testing.assert_allclose(
            leak.value[k].numpy() * inner[-1] / float(leak.combination[k, k]), total, atol=1e-11
        )


@both
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("epsilon", [math.inf, 2.0])
def test_dp_admm_takes_the_eta_that_table_ii_prints(loss: Loss, steps: int, epsilon: float) -> None:
    """eta^{k,r} = sqrt(2kr)/D sqrt(G^2/N^2 + p G^2 KR log(1.25/delta) / (d_i^2 eps^2))."""
    rounds, g, diameter, rho, records = 12, 1.5, 4.0, 0.3, 3
    size = loss.x.shape[2]
    privacy = {} if epsilon == math.inf else {"epsilon": epsilon, "horizon": rounds}
    constants: dict[str, Any] = {
        "rho": rho,
        "eta": "table",
        "diameter": diameter,
        "lipschitz": g,
        **privacy,
    }
    recorder = run(loss, "dpadmm", rounds, steps=steps, records=records, **constants)
    got = states(recorder)
    private = size * g**2 * steps * rounds * math.log(1.25 / 1e-3) / (records * epsilon) ** 2
    sigma = 2 * g * math.sqrt(steps * rounds * 2 * math.log(1.25 / 1e-3)) / epsilon / records
    w, lam = np.zeros((NODES, size)), np.zeros((NODES, size))
    drawn = []
    for r in range(1, rounds + 1):
        pull = rho * (2 * w + summed(w)) - 2 * lam
        for k in range(1, steps + 1):
            eta = math.sqrt(2 * k * r) / diameter * math.sqrt(g**2 / NODES**2 + private)
            name = "n" if steps == 1 else f"n.{k}"
            n = got[name][r] if epsilon < math.inf else np.zeros_like(w)
            drawn.append(n * (2 * rho * 2 + eta))
            w = (eta * w + pull - loss.gradients(w)) / (2 * rho * 2 + eta) + n
        lam = lam + rho / 2 * (2 * w - summed(w))
    np.testing.assert_allclose(got["w"][-1], w, atol=1e-11)
    if epsilon < math.inf:
        assert np.std(drawn) == pytest.approx(sigma, rel=0.15)
        (claim,) = victim("dpadmm", steps=steps, records=records, **constants).claims(RING, rounds)
        assert claim.epsilon == pytest.approx(epsilon)


@both
@pytest.mark.parametrize("steps", [1, 5, 10])
def test_dp_admm_of_table_ii_converges(loss: Loss, steps: int) -> None:
    """BASELINES.md 2: 1e-15 to 3e-15."""
    assert (
        distance(run(loss, "dpadmm", 700, rho=0.3, eta=loss.lipschitz, steps=steps), loss)[-1]
        < 1e-14
    )


def test_one_step_is_ic_admm() -> None:
    """Chang, Hong, Wang 2015: x <- (beta x + c sum (x_i + x_j) - g - p) / (beta + 2 c E), p <- p + c sum (x_i - x_j)."""
    for loss in LOSSES.values():
        x, p = np.zeros((NODES, loss.x.shape[2])), np.zeros((NODES, loss.x.shape[2]))
        for _ in range(300):
            x = (2.0 * x + 0.3 * (2 * x + summed(x)) - loss.gradients(x) - p) / (2.0 + 4 * 0.3)
            p = p + 0.3 * (2 * x - summed(x))
        np.testing.assert_allclose(
            states(run(loss, "dpadmm", 300, rho=0.3, eta=2.0))["w"][-1], x, atol=2e-15, rtol=1e-14
        )


@pytest.mark.parametrize(("nominal", "exact"), [(1.0, 0.634), (0.5, 0.277)])
def test_table_ii_of_dp_admm_is_sound(nominal: float, exact: float) -> None:
    """BASELINES.md 2: exact epsilon .634 and .277 at nominal 1 and .5, full batch, replacing one record (2 G / d_i)."""
    chosen = victim("dpadmm", epsilon=nominal, horizon=30, records=50, lipschitz=2.0)
    p = chosen.relations(RING, 30, {})
    found = account(know(p, Adversary()), p.gradients(0), 2 * 2.0 / 50)
    assert found.mu == pytest.approx(nominal / math.sqrt(2 * math.log(1250)), rel=1e-9)
    assert epsilon_of(found.mu, 1e-3) == pytest.approx(exact, abs=6e-4)
    assert found.certificate == (2,) * 30
    (claim,) = chosen.claims(RING, 30)
    assert claim.epsilon == pytest.approx(nominal)
    assert claim.std == pytest.approx(
        2 * 2.0 / (4 * 0.3 + 2) * math.sqrt(60 * math.log(1250)) / (nominal * 50)
    )
    assert victim("dpadmm").claims(RING, 30) == ()


# ---------------------------------------------------------------- random walk ADMM


@pytest.mark.slow
@both
@pytest.mark.parametrize("theta", [0.5, 1.0])
@pytest.mark.parametrize("activation", ["walk", "iid"])
def test_random_walk_admm_converges(loss: Loss, theta: float, activation: str) -> None:
    """BASELINES.md 4: 7e-16 to 2e-15."""
    assert (
        distance(run(loss, "rwadmm", 3000, rho=0.5, theta=theta, activation=activation), loss)[-1]
        < 1e-13
    )


@both
@pytest.mark.parametrize("theta", [0.5, 1.0])
@pytest.mark.parametrize("activation", ["walk", "iid"])
def test_random_walk_admm_leaks_every_gradient(loss: Loss, theta: float, activation: str) -> None:
    """BASELINES.md 4: 2e-15."""
    recorder = run(loss, "rwadmm", 80, rho=0.5, theta=theta, activation=activation)
    w = states(recorder)["w"]
    assert recovered(recorder, 80, lambda i, t: loss.gradient(i, w[t, i])) < 1e-13


@pytest.mark.parametrize("update", ["exact", "gradient"])
@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_random_walk_admm_is_the_plain_loop(update: str, sigma: float) -> None:
    loss = LOSSES["logistic"]
    recorder = run(loss, "rwadmm", 60, rho=0.5, theta=0.7, update=update, alpha=0.3, sigma=sigma)
    got, z, w = states(recorder), {arc: np.zeros(5) for arc in RING.arcs}, np.zeros((NODES, 5))
    for t, i in enumerate(recorder.trace.public["active"].tolist(), 1):
        sign = {j: 1 if i < j else -1 for j in NEAR[i]}
        pull = sum(sign[j] * z[i, j] for j in NEAR[i])
        step = w[i] - 0.3 * (loss.gradient(i, w[i]) + pull + w[i])
        w[i] = (loss.argmin(i, np.asarray(pull), 1.0) if update == "exact" else step) + got["n"][
            t, i
        ]
        for j in NEAR[i]:
            z[j, i] = 0.3 * z[j, i] + 0.7 * (z[i, j] + 2 * 0.5 * sign[j] * w[i])
            np.testing.assert_allclose(
                Adversary().view(recorder.trace).message(t, i, j, "z").numpy(), z[j, i], atol=1e-13
            )
    np.testing.assert_allclose(got["w"][-1], w, atol=1e-13)
    if sigma and update == "exact":  # g = -pull - rho E_i (w - n)
        assert float(la.leaks(recorder.trace, rounds=60)[0].std[0]) == pytest.approx(
            0.5 * 2 * sigma
        )


# ---------------------------------------------------------------- MR-ADMM


def mr(loss: Loss, chosen: Any, rounds: int, noise: np.ndarray) -> np.ndarray:
    w, lam = np.zeros((NODES, loss.x.shape[2])), np.zeros((NODES, loss.x.shape[2]))
    known = np.zeros_like(w)
    for t in range(1, rounds + 1):
        k = (t + 1) // 2 if chosen.recycle else t
        h = np.array(
            [0.3 * (1 + chosen.spread * i) * chosen.growth ** min(k, 100) for i in range(NODES)]
        )[:, None]
        if chosen.recycle and t % 2 == 0:
            w = w - (known + 2 * lam + h * (2 * w - summed(w))) / (4 * h + chosen.gamma)
        else:
            centre = h * (2 * w + summed(w))
            w = np.stack(
                [
                    loss.argmin(i, 2 * lam[i] + noise[t, i] - centre[i], 4 * float(h[i, 0]))
                    for i in range(NODES)
                ]
            )
            known = loss.gradients(w) + noise[t]
        lam = lam + 0.3 / 2 * (2 * w - summed(w))
    return w


FORMS: dict[str, dict[str, Any]] = {
    "ADMM": {"recycle": False},
    "M-ADMM": {"recycle": False, "spread": 0.1},
    "M-ADMM growing": {"recycle": False, "spread": 0.1, "growth": 1.01},
    "R-ADMM": {},
    "MR-ADMM": {"spread": 0.1},
    "MR-ADMM growing": {"spread": 0.1, "growth": 1.01},
}
REACHED = {  # rounds to 1e-6 of every node's model, by the documents' prototype
    "squares": {
        "ADMM": 123,
        "M-ADMM": 124,
        "M-ADMM growing": 129,
        "R-ADMM": 121,
        "MR-ADMM": 122,
        "MR-ADMM growing": 124,
    },
    "logistic": {
        "ADMM": 114,
        "M-ADMM": 152,
        "M-ADMM growing": 332,
        "R-ADMM": 123,
        "MR-ADMM": 161,
        "MR-ADMM growing": 278,
    },
}


@pytest.mark.parametrize("form", ["ADMM", "R-ADMM"])
def test_recycled_admm_is_as_fast_as_measured(form: str) -> None:
    loss = LOSSES["squares"]
    recorder = run(loss, "mradmm", 130, gamma=loss.lipschitz, **FORMS[form])
    assert int(np.argmax(distance(recorder, loss) < 1e-6)) == REACHED["squares"][form]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_recycled_admm_are_as_fast_as_measured(form: str, kind: str) -> None:
    loss = LOSSES[kind]
    error = distance(run(loss, "mradmm", 850, gamma=loss.lipschitz, **FORMS[form]), loss)
    assert int(np.argmax(error < 1e-6)) == REACHED[kind][form]
    assert error[-1] < 1e-13


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rate", [0.0, 30.0])
def test_recycled_admm_is_the_plain_loop(form: str, rate: float) -> None:
    loss = LOSSES["logistic"]
    recorder = run(loss, "mradmm", 13, gamma=1.5, rate=rate, **FORMS[form])
    got = states(recorder)
    noise = got.get("n", np.zeros((14, NODES, 5)))
    np.testing.assert_allclose(
        got["w"][-1], mr(loss, victim("mradmm", gamma=1.5, **FORMS[form]), 13, noise), atol=1e-13
    )
    assert (
        recovered(recorder, 13, lambda i, t: loss.gradient(i, got["w"][t, i]) + noise[t, i]) < 1e-12
    )


def test_updates_without_data_are_known_beforehand() -> None:
    """An even message is a function of what was broadcast before, with noise too (a check for replays); an odd one is not."""
    chosen = victim("mradmm", rate=5.0, spread=0.1)
    p: Relations = chosen.relations(RING, 6, {"w0": torch.zeros(3)})
    sent = {(p.vectors[m.vector].owner, p.vectors[m.vector].round): m for m in p.select("message")}
    for t in range(2, 7):
        assert is_determined(know(p, Adversary(window=range(t))), sent[0, t]) == (t % 2 == 0)


def test_the_loss_of_mr_admm_counts_updates_that_touch_data() -> None:
    for recycle, touched in ((False, 10), (True, 5)):
        (claim,) = victim("mradmm", rate=0.2, records=50, recycle=recycle, spread=0.5).claims(
            RING, 10
        )
        assert claim.epsilon == pytest.approx(
            touched * (1.4 * 0.25 + 0.2) / (0.3 * 2 * 50)
        )  # node 0, with the smallest penalty
        assert claim.delta == 0


# ---------------------------------------------------------------- declarations, errors


DECLARED: list[tuple[str, dict[str, Any]]] = [
    *(
        ("pvpadmm", {"perturb": p, "update": u})
        for p in ("none", "dual", "primal")
        for u in ("exact", "gradient")
    ),
    *(
        ("dpadmm", {"steps": k, "batch": b, "sigma": s})
        for k in (1, 3)
        for b in (0, 2)
        for s in (0.0, 0.1)
    ),
    *(("dpadmm", {"steps": k, "sigma": s, "eta": "table"}) for k in (1, 3) for s in (0.0, 0.1)),
    *(("dpadmmserver", {"fall": f, "sigma": s}) for f in (False, True) for s in (0.0, 0.1)),
    *(
        ("rwadmm", {"update": u, "sigma": s, "theta": 0.7})
        for u in ("exact", "gradient")
        for s in (0.0, 0.1)
    ),
    *(("mradmm", {"rate": r, **form}) for r in (0.0, 20.0) for form in FORMS.values()),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "settings"),
    DECLARED,
    ids=lambda v: v if isinstance(v, str) else ",".join(map(str, v.values())),
)
def test_the_declaration_describes_the_run(name: str, settings: dict[str, Any], dtype: str) -> None:
    recorder = record(name, set={"l2": 0.1, **settings}, dtype=dtype, states=True)
    found = declared.check(recorder.trace, recorder.truth_record)
    assert found.skipped == 0
    assert found.checked > 20
    assert found.worst < 30 * torch.finfo(recorder.trace.dtype).eps


def record(name: str, **changes: Any) -> Recorder:
    values = {
        "nodes": 5,
        "graph": "star",
        "rounds": 6,
        "data": "gaussians",
        "samples": 3,
        **changes,
    }
    return recording.record(
        recording.plan(Scenario(victim=name, **{"model": "logistic", **values})), None
    )


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("pvpadmm", {"set": {"eta": 0.0}}, "eta"),
        ("pvpadmm", {"set": {"records": 0}}, "records"),
        ("pvpadmm", {"data": "faces", "model": "mlp"}, "update=gradient"),
        ("dpadmm", {"set": {"delta": 1.0}}, "delta"),
        ("dpadmm", {"set": {"sigma": -0.1}}, "sigma"),
        ("dpadmm", {"set": {"sigma": 0.1, "epsilon": 1.0, "horizon": 5}}, "got both"),
        ("dpadmm", {"set": {"eta": "tables"}}, "eta: expected a finite number"),
        ("dpadmm", {"set": {"diameter": 0}}, "diameter"),
        ("dpadmm", {"set": {"batch": 9}}, "3 records"),
        ("dpadmmserver", {"set": {"rho": -1.0}}, "rho"),
        ("dpadmmserver", {"set": {"sigma": 1.0, "epsilon": 1.0}}, "got both"),
        ("rwadmm", {"set": {"theta": 0.0}}, "theta"),
        ("mradmm", {"set": {"growth": 0.5}}, "growth"),
        ("mradmm", {"set": {"theta": 0.0}}, "theta"),
        ("mradmm", {"data": "faces", "model": "mlp"}, "convex"),
    ],
    ids=str,
)
def test_wrong_constants_are_refused_in_one_line(
    name: str, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(la.LeakauditError, match=says) as error:
        record(name, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["pvpadmm", "mradmm"])
def test_noise_by_the_models_size_needs_the_start(name: str) -> None:
    settings = {"perturb": "dual"} if name == "pvpadmm" else {"rate": 1.0}
    with pytest.raises(la.LeakauditError, match="'w0'"):
        victim(name, **settings).relations(RING, 3, {})
    p = victim(name, **settings).relations(RING, 3, {"w0": torch.zeros(5)})
    with pytest.raises(la.LeakauditError):  # it is no Gaussian noise, and has no mu
        account(know(p, Adversary()), p.gradients(0), 1.0)
