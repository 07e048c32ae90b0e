"""Is a printed epsilon ever below what one changed record reaches? Random quadratic problems over all victims, by impulses.

The truth is that of tests/impulses.py: the victims' own run code, its own covariance, no declaration. Losses have curvatures of
either sign, another one for each node; the adversary is an outsider, taps, or a coalition.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from impulses import respond
from quadratics import DRAWS, Problem, path, problem, protocol
from torch import Tensor

from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph
from leakaudit.core.verdict import Verdict
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.topology import make
from leakaudit.protocols.victim import Victim
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.relations import Relations
from leakaudit.views.accounting.adversaries import named
from leakaudit.views.accounting.basis import UNSEEN
from leakaudit.views.accounting.compare import compare
from leakaudit.views.accounting.view_bound import view_bounds

ROUNDING = 1e-6  # relative; of singular values of noises a few orders of magnitude apart
UNPRICED = {
    "choco": "its compressed differences are no linear functions of what is seen, so account refuses it",
    "diloco": "no noise",
    "fedavg": "no noise",
    "fedsgd": "no noise",
    "fedsplit": "no noise",
    "mradmm": "no noise",
    "pdmm": "no noise besides a secret start",
    "pvpadmm": "no noise besides secret penalties",
    "secagg": "no noise",
    "secured": "no noise",
    "single": "sends nothing (test_the_single_node_reference_tells_nothing)",
}


def test_every_victim_is_drawn_or_says_why_not() -> None:
    assert set(DRAWS) | set(UNPRICED) == set(registry.names("victims"))
    assert not set(DRAWS) & set(UNPRICED)


@pytest.mark.slow
def test_no_printed_epsilon_is_below_what_a_record_reaches(
    fresh_seed: int, fresh_cases: Callable[[int], int]
) -> None:
    """Without a smoothness, and with one that is just the curvature of the node's own loss; others' losses may bend more."""
    printed = bounded = exceeded_before = 0
    for seed in range(fresh_seed, fresh_seed + fresh_cases(120)):
        one = problem(seed)
        true = one.respond(one.curvature).mu(one.node, 0, one.adversary)
        bend = abs(one.curvature[one.node])
        plain, smooth = one.bound(), one.bound(smoothness=bend)
        for found in (plain, smooth):
            assert not found.refused, (one.says, found)
            assert found.rounds == one.protocol.rounds
            if found.mu is not None:
                assert true <= found.mu * (1 + ROUNDING) + 1e-9, (one.says, found)
                assert found.epsilon == pytest.approx(gaussian.epsilon(1e-5, found.mu))
                assert found.reached is None or found.reached <= found.mu * (1 + ROUNDING) + 1e-9, (
                    one.says
                )
            else:
                assert found.epsilon is None
        printed += plain.mu is not None and plain.mu < math.inf
        bounded += smooth.mu is not None and smooth.mu < math.inf
        exceeded_before += (
            plain.mu is None and plain.node_mu is not None and true > plain.node_mu * (1 + 1e-3)
        )
    assert printed, "no case had an epsilon"
    assert bounded > printed, "a smoothness gave no case an epsilon"
    assert exceeded_before, (
        "no case would have exceeded the figure that was printed for records before"
    )


@pytest.mark.slow
def test_what_is_said_to_be_reached_is_reached(
    fresh_seed: int, fresh_cases: Callable[[int], int]
) -> None:
    """linear: constant gradients. reached: also least squares of curvature plus and minus the smoothness, at all nodes."""
    drawn = exact = 0
    for seed in range(fresh_seed, fresh_seed + fresh_cases(60)):
        one = problem(seed)
        nodes = one.protocol.graph.nodes
        bend = abs(one.curvature[one.node])
        found = one.bound(smoothness=bend)
        truths = [
            one.respond((c,) * nodes).mu(one.node, 0, one.adversary) for c in (0.0, bend, -bend)
        ]
        if (
            found.linear is None
        ):  # the view itself was too ill-conditioned; nothing is said to be reached
            continue
        assert found.linear == pytest.approx(truths[0], rel=ROUNDING, abs=1e-7), one.says
        if found.mu != math.inf and found.reached is not None:
            drawn += 1
            exact += found.reached == pytest.approx(max(truths), rel=1e-5, abs=1e-7)
            assert found.reached <= max(truths) * (1 + 1e-5) + 1e-7, one.says
    assert exact >= 0.95 * drawn, (
        "what cannot be solved in float64 is not said to be reached, and that is rare"
    )


def test_mini_batches_count_once_in_every_pass(
    fresh_seed: int, fresh_cases: Callable[[int], int]
) -> None:
    """A record enters the gradients of its own batches only; no order that is drawn exceeds the price, and single steps reach it."""
    for seed in range(fresh_seed, fresh_seed + fresh_cases(20)):
        rng = random.Random(seed)
        batch, parts = rng.choice([1, 2]), rng.choice([2, 3])
        samples, rounds = batch * parts, rng.choice([2, 3, 5])
        graph = make("ring", 3, torch.Generator())
        if rng.random() < 0.5:
            steps, noise = rng.choice([(1, "message"), (1, "step"), (2, "step"), (3, "step")])
            made = protocol(
                "dpsgd",
                graph,
                rounds,
                batch=batch,
                samples=samples,
                steps=steps,
                noise=noise,
                order="adapt",
                sigma=0.5,
                alpha=0.3,
            )
        else:
            steps = rng.choice([1, 2, 3])
            made = protocol(
                "dpnorm",
                graph,
                rounds,
                batch=batch,
                records=samples,
                inner=steps,
                sigma=0.5,
                mu=0.3,
            )
        response = respond(
            made.victim, graph, rounds, (0.0,) * 3, made.public, holders=3, samples=samples
        )
        truths = [
            response.mu(node, record, Adversary()) for node in range(3) for record in range(samples)
        ]
        (found,) = view_bounds(made, Adversary(), [0])
        whole = next(view_bounds(replace(made, victim=_all_records(made.victim)), Adversary(), [0]))
        assert found.enters is not None
        assert found.gradients == rounds * steps
        assert found.linear is not None
        assert whole.linear is not None
        assert max(truths) <= found.linear * (1 + ROUNDING), (seed, made.victim)
        if found.enters < found.gradients:
            assert found.linear < whole.linear * (1 - 1e-3), (
                "a record would count in every gradient"
            )
        if isinstance(made.victim, registry.get("victims", "dpsgd")):
            assert found.enters < found.gradients
            assert found.mu is not None
            assert max(truths) <= found.mu * (1 + ROUNDING)
            # with several noisy steps a message the price shows each step: one step's noise in place of all
            assert found.mu <= max(truths) * math.sqrt(steps) * (1 + ROUNDING)


def _all_records(victim: Any) -> Victim:
    made: Victim = replace(victim, batch=0)
    return made


STAR = make("star", 4, torch.Generator())


def test_the_default_dpsgd_has_no_epsilon_for_records_and_with_a_smoothness_the_true_one() -> None:
    """A star, 5 rounds, curvature 6: mu 1.342 was printed, 5.005 is reached."""
    made = protocol("dpsgd", STAR, 5, alpha=0.3, sigma=0.5)
    case = Problem(made, (6.0,) * 4, Adversary(), 1, "")
    true = max(
        replace(case, node=node).respond((6.0,) * 4).mu(node, 0, Adversary()) for node in range(4)
    )
    assert true == pytest.approx(5.005, abs=1e-3)
    plain = list(view_bounds(made, Adversary(), range(4)))
    assert all(one.mu is None and one.epsilon is None for one in plain)
    assert all(one.node_mu == pytest.approx(1.3416, abs=1e-3) for one in plain)
    assert "no epsilon per record" in str(plain[0].basis)
    assert (
        max(one.mu or 0.0 for one in view_bounds(made, Adversary(), range(4), smoothness=6.0))
        >= true
    )


def test_with_a_smoothness_the_value_is_reached_by_a_loss_that_bends_down() -> None:
    """The interval of curvatures from -L to L has no smaller bound at certificate 1: -L reaches it."""
    made = protocol("dpsgd", STAR, 5, alpha=0.3, sigma=0.5, own="plain")
    (found,) = view_bounds(made, Adversary(), [1], smoothness=2.0)
    assert found.certificate[-1] == 1
    true = Problem(made, (0.0,) * 4, Adversary(), 1, "").respond((-2.0,) * 4).mu(1, 0, Adversary())
    assert found.mu == pytest.approx(true, rel=ROUNDING)
    assert found.reached == pytest.approx(true, rel=ROUNDING)


def test_a_weaker_listener_is_priced_by_a_stronger_one_whose_view_has_the_models() -> None:
    """One wire of D-PSGD that sends before it averages: the others' noise, unheard, steers the models; all wires show them."""
    made = protocol("dpsgd", STAR, 5, alpha=0.3, sigma=0.5, order="adapt")
    wire, outsider = Adversary(hears=frozenset({(1, 0), (0, 1)})), Adversary()
    (weak,), (strong,) = (view_bounds(made, who, [1]) for who in (wire, outsider))
    assert min(weak.certificate) == 0
    assert min(strong.certificate) == 2
    assert weak.mu == pytest.approx(strong.mu)
    assert "upper bound" in str(weak.basis)
    assert weak.attained is None


def test_steps_between_messages_are_priced_as_if_each_were_sent() -> None:
    """DP-SGD with noise at each of three steps: the hidden steps steer the next, and showing them costs nothing more."""
    made = protocol("dpsgd", STAR, 4, alpha=0.3, sigma=0.5, order="adapt", noise="step", steps=3)
    (found,) = view_bounds(made, Adversary(), [1])
    assert min(found.certificate) == 0
    assert found.mu == pytest.approx(math.sqrt(3 * 4) * 0.3 / 0.5)
    assert "knows the models" in str(found.basis)


def test_where_hidden_noise_steers_the_models_even_a_smoothness_gives_nothing() -> None:
    made = protocol("nids", make("ring", 4, torch.Generator()), 5, sigma=0.5)
    for smoothness in (None, 1.0):
        (found,) = view_bounds(made, Adversary(), [0], smoothness=smoothness)
        assert found.mu is None
        assert found.node_mu is None
        assert found.unit == "none"
        assert str(found.basis).startswith("none:")
        assert found.linear is not None
        assert found.linear > 0


def test_linear_is_what_constant_gradients_reach() -> None:
    """Gradient tracking on a path of six, twelve rounds: 14.57 was the largest over gradients that change sign."""
    made = protocol("tracking", path(6), 12, sigma=0.5, noise="message", alpha=0.1)
    case = Problem(made, (0.0,) * 6, Adversary(), 0, "")
    found = case.bound()
    assert found.linear == pytest.approx(case.respond((0.0,) * 6).mu(0, 0, Adversary()), rel=1e-5)
    assert found.node_mu is not None
    assert found.linear is not None
    assert found.node_mu > 5 * found.linear


def test_a_view_of_nothing_tells_nothing_and_a_leak_stays_a_leak() -> None:
    far = protocol("dpsgd", path(6), 2, sigma=0.5, alpha=0.1)
    (found,) = view_bounds(far, Adversary(hears=frozenset({(4, 5), (5, 4)})), [0])
    assert found.mu == found.epsilon == 0
    bare = protocol("dpsgd", STAR, 3, alpha=0.1)
    (found,) = view_bounds(bare, Adversary(), [1])
    assert found.mu == found.epsilon == found.reached == math.inf


def test_the_single_node_reference_tells_nothing() -> None:
    made = protocol("single", make("ring", 3, torch.Generator()), 4)
    for who in (Adversary(), Adversary(corrupt=frozenset({0})), Adversary(corrupt=frozenset({1}))):
        for node in sorted({0, 1, 2} - who.corrupt):
            (found,) = view_bounds(made, who, [node])
            assert found.mu == 0
            assert found.unit == "record"
            assert str(found.basis) == f"record: {UNSEEN[1]}"


def test_a_node_that_the_schedule_leaves_out_has_mu_0() -> None:
    made = protocol("recal", make("ring", 6, torch.Generator()), 3, sigma=0.5)
    idle = sorted(set(range(6)) - set(made.public["active"].tolist()))
    assert idle
    (found,) = view_bounds(made, Adversary(), idle[:1])
    assert (found.mu, found.gradients, found.refused) == (0.0, 0, "")
    (one,) = compare(made, named([Adversary()], idle[:1], 6))
    assert one.verdict in (Verdict.NOT_REFUTED, Verdict.UNCLAIMED)


class Averaging:
    """A victim whose nodes each send a secret of their own; no gradient is taken."""

    stationary = False

    def turns(self, rounds: int) -> None:
        """All records count always."""

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare one message a node and round."""
        p = Relations(graph)
        data = {i: p.secret("x", i) for i in range(graph.nodes)}
        for _ in p.rounds(rounds):
            for i, near in enumerate(graph.neighbours):
                p.send(i, near, data[i] + p.noise("n", 1.0, i))
        return p


def test_data_that_enters_without_gradients_is_not_priced_as_nothing() -> None:
    (found,) = view_bounds(
        Protocol(cast(Victim, Averaging()), make("ring", 3, torch.Generator()), 2, {}),
        Adversary(),
        [0],
    )
    assert found.mu is None
    assert "does not enter through gradients" in found.refused


@pytest.mark.parametrize("smoothness", [None, 1.0])
def test_no_smoothness_is_asked_for_where_none_helps(smoothness: float | None) -> None:
    """RW-ADMM: what is observed before a gradient does not bound the point of its evaluation."""
    made = protocol("rwadmm", make("ring", 6, torch.Generator()), 5, sigma=0.1)
    found = compare(made, named([Adversary()], range(6), 6), sensitivity=1.0, smoothness=smoothness)
    reasons = [str(one.bound.basis) for one in found if one.bound.basis is not None]
    some = [why for why in reasons if why.startswith("node: no epsilon per record")]
    assert some
    for why in some:
        assert "specify --smoothness" not in why
        assert "(with any smoothness: drift: " in why


def test_a_claim_about_records_is_not_settled_by_the_figure_of_the_node() -> None:
    """DP-Norm without a smoothness: neither verdict; with one, what the bound says."""
    made = protocol("dpnorm", make("ring", 4, torch.Generator()), 4, sigma=0.1, records=8)
    (plain,), (smooth,) = (
        compare(made, named([Adversary()], [0], 4), smoothness=s) for s in (None, 0.5)
    )
    assert plain.verdict is Verdict.INCONCLUSIVE
    assert "specify --smoothness" in plain.why
    assert plain.exact is None
    assert plain.ratio is None
    assert smooth.verdict is Verdict.NOT_REFUTED


def test_a_smoothness_below_zero_is_refused() -> None:
    made = protocol("dpsgd", STAR, 3, sigma=0.5)
    (found,) = view_bounds(made, Adversary(), [1], smoothness=-1.0)
    assert found.mu is None
    with pytest.raises(LeakauditError):
        next(view_bounds(made, Adversary(), [9]))


GATE = """
[gate]
seeds = 1
baseline = ""
[check.main]
attacks = ["analytic"]
sensitivity = 1.0
{smoothness}
[check.main.scenario]
victim = "dpsgd"
nodes = 4
graph = "star"
rounds = 5
data = "gaussians:40"
model = "logistic"
set = {{ sigma = 0.5, alpha = 0.3, order = "{order}" }}
[[budget]]
measure = "epsilon"
most = 7.0
"""


@pytest.mark.parametrize(
    ("order", "smoothness", "code", "said"),
    [
        (
            "combine",
            "",
            3,
            "add smoothness = L, a Lipschitz constant of a node's gradients, to [check.main]",
        ),
        ("combine", "smoothness = 6.0", 1, "epsilon of one record: 189.8"),
        ("combine", "smoothness = 0.0", 0, "epsilon of one record: 6.174, at most 7"),
        ("adapt", "", 0, "epsilon of one record: 6.174, at most 7"),
    ],
)
def test_a_budget_of_epsilon_asks_for_the_models_or_a_smoothness(
    order: str,
    smoothness: str,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The default D-PSGD passed a budget of 7 with the figure of the node, 6.17, where a record reaches 33.2."""
    monkeypatch.chdir(tmp_path)
    Path("leakaudit.toml").write_text(GATE.format(order=order, smoothness=smoothness))
    assert main(["check", "-o", "out", "-q", "-v"]) == code
    shown = " ".join(capsys.readouterr().out.split())
    assert said in shown
    record = json.loads(Path("out/results.json").read_text())
    (cell,) = record["gate"]["cells"]
    assert cell["rounds_priced"] == 5
    assert (cell["epsilon"] is None) == (code == 3)
