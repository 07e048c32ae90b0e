"""The epsilon that a framework states: read from a log, from a trace, and in words."""

from __future__ import annotations

from typing import Any

import pytest

from leakaudit.traces import framework_epsilon

OPACUS: dict[str, Any] = {
    "by": "Opacus",
    "epsilon": 1.5,
    "delta": 1e-5,
    "method": "prv",
    "steps": 4,
    "rate": 1.0,
}
FLOWER: dict[str, Any] = {
    "by": "Flower's LocalDpMod",
    "epsilon": 5.0,
    "delta": 1e-6,
    "clip": 2.0,
    "sensitivity": 0.5,
}


def test_the_last_statement_of_each_framework_counts() -> None:
    found = framework_epsilon.last([OPACUS, FLOWER, {**OPACUS, "epsilon": 2.5, "steps": 8}])
    assert [(one.by, one.epsilon, one.steps) for one in found] == [
        ("Opacus", 2.5, 8),
        ("Flower's LocalDpMod", 5.0, 0),
    ]


def test_the_sentence_says_what_the_statement_assumes() -> None:
    whole, sampled, answer = (
        framework_epsilon.last([one])[0].sentence
        for one in (OPACUS, {**OPACUS, "rate": 0.01}, FLOWER)
    )
    assert whole.startswith("Opacus states epsilon 1.5 at delta 1e-05 by prv after 4 steps")
    assert "secret" not in whole
    assert "holds a record with probability 0.01 in secret" in sampled
    assert "which one record changes by 0.5" in answer
    assert "changes one by up to 4" in answer


@pytest.mark.parametrize(
    "changed",
    [
        {"by": "a stranger"},
        {"epsilon": -1.0},
        {"epsilon": "small"},
        {"delta": 2.0},
        {"method": "<script>"},
        {"steps": 0.5},
    ],
)
def test_what_is_no_statement_is_left_out(changed: dict[str, Any]) -> None:
    assert framework_epsilon.last([{**OPACUS, **changed}]) == []
