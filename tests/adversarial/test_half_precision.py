"""Messages in float16 and bfloat16, whose rounding may hide gradients and even their absence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from every_victim import CASES, run
from torch import Tensor

import leakaudit as la
from leakaudit.core.trace import Trace, Truth
from leakaudit.judging.lint.checks import Lint
from leakaudit.views.conformance import conformance

HALVES = [torch.float16, torch.bfloat16]
HIDDEN = "the rounding of the messages hides the gradients"
Change = Callable[[Tensor], Tensor]
CHANGES: dict[str, Change] = {
    "zero": torch.zeros_like,
    "noise": lambda message: torch.randn_like(message) * message.norm() / len(message) ** 0.5,
    "half": lambda message: message / 2,
}


def rounded(trace: Trace, dtype: torch.dtype, change: Change | None = None) -> Trace:
    """Return a recording in half precision, in which the messages of node 0 may be changed."""
    messages = []
    for table in trace.messages:
        payload = table.payload.to(dtype, copy=True)
        if change is not None:
            for row in table.row[table.src == 0].unique().tolist():
                payload[row] = change(payload[row])
        messages.append(replace(table, payload=payload))
    public = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in trace.public.items()
    }
    return replace(trace, messages=tuple(messages), public=public)


@pytest.fixture(scope="module", params=["dpsgd", "pdmm"])
def recorded(request: pytest.FixtureRequest) -> tuple[Trace, Truth]:
    scenario = la.Scenario(
        request.param, nodes=4, graph="ring", rounds=10, data="faces", model="mlp", samples=2,
        set={"hidden": 16},
    )  # fmt: skip
    return la.record(scenario)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=[f"{n}-{s}" for n, s in CASES])
def test_honest_recordings_raise_no_alarm(
    name: str, settings: dict[str, Any], dtype: torch.dtype, fresh_seed: int
) -> None:
    made = run(name, settings, fresh_seed)
    trace = rounded(made.trace, dtype) if made.trace.dtype == torch.float32 else made.trace
    found = conformance.examine(trace, made.truth)
    assert not found.sentences
    assert found.compared or found.obstacle


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("change", ["zero", "noise"])
def test_messages_without_gradients_are_found(
    recorded: tuple[Trace, Truth], dtype: torch.dtype, change: str
) -> None:
    trace, truth = recorded
    assert conformance.examine(rounded(trace, dtype, CHANGES[change]), truth).sentences


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("change", [None, *CHANGES])
def test_what_rounding_hides_is_not_called_compared(
    recorded: tuple[Trace, Truth], dtype: torch.dtype, change: str | None
) -> None:
    trace, truth = recorded
    found = conformance.examine(rounded(trace, dtype, CHANGES.get(change or "")), truth)
    if change is None:
        assert found.compared == (not found.obstacle)
        assert found.obstacle in ("", HIDDEN)
    else:
        assert found.sentences or not found.compared


@pytest.mark.parametrize("alpha", [0.1, 1e-7])
def test_gradients_below_the_precision_are_not_called_compared(alpha: float) -> None:
    """With a tiny step, the messages are the same for any records, in single precision as well."""
    scenario = la.Scenario(
        "dpsgd", nodes=4, graph="ring", rounds=4, data="faces", model="mlp", samples=2,
        set={"hidden": 16, "alpha": alpha},
    )  # fmt: skip
    trace, truth = la.record(scenario)
    found = conformance.examine(trace, truth)
    assert not found.sentences
    assert found.compared == (alpha == 0.1)
    assert found.obstacle == ("" if alpha == 0.1 else HIDDEN)
    said = f"gradients in messages against the truth: {HIDDEN}"
    assert (said in Lint(trace, truth).unexamined) == (alpha != 0.1)
