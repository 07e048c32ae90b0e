"""Scores count every guess and every missed record, and say the chance of a blind guess: against brute force over all permutations."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type, call-overload, index"

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from statistics import fmean, median

import numpy as np
import pytest
import torch
from records import cell_result, in_a_cell
from torch import Tensor

import leakaudit as la
from leakaudit.core.leak import GradientLeak
from leakaudit.core.quantities import QUANTITIES
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import LARGEST_RECORD, TaskSpec, Truth
from leakaudit.judging.auditing.simulate import identified
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.reporting.findings import findings, wording
from leakaudit.reporting.results.model import Scores, fitted
from leakaudit.runs.sweeping import merge
from leakaudit.scoring.scoring import Score, _paired, _set_of_tokens, score
from leakaudit.tasks import data
from leakaudit.views.extraction import explanation

PSNR = QUANTITIES["psnr"]
FACES = data.load("faces", None, False, torch.Generator().manual_seed(0))
IMAGES = FACES.spec("mlp", {})
VECTORS = TaskSpec("logistic", shape=(3,), data="gaussians")


def truth(x: Tensor, pool: Tensor, spec: TaskSpec = VECTORS, y: Tensor | None = None) -> Truth:
    index = torch.arange(len(x))
    labels = torch.zeros(len(x), dtype=torch.int64) if y is None else y
    return Truth(
        id="a",
        task=spec,
        x=x,
        y=labels,
        node=torch.zeros(len(x), dtype=torch.int64),
        index=index,
        pool=pool,
    )


def handed_in(x: Tensor, y: Tensor | None = None) -> Reconstruction:
    return Reconstruction(0, "mine", x, y, Certificate.APPROXIMATE, 0.0)


def scored(x: Tensor, own: Tensor, pool: Tensor, spec: TaskSpec = VECTORS) -> Score:
    (found,) = score(handed_in(x), truth(own, pool, spec))
    return found


# --- the chance of a blind guess --------------------------------------------------------------------------------------


def best_order(x: Tensor, y: Tensor) -> tuple[int, ...]:
    """The permutation of the guesses x that has the smallest sum of squared errors, by trying all."""
    orders = itertools.permutations(range(len(x)), len(y))
    return min(orders, key=lambda order: float((x[list(order)] - y).square().sum()))


def brute_force(records: Tensor, size: int, guessed: list[Tensor]) -> float:
    """Share of records that are identified, over all sets of `size` records that a node may hold, and all given sets of guesses."""
    hits = trials = 0
    for held in itertools.combinations(range(len(records)), size):
        for x in guessed:
            for k, row in enumerate(best_order(x, records[list(held)])):
                apart = (records - x[row]).square().sum(1)
                own = float(apart[held[k]])
                hits += all(own < float(other) for j, other in enumerate(apart) if j != held[k])
                trials += 1
    return hits / trials


@pytest.mark.parametrize(("total", "size"), [(5, 1), (6, 2), (6, 3), (5, 4)])
def test_the_chance_is_that_of_blind_records_after_every_matching(
    total: int, size: int, fresh_seed: int
) -> None:
    """Guesses that are records of the data set reach it, up to the matches that cost one of them its record."""
    records = torch.tensor(np.random.default_rng(fresh_seed + total).normal(size=(total, 3)))
    guessed = [records[list(rows)] for rows in itertools.combinations(range(total), size)]
    exact = brute_force(records, size, guessed)
    said = scored(records[:size] + 0.1, records[:size], records[size:]).chance
    assert said is not None
    assert said == pytest.approx(size / total)
    assert exact <= said + 1e-12
    assert exact >= 0.8 * said


def test_no_blind_guess_exceeds_the_chance(
    fresh_seed: int, fresh_cases: Callable[[int], int]
) -> None:
    """Whatever the guesses are: near the mean, between two records, far away, many alike, fewer than the records."""
    random = np.random.default_rng(fresh_seed)
    for case in range(fresh_cases(12)):
        total = int(random.integers(3, 7))
        size = int(random.integers(1, min(total, 4)))
        number = int(random.integers(1, size + 1))
        records = torch.tensor(random.normal(size=(total, 2)))
        spread = float(10 ** random.uniform(-2, 1))
        x = torch.tensor(random.normal(size=(number, 2))) * spread
        if case % 3 == 0:
            x = records[random.integers(0, total, number)] + 0.01 * x
        hits = 0
        held_sets = list(itertools.combinations(range(total), size))
        said = 0.0
        for held in held_sets:
            rest = [k for k in range(total) if k not in held]
            found = scored(x, records[list(held)], records[rest])
            hits += sum(map(bool, found.identified or ()))
            said = max(said, found.chance or 0.0)
        assert hits / (len(held_sets) * size) <= said + 1e-12, (fresh_seed, case)


def test_equal_records_count_as_often_as_they_are_there() -> None:
    """Of ten records six are alike: whoever guesses that one is right with chance .6."""
    records = torch.cat([torch.zeros(6, 3), torch.eye(3), torch.ones(1, 3)]).double()
    assert scored(records[:1] + 0.01, records[:1], records[1:]).chance == pytest.approx(0.6)


def test_the_most_frequent_record_of_a_node_decides_its_chance() -> None:
    """A node holds one of six equal records and one that is unique, of 20: two guesses of the first
    are right with chance 2 x 6 / 20 at most.
    """
    records = torch.cat([torch.zeros(6, 14), torch.eye(14)]).double()
    own = records[[0, 6]]
    pool = torch.cat([records[1:6], records[7:]])
    assert scored(own + 0.01, own, pool).chance == pytest.approx(0.6)


def test_a_batch_of_blind_faces_is_identified_as_often_as_the_chance_says() -> None:
    random = torch.Generator().manual_seed(0)
    for size, runs in ((4, 150), (16, 60)):
        hits = 0
        for _ in range(runs):
            order, guess = (torch.randperm(100, generator=random) for _ in range(2))
            found = scored(
                FACES.x[guess[:size]], FACES.x[order[:size]], FACES.x[order[size:]], IMAGES
            )
            hits += sum(map(bool, found.identified or ()))
        assert found.chance == size / 100
        spread = math.sqrt(size / 100 / (runs * size))
        assert abs(hits / (runs * size) - size / 100) < 4 * spread


# --- guesses are counted ----------------------------------------------------------------------------------------------


def test_handing_in_the_whole_data_set_is_no_better_than_its_first_records() -> None:
    """All 100 faces for four records scored 200 dB and 100 % before."""
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    own = truth(FACES.x[order[:4]], FACES.x[order[4:]], IMAGES, FACES.y[order[:4]])
    everything, first = (score(handed_in(FACES.x[:n], FACES.y[:n]), own)[0] for n in (100, 4))
    assert everything.surplus == 96
    assert "96 reconstructions more than the 4 records; only the first 4 count" in everything.note
    assert everything.psnr == first.psnr
    assert everything.labels_found == first.labels_found
    assert max(v for v in everything.psnr or () if v is not None) < 30
    assert everything.chance == first.chance == 0.04
    assert everything.to_json()["surplus"] == 96
    hit, total = identified(handed_in(FACES.x), own)
    assert (hit, total) == (int(order[0]) < 4, 100)


def test_extra_guesses_never_raise_a_score(
    fresh_seed: int, fresh_cases: Callable[[int], int]
) -> None:
    random = torch.Generator().manual_seed(fresh_seed)
    for case in range(fresh_cases(8)):
        size = 1 + case % 3
        own, more = (
            torch.rand(size, 1, 8, 8, generator=random),
            torch.rand(30, 1, 8, 8, generator=random),
        )
        first = torch.rand(size, 1, 8, 8, generator=random)
        pool = torch.rand(20, 1, 8, 8, generator=random)
        spec = TaskSpec("mlp", shape=(1, 8, 8), classes=10, levels=255)
        alone, many = (
            scored(first, own, pool, spec),
            scored(torch.cat([first, more, own]), own, pool, spec),
        )
        assert (many.psnr, many.exact, many.identified, many.chance) == (
            alone.psnr,
            alone.exact,
            alone.identified,
            alone.chance,
        )


def test_labels_beyond_the_records_do_not_count() -> None:
    own = truth(torch.zeros(2, 3), torch.ones(5, 3), y=torch.tensor([7, 8]))
    (found,) = score(handed_in(torch.empty(0, 3), torch.arange(10)), own)
    assert (found.labels_found, found.surplus) == (0.0, 8)
    (found,) = score(handed_in(torch.empty(0, 3), torch.tensor([8, 1])), own)
    assert (found.labels_found, found.surplus) == (0.5, 0)


def test_rows_that_are_not_finite_are_no_guesses() -> None:
    own = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    broken = torch.full((3, 3), math.nan)
    found = scored(torch.cat([broken, own]), own, torch.ones(5, 3))
    assert found.matched == (3, 4)


# --- missed records are counted ---------------------------------------------------------------------------------------


def test_missed_records_count_as_the_mean_of_all_others() -> None:
    """One of four recovered had a mean of 200 dB before."""
    order = torch.randperm(100, generator=torch.Generator().manual_seed(3))
    own, pool = FACES.x[order[:4]], FACES.x[order[4:]]
    found = scored(own[:1], own, pool, IMAGES)
    blind = [
        -10 * math.log10(float((pool.double().mean(0) - x.double()).square().mean()))
        for x in own[1:]
    ]
    assert found.psnr == (200.0, None, None, None)
    assert found.missed["psnr"] == pytest.approx(blind, rel=1e-5)
    wanted = {"min": min(blind), "median": median([200.0, *blind]), "mean": fmean([200.0, *blind])}
    assert found.statistics("psnr") == pytest.approx(wanted, rel=1e-5)
    assert found.statistics("identified")["mean"] == found.statistics("exact")["mean"] == 0.25
    error = found.statistics("relative_error")["mean"]
    assert error is not None
    assert error > 0.1
    plain = found.to_json()
    assert plain is not None
    assert plain["psnr"]["missed"] == pytest.approx(blind, rel=1e-5)
    assert (
        wording.spread(fitted(plain, Scores).psnr, PSNR)
        == f"{wanted['median']:.1f} ({wanted['min']:.1f} to 200.0)"
    )
    columns = merge.columns(cell_result(in_a_cell(fitted(plain, Scores)), records=4), 10.0)
    assert columns.recovered == 1  # the mean image has 14 dB, and recovers nothing
    assert len(getattr(columns, PSNR.key)) == 4


def test_the_more_records_are_missed_the_lower_is_the_mean(fresh_seed: int) -> None:
    random = torch.Generator().manual_seed(fresh_seed)
    own, pool = torch.rand(5, 1, 8, 8, generator=random), torch.rand(30, 1, 8, 8, generator=random)
    spec = TaskSpec("mlp", shape=(1, 8, 8), classes=10, levels=255)
    means = [
        scored(own[:n], own, pool, spec).statistics("psnr")["mean"] or 0.0 for n in range(1, 6)
    ]
    assert means == sorted(means)
    assert len(set(means)) == 5


def test_where_nothing_came_back_nothing_was_measured() -> None:
    found = scored(torch.empty(0, 3), torch.rand(2, 3), torch.ones(5, 3))
    assert found.statistics("relative_error") == {"min": None, "median": None, "mean": None}
    assert found.chance is None


# --- one round number -------------------------------------------------------------------------------------------------

VICTIMS = ["dpsgd", "fedavg", "fedsgd", "pdmm", "tracking", "extra", "dpnorm", "recal"]


@pytest.mark.parametrize("victim", VICTIMS)
def test_explain_attack_and_the_trace_count_rounds_alike(victim: str) -> None:
    """A round is that of the messages, from 1 to the number that `trace info` names; 0 is before the first message."""
    graph = "star" if victim.startswith("fed") else "ring"
    scenario = Scenario(
        victim,
        nodes=4,
        graph=graph,
        rounds=6,
        data="gaussians",
        samples=2,
        model="logistic",
        dtype="float64",
    )
    trace = recording.record(recording.plan(scenario), None).trace
    said = {one.node: one for one in explanation.explain(trace, la.Adversary()) if one.rows}
    leaks = [leak for leak in la.leaks(trace) if leak.node in said]
    assert leaks
    last = max(int(m.round.max()) for m in trace.messages)
    assert last == trace.rounds == 6
    latest = 0
    for leak in leaks:
        explained = {round for row in said[leak.node].rows for round, _, _ in row.weights}
        assert set(leak.rounds.tolist()) <= explained
        latest = max(latest, *explained)
        named = {f"[{leak.node},{t}]" for t in explained}
        assert all(any(name in row.combination for name in named) for row in said[leak.node].rows)
        (lost,) = score(
            [Reconstruction(leak.node, "none", torch.empty(0), None, Certificate.FAILED, 1.0)], None
        )
        entry = findings.finding(
            leak,
            Reconstruction(leak.node, "none", torch.empty(0), None, Certificate.FAILED, 1.0),
            lost,
        )
        span = entry.leak.rounds
        assert (span.first, span.last) == (int(leak.rounds.min()), int(leak.rounds.max()))
    assert latest == last


def test_the_models_of_a_leak_have_rounds_of_their_own() -> None:
    """The gradient of round t of D-PSGD is taken at w^(t-1), and is that of the truth there."""
    scenario = Scenario(
        "dpsgd",
        nodes=4,
        graph="ring",
        rounds=5,
        data="gaussians",
        samples=2,
        model="logistic",
        dtype="float64",
        states=True,
    )
    plan = recording.plan(scenario)
    done = recording.record(plan, None)
    leak: GradientLeak = next(iter(la.leaks(done.trace)))
    assert leak.rounds.tolist() == [t + 1 for t in leak.theta_rounds.tolist()]
    x, y = done.truth_record.of(leak.node)
    models = done.truth_record.states["w"][leak.theta_rounds, leak.node]
    true = leak.combination @ torch.stack([plan.task.gradient(m, x.double(), y) for m in models])
    assert float((leak.value - true).abs().max()) < 1e-9


# --- invalid tokens and numbers ------------------------------------------------------------------


def test_tokens_that_do_not_occur_are_wrong() -> None:
    """1, 2 and 3 occur; of the set 2, 8, one does."""
    occur = torch.tensor([[1.0, 2.0], [3.0, 2.0]])
    assert _set_of_tokens(torch.tensor([2, 8]), occur) == (1 / 3, 1)
    assert _set_of_tokens(torch.tensor([1, 2, 3]), occur) == (1.0, 0)


def test_a_number_beyond_those_of_records_is_no_guess() -> None:
    x = _paired(torch.tensor([LARGEST_RECORD, -LARGEST_RECORD, 2 * LARGEST_RECORD, torch.inf]))
    assert x.isfinite().tolist() == [True, True, False, False]
