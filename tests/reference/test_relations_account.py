"""The mu of a view against closed forms, sampled likelihood ratios and published figures; certificates; what is refused."""

from __future__ import annotations

import itertools
import math
import runpy
from dataclasses import replace
from fractions import Fraction as Q
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.gaussian import epsilon
from leakaudit.theory.relations import (
    Expression,
    Relations,
    account,
    determined,
    estimate,
    is_determined,
    know,
    supremum,
)
from leakaudit.theory.relations.account import certificates

DECLARED: dict[str, Any] = runpy.run_path(
    str(Path(__file__).with_name("test_relations_protocols.py"))
)
ALL = Adversary()


def curious(*nodes: int) -> Adversary:
    return Adversary(hears="none", corrupt=frozenset(nodes))


def own_unnoised(rounds: int, sigma: float = 0.3) -> Relations:
    """D-PSGD on a ring of six whose nodes mix their own model without the noise that they send."""
    p = Relations()
    x = {i: p.public("x", i) for i in range(6)}
    for _ in p.rounds(rounds + 1):
        m = {
            i: p.send(i, DECLARED["RING"][i], x[i] + p.noise("n", sigma, i), name="x")
            for i in range(6)
        }
        old = dict(x)
        for i in range(6):
            mixed = old[i] + sum(m[j] for j in DECLARED["RING"][i])
            x[i] = p.state("x", i, eq=Q(1, 3) * mixed - Q(1, 10) * p.grad(i, at=old[i]))
    return p


def test_d_psgd_is_the_composition_of_its_rounds() -> None:
    p = Relations()
    DECLARED["gossip"](p, DECLARED["THIRD"], 7, sigma=0.05)
    bound = account(know(p, ALL), p.gradients(0)[:6], 1.0)
    assert bound.mu == bound.attained == pytest.approx(math.sqrt(6) * 0.1 / 0.05, rel=1e-9)
    assert bound.mu == pytest.approx(4.8990, abs=5e-5)
    assert bound.fisher is not None
    np.testing.assert_allclose(bound.fisher, 4 * np.eye(6), atol=1e-9)


def test_a_model_mixed_without_its_noise_accumulates() -> None:
    """A shift d of gradient s reaches round t >= s as a 3^-(t - s) d, so M = L'L in closed form; composition alone gives 1.054."""
    p = own_unnoised(10)
    bound = account(know(p, ALL), p.gradients(0)[:10], 1.0)
    shifts = (
        np.array([[-0.1 / 3 ** (t - s) if s <= t else 0 for s in range(10)] for t in range(10)])
        / 0.3
    )
    assert bound.fisher is not None
    np.testing.assert_allclose(bound.fisher, shifts.T @ shifts, atol=1e-9)
    assert bound.mu == pytest.approx(1.5104, abs=5e-5)


@pytest.mark.parametrize(
    ("adversary", "mu"),
    [
        (curious(1), 1.273),
        (curious(3), 0.448),
        (Adversary(hears=frozenset({(3, 2), (3, 4)})), 0.264),
    ],
    ids=["neighbour", "far", "tap"],
)
def test_who_hears_less_learns_less(adversary: Adversary, mu: float) -> None:
    p = own_unnoised(10)
    assert account(know(p, adversary), p.gradients(0)[:10], 1.0).mu == pytest.approx(mu, abs=2e-3)


@pytest.mark.parametrize(("steps", "mu"), [(1, 2.9522), (3, 6.0160)])
def test_dp_norm_in_closed_form(steps: int, mu: float) -> None:
    """With a = gamma / (gamma + eta mu |E|) the model moves by mu (a + a^2 + ...) in units of the gradients' change."""
    p = Relations()
    DECLARED["dpnorm"](p, DECLARED["RING"], 8, steps=steps, sigma=0.1)
    gamma = 1 + 0.2 / (0.05 * 2 * steps)
    a = gamma / (gamma + 1 / steps)
    moved = [0.05 * sum(a**q for q in range(1, steps * r + 1)) / 0.1 for r in range(1, 9)]
    bound = account(know(p, ALL), p.gradients(0), 1.0)
    assert bound.mu == pytest.approx(math.hypot(*moved), rel=1e-8)
    assert bound.mu == pytest.approx(mu, abs=5e-5)


def test_one_noise_on_two_different_messages_hides_nothing() -> None:
    p = Relations()
    g, n = p.secret("g", 0), p.noise("n", 1.0, 0)
    p.send(0, 1, g + n, "first")
    p.send(0, 1, 2 * g + n, "second")
    bound = account(know(p, ALL), [g], 1.0)
    assert (bound.mu, bound.leaking, bound.fisher) == (math.inf, (g,), None)

    q = Relations()
    g = q.secret("g", 0)
    q.send(0, 1, g + q.noise("n", 1.0, 0, 0), "first")
    q.send(0, 1, 2 * g + q.noise("n", 1.0, 0, 1), "second")
    assert account(know(q, ALL), [g], 1.0).mu == pytest.approx(math.sqrt(5))


def test_noise_that_is_not_at_risk_of_floats() -> None:
    """In raw binary 1/3 and 1 - 2/3 differ, and exact arithmetic on them finds a noise-free leak that does not exist."""
    p = Relations()
    g, n = p.secret("g", 0), p.noise("n", 1.0, 0)
    p.send(0, 1, (1 / 3) * g + (1 - 2 / 3) * n, "first")
    p.send(0, 1, g + n, "second")
    assert account(know(p, ALL), [g], 1.0).mu == pytest.approx(1)


def test_a_target_that_does_not_move_does_not_leak() -> None:
    p = Relations()
    g = [p.secret("g", 0, k) for k in range(2)]
    p.send(0, 1, g[0], "plain")
    p.send(0, 1, g[0] + 3 * g[1] + p.noise("n", 2.0, 0), "noisy")
    assert account(know(p, ALL), g, 1.0).mu == math.inf
    assert account(know(p, ALL), g, [0.0, 1.0]).mu == pytest.approx(1.5)


def test_the_sampled_likelihood_ratio_has_this_mu() -> None:
    """The quietest unbiased combination of the view is the optimal test of a fixed change: its shift over its noise is mu."""
    draw, rounds = np.random.default_rng(5), 10
    shift, noise = np.zeros(100_000), 0.3
    total = {0: np.zeros(100_000), 1: np.zeros(100_000)}
    for hypothesis in (0, 1):
        shift = np.zeros(100_000)
        for _ in range(rounds):
            shift = shift / 3 - 0.1
            residual = hypothesis * shift + noise * draw.normal(size=100_000)
            total[hypothesis] += shift * residual / noise**2
    mu = (total[1].mean() - total[0].mean()) / total[0].std()
    p = own_unnoised(rounds)
    assert account(know(p, ALL), p.gradients(0)[:rounds], 1.0).mu == pytest.approx(mu, rel=0.02)


def test_an_estimate_and_a_mu_of_one_vector_agree() -> None:
    p = Relations()
    g = p.secret("g", 0)
    for k, std in enumerate((0.5, 1.0, 2.0)):
        p.send(0, 1, (k + 1) * g + p.noise("n", std, 0, k), "m", index=k)
    assert account(know(p, ALL), [g], 1.0).mu == pytest.approx(
        1 / estimate(know(p, ALL), [g], rounding=0).std[0]
    )


def test_the_certificate_is_cut_by_time() -> None:
    """w1 is revealed, but only after the second gradient was taken there: hidden noise steers it."""
    p = Relations()
    n, x = p.noise("n", 1.0, 0), p.secret("x", 0)
    first = p.grad(0, at=x, index=0)
    w = p.state("w", 0, eq=n - first)
    second = p.grad(0, at=w, index=1)
    p.send(0, 1, w)
    assert account(know(p, ALL), [first, second], 1.0).certificate == (2, 0)


def test_pdmm_with_public_start_is_certified_by_its_own_past() -> None:
    p = Relations()
    DECLARED["pdmm"](p, DECLARED["RING"], 6, secret=False, noise=0.5)
    bound = account(know(p, ALL), p.gradients(0), 1.0)
    assert bound.mu == bound.attained == pytest.approx(0.5233, abs=5e-5)
    assert bound.certificate == (2, 1, 1, 1, 1, 1)


def test_d_psgd_mixes_what_is_seen_and_so_has_its_own_past_alone() -> None:
    p = Relations()
    DECLARED["gossip"](p, DECLARED["THIRD"], 5, sigma=0.05)
    assert account(know(p, ALL), p.gradients(0)[:4], 1.0).certificate == (2, 1, 1, 1)


def test_the_supremum_is_the_best_choice_of_signs_and_certified() -> None:
    draw = np.random.default_rng(0)
    for size in (2, 5, 9):
        root = draw.normal(size=(size, size))
        m, limits = root.T @ root, draw.random(size) + 0.5
        signs = np.array(list(itertools.product((-1, 1), repeat=size))) * limits
        best = math.sqrt(np.einsum("ks,st,kt->k", signs, m, signs).max())
        attained, upper = supremum(m, limits)
        assert (
            best * (1 - 1e-6)
            <= attained
            <= upper
            <= math.sqrt(np.abs(limits[:, None] * m * limits).sum()) * (1 + 1e-9)
        )
        assert upper == pytest.approx(attained, rel=1e-4)


def test_changes_are_vectors_and_may_be_orthogonal() -> None:
    """Three changes that repel each other do best at angles of 120 degrees: 3 * 1.5 = 4.5, where signs reach 4."""
    m = np.full((3, 3), -0.5) + 1.5 * np.eye(3)
    attained, upper = supremum(m, np.ones(3))
    assert attained**2 == pytest.approx(4.5, rel=1e-6)
    assert upper**2 == pytest.approx(4.5, rel=1e-4)


def clipped(*, heard: bool) -> tuple[Relations, Expression]:
    p = Relations()
    g, w = p.secret("g", 0), p.public("w")
    x = p.state("x", 0, eq=w - g + p.noise("n", 1.0, 0))
    y = p.state("clipped", 0)
    p.opaque(y, of=[x])
    if heard:
        p.send(0, 1, x, "x")
    p.send(0, 1, y, "y")
    return p, g


def test_a_nonlinear_step_is_accounted_as_post_processing_or_not_at_all() -> None:
    p, g = clipped(heard=True)
    assert account(know(p, ALL), [g], 1.0).mu == pytest.approx(1)
    p, g = clipped(heard=False)
    with pytest.raises(
        LeakauditError,
        match=r"clipped\[0,0\] is a nonlinear function of x\[0,0\], which this view does not determine",
    ):
        account(know(p, ALL), [g], 1.0)


def test_what_cannot_be_accounted_is_refused() -> None:
    p = Relations()
    g, other = [p.secret("g", 0, k) for k in range(2)], p.secret("g", 1)
    n = p.noise("n", 1.0, 0)
    p.send(0, 1, g[0] + g[1] + other + n)
    with pytest.raises(LeakauditError, match="secrets or gradients of one node"):
        account(know(p, ALL), [*g, other], 1.0)
    with pytest.raises(LeakauditError, match="secrets or gradients of one node"):
        account(know(p, ALL), [n], 1.0)
    with pytest.raises(LeakauditError, match=r"knows g\[0\|0,0\]; there is nothing to bound"):
        account(know(p, curious(0)), g, 1.0)
    with pytest.raises(LeakauditError, match="one finite sensitivity >= 0 for each of 2 targets"):
        account(know(p, ALL), g, [1.0])
    p.relate(g[0] - g[1], p.noise("drift", 0.1, 0))
    with pytest.raises(
        LeakauditError,
        match=r"the relation between g\[0\|0,0\], g\[0\|1,0\], drift\[0,0\] is a prior",
    ):
        account(know(p, ALL), g, 1.0)


def test_a_view_that_hears_nothing_of_the_node_learns_nothing() -> None:
    p = Relations()
    g, idle, other = p.secret("g", 0), p.secret("idle", 0), p.secret("other", 2)
    p.send(0, 1, g + p.noise("n", 1.0, 0), "m")
    p.send(2, 3, other, "plain")
    for adversary in (curious(4), curious(3), Adversary(hears="none")):
        bound = account(know(p, adversary), [g, idle], 1.0)
        assert (bound.leaking, bound.certificate) == ((), (2, 2))
        assert bound.attained <= bound.mu < 1e-9
    assert account(know(p, ALL), [idle], 1.0).mu == 0
    assert account(know(p, ALL), [g, idle], [0.0, 1.0]).mu == 0
    quiet = Relations()
    g = quiet.secret("g", 0)
    quiet.send(0, 1, g, "m")
    assert account(know(quiet, curious(2)), [g], 1.0).mu == 0
    assert account(know(quiet, ALL), [g], 1.0).mu == math.inf


# --- groups, coalitions, taps -----------------------------------------------------------------------------------------


def secret_start(rounds: int, sigma: float) -> tuple[Relations, Expression]:
    """D-PSGD as `own_unnoised`, whose node 0 starts from a model of its own."""
    p = Relations()
    x: dict[int, Expression] = {
        i: p.secret("x", 0) if i == 0 else p.public("x", i) for i in range(6)
    }
    start = x[0]
    for _ in p.rounds(rounds + 1):
        m = {
            i: p.send(i, DECLARED["RING"][i], x[i] + p.noise("n", sigma, i), name="x")
            for i in range(6)
        }
        mixed = {i: Q(1, 3) * (x[i] + sum(m[j] for j in DECLARED["RING"][i])) for i in range(6)}
        x = {i: p.state("x", i, eq=mixed[i] - Q(1, 10) * p.grad(i, at=x[i])) for i in range(6)}
    return p, start


def test_a_node_is_replaced_with_its_start_and_all_its_gradients_at_once() -> None:
    """The start moves message t by 3^-t, gradient s moves it by -3^-(t - s) / 10; the worst start pulls against the gradients."""
    p, start = secret_start(10, 0.3)
    targets, limits = [start, *p.gradients(0)[:10]], [0.5, *[1.0] * 10]
    bound = account(know(p, ALL), targets, limits)
    shifts = (
        np.array(
            [
                [3.0**-t, *(-0.1 * 3.0 ** -(t - 1 - s) if s < t else 0 for s in range(10))]
                for t in range(11)
            ]
        )
        / 0.3
    )
    assert bound.fisher is not None
    np.testing.assert_allclose(bound.fisher, shifts.T @ shifts, atol=1e-9)
    worst = shifts @ np.array([0.5, *[-1.0] * 10])
    assert bound.attained == pytest.approx(float(np.linalg.norm(worst)), rel=1e-6)
    assert bound.attained <= bound.mu <= bound.attained * (1 + 1e-4)
    assert bound.certificate == (2, *[1] * 10)
    assert account(know(p, ALL), targets, [0.0, *[1.0] * 10]).mu == pytest.approx(1.5104, abs=5e-5)


def test_a_group_of_k_changes_costs_k_times() -> None:
    p = own_unnoised(6)
    k, g = know(p, ALL), p.gradients(0)[:6]
    assert account(k, g, 5.0).mu == pytest.approx(5 * account(k, g, 1.0).mu)


def test_larger_coalitions_and_more_taps_never_learn_less() -> None:
    p = own_unnoised(8)
    g = p.gradients(0)[:8]
    coalitions = [
        account(know(p, curious(*who)), g, 1.0).mu
        for who in ((3,), (3, 4), (1, 3, 4), (1, 2, 3, 4, 5))
    ]
    assert coalitions == sorted(coalitions)
    assert coalitions[0] < coalitions[1] < coalitions[2] == pytest.approx(coalitions[3])
    wires = [(2, 3), (1, 2), (4, 3), (0, 1)]
    taps = [
        account(know(p, Adversary(hears=frozenset(wires[:count]))), g, 1.0).mu for count in range(5)
    ]
    assert taps == sorted(taps)
    assert taps[0] == 0
    assert taps[-1] == pytest.approx(account(know(p, ALL), g, 1.0).mu, rel=0.2)


def test_a_coalition_that_knows_all_other_noise_still_faces_the_nodes_own() -> None:
    p = own_unnoised(8)
    g = p.gradients(0)[:8]
    assert account(know(p, curious(1, 2, 3, 4, 5)), g, 1.0).mu == pytest.approx(
        account(know(p, ALL), g, 1.0).mu
    )


def test_two_sends_of_one_round_that_share_their_noise_print_what_they_give_away() -> None:
    """DP-Norm, K = 2, a = 5/6: the second send holds a step more, so the difference is noise-free."""
    p, a, mu = Relations(), Q(5, 6), Q(1, 20)
    w = p.public("w")
    for _ in p.rounds(2):
        n = p.noise("n", 0.1, 0)
        for k in range(2):
            w = p.state("w", 0, k, eq=a * (w - mu * p.grad(0, at=w, index=k)))
            p.send(0, 1, w + n, name="y", index=k)
    bound = account(know(p, ALL), p.gradients(0), 1.0)
    assert bound.mu == math.inf
    assert str(bound.leaking[0]) == "g[0|0,1] - 6 g[0|1,1]"
    assert len(bound.leaking) == 2


# --- what must not be under-counted -----------------------------------------------------------------------------------


def test_a_target_that_stays_is_known_and_hides_nothing() -> None:
    p = Relations()
    g = [p.secret("g", 0, k) for k in range(2)]
    p.send(0, 1, g[0] + g[1] + p.noise("n", 2.0, 0), "m")
    assert account(know(p, ALL), g, [0.0, 1.0]).mu == pytest.approx(0.5)


def test_what_a_nonlinear_step_gives_does_not_hide_what_is_added_to_it() -> None:
    """The clipped vector is a function of the first message, so the second message shows g1 behind its own noise alone."""
    p = Relations()
    g = [p.secret("g", 0, k) for k in range(2)]
    x = p.state("x", 0, eq=g[0] + p.noise("n", 1.0, 0, 0))
    y = p.state("clipped", 0)
    p.opaque(y, of=[x])
    p.send(0, 1, x, "x")
    p.send(0, 1, y + g[1] + p.noise("n", 0.5, 0, 1), "y")
    bound = account(know(p, ALL), g, 1.0)
    assert bound.mu == pytest.approx(math.hypot(1, 2))
    second = p.grad(0, at=y)
    p.send(0, 1, second + p.noise("n", 1.0, 0, 2), "later")
    assert account(know(p, ALL), [*g, second], 1.0).certificate == (2, 2, 2)


def test_a_nonlinear_step_of_another_node_is_known_with_its_secrets() -> None:
    p = Relations()
    g, other = p.secret("g", 0), p.secret("g", 1)
    y = p.state("clipped", 1)
    p.opaque(y, of=[other])
    p.send(1, 2, g + y + p.noise("n", 1.0, 0), "m")
    assert account(know(p, ALL), [g], 1.0).mu == pytest.approx(1)


def test_a_gradient_of_another_node_that_reacts_unseen_has_no_certificate() -> None:
    """Node 1 hears g unnoised and trains on it; on the wire is only what it sends on."""
    p = Relations()
    g, w = p.secret("g", 0), p.public("w")
    heard = p.send(0, 1, w - g, "x")
    reaction = p.grad(1, at=heard)
    p.send(1, 2, heard - reaction + p.noise("n", 1.0, 1), "y")
    far = Adversary(hears=frozenset({(1, 2)}))
    assert account(know(p, far), [g], 1.0).certificate == (0,)
    assert account(know(p, far), [g], 1.0).mu == pytest.approx(1)
    assert account(know(p, ALL), [g], 1.0).mu == math.inf


@pytest.mark.parametrize(
    ("where", "mu", "level", "eps"), [("x", 3.12548, {2}, 13.85), ("lam", 8.924, {1, 2}, 66.5)]
)
def test_dp_recal_with_noise_on_the_model_or_on_the_dual(
    where: str, mu: float, level: set[int], eps: float
) -> None:
    """Sixteen activations of node 0, noise variance falling by .97 each; with noise on the dual the activations do not add up."""
    s, tau, loud, fall = Q(11413735621011765, 10**16), Q(27744349193064266, 10**17), 0.4, 0.97
    p = Relations()
    x, lam, y, total = p.public("x"), p.public("lam"), p.public("y"), p.public("s")
    for t in p.rounds(16):
        dual, new = lam + s * (x - y), p.public("y")
        noise = p.noise(
            "xi", loud * fall ** ((t - 1) / 2) * (float(s) if where == "lam" else 1.0), 0
        )
        moved = x - tau * (p.grad(0, at=x) + dual)
        moved = p.state("x", 0, eq=moved + noise if where == "x" else moved)
        lam_new = dual + s * (moved - x - new + y)
        lam_new = p.state("lam", 0, eq=lam_new + noise if where == "lam" else lam_new)
        total = p.send(0, None, total + lam_new - lam, name="s")
        x, lam, y = moved, lam_new, new
    bound = account(know(p, ALL), p.gradients(0), 1.0)
    if where == "x":
        assert bound.mu == pytest.approx(
            math.sqrt(sum((float(tau) / loud) ** 2 / fall**c for c in range(16))), rel=1e-8
        )
    assert bound.mu == pytest.approx(mu, rel=1e-4)
    assert set(bound.certificate) == level
    assert epsilon(1e-3, bound.mu) == pytest.approx(eps, abs=0.05)


def by_definition(p: Relations, adversary: Adversary, node: int) -> tuple[int, ...]:
    """Return certificates one question at a time, each over the relations before its gradient."""
    k, targets = know(p, adversary), p.gradients(node)
    own = {t.vector for t in targets}
    worst = replace(k, known=k.known | {v for v in p.points if v not in own})
    level, reacts = [], -1
    for g in p.select("gradient"):
        at = p.points[g.vector]
        past = replace(worst, rows=tuple(r for r in worst.rows if r < p.before[g.vector]))
        seen = is_determined(past, at)
        if g.vector in own:
            level.append(
                2
                if seen
                else int(is_determined(past.also(t for t in targets if t.vector < g.vector), at))
            )
        elif not seen:
            reacts = g.vector
    return tuple(0 if t.vector < reacts else at for t, at in zip(targets, level, strict=True))


@pytest.mark.parametrize(
    "adversary",
    [ALL, curious(1), curious(1, 5), Adversary(hears=frozenset({(1, 2), (0, 5)}))],
    ids=str,
)
@pytest.mark.parametrize("name", ["pdmm", "dpnorm", "gossip", "own"])
def test_certificates_are_those_of_their_definition(name: str, adversary: Adversary) -> None:
    p = own_unnoised(4)
    if name != "own":
        p = Relations()
        how = {
            "pdmm": {"secret": False, "noise": 0.5},
            "dpnorm": {"sigma": 0.1, "steps": 2},
            "gossip": {"sigma": 0.1},
        }[name]
        DECLARED[name](p, DECLARED["THIRD"] if name == "gossip" else DECLARED["RING"], 5, **how)
    targets = p.gradients(0)
    others = {v for v in p.points if v not in {t.vector for t in targets}}
    k = know(p, adversary)
    worst = replace(k, known=k.known | others)
    assert certificates(worst, targets, others) == by_definition(p, adversary, 0)


# --- noise of other laws ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["laplace", "uniform", "truncated_laplace", "truncated_gaussian"])
def test_noise_that_is_not_gaussian_is_estimated_but_has_no_mu(law: Any) -> None:
    p = Relations()
    g, n, other = p.secret("g", 0), p.noise("n", 0.5, 0, law=law), p.noise("n", 2.0, 1)
    p.send(0, 1, g + n + other, "m")
    k = know(p, ALL)
    assert estimate(k, [g], rounding=0).std[0] == pytest.approx(math.hypot(0.5, 2))
    assert determined(k, [g]) == []
    with pytest.raises(
        LeakauditError,
        match=rf"n\[0,0\] is {law} noise, but a mu requires Gaussian noise; declare it known",
    ) as caught:
        account(k, [g], 1.0)
    assert "\n" not in str(caught.value)
    assert account(k.also([n]), [g], 1.0).mu == pytest.approx(0.5)


def test_noise_of_another_law_is_no_matter_where_nothing_rests_on_it() -> None:
    p = Relations()
    g, other = [p.secret("g", 0, k) for k in range(2)], p.secret("g", 1)
    far, n = p.noise("far", 1.0, 1, law="laplace"), p.noise("n", 0.5, 0)
    p.send(0, 1, g[0] + n, "m")
    p.send(1, 2, other + far, "m")
    p.send(
        0, 1, g[0] + n + 2 * far, "again"
    )  # far is known from what node 1 sends, as its secrets are
    assert account(know(p, ALL), [g[0]], 1.0).mu == pytest.approx(2)
    p.send(0, 1, g[1] + p.noise("late", 1.0, 0, law="uniform"), "other")
    assert account(know(p, ALL), g, [1.0, 0.0]).mu == pytest.approx(2)
    with pytest.raises(LeakauditError, match=r"late\[0,0\] is uniform noise"):
        account(know(p, ALL), g, 1.0)
    p.send(0, 1, g[1], "plain")
    assert account(know(p, ALL), g, 1.0).mu == math.inf


@pytest.mark.parametrize("wrong", [{"law": "cauchy"}, {"std": math.inf}, {"std": math.nan}])
def test_noise_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(LeakauditError, match="noise 'n' of node 3: expected"):
        Relations().noise("n", **{"std": 1.0, "owner": 3, **wrong})
