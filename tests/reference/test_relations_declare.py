"""The words of a declaration: exact coefficients, clear errors, who knows what, contradictions and residuals."""

from __future__ import annotations

import runpy
from fractions import Fraction as Q
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph, Layout, Messages, TaskSpec, Trace
from leakaudit.theory.relations import (
    Expression,
    Relations,
    Vector,
    determined,
    exact,
    explain,
    is_determined,
    know,
    recorded,
    residuals,
)
from leakaudit.theory.relations.modular import PRIMES, rational, residue

DECLARED: dict[str, Any] = runpy.run_path(
    str(Path(__file__).with_name("test_relations_protocols.py"))
)
ALL = Adversary()


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        (1, Q(1)),
        ("0.1", Q(1, 10)),
        ("2/7", Q(2, 7)),
        (0.1, Q(1, 10)),
        (1 - 2 / 3, Q(1, 3)),
        (np.float64(0.25), Q(1, 4)),
        (np.int64(3), Q(3)),
    ],
)
def test_coefficients_are_what_was_meant(value: Any, meant: Q) -> None:
    assert exact(value) == meant
    p = Relations()
    x = p.secret("x", 0)
    assert (value * x).terms == (x * value).terms == {0: meant}


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 0.1234567890123, 1e-9, "a", None, 1j, "1/0"]
)
def test_coefficients_that_mean_nothing_exact_are_refused(value: Any) -> None:
    with pytest.raises(LeakauditError, match="coefficient"):
        exact(value)


def test_forms_read_like_formulas() -> None:
    p = Relations()
    x, z, m = p.secret("x", 0), p.secret("z", 0, 1), p.public("mean")
    y = p.send(0, (1, 2), x, "y")
    assert str(x - Q(3, 2) * z + m) == "x[0,0] - 3/2 z[0|1,0] + mean[0]"
    assert [str(y), str(p.send(0, None, z, "y")), str(x - x), str(-x)] == [
        "y[0>1&2,0]",
        "y[0>*,0]",
        "0",
        "-x[0,0]",
    ]
    assert p.find("z", 0, 0, 1) == z


def errors(p: Relations, other: Expression) -> dict[str, Any]:
    x, y = p.secret("x", 0), p.state("y", 0)
    return {
        "cannot add 3": lambda: x + 3,
        "is not linear": lambda: x * y,  # type: ignore[operator]
        "by zero": lambda: x / 0,
        "belong to different declarations": lambda: x + other,
        "use only vectors of this one": lambda: p.state("new", 0, eq=other),
        "is trivial": lambda: p.relate(x, x),
        "is declared twice; reuse the first": lambda: p.secret("x", 0),
        "only one rounds": lambda: [list(p.rounds(2)), list(p.rounds(2))],
        "addressed to itself": lambda: p.send(0, 0, x),
        "addressed to nobody": lambda: p.send(0, (), x),
        "they share no edge": lambda: p.send(0, 2, x),
        "expected a vector to send": lambda: p.send(0, 1, 0),
        "expected a channel error with std >= 0": lambda: p.send(0, 1, x, "loud", std=-1.0),
        r"a\[0\] belongs to another declaration": lambda: p.grad(0, at=other),
        r"\] belongs to another declaration": lambda: p.opaque(y, of=[other]),
        "cannot|belong": lambda: p.relate(x, other),
        "node 9 does not exist": lambda: p.secret("far", 9),
        r"vector x\[0,7\] does not exist .* did you mean": lambda: p.find("x", 0, 7),
        "expected a finite std > 0": lambda: p.noise("n", 0, 0),
        "expected one vector": lambda: (x + y).vector,
        "expected a state without eq=": lambda: p.opaque(x, of=[y]),
        "node 5 does not exist": lambda: know(p, Adversary(corrupt=frozenset({5}))),
        r"x\[0,0\] cannot be a target": lambda: determined(
            know(p, Adversary(corrupt=frozenset({0}))), [x]
        ),
    }


@pytest.mark.parametrize("text", errors(Relations(), Relations().public("a")))
def test_mistakes_say_what_is_wrong_in_one_line(text: str) -> None:
    p = Relations(Graph(3, ((0, 1), (1, 2))))
    with pytest.raises(LeakauditError, match=text) as caught:
        errors(p, Relations().public("a"))[text]()
    assert "\n" not in str(caught.value)


def test_who_knows_what() -> None:
    p = Relations()
    x, c = p.secret("x", 0), p.public("c")
    hidden, wire = p.send(0, 1, x + c, "hidden", secure=True), p.send(0, 1, x, "wire")
    board, copy = p.send(0, None, x, "board"), p.send(0, (1, 2), x, "copy")

    def known(**how: Any) -> list[Expression]:
        own = how.pop("own", True)
        k = know(p, Adversary(**how), own=own)
        return [v for v in (x, c, hidden, wire, board, copy) if v.vector in k.known]

    assert known() == [c, wire, board, copy]
    assert known(hears="none") == [c, board]
    assert known(hears=frozenset({(0, 2)})) == [c, board, copy]
    assert known(hears=frozenset({(1, 0)}), knows=frozenset()) == [board]
    assert known(hears="none", corrupt=frozenset({1})) == [c, hidden, wire, board, copy]
    assert known(hears="none", corrupt=frozenset({0})) == [x, c, hidden, wire, board, copy]
    assert known(hears="none", corrupt=frozenset({0}), own=False) == [c, hidden, wire, board, copy]
    assert known(window=range(1, 4)) == [c]
    assert known(window=range(0)) == []


def test_residuals_find_the_relation_that_does_not_describe_the_run() -> None:
    p = Relations()
    x, c = p.secret("x", 0), p.public("c")
    w = p.state("w", 0, eq=x - Q(1, 3) * c)
    p.send(0, 1, 2 * w, "m")
    p.send(0, 1, p.state("hidden", 0) + x, "unrecorded")
    run = {
        "x[0,0]": torch.tensor([1.0, 2.0]),
        "c[0]": torch.tensor([3.0, 6.0]),
        "m[0>1,0]": torch.tensor([0.0, 1e-9]),
    }
    found = residuals(p, lambda v: run.get(v.label), 1e-6)
    assert (found.checked, found.skipped) == (1, 1)
    run["m[0>1,0]"] = torch.tensor([0.0, 1e-2])
    with pytest.raises(
        LeakauditError,
        match=r"round 0: the relation m\[0>1,0\] = 2 w\[0,0\] has a relative residual of 2.2e-03",
    ):
        residuals(p, lambda v: run.get(v.label), 1e-6)


def test_formulas_with_long_rationals_are_exact() -> None:
    """The residue of a long rational looks like a short one modulo a small prime; the next prime has room."""
    p = Relations()
    g = p.secret("g", 0)
    factor = Q(3**150, 7**140)
    p.send(0, 1, factor * g, "m")
    assert str(explain(know(p, ALL), g)) == f"{1 / factor} m[0>1,0]"
    assert rational(residue(Q(3**25, 7**24), PRIMES[0]), PRIMES[0]) is None
    assert rational(residue(Q(-22, 7), PRIMES[0]), PRIMES[0]) == Q(-22, 7)
    shown = determined(know(p, Adversary(hears="none", corrupt=frozenset({1}))), [g])
    assert shown == [g]


def test_known_vectors_take_part_in_questions() -> None:
    p = Relations()
    g, c, free = p.secret("g", 0), p.public("c"), p.secret("free", 0)
    p.send(0, 1, g + c, "m")
    k = know(p, ALL)
    assert is_determined(k, g + c)
    assert is_determined(k, c)
    assert not is_determined(k, g + free)
    assert str(explain(k, g + c)) == "m[0>1,0]"
    assert explain(k, free) is None


def test_noise_in_the_formula_is_its_error() -> None:
    p = Relations()
    g, n = p.secret("g", 0), p.noise("n", 1, 0)
    p.send(0, 1, 2 * g + n, "m")
    k = know(p, ALL)
    assert explain(k, g) is None
    assert str(explain(k, g, up_to_noise=True)) == "-1/2 n[0,0] + 1/2 m[0>1,0]"


def test_a_part_of_the_relations_is_a_lower_bound() -> None:
    p = Relations()
    DECLARED["pdmm"](p, DECLARED["CHORD"], 6)
    k = know(p, Adversary(hears=frozenset({(0, 1), (1, 0), (0, 3), (3, 0), (0, 5)})))
    part, every = len(determined(k.near([0]), p.gradients(0))), len(determined(k, p.gradients(0)))
    assert part <= len(determined(k.near([0, 1, 3, 5]), p.gradients(0))) <= every
    assert len(determined(k.within(range(2)), p.gradients(0))) == 0


def test_a_recorded_trace_is_read_by_round_sender_receiver_and_name() -> None:
    src, dst = torch.zeros(2, dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int32)
    open_, payload = torch.zeros(2, dtype=torch.bool), torch.tensor([[5.0, 6.0]])
    sent = Messages(
        round=src + 1,
        src=src,
        dst=dst,
        kind=src,
        row=src,
        secure=open_,
        payload=payload,
        kinds=("x",),
    )
    layout = Layout(("w",), ((2,),))
    trace = Trace(
        "p",
        {},
        TaskSpec("linear"),
        Graph(3, ((0, 1), (0, 2))),
        layout,
        (0, 2),
        1,
        (sent,),
        {"w0": torch.ones(2)},
    )
    p = Relations(trace.graph)
    x, w0 = p.secret("x", 0), p.public("w0")
    vectors: dict[str, Vector] = {}
    for _ in p.rounds(1):
        vectors["copy"] = p.vectors[p.send(0, (1, 2), x, "x").vector]
        vectors["board"] = p.vectors[p.send(0, None, x, "x").vector]
    fetch = recorded(Adversary(hears=frozenset({(0, 2)})).view(trace))
    assert fetch(vectors["copy"]).tolist() == fetch(vectors["board"]).tolist() == [5, 6]
    assert fetch(p.vectors[w0.vector]).tolist() == [1, 1]
    with pytest.raises(
        LeakauditError,
        match=r"x\[0,0\] is not part of a recorded trace; call know\(…, own=False\)",
    ):
        fetch(p.vectors[x.vector])
