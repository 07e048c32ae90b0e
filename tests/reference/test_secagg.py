"""Secure aggregation: single gradients stay hidden, their sum gives all images away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lookalikes
import pytest
import torch
from torch import Generator

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import Trace, Truth
from leakaudit.inversion.attacking import attack_one
from leakaudit.protocols import recording
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.scenario import Scenario
from leakaudit.reporting.results import model, record_file
from leakaudit.runs.pipeline import attack_run
from leakaudit.runs.pipeline.attack_options import AttackOptions
from leakaudit.runs.pipeline.checkpoint import Checkpoint
from leakaudit.scoring.scoring import score
from leakaudit.tasks.task import Task
from leakaudit.traces import trace_file
from leakaudit.views.accounting.view_bound import view_bounds
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction

ALL = tuple(range(4))
# All families in both number formats, of which two run with every change.
QUICK = {("the same twice", "float32"), ("the same twice", "float64")}
FAMILIES = [
    pytest.param(family, dtype, marks=[] if (family, dtype) in QUICK else pytest.mark.slow)
    for family in lookalikes.FAMILIES
    for dtype in ("float32", "float64")
]


def scenario(samples: int = 2, rounds: int = 10, **constants: Any) -> Scenario:
    """Four peers with faces; constants are those of the protocol or the model, or the format."""
    return Scenario(
        victim="secagg",
        nodes=4,
        graph="complete",
        rounds=rounds,
        data="faces",
        samples=samples,
        model="mlp",
        dtype=constants.pop("dtype", "float32"),
        set={"hidden": 128, **constants},
    )


def recorded(case: Scenario) -> tuple[Trace, Truth]:
    recorder = recording.record(recording.plan(case), None)
    return recorder.trace, recorder.truth_record


def adversary(who: str) -> la.Adversary:
    return la.Adversary.parse(who)


def protocol(**constants: Any) -> Protocol:
    return recording.plan(scenario(rounds=5, **constants)).declared


@pytest.mark.parametrize(
    ("who", "nodes"),
    [
        ("eavesdropper", (0, 1, 2, 3)),
        ("node:1", (0, 2, 3)),
        ("node:1+node:2", (0, 3)),
        ("node:1+node:2+node:3", (0,)),
    ],
)
def test_an_adversary_learns_the_mean_gradient_of_the_others(
    who: str, nodes: tuple[int, ...]
) -> None:
    """It equals the gradient of one batch, computed by automatic differentiation in float64."""
    trace, truth = recorded(scenario(dtype="float64", rounds=3))
    (leak,) = la.leaks(trace, adversary(who))
    assert leak.nodes == nodes
    assert leak.batch == leak.records == 2 * len(nodes)
    assert leak.theta is not None
    task = Task.build(trace.task, dtype=torch.float64)
    x, y = truth.of(*nodes)
    for theta, value, std in zip(leak.theta, leak.value, leak.std, strict=True):
        error = value - task.gradient(theta, x.double(), y)
        assert float(error.abs().max()) < 10 * float(std)
        assert float(std) < 1e-9 * float(value.norm())


def test_small_masks_do_not_hide_single_gradients() -> None:
    """They are noise, and the clearer of both kinds of gradients is attacked."""
    trace, _ = recorded(scenario(rounds=3, sigma=0.1, clip=1.0, mask=1e-4))
    assert [leak.nodes for leak in la.leaks(trace)] == [(0,), (1,), (2,), (3,)]
    trace, _ = recorded(scenario(rounds=3, sigma=0.1, clip=1.0))
    (leak,) = la.leaks(trace)
    assert leak.nodes == ALL
    assert leak.std.tolist() == pytest.approx([0.05] * 3)  # 0.1 / sqrt(4)


@pytest.mark.parametrize("mask", [1e-8, 1e-4, 1.0])
@pytest.mark.parametrize("lr", [0.1, 0.001])
def test_the_stated_noise_holds_for_small_masks(mask: float, lr: float) -> None:
    """The rounding of models is larger than that of small masks."""
    trace, truth = recorded(scenario(rounds=3, mask=mask, lr=lr))
    (leak,) = la.leaks(trace)
    task = Task.build(trace.task, dtype=torch.float64)
    assert leak.theta is not None
    x, y = truth.of(*leak.nodes)
    for theta, value, std in zip(leak.theta, leak.value, leak.std, strict=True):
        error = value - task.gradient(theta, x.double(), y)
        assert float(error.square().mean().sqrt()) < 2 * float(std)


def test_a_sum_that_contains_more_noise_is_not_mentioned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a single wire, only one of the masks cancels."""
    recording.record(recording.plan(replace(scenario(), wires="0-1")), tmp_path / "t.pt")
    assert main(["explain", str(tmp_path / "t.pt")]) == 0
    assert "the sum with" not in capsys.readouterr().out


@pytest.mark.parametrize(("who", "honest"), [("eavesdropper", 4), ("node:1", 3)])
def test_mu_counts_the_noise_of_all_honest_peers(who: str, honest: int) -> None:
    """Of the sum over n peers, the noise is sqrt(n) sigma, and finite masks add a little."""
    constants = {"sigma": 0.1, "clip": 1.0, "mask": 1e3}
    (found,) = view_bounds(protocol(**constants), adversary(who), [0], 2.0)
    assert found.mu == pytest.approx(2.0 * 5**0.5 / (0.1 * honest**0.5), rel=1e-3)
    (weak,) = view_bounds(protocol(**{**constants, "mask": 0.01}), adversary(who), [0], 2.0)
    assert weak.mu is not None
    assert found.mu is not None
    assert weak.mu > 1.2 * found.mu


@pytest.mark.parametrize("mask", [0.05, 1.0, 1e4])
@pytest.mark.parametrize("who", ["eavesdropper", "node:1", "node:1+node:3"])
def test_mu_counts_the_peers_of_each_round(mask: float, who: str) -> None:
    """The noise of k honest peers' y / lr has covariance sigma^2 I + m^2 (k I - J), m = mask / lr.

    So a change of node i's gradient by S costs mu^2 = S^2 ((1/k) / sigma^2 + (1 - 1/k) / (sigma^2
    + k m^2)) in each of its rounds; different subsets hide nothing from round to round.
    """
    case = scenario(rounds=9, sigma=0.1, clip=1.0, mask=mask, fraction=0.8, l2=0.0)
    made = recording.plan(replace(case, nodes=5)).declared
    corrupted = adversary(who).corrupt
    honest = [i for i in range(5) if i not in corrupted]
    found = {bound.node: bound.mu for bound in view_bounds(made, adversary(who), honest, 2.0)}
    for node in honest:
        squares = 0.0
        for peers in made.public["active"].tolist():
            k = len(set(peers) - set(corrupted))
            if node in peers:
                squares += 4.0 * (1 / k) / 0.01 + 4.0 * (1 - 1 / k) / (0.01 + k * (10 * mask) ** 2)
        assert found[node] == pytest.approx(squares**0.5, rel=1e-9)


def test_a_pair_hides_nothing_from_its_members() -> None:
    """Of two peers of a round, each knows the gradient of the other, and all others their sum."""
    case = replace(scenario(rounds=12, fraction=0.5, dtype="float64", l2=0.0), states=True)
    trace, truth = recorded(case)
    active = trace.public["active"]
    task = Task.build(trace.task, dtype=torch.float64)
    partners = {
        int(i): (active == i).any(1) & (active == 1).any(1) for i in active.unique() if i != 1
    }
    found = {leak.nodes: leak for leak in la.leaks(trace, adversary("node:1"))}
    for node, together in partners.items():
        if not together.any():
            continue
        leak = found[node,]
        clear = leak.std < 1e-9  # in other rounds, masks of unknown pairs hide it
        row, column = leak.combination[clear].nonzero().T
        assert row.tolist() == list(range(len(row)))
        assert leak.rounds[column].tolist() == (1 + together.nonzero().flatten()).tolist()
        x, y = truth.of(node)
        assert leak.theta is not None
        for theta, value in zip(leak.theta[column], leak.value[clear], strict=True):
            torch.testing.assert_close(
                value, task.gradient(theta, x.double(), y), rtol=1e-9, atol=1e-9
            )


def test_a_sum_over_one_of_several_groups_says_that_others_are_left_out() -> None:
    """A leak names one group of peers; in each of its rounds, these took part and no others."""
    trace, _ = recorded(scenario(rounds=12, fraction=0.5))
    active = [tuple(row) for row in trace.public["active"].tolist()]
    leaks = la.leaks(trace)
    assert leaks
    for leak in leaks:
        rounds = [t for t, peers in enumerate(active, 1) if peers == leak.nodes]
        assert leak.rounds.tolist() == rounds
        mine = {peers for peers in active if leak.node in peers}
        assert len(rounds) == max(active.count(peers) for peers in mine)
        assert f"its sums with {len(mine) - 1} other group" in leak.scope


def test_sums_over_changing_peers_isolate_peers_while_the_model_stands_still() -> None:
    """With 0/1 rows of who takes part, of full rank: g = pinv(rows) (sums), up to lr L |w change|.

    This is the leakage over several rounds of So et al. 2023.
    """
    case = scenario(rounds=12, fraction=0.5, dtype="float64", lr=1e-7, l2=0.0)
    trace, truth = recorded(case)
    task = Task.build(trace.task, dtype=torch.float64)
    active = trace.public["active"]
    rows = torch.zeros(12, 4, dtype=torch.float64).scatter_(1, active, 1.0)
    assert int(torch.linalg.matrix_rank(rows)) == 4
    shown = {leak.nodes: leak for leak in la.leaks(trace)}
    for peers, leak in shown.items():  # a round alone shows a sum over its peers
        assert set(peers) in [set(row) for row in active.tolist()]
        assert leak.batch == 4
    single = torch.linalg.pinv(rows) @ torch.stack(_sums_of(trace, lr=1e-7))
    for node in range(4):
        x, y = truth.of(node)
        wanted = task.gradient(trace.public["w0"].double(), x.double(), y)
        assert float((single[node] - wanted).norm()) < 1e-5 * float(wanted.norm())


def _sums_of(trace: Trace, lr: float) -> list[torch.Tensor]:
    """Return sum_{i in S_t} g_i = |S_t| (w^{t-1} - w^t) / lr of every round, from what is sent."""
    w = trace.public["w0"].double()
    found = []
    for t, peers in enumerate(trace.public["active"].tolist(), 1):
        y = {}
        for m in trace.messages:
            for k in (m.round == t).nonzero().flatten().tolist():
                if m.kinds[int(m.kind[k])] == "y":
                    y[int(m.src[k])] = m.payload[m.row[k]].double()
        assert sorted(y) == peers
        mean = torch.stack(list(y.values())).mean(0)
        found.append(len(peers) * (w - mean) / lr)
        w = mean
    return found


def test_a_client_of_fedavg_learns_the_sum_of_the_other_clients() -> None:
    """The server's next model minus what the client sent itself."""
    case = Scenario(victim="fedavg", nodes=4, graph="star", rounds=3, data="faces", samples=2)
    trace, _ = recorded(case)
    (leak,) = la.leaks(trace, adversary("node:0"))
    assert leak.nodes == (1, 2, 3)
    assert leak.batch == 6


def test_explain_names_the_sum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = Scenario(victim="fedavg", nodes=4, graph="star", rounds=3, data="faces", samples=2)
    for kept, who, said in (
        (
            scenario(),
            "eavesdropper",
            "the sum with those of nodes 1 to 3 is determined with noise of",
        ),
        (case, "node:0", "are not observed; the sum with those of nodes 2, 3 is determined"),
    ):
        recording.record(recording.plan(kept), tmp_path / f"{kept.victim}.pt")
        assert main(["explain", str(tmp_path / f"{kept.victim}.pt"), "--as", who]) == 0
        assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("constants", "rounds"),
    [
        ({}, 10),
        ({"local_steps": 2, "batch": 1}, 10),
        ({"mask": 100.0, "dtype": "float64"}, 10),
        pytest.param({"samples": 8, "hidden": 512}, 40, marks=pytest.mark.slow),
        pytest.param({"samples": 8, "hidden": 512, "dtype": "float64"}, 40, marks=pytest.mark.slow),
    ],
)
def test_all_images_come_back_from_the_sum(constants: dict[str, Any], rounds: int) -> None:
    samples = constants.pop("samples", 2)
    trace, truth = recorded(scenario(samples, rounds, **constants))
    (found,) = la.attack(la.leaks(trace), "exact", generator=Generator().manual_seed(0))
    assert found.certificate is Certificate.EXACT
    assert found.nodes == ALL
    (scored,) = score(found, truth)
    assert scored.exact == (True,) * (4 * samples)
    if found.y is not None:  # several local steps hide them
        assert scored.label_correct == (True,) * (4 * samples)
    assert (found.y is None) == ("local_steps" in constants)
    assert lookalikes.claimed(found, truth.x, "").false == 0


def test_scores_of_one_node_are_those_of_its_records() -> None:
    """The gate judges single nodes: each has its own records of the sum."""
    trace, truth = recorded(scenario())
    (leak,) = la.leaks(trace)
    found = attack_one(leak, Task.build(trace.task), "exact", Generator().manual_seed(0))
    x = truth.of(2)[0]
    partly = replace(found, x=torch.cat([x, torch.rand(6, *x.shape[1:])]), y=None, certified=0)
    (together,) = score(partly, truth)
    assert sum(map(bool, together.exact or ())) == 2
    for node in ALL:
        (own,) = score(replace(partly, node=node, others=()), truth)
        (mine,) = score(_of(partly, node), truth, own=True)
        assert len(mine.matched) == len(own.matched) == 2
        assert mine.exact == ((True, True) if node == 2 else (False, False))
        assert mine.surplus == 0


def _of(found: Reconstruction, node: int) -> Reconstruction:
    return replace(found, node=node, others=tuple(n for n in ALL if n != node))


def test_a_run_reports_the_nodes_together(tmp_path: Path) -> None:
    """One finding for all, with all records, in the files, the report and its redaction."""
    trace = tmp_path / "trace.pt"
    recording.record(recording.plan(scenario()), trace)
    done = attack_run.attack_file(trace, tmp_path / "out", AttackOptions(attack="exact"))
    record = done.record
    (finding,) = record.findings
    assert (finding.node, finding.others, finding.nodes) == (0, (1, 2, 3), ALL)
    assert (finding.batch, finding.certified) == (8, 8)
    assert not record.undetermined
    said = str(record.summary)
    assert "recovered all 8 training images of nodes 0 to 3 exactly" in said
    assert (
        "If all of these nodes hold equally many records and count equally, this is certain" in said
    )
    assert "Only a sum over nodes is known" in said
    assert "from 4 of 4 nodes" in said
    (again,) = record_file.load_reconstructions(model.plain(record), tmp_path / "out")
    assert again.nodes == ALL
    truth = trace_file.load_truth(trace_file.truth_path(trace))
    (scored,) = score(again, truth)
    assert scored.exact == (True,) * 8
    for form in ("text", "html", "markdown", "junit", "sarif", "json"):
        assert main(["report", str(tmp_path / "out"), "-f", form, "--redact"]) == 0
    assert (
        main(
            [
                "report",
                str(tmp_path / "out"),
                "--rescore",
                "--truth",
                str(trace_file.truth_path(trace)),
            ]
        )
        == 0
    )


def test_an_interrupted_run_keeps_the_nodes(tmp_path: Path) -> None:
    """A finished sum is read from the checkpoint, and not attacked again for its other nodes."""
    trace, _ = recorded(scenario())
    (found,) = la.attack(la.leaks(trace), "exact", generator=Generator().manual_seed(0))
    kept = Checkpoint.begin(tmp_path, "key", False)
    kept.save([found])
    assert Checkpoint.begin(tmp_path, "key", True).finished()[0].nodes == ALL


def test_every_node_has_a_leak_of_its_own_on_request() -> None:
    trace, _ = recorded(scenario(rounds=3))
    heard = Deduction(trace, la.Adversary())
    each = hearing.deduce(heard, ALL)
    assert [leak.node for leak in each] == [0, 1, 2, 3]
    assert {leak.nodes for leak in each} == {ALL}
    (one,) = la.leaks(trace, nodes=[2])
    assert one.node == 2


def test_a_gate_sees_the_leak_of_every_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("leakaudit.toml").write_text(
        """
[gate]
seeds = 2
compare = ["exact"]
[check.sum]
attacks = ["exact"]
[check.sum.scenario]
victim = "secagg"
nodes = 4
graph = "complete"
rounds = 10
data = "faces"
model = "mlp"
samples = 2
set = { hidden = 128 }
[[budget]]
measure = "exact"
most = 0.0
"""
    )
    assert main(["check", "-q"]) == 1
    said = capsys.readouterr().out
    assert "bit for bit" in said
    record = model.of(record_file.read(Path("leakaudit-out/results.json")))
    assert isinstance(record, model.CheckRecord)
    (cell,) = record.gate.cells
    nodes = model.given(cell.nodes, ())
    assert {one.node for one in nodes} == set(ALL)
    assert all(one.exact for one in nodes)


@pytest.mark.parametrize("graph", ["ring", "star"])
def test_masks_cancel_only_among_all(graph: str) -> None:
    with pytest.raises(LeakauditError, match="--graph complete"):
        recording.plan(replace(scenario(), graph=graph))


@pytest.mark.parametrize(("family", "dtype"), FAMILIES)
@pytest.mark.parametrize("constants", [{}, {"mask": 100.0}, {"local_steps": 2, "batch": 1}])
def test_images_that_are_alike(family: str, dtype: str, constants: dict[str, Any]) -> None:
    count = lookalikes.attacked(scenario(dtype=dtype, **constants), family, 0, "exact")
    assert count.images == 8
    assert not count.false, count.cases


def test_an_audit_and_a_sweep_count_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = """
[scenario]
victim = "secagg"
nodes = 4
graph = "complete"
rounds = 10
data = "faces"
model = "mlp"
samples = 2
set = { hidden = 128 }
"""
    Path("plan.toml").write_text(f"{scenario}[sweep]\nattacks = ['exact']\nseeds = [0]\n")
    assert main(["sweep", "plan.toml", "-q", "-o", "swept"]) == 0
    record = model.of(record_file.read(Path("swept/results.json")))
    assert isinstance(record, model.SweepRecord)
    assert "recovered all 8 of the attacked training records" in record.summary
    judged = "[audit]\nattacks = ['exact']\nnodes = [0, 2]\nseeds = 1\nadversaries = ['node:1']\n"
    Path("audit.toml").write_text(scenario + judged)
    assert main(["audit", "audit.toml", "-q", "-o", "audited"]) == 0
    audited = model.of(record_file.read(Path("audited/results.json")))
    assert isinstance(audited, model.AuditRecord)
    columns = {}
    for one in audited.findings:
        assert one.scores is not None
        assert isinstance(one.scores.exact, model.FlagColumn)
        columns[one.node] = one.scores.exact.per_image
    assert columns == {0: (True, True), 2: (True, True)}
