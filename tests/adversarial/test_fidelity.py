"""The gate's control of recordings: silent on honest runs of every protocol, loud where one thing in them is exchanged."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="operator"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from every_victim import CASES, run

from leakaudit.core.trace import Trace
from leakaudit.judging.gate.config import Check
from leakaudit.judging.gate.fidelity import Fidelity
from leakaudit.judging.gate.rule import Rule
from leakaudit.judging.gate.runs import SeedResults
from leakaudit.protocols import premises
from leakaudit.reporting.results.model import RuleStatus


def judged(runs: list[SeedResults], **named: Any) -> list[Rule]:
    """Judge recordings as if a program of somebody else's had made them."""
    shown = Fidelity(Check("c", **(named or {"run": "a:b"})))
    for one in runs:
        said = {k: v for k, v in one.trace.provenance.items() if k != premises.KEY}
        shown.look(replace(one, trace=replace(one.trace, provenance=said)))
    return shown.rules()


@pytest.mark.parametrize(("name", "settings"), CASES, ids=[f"{n}-{s}" for n, s in CASES])
def test_honest_recordings_of_every_protocol_raise_no_alarm(
    name: str, settings: dict[str, Any], fresh_seed: int
) -> None:
    (rule,) = judged([run(name, settings, fresh_seed + k) for k in range(2)])
    assert rule.status is RuleStatus.OK, rule.says


def payloads(trace: Trace, change: Callable[[torch.Tensor], torch.Tensor]) -> Trace:
    return replace(
        trace, messages=tuple(replace(m, payload=change(m.payload.clone())) for m in trace.messages)
    )


def other_truth(one: SeedResults) -> SeedResults:
    return replace(one, truth=replace(one.truth, x=one.truth.x.flip(0)))


def other_labels(one: SeedResults) -> SeedResults:
    return replace(one, truth=replace(one.truth, y=(one.truth.y + 1) % one.trace.task.classes))


def last_half_zero(one: SeedResults) -> SeedResults:
    def change(payload: torch.Tensor) -> torch.Tensor:
        payload[len(payload) // 2 :] = 0
        return payload

    return replace(one, trace=payloads(one.trace, change))


def one_infinite(one: SeedResults) -> SeedResults:
    def change(payload: torch.Tensor) -> torch.Tensor:
        payload[-1, -1] = torch.inf
        return payload

    return replace(one, trace=payloads(one.trace, change))


def other_step(one: SeedResults) -> SeedResults:
    name = next(n for n in ("alpha", "lr", "rho") if n in one.trace.params)
    return replace(
        one,
        trace=replace(one.trace, params={**one.trace.params, name: 1.2 * one.trace.params[name]}),
    )


def one_message_less(one: SeedResults) -> SeedResults:
    keep = torch.arange(len(one.trace.messages[0])) != len(one.trace.messages[0]) - 1
    columns = ("round", "src", "dst", "kind", "row", "secure")
    less = replace(
        one.trace.messages[0], **{n: getattr(one.trace.messages[0], n)[keep] for n in columns}
    )
    return replace(one, trace=replace(one.trace, messages=(less,)))


CHANGES = [other_truth, other_labels, last_half_zero, one_infinite, other_step, one_message_less]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
@pytest.mark.parametrize(
    "name", ["dpsgd", "fedsgd", "fedavg", "gossip", "pdmm", "nids", "tracking", "fedsplit"]
)
def test_one_thing_exchanged_in_a_recording_without_noise_is_told(
    name: str, change: Callable[[SeedResults], SeedResults]
) -> None:
    rules = judged([change(run(name, {}, 3))])
    assert [r.status for r in rules] == [RuleStatus.VOID], [r.says for r in rules]


def test_noise_that_only_later_runs_lack_is_told() -> None:
    """The lint looks at the first recording; here the second has a tenth of the noise."""
    settings = {"sigma": 0.3, "noise": "message", "order": "adapt"}
    honest, quiet = run("dpsgd", settings, 0), run("dpsgd", {**settings, "sigma": 0.03}, 1)
    (rule,) = judged(
        [honest, replace(quiet, trace=replace(quiet.trace, params=honest.trace.params))]
    )
    assert (rule.status, rule.measure) == (RuleStatus.CONTRADICTED, "P20"), rule.says


def test_the_values_of_a_scenario_are_compared_too() -> None:
    """A scenario's victim may be a plugin, which can record wrongly like any other program."""
    settings = {"sigma": 0.3, "noise": "message", "order": "adapt"}
    runs = [run("dpsgd", settings, seed) for seed in range(2)]
    (honest,) = judged(runs, scenario="any.toml")
    assert honest.status is RuleStatus.OK
    assert "contain the gradients of the truth" in honest.says
    (rule,) = judged([other_truth(one) for one in runs], scenario="any.toml")
    assert rule.status is RuleStatus.VOID, rule.says
