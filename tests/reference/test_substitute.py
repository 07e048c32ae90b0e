"""Substitution of gradients into relations: the noise that was drawn, however they are grouped."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

from leakaudit.core.trace import Trace, Truth
from leakaudit.protocols import recording
from leakaudit.protocols.declared import protocol_of
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Task
from leakaudit.views.conformance import conformance, substitute
from leakaudit.views.conformance.substitute import RecordingRemainder, left
from leakaudit.views.conformance.values import Values

SIGMA = 0.5


@dataclass(frozen=True)
class Recording:
    trace: Trace
    truth: Truth
    task: Task


def recorded(**constants: float) -> Recording:
    scenario = Scenario(
        victim="dpsgd",
        nodes=5,
        graph="ring",
        rounds=4,
        data="gaussians:20",
        samples=2,
        model="logistic",
        set={"sigma": SIGMA, "alpha": 0.2, **constants},
        dtype="float64",
    )
    run = recording.record(recording.plan(scenario), None)
    return Recording(run.trace, run.truth_record, Task.build(run.trace.task))


def remainder(made: Recording) -> RecordingRemainder:
    found = left(made.trace, made.truth, made.task, protocol_of(made.trace).whole)
    assert found is not None
    return found


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_the_remainder_is_the_noise(clip: float) -> None:
    found = remainder(recorded(clip=clip))
    assert len(found.noise) == 5
    draws = np.concatenate([one.rest.ravel() for one in found.noise])
    assert 0.7 < draws.std() < 1.3  # 60 draws of standard deviation 1
    for one in found.noise:
        assert np.abs(one.signal).max() > 0
        assert np.abs(one.better).max() > 0


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_nothing_remains_without_noise(clip: float) -> None:
    found = remainder(recorded(sigma=0.0, clip=clip))
    assert not found.noise
    assert found.missed < 1e-9
    assert found.size > 1e-3


@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_gradients_one_at_a_time(clip: float, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recorded(clip=clip)
    together = remainder(made)
    monkeypatch.setattr(substitute, "AT_ONCE", 1)
    alone = remainder(made)
    assert len(together.noise) == len(alone.noise) == 5
    for one, other in zip(together.noise, alone.noise, strict=True):
        assert one.labels == other.labels
        np.testing.assert_allclose(one.rest, other.rest, rtol=0, atol=1e-10)
        np.testing.assert_allclose(one.signal, other.signal, rtol=0, atol=1e-10)
        np.testing.assert_allclose(one.better, other.better, rtol=0, atol=1e-10)


@pytest.mark.parametrize("times", [1.0, 1.5, 2.0])
def test_gradients_beyond_the_declared_clip_are_told(times: float) -> None:
    made = recorded(clip=0.3 * times, sigma=0.006)
    declared = replace(made.trace, params={**made.trace.params, "clip": 0.3})
    values = Values()
    values.add(remainder(replace(made, trace=declared)).noise)
    found = [one.says for one in values.signal()]
    assert len(found) == (times > 1)
    for says in found:
        told = re.search("longer than the declared clip, .* about ([0-9.]+) times as large", says)
        assert told is not None, says
        assert float(told[1]) == pytest.approx(times, abs=0.2)


def test_values_are_kept_as_long_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far fewer than all at once, and as many as were counted before."""
    made = recorded(sigma=0.0)
    declared = protocol_of(made.trace).whole
    known = substitute._recorded(made.trace, declared, made.trace.rounds)
    gradients = substitute._Gradients(made.trace, made.truth, made.task, guess=True)
    counted = substitute._most_at_once(declared, known, made.trace.rounds, gradients.kinds)
    monkeypatch.setattr(gradients, "together", 1)
    done = substitute._Substitution(declared, known, gradients, made.trace.rounds)
    assert done.most + 2 * gradients.kinds + 2 == counted
    assert counted < gradients.kinds * len(done.norms) / 2
    assert not done.values  # no noise, and everything else was used


def test_a_model_that_is_too_large_is_not_compared_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = recorded()
    monkeypatch.setattr(substitute, "LARGEST", 100)
    assert left(made.trace, made.truth, made.task, protocol_of(made.trace).whole) is None
    found = conformance.examine(made.trace, made.truth)
    assert not found.compared
    assert "do not fit into the memory" in found.obstacle
    monkeypatch.undo()
    assert conformance.examine(made.trace, made.truth).compared
    little = conformance.examine(made.trace, made.truth, memory=800)
    assert not little.compared
    assert little.obstacle == found.obstacle
