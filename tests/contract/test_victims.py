"""What every registered victim promises, as a table over the registry."""

from __future__ import annotations

import itertools
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.core.trace import Graph
from leakaudit.protocols import declared, recording, training_curves
from leakaudit.protocols.scenario import Scenario
from leakaudit.protocols.victim import Victim
from leakaudit.theory.relations import Relations

VICTIMS = registry.names("victims")


WALKS = (
    "recal",
    "rwadmm",
)  # one node at a time: not every wire is used, not every node takes a gradient
SILENT = ("single",)
FITS: dict[str, dict[str, object]] = {
    "secagg": {"graph": "complete"},
    "secured": {"graph": "complete", "nodes": 9},
}


def scenario(name: str, **changes: object) -> Scenario:
    values: dict[str, object] = {
        "nodes": 4,
        "graph": "ring",
        "rounds": 5,
        "data": "gaussians",
        "model": "logistic",
        **FITS.get(name, {}),
        **changes,
    }
    if "buffers" in values.get("set", {}):  # type: ignore[operator]
        values["model"] = "convolutional:normalised_mlp"
    return Scenario(victim=name, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", VICTIMS)
def test_it_is_a_value_that_says_what_it_is(name: str) -> None:
    kind = registry.get("victims", name)
    assert kind.paper
    assert kind.leaks_what
    assert (kind.claims_what == "nothing") == (kind.claims is Victim.claims)
    assert isinstance(kind.centralised, bool)
    assert all(f.metadata["help"] for f in registry.parameters(kind).values())
    with pytest.raises(FrozenInstanceError):
        kind().paper = "another"


@pytest.mark.parametrize("name", VICTIMS)
def test_equal_seeds_record_equal_messages_and_leave_global_state_alone(name: str) -> None:
    before = torch.get_rng_state(), repr(np.random.get_state())  # noqa: NPY002
    first, second, other = (
        recording.record(recording.plan(scenario(name, seed=s, states=True)), None)
        for s in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before[0])
    assert repr(np.random.get_state()) == before[1]  # noqa: NPY002
    assert torch.equal(first.trace.messages[0].payload, second.trace.messages[0].payload)
    models = [r.truth_record.states["w"].nan_to_num() for r in (first, second, other)]
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


@pytest.mark.parametrize("name", VICTIMS)
def test_it_sends_as_many_messages_as_it_announced(name: str) -> None:
    plan = recording.plan(scenario(name))
    trace = recording.record(plan, None).trace
    # A plan counts them in outline, the victim by its whole declaration.
    assert len(trace) == plan.messages
    assert len(trace) == plan.victim.messages(plan.graph, 5, plan.wires)
    assert trace.rounds == 5
    used = {
        (int(s), int(d)) for s, d in zip(trace.messages[0].src, trace.messages[0].dst, strict=True)
    }
    assert used <= set(plan.graph.arcs)
    assert name in (*WALKS, *SILENT) or used == set(plan.graph.arcs)


# settings whose rounds are not alike, or that send something else at the start
COUNTED = """
choco slow=0.5
dkm fade=3 mechanism=gaussian
dpadmmserver fall=true
dpnorm inner=4 resend=true
dpnorm epsilon=1
dpnorm inner=4 order=random
dpsgd slow=0.5 batch=2
extra spread=0.1 sigma=0.1 fade=0.9
diloco inner=3 batch=2 bits=0
fedavg epochs=2 batch=2
fedavg fraction=0.5 batch=2
fedavg buffers=true epochs=2 batch=2
fedsgd fraction=0.3
fedsgd buffers=true
mradmm rate=1 growth=1.5
muffliato gossips=1
muffliato gossips=3 accelerate=true
nids spread=0.1 sigma=0.1 fade=0.9
pdmm z0=0
secured spread=0.1 optimiser=adam
pdmm differential=false
pdmm active=2
pdmm active=4 z0=0
pvpadmm perturb=dual
secagg local_steps=2 batch=2
secagg fraction=0.5 sigma=0.1
secured iterations=2 partitions=2
tracking sigma=0.1 noise=message
"""


@pytest.mark.parametrize("row", [*VICTIMS, *COUNTED.strip().splitlines()])
def test_the_declaration_says_how_many_messages_a_recording_holds(row: str) -> None:
    name, *given = row.split()
    graphs = ["complete"] if name in FITS else ["ring", "star", "er"]
    for graph, wires, rounds in itertools.product(graphs, ["all", "node:1"], [1, 2, 3, 7]):
        asked = scenario(
            name,
            graph=graph,
            wires=wires,
            rounds=rounds,
            samples=4,
            set=dict(word.split("=") for word in given),
        )
        plan = recording.plan(asked, trusted=True)
        held = len(recording.record(plan, None).trace)
        drawn = name in WALKS or "active=2" in given or "fraction" in row
        assert held <= plan.messages if drawn else held == plan.messages, asked


def kinds(row: str) -> set[str]:
    """The kinds of messages of a recording."""
    name, *given = row.split()
    graph = "complete" if name in FITS else "ring"
    asked = scenario(
        name, graph=graph, rounds=4, samples=4, set=dict(word.split("=") for word in given)
    )
    trace = recording.record(recording.plan(asked, trusted=True), None).trace
    return {table.kinds[k] for table in trace.messages for k in table.kind.unique().tolist()}


@pytest.mark.parametrize("name", VICTIMS)
def test_the_listed_kinds_of_messages_are_those_of_recordings(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each recorded kind is listed, and each listed kind is recorded with some settings."""
    rows = [row for row in COUNTED.strip().splitlines() if row.split()[0] == name]
    listed = registry.get("victims", name).sends
    found = [kinds(row) for row in (name, *rows)]
    assert set().union(*found) == set(listed)
    with pytest.raises(SystemExit):
        main(["record", name, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for kind, words in listed.items():
        assert f"{kind}: {words}" in said
    assert ("kinds of messages" in said) == bool(listed)


def test_only_what_a_declaration_does_not_tell_is_counted_apart() -> None:
    apart = {n for n in VICTIMS if registry.get("victims", n).messages is not Victim.messages}
    assert apart == {"fedavg", "fedsgd", "pdmm", "recal", "rwadmm", "secagg", "secured"}


@pytest.mark.parametrize("quantize", [0.0, 0.25])
def test_duals_that_begin_at_zero_are_neither_declared_nor_sent(quantize: float) -> None:
    constants = {"z0": 0.0, "quantize": quantize}
    plan = recording.plan(scenario("pdmm", graph="ring", rounds=2, set=constants))
    assert set(recording.record(plan, None).trace.kinds()) == {"dz"}
    declared = plan.victim.relations(plan.graph, 2, {})
    assert {v.name for v in declared.vectors if v.kind == "message"} == {"dz"}


class Late(Victim):
    """Sends nothing before round 4, though its rounds are alike after that."""

    regular = True

    def run(self, *_: object) -> None:
        """Never called."""

    def relations(self, graph: Graph, rounds: int, public: object) -> Relations:
        """Declare one broadcast of node 0 a round, from round 4 on, and one to a board in round 2."""
        p = Relations(graph)
        for t in p.rounds(rounds):
            g = p.grad(0, at=p.public("w0"))
            if t == 2:
                p.send(0, None, g, "board")
            if t >= 4:
                p.send(0, graph.neighbours[0], g, "w")
        return p


@pytest.mark.parametrize(("rounds", "count"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 3), (9, 13)])
def test_a_late_start_is_counted(rounds: int, count: int) -> None:
    ring = Graph(4, ((0, 1), (0, 3), (1, 2), (2, 3)))
    assert Late().messages(ring, rounds, ring.edges) == count
    assert Late().messages(ring, rounds, []) == 0


@pytest.mark.parametrize("name", VICTIMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_declaration_describes_the_run(name: str, dtype: str) -> None:
    """Every relation on messages, private states and gradients by autograd; none is left out."""
    recorder = recording.record(
        recording.plan(scenario(name, dtype=dtype, states=True, samples=4)), None
    )
    found = declared.check(recorder.trace, recorder.truth_record)
    assert found.checked >= 5
    assert found.skipped == 0


@pytest.mark.parametrize("name", VICTIMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_wire_has_the_dtype_that_was_asked_for(name: str, dtype: str) -> None:
    assert recording.record(
        recording.plan(scenario(name, dtype=dtype)), None
    ).trace.dtype == getattr(torch, dtype)


@pytest.mark.parametrize("name", VICTIMS)
def test_nobody_learns_nothing_and_says_why(name: str) -> None:
    trace = recording.record(recording.plan(scenario(name)), None).trace
    leaks = la.leaks(trace, la.Adversary(hears="none"))
    assert len(leaks) == 0
    assert set(leaks.undetermined) == set(range(int(scenario(name).nodes)))
    assert set(leaks.undetermined.values()) == {"the adversary observes no message"}


@pytest.mark.parametrize("name", VICTIMS)
def test_training_lowers_the_loss(name: str) -> None:
    # At the paper's two iterations, the lam^0 of SecureD-FL shift every weight in every FL round.
    constants = {"iterations": 4} if name == "secured" else {}
    plan = recording.plan(scenario(name, rounds=60, samples=5, states=True, set=constants))
    truth = recording.record(plan, None).truth_record
    task, x, y = plan.task, truth.x, truth.y
    w = truth.states["w"]
    start, end = (
        float(task.loss(w[t].mean(0), x, y))
        for t in (0, w.isfinite().all(dim=2).all(dim=1).nonzero().max())
    )
    assert end < 0.9 * start


# arguments of `record`, and what its one line says
WRONG = """
choco gamma=0 -> gamma > 0
choco gamma=1.5 -> gamma <= 1
choco share=2 -> share <= 1
choco alpha=3 l2=1 -> alpha < 2
diloco lr=0 -> lr > 0
diloco inner=0 -> inner > 0
diloco outer=0 -> outer > 0
diloco momentum=1 -> momentum < 1
diloco bits=1 -> bits = 0 or 2 to 16
diloco lr=1 decay=1 -> lr decay < 1
diloco lr=3 decay=0.1 l2=1 -> lr < 2
dkm epsilon=0 mechanism=laplace -> number > 0
dkm epsilon=1 mechanism=none -> adds no noise
dkm delta=1 -> delta
dkm alpha=1.5 -> alpha <= 1
dkm operator=x -> gd, pgd, dr
dpadmm steps=0 -> steps
dpadmm epsilon=1 horizon=-1 -> horizon >= 0
dpadmm delta=1 -> delta < 1
dpadmm batch=9 -> 4 records
dpadmm sigma=1 epsilon=1 -> got both
dpadmm epsilon=0 -> number > 0
dpadmmserver delta=1 -> delta < 1
dpadmmserver sigma=1 epsilon=1 -> got both
dpadmmserver records=0 -> records >= 1
dpadmmserver eta=0 -> eta
dpnorm inner=0 -> inner >= 1
dpnorm delta=1 -> delta < 1
dpnorm epsilon=0 -> number > 0
dpnorm sigma=-1 -> sigma
dpnorm resend=true -> inner=2
dpnorm resend=true inner=2 order=random -> order=synchronous
dpnorm order=late -> synchronous, random
dpsgd steps=0 -> steps > 0
dpsgd delta=1 -> delta < 1
dpsgd epsilon=1 -> noise=step
dpsgd sigma=-1 -> sigma >= 0
dpsgd alpha=3 l2=1 -> alpha < 2
extra fade=2 -> fade <= 1
extra sigma=-1 -> sigma >= 0
extra alpha=0.7 l2=1 -> alpha < 0.666667
fedavg epochs=0 -> epochs > 0
fedavg lr=0 -> lr > 0
fedavg lr=1 decay=2 -> lr decay < 2
fedavg lr=3 l2=1 -> lr < 2
fedavg epochs=1.5 -> expected int
fedavg bn_momentum=0 -> 0 < bn_momentum <= 1
fedavg buffers=true -> logistic has no batch normalisation layers
fedavg buffers=true bn=eval --data=faces --model=resnet10 -> needs bn=train
fedavg buffers=true clip=1 --data=faces --model=resnet10 -> needs clip=0
fedsgd buffers=true bn_momentum=0.2 --data=faces --model=resnet10 -> bn_momentum=0.1
gossip buffers=true -> neither gossip nor logistic has a parameter 'buffers'
fedsgd lr=0 -> lr > 0
fedsgd lr=-1 -> lr > 0
fedsgd lr=3 l2=1 -> lr < 2
fedsgd lr=nan -> a finite number
fedsplit rho=0 -> rho > 0
fedsplit alpha=2 rho=1 -> alpha rho <= 1
fedsplit update=exact --data=faces --model=mlp -> convex
gossip steps=0 -> steps > 0
gossip sigma=-1 -> sigma >= 0
gossip lr=3 l2=1 -> lr < 2
mradmm theta=0 -> theta
mradmm growth=0.5 -> growth >= 1
mradmm rate=-1 -> rate >= 0
mradmm --data=faces --model=mlp -> convex
muffliato gossips=0 -> gossips > 0
muffliato delta=1 -> delta < 1
muffliato sigma=-1 -> sigma >= 0
muffliato epsilon=0 -> number > 0
muffliato lr=3 l2=1 -> lr < 2
nids alphas=1,2 -> 4 positive
nids alphas=1,2,-1,1 -> 4 positive
nids fade=2 -> fade <= 1
nids alphas=1,1,1,3 l2=1 -> alphas < 2
pdmm theta=1.5 -> theta <= 1
pdmm k_max=0 -> k_max >= 1
pdmm alpha=2 -> diverges by a factor of
pdmm z0=-1 -> z0 >= 0
pdmm active=-1 -> active >= 0
pdmm active=5 -> only 4 nodes
pdmm active=2 alpha=3 -> < 2
pdmm update=exact --data=faces --model=mlp -> convex
pvpadmm alpha=0 perturb=dual -> alpha
pvpadmm alpha=1 -> adds no noise
pvpadmm epsilon=1 -> adds no noise
pvpadmm records=0 -> records >= 1
pvpadmm --data=faces --model=mlp -> convex
recal tau=1.5 s=0.5 -> lower tau or s
recal tau=1.1 s=0.3 l2=1 -> L_i = l2
recal tau=1,1 -> already 2 tau_i s_i is 1
recal beta=9 -> beta below
recal delta=1 -> delta < 1
recal sigma=-1 -> sigma >= 0
recal activation=iid -> complete
rwadmm theta=0 -> theta
rwadmm sigma=-1 -> sigma >= 0
rwadmm update=gradient alpha=2 rho=0.5 -> < 2
rwadmm --data=faces --model=mlp -> convex
secagg mask=0 -> mask > 0
secagg local_steps=0 -> local_steps > 0
secagg sigma=-1 -> sigma >= 0
secagg fraction=0 -> 0 < fraction <= 1
secagg --graph=ring -> complete
secured group_size=4 -> group
secured iterations=0 -> iterations
secured rho=0 -> rho
secured --graph=ring -> complete
single mu=0 -> mu > 0
single inner=0 -> inner >= 1
tracking alpha=0 -> alpha > 0
tracking sigma=-1 -> sigma >= 0
tracking alpha=3 l2=1 -> alpha < 2
"""


def test_every_victim_has_wrong_constants() -> None:
    assert {row.split()[0] for row in WRONG.strip().splitlines()} == set(VICTIMS)


@pytest.mark.parametrize("row", WRONG.strip().splitlines())
def test_wrong_constants_are_refused(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One clear line, exit code 2, nothing written."""
    (name, *given), says = row.split(" -> ")[0].split(), row.split(" -> ")[1]
    monkeypatch.chdir(tmp_path)
    fits = {
        "nodes": 4,
        "graph": "ring",
        "samples": 4,
        "rounds": 3,
        "data": "gaussians",
        "model": "logistic",
        **FITS.get(name, {}),
    }
    options = {f"--{k}": str(v) for k, v in fits.items()} | dict(
        word.split("=") for word in given if word.startswith("--")
    )
    sets = [part for word in given if not word.startswith("--") for part in ("--set", word)]
    assert (
        main(["record", name, "-q", *(part for pair in options.items() for part in pair), *sets])
        == 2
    )
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", VICTIMS)
def test_no_number_may_be_negative_or_without_end(name: str) -> None:
    kind = registry.get("victims", name)
    for key, f in registry.parameters(kind).items():
        if f.default is None or (
            isinstance(f.default, int | float) and not isinstance(f.default, bool)
        ):
            for value in (-1, float("nan"), float("inf")):
                with pytest.raises(la.LeakauditError, match=rf"{key}|{name}"):
                    registry.configure(kind, {key: value})


@pytest.mark.parametrize("name", [n for n in VICTIMS if not registry.get("victims", n).centralised])
def test_a_graph_that_is_not_connected_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "edges").write_text("0 1\n2 3\n")
    with pytest.raises(la.LeakauditError, match="not connected"):
        recording.plan(scenario(name, nodes=4, graph=f"file:{tmp_path / 'edges'}"))


@pytest.mark.parametrize("name", VICTIMS)
def test_every_run_has_curves(name: str) -> None:
    run = training_curves.kept(
        recording.record(
            recording.plan(scenario(name, samples=5, curves=True, rounds=9)), None
        ).truth_record,
        name,
    )
    assert {"loss", "accuracy", "consensus", "norm_w", "seconds"} <= set(run)
    assert training_curves.rounds(run) == list(range(1, 10))


@pytest.mark.parametrize("name", VICTIMS)
def test_claims_and_noise_rest_on_the_records_that_the_nodes_hold(name: str) -> None:
    plan = recording.plan(scenario(name, samples=7))
    known = {
        key: getattr(plan.victim, key)
        for key in ("samples", "records")
        if key in registry.parameters(type(plan.victim))
    }
    assert set(known.values()) <= {7}
    for key in known:
        told, _ = scenario(name, samples=7, set={key: 5}).parts()
        assert getattr(told, key) == 5
    public = plan.victim.schedule(plan.graph, 5, torch.Generator().manual_seed(0))
    for claim in plan.victim.claims(
        plan.graph, 5, {"w0": torch.zeros(plan.task.layout.size), **public}
    ):
        assert claim.source
        assert claim.promise
        assert claim.epsilon is None or (claim.epsilon > 0 and claim.adjacency)
        assert claim.epsilon is None or claim.neighbours is not None
        assert claim.gradient_norm is None or str(claim.gradient_norm) in claim.assumes


@pytest.mark.parametrize("name", VICTIMS)
def test_nothing_recorded_still_trains(name: str) -> None:
    recorder = recording.record(recording.plan(scenario(name, wires="none", states=True)), None)
    assert len(recorder.trace) == 0
    assert recorder.truth_record.states["w"].shape[0] >= 5
