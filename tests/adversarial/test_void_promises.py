"""Whoever records a run is told if its data void what a claim or a bound assumes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core.evidence import Origin
from leakaudit.core.verdict import Holds
from leakaudit.protocols import premises
from leakaudit.protocols.recording import contradictions, plan, public, record
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Task
from leakaudit.traces.recorder import Recorder

BASE: dict[str, Any] = {"nodes": 3, "graph": "ring", "rounds": 3, "model": "logistic"}


def recorded(victim: str, states: bool = False, samples: int = 1, **constants: Any) -> Recorder:
    """Record a victim with these constants."""
    data = "gaussians" if victim == "mradmm" else "faces"  # its updates need a small model
    scenario = Scenario(
        victim=victim, data=data, samples=samples, states=states, set=constants, **BASE
    )
    return record(plan(scenario), None)


def told(recorder: Recorder) -> dict[str, str]:
    """Return what the public trace says is contradicted, by subject."""
    said = recorder.trace.provenance.get(premises.KEY, {})
    assert isinstance(said, dict)
    assert all(origin == Origin.CONTRADICTED.name for origin, _, _ in said.values())
    return {subject: detail for subject, (_, detail, _) in said.items()}


VOID: list[tuple[str, dict[str, Any], set[str]]] = [
    ("dpnorm", {"epsilon": 1.0, "records": 2}, {"lipschitz", "sensitivity"}),
    ("dpadmm", {"sigma": 1.0, "records": 2}, {"lipschitz", "sensitivity"}),
    ("dpadmmserver", {"sigma": 1.0, "records": 2}, {"lipschitz"}),
    ("dpsgd", {"epsilon": 1.0, "horizon": 3, "noise": "step"}, {"lipschitz", "sensitivity"}),
    ("recal", {"sigma": 1.0}, {"sensitivity"}),
    ("dkm", {"mechanism": "gaussian"}, {"sensitivity"}),
    ("dkm", {"mechanism": "truncated_laplace"}, {"sensitivity"}),
    ("mradmm", {"rate": 1.0, "records": 2, "l2": 0.1}, {"lipschitz"}),
    ("pvpadmm", {"perturb": "dual", "update": "gradient", "records": 2}, {"lipschitz"}),
    ("dpadmm", {"sigma": 1.0, "lipschitz": 1e6, "records": 5}, {"records"}),
]
KEPT: list[tuple[str, dict[str, Any]]] = [
    ("dpnorm", {"epsilon": 1.0, "lipschitz": 1e6, "records": 2}),
    ("dpadmm", {"sigma": 1.0, "lipschitz": 1e6, "records": 1}),
    ("dpsgd", {"epsilon": 1.0, "horizon": 3, "noise": "step", "clip": 1.0}),
    ("dpsgd", {"sigma": 1.0, "clip": 5.0}),
    ("recal", {"sigma": 1.0, "sensitivity": 1e6}),
    ("muffliato", {}),
    ("dpsgd", {}),
    ("gossip", {"sigma": 1.0}),
    ("pdmm", {}),
]


@pytest.mark.parametrize(("victim", "constants", "subjects"), VOID)
def test_a_promise_that_the_data_void(
    victim: str, constants: dict[str, Any], subjects: set[str]
) -> None:
    """The trace names the assumption that its data do not keep."""
    assert subjects <= told(recorded(victim, samples=2, **constants)).keys()


@pytest.mark.parametrize(("victim", "constants"), KEPT)
def test_a_promise_that_the_data_keep(victim: str, constants: dict[str, Any]) -> None:
    """Nothing is said about assumptions that hold, or that a clip enforces."""
    assert told(recorded(victim, samples=2, **constants)) == {}


def test_the_figures_are_those_of_the_run() -> None:
    """Norms and changes are recomputed from the states and the data, record by record."""
    kept = recorded("dpnorm", True, 4, epsilon=50.0, records=4)
    truth, trace = kept.truth_record, kept.trace
    task = Task.build(trace.task)
    norm = moved = 0.0
    for t in range(trace.rounds):  # round t + 1 begins at the models of round t
        for node in range(3):
            w = truth.states["w"][t, node].double()
            own = torch.stack(
                [
                    task.gradient(w, x[None], y[None])
                    for x, y in zip(
                        truth.x[truth.node == node].double(),
                        truth.y[truth.node == node],
                        strict=True,
                    )
                ]
            )
            every = torch.stack(
                [
                    task.gradient(w, x[None], y[None])
                    for x, y in zip(truth.x.double(), truth.y, strict=True)
                ]
            )
            norm = max(norm, float(own.norm(dim=1).max()))
            moved = max(moved, float(torch.cdist(own, every).max()) / 4)
    of_norm, of_change = premises.sentences(truth)
    assert f"norm up to {norm:.4g} " in of_norm
    assert f"gradient by up to {moved:.4g} " in of_change


def test_the_public_figures_are_coarse() -> None:
    """The trace has one significant digit, the truth has four."""
    kept = recorded("dpnorm", samples=2, epsilon=50.0, records=2)
    (private, _) = premises.sentences(kept.truth_record)
    exact = float(private.split("norm up to ")[1].split()[0])
    assert f"norm up to about {float(f'{exact:.1g}'):g} " in told(kept)["lipschitz"]
    assert f"{exact:.4g}" not in str(kept.trace.provenance)


def test_the_run_is_the_same_with_and_without_the_measurement() -> None:
    """Measuring draws no number of the run."""
    scenario = Scenario(victim="recal", set={"sigma": 1.0}, **BASE)
    first = plan(scenario)
    known = public(first)
    state = first.random["run"].get_state()
    assert contradictions(first, known)
    assert torch.equal(first.random["run"].get_state(), state)


def test_much_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement that stops early says so."""
    monkeypatch.setattr(premises, "MODELS", 4)
    kept = recorded("dpnorm", samples=2, epsilon=50.0, records=2)
    assert "(sampled: at " in told(kept)["lipschitz"]


def test_the_l2_term_is_no_data(tmp_path: Path) -> None:
    """The gradient of the regulariser moves with no record."""
    claimed = {"epsilon": 1.0, "horizon": 3, "noise": "step"}
    scenario = Scenario(victim="dpsgd", samples=2, set={**claimed, "l2": 0.5}, **BASE)
    ready = plan(scenario)
    found = contradictions(ready, public(ready))
    plain = plan(replace(scenario, set=claimed, rounds=1))
    same = contradictions(plain, public(plain))
    first = contradictions(plan(replace(scenario, rounds=1)), public(plan(scenario)))
    assert found
    assert first[0].found == pytest.approx(same[0].found, rel=1e-4)


def test_record_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says it in one line for each assumption, with every engine."""
    common = ["--nodes", "3", "--graph", "ring", "--rounds", "2", "--model", "logistic"]
    void = ["record", "dpnorm", *common, "--set", "epsilon=1", "--set", "records=1"]
    for engine in ("inline", "threads"):
        path = tmp_path / f"{engine}.pt"
        assert main([*void, "-o", str(path), "--engine", engine]) == 0
        lines = capsys.readouterr().err.splitlines()
        assert sum(line.startswith("warning: the claim assumes lipschitz = 1") for line in lines)
        evidence = la.load(path).provenance["evidence"]
        assert isinstance(evidence, dict)
        assert "lipschitz" in evidence


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_asking_for_what_is_contradicted_takes_nothing_back(factor: float) -> None:
    """A sensitivity up to what the data reach is contradicted, whoever names it."""
    trace = recorded("recal", sigma=1.0).trace
    said = trace.provenance[premises.KEY]
    assert isinstance(said, dict)
    (_, _, least) = said["sensitivity"]
    assert least > 1
    for asked, holds in ((factor * least, Holds.DECLARED), (1.01 * least, Holds.EXACT)):
        bound = la.bound(
            trace, "eavesdropper", sensitivity=asked, options=la.BoundOptions(smoothness=1.0)
        )[0]
        assert bound.holds is holds
        assert bound.node_holds is (Holds.DECLARED if holds is Holds.DECLARED else Holds.AT_MOST)


def test_no_noise_is_advised_for_inputs_that_do_not_hold() -> None:
    trace = recorded("dpnorm", epsilon=1.0).trace
    for one in la.bound(trace, "eavesdropper", options=la.BoundOptions(smoothness=1.0)):
        assert one.holds is Holds.DECLARED
        assert one.calibration is None


@pytest.mark.parametrize("found", [0.951, 1.0, 1.49, 1.51, 9.4, 9.6, 19.35, 2265.0])
def test_the_public_figure_is_no_larger_than_the_private_one(found: float) -> None:
    one = premises.Contradiction(premises._Premise("sensitivity", 0.95, "the claim"), found)
    assert 0.95 <= one.least <= found
    assert one.least >= 0.5 * found
