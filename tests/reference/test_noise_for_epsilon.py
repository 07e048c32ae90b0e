"""The noise for an epsilon: the paper's theorem solved for it, or the exact view."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import leakaudit
from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.judging.auditing.environment import HERE
from leakaudit.protocols.calibration import METHODS
from leakaudit.protocols.recording import Plan
from leakaudit.protocols.scenario import Scenario
from leakaudit.runs.sweeping.cells import expand
from leakaudit.runs.sweeping.plan import SweepPlan
from leakaudit.runs.sweeping.work import Job
from leakaudit.theory.bounds import gaussian
from leakaudit.views.accounting.view_bound import view_bounds

DELTA = 1e-3


def scenario(victim: str, method: str = "claim", **constants: Any) -> Scenario:
    return Scenario(
        victim=victim,
        nodes=5,
        graph="complete" if victim == "secagg" else "ring",
        rounds=6,
        data="gaussians",
        model="logistic",
        samples=4,
        set=constants,
        calibrate=method,
    )


def noise(plan: Plan, *beside: str) -> float:
    assert plan.calibrated is not None
    assert plan.scenario.set[plan.calibrated.constant] == plan.calibrated.value
    assert ("epsilon" in plan.scenario.set) == ("epsilon" in beside)
    return plan.calibrated.value


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_recal_solves_theorem_4_in_closed_form(epsilon: float) -> None:
    """Theorem 4: epsilon = rho + 2 sqrt(rho log(1/delta)), rho = PLF (tau C)^2 / (2 sigma^2)."""
    made = HERE.plan(scenario("recal", epsilon=epsilon, tau=0.2, sensitivity=3.0))
    active = made.declared.public["active"][:6].bincount().max().item()
    log = math.log(1 / DELTA)
    rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2
    assert noise(made) == pytest.approx(0.2 * 3 * math.sqrt(active / (2 * rho)), rel=1e-12)


def test_mradmm_solves_its_loss_for_the_rate_of_the_noise() -> None:
    """Loss: sum over updates of (1.4 c1 + a) / (h E_i B), c1 = 1/4, h constant, 3 updates."""
    made = HERE.plan(scenario("mradmm", epsilon=30.0, eta=0.5))
    assert noise(made) == pytest.approx(30 * 0.5 * 2 * 4 / 3 - 1.4 / 4, rel=1e-12)
    with pytest.raises(LeakauditError, match="expected one that the paper claims"):
        HERE.plan(scenario("mradmm", epsilon=0.01))


def test_every_pair_of_muffliato_is_claimed_to_have_at_most_the_epsilon() -> None:
    made = HERE.plan(scenario("muffliato", epsilon=2.0))
    noise(made)
    claims = made.victim.claims(made.graph, 6, {})
    said = [claim.epsilon for claim in claims if claim.epsilon is not None]
    assert max(said) == pytest.approx(2.0, rel=1e-9)


def test_pvpadmm_has_the_epsilon_in_each_iteration() -> None:
    assert noise(HERE.plan(scenario("pvpadmm", epsilon=0.7, perturb="dual"))) == pytest.approx(0.7)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("victim", registry.names("victims"))
def test_a_given_epsilon_is_reached_by_noise_or_rejected(victim: str, method: str) -> None:
    kind = registry.get("victims", victim)
    settings: list[dict[str, str]] = [{}]
    for name in registry.parameters(kind):
        settings += [{name: word} for word in registry.choices(kind, name)]
    for constants in settings:
        try:
            made = HERE.plan(scenario(victim, method, epsilon=1.0, **constants))
        except LeakauditError:
            continue
        declared = made.declared
        relations = made.victim.relations(made.graph, declared.rounds, declared.public)
        assert any(vector.kind == "noise" for vector in relations.vectors), constants


EXACT = [
    ("gossip", {"sensitivity": 0.2}),
    ("extra", {"sensitivity": 0.2}),
    ("nids", {"sensitivity": 0.2, "noise": "message"}),
    ("rwadmm", {"sensitivity": 0.2, "update": "gradient"}),
    ("fedavg", {"clip": 1.0}),
    ("fedsgd", {"clip": 1.0}),
    ("secagg", {"clip": 1.0}),
    ("muffliato", {}),
    ("recal", {}),
    ("dpsgd", {"clip": 1.0}),
    ("dpadmm", {}),
    ("dpnorm", {}),
    ("dkm", {"mechanism": "gaussian", "operator": "pgd", "l1": 0.01}),
    ("dkm", {"mechanism": "truncated_laplace", "bound": 0.2}),
]


@pytest.mark.parametrize(("victim", "constants"), EXACT)
def test_the_strongest_view_of_a_recording_has_the_epsilon(
    victim: str, constants: dict[str, Any], tmp_path: Path
) -> None:
    asked = scenario(victim, "exact", epsilon=1.5, **constants)
    made = HERE.plan(asked)
    file = tmp_path / "t.pt"
    trace, truth = leakaudit.record(asked, file)
    found = made.calibrated
    assert found is not None
    assert trace.params[found.constant] == noise(made, *(["epsilon"] * (victim == "dkm")))
    assert trace.provenance["calibrated"] == found.to_json()
    told: Any = truth.provenance["scenario"]
    assert told["set"][found.constant] == found.value
    sensitivity = constants.get("sensitivity") or (2.0 if victim in ("fedsgd", "secagg") else None)
    views = leakaudit.bound(file, sensitivity=sensitivity, delta=found.delta, coalitions=1)
    worst = max(
        one.bound.epsilon if one.bound.epsilon is not None else one.bound.node_epsilon or 0.0
        for one in views
    )
    assert worst == pytest.approx(1.5, rel=1e-5)


def test_the_factor_of_dkm_is_the_price_of_its_mechanism() -> None:
    """The epsilon stays that of the paper; its claim is met by noise of at least that size."""
    constants: dict[str, Any] = {"mechanism": "gaussian", "epsilon": 1.0}
    large = HERE.plan(scenario("dkm", "exact", **constants))
    assert large.scenario.set["epsilon"] == 1.0
    assert noise(large, "epsilon") < 1  # Delta_K is far above what a record can change
    small = HERE.plan(scenario("dkm", "exact", sensitivity=0.1, **constants))
    assert noise(small, "epsilon") > 1  # six releases are not one
    for made, met in ((large, False), (small, True)):
        claims = made.victim.claims(made.graph, 6, {})
        assert [claim.met for claim in claims if claim.epsilon is not None] == [met, met]


@pytest.mark.parametrize("smoothness", [0.0, 1.0])
def test_an_epsilon_of_a_whole_node_is_not_called_one_of_a_record(smoothness: float) -> None:
    """Without a smoothness, a changed record of a run that hides its models has no epsilon."""
    set_ = {"mechanism": "laplace", "sensitivity": 0.2, "epsilon": 2.0, "delta": 0.01}
    made = HERE.plan(scenario("dkm", "exact", **set_, smoothness=smoothness))
    assert made.calibrated is not None
    of_node = "of a whole node" in made.calibrated.words
    assert of_node == (not smoothness)
    moved = 0.2 / (0.5 * 0.1)  # of a gradient: alpha gamma times as much is released
    (found,) = view_bounds(made.declared, Adversary(), [0], moved, 0.01, smoothness or None)
    reached = found.node_epsilon if of_node else found.epsilon
    assert reached == pytest.approx(2.0, rel=1e-3)
    assert (found.epsilon is None) == of_node


def test_one_release_needs_the_noise_of_the_analytic_gaussian_mechanism() -> None:
    """Gossip draws noise once: lr g + n, so sigma is lr S / mu with mu of (epsilon, delta)."""
    made = HERE.plan(scenario("gossip", "exact", epsilon=1.0, delta=1e-6, sensitivity=0.2, lr=0.5))
    mu = gaussian.least_mu(1.0, 1e-6)
    assert noise(made) == pytest.approx(0.5 * 0.2 / mu, rel=1e-6)


@pytest.mark.parametrize(
    ("victim", "method", "constants", "says"),
    [
        ("dkm", "exact", {"epsilon": 1.0, "factor": 2.0}, "epsilon or factor, got both"),
        ("dkm", "claim", {"mechanism": "laplace", "factor": 0.0}, "factor > 0"),
        ("nids", "claim", {"epsilon": 1.0}, "nids: its paper claims no epsilon .* calibrate=exact"),
        ("fedsgd", "claim", {"epsilon": 1.0}, "fedsgd: its paper claims no epsilon"),
        ("recal", "claim", {"epsilon": 1.0, "sigma": 0.1}, "epsilon or sigma, got both"),
        ("dpnorm", "claim", {"epsilon": 1.0, "sigma": 0.1}, "epsilon or sigma, got both"),
        ("recal", "exact", {"epsilon": 1.0, "sigma": 0.1}, "epsilon or sigma, got both"),
        ("nids", "exact", {"epsilon": 1.0}, "set sensitivity=… or clip=…"),
        ("nids", "exact", {}, "needs an epsilon"),
        ("pdmm", "exact", {"epsilon": 1.0}, "pdmm: it adds no noise"),
        ("pdmm", "claim", {"epsilon": 1.0}, "neither pdmm nor logistic has a parameter"),
        ("nids", "claim", {"epsilon": -1.0}, "epsilon: expected a finite number > 0"),
        ("nids", "claim", {"epsilon": 1.0, "delta": 1e-3}, "delta goes with calibrate=exact"),
        ("nids", "claim", {"delta": 1e-3}, "has a parameter 'delta'"),
        ("fedsgd", "exact", {"epsilon": 1.0, "clip": 1.0, "noisy": "first"}, "is sent without"),
    ],
)
def test_what_cannot_be_found_is_one_line(
    victim: str, method: str, constants: dict[str, Any], says: str
) -> None:
    with pytest.raises(LeakauditError, match=says) as error:
        HERE.plan(scenario(victim, method, **constants))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("smoothness", [None, 1.0])
def test_a_smoothness_is_not_asked_for_where_it_does_not_help(smoothness: float | None) -> None:
    asked = scenario("nids", "exact", epsilon=1.0, sensitivity=0.2, smoothness=smoothness)
    with pytest.raises(LeakauditError, match="influences the models") as error:
        HERE.plan(asked)
    assert "smoothness" not in str(error.value)


def test_an_epsilon_of_none_keeps_the_noise() -> None:
    for none in (None, "none"):
        made = HERE.plan(scenario("nids", epsilon=none, sigma=0.3))
        assert made.calibrated is None
        assert made.declared.victim.sigma == 0.3  # type: ignore[attr-defined]


def test_table_two_takes_the_rounds_of_the_run() -> None:
    for victim in ("dpsgd", "dpadmm"):
        constants: dict[str, Any] = {"noise": "step"} if victim == "dpsgd" else {}
        made = HERE.plan(scenario(victim, epsilon=1.0, **constants))
        assert made.victim.horizon == 6  # type: ignore[attr-defined]


def test_a_cell_of_a_sweep_finds_the_same_noise() -> None:
    asked = scenario("extra", "exact", epsilon=1.0, sensitivity=0.2)
    (cell,) = expand(SweepPlan(asked, attacks=("analytic",)))
    result = Job().measure(cell)
    assert result.constants == {"sigma": noise(HERE.plan(asked))}


def test_record_says_which_noise_came_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "t.pt")
    run = ["record", "extra", "-o", file, "--nodes", "4", "--graph", "ring", "--rounds", "3"]
    constants = ["--set", "epsilon=1", "--set", "sensitivity=0.2"]
    assert main([*run, *constants, "--calibrate", "exact"]) == 0
    said = capsys.readouterr().err
    assert "noise: sigma = " in said
    assert "gives epsilon 1 at delta 1e-05" in said
    assert main([*run, *constants, "--calibrate", "exactly"]) == 2
    assert "calibrate: expected claim or exact" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["record", "extra", "--help"])
    assert "epsilon=" in capsys.readouterr().out
