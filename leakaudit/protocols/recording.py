"""From a scenario to a recording: draw data, build the task, compute the size, run the victim."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Generator, Tensor

from leakaudit._util.own_code import Trust
from leakaudit._util.seeds import generators as generators
from leakaudit._util.seeds import nth_generator
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.payload import StoredColumns
from leakaudit.core.progress import watching
from leakaudit.core.trace import RANGE, Graph, Json
from leakaudit.protocols import calibration, optimum, premises
from leakaudit.protocols import topology as graphs
from leakaudit.protocols.calibration import Calibrated, Target
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.premises import Contradiction
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks import data, models, weights
from leakaudit.tasks.build_task import SETTINGS, outputs
from leakaudit.tasks.shared import SharedData
from leakaudit.tasks.task import Comparison, Problem, Task
from leakaudit.tasks.weights import Weights
from leakaudit.theory.relations.declare import outline
from leakaudit.traces import layers
from leakaudit.traces._storage.sizes import estimate, plan_size, refuse_above
from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage

if TYPE_CHECKING:
    from leakaudit.core.claim import Claim
    from leakaudit.protocols.victim import Victim

# What a run draws random numbers for, in the order of its streams.
STREAMS = ("data", "split", "graph", "model", "run", "schedule", "test")
SILENT: Mapping[str, Any] = {"curves": False, "test": 0}  # of a run whose training is not looked at
POOL = 1000  # records of the data set that are stored for identification, a choice


@dataclass(frozen=True)
class Plan:
    """A scenario that is ready to run; nothing has been written yet."""

    scenario: Scenario
    victim: Victim  # the protocol with its constants
    source: data.Dataset  # the data set
    rows: Tensor  # records of `source` that the nodes hold, (N, samples)
    task: Task  # the model and its loss
    graph: Graph
    wires: list[tuple[int, int]]  # undirected edges that are recorded
    kept: StoredColumns  # what is recorded of each message
    random: Mapping[str, Generator]  # generators by name, including those of the model and the run
    calibrated: Calibrated | None = None  # the noise that was found for an epsilon
    trained: Weights | None = None  # where the run starts, if that is not a random model

    @cached_property
    def messages(self) -> int:
        """Number of messages in the recording, or the maximum if it depends on a schedule."""
        with outline():
            return self.victim.messages(self.graph, self.scenario.rounds, self.wires)

    @property
    def size(self) -> int:
        """Size of the recording in bytes."""
        return plan_size(self.messages, self.kept.width, self.task.dtype)

    def fit(self, limit: int) -> None:
        """Check that the recording is not too large."""
        sizes = estimate(
            self.messages,
            self.kept.width,
            self.task.dtype,
            graph=self.graph,
            layout=self.task.layout,
            rounds=self.scenario.rounds,
            max_bytes=limit,
        )
        refuse_above(limit, sizes)

    @cached_property
    def tested(self) -> Tensor:
        """Held-out records (t,): rows of the data set's test set, or of `source` without one."""
        source = self.source
        if source.held is not None:
            free = torch.arange(len(source.held[0]))
        else:
            free = torch.from_numpy(np.setdiff1d(np.arange(len(source)), self.rows.numpy()))
        order = torch.randperm(len(free), generator=self.random["test"])
        return free[order[: self.scenario.test]]

    def start(self, random: Generator) -> Tensor:
        """Return the initial model (d,): trained weights, or else a draw."""
        return self.task.init(random) if self.trained is None else self.trained.w0

    @property
    def data_range(self) -> float:
        """Width of the scale of images: 1, or the largest pixel of rows of unit norm."""
        if self.scenario.rows == "unit" and self.source.is_image:
            return float(self.source.x.max())
        return 1.0

    @property
    def declared(self) -> Protocol:
        """The protocol with its schedule, which leaves the plan's generators unused."""
        rounds = self.scenario.rounds
        random = nth_generator(self.scenario.seed, STREAMS.index("schedule"))
        scheduled = self.victim.schedule(self.graph, rounds, random)
        public = {"w0": torch.zeros(self.task.layout.size), **scheduled}  # only its length counts
        samples, summed = self.scenario.samples, self.scenario.summed
        return Protocol(self.victim, self.graph, rounds, public, records=samples, summed=summed)

    def with_noise(self, found: Calibrated) -> Plan:
        """Return the plan with the noise that was found in place of the epsilon."""
        bare = self.scenario.without_epsilon()
        scenario = replace(bare, set={**bare.set, found.constant: found.value})
        return replace(self, scenario=scenario, victim=scenario.parts()[0], calibrated=found)


def plan(
    scenario: Scenario,
    *,
    data_root: Path | None = None,
    download: bool = False,
    device: str = "cpu",
    trusted: Trust = False,
    shared: SharedData | None = None,
) -> Plan:
    """Draw data and graph, and build the task.

    The noise for an epsilon of the scenario is found by the paper's claims.

    Args:
        data_root: Folder of data sets; None for the default.
        trusted: The ``package.module:factory`` that may execute its code; True for any.

    Raises:
        LeakauditError: The scenario cannot run, or asks for the exact view to set the noise.
    """
    shared = shared or SharedData()
    victim, args = scenario.parts()
    check_settings(scenario, args)
    random = generators(scenario.seed, *STREAMS)
    source = shared.source(scenario.selection, data_root, download, random["data"])
    rows = data.split(source, scenario.nodes, scenario.samples, scenario.split, random["split"])
    if scenario.summed > 1:
        args = _of_mean(scenario, args)
    spec = source.spec(scenario.model, args)
    task = shared.task(spec, getattr(torch, scenario.dtype), device, trusted)
    trained = None
    if scenario.weights:
        trained = weights.read(scenario.weights, task)
        scenario = replace(scenario, weights=weights.named(scenario.weights, trained.sha256))
        if trained.constants:
            task = task.with_constants(trained.constants)
    if victim.centralised:  # a star: its hub, the server, is the last node
        graph = Graph(scenario.nodes + 1, tuple((i, scenario.nodes) for i in range(scenario.nodes)))
    else:
        graph = graphs.make(scenario.graph, scenario.nodes, random["graph"])
    victim.fits(task.summed(scenario.summed), graph, scenario.samples)
    _check_test(scenario, source)
    if scenario.summed > 1:
        _check_sum(scenario, victim, graph, random["schedule"])
    made = Plan(
        scenario,
        victim,
        source,
        rows,
        task,
        graph,
        _wires(scenario.wires, graph),
        _kept(scenario.layers, task),
        random,
        trained=trained,
    )
    wanted = scenario.target()
    return made if wanted is None else _claimed(made, wanted)


def _claimed(plan: Plan, wanted: Target) -> Plan:
    """Return the plan with the noise for which the paper claims an epsilon."""
    scenario = plan.scenario
    if scenario.calibrate == calibration.EXACT:
        raise LeakauditError(
            "calibrate=exact: this command does not search for noise; use leakaudit record, bound, "
            "sweep or check, or set the noise that leakaudit record prints"
        )
    declared = plan.declared

    def claims(noise: float) -> Sequence[Claim]:
        victim = replace(cast(Any, plan.victim), **{wanted.constant: noise})
        return cast("Victim", victim).claims(declared.graph, declared.rounds, declared.public)

    value, claim = calibration.by_claims(wanted.epsilon, wanted.constant, scenario.victim, claims)
    basis = f"as claimed: {claim.source}"
    found = (wanted.epsilon, claim.delta, wanted.constant, value, calibration.CLAIM, basis)
    return plan.with_noise(Calibrated(*found))


def record(
    plan: Plan,
    path: Path | str | None,
    max_bytes: int = 4_000_000_000,
    private: Mapping[str, Any] | None = None,
) -> Recorder:
    """Run the plan and record it.

    The scenario is stored in the truth, because anyone who knows the seed can reproduce the noise
    and z^0.

    Args:
        path: File of the recording; None keeps it in memory.
    """
    plan.fit(max_bytes)
    known = public(plan)
    void = contradictions(plan, known)
    said = premises.provenance(void)
    with opened(plan, path, known, max_bytes, private, said, void) as recorder:
        plan.victim.run(
            _problem(plan),
            plan.graph,
            plan.scenario.rounds,
            recorder,
            plan.random["run"],
            plan.wires,
        )
    return recorder


def train(plan: Plan) -> Recorder:
    """Run the plan without recording its messages, only for the curves of its truth."""
    silent = replace(plan, wires=[])
    with opened(silent, None, public(plan), sys.maxsize, None) as recorder:
        plan.victim.run(
            _problem(plan), plan.graph, plan.scenario.rounds, recorder, plan.random["run"], []
        )
    return recorder


def contradictions(plan: Plan, known: Mapping[str, Tensor]) -> list[Contradiction]:
    """Return what claims and bounds assume of the data of a plan, and these do not keep."""
    scenario = plan.scenario
    wanted = premises.premises(plan.victim, plan.graph, scenario.rounds, known)
    extremes = None
    if any(premise.subject != "records" for premise in wanted):
        silent = replace(plan, scenario=replace(scenario, states=False, **SILENT), wires=[])
        random = Generator().set_state(plan.random["run"].get_state())

        def run(problem: Problem) -> None:
            with opened(silent, None, known, sys.maxsize, None) as recorder:
                plan.victim.run(problem, plan.graph, scenario.rounds, recorder, random, [])

        with watching(lambda *_: None):
            extremes = premises.measured(plan.victim, _problem(silent), run)
    return premises.contradicted(wanted, extremes, scenario.samples)


def _problem(plan: Plan) -> Problem:
    task = plan.task
    x = plan.source.x[plan.rows].to(task.device, task.dtype)
    y = plan.source.y[plan.rows].to(task.device)
    problem = Problem(task.summed(plan.scenario.summed), x, y)
    if plan.scenario.curves:
        problem = replace(problem, against=_comparison(plan, problem))
    return problem


def _comparison(plan: Plan, problem: Problem) -> Comparison:
    source = plan.source
    task = plan.task
    x, y = (source.x, source.y) if source.held is None else source.held
    return Comparison(
        x[plan.tested].to(task.device, task.dtype),
        y[plan.tested].to(task.device),
        plan.scenario.selection.labels,
        plan.scenario.every,
        optimum.of(problem, plan.victim.l1_weight),
        _planted(source, task),
    )


def _planted(source: data.Dataset, task: Task) -> Tensor | None:
    """Return the parameters of a model whose outputs are those from which targets were drawn."""
    if source.planted is None or task.spec.model not in models.CONVEX or outputs(task.spec) > 1:
        return None
    rest = task.layout.size - len(source.planted)
    return torch.cat([source.planted, source.planted.new_zeros(rest)]).to(task.device)


def _check_sum(scenario: Scenario, victim: Victim, graph: Graph, random: Generator) -> None:
    """Reject sums where a claim, or what an attack repeats, is about means."""
    drawn = Generator().set_state(random.get_state())
    public = victim.schedule(graph, scenario.rounds, drawn)
    claims = victim.claims(graph, scenario.rounds, public)
    if any(claim.epsilon is not None for claim in claims):
        raise LeakauditError(
            f"reduction: the epsilon of {scenario.victim} is claimed for means over records; use "
            "reduction = mean, or no noise"
        )
    if victim.relations(graph, 1, {"w0": torch.zeros(1), **public}).changes:
        raise LeakauditError(
            f"reduction: the optimiser of {scenario.victim} is not linear in gradients, and its "
            "local steps are repeated with means; use reduction = mean"
        )


def _check_test(scenario: Scenario, source: data.Dataset) -> None:
    """Reject more held-out records than there are."""
    if not scenario.test:
        return
    if not scenario.curves:
        raise LeakauditError(
            f"test: {scenario.test} held-out records are used by curves only; add --curves"
        )
    where = f"the test set of {source.name} has"
    have = 0 if source.held is None else len(source.held[0])
    if source.held is None:
        where = f"the nodes leave of {len(source)} records of {source.name}"
        have = len(source) - scenario.nodes * scenario.samples
    if scenario.test > have:
        raise LeakauditError(f"test: expected at most the {have} records that {where}")


def public(plan: Plan) -> dict[str, Tensor]:
    """Draw the public values at the start: the model w0 and the schedule."""
    scheduled = plan.victim.schedule(plan.graph, plan.scenario.rounds, plan.random["schedule"])
    began = plan.victim.began(plan.task)
    return {"w0": plan.start(plan.random["model"]), **began, **scheduled}


def opened(
    plan: Plan,
    path: Path | str | None,
    public: Mapping[str, Tensor],
    max_bytes: int,
    private: Mapping[str, Any] | None,
    provenance: Mapping[str, Any] | None = None,
    void: Sequence[Contradiction] = (),
) -> Recorder:
    """Return the recorder of a plan's run, with the truth already stored.

    Args:
        path: File of the recording; None keeps it in memory.
    """
    scenario = plan.scenario
    rows = plan.rows
    source = plan.source
    said = dict(provenance or {})
    if scenario.wires != "all":
        said["wires"] = scenario.wires
    if plan.calibrated is not None:
        said["calibrated"] = plan.calibrated.to_json()
    if plan.trained is not None:
        said["weights"] = {"sha256": plan.trained.sha256}
    recorder = Recorder(
        Storage(path, messages=plan.messages, rows=plan.messages, max_bytes=max_bytes),
        protocol=scenario.victim,
        task=plan.task.spec,
        graph=plan.graph,
        params=_params(plan),
        rounds=scenario.rounds,
        public=public,
        options=RecorderOptions(
            layers=plan.kept,
            layout=plan.task.layout,
            dtype=plan.task.dtype,
            keep_states=scenario.states,
            keep_curves=scenario.curves,
            provenance=said,
            private={
                "scenario": {**asdict(scenario), "set": dict(scenario.set)},
                **({RANGE: plan.data_range} if plan.data_range != 1 else {}),
                **({premises.KEY: [one.says for one in void]} if void else {}),
                **(private or {}),
            },
            check=False,  # the plan has been checked, and tests check every declaration
        ),
    )
    for node in range(scenario.nodes):
        recorder.truth(node, source.x[rows[node]], source.y[rows[node]], index=rows[node])
    used = rows.flatten()
    if scenario.test and source.held is None:
        used = torch.cat([used, plan.tested])
    others = np.setdiff1d(np.arange(len(source.x)), used.numpy())
    recorder.pool(source.x[others[:POOL]])
    return recorder


def _params(plan: Plan) -> dict[str, Json]:
    found = {**registry.values(plan.victim), "samples": plan.scenario.samples}
    if plan.scenario.reduction == "sum":
        found["reduction"] = "sum"
    return found


def _of_mean(scenario: Scenario, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the task of the mean, for the sum with its l2 term as given."""
    found = dict(args)
    if "l2" in found:
        try:
            found["l2"] = float(found["l2"]) / scenario.summed
        except (TypeError, ValueError):  # the task rejects it
            return found
    return found


def check_settings(scenario: Scenario, args: Mapping[str, Any], advice: str = "") -> None:
    """Reject a setting that neither the victim nor a built-in model has; suggest the nearest."""
    if scenario.model not in models.MODELS:
        return
    known = [*registry.parameters(models.MODELS[scenario.model]), *SETTINGS]
    for key in args:
        if key not in known:
            both = [*registry.parameters(registry.get("victims", scenario.victim)), *known]
            raise LeakauditError(
                f"neither {scenario.victim} nor {scenario.model} has a parameter {key!r}"
                f"{suggest(key, both)}{advice}"
            )


def _wires(text: str, graph: Graph) -> list[tuple[int, int]]:
    if text in ("all", "none"):
        return list(graph.edges) if text == "all" else []
    try:
        if text.startswith("node:"):
            node = int(text.removeprefix("node:"))
            chosen = {e for e in graph.edges if node in e}
        else:
            chosen = set()
            for edge in text.split(","):
                i, j = map(int, edge.split("-"))
                chosen.add((min(i, j), max(i, j)))
    except ValueError:
        chosen = set()
    if not chosen or not chosen <= set(graph.edges):
        some = ", ".join(f"{i}-{j}" for i, j in graph.edges[:4])
        raise LeakauditError(
            f"wires: expected all, none, node:3 or edges of the graph ({some}, …), got {text!r}"
        )
    return sorted(chosen)


def _kept(text: str, task: Task) -> StoredColumns:
    layout = task.layout
    return layers.kept(text, layout, task.first_linear or layout.names[:1], task.last_linear)
