"""Every pitfall that a trace can show is planted in a recorded one and found; the tests behind them keep their level."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="dict-item, misc, operator, str-unpack, type-var"

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from leakaudit.core import registry
from leakaudit.core.claim import Adjacency, Claim
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Messages, Trace, Truth
from leakaudit.core.verdict import Verdict
from leakaudit.judging.lint import views
from leakaudit.judging.lint.checks import lint
from leakaudit.protocols import local, recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.bounds.mechanisms import classic_std
from leakaudit.theory.relations import Relations
from leakaudit.victims import dpsgd
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.noise import judged, low_variance
from leakaudit.views.conformance.pitfall import NAMES, Pitfall
from leakaudit.views.conformance.samples import LEVEL, Sample

HIDDEN = 987654321987  # a seed that nobody guesses
REFUTED, UNSUPPORTED, UNCLAIMED = Verdict.REFUTED, Verdict.UNSUPPORTED, Verdict.UNCLAIMED
Draw = Callable[[torch.Tensor, float, torch.Generator], torch.Tensor]


def record(
    victim: str = "dpsgd", model: str = "mlp", seed: int = HIDDEN, **changes: Any
) -> tuple[Trace, Truth]:
    values: dict[str, Any] = {
        "nodes": 4,
        "graph": "ring",
        "rounds": 8,
        "samples": 2,
        "states": True,
        "model": model,
        "seed": seed,
    }
    values |= {"data": "faces" if model == "mlp" else "gaussians"} | changes
    values["set"] = ({"hidden": 8} if model == "mlp" else {}) | values.get("set", {})
    recorder = recording.record(recording.plan(Scenario(victim=victim, **values)), None)
    return recorder.trace, recorder.truth_record


def found(trace: Trace, truth: Truth | None = None) -> dict[int, Any]:
    return {p.number: p for p in lint(trace, truth)}


def bad(found: dict[int, Pitfall]) -> set[int]:
    return {number for number, p in found.items() if p.bad}


@pytest.fixture(scope="module")
def noisy() -> tuple[Trace, Truth]:
    return record(set={"sigma": 0.1})


# --- noise: 6, 10, 13, 20 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("white_box", [False, True])
@pytest.mark.parametrize("declared", [0.2, 0.115])
def test_less_noise_than_declared(
    noisy: tuple[Trace, Truth], white_box: bool, declared: float
) -> None:
    trace, truth = noisy
    louder = replace(trace, params={**trace.params, "sigma": declared})
    p = found(louder, truth if white_box else None)
    assert bad(p) == {20}
    assert p[20].figures["ratio"] == pytest.approx(0.1 / declared, rel=0.05)
    assert 0.1 / declared < p[20].figures["limit"] < 0.1 / declared * 1.05
    if white_box:
        low, high = p[20].figures["interval"]
        assert low < 0.1 < high < 0.105


def test_noise_that_was_forgotten_in_a_small_model() -> None:
    """Three coordinates: the nodes together have power where none has alone."""
    trace, _ = record(model="logistic", samples=6, set={"sigma": 1e-6})
    p = found(replace(trace, params={**trace.params, "sigma": 5.0}))
    assert bad(p) == {20}
    assert p[20].figures["nodes"] == [0, 1, 2, 3]


def same_in_all_rounds() -> Draw:
    kept: dict[str, torch.Tensor] = {}

    def draw(like: torch.Tensor, std: float, generator: torch.Generator) -> torch.Tensor:
        return kept.setdefault("n", local.normal(like, std, generator)).clone()

    return draw


def same_at_all_nodes(like: torch.Tensor, std: float, generator: torch.Generator) -> torch.Tensor:
    return local.normal(like[:1], std, generator).expand_as(like).clone()


def with_a_boundary(like: torch.Tensor, std: float, generator: torch.Generator) -> torch.Tensor:
    return (torch.rand(like.shape, generator=generator) * 2 - 1).mul_(math.sqrt(3) * std)


def heavy(like: torch.Tensor, std: float, generator: torch.Generator) -> torch.Tensor:
    u = torch.rand(like.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return (-u.sign() * torch.log1p(-u.abs()) * std / math.sqrt(2)).to(like)


@pytest.mark.parametrize(
    ("draw", "in_trace", "in_truth"),
    [
        (same_in_all_rounds(), {6}, {6}),
        (same_at_all_nodes, {6}, {6}),
        (with_a_boundary, {10}, {10, 13}),
        (heavy, {20}, {13}),
    ],
    ids=["rounds", "nodes", "boundary", "laplace"],
)
def test_noise_that_is_not_what_it_is_called(
    draw: Draw, in_trace: set[int], in_truth: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpsgd, "normal", draw)
    trace, truth = record(set={"sigma": 0.1})
    assert bad(found(trace)) == in_trace
    assert bad(found(trace, truth)) == in_truth


def test_two_rounds_of_many_with_one_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[torch.Tensor] = []

    def draw(like: torch.Tensor, std: float, generator: torch.Generator) -> torch.Tensor:
        draws.append(local.normal(like, std, generator))
        return draws[1].clone() if len(draws) == 6 else draws[-1].clone()

    monkeypatch.setattr(recording, "contradictions", lambda *_: [])  # which runs the victim as well
    monkeypatch.setattr(dpsgd, "normal", draw)
    p = found(record(set={"sigma": 0.1})[0])
    assert bad(p) == {6}
    assert (p[6].figures["first"], p[6].figures["again"]) == (
        "g[0,2] of node 0",
        "g[0,6] of node 0",
    )


def test_noise_that_travels_nowhere_is_seen_in_the_relations() -> None:
    p = found(record("recal", "logistic", set={"sigma": 0.3, "noise_on": "lam"})[0])
    assert p[6].verdict is UNSUPPORTED
    assert "mu is infinite" in p[6].says
    assert found(record("tracking", "logistic", set={"sigma": 0.1})[0])[6].verdict is UNCLAIMED


@pytest.mark.parametrize(
    ("law", "delta"), [("truncated_gaussian", 0.238), ("truncated_laplace", 0.0577)]
)
def test_truncated_noise_in_many_dimensions(law: str, delta: float) -> None:
    """The true delta of Theorem 6 is .238 (claims, row 2); Definition 6 escapes more often the more coordinates there are."""
    p = found(record("dkm", set={"mechanism": law})[0])
    assert p[10].verdict is REFUTED
    assert max(p[10].figures["one_coordinate"], p[10].figures["escape"]) == pytest.approx(
        delta, rel=5e-3
    )
    assert 10 not in found(record("dkm", set={"mechanism": "laplace"})[0])


def test_coarse_numbers(noisy: tuple[Trace, Truth]) -> None:
    (m,) = noisy[0].messages
    half = replace(noisy[0], messages=(replace(m, payload=m.payload.half()),))
    grid = replace(noisy[0], messages=(replace(m, payload=(m.payload * 20).round() / 20),))
    assert "float16" in found(half)[10].says
    assert found(grid)[10].figures["distinct"] < 0.1


def test_a_test_of_noise_keeps_its_level_whatever_the_gradients_are() -> None:
    """Overlapping noise of known covariance under random shifts: a chance below p comes up in a share of at most p."""
    draw, chances = np.random.default_rng(0), []
    factor = np.array([[1.0, 0, 0, 0], [-1, 1, 0, 0], [0, -1, 1, 0], [0, 0, 0.3, 1]])
    for k in range(600):
        shift = draw.normal(size=(4, 40)) * (draw.random((4, 40)) < 0.3) * (k % 3)
        value = shift + factor @ draw.normal(size=(4, 40))
        one = Sample(
            0,
            ("a",) * 4,
            (1, 2, 3, 4),
            value,
            factor,
            np.zeros(4),
            np.zeros(4),
            40,
            gaussian=True,
            hidden=True,
        )
        chances.append(low_variance([one], LEVEL).chance)
    for level in (0.05, 0.2):
        below = sum(c < level for c in chances)
        assert binomtest(below, len(chances), level, alternative="greater").pvalue > 1e-3
    still = [c for k, c in enumerate(chances) if k % 3 == 0]
    assert (
        binomtest(sum(c < 0.2 for c in still), len(still), 0.2).pvalue > 1e-3
    )  # and is used up where there is no gradient


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("normal", [False, True])
def test_no_false_alarm_on_noise_as_declared(hidden: bool, normal: bool) -> None:
    draw = np.random.default_rng(1)
    for coordinates in (1, 3, 30, 500):
        for _ in range(25):
            samples = []
            for node in range(3):
                e = (
                    draw.normal(size=(6, coordinates))
                    if normal
                    else draw.laplace(size=(6, coordinates)) / math.sqrt(2)
                )
                shift = draw.normal(size=(1, coordinates)) if hidden else 0.0
                labels, rounds = tuple("abcdef"), tuple(range(6))
                samples.append(
                    Sample(
                        node,
                        labels,
                        rounds,
                        shift + e,
                        np.eye(6),
                        np.zeros(6),
                        np.zeros(6),
                        coordinates,
                        normal,
                        hidden,
                    )
                )
            assert list(judged(samples)) == []


# --- gradients: 5, 8 --------------------------------------------------------------------------------------------------


def _not_clipped(
    steps: local.LocalSteps, w: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """Return the gradients of a program that forgets to clip them."""
    return steps.problem.task.gradients(w, x, y)


def test_gradients_that_are_not_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    clipped = record(set={"sigma": 0.01, "clip": 0.5})
    assert not bad(found(*clipped))
    assert not bad(found(clipped[0]))
    monkeypatch.setattr(local.LocalSteps, "_gradients", _not_clipped)
    trace, truth = record(set={"sigma": 0.01, "clip": 0.5})
    in_trace, in_truth = found(trace), found(trace, truth)
    assert bad(in_trace) == {5}
    assert bad(in_truth) == {5, 22}  # the gradients that were used are not the declared ones
    assert in_trace[5].figures["norm"] > 0.5 + in_trace[5].figures["noise"]
    assert in_truth[5].figures["used"] > 0.5


def test_records_that_are_not_clipped_though_their_mean_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bound between the longest mean and the longest record: only the records tell."""
    monkeypatch.setattr(local.LocalSteps, "_gradients", _not_clipped)
    settings: dict[str, Any] = {
        "model": "logistic",
        "samples": 12,
        "set": {"sigma": 0.01, "clip": 2.2},
    }
    trace, truth = record(**settings)
    assert float(truth.states["g"].norm(dim=2).nan_to_num().max()) < 2.2
    p = found(trace, truth)
    assert bad(p) == {5}
    assert p[5].figures["largest"] > 2.2
    assert "used" not in p[5].figures
    monkeypatch.undo()
    assert not bad(found(*record(**settings)))


def test_an_assumed_norm_that_the_run_does_not_keep() -> None:
    trace, truth = record("dpnorm", set={"epsilon": 100.0})
    p = found(trace, truth)
    assert p[5].verdict is UNSUPPORTED
    assert p[5].figures["largest"] > 1
    assert "lipschitz=1" in p[5].says
    kept = replace(trace, params={**trace.params, "lipschitz": 1e4})
    assert 5 not in found(kept, truth)


def test_fewer_records_than_the_noise_reckons_with() -> None:
    trace, truth = record("dpnorm", "logistic", samples=6, set={"epsilon": 1.0})
    keep = torch.ones(len(truth.node), dtype=torch.bool)
    keep[(truth.node == 2).nonzero().flatten()[:3]] = False
    fewer = replace(
        truth, x=truth.x[keep], y=truth.y[keep], node=truth.node[keep], index=truth.index[keep]
    )
    p = found(trace, fewer)
    assert p[8].verdict is UNSUPPORTED
    assert (p[8].figures["told"], p[8].figures["held"], p[8].figures["node"]) == (6, 3, 2)
    assert 8 not in found(trace, truth)


# --- claims of registered protocols: 1, 2, 3, 4, 7, 14, 18 ------------------------------------------------------------


def test_more_rounds_than_the_claim_covers() -> None:
    p = found(record("dpsgd", "logistic", set={"epsilon": 1.0, "noise": "step", "horizon": 4})[0])
    assert (p[1].verdict, p[1].figures["covered"], p[1].figures["sum"]) == (UNSUPPORTED, 4, 2.0)
    assert p[1].figures["gaussian"] == pytest.approx(
        gaussian.epsilon(1e-3, math.sqrt(2) * gaussian.least_mu(1.0, 1e-3))
    )
    assert (
        found(record("dpadmmserver", "logistic", set={"epsilon": 0.5})[0])[1].verdict is UNCLAIMED
    )


def test_replacing_charged_as_adding() -> None:
    """Table II's noise for DP-SGD: mu = 2 epsilon / sqrt(log(1 / delta)) where a record is replaced, in every batch."""
    p = found(
        record(
            "dpsgd",
            "logistic",
            set={"epsilon": 1.0, "noise": "step", "horizon": 8, "order": "adapt"},
        )[0]
    )
    assert p[2].verdict is UNSUPPORTED
    mu = 2 / math.sqrt(math.log(1e3))
    assert p[2].figures["all"] == pytest.approx(gaussian.epsilon(1e-3, mu), rel=1e-6)
    assert p[2].figures["add_or_remove"] == pytest.approx(gaussian.epsilon(1e-3, mu / 2), rel=1e-6)


def test_a_claim_of_a_plugin_may_name_its_adjacency_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The findings are those of the claim with the same adjacency as a value; without either, there is one more."""
    trace, _ = record("dpsgd", "logistic", set={"sigma": 0.1})
    victim = registry.get("victims", "dpsgd")
    claim = Claim("A paper", "all messages are private", 1.0, 1e-3, sensitivity=1.0)

    def lints(**changes: Any) -> list[tuple[int, str]]:
        one = replace(claim, **changes)
        monkeypatch.setattr(victim, "claims", lambda *_: (one,))
        return [(p.number, p.says) for p in lint(trace)]

    words = lints(adjacency="one record is replaced")
    assert words == lints(adjacency="one record is replaced", neighbours=Adjacency.REPLACE)
    assert 2 not in dict(words)
    assert 2 in dict(lints(adjacency="something"))


def test_whose_privacy_and_how_large_a_delta() -> None:
    p = found(
        record("dpnorm", "logistic", samples=300, data="gaussians:1200", set={"epsilon": 1.0})[0]
    )
    assert p[3].verdict is p[14].verdict is UNCLAIMED
    assert p[3].figures["node"] == pytest.approx(
        gaussian.epsilon(1e-3, 300 * gaussian.least_mu(1.0, 1e-3))
    )
    assert p[14].figures == {"delta": 1e-3, "records": 1200}
    assert not {3, 14} & set(
        found(record("dpnorm", "logistic", samples=1, set={"epsilon": 1.0})[0])
    )


def test_who_listens() -> None:
    """Far pairs of a ring: .014 of mu^2 is promised of what one node sees, an outsider sees all (claims, row 14)."""
    settings = {"lr": 0.5, "clip": 1.0, "sigma": 1.0, "gossips": 4}
    p = found(record("muffliato", "logistic", nodes=8, rounds=4, set=settings)[0])
    assert p[4].figures["outsider"] == pytest.approx(gaussian.epsilon(1e-3, 1.0), rel=1e-6)
    assert p[4].figures["claimed"] < p[4].figures["outsider"] / 2


def test_a_neighbour_that_knows_its_own_noise(noisy: tuple[Trace, Truth]) -> None:
    """Node 0 is hidden by its own noise and by that of node 1: mu is 1 / sqrt(5) to an outsider and 1 to one who is also node 1."""
    p = Relations(noisy[0].graph)
    w = p.public("w0")
    for _ in p.rounds(1):
        p.send(0, 1, p.grad(0, at=w) + p.noise("n", 1.0, 0) + p.noise("n", 2.0, 1))
    (one,) = views._neighbours(Case(noisy[0]), p, [0])
    assert one.verdict is UNCLAIMED
    assert (one.figures["mu_outsider"], one.figures["mu_neighbour"]) == pytest.approx(
        (1 / math.sqrt(5), 1.0)
    )
    assert 4 not in found(noisy[0])


def test_messages_that_the_protocol_does_not_send() -> None:
    trace, _ = record("recal", "logistic", rounds=12, set={"sigma": 0.3})
    assert 7 not in found(trace)
    other = replace(trace, public={**trace.public, "active": trace.public["active"].roll(1)})
    assert found(other)[7].verdict is UNSUPPORTED
    (m,) = trace.messages
    twice = replace(
        trace, messages=(_some(m, torch.cat([torch.arange(len(m)), torch.tensor([3])])),)
    )
    assert found(twice)[1].figures["repeated"] == 1


def test_classic_calibration() -> None:
    for epsilon, delta, verdict in (
        (10.0, 1e-5, REFUTED),
        (2.0, 1e-5, UNSUPPORTED),
        (0.5, 1e-5, None),
    ):
        p = found(
            record(
                "dkm", "logistic", set={"mechanism": "gaussian", "epsilon": epsilon, "delta": delta}
            )[0]
        )
        assert (p[18].verdict if 18 in p else None) is verdict
    figures = found(
        record("dkm", "logistic", set={"mechanism": "gaussian", "epsilon": 10.0, "delta": 1e-5})[0]
    )[18].figures
    assert (figures["classic"], figures["needed"]) == pytest.approx((0.48449, 0.49989), rel=1e-4)


# --- loops of the user's own: constants by their usual names ----------------------------------------------------------


def _some(m: Messages, rows: torch.Tensor) -> Messages:
    columns = {
        name: getattr(m, name)[rows] for name in ("round", "src", "dst", "kind", "row", "secure")
    }
    return replace(m, **columns)


def loop(trace: Trace, **params: Any) -> Trace:
    return replace(trace, protocol="own:loop", params=params)


GOOD = {"sigma": 1.0, "clip": 1.0, "delta": 1e-5, "adjacency": "one record is added or removed"}


def test_a_loop_with_a_right_claim_is_silent(noisy: tuple[Trace, Truth]) -> None:
    right = gaussian.epsilon(1e-5, math.sqrt(8))
    assert found(loop(noisy[0], **GOOD, epsilon=right)) == {}
    assert found(loop(noisy[0])) == {}


@pytest.mark.parametrize(
    ("params", "number"),
    [
        ({"epsilon": gaussian.epsilon(1e-5, 1.0)}, 1),
        (
            {
                "epsilon": gaussian.epsilon(1e-5, math.sqrt(8)),
                "adjacency": "one record is replaced",
            },
            2,
        ),
        ({"epsilon": 30.0, "adjacency": ""}, 2),
        ({"epsilon": 1.0, "sigma": 0.5}, 20),
        ({"epsilon": 30.0, "momentum": 0.9}, 5),
        ({"epsilon": 30.0, "local_steps": 5}, 5),
        ({"epsilon": 30.0, "seed": 1}, 19),
        ({"epsilon": 5.0, "horizon": 1}, 1),
    ],
)
def test_a_loop_with_a_slip(
    noisy: tuple[Trace, Truth], params: dict[str, Any], number: int
) -> None:
    p = found(loop(noisy[0], **{**GOOD, **params}))
    assert set(p) == {number}


def test_a_loop_calibrated_by_the_textbook(noisy: tuple[Trace, Truth]) -> None:
    one = replace(noisy[0], rounds=1)
    settings = {**GOOD, "epsilon": 10.0, "sigma": classic_std(10.0, 1e-5)}
    assert found(loop(one, **settings))[18].verdict is REFUTED
    assert 18 not in found(loop(one, **{**settings, "sigma": 1 / gaussian.least_mu(10.0, 1e-5)}))


def test_a_loop_that_repeats_a_message(noisy: tuple[Trace, Truth]) -> None:
    (m,) = noisy[0].messages
    payload = m.payload.clone()
    payload[7] = payload[2]
    again = replace(noisy[0], messages=(replace(m, payload=payload),))
    assert "bit for bit" in found(loop(again, **GOOD, epsilon=30.0))[6].says


def test_sampling_that_everybody_sees() -> None:
    """Two of twelve nodes in each of 60 rounds: participation is no secret, and no Poisson sampling either."""
    trace, _ = record("dpsgd", "logistic", nodes=12, rounds=60)
    (m,) = trace.messages
    draw = np.random.default_rng(0)
    fixed = torch.stack([torch.from_numpy(draw.choice(12, 2, replace=False)) for _ in range(61)])
    params = {**GOOD, "epsilon": 5.0, "sampling_rate": 1 / 6}
    kept = _some(m, (m.src[:, None] == fixed[m.round.long()]).any(1).nonzero().flatten())
    p = found(loop(replace(trace, messages=(kept,)), **params))
    assert set(p) == {7, 9}
    assert p[9].figures["participants"] == 2
    poisson = torch.from_numpy(draw.random((61, 12)) < 1 / 6)
    kept = _some(m, poisson[m.round.long(), m.src.long()].nonzero().flatten())
    assert set(found(loop(replace(trace, messages=(kept,)), **params))) == {7}
    assert (
        set(found(loop(replace(trace, messages=(kept,)), **{**params, "epsilon": 100.0}))) == set()
    )


# --- seeds: 19 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("victim", "seed"), [("dpsgd", 0), ("muffliato", 7), ("dpnorm", 42)])
def test_a_seed_that_is_guessed(victim: str, seed: int) -> None:
    p = found(record(victim, seed=seed, set={"sigma": 0.1})[0])
    assert p[19].figures["seed"] == seed
    assert p[19].verdict is (UNCLAIMED if victim == "dpsgd" else REFUTED)
    assert 19 not in found(record(victim, set={"sigma": 0.1})[0])


def test_a_seed_of_another_library(
    noisy: tuple[Trace, Truth], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = np.random.default_rng(2024)
    monkeypatch.setattr(
        dpsgd,
        "normal",
        lambda like, std, _: torch.from_numpy(stream.normal(size=like.shape)).to(like) * std,
    )
    p = found(record(set={"sigma": 0.1})[0])
    assert (p[19].figures["seed"], p[19].figures["generator"]) == (2024, "numpy")


def test_the_seed_of_the_truth_draws_the_noise_again(noisy: tuple[Trace, Truth]) -> None:
    trace, truth = noisy
    assert found(trace, truth)[19].verdict is UNCLAIMED
    scenario = {**truth.provenance["scenario"], "seed": 5}
    assert 19 not in found(trace, replace(truth, provenance={"scenario": scenario}))


# --- as a whole -------------------------------------------------------------------------------------------------------


def test_a_truth_of_another_run_is_refused(noisy: tuple[Trace, Truth]) -> None:
    with pytest.raises(LeakauditError):
        lint(noisy[0], replace(noisy[1], id="0" * 32))


def test_messages_with_nan_are_no_crash(noisy: tuple[Trace, Truth]) -> None:
    (m,) = noisy[0].messages
    broken = replace(noisy[0], messages=(replace(m, payload=m.payload * math.nan),))
    assert found(broken)[22].verdict is Verdict.INCONCLUSIVE
    empty = replace(noisy[0], messages=(_some(m, torch.arange(0)),))
    assert found(empty)[22].verdict is Verdict.INCONCLUSIVE


def test_every_number_has_a_name_and_a_fix() -> None:
    assert set(NAMES) <= set(range(1, 24))
    for number, (name, fix) in NAMES.items():
        p = Pitfall(number, REFUTED, "x", {"mu": math.inf})
        assert p.code == f"P{number:02d}"
        assert p.to_json()["figures"] == {"mu": "inf"}
        assert name
        assert fix


def test_the_page_has_a_row_for_every_pitfall(project: Path) -> None:
    rows = re.findall(
        r"^\| P(\d\d) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$",
        (project / "docs" / "lint.md").read_text(),
        re.M,
    )
    assert [int(number) for number, *_ in rows] == list(range(1, 24))
    hidden = {
        int(number)
        for number, _, trace, truth in rows
        if trace.startswith("not detectable") and truth.startswith("not detectable")
    }
    assert set(NAMES) == set(range(1, 24)) - hidden
    assert {int(number): name for number, name, *_ in rows if int(number) in NAMES} == {
        k: name for k, (name, _) in NAMES.items()
    }


def test_noise_that_is_lost_in_the_rounding_of_a_run_that_diverges() -> None:
    """The largest message has the size 1e42, so its rounding exceeds the noise of all others."""
    scenario = Scenario(
        victim="dpadmm",
        nodes=4,
        graph="ring",
        rounds=9,
        data="faces",
        samples=3,
        model="convnet",
        set={"sigma": 0.3},
        dtype="float64",
        seed=52439,
    )
    run = recording.record(recording.plan(scenario), None)
    (block,) = run.trace.messages
    assert float(block.payload.abs().max()) > 1e20
    found = lint(run.trace, replace(run.truth_record, states={}))
    refuted = {one.code for one in found if one.verdict is Verdict.REFUTED}
    assert not refuted & {"P06", "P10", "P13", "P20"}
