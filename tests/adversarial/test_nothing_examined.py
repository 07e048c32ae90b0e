"""What was not examined is never reported as if it had been examined and nothing found."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="arg-type, index"

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from invoked import SWEEP

import leakaudit as la
from leakaudit.cli import main
from leakaudit.judging.gate.cells import GateCell
from leakaudit.judging.gate.config import Check
from leakaudit.judging.gate.rules import attacked
from leakaudit.reporting.findings.wording import refusal
from leakaudit.reporting.results.model import RuleStatus
from leakaudit.theory.relations import Residuals
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction

SPEC = la.TaskSpec("logistic", shape=(5,), classes=3)
RING = la.Graph(4, ((0, 1), (0, 3), (1, 2), (2, 3)))
MIX = "w[i] = sum(j in closed_neighbours: W[i,j] * h[j -> i])"
NOISE = "h[i -> neighbours] = w[i] + noise(sigma)"
# Files about programs that send models after a step, in none of which a gradient occurs.
SILENT = {
    "noise": f"{NOISE}\n{MIX}",
    "opaque": f"h[i -> neighbours] = opaque(w[i])\n{MIX}",
    "secret": "h[i -> neighbours] = secret()",
}
PLAIN = f"h[i -> neighbours] = w[i] - alpha * grad(w[i])\n{MIX}"
STEPS = 0.1  # standard deviation of what the program adds to its models in a round


def recorded(folder: Path, equations: str) -> str:
    """Record D-PSGD-like models that change in every round, under a protocol file."""
    constants = "[constants]\n"
    for name in ("alpha", "sigma"):
        if name in equations:
            constants += f"{name} = 0.1\n"
    matrices = '[matrices]\nW = "uniform"\n' if "W[" in equations else ""
    file = folder / "own.toml"
    file.write_text(
        f'name = "own"\nstart = """\nw[i] = w0\n"""\nround = """\n{equations}\n"""\n'
        f"{constants}{matrices}"
    )
    random = torch.Generator().manual_seed(5)
    w = torch.zeros(4, la.Task.build(SPEC).layout.size)
    path = folder / "own.pt"
    about = {"graph": RING, "rounds": 3, "public": {"w0": w[0]}}
    with la.Recorder(path, protocol=str(file), task=SPEC, **about) as recorder:
        for t in range(1, 4):
            h = w + STEPS * torch.randn(w.shape, generator=random)
            for i, near in enumerate(RING.neighbours):
                recorder.send(round=t, src=i, dst=near, kind="h", value=h[i])
            w = torch.stack([h[[i, *near]].mean(0) for i, near in enumerate(RING.neighbours)])
    return str(path)


@pytest.mark.parametrize("name", SILENT)
def test_a_file_without_gradients_concludes_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = recorded(tmp_path, SILENT[name])
    says = "the description contains no gradient of nodes 0 to 3, so nothing can be concluded"
    assert main(["explain", trace, "-q"]) == 3
    said = capsys.readouterr().out
    assert f"node 2: not understood: {says} about their data" in said
    assert f"INCONCLUSIVE: {says}" in said
    assert "computes no gradients" not in said
    out = str(tmp_path / "out")
    assert main(["attack", trace, "-q", "-o", out]) == 3
    said = capsys.readouterr().out
    assert said.startswith(f"INCONCLUSIVE: {says}")
    assert main(["report", out, "-f", "sarif"]) == 0
    run = json.loads(capsys.readouterr().out)["runs"][0]
    assert run["invocations"][0]["executionSuccessful"] is False
    assert main(["trace", "lint", trace, "-q", "--strict", "-f", "json"]) == 3
    (finding,) = json.loads(capsys.readouterr().out)
    assert (finding["code"], finding["verdict"]) == ("P21", "INCONCLUSIVE")
    assert finding["says"].startswith(says)


def test_a_lint_that_examined_nothing_is_not_strict_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a truth, the equations of D-PSGD without noise fit any messages."""
    trace = recorded(tmp_path, PLAIN)
    assert main(["trace", "lint", trace, "-q", "--strict"]) == 3
    assert "0 findings, nothing examined." in capsys.readouterr().out
    assert main(["trace", "lint", trace, "-q"]) == 0
    assert main(["explain", trace, "-q"]) == 0
    assert "of 3 gradients, " in capsys.readouterr().out


def test_a_bound_names_an_equation_that_the_lint_refutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = recorded(tmp_path, f"h[i -> neighbours] = w[i]\n{MIX}")
    assert main(["trace", "lint", trace, "-q", "--strict"]) == 1
    capsys.readouterr()
    assert main(["bound", trace, "-q"]) == 3
    assert "INCONCLUSIVE: wrong equation: " in capsys.readouterr().out


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An attack whose time was over before it began."""
    monkeypatch.chdir(tmp_path)
    data = ["--nodes", "3", "--rounds", "2", "--data", "gaussians", "--model", "logistic"]
    assert main(["record", "fedsgd", *data, "-o", "trace.pt", "-q"]) == 0
    assert main(["attack", "trace.pt", "--max-seconds", "0.00001", "-o", "out", "-q"]) == 3
    return tmp_path / "out"


def test_every_report_of_an_attack_that_tried_nothing_says_so(
    late: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {}
    for name in ("junit", "csv", "latex", "sarif", "github", "text", "markdown"):
        capsys.readouterr()
        assert main(["report", str(late), "-f", name]) == 0
        shown[name] = capsys.readouterr().out
    suites = ElementTree.fromstring(shown["junit"])
    assert (suites.get("tests"), suites.get("errors")) == ("1", "1")
    error = suites.find("testsuite/testcase/error")
    assert error is not None
    assert error.get("message") == "nothing was examined"
    assert "the time limit --max-seconds was reached" in (error.text or "")
    _, row = csv.reader(shown["csv"].splitlines())
    assert row[0].startswith("No rows: Nothing was examined.")
    assert "No rows: Nothing was examined." in shown["latex"]
    run = json.loads(shown["sarif"])["runs"][0]
    assert run["invocations"][0]["executionSuccessful"] is False
    assert shown["github"].startswith("::warning title=leakaudit::Nothing was examined.")
    for name in ("text", "markdown"):
        assert "Nothing was examined." in shown[name]
    assert main(["report", str(late), "--rescore", "--truth", "trace.truth.pt", "-q"]) == 3


def test_every_table_of_half_a_sweep_says_that_cells_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SWEEP)
    (tmp_path / "all").mkdir()
    assert main(["sweep", "s.toml", "-o", "part", "--shard", "1/2", "-q"]) in (0, 3)
    assert main(["sweep", "merge", "part", "-o", "all", "-q"]) == 3
    for name in ("csv", "latex", "text", "markdown"):
        capsys.readouterr()
        assert main(["report", "all", "-f", name]) == 0
        assert "missing (the sweep is incomplete)" in capsys.readouterr().out


def test_a_cell_of_a_sweep_in_which_nothing_was_examined_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the protocol `single`, no messages are sent; the cells of the other protocol pass."""
    monkeypatch.chdir(tmp_path)
    plan = '[scenario]\nnodes = 3\nrounds = 2\ndata = "gaussians"\nmodel = "logistic"\n'
    (tmp_path / "s.toml").write_text(
        f'{plan}[sweep]\nattacks = ["auto"]\n[sweep.over]\nvictim = ["dpsgd", "single"]\n'
    )
    assert main(["sweep", "s.toml", "-o", "out", "--workers", "0"]) == 3
    assert "nothing was examined: the adversary observes no message" in capsys.readouterr().err
    cells = json.loads((tmp_path / "out/results.json").read_text())["sweep"]["cells"]
    assert {cell["at"]["victim"]: cell["status"] for cell in cells} == {
        "dpsgd": "done",
        "single": "failed",
    }


def test_an_explanation_of_no_node_is_inconclusive(
    late: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "trace.pt", "--as", "nodes:0,1,2,3", "-q"]) == 3
    assert "INCONCLUSIVE: nothing was examined: the adversary controls" in capsys.readouterr().out
    assert main(["explain", "trace.pt", "-q"]) == 0


WALK = ["recal", "--graph", "ring", "--nodes", "6"]


@pytest.mark.parametrize(
    ("protocol", "options", "why"),
    [
        (["single", "--nodes", "3"], [], "the adversary observes no message"),
        (["fedsgd", "--nodes", "3"], ["--as", "edges:0-3", "--node", "3"], "none of the nodes"),
        (["fedsgd", "--nodes", "3"], ["--as", "nodes:0,1,2"], "the adversary controls all nodes"),
        (WALK, ["--node", "{idle}"], "none of the nodes computes a gradient"),
        (WALK, ["--as", "edges:{unused}"], "the adversary observes no message"),
    ],
    ids=["silent victim", "server", "all nodes", "idle node", "idle edge"],
)
def test_an_attack_that_examined_nothing_does_not_pass(
    protocol: list[str],
    options: list[str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ["--rounds", "2", "--data", "gaussians", "--model", "logistic"]
    assert main(["record", *protocol, *data, "-o", "trace.pt", "-q"]) == 0
    trace = la.load("trace.pt")
    heard = la.Adversary().view(trace).channels
    free = sorted(set(trace.graph.arcs) - {(src, dst) for src, dst, _ in heard})
    silent = sorted(set(range(trace.graph.nodes)) - {src for src, _, _ in heard})
    src, dst = next(iter(free), (0, 0))
    idle = next(iter(silent), 0)
    options = [one.format(idle=idle, unused=f"{src}-{dst}") for one in options]
    for verb in (["explain", "trace.pt"], ["attack", "trace.pt", "-o", "out"]):
        capsys.readouterr()
        assert main([*verb, *options, "-q"]) == 3, verb
        assert f"INCONCLUSIVE: nothing was examined: {why}" in capsys.readouterr().out
    assert main(["report", "out", "-f", "junit"]) == 0
    assert 'message="nothing was examined"' in capsys.readouterr().out


@pytest.mark.parametrize(("checked", "code"), [(0, 3), (4, 0)])
def test_relations_of_which_none_was_checked_are_not_verified(
    checked: int, code: int, late: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Residuals(worst=0.0, checked=checked, skipped=4)
    monkeypatch.setattr("leakaudit.protocols.declared.check", lambda *_, **__: found)
    assert main(["trace", "verify", "trace.pt", "--relations", "-q"]) == code


def test_an_attack_that_was_not_tried_refused_nothing() -> None:
    assert refusal(0, 0) == "not run"
    assert (refusal(2, 0), refusal(2, 1)) == ("none", "1 of 2")


def test_a_gate_says_which_nodes_were_not_attacked() -> None:
    check = Check("ring", "m:f", adversaries=("node:1",), undetermined=("node:1",))
    for known, status, says in (
        (set(), RuleStatus.UNTESTED, "nodes 0, 2 not attacked: why"),
        ({2}, RuleStatus.VOID, "it is not known what leaked: node 2 not attacked: because"),
    ):
        reasons = {0: "why", 2: "because"}
        some = {"reasons": reasons, "not_understood": known, "tried": 3}
        (rule,) = attacked([GateCell(check, "node:1", "analytic", [0], **some)])
        assert (rule.status, rule.says) == (status, says)
    assert not attacked([GateCell(check, "node:1", "analytic", [0], tried=4)])


def test_a_sweep_counts_nothing_of_a_cell_that_is_not_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deduce = hearing.deduce

    def unclear(heard: Deduction, nodes: Sequence[int], *rest: Any, **named: Any) -> la.Leaks:
        leaks = deduce(heard, nodes[1:], *rest, **named)
        reasons = {nodes[0]: "its messages are not understood"}
        return replace(leaks, undetermined=reasons, not_understood=frozenset(reasons))

    plan = tmp_path / "plan.toml"
    plan.write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hearing, "deduce", unclear)
    assert main(["sweep", str(plan), "--workers", "0", "-q", "-f", "json"]) == 3
    cells = json.loads(capsys.readouterr().out)["sweep"]["cells"]
    assert {cell["status"] for cell in cells} == {"failed"}
    assert all("its messages are not understood" in cell["says"] for cell in cells)


def test_a_gate_does_not_excuse_what_is_not_understood() -> None:
    who = ("node:1",)
    check = Check("ring", "m:f", adversaries=who, undetermined=who)
    for known, status in ((set(), RuleStatus.UNTESTED), ({0}, RuleStatus.VOID)):
        cell = GateCell(check, "node:1", "analytic", [0], reasons={0: "why"}, not_understood=known)
        (rule,) = attacked([cell])
        assert rule.status is status
