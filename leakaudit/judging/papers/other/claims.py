"""Papers of other groups: Muffliato's pairwise formula, and primal variable perturbation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch

from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import TaskSpec
from leakaudit.core.verdict import Verdict, against
from leakaudit.judging.papers.row import Judgement, judges
from leakaudit.judging.papers.runs import attained_mu, fresh, protocol
from leakaudit.protocols.prox import prox
from leakaudit.tasks.task import Problem, Task
from leakaudit.theory.relations import determined, know

RHO = 0.05
ETA = 0.05
RECORDS = 10
LOSS = 1.0
TRIALS = 400


@judges(14)
def _pairwise() -> Iterator[Judgement]:
    gossips = 4
    clip = 1.0
    sigma = 1.0
    lr = 0.5
    made = protocol(
        victim="muffliato",
        nodes=8,
        graph="ring",
        rounds=gossips,
        set={"lr": lr, "clip": clip, "sigma": sigma, "gossips": gossips},
    )
    said = (
        2 * torch.from_numpy(cast(Any, made.victim).pairwise(made.graph, gossips))[0]
    )  # mu^2 = 2 rho
    view = know(made.whole, Adversary(hears="none", corrupt=frozenset({0})))
    exact = [attained_mu(view, made.whole.gradients(u), 2 * clip) ** 2 for u in range(1, 8)]
    far = len(determined(view, made.whole.gradients(4), up_to_noise=True))
    listed = "; ".join(
        f"{float(said[u]):.3g} claimed and {exact[u - 1]:.3g} exact at distance {u}"
        for u in range(1, 5)
    )
    mean = sum(exact) / 8
    total = float(said.sum()) / 8
    others = float(said[1:].sum()) / 8
    yield Judgement(
        "one pair",
        against(exact[3] > float(said[4]) * (1 + 1e-9)),
        f"mu^2 on a ring of eight, {gossips} exchanges: {listed}. All messages share one draw "
        "of noise; the restriction in the proof may differ from the formula of the public code",
        {"said": said[1:].tolist(), "exact": exact, "determined_up_to_noise": far},
    )
    yield Judgement(
        "the mean over senders",
        against(mean > total * (1 + 1e-9)),
        f"the exact mu^2 is {mean:.3f}, and the theorem's T d_v / n is {total:.3f}; without "
        f"the term of the node itself, which is not a sender, the formula gives {others:.3f}",
        {"exact": mean, "said": total, "said_of_others": others},
    )


def _rate() -> float:
    """Return xi of exp(-xi |q|), the density of the protocol's noise on a ring."""
    made = protocol(
        victim="pvpadmm",
        nodes=4,
        graph="ring",
        rounds=1,
        samples=RECORDS,
        set={
            "eta": ETA,
            "perturb": "primal",
            "alpha": LOSS,
            "records": RECORDS,
            "convexity": RHO,
            "l2": RHO,
            "bias": "false",
        },
    )
    size = torch.zeros(2, dtype=torch.float64)
    p = made.victim.relations(made.graph, 1, {"w0": size})
    return math.sqrt(len(size) + 1) / p.vectors[p.find("n", 0, 1).vector].std


def _farthest() -> float:
    """Return the largest change of an exact update by one replaced record."""
    task = Task.build(
        TaskSpec("logistic", {"bias": False, "l2": RHO}, "binary", (2,), 2), dtype=torch.float64
    )
    random = fresh()
    x = torch.nn.functional.normalize(
        torch.randn(TRIALS, RECORDS, 2, generator=random, dtype=torch.float64), dim=2
    )
    y = torch.randint(2, (TRIALS, RECORDS), generator=random).double()
    linear = torch.randn(TRIALS, 2, generator=random, dtype=torch.float64)
    other = x.clone()
    other[:, 0] = -x[:, 0]
    far, near = (
        200 * (RHO + 4 * ETA),
        math.sqrt(1 - 0.1**2),
    )  # in trial 0 the model is so far out that the loss of both records is as steep as it can be
    x[0, 1:] = torch.tensor([1.0, 0.0])
    other[0, 1:] = torch.tensor([1.0, 0.0])
    y[0] = 1.0
    linear[0] = torch.tensor([-far, 0.0])
    x[0, 0] = torch.tensor([-0.1, near])
    other[0, 0] = torch.tensor([-0.1, -near])
    weight = torch.full((TRIALS, 1), 4 * ETA, dtype=torch.float64)
    start = torch.zeros(TRIALS, 2, dtype=torch.float64)
    ends = [prox(Problem(task, data, y), start, linear, weight) for data in (x, other)]
    return float((ends[0] - ends[1]).norm(dim=1).max())


@judges(16)
def _primal() -> Iterator[Judgement]:
    rate = _rate()
    moved = _farthest()
    degree = 2
    rounds = 100
    most = 2 / (RECORDS * (RHO + 2 * ETA * degree))
    times = (RHO + 2 * ETA * degree) / RHO
    total = (
        f"the paper does not compose iterations: the losses of {rounds} iterations add up to "
        f"{rounds * LOSS:g} by its figure, and to {rounds * rate * most:.3g} by the bound above"
    )
    yield Judgement(
        "one iteration",
        against(rate * moved > LOSS),
        f"the claimed privacy loss is {LOSS:g} per iteration; replacing a record moves an exact "
        f"update by at most {most:.4f} (measured: {moved:.4f}), so the loss is at most "
        f"{rate * most:.3f} (measured: {rate * moved:.3f}): the noise is {times:.3g} = "
        "(rho + 2 eta N) / rho times what is needed",
        {
            "claimed": LOSS,
            "bound": rate * most,
            "measured": rate * moved,
            "times": times,
        },
    )
    yield Judgement(
        "all iterations",
        Verdict.UNCLAIMED,
        total,
        {"rounds": rounds, "sum": rounds * rate * most},
    )
