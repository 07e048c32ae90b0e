"""DP-Norm's items that need no training: Lemma 1 and the dimensions of Table I."""

from __future__ import annotations

from collections.abc import Sequence

from leakaudit.judging.papers.dp_norm.claims import ALPHA, BATCH, LOCAL, RECORDS, STEP
from leakaudit.judging.papers.drawing import draws, exact
from leakaudit.judging.papers.measured import MeasuredPanel
from leakaudit.judging.papers.runs import fresh, run
from leakaudit.protocols.dpnorm_family import sensitivity

DEGREE = 2  # neighbours of a node of a ring
ROUNDS = 20  # until a change that remains from round to round has settled


def moved(alpha: float, rounds: int) -> list[float]:
    """Return how far a replaced record moves a node's model after each round, if G = 1.

    The model of Algorithm 1, line 11, keeps gamma / (gamma + eta mu E) of a difference in each of K
    steps, and the record is in the last of the d / B mini-batches of each pass. Its gradient is the
    opposite one after the replacement, so that of the mini-batch changes by 2 / B.
    """
    eta = 1 / (STEP * DEGREE * LOCAL)
    gamma = 1 + alpha * eta
    kept = gamma / (gamma + eta * STEP * DEGREE)
    passes = RECORDS // BATCH
    now = 0.0
    after = []
    for _ in range(rounds):
        for k in range(LOCAL):
            hit = k % passes == passes - 1
            now = kept * (now + STEP * 2 / BATCH * hit)
        after.append(now)
    return after


@draws("dp-norm/lemma1")
def _lemma_1(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    lines = []
    rounds = [*range(1, ROUNDS + 1)]
    for alpha in (ALPHA, 0.0):
        gamma = 1 + alpha / (STEP * DEGREE * LOCAL)
        most = sensitivity(gamma, STEP, LOCAL, RECORDS, BATCH, 1.0)
        lines += [
            exact(f"Lemma 1, alpha = {alpha:g}", rounds, [most] * ROUNDS),
            exact(f"constant gradients, alpha = {alpha:g}", rounds, moved(alpha, ROUNDS)),
        ]
    title = "largest change of a node's model by one record"
    return [MeasuredPanel("moved", title, "round", lines, logarithmic=True)]


@draws("dp-norm/table1")
def _table_1(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    done = run(victim="dpnorm", nodes=6, graph="ring", rounds=1, samples=20, set={"bias": False})
    x, _ = done.truth.of(0)
    sent = sum(int((m.src == 0).sum()) * m.payload.shape[1] for m in done.trace.messages)
    size = done.truth.states["w"].shape[-1]  # p
    said = [x.shape[1] * len(x), size, size * DEGREE]  # q d_i, p and p E_i
    held = [x.numel(), done.plan.task.init(fresh()).numel(), sent]
    symbols = ["x_i", "w_i", "lambda_i"]
    lines = [
        exact("dimensions of Table I", symbols, [float(count) for count in said]),
        exact("a run", symbols, [float(count) for count in held]),
    ]
    return [MeasuredPanel("numbers", "numbers that a node holds", "symbol", lines)]
