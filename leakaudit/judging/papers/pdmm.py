"""The PDMM thesis: what differential messages reveal.

The rows also cover training that stops early, batches, and subsets of the channels.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.verdict import Verdict, against
from leakaudit.inversion import attacking
from leakaudit.judging.papers.row import Judgement, Quote
from leakaudit.judging.papers.runs import FinishedRun, fresh, protocol, run
from leakaudit.judging.papers.sources import pdmm_row
from leakaudit.protocols.declared import constant
from leakaudit.scoring.scoring import score
from leakaudit.theory.relations import is_determined, know
from leakaudit.views.extraction import hearing

EXACT = 1e-6
STOPS = (5, 20, 100, 400)
ATTACKED = range(8)  # those of the 60 nodes whose inputs are computed
BATCHES = (4, 8)
PLANE = {"data": "gaussians", "model": "logistic"}
NODES = 60
# The thesis' network (section 3.1) and constants (appendix, experimental setup).
THESIS: dict[str, Any] = {
    "nodes": NODES,
    "graph": f"rgg:{math.sqrt(math.log(NODES) / NODES):.6f}",
    "set": {"rho": 0.4, "alpha": 0.1, "z0": 1.0},
    **PLANE,
}


def two_steps(done: FinishedRun, leak: GradientLeak) -> GradientLeak:
    """Return g^1 - g^3 by eq. (4.3), taking the last models of all nodes as equal.

    Args:
        done: A run with theta = 1 and one gradient step.
    """
    w = done.truth.states["w"]
    rho = constant(done.trace, "rho")
    a = 1 / constant(done.trace, "alpha")
    w = w - w[-1]  # the messages give the changes of w; the final w*, common to all nodes, cancels
    around = list(done.trace.graph.neighbours[leak.node])
    own = w[:, leak.node]
    d = len(around)
    value = (
        (rho * d - a) * (own[3] - own[1])
        + a * own[4]
        + (2 * rho * d - a) * own[2]
        - 2 * rho * w[3, around].sum(0)
    )
    combination = torch.tensor([[1.0, 0.0, -1.0]], dtype=w.dtype)
    std = torch.full((1,), 1e-15, dtype=w.dtype)
    return replace(
        leak,
        rounds=torch.arange(1, 4),
        combination=combination,
        value=value[None],
        std=std,
        noise=None,
        theta=None,
    )


def input_error(done: FinishedRun, leaks: list[GradientLeak]) -> float:
    """Return the median relative error of the inputs that the analytic attack computes."""
    found = [attacking.attack_one(leak, done.plan.task, "analytic", fresh()) for leak in leaks]
    return median(float((s.relative_error or (1.0,))[0] or 1.0) for s in score(found, done.truth))


def _early_stopping() -> tuple[Judgement, ...]:
    one = dict[str, float]()
    two = dict[str, float]()
    for stop in STOPS:
        done = run(rounds=stop, **THESIS)
        leaks = list(hearing.leaks(done.trace, nodes=ATTACKED, rounds=6))
        one[str(stop)] = input_error(done, leaks)
        two[str(stop)] = input_error(done, [two_steps(done, leak) for leak in leaks])
    listed = ", ".join(f"{two[str(s)]:.2g} and {one[str(s)]:.1e} at t_max = {s}" for s in STOPS)
    says = (
        f"the median error of the inputs of {len(ATTACKED)} of 60 nodes, from the thesis' two-step "
        f"and from one-step differences, is {listed}"
    )
    return (
        Judgement(
            "gradient differences",
            against(max(one.values()) < EXACT),
            says,
            {"one_step": one, "two_step": two},
        ),
    )


def _true_difference(done: FinishedRun, node: int, t: int, by: int) -> Tensor:
    w = done.truth.states["w"]
    x, y = done.truth.of(node)
    return done.plan.task.gradient(w[t, node], x.double(), y) - done.plan.task.gradient(
        w[t + by, node], x.double(), y
    )


def _printed(done: FinishedRun) -> float:
    """Return the largest relative error of eq. (2.13) if the models are known.

    Its right side is rho d (w^t + w^{t+2}) - 2 rho sum_j w_j^{t+1}.
    """
    w = done.truth.states["w"]
    rho = constant(done.trace, "rho")
    errors = []
    for node in range(done.trace.graph.nodes):
        around = list(done.trace.graph.neighbours[node])
        for t in range(1, len(w) - 2):
            said = rho * len(around) * (w[t, node] + w[t + 2, node]) - 2 * rho * w[
                t + 1, around
            ].sum(0)
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


def _what_is_learnt() -> tuple[Judgement, ...]:
    thetas = (1.0, 0.5, 0.3)
    runs = [
        run(
            nodes=8,
            graph="ring",
            rounds=10,
            samples=5,
            set={"theta": t, "update": "exact", "l2": 0.1},
            **PLANE,
        )
        for t in thetas
    ]
    two = list(map(_printed, runs))
    one = list(map(_one_step, runs))
    listed = ", ".join(f"{e:.1e} for theta = {t:g}" for t, e in zip(thetas, two, strict=True))
    better = ", ".join(f"{e:.1e} for theta = {t:g}" for t, e in zip(thetas, one, strict=True))
    return (
        Judgement(
            "two-step differences",
            against(two[0] > EXACT),
            f"the relative error of eq. (2.13) is {listed}; the equation requires theta = 1",
            {"error": two},
        ),
        Judgement(
            "one-step differences",
            Verdict.UNCLAIMED,
            f"the messages contain them, too, and no models are needed; the error is {better}",
            {"error": one},
        ),
    )


def _images(samples: int, rounds: int, attack: str) -> tuple[int, int, bool]:
    """Return how many faces and labels differences reveal, and whether all are certified EXACT.

    A face counts if it is recovered bit for bit.
    """
    wires = {} if samples == 1 else {"wires": "node:0"}
    settings = {"hidden": 128, "z0": 0.01}
    done = run(
        nodes=4,
        graph="ring",
        rounds=rounds,
        samples=samples,
        states=False,
        dtype="float32",
        set=settings,
        **wires,
    )
    leaks = list(hearing.leaks(done.trace, nodes=None if samples == 1 else [0]))
    found = []
    for leak in leaks:
        found.append(attacking.attack_one(leak, done.plan.task, attack, fresh()))
    scores = score(found, done.truth)
    exact = 0
    right = 0
    for one in scores:
        exact += sum(map(bool, one.exact or ()))
        right += sum(map(bool, one.label_correct or ()))
    return exact, right, all(f.certificate is Certificate.EXACT for f in found)


def _batches() -> tuple[Judgement, ...]:
    faces, labels, _ = _images(1, 10, "analytic")
    findings = [
        Judgement(
            "labels from differences",
            against(labels == 4),
            f"the attack recovers {labels} of 4 labels of nodes with one sample, and {faces} of 4 "
            "faces bit for bit, without any model",
            {"labels": labels, "faces": faces, "of": 4},
        )
    ]
    for size in BATCHES if "exact" in registry.names("attacks") else ():
        whole, _, sure = _images(size, 20, "exact")
        says = (
            f"the attack recovers {whole} of {size} faces bit for bit from differences, "
            f"{'all' if sure else 'not all'} of them certified"
        )
        findings.insert(
            0,
            Judgement(
                f"a batch of {size}",
                against(whole == size),
                says,
                {"exact": whole, "of": size, "certified": sure},
            ),
        )
    return tuple(findings)


def _taps(shares: tuple[float, ...]) -> list[dict[str, int]]:
    """Return for how many nodes some channels of a ten-node grid determine a difference."""
    made = protocol(nodes=10, graph="grid", rounds=12, set={"z0": 1.0}, **PLANE)
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


def _subspace() -> tuple[Judgement, ...]:
    settings = {
        "nodes": 8,
        "graph": "ring",
        "rounds": 10,
        "samples": 5,
        "set": {"z0": 1.0},
        **PLANE,
    }
    error = _one_step(run(**settings))
    made = protocol(**settings)
    taps = _taps((0.7, 0.6, 0.5))
    view = know(made.whole, Adversary())
    told = any(is_determined(view, made.whole.find("g", i, 5)) for i in range(8))
    says = (
        "single gradients leak"
        if told
        else "no single gradient is determined: one vector of each node is missing"
    )
    listed = "; ".join(
        f"{t['edges']} of {t['of']} channels determine a difference of {t['nodes']} of 10 nodes"
        for t in taps
    )
    return (
        Judgement(
            "single gradients",
            against(told),
            f"on a ring of 8 (E = N) with all channels observed, but not the random z^0, {says}",
            {"determined": told},
        ),
        Judgement(
            "differences of gradients",
            Verdict.UNCLAIMED,
            f"every one-step difference is recovered with a relative error of at most {error:.1e}, "
            "as the thesis' own Theorem 1 suggests",
            {"relative_error": error},
        ),
        Judgement(
            "differences, some channels observed",
            Verdict.UNCLAIMED,
            f"on a grid of 10, {listed}",
            {"taps": taps},
        ),
    )


LISTENS = "an eavesdropper observes all channels except those of z^0, and knows the constants"
INPUTS = "an input counts as recovered if its relative error is below 1e-6"

EXAMPLE = (
    "logistic regression on 60 nodes with one sample each, rho = .4 and alpha = .1, on a random "
    "geometric graph of the thesis' radius sqrt(log N / N)"
)

ROWS = (
    pdmm_row(
        number=4,
        source="Yu 2023, section 6.2",
        claim="stopping early hides the gradient differences",
        quotes=(
            Quote(
                "section 6.2",
                "On one hand, it helps prevent model overfitting; on the other hand, it "
                "can also increase $\\boldsymbol{e}_i^{(t_{\\text{max}})}$, thereby "
                "enhancing the extent of privacy preservation.",
            ),
            Quote(
                "section 6.3",
                "We can see that for the green curve, as expected, the reconstruction "
                "error will decrease as t_{max} increases without quantization, i.e., the "
                "longer the adversary waits, the higher the reconstruction accuracy will "
                "be.",
            ),
        ),
        assumes=(
            LISTENS,
            INPUTS,
            EXAMPLE,
            "k_max = 1",
        ),
        judge=_early_stopping,
    ),
    pdmm_row(
        number=5,
        source="Yu 2023, chapter 5 and the paper of its appendix",
        claim="from differences, batches of 4 to 8 are recovered badly and labels not at all",
        quotes=(
            Quote(
                "appendix, section 7",
                "As a consequence, with decentralized FL, the quality of reconstructed "
                "samples is significantly lower than the quality obtained with "
                "centralized FL, especially for large batch sizes.",
            ),
            Quote(
                "section 5.2.1",
                "It can be observed that the difference of gradients does not contain sign "
                "information that can be used to distinguish the label.",
            ),
        ),
        assumes=(
            LISTENS,
            "faces, and a ReLU network with a fully connected first layer of 128, like the thesis' "
            "two-layer perceptrons",
        ),
        judge=_batches,
    ),
    pdmm_row(
        number=6,
        source="Yu 2023, Theorem 1",
        claim="an adversary learns the two-step gradient differences",
        quotes=(
            Quote(
                "Theorem 1",
                "Assume there is at least one corrupt node in the network, then for each "
                "honest node i with at least one honest neighbor, the adversary can learn "
                "$\\{w_i^{(t)}: t \\ge 1\\}$ as well as $$\\nabla "
                "f_i\\left(\\boldsymbol{w}_i^{(t)}\\right) - \\nabla "
                "f_i\\left(\\boldsymbol{w}_i^{(t+2)}\\right), \\quad t \\ge 0.$$",
            ),
        ),
        assumes=(
            "exact updates, theta = 1, one corrupt node",
            "judged with all models known, for t >= 1",
        ),
        judge=_what_is_learnt,
    ),
    pdmm_row(
        number=13,
        source="Yu 2023, sections 2.3.2 and 5.1.1",
        claim=(
            "a random z^0 keeps gradients from leaking directly if there are at least as many "
            "edges as nodes"
        ),
        quotes=(
            Quote(
                "section 5.1.1",
                "In conclusion, we can say that differential PDMM with subspace "
                "perturbation can avoid direct gradient leakage.",
            ),
            Quote(
                "section 2.3.2",
                "To ensure \\bar{H}_p^{\\perp} is non-empty, we need the number of edges "
                "larger or equal to the number of nodes,i.e. $E \\geq N$, as shown in "
                "[28].",
            ),
        ),
        assumes=(
            LISTENS,
            "E >= N",
            "a gradient leaks if it is an exact linear combination of observed vectors",
        ),
        judge=_subspace,
    ),
)
