"""The PDMM thesis: what differential messages reveal, early, of batches and on some channels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor

from leakaudit.core.adversary import Adversary
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.verdict import Verdict, against
from leakaudit.inversion import attacking
from leakaudit.judging.papers.row import Judgement, judges
from leakaudit.judging.papers.runs import EXACT, FinishedRun, fresh, input_errors, protocol, run
from leakaudit.protocols.declared import constant
from leakaudit.scoring.scoring import score
from leakaudit.theory.relations import determined, is_determined, know
from leakaudit.views.extraction import hearing, two_steps
from leakaudit.views.extraction.deduction import Deduction

STOPS = (5, 20, 100, 400)
ATTACKED = range(8)  # those of the 60 nodes whose inputs are computed
BATCHES = (8, 4)
NODES = 60
# The thesis' network (section 3.1) and constants (appendix, experimental setup).
THESIS: dict[str, Any] = {
    "nodes": NODES,
    "graph": f"rgg:{math.sqrt(math.log(NODES) / NODES):.6f}",
    "set": {"rho": 0.4, "alpha": 0.1, "z0": 1.0},
}


def input_error(done: FinishedRun, leaks: list[GradientLeak]) -> float:
    """Return the median relative error of the inputs of the analytic attack."""
    return median(input_errors(done, leaks))


@judges(4)
def _early_stopping() -> Iterator[Judgement]:
    one = dict[str, float]()
    two = dict[str, float]()
    for stop in STOPS:
        done = run(rounds=stop, **THESIS)
        leaks = list(hearing.leaks(done.trace, nodes=ATTACKED, rounds=6))
        one[str(stop)] = input_error(done, leaks)
        heard = Deduction(done.trace, Adversary())
        estimates = [two_steps.leak(heard, leak.node, 1, "gradient") for leak in leaks]
        two[str(stop)] = input_error(done, estimates)
    listed = ", ".join(f"{two[str(s)]:.2g} and {one[str(s)]:.1e} at t_max = {s}" for s in STOPS)
    yield Judgement(
        "gradient differences",
        against(max(one.values()) < EXACT),
        f"the median error of the inputs of {len(ATTACKED)} of 60 nodes, from the thesis' two-step "
        f"and from one-step differences, is {listed}",
        {"one_step": one, "two_step": two},
    )


def _true_difference(done: FinishedRun, node: int, t: int, by: int) -> Tensor:
    w = done.truth.states["w"]
    x, y = done.truth.of(node)
    return done.plan.task.gradient(w[t, node], x.double(), y) - done.plan.task.gradient(
        w[t + by, node], x.double(), y
    )


def from_models(done: FinishedRun, node: int) -> Tensor:
    """Return g^t - g^{t+2} by eq. (2.13) from all models, (R - 2, d) for t = 1 .. R - 2.

    Its right side is rho d (w^t + w^{t+2}) - 2 rho sum_j w_j^{t+1}.
    """
    w = done.truth.states["w"]
    rho = constant(done.trace, "rho")
    around = list(done.trace.graph.neighbours[node])
    own = w[:, node]
    return rho * len(around) * (own[1:-2] + own[3:]) - 2 * rho * w[2:-1, around].sum(1)


def _printed(done: FinishedRun) -> float:
    """Return the largest relative error of eq. (2.13) if the models are known."""
    errors = []
    for node in range(done.trace.graph.nodes):
        for t, said in enumerate(from_models(done, node), 1):
            true = _true_difference(done, node, t, 2)
            errors.append(float((said - true).norm() / true.norm()))
    return max(errors)


def _one_step(done: FinishedRun) -> float:
    """Return the largest relative error of an eavesdropper's one-step differences."""
    errors = []
    for leak in hearing.leaks(done.trace):
        x, y = done.truth.of(leak.node)
        models = done.truth.states["w"][leak.theta_rounds, leak.node]
        true = leak.combination @ torch.stack(
            [done.plan.task.gradient(m, x.double(), y) for m in models]
        )
        errors.append(float((leak.value - true).norm() / true.norm()))
    return max(errors)


@judges(6)
def _what_is_learnt() -> Iterator[Judgement]:
    thetas = (1.0, 0.5, 0.3)
    runs = [
        run(
            nodes=8,
            graph="ring",
            rounds=10,
            samples=5,
            set={"theta": t, "update": "exact", "l2": 0.1},
        )
        for t in thetas
    ]
    two = list(map(_printed, runs))
    one = list(map(_one_step, runs))
    listed = ", ".join(f"{e:.1e} for theta = {t:g}" for t, e in zip(thetas, two, strict=True))
    better = ", ".join(f"{e:.1e} for theta = {t:g}" for t, e in zip(thetas, one, strict=True))
    yield Judgement(
        "two-step differences",
        against(two[0] > EXACT),
        f"the relative error of eq. (2.13) is {listed}; the equation requires theta = 1",
        {"error": two},
    )
    yield Judgement(
        "one-step differences",
        Verdict.UNCLAIMED,
        f"the messages contain them, too, and no models are needed; the error is {better}",
        {"error": one},
    )


def _images(samples: int, rounds: int, attack: str) -> tuple[int, int, bool]:
    """Return how many faces and labels differences reveal, and whether all are EXACT."""
    alone = samples == 1
    done = run(
        nodes=4,
        graph="ring",
        rounds=rounds,
        samples=samples,
        states=False,
        dtype="float32",
        data="faces",
        model="mlp",
        wires="all" if alone else "node:0",
        set={"hidden": 128, "z0": 0.01},
    )
    found = []
    for leak in hearing.leaks(done.trace, nodes=None if alone else [0]):
        found.append(attacking.attack_one(leak, done.plan.task, attack, fresh()))
    scores = score(found, done.truth)
    exact = sum(sum(map(bool, one.exact or ())) for one in scores)
    right = sum(sum(map(bool, one.label_correct or ())) for one in scores)
    return exact, right, all(f.certificate is Certificate.EXACT for f in found)


@judges(5)
def _batches() -> Iterator[Judgement]:
    for size in BATCHES:
        whole, _, sure = _images(size, 20, "exact")
        yield Judgement(
            f"a batch of {size}",
            against(whole == size),
            f"the attack recovers {whole} of {size} faces bit for bit from differences, "
            f"{'all' if sure else 'not all'} of them certified",
            {"exact": whole, "of": size, "certified": sure},
        )
    faces, labels, _ = _images(1, 10, "analytic")
    yield Judgement(
        "labels from differences",
        against(labels == 4),
        f"the attack recovers {labels} of 4 labels of nodes with one sample, and {faces} of 4 "
        "faces bit for bit, without any model",
        {"labels": labels, "faces": faces, "of": 4},
    )


def _taps(shares: tuple[float, ...]) -> list[dict[str, int]]:
    """Return for how many nodes some channels of a ten-node grid determine a difference."""
    made = protocol(nodes=10, graph="grid", rounds=12, set={"z0": 1.0})
    found = []
    arcs = sorted(made.graph.arcs)
    random = fresh(4)
    for share in shares:
        order = torch.randperm(len(arcs), generator=random)[: round(share * len(arcs))].tolist()
        view = know(made.whole, Adversary(hears=frozenset(arcs[k] for k in order)))
        wanted = [made.whole.find("g", i, 6) - made.whole.find("g", i, 7) for i in range(10)]
        found.append(
            {
                "edges": len(order),
                "of": len(arcs),
                "nodes": sum(is_determined(view, e) for e in wanted),
            }
        )
    return found


@judges(13)
def _subspace() -> Iterator[Judgement]:
    settings = {
        "nodes": 8,
        "graph": "ring",
        "rounds": 10,
        "samples": 5,
        "set": {"z0": 1.0},
    }
    error = _one_step(run(**settings))
    made = protocol(**settings)
    taps = _taps((0.7, 0.6, 0.5))
    view = know(made.whole, Adversary())
    told = any(is_determined(view, made.whole.find("g", i, 5)) for i in range(8))
    says = "no single gradient is determined: one vector of each node is missing"
    if told:
        says = "single gradients leak"
    listed = "; ".join(
        f"{t['edges']} of {t['of']} channels determine a difference of {t['nodes']} of 10 nodes"
        for t in taps
    )
    yield Judgement(
        "single gradients",
        against(told),
        f"on a ring of 8 (E = N) with all channels observed, but not the random z^0, {says}",
        {"determined": told},
    )
    yield Judgement(
        "differences of gradients",
        Verdict.UNCLAIMED,
        f"every one-step difference is recovered with a relative error of at most {error:.1e}, "
        "as the thesis' own Theorem 1 suggests",
        {"relative_error": error},
    )
    yield Judgement(
        "differences, some channels observed",
        Verdict.UNCLAIMED,
        f"on a grid of 10, {listed}",
        {"taps": taps},
    )


@judges(43)
def _asynchronous() -> Iterator[Judgement]:
    third = {**THESIS, "set": {**THESIS["set"], "active": NODES // 3}}
    done = run(rounds=12, **third)
    leaks = list(hearing.leaks(done.trace, rounds=12))
    # A combination of differences weighs the gradients by numbers that add up to zero.
    absolute = max(float(leak.combination.sum(1).abs().max()) for leak in leaks) > EXACT
    made = protocol(rounds=12, nodes=8, graph="ring", set={"z0": 1.0, "active": 3})
    view = know(made.whole, Adversary(), own=False)
    for node in range(8):
        for row in determined(view, made.whole.gradients(node)):
            absolute |= sum(row.terms.values()) != 0
    errors = input_errors(done, leaks)
    computed = sum(error < EXACT for error in errors)
    says = "every determined combination of gradients is one of differences"
    if absolute:
        says = "gradients leak that are not differences"
    yield Judgement(
        "the upper bound",
        against(absolute),
        f"{says}, between rounds in which a node was active",
        {"absolute": absolute},
    )
    yield Judgement(
        "what it protects",
        Verdict.UNCLAIMED,
        f"after 12 rounds of a third of the nodes, differences of {len(leaks)} of {NODES} nodes "
        f"are determined, and the inputs of {computed} of these are computed",
        {"nodes": len(leaks), "recovered": computed},
    )
