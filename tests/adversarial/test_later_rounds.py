"""Messages that differ from the declared ones only late in a run, or only in a single column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core.trace import Trace
from leakaudit.core.verdict import Verdict
from leakaudit.judging.gate.config import Check
from leakaudit.judging.gate.fidelity import Fidelity
from leakaudit.judging.gate.runs import SeedResults
from leakaudit.judging.lint.checks import Lint, lint
from leakaudit.protocols import recording
from leakaudit.protocols.declared import protocol_of
from leakaudit.reporting.findings.redaction import redact
from leakaudit.reporting.results import record_file
from leakaudit.reporting.results.model import RuleStatus
from leakaudit.traces import trace_file
from leakaudit.views.conformance import conformance, equations, reach
from leakaudit.views.messages import LONG

ROUNDS = 12
SMALL = la.Scenario("pdmm", nodes=4, graph="ring", rounds=ROUNDS, data="gaussians", samples=2)
# More columns than a sample has.
WIDE = replace(SMALL, rounds=3, data="faces", model="mlp", set={"hidden": 16})


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str


Call = Callable[..., Ended]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command, and return its exit code and its output without line breaks."""

    def run(*arguments: object) -> Ended:
        code = main([str(one) for one in arguments])
        return Ended(code, " ".join(capsys.readouterr().out.split()))

    return run


def changed(trace: Trace, change: Callable[[Tensor, Generator], None], first: int) -> Trace:
    """Return a recording in which the messages of node 0 differ from some round on."""
    (table,) = trace.messages
    payload = table.payload.clone()
    generator = Generator().manual_seed(0)
    for row in table.row[(table.round >= first) & (table.src == 0)].unique().tolist():
        change(payload[row], generator)
    return replace(trace, messages=(replace(table, payload=payload),))


def noise(message: Tensor, generator: Generator) -> None:
    """Replace a message by noise."""
    message.normal_(generator=generator)


def tampered(path: Path, first: int) -> Path:
    """Replace the messages of node 0 in a file by noise from some round on."""
    payload = changed(trace_file.load(path), noise, first).messages[0].payload
    tree = torch.load(path, weights_only=True)
    tree["messages"]["payload"] = payload
    torch.save(tree, path)
    path.with_name(f"{path.name}.sha256").unlink()
    return path


@pytest.mark.parametrize("first", [3, 9, ROUNDS])
def test_messages_that_become_noise_are_found(first: int) -> None:
    """Both messages of a node contain its model, so they disagree, whatever the gradients are."""
    trace, truth = la.record(SMALL)
    assert not conformance.examine(trace, truth).deviations
    wrong = changed(trace, noise, first)
    for known in (None, truth):
        (found,) = conformance.examine(wrong, known).deviations
        assert found.about == "messages"
        assert f"does not hold in round {first}:" in found.says
        assert "P22" in [one.code for one in lint(wrong, known)]


@pytest.mark.parametrize(("lost", "about"), [(True, "missing"), (False, "rounds")])
def test_messages_that_are_lost_late_refute_nothing(lost: bool, about: str) -> None:
    """Rounds beyond the declared ones are compared with the last of these."""
    trace, _ = la.record(replace(SMALL, rounds=LONG + 6))
    (table,) = trace.messages
    late = int((table.round == LONG + 3).nonzero()[0])
    dst = table.dst.clone()
    dst[late] = (table.src[late] + 2) % 4  # the node opposite on the ring
    wrong = replace(table, dst=dst)
    if lost:
        keep = torch.arange(len(table.round)) != late
        names = ("round", "src", "dst", "kind", "row", "secure")
        wrong = replace(table, **{name: getattr(table, name)[keep] for name in names})
    found = [one for one in lint(replace(trace, messages=(wrong,))) if one.number == 22]
    assert about in {name for one in found for name in one.figures["about"]}  # type: ignore[union-attr]
    refuted = {one.verdict is Verdict.REFUTED for one in found}
    assert refuted == ({False} if lost else {False, True})


def test_gradients_that_are_wrong_late_are_found() -> None:
    """No relation connects the messages of D-PSGD, so only the truth shows the difference."""
    trace, truth = la.record(replace(SMALL, victim="dpsgd"))
    assert not conformance.examine(trace, truth).deviations
    wrong = changed(trace, noise, ROUNDS)
    assert not conformance.examine(wrong).deviations
    (found,) = conformance.examine(wrong, truth).deviations
    assert found.about == "gradients"


def test_an_attack_says_that_late_messages_are_inconsistent(tmp_path: Path, call: Call) -> None:
    la.record(SMALL, tmp_path / "t.pt")
    path = tampered(tmp_path / "t.pt", 9)
    ended = call("attack", path, "-o", tmp_path / "a", "-q")
    assert ended.code == 3
    assert "messages are inconsistent" in ended.out
    ended = call("explain", path, "-q")
    assert ended.code == 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layers", ["all", "first,last"])
@pytest.mark.parametrize("share", [0.01, 1.0])
def test_a_single_column_is_found(dtype: str, layers: str, share: float) -> None:
    trace, _ = la.record(replace(WIDE, dtype=dtype, layers=layers))
    width = sum(stop - start for start, stop in trace.spans)
    assert width > equations.WIDTH
    assert not conformance.examine(trace).deviations
    sample = torch.linspace(0, width - 1, equations.WIDTH).round().long().tolist()
    column = min(set(range(width // 2, width)) - set(sample))

    (table,) = trace.messages
    numbers = table.payload if table.stored is None else table.stored
    numbers = numbers.clone()
    row = int(table.row[(table.round == 2) & (table.src == 0)][0])
    numbers[row, column] += share * float(numbers[row].norm())
    table = replace(table, payload=numbers[:, : table.payload.shape[1]])
    if table.stored is not None:
        table = replace(table, stored=numbers)
    (found,) = conformance.examine(replace(trace, messages=(table,))).deviations
    assert found.about == "columns"
    assert found.sentence.startswith("messages are inconsistent in some columns: ")


@pytest.mark.parametrize("victim", ["pdmm", "fedavg", "tracking", "recal", "dpnorm"])
def test_honest_recordings_raise_no_alarm(victim: str) -> None:
    for base in (replace(SMALL, rounds=30), replace(WIDE, rounds=10, states=True)):
        constants: dict[str, Any] = {} if base.model == "logistic" else {"hidden": 16}
        trace, truth = la.record(replace(base, victim=victim, set=constants))
        for known in (None, truth):
            found = conformance.examine(trace, known)
            assert not found.deviations
            assert not found.rest.sentences


def test_rounds_beyond_the_budget_are_stated(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.pt"
    trace, truth = la.record(SMALL, path)
    ended = call("attack", path, "-o", tmp_path / "whole", "-q")
    assert "too many for this check" not in ended.out
    assert not any("too many" in one for one in Lint(trace, truth).unexamined)

    monkeypatch.setattr(reach, "VECTORS", 1)
    said = "relations between messages after round 8 were not tested: too many for this check"
    ended = call("attack", path, "-o", tmp_path / "part", "-q")
    assert said in ended.out
    record: Any = record_file.read(tmp_path / "part" / "results.json")
    assert said in record["unverified"]
    assert redact(record)["unverified"] == record["unverified"]
    assert said in (tmp_path / "part" / "report.md").read_text()
    assert said in call("explain", path, "-q").out
    listed = "Not examined: relations between messages after round 8: too many for this check."
    assert listed in " ".join(call("trace", "lint", path, "-q").out.split())


def test_gradients_beyond_the_budget_are_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, truth = la.record(replace(SMALL, victim="dpsgd"))
    vectors = len(reach.relations(trace).vectors)
    monkeypatch.setattr(conformance, "NUMBERS", 3 * vectors * trace.layout.size // 2)
    found = conformance.examine(trace, truth)
    assert found.compared
    said = "gradients in messages after round 6 were not compared with the truth"
    assert found.rest.sentences == [f"{said}: too many for this check"]
    assert found.rest.subjects[0] in Lint(trace, truth).unexamined
    assert not conformance.examine(trace).rest.sentences
    # What lies within the budget is still compared.
    (wrong,) = conformance.examine(changed(trace, noise, 6), truth).deviations
    assert wrong.about == "gradients"


@pytest.mark.parametrize("victim", ["pdmm", "dpsgd", "tracking", "fedavg", "dpnorm"])
def test_copied_relations_are_those_that_are_declared(victim: str) -> None:
    trace, _ = la.record(replace(SMALL, victim=victim))
    copied = reach.relations(trace)
    declared = protocol_of(trace).whole
    assert copied.round == declared.round == ROUNDS
    shapes = []
    for one in (copied, declared):
        rows = [{one.vectors[k]: c for k, c in r.terms.items()} for r in one.relations]
        shapes.append({frozenset(row.items()) for row in rows})
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("rounds", [64, 70])
def test_a_gate_states_which_rounds_it_compared(rounds: int) -> None:
    plan = recording.plan(replace(SMALL, rounds=rounds))
    made = recording.record(plan, None)
    fidelity = Fidelity(Check("c", scenario={"protocol": "pdmm"}))
    fidelity.look(SeedResults(0, made.trace, made.truth_record, plan.task))
    (rule,) = fidelity.rules()
    assert rule.status is RuleStatus.OK
    assert ("after round 64 were not compared" in rule.says) == (rounds > 64)
