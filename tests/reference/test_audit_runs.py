"""The audit on runs: epsilons are set as asked, honest noise is not refuted, and planted mistakes are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.verdict import Verdict
from leakaudit.judging.auditing import canary
from leakaudit.judging.auditing.blind import Blind, ceilings
from leakaudit.judging.auditing.evidence import Canary, OneRun, Successes
from leakaudit.judging.auditing.judge import judge
from leakaudit.judging.auditing.levels import attacked, levels
from leakaudit.judging.auditing.measure import cases, measure, static
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.judging.auditing.replays import (
    Replays,
    models,
    replay,
    replayed,
    taken_at,
    whitening,
)
from leakaudit.judging.auditing.simulate import seeded, simulate
from leakaudit.protocols.recording import record
from leakaudit.protocols.scenario import Scenario
from leakaudit.reporting.results.model import CeilingEntry
from leakaudit.scoring import metrics
from leakaudit.tasks import clipping
from leakaudit.tasks.task import Task
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency
from leakaudit.views.accounting.view_bound import view_bounds
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction

BASE: dict[str, Any] = {
    "nodes": 3,
    "graph": "ring",
    "rounds": 3,
    "data": "gaussians:60",
    "model": "logistic",
}
CLIPPED = {"order": "adapt", "sigma": 1.0, "clip": 1.0, "alpha": 0.1}


def plan(
    victim: str = "dpsgd", constants: dict[str, Any] | None = None, samples: int = 1, **audit: Any
) -> AuditPlan:
    scenario = Scenario(
        victim=victim, samples=samples, set=CLIPPED if constants is None else constants, **BASE
    )
    return AuditPlan(
        scenario,
        **{
            "attacks": ("dlg",),
            "set": {"dlg": {"steps": 2, "restarts": 1}},
            "nodes": (0,),
            **audit,
        },
    )


@pytest.fixture
def quiet() -> Iterator[str]:
    """A victim that declares its noise and sends a fortieth of it."""
    honest = registry.get("victims", "dpsgd")

    @dataclass(frozen=True)
    class Quiet(honest):  # type: ignore[misc, valid-type]
        def run(self, *args: Any) -> None:
            honest.run(replace(self, sigma=self.sigma / 40), *args)  # type: ignore[call-arg]

    registry.victim("quiet")(Quiet)
    yield "quiet"
    del registry._found["victims"]["quiet"]


def verdicts(plan: AuditPlan) -> dict[str, list[Verdict]]:
    grid = levels(plan)
    nodes = attacked(plan, grid[0].ready)
    measured = measure(plan, grid, nodes)
    found: dict[str, list[Verdict]] = {}
    for one in [
        *static(grid, measured),
        *judge(
            cases(plan, grid, simulate(plan, grid, nodes), measured, Blind.of(grid[0].ready)),
            plan.alpha,
        ),
    ]:
        found.setdefault(one.test, []).append(one.verdict)
    return found


@pytest.mark.parametrize(
    ("victim", "constants"),
    [("dpsgd", CLIPPED), ("dpnorm", {"sigma": 0.2, "inner": 2}), ("recal", {"sigma": 0.2})],
)
def test_the_exact_view_has_the_epsilon_that_was_asked_for(
    victim: str, constants: dict[str, Any]
) -> None:
    for level in levels(
        plan(
            victim,
            constants,
            epsilon=(3.0, 0.5),
            delta=1e-4,
            sensitivity=1.5,
            adversaries=("eavesdropper", "node:1"),
            nodes=(0, 2),
        )
    ):
        made, worst = level.ready.declared, 0.0
        for who in (Adversary(), Adversary.parse("node:1")):
            found = view_bounds(made, who, [0, 2], 1.5, 1e-4)
            worst = max(
                worst,
                *(
                    one.epsilon if one.epsilon is not None else one.node_epsilon or 0
                    for one in found
                ),
            )
        assert worst == pytest.approx(level.epsilon, rel=1e-6)
        assert level.ready.scenario.set["sigma"] == level.constants["sigma"]


@pytest.mark.parametrize(
    ("victim", "constants"),
    [
        ("dpnorm", {"sigma": 0.2}),
        ("recal", {"sigma": 0.2}),
        ("dpsgd", {"noise": "step", "alpha": 0.05}),
        ("dpadmm", {"records": 1}),
    ],
)
def test_the_papers_formula_says_the_epsilon_that_was_asked_for(
    victim: str, constants: dict[str, Any]
) -> None:
    (level,) = levels(plan(victim, constants, epsilon=(2.0,), noise="claim"))
    made = level.ready.declared
    claims = [
        c.epsilon
        for c in made.victim.claims(made.graph, made.rounds, made.public)
        if c.epsilon is not None
    ]
    assert min(claims) == pytest.approx(2.0, rel=1e-9)


def test_no_noise_is_no_noise_and_no_epsilon_keeps_the_constants() -> None:
    (free,) = levels(plan(epsilon=(math.inf,)))
    assert free.ready.scenario.set["sigma"] == 0
    assert {v.bound.mu for v in free.views} == {math.inf}
    (kept,) = levels(plan())
    assert kept.epsilon is None
    assert kept.ready.scenario.set == CLIPPED


def test_an_epsilon_that_no_noise_gives_is_refused() -> None:
    with pytest.raises(LeakauditError, match="is sent without noise"):
        levels(plan("dpnorm", {"resend": True, "inner": 2, "sigma": 0.1}, epsilon=(1.0,)))
    with pytest.raises(LeakauditError, match="has no parameter 'sigma'"):
        levels(plan("pdmm", {}, epsilon=(1.0,)))


def test_runs_share_graph_and_schedule_and_nothing_else() -> None:
    (level,) = levels(plan("recal", {"sigma": 0.2}))
    first, second = (record(seeded(level.ready, k), None) for k in (0, 1))
    assert torch.equal(first.trace.public["active"], second.trace.public["active"])
    assert not torch.equal(first.trace.public["w0"], second.trace.public["w0"])
    assert first.truth_record.index.tolist() != second.truth_record.index.tolist()
    same = [record(replayed(level.ready, level.ready.rows, k), None).trace for k in (1, 1, 2)]
    assert torch.equal(same[0].public["w0"], same[2].public["w0"])
    payloads = [torch.cat([m.payload for m in t.messages]) for t in same]
    assert torch.equal(payloads[0], payloads[1])
    assert not torch.equal(payloads[0], payloads[2])


def test_gradients_of_candidates_are_clipped_as_the_protocol_does() -> None:
    (level,) = levels(plan(samples=4))
    task, x, y = (
        Task.build(level.ready.task.spec, dtype=torch.float64),
        level.ready.source.x.double(),
        level.ready.source.y,
    )
    w = task.init(torch.Generator().manual_seed(0))
    single = torch.stack([task.gradient(w, x[k : k + 1], y[k : k + 1]) for k in range(4)])
    wanted = (single * (0.5 / single.norm(dim=1, keepdim=True)).clamp(max=1)).mean(0)
    torch.testing.assert_close(
        clipping.gradients(task, w[None], x[None, :4], y[None, :4], 0.5)[0], wanted
    )


def test_the_likelihood_is_that_of_the_noise() -> None:
    """Whitened residuals of the record that was there are standard normal: their mean square is 1 over 40 replays."""
    (level,) = levels(plan(constants={**CLIPPED, "sigma": 2.0}))
    ready, task = level.ready, Task.build(level.ready.task.spec, dtype=torch.float64)
    squares, rows = [], ready.rows[0]
    x, y = ready.source.x[rows][None].double(), ready.source.y[rows][None]
    for k in range(40):
        leak = hearing.deduce(
            Deduction(record(replayed(ready, ready.rows, k), None).trace, Adversary()), [0], 8
        )[0]
        true = torch.stack(
            [
                clipping.gradients(task, w[None].expand(len(x), -1), x, y, 1.0)[0]
                for w in models(leak)
            ]
        )
        rest = whitening(leak) @ (leak.combination.double() @ true - leak.value.double())
        squares.append(float(rest.square().mean()))
        assert taken_at(leak, task, x, y, 1.0).shape == (1, *true.shape)
    assert sum(squares) / 40 == pytest.approx(1.0, abs=4 * math.sqrt(2 / (40 * 9)))


def test_without_noise_every_record_is_identified() -> None:
    (level,) = levels(plan(constants={"clip": 0.0}))
    found = replay(
        level.ready,
        Adversary(),
        0,
        canary.free_rows(level.ready, 0)[:10],
        range(20),
        1,
        8,
        "replays",
    )
    assert found.hits == len(found.drawn) == 20
    assert found.moved > 0
    once = canary.one_run(
        levels(plan(constants={"clip": 0.0}, samples=3))[0].ready, Adversary(), 8, 1
    )
    assert once == (OneRun(9, 5, 5), "")


def test_a_count_takes_no_replay_that_chose_its_threshold() -> None:
    (level,) = levels(plan(constants={"clip": 0.0}))
    pair = canary.pair(level.ready, 0)
    found = replay(level.ready, Adversary(), 0, pair, range(40), 2, 8, "canaries")
    counts = canary.counted(found, None, 0.01)
    assert counts.positives + counts.negatives == 30
    assert (counts.true_positives, counts.false_positives) == (counts.positives, 0)


def test_scores_that_are_no_numbers_are_misses() -> None:
    nan = math.nan
    found = Replays(
        torch.tensor([0, 1, 0, 0]),
        torch.tensor([[1.0, 0.0], [nan, nan], [nan, -1.0], [2.0, 2.0]], dtype=torch.float64),
    )
    assert found.hits == 1  # right; all NaN; the other one; a tie
    broken = Replays(torch.tensor([0, 1] * 10), torch.full((20, 2), nan, dtype=torch.float64))
    counts = canary.counted(broken, None, 0.01)
    assert (counts.true_positives, counts.false_positives, counts.positives + counts.negatives) == (
        0,
        0,
        15,
    )
    assert broken.hits == 0


def test_a_blind_attacker_finds_no_more_than_chance() -> None:
    """A quarter of a million times more noise than signal: identification stays within the blind chance's own spread."""
    (level,) = levels(plan(constants={**CLIPPED, "sigma": 1e6}))
    found = replay(
        level.ready,
        Adversary(),
        0,
        canary.free_rows(level.ready, 0)[:5],
        range(150),
        1,
        8,
        "replays",
    )
    assert abs(found.hits / 150 - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 150)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_honest_noise_is_not_refuted(epsilon: float) -> None:
    found = verdicts(
        plan(
            epsilon=(epsilon,),
            delta=1e-5,
            sensitivity=2.0,
            adversaries=("eavesdropper", "node:1"),
            replays=80,
            canary=80,
        )
    )
    assert Verdict.REFUTED not in {v for some in found.values() for v in some}
    assert found["sensitivity"] == [Verdict.NOT_REFUTED] * 2
    assert found["identification by likelihood"] == [Verdict.NOT_REFUTED] * 2


@pytest.mark.slow
def test_a_fortieth_of_the_declared_noise_is_refuted(quiet: str) -> None:
    found = verdicts(
        plan(quiet, epsilon=(1.0,), delta=1e-5, sensitivity=2.0, replays=150, canary=200)
    )
    assert found["canary replays"] == [Verdict.REFUTED]
    assert found["identification by likelihood"] == [Verdict.REFUTED]
    assert found["exact view against the claim"] == [Verdict.UNCLAIMED]


@pytest.mark.slow
def test_a_sensitivity_that_nothing_enforces_is_unsupported() -> None:
    """Without clipping a record moves a gradient by more than a hundredth, which the epsilon assumes."""
    found = verdicts(
        plan(
            constants={"order": "adapt", "sigma": 1.0, "clip": 0.0},
            epsilon=(1.0,),
            sensitivity=0.01,
            replays=40,
            canary=100,
        )
    )
    assert found["sensitivity"] == [Verdict.UNSUPPORTED]
    assert Verdict.REFUTED in found["canary replays"]


def test_an_attack_once_tried_is_inconclusive_and_says_how_often_it_takes() -> None:
    audited = plan(epsilon=(1.0,), sensitivity=2.0, replays=4, canary=4)
    grid = levels(audited)
    measured = measure(audited, grid, [0])
    judged = judge(
        cases(audited, grid, simulate(audited, grid, [0]), measured, Blind.of(grid[0].ready)), 0.01
    )
    assert {one.verdict for one in judged} <= {Verdict.INCONCLUSIVE, Verdict.NOT_REFUTED}
    tried = next(one for one in judged if one.attack == "dlg")
    assert tried.verdict is Verdict.INCONCLUSIVE
    assert tried.needs is not None
    assert tried.needs > 1


def test_no_replays_at_all_are_inconclusive() -> None:
    audited = plan(epsilon=(1.0,), sensitivity=2.0, replays=0, canary=0)
    grid = levels(audited)
    (measured,) = measure(audited, grid, [0])
    assert measured.rero.hits == len(measured.rero.drawn) == 0
    for evidence in (Successes(0, 0, 0.1), Canary(canary.counted(measured.pairs, None, 0.01))):
        assert (
            evidence.p_value(
                cases(
                    audited, grid, simulate(audited, grid, [0]), [measured], Blind.of(grid[0].ready)
                )[0].promise  # type: ignore[arg-type]
            )
            == 1.0
        )


def test_attackers_of_models_they_do_not_know_say_so() -> None:
    (level,) = levels(plan("dpnorm", {"sigma": 0.1, "inner": 2}))
    found = replay(
        level.ready,
        Adversary(),
        0,
        canary.free_rows(level.ready, 0)[:3],
        range(5),
        1,
        8,
        "replays",
    )
    assert len(found.drawn) == 0
    assert "several local steps" in found.why


def test_candidates_that_others_hold_are_refused() -> None:
    (level,) = levels(plan())
    own, taken = level.ready.rows[:2, 0].tolist()
    with pytest.raises(LeakauditError, match="held by another node"):
        replay(level.ready, Adversary(), 0, [own, taken], range(1), 1, 8, "replays")


def test_a_plan_is_read_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        '[scenario]\nvictim = "dpsgd"\n[audit]\nepsilon = [inf, 1.0]\nattacks = ["dlg"]\n[audit.set.dlg]\nsteps = 5\n'
    )
    read = AuditPlan.from_toml(file)
    assert read.epsilon == (math.inf, 1.0)
    assert read.set == {"dlg": {"steps": 5}}
    assert read.scenario == Scenario.from_toml(file)
    for text, said in (
        ("epsilons = [1]", "did you mean 'epsilon'"),
        ("epsilon = [0]", "numbers > 0"),
        ("epsilon = 1", "expected a list"),
        ("epsilon = [nan]", "numbers > 0"),
        ('noise = "exat"', "did you mean 'exact'"),
        ('attacks = ["dgl"]', "did you mean 'dlg'"),
        ('adversaries = ["mallory"]', "expected eavesdropper"),
        ("seeds = 0", "a whole number from 1"),
        ("alpha = 1", "above 0 and below 1"),
        ("set = { dlg = { steps = 1 } }", "expected one of the plan.s attacks"),
    ):
        file.write_text(f'[scenario]\nvictim = "dpsgd"\n[audit]\n{text}\n')
        with pytest.raises(LeakauditError, match=said):
            AuditPlan.from_toml(file)
    plain = tmp_path / "s.toml"
    plain.write_text('victim = "dpsgd"\n[set]\nsigma = 0.1\n')
    assert AuditPlan.from_toml(plain).scenario.set == {"sigma": 0.1}


def test_the_blind_chance_counts_copies_and_neighbours_and_is_unknown_where_records_are_not_dealt_alike() -> (
    None
):
    (level,) = levels(plan())
    ready = level.ready
    blind = Blind.of(ready)
    assert (blind.total, blind.why) == (58, "")
    assert blind.identified == pytest.approx(1 / 58)
    twice = replace(ready, source=replace(ready.source, x=ready.source.x[[0, 0, *range(2, 60)]]))
    assert Blind.of(twice).identified == pytest.approx(2 / 58)
    apart = torch.cdist(ready.source.x.double(), ready.source.x.double()) / math.sqrt(
        2
    )  # root mean squared, two coordinates
    assert blind.near(20.0) == pytest.approx(int((apart <= 2 * 0.1).sum(1).max()) / 58)
    skewed = replace(ready, scenario=replace(ready.scenario, split="classes:1"))
    assert "not drawn uniformly" in Blind.of(skewed).why


def test_who_knows_all_other_records_guesses_among_those_that_are_left() -> None:
    """A batch of 60 faces of which 59 are known: the other one is one of few."""
    (level,) = levels(plan(samples=13))  # 39 of 60 records are held
    crowded = Blind.of(level.ready)
    assert (crowded.total, crowded.why) == (22, "")
    assert crowded.identified == pytest.approx(1 / 22)
    audited = AuditPlan(Scenario(**FACES | {"samples": 60}), epsilon=(1.0,), noise="exact")
    (level,) = levels(audited)
    blind = Blind.of(level.ready)
    held = 3 * 60
    assert blind.total == len(level.ready.source.x) - held + 1
    assert blind.total < 60  # so that the images of one batch show all of them
    nothing = Gdp(1e-3, Adjacency.REPLACE)
    assert blind.psnr(nothing, 0.95) == metrics.PSNR_CAP


FACES: dict[str, Any] = {
    **{"victim": "dpsgd", "nodes": 3, "graph": "ring", "rounds": 3, "data": "faces-detect"},
    **{"model": "logistic", "set": {**CLIPPED, "sigma": 0.1}},
}


def test_ceilings_rise_with_epsilon_and_blind_guesses_stay_below_them() -> None:
    asked = (math.inf, 1e6, 8.0, 1.0, 0.1)
    audited = AuditPlan(Scenario(**FACES), epsilon=asked, noise="exact", attacks=("analytic",))
    grid = levels(audited)
    assert [level.epsilon for level in grid] == sorted(asked)  # the smallest is examined first
    blind = Blind.of(grid[0].ready)
    truth = record(grid[0].ready, None).truth_record
    found = list(ceilings(audited, grid, blind, truth, void=False))
    for chance in (0.5, 0.95):
        mine = [one for one in found if one.chance == chance]
        assert [one.epsilon for one in mine] == [0.1, 1.0, 8.0, 1e6]
        for name in ("psnr", "ssim"):
            values = [getattr(one, name) for one in mine]
            assert values == sorted(values)
            assert values[-1] == (200.0 if name == "psnr" else 1.0)  # everything is allowed
    lower, upper = ([o.psnr for o in found if o.chance == c] for c in (0.95, 0.5))
    assert all(a <= b for a, b in zip(lower, upper, strict=True))
    guesses = [one for one in found if one.chance is None]
    x, guess = truth.x[truth.node == 0], truth.blind_guess(0)
    mean = metrics.psnr(guess[None].expand_as(x), x, data_range=1.0)
    assert len(guesses) == len(grid)
    assert any(one.psnr == pytest.approx(float(mean), abs=3.0) for one in guesses)
    assert all(one.psnr < upper[0] for one in guesses)
    void = list(ceilings(audited, grid, blind, truth, void=True))
    assert {one.chance for one in void} == {None}


def test_ceilings_hold_for_the_nodes_that_have_a_bound() -> None:
    """By the weakest of their bounds, in whatever order they come."""
    audited = AuditPlan(Scenario(**FACES), epsilon=(1.0,), noise="exact", attacks=("analytic",))
    (level,) = levels(audited)
    blind = Blind.of(level.ready)
    truth = record(level.ready, None).truth_record

    def allowed(*mu: float | None) -> list[CeilingEntry]:
        views = []
        for view, one in zip(level.views, mu, strict=True):
            views.append(replace(view, bound=replace(view.bound, mu=one)))
        found = ceilings(audited, [replace(level, views=tuple(views))], blind, truth, void=False)
        return [one for one in found if one.chance is not None]

    weak, strong = allowed(0.5, 0.5, 0.5), allowed(0.01, 0.01, 0.01)
    assert [one.nodes for one in weak] == [(0, 1, 2)] * 2
    assert weak[0].psnr > strong[0].psnr
    assert allowed(0.01, 0.5, 0.01) == allowed(0.5, 0.01, 0.01) == weak
    assert [(one.nodes, one.psnr) for one in allowed(0.01, None, 0.01)] == [
        ((0, 2), one.psnr) for one in strong
    ]
    assert allowed(None, None, None) == []


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_likeliest_face_does_not_exceed_the_ceilings(epsilon: float) -> None:
    """An adversary who knows everything but the record, which it guesses by likelihood."""
    audited = AuditPlan(
        Scenario(**FACES), epsilon=(epsilon,), noise="exact", replays=200, candidates=97, canary=0
    )
    (level,) = levels(audited)
    blind = Blind.of(level.ready)
    (one,) = measure(replace(audited, one_run=False), [level], [0])
    rows = canary.free_rows(level.ready, 0)[:97]
    best = one.rero.scores.argmax(1)
    x = level.ready.source.x[rows].double()
    reached = metrics.psnr(x[best], x[one.rero.drawn], data_range=1.0)
    truth = record(level.ready, None).truth_record
    for each in ceilings(audited, [level], blind, truth, void=False):
        if each.chance is not None:
            share = float((reached > each.psnr).double().mean())
            assert share < each.chance + 3 * math.sqrt(0.25 / len(reached))
