"""Constants of PDMM that an adversary does not know: found from messages, or said to be not
determined, with a reason that is checked as well."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import leakaudit as la
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.evidence import Origin
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.trace import Trace, Truth
from leakaudit.inversion import attacking
from leakaudit.protocols import dual_constants, quiet_directions, recording
from leakaudit.protocols.declared import constant
from leakaudit.protocols.dual_constants import ComputedConstants
from leakaudit.protocols.scenario import Scenario
from leakaudit.scoring.scoring import score

LOCAL = ("rho", "update", "alpha", "k_max", "mu")
ALL = frozenset(("theta", "differential", "z0", "quantize", "active", *LOCAL))
CLOSE = 1e-6
RUNS = 50  # in the slow test
FEW = 2
NETWORK: dict[str, Any] = {"data": "faces", "samples": 2, "model": "mlp", "hidden": 12}
LOGISTIC: dict[str, Any] = {"data": "gaussians", "samples": 1, "model": "logistic"}
# What is determined beside theta: the constants, up to the scale of the models or not at all.
VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "pdmm": ({}, "products"),
    "admm": ({"theta": 0.5}, "products"),
    "plain": ({"differential": False}, "products"),
    "plain, zero start": ({"differential": False, "z0": 0.0}, "all"),
    "zero start": ({"z0": 0.0}, "all"),
    "several steps": ({"k_max": 4}, "products"),
    "several steps, l2": ({"k_max": 4, "l2": 0.05}, "all"),
    "l2": ({"l2": 0.01}, "all"),
    "quadratic": ({"update": "quadratic"}, "products"),
    "quadratic, l2": ({"update": "quadratic", "l2": 0.05}, "all"),
    "quadratic, zero start": ({"update": "quadratic", "z0": 0.0}, "all"),
    "a curious neighbour": ({"who": "eavesdropper+node:1"}, "all"),
    "one logit": ({**LOGISTIC}, "products"),
    "one logit, several steps": ({**LOGISTIC, "k_max": 3}, "products"),
    "one logit, l2": ({**LOGISTIC, "l2": 0.1}, "all"),
    "exact": ({**LOGISTIC, "update": "exact"}, "products"),
    "exact, l2": ({**LOGISTIC, "update": "exact", "l2": 0.1}, "all"),
    "exact, admm": ({**LOGISTIC, "update": "exact", "theta": 0.5}, "products"),
    "ring": ({"graph": "ring"}, "one number"),
    "ring, several steps": ({"graph": "ring", "k_max": 3}, "one number"),
    "asynchronous": ({"active": 4, "rounds": 40}, "products"),
    "asynchronous, zero start": ({"active": 4, "rounds": 40, "z0": 0.0}, "all"),
    "asynchronous, plain": (
        {"active": 4, "rounds": 40, "differential": False, "z0": 0.0, "k_max": 2},
        "all",
    ),
    "quantised": ({"quantize": 1e-3}, "nothing"),
    "one logit, many records": ({**LOGISTIC, "samples": 12}, "local update"),
}
USED = {"gradient": ("alpha", "k_max"), "quadratic": ("mu",), "exact": ()}


def run(seed: int = 0, dtype: str = "float64", **changes: Any) -> tuple[Trace, Truth, Any]:
    """Record PDMM with random constants, on a random graph, unless the changes say otherwise."""
    draw = np.random.default_rng(seed)
    constants = {
        "rho": round(float(draw.uniform(0.1, 0.6)), 5),
        "alpha": round(float(draw.uniform(0.01, 0.08)), 5),
        "mu": round(float(draw.uniform(5, 30)), 4),
        "theta": round(float(draw.uniform(0.3, 1.0)), 4) if seed % 2 else 1.0,
    }
    values = {"nodes": 8, "graph": "rgg", "rounds": 18, **NETWORK, **constants, **changes}
    if values["model"] == "logistic":
        values.pop("hidden")
    names = ("nodes", "graph", "rounds", "data", "samples", "model")
    scenario = Scenario(
        "pdmm", dtype=dtype, seed=seed, **{name: values.pop(name) for name in names}, set=values
    )
    plan = recording.plan(scenario)
    recorder = recording.record(plan, None)
    return recorder.trace, recorder.truth_record, plan


def compute(
    trace: Trace, knows: frozenset[str] = frozenset({"w0"}), who: str = "eavesdropper"
) -> ComputedConstants:
    view = Adversary.parse(who, knows=knows).view(trace)
    return dual_constants.computed(view, ALL - knows)


def near(value: Any, true: Any) -> bool:
    return bool(abs(value - true) <= CLOSE * abs(true))


def expect(name: str, seed: int) -> None:
    """Compare what is found in one run with the constants of that run."""
    changes, determined = VARIANTS[name]
    changes = dict(changes)
    who = changes.pop("who", "eavesdropper")
    trace, _, _ = run(seed, **changes)
    if "graph" not in changes and len({*map(len, trace.graph.neighbours)}) == 1:
        trace, _, _ = run(seed, **changes, graph="grid")  # nodes of two degrees
    true: dict[str, Any] = dict(trace.params)
    found = compute(trace, who=who)
    origins = {one.subject: one.origin for one in found.evidence}
    verified = {name for name, origin in origins.items() if origin is not Origin.UNKNOWN}
    values: dict[str, Any] = dict(found.values)
    for one in verified & {"differential", "update", "k_max", "active"}:
        assert values[one] == true[one], one
    for one in verified - {"differential", "update", "k_max", "active"}:
        assert near(values[one], true[one]), (one, values[one])
    assert all(one.detail for one in found.evidence)  # what is not determined has a reason
    assert found.scaled == (determined in ("products", "one number"))
    used = USED[true["update"]]
    local = {"update", "rho", *used}
    if determined == "nothing":
        assert verified == {"differential", "quantize", "active"}
        assert "rounded to multiples of 0.001" in found.why_not("theta")
        return
    assert "theta" in verified
    if determined == "all":
        assert local <= verified
    elif determined == "products":
        assert local - {"rho", "alpha", "mu"} <= verified
        assert "rho" not in verified
        if true["update"] == "gradient":
            assert near(values["alpha"] * values["rho"], true["alpha"] * true["rho"])
        if true["update"] == "quadratic":
            assert near(values["mu"] / values["rho"], true["mu"] / true["rho"])
    elif determined == "one number":
        assert not verified & local
        kept = (1 - values["alpha"] * values["rho"] * 2) ** values["k_max"]
        assert near(kept, (1 - true["alpha"] * true["rho"] * 2) ** true["k_max"])
    else:
        assert not verified & local
        assert "too many records" in found.why_not("alpha")


@pytest.mark.parametrize("name", VARIANTS)
def test_constants_are_recovered_or_said_to_be_not_determined(name: str) -> None:
    for seed in range(FEW):
        expect(name, seed)


# Runs in which determined constants are said not to be determined: the error of the fit is too
# small.
SHY = {("one logit, several steps", 32)}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_constants_of_all_runs(name: str) -> None:
    for seed in range(FEW, RUNS):
        if (name, seed) not in SHY:
            expect(name, seed)
            continue
        found = compute(run(seed, **VARIANTS[name][0])[0])
        assert not {"alpha", "rho", "k_max", "update"} & found.values.keys()
        assert all(one.detail for one in found.evidence)


def test_a_known_constant_gives_the_others() -> None:
    trace, _, _ = run(3)
    for known in ("rho", "alpha"):
        found = compute(trace, frozenset({known}))
        assert not found.scaled
        for name in {"rho", "alpha"} - {known}:
            assert near(found.values[name], trace.params[name])
    # On a ring k_max and the step are known together, or not at all.
    trace, _, _ = run(3, graph="ring", k_max=3)
    found = compute(trace, frozenset({"rho", "alpha", "update"}))
    assert found.values["k_max"] == 3
    assert not found.scaled
    found = compute(trace, frozenset({"rho", "alpha"}))  # or a quadratic approximation
    assert found.scaled
    assert "as does quadratic" in found.why_not("k_max")


def test_a_scaled_loss_sends_the_same_messages() -> None:
    """The reason for which rho is not determined, on quadratic losses (eq. 2.6, 2.7, k_max 1)."""

    def messages(c: float) -> np.ndarray:
        draw = np.random.default_rng(0)
        target, start = draw.normal(size=(2, 3, 4))
        rho, alpha = 0.4 / c, 0.05 * c
        w = c * start
        z = {(i, j): draw.normal(size=4) for i in range(3) for j in range(3) if i != j}
        sent = []
        for _ in range(5):
            for i in range(3):
                pull = sum((1 if i < j else -1) * z[i, j] for j in range(3) if j != i)
                gradient = w[i] / c - target[i]  # of c f(w / c), f(v) = |v - target|^2 / 2
                w[i] = w[i] - alpha * (gradient + pull + 2 * rho * w[i])
            z = {
                (j, i): z[i, j] + 2 * rho * (1 if i < j else -1) * w[i]
                for i in range(3)
                for j in range(3)
                if i != j
            }
            sent.append(np.stack([z[key] for key in sorted(z)]))
        return np.stack(sent)

    np.testing.assert_allclose(messages(1.0), messages(7.0), rtol=1e-12)


def test_on_a_ring_a_quadratic_approximation_is_a_gradient_step() -> None:
    alpha, rho = 0.04, 0.3
    one, _, _ = run(1, graph="ring", alpha=alpha, rho=rho, theta=1.0)
    mu = 1 / alpha - 2 * rho
    other, _, _ = run(1, graph="ring", update="quadratic", mu=mu, rho=rho, theta=1.0)
    for a, b in zip(one.messages, other.messages, strict=True):
        assert torch.allclose(a.payload, b.payload, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("changes", [{}, {"k_max": 3}, {"update": "quadratic"}, {"graph": "ring"}])
def test_an_adversary_without_constants_recovers_the_inputs(changes: dict[str, Any]) -> None:
    trace, truth, plan = run(2, alpha=0.05, rho=0.4, **changes)
    leak = la.leaks(trace, Adversary(knows=frozenset()), nodes=[0])[0]
    assert leak.theta is None  # their scale, or the steps between them, are not known
    assert "computed from the messages: active = 0, differential = True" in leak.scope
    assert "not determined: " in leak.scope
    found = attacking.attack_one(leak, plan.task, "exact", torch.Generator().manual_seed(0))
    assert found.certificate is Certificate.EXACT
    assert len(found.x) == 2
    (scored,) = score([found], truth)
    assert all(scored.exact or ())


def test_the_values_of_a_leak_do_not_depend_on_the_scale() -> None:
    trace, _, _ = run(4)
    with_all = la.leaks(trace, nodes=[0])[0]
    without = la.leaks(trace, Adversary(knows=frozenset()), nodes=[0])[0]
    assert (without.value - with_all.value).norm() <= 1e-11 * with_all.value.norm()
    assert bool((without.std >= with_all.std).all())  # errors of the constants are included


def test_computed_models_are_those_of_the_run() -> None:
    trace, _, _ = run(5, z0=0.0)
    with_all = la.leaks(trace, nodes=[0])[0]
    without = la.leaks(trace, Adversary(knows=frozenset({"w0"})), nodes=[0])[0]
    assert with_all.theta is not None
    assert without.theta is not None
    assert torch.allclose(without.theta, with_all.theta, rtol=1e-9, atol=1e-9)


def test_what_is_not_determined_is_an_error_with_the_reason() -> None:
    trace, _, _ = run(0, **LOGISTIC | {"samples": 12})
    with pytest.raises(LeakauditError, match="does not know 'update', and the messages do not"):
        la.leaks(trace, Adversary(knows=frozenset({"rho", "theta"})))
    with pytest.raises(LeakauditError, match="of no node all messages are observed"):
        la.leaks(trace, Adversary.parse("edges:0-1", knows=frozenset({"rho"})))
    short, _, _ = run(0, rounds=3)
    with pytest.raises(LeakauditError, match="rounds"):
        la.leaks(short, Adversary(knows=frozenset()))


def test_messages_of_another_protocol_give_no_constants() -> None:
    """Noise, which the equations do not have, may not be mistaken for a constant."""
    trace, _, _ = run(0)
    generator = torch.Generator().manual_seed(0)
    for table in trace.messages:
        table.payload.add_(
            torch.randn(table.payload.shape, generator=generator, dtype=torch.double)
        )
    found = compute(trace)
    assert {one.subject for one in found.evidence if one.origin is Origin.VERIFIED} == {
        "differential",
        "quantize",
        "active",
    }
    assert "do not satisfy the equations" in found.why_not("theta")


def test_a_single_precision_run_is_less_certain() -> None:
    trace, _, _ = run(1, dtype="float32")
    found = compute(trace)
    assert 1e-8 < found.error < 1e-4
    values: dict[str, Any] = dict(found.values)
    assert math.isclose(values["theta"], constant(trace, "theta"), rel_tol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_records_are_not_mistaken_for_few(dtype: str) -> None:
    """Late in a run the gradients of all records are nearly parallel."""
    for seed in range(6):
        trace, _, _ = run(seed, dtype=dtype, **{**LOGISTIC, "samples": 12, "rounds": 40})
        assert "too many records" in compute(trace).why_not("alpha")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("differential", [True, False])
@pytest.mark.parametrize("cell", [1e-2, 1e-3])
def test_a_quantizer_is_found_in_rounded_numbers(
    dtype: str, differential: bool, cell: float
) -> None:
    trace, _, _ = run(1, dtype=dtype, quantize=cell, differential=differential)
    found = compute(trace)
    assert near(found.values["quantize"], cell)
    assert found.error > 0
    assert f"rounded to multiples of {cell:g}" in found.why_not("theta")


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_half_precision_is_no_quantizer(dtype: str, half: torch.dtype) -> None:
    """Its numbers are multiples of the smallest one, but large ones are rounded more."""
    trace, _, _ = run(1, dtype=dtype, z0=0.0)
    for table in trace.messages:
        table.payload.copy_(table.payload.to(half))
    found = compute(trace)
    assert found.values["quantize"] == 0
    assert "do not satisfy the equations" in found.why_not("theta")


@pytest.mark.parametrize("start", [0.0, 0.1])
@pytest.mark.parametrize("factor", [0.0, 2.0])
def test_a_false_penalty_does_not_show_a_scale(start: float, factor: float) -> None:
    """The program uses another penalty than its trace declares."""
    trace, _, _ = run(1, l2=0.05 * factor, z0=start)
    trace = replace(trace, task=replace(trace.task, args={**trace.task.args, "l2": 0.05}))
    found = compute(trace)
    said = {one.subject: one for one in found.evidence}["rho"]
    if not start:
        assert "contradict each other" in said.detail
        assert "rho" not in found.values
    elif factor:  # nothing else shows a scale
        assert "the declared penalty l2 = 0.05 shows the scale" in said.detail
        assert said.origin is Origin.DECLARED
        assert found.premise == "l2 = 0.05, as declared"
        assert "if l2 = 0.05, as declared, which alone shows their scale" in found.sentence
    else:
        assert found.scaled


def test_a_scale_that_one_value_shows_is_stated_on_its_condition() -> None:
    """Where two of them show it, one confirms the other."""
    trace, _, _ = run(1, l2=0.05, z0=0.0)
    both = compute(trace)
    origins = {one.subject: one.origin for one in both.evidence}
    assert (both.premise, origins["rho"], origins["alpha"]) == ("", *[Origin.VERIFIED] * 2)
    cases: tuple[tuple[dict[str, Any], frozenset[str], str], ...] = (
        ({"l2": 0.05, "z0": 0.0}, frozenset(), "l2 = 0.05, as declared"),
        ({"l2": 0.0, "z0": 0.0}, frozenset({"w0"}), "the initial model is the known one"),
        ({"l2": 0.0, "z0": 0.1}, frozenset({"rho"}), "rho = "),
        ({"l2": 0.0, "z0": 0.1}, frozenset({"alpha"}), "alpha = "),
    )
    for constants, knows, premise in cases:
        trace, _, _ = run(1, **constants)
        found = compute(trace, knows=knows)
        assert found.premise.startswith(premise)
        resting = {one.subject for one in found.evidence if one.origin is Origin.DECLARED}
        assert resting == {"rho", "alpha"} - knows
        assert f"if {found.premise}, which alone shows their scale" in found.sentence


def test_sums_over_classes_carry_no_gradient() -> None:
    trace, truth, plan = run(0)
    quiet = quiet_directions.of(Adversary().view(trace))
    x, y = truth.of(0)
    theta = plan.task.init(torch.Generator().manual_seed(1)).double()
    gradient = plan.task.gradient(theta, x.double(), y)[quiet.columns].numpy()
    assert np.abs(gradient).max() > 1e-3
    assert np.abs(quiet.block(gradient).sum(0)).max() < 1e-12
