"""The view bound against an oracle written from the papers' equations (`unrolled`).

No mu is below what records attain: constant losses, quadratic losses of any curvature, which react
to the models, and, where the adversary knows the models, losses that change every gradient freely.
Where the product says *exact*, the two are equal.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import unrolled
from torch import Tensor
from unrolled import STD, Unroll, Unrolled, View

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Graph
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.victim import Victim
from leakaudit.theory.relations import Expression, Relations, account, know
from leakaudit.views.accounting.view_bound import ViewBound, view_bounds

BELOW = 1e-9  # relative rounding of a mu
LINEAR = 1e-8  # relative rounding of what constant gradients attain
SOLVED = 1e-6  # relative accuracy of the best directions of changes
Property = Callable[[str, object], None]  # of `record_property`
RING = Graph(4, ((0, 1), (0, 3), (1, 2), (2, 3)))
PATH = Graph(3, ((0, 1), (1, 2)))
LOLLIPOP = Graph(4, ((0, 1), (0, 2), (1, 2), (2, 3)))
STAR = Graph(4, ((0, 3), (1, 3), (2, 3)))
COMPLETE = Graph(4, tuple(itertools.combinations(range(4), 2)))
GRAPHS = (PATH, RING, LOLLIPOP)
SIGMA = {"sigma": STD}
MOVED = {"sensitivity": 0.01}
GAUSSIAN = math.sqrt(2 * math.log(1.25 / 1e-3)) * 0.01 / 0.5  # DP-dKM: epsilon .5, delta 1e-3


@dataclass(frozen=True)
class Case:
    """A protocol: its equations with settings, and the product's constants."""

    unroll: Unroll
    constants: Mapping[str, Any] = field(default_factory=lambda: SIGMA)
    settings: Mapping[str, Any] = field(default_factory=dict)
    graphs: Sequence[Graph] = GRAPHS

    @property
    def rounds(self) -> int:
        """The length of a short run; in a walk, one node is active in a round."""
        walks = self.unroll in (unrolled.recal, unrolled.rwadmm) or "active" in self.settings
        return 4 if walks else 2

    @classmethod
    def alike(cls, unroll: Unroll, graphs: Sequence[Graph] = GRAPHS, **settings: Any) -> Case:
        """Return a case whose settings have the names of the product's constants."""
        return cls(unroll, {**SIGMA, **settings}, settings, graphs)

    def __str__(self) -> str:
        said = " ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.unroll.__name__} {said}".strip()

    def run(self, graph: Graph, rounds: int, public: Any, **how: Any) -> Unrolled:
        """Unroll the equations."""
        made = Unrolled(**how)
        self.unroll(made, graph, rounds, public, **self.settings)
        return made

    def protocol(self, graph: Graph, rounds: int, **more: Any) -> Protocol:
        """Return the product's declaration."""
        kind = registry.get("victims", self.unroll.__name__)
        victim = registry.configure(kind, {**self.constants, **more})
        drawn = victim.schedule(graph, rounds, torch.Generator().manual_seed(1))
        public = {"w0": torch.zeros(1), "z": torch.zeros(1), **drawn}
        return Protocol(victim, graph, rounds, public)


KINDS: list[dict[str, Any]] = [{"own": "noised"}, {"own": "plain"}, {"noise": "step"}]
CASES = [
    Case(unrolled.fedsgd, graphs=[STAR]),
    Case.alike(unrolled.fedsgd, [STAR], noisy="first"),
    Case.alike(unrolled.fedavg, [STAR], epochs=1),
    Case.alike(unrolled.fedavg, [STAR], epochs=2),
    Case.alike(unrolled.fedavg, [STAR], epochs=2, decay=0.5),
    Case(unrolled.dpadmmserver, graphs=[STAR]),
    Case.alike(unrolled.dpadmmserver, [STAR], fall=True),
    *(
        Case.alike(unrolled.dpsgd, order=order, **kind)
        for order in ("combine", "adapt")
        for kind in KINDS
    ),
    Case.alike(unrolled.dpsgd, noise="step", steps=2),
    Case(unrolled.gossip),
    Case.alike(unrolled.muffliato, gossips=1),
    Case.alike(unrolled.muffliato, gossips=2),
    Case(unrolled.tracking),
    Case.alike(unrolled.tracking, noise="message"),
    Case(unrolled.dkm, {"mechanism": "gaussian", **MOVED}, {"std": GAUSSIAN}),
    Case(
        unrolled.dkm,
        {"mechanism": "gaussian", "fade": 2.0, **MOVED},
        {"std": GAUSSIAN, "fade": 2.0},
    ),
    Case(unrolled.extra),
    Case.alike(unrolled.extra, noise="message"),
    Case.alike(unrolled.extra, fade=0.5),
    Case(unrolled.extra, {**SIGMA, "spread": 1.0}, {"spread": True}),
    Case(unrolled.nids),
    Case.alike(unrolled.nids, noise="message"),
    Case(
        unrolled.nids,
        {**SIGMA, "alphas": (0.1, 0.2, 0.05, 0.3)},
        {"steps": (0.1, 0.2, 0.05, 0.3)},
        [RING, LOLLIPOP],
    ),
    Case(unrolled.dpnorm),
    Case.alike(unrolled.dpnorm, alpha=0.02),
    Case.alike(unrolled.dpnorm, inner=3, order="random"),
    Case.alike(unrolled.dpnorm, inner=3, order="random", noise="inner", alpha=0.02),
    Case(unrolled.pdmm, {}),
    Case(unrolled.pdmm, {"differential": False}, {"differential": False}),
    Case(unrolled.pdmm, {"active": 2}, {"active": 2}),
    Case(
        unrolled.pdmm,
        {"active": 1, "differential": False},
        {"active": 1, "differential": False},
    ),
    Case(unrolled.dpadmm),
    Case.alike(unrolled.dpadmm, steps=2),
    Case(unrolled.mradmm, {}),
    Case(
        unrolled.mradmm,
        {"recycle": False, "spread": 0.5, "growth": 1.5},
        {"recycle": False, "spread": 0.5, "growth": 1.5},
    ),
    Case(unrolled.pvpadmm, {}),
    Case(unrolled.pvpadmm, {"update": "gradient"}, {"update": "gradient"}),
    Case(unrolled.rwadmm),
    Case.alike(unrolled.rwadmm, update="gradient"),
    Case(unrolled.recal),
    Case.alike(unrolled.recal, baton="full"),
    Case(unrolled.secagg, graphs=[COMPLETE]),
    Case(unrolled.secagg, {**SIGMA, "local_steps": 2}, {"steps": 2}, [COMPLETE]),
    Case(unrolled.secagg, {"sigma": 0.0}, {"std": 0.0}, [COMPLETE]),
    Case(unrolled.secagg, {**SIGMA, "fraction": 0.5}, graphs=[COMPLETE]),
    Case(unrolled.secagg, {**SIGMA, "fraction": 0.75, "local_steps": 2}, {"steps": 2}, [COMPLETE]),
    Case(
        unrolled.secured,
        {"group_size": 2, "partitions": 3, "iterations": 2, "local_steps": 2},
        {"iterations": 2, "steps": 2},
        [COMPLETE],
    ),
]
# Hessians of the losses: of the node, and of all others. SMOOTH is the largest of the first ones.
SMOOTH = 1.5
CURVES = ((-0.3, -0.3), (1.0, 1.0), (1.5, 0.0), (0.0, 1.5), (-0.3, 1.5), (1.5, -0.3))
STEEP = ((6.0, 6.0), (0.0, 6.0))


def adversaries(graph: Graph) -> Iterator[Adversary]:
    """Yield an eavesdropper, curious nodes, coalitions, and taps of a few channels."""
    nodes = range(graph.nodes)
    yield Adversary()
    for node in nodes:
        yield Adversary(corrupt=frozenset({node}))
        yield Adversary(hears="none", corrupt=frozenset({node}))
        yield Adversary(hears="none", corrupt=frozenset(nodes) - {node})
    for pair in itertools.combinations(nodes, 2):
        yield Adversary(hears="none", corrupt=frozenset(pair))
    for i, j in graph.edges[:3]:
        yield Adversary(hears=frozenset({(i, j)}))
        yield Adversary(hears=frozenset({(i, j), (j, i)}))


@dataclass
class Judge:
    """Compares bounds with views of unrolled runs, and counts the outcomes.

    Attributes:
        outcomes: Outcome -> number of views.
        larger: mu of every upper bound, divided by the largest that the oracle attains.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    larger: list[float] = field(default_factory=list)

    def judge(self, bound: ViewBound, seen: Seen) -> None:
        """Compare the bound of a view with the oracle's."""
        where = (seen.adversary, bound)
        self.outcomes[str(bound.holds)] += 1
        if bound.leaking:
            assert seen.plain.leaks, where
        if bound.linear is not None:
            least = max(map(seen.plain.constant_of, seen.entered))
            assert bound.linear == pytest.approx(least, rel=LINEAR, abs=BELOW), where
        if bound.node_mu is not None:
            assert bound.node_mu >= seen.of_node * (1 - BELOW), where
        if bound.mu is None:
            return
        truth = seen.of_record
        assert bound.mu >= truth * (1 - BELOW), where
        if bound.leaking:
            return
        if bound.holds == "exact":
            assert bound.mu <= truth * (1 + SOLVED), where
        elif truth:
            self.larger.append(bound.mu / truth)

    def __str__(self) -> str:
        """The outcomes, and how much larger upper bounds are: least, median and largest."""
        text = ", ".join(f"{count} {said}" for said, count in sorted(self.outcomes.items()))
        if self.larger:
            spread = np.quantile(self.larger, (0, 0.5, 1))
            text += ", at most by {:.3g}, {:.3g}, {:.3g}".format(*spread)
        return text


@dataclass(frozen=True)
class Seen:
    """One node in one adversary's view of a run, and of runs whose losses react.

    Attributes:
        adversary: The adversary.
        node: The node.
        plain: The view if all gradients are constant.
        reacting: The views of quadratic losses, by the Hessians of the node and of all others.
        given: What `entered` returns; None if a record enters all gradients.
    """

    adversary: Adversary
    node: int
    plain: View
    reacting: Mapping[tuple[float, float], View]
    given: Sequence[Sequence[int]] | None = None

    @property
    def entered(self) -> Sequence[Sequence[int] | None]:
        """Sets of gradients, one of which a record enters; None for all of them."""
        return self.given or [None]

    @property
    def of_record(self) -> float:
        """The largest mu that a record surely attains."""
        return max(map(self._attained, self.entered))

    def _attained(self, entered: Sequence[int] | None) -> float:
        best = max(view.constant_of(entered) for view in (self.plain, *self.reacting.values()))
        if self.plain.models_seen:
            best = max(best, self.plain.free(entered))
        return best

    @property
    def of_node(self) -> float:
        """The largest mu of any changes of all gradients, if only other nodes react."""
        views = (view for (own, _), view in self.reacting.items() if not own)
        return max(view.free() for view in (self.plain, *views))

    @property
    def smooth(self) -> float:
        """The largest mu of a record whose losses have a Hessian within `SMOOTH`."""
        some = [self.plain, *(self.reacting[curves] for curves in CURVES)]
        return max(view.constant_of(one) for view in some for one in self.entered)


def views(
    case: Case, graph: Graph, rounds: int, public: Any, lost: Collection[tuple[int, int, int]] = ()
) -> Iterator[Seen]:
    """Yield every node in the view of every adversary."""
    plain = case.run(graph, rounds, public, lost=lost)
    for node in sorted({one.node for one in plain.gradients}):
        reacting = {}
        for own, other in (*CURVES, *STEEP):
            curvature = {i: other for i in range(graph.nodes)} | {node: own}
            run = case.run(graph, rounds, public, curvature=curvature, lost=lost)
            reacting[own, other] = run
        for adversary in adversaries(graph):
            if node not in adversary.corrupt:
                seen = {curves: run.view(adversary, node) for curves, run in reacting.items()}
                yield Seen(adversary, node, plain.view(adversary, node), seen)


def compared(case: Case, graph: Graph, rounds: int, judge: Judge) -> None:
    """Compare all views of a protocol with the oracle."""
    made = case.protocol(graph, rounds)
    for seen in views(case, graph, rounds, made.public):
        (bound,) = view_bounds(made, seen.adversary, [seen.node])
        judge.judge(bound, seen)
        if bound.mu is None:
            (smooth,) = view_bounds(made, seen.adversary, [seen.node], smoothness=SMOOTH)
            least = seen.smooth * (1 - BELOW)
            assert smooth.mu is None or smooth.mu >= least, (seen.adversary, smooth)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_bound_is_below_the_oracle(case: Case, record_property: Property) -> None:
    """In a small network: mu is not below what records attain, and equal where it is exact."""
    judge = Judge()
    compared(case, case.graphs[0], case.rounds, judge)
    assert judge.outcomes
    record_property("views", str(judge))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_bound_is_below_the_oracle_in_larger_networks(
    case: Case, record_property: Property
) -> None:
    judge = Judge()
    for graph in case.graphs:
        compared(case, graph, case.rounds + 1, judge)
    record_property("views", str(judge))


@pytest.mark.parametrize("seed", [5, 6])
def test_equal_messages_make_no_pivot_zero(seed: int) -> None:
    """With seed 6, two messages with the same noise and model once ended in "ill-conditioned"."""
    ring = Graph(6, tuple(sorted((min(i, (i + 1) % 6), max(i, (i + 1) % 6)) for i in range(6))))
    case = Case.alike(unrolled.dpnorm, inner=10, order="random", noise="inner")
    made = case.protocol(ring, 4)
    public = made.victim.schedule(ring, 4, torch.Generator().manual_seed(seed))
    p = made.victim.relations(ring, 4, public)
    found = account(know(p, Adversary()), p.gradients(0), 1.0, certify=False)
    fisher = case.run(ring, 4, public, size=600).view(Adversary(), 0).fisher
    assert fisher.min() > -1e-12  # aligned changes add up
    assert found.mu == pytest.approx(math.sqrt(fisher.sum()), rel=1e-12)


def test_the_oracle_sees_a_wrong_equation() -> None:
    """An unrolled run with other noise or another schedule does not agree."""
    half = Case(unrolled.gossip, {"sigma": 2 * STD})
    other = Case(unrolled.muffliato, {**SIGMA, "gossips": 3}, {"gossips": 2})
    for case in (half, other):
        with pytest.raises(AssertionError):
            compared(case, PATH, 3, Judge())


# --- noise that is not Gaussian -------------------------------------------------------------------

# The density of this noise is exp(-a |e|), for which `Unrolled` has no mu. What leaks without any
# noise, and what reveals nothing, does not depend on its distribution.
OTHER_NOISE = [
    Case(unrolled.mradmm, {"rate": 1.0}, {"noisy": True}),
    Case(unrolled.mradmm, {"rate": 1.0, "recycle": False}, {"noisy": True, "recycle": False}),
    Case(unrolled.pvpadmm, {"perturb": "dual"}, {"perturb": "dual"}),
    Case(unrolled.pvpadmm, {"perturb": "primal"}, {"perturb": "primal"}),
    Case(
        unrolled.pvpadmm,
        {"perturb": "primal", "update": "gradient"},
        {"perturb": "primal", "update": "gradient"},
    ),
]


@pytest.mark.parametrize("case", OTHER_NOISE, ids=str)
def test_noise_that_is_not_gaussian_has_no_mu(case: Case, record_property: Property) -> None:
    """No finite mu is printed for a view that this noise hides, and 0 only if nothing is seen."""
    found: Counter[str] = Counter()
    for graph in (PATH, RING):
        made = case.protocol(graph, 3)
        for seen in views(case, graph, 3, made.public):
            (bound,) = view_bounds(made, seen.adversary, [seen.node])
            nothing = not seen.plain.fisher.any() and not seen.plain.leaks
            for mu in (bound.mu, bound.node_mu):
                assert mu in (None, 0.0, math.inf), (seen.adversary, bound)
            assert (bound.mu == 0) <= nothing, (seen.adversary, bound)
            assert (bound.mu == math.inf) <= seen.plain.leaks, (seen.adversary, bound)
            found["no mu" if bound.mu is None else f"{bound.mu:g}"] += 1
    assert found["no mu"]
    record_property("views", str(dict(found)))


# --- mini-batches ---------------------------------------------------------------------------------

HALVES = {"batch": 1, "samples": 2}
IN_BATCHES = [
    Case(unrolled.dpsgd, {**SIGMA, **HALVES, "order": "adapt"}, {"order": "adapt"}, [PATH]),
    Case(
        unrolled.dpsgd,
        {**SIGMA, **HALVES, "noise": "step", "steps": 3},
        {"noise": "step", "steps": 3},
        [PATH],
    ),
    Case(unrolled.fedavg, {**SIGMA, **HALVES, "epochs": 1}, {"epochs": 2}, [STAR]),
    Case(
        unrolled.fedavg,
        {**SIGMA, **HALVES, "epochs": 2, "decay": 0.5},
        {"epochs": 4, "decay": 0.5},
        [STAR],
    ),
    Case(
        unrolled.dpnorm,
        {**SIGMA, "batch": 1, "records": 2, "inner": 2, "alpha": 0.02},
        {"inner": 2, "alpha": 0.02},
        [PATH],
    ),
    Case(unrolled.dkm, {"mechanism": "gaussian", "batch": 1, **MOVED}, {"std": GAUSSIAN}, [PATH]),
    Case(unrolled.dpadmm, {**SIGMA, "batch": 1, "steps": 2}, {"steps": 2}, [PATH]),
    Case(unrolled.secagg, {**SIGMA, "batch": 1}, {}, [COMPLETE]),
]
CREDITED = {"dpsgd", "fedavg", "dpnorm"}  # whose order of records is declared
PASSES = {*CREDITED, "secagg"}  # that use all records before one is used again


@pytest.mark.parametrize("case", IN_BATCHES, ids=str)
def test_a_record_in_one_batch_of_each_pass(case: Case, record_property: Property) -> None:
    """With two records in batches of one, the worst order of every pass is not above mu."""
    (graph,) = case.graphs
    made = replace(case.protocol(graph, 2), records=2)
    judge = Judge()
    credited = 0
    for seen in views(case, graph, 2, made.public):
        count = len(seen.plain.own)
        given = list(orders(count, passes=case.unroll.__name__ in PASSES))
        seen = replace(seen, given=given)
        (bound,) = view_bounds(made, seen.adversary, [seen.node])
        judge.judge(bound, seen)
        (smooth,) = view_bounds(made, seen.adversary, [seen.node], smoothness=SMOOTH)
        if smooth.mu is not None and smooth.mu < math.inf:
            assert smooth.mu >= seen.smooth * (1 - BELOW), (seen.adversary, smooth)
            every = replace(seen, given=None)
            credited += 0 < smooth.mu < 0.95 * max(every.smooth, every.plain.free())
    assert bool(credited) == (case.unroll.__name__ in CREDITED)
    record_property("views", str(judge))


def orders(count: int, *, passes: bool) -> Iterator[list[int]]:
    """Yield which gradients a record enters: one of every pass of two batches, or any of them."""
    if not passes:
        for size in range(count + 1):
            yield from map(list, itertools.combinations(range(count), size))
        return
    starts = range(0, count, 2)
    for places in itertools.product((0, 1), repeat=len(starts)):
        chosen = [at + place for at, place in zip(starts, places, strict=True)]
        yield [step for step in chosen if step < count]


# --- lost messages --------------------------------------------------------------------------------

FAULTY = [
    *(
        Case.alike(unrolled.dpsgd, [RING], order=order, **kind)
        for order in ("combine", "adapt")
        for kind in KINDS
    ),
    Case(unrolled.dpnorm, graphs=[RING]),
    Case.alike(unrolled.dpnorm, [PATH], alpha=0.02),
    Case(unrolled.pdmm, {}, graphs=[PATH]),
    Case(unrolled.pdmm, {"differential": False}, {"differential": False}, [PATH]),
]


@pytest.mark.parametrize("case", FAULTY, ids=str)
def test_lost_messages(case: Case, fresh_seed: int, record_property: Property) -> None:
    """Whatever is lost, and from whom, the bound of the run is not below what records attain."""
    (graph,) = case.graphs
    rounds = 3
    random = np.random.default_rng([20261128, fresh_seed])
    judge = Judge()
    for chance in (0.1, 0.3, 1.0):  # the last: one node falls silent after round 1
        lost = {
            (t, i, j)
            for t in range(1, rounds + 1)
            for i, j in graph.arcs
            if (i == 0 and t > 1 if chance == 1 else random.random() < chance)
        }
        lost = lost or {(1, *graph.arcs[0])}
        first = min(lost)[0]
        whole = case.protocol(graph, rounds)
        made = replace(whole, missing=f"messages of round {first} are missing", holds=first - 1)
        for seen in views(case, graph, rounds, made.public, lost):
            (bound,) = view_bounds(made, seen.adversary, [seen.node])
            if not bound.leaking:
                bound = replace(bound, linear=None)
            judge.judge(bound, seen)
    assert judge.outcomes["exact"] < sum(judge.outcomes.values())
    record_property("views", str(judge))


# --- some of the clients --------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampled(Victim):
    """FedAvg with a public choice of the clients of each round."""

    chosen: tuple[tuple[int, ...], ...] = ()
    centralised = True

    def run(self, *_: object) -> None:
        """Only the declaration is used."""

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare one noised step of every chosen client, and the mean of the results."""
        p = Relations(graph)
        server = graph.nodes - 1
        w = p.public("w0")
        for t in p.rounds(rounds):
            clients = self.chosen[t - 1]
            down = p.send(server, clients, w, "w")
            up: list[Expression] = []
            for i in clients:
                noised = p.grad(i, at=down) + p.noise("e", STD, i)
                up.append(p.send(i, server, down - noised / 10, "up"))
            w = p.state("w", server, eq=sum(up[1:], start=up[0]) / len(up))
        return p


def test_some_clients_of_each_round(fresh_seed: int, record_property: Property) -> None:
    """A public choice of clients is priced exactly: silent rounds count neither less nor more."""
    random = np.random.default_rng([20261129, fresh_seed])
    judge = Judge()
    for _ in range(4):
        taking = random.random((3, 3)) < 0.6
        taking[np.arange(3), random.integers(3, size=3)] = True
        chosen = tuple(tuple(np.flatnonzero(row).tolist()) for row in taking)
        made = Protocol(Sampled(chosen), STAR, 3, {})
        case = Case(unrolled.fedavg, settings={"epochs": 1})
        for seen in views(case, STAR, 3, {"chosen": taking}):
            (bound,) = view_bounds(made, seen.adversary, [seen.node])
            judge.judge(bound, seen)
    assert judge.outcomes["exact"]
    record_property("views", str(judge))


# --- losses that swallow noise --------------------------------------------------------------------


@dataclass(frozen=True)
class Swallowing(Victim):
    """Node 1 draws noise, takes a step from there, and node 0 adds its own step to the result."""

    def run(self, *_: object) -> None:
        """Only the declaration is used."""

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the only noise, which passes through the loss of node 1."""
        p = Relations(graph)
        start = p.public("w0")
        for _ in p.rounds(rounds):
            w = p.state("w", 1, eq=start + p.noise("e", STD, 1))
            stepped = p.send(1, 0, w - p.grad(1, at=w) / 10, "a", secure=True)
            p.send(0, 2, stepped - p.grad(0, at=start), "b")
        return p


def swallowing(run: Unrolled, graph: Graph, rounds: int, public: Any) -> None:
    """The same."""
    for _ in range(rounds):
        w = run.n(1)
        stepped = w - 0.1 * run.g(1, w)
        run.send(1, [0], stepped, secure=True)
        run.send(0, [2], stepped - run.g(0, run.zero))


def test_noise_that_another_loss_may_swallow() -> None:
    """With a Hessian of 10 at node 1, none of its noise is left in what node 0 sends."""
    graph = Graph(3, ((0, 1), (0, 2)))
    who = Adversary("none", frozenset({2}))
    views = []
    for curvature in (0.0, 5.0, 10.0):
        run = Unrolled(curvature={1: curvature})
        swallowing(run, graph, 1, {})
        views.append(run.view(who, 0).constant)
    assert views == [pytest.approx(1 / STD), pytest.approx(2 / STD), math.inf]
    (bound,) = view_bounds(Protocol(Swallowing(), graph, 1, {}), who, [0])
    assert (bound.mu, bound.node_mu) == (None, None)
    assert bound.linear == pytest.approx(1 / STD)
