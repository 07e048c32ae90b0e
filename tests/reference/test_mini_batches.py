"""Mini-batches: gradients summed over local steps, and rounds that use different records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lookalikes
import pytest
import torch
from digits import digits
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.inversion import round_by_round
from leakaudit.inversion.attacking import attack_one
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.reporting.findings import findings
from leakaudit.scoring.scoring import Score

# All families in both number formats, of which two run with every change.
QUICK = {("noise of one level", "float64"), ("the same twice", "float32")}
FAMILIES = [
    pytest.param(family, dtype, marks=[] if (family, dtype) in QUICK else pytest.mark.slow)
    for family in lookalikes.FAMILIES
    for dtype in ("float32", "float64")
]


def scenario(victim: str, samples: int, rounds: int, batch: int, **changes: Any) -> Scenario:
    """Three nodes with faces; further changes are constants of the protocol."""
    graph = "ring" if victim == "dpsgd" else "star"
    told: dict[str, Any] = {"batch": batch, "hidden": 256, **changes}
    model = told.pop("model", "mlp")
    if model != "mlp":
        told.pop("hidden")
    return Scenario(
        victim=victim,
        nodes=3,
        graph=graph,
        rounds=rounds,
        data="faces",
        samples=samples,
        model=model,
        dtype=told.pop("dtype", "float64"),
        set=told,
    )


def recovered(case: Scenario, attack: str, images: Tensor | None = None) -> list[Reconstruction]:
    """Attack all nodes, and check that what is called exact is in the truth."""
    plan = recording.plan(case)
    if images is not None:
        for node, own in enumerate(plan.rows):
            plan.source.x[own] = images[node * len(own) : (node + 1) * len(own)].to(plan.source.x)
    recorder = recording.record(plan, None)
    leaks = la.leaks(recorder.trace)
    assert len(leaks)
    found = la.attack(leaks, attack, generator=Generator().manual_seed(0))
    for one in found:
        truth = recorder.truth_record.of(one.node)[0]
        assert lookalikes.claimed(one, truth, str(case)).false == 0
    return found


def identical(found: Reconstruction) -> int:
    """Number of certified images."""
    return sum(one is Certificate.EXACT for one in found.certificates)


def test_samples_of_local_steps() -> None:
    trace = recording.record(recording.plan(scenario("fedavg", 10, 2, 4)), None).trace
    leak = la.leaks(trace)[0]
    assert (leak.batch, leak.records, leak.inner) == (4, 10, 3)
    assert leak.samples == 10
    assert leak.steady
    few = replace(leak, inner=2)
    assert few.samples == 8
    assert not few.steady
    assert few.inputs == 10
    assert replace(leak, records=None).samples is None


def test_one_equation_of_a_leak() -> None:
    trace = recording.record(recording.plan(scenario("dpsgd", 4, 3, 2)), None).trace
    leak = la.leaks(trace)[0]
    assert not leak.steady
    second = leak.equation(1)
    assert second.steady
    assert second.rounds.tolist() == [leak.rounds[1].item()]
    assert torch.equal(second.value[0], leak.value[1])
    assert leak.theta is not None
    assert second.theta is not None
    assert torch.equal(second.theta, leak.theta[1:2])


def test_five_local_steps_of_four_images() -> None:
    for found in recovered(scenario("fedavg", 20, 20, 4), "exact"):
        assert found.certificate is Certificate.EXACT
        assert identical(found) == 20


@pytest.mark.parametrize("changes", [{"epochs": 2}, {"decay": 0.1}, {"momentum": 0.9}])
def test_weighted_local_steps(changes: dict[str, Any]) -> None:
    for found in recovered(scenario("fedavg", 8, 12, 4, **changes), "exact"):
        assert found.certificate is Certificate.EXACT
        assert identical(found) == 8


def test_weight_decay_of_the_loss_between_local_steps_is_not_certified() -> None:
    for found in recovered(scenario("fedavg", 4, 12, 2, l2=0.5), "exact"):
        assert found.certificate is not Certificate.EXACT


def test_local_steps_in_one_round_of_black_pixels() -> None:
    """All are recovered; sigmoid neurons show no activity, so they may be parts of mixtures."""
    images = digits(3 * 20, seed=1)
    padded = torch.nn.functional.pad(images, (2, 3, 2, 3))
    found = recovered(scenario("fedavg", 20, 1, 4, act="sigmoid"), "cone", padded)
    levels = {tuple(image.flatten().mul(255).round().int().tolist()) for image in padded}
    for one in found:
        recovered_levels = one.x.flatten(1).mul(255).round().int().tolist()
        assert len({tuple(image) for image in recovered_levels} & levels) == 20
        assert identical(one) == 0


@pytest.mark.parametrize(
    ("batch", "attack"),
    [
        (1, "analytic"),
        (1, "auto"),
        (4, "exact"),
        pytest.param(4, "auto", marks=pytest.mark.slow),
    ],
)
def test_rounds_of_different_records(batch: int, attack: str) -> None:
    rounds = 8 // batch  # every record once
    for found in recovered(scenario("dpsgd", 8, rounds, batch), attack):
        assert identical(found) == 8
        assert found.certificate is Certificate.EXACT


def test_rounds_of_different_records_through_a_convolution() -> None:
    found = recovered(scenario("dpsgd", 8, 2, 4, model="cnn", channels=16), "cone")
    assert [identical(one) for one in found] == [8, 8, 8]


def test_only_the_records_that_were_drawn() -> None:
    for found in recovered(scenario("dpsgd", 8, 3, 1), "analytic"):
        assert identical(found) == len(found.x) == 3
        assert found.y is not None
        assert len(found.y) == 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("samples", "rounds"), [(8, 8), (3, 9)])
def test_rounds_of_different_rows_of_a_table(samples: int, rounds: int, dtype: str) -> None:
    """Each gradient gives its record with intervals, and a record that returns is returned once."""
    case = replace(scenario("dpsgd", samples, rounds, 1, hidden=64, dtype=dtype), data="gaussians")
    recorder = recording.record(recording.plan(case), None)
    leaks = la.leaks(recorder.trace)
    task = la.Task.build(leaks.task)
    for leak in leaks:
        found = attack_one(leak, task, "analytic", Generator().manual_seed(0))
        truth = recorder.truth_record.of(leak.node)[0].double()
        assert found.certificate is Certificate.INTERVAL, found.note
        assert found.certified == 0
        assert found.interval is not None
        inside = ((found.x.double()[:, None] - truth[None]).abs() <= found.interval[:, None]).all(2)
        assert inside.sum(1).tolist() == [1] * len(found.x)
        assert len(found.x) == len(set(inside.int().argmax(1).tolist())) == samples
        alone = attack_one(leak.equation(0), task, "analytic", Generator().manual_seed(0))
        assert alone.interval is not None
        place = next(k for k, some in enumerate(found.rounds) if leak.rounds[0].item() in some)
        if len(found.rounds[place]) == 1:  # eight statements at 99 % are wider than one
            ratio = found.interval[place] / alone.interval[0]
            assert float(ratio.min()) == pytest.approx(float(ratio.max()))
            assert 1.1 < float(ratio.max()) < 1.3


def test_all_pictures_are_shown_without_the_truth() -> None:
    """A page has a place for every record that any round may give away, not for one mini-batch."""
    trace = recording.record(recording.plan(scenario("dpsgd", 6, 6, 1)), None).trace
    leak = la.leaks(trace)[0]
    found = attack_one(leak, la.Task.build(trace.task), "analytic", Generator().manual_seed(0))
    assert findings.finding(leak, found, Score(leak.node, "analytic")).batch == 6


def test_rounds_end_after_three_failures() -> None:
    trace = recording.record(recording.plan(scenario("dpsgd", 8, 4, 2)), None).trace
    leak = la.leaks(trace)[0]
    none = torch.empty(0, 1, 25, 25)
    seen: list[GradientLeak] = []

    def attempt(some: GradientLeak) -> Reconstruction:
        seen.append(some)
        return Reconstruction(some.node, "none", none, None, Certificate.FAILED, 1.0)

    task = la.Task.build(trace.task)
    found = round_by_round.attack(leak, task, attempt)
    assert found.certificate is Certificate.FAILED
    assert len(seen) == 1 + round_by_round.PATIENCE


@pytest.mark.parametrize("attack", ["exact", "cone", "analytic"])
@pytest.mark.parametrize("node", range(3))
def test_a_batch_that_is_larger_than_said_is_not_certified(attack: str, node: int) -> None:
    """The rows hold three images, the trace says two."""
    plan = recording.plan(scenario("dpsgd", 6, 2, 3))
    recorder = recording.record(plan, None)
    leaks = la.leaks(recorder.trace)
    (leak,) = (one for one in leaks if one.node == node)
    wrong = replace(leak, batch=1 if attack == "analytic" else 2)
    found = attack_one(wrong, la.Task.build(leaks.task), attack, Generator().manual_seed(0))
    truth = recorder.truth_record.of(node)[0]
    assert lookalikes.claimed(found, truth, attack).false == 0


@pytest.mark.parametrize(("family", "dtype"), FAMILIES)
@pytest.mark.parametrize(
    ("victim", "samples", "rounds", "batch", "attack"),
    [
        ("fedavg", 6, 8, 2, "exact"),
        ("fedavg", 4, 3, 1, "cone"),
        ("dpsgd", 6, 6, 2, "exact"),
        ("dpsgd", 4, 5, 1, "analytic"),
    ],
)
def test_images_that_are_alike(
    victim: str, samples: int, rounds: int, batch: int, attack: str, family: str, dtype: str
) -> None:
    case = scenario(victim, samples, rounds, batch, dtype=dtype)
    count = lookalikes.attacked(case, family, 0, attack)
    assert count.images
    assert not count.false, count.cases
