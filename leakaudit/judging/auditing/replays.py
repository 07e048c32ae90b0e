"""Many replays of one run, in each of which the target is drawn from known candidates.

The adversary knows all but the target and the noise. It judges a candidate by the likelihood of the
noise that would remain of a leak ``combination @ gradients = value``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from leakaudit._util.seeds import child
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import expired, step
from leakaudit.core.trace import Trace
from leakaudit.protocols import recording
from leakaudit.protocols.recording import Plan, record
from leakaudit.tasks import clipping
from leakaudit.tasks.task import Task
from leakaudit.views.extraction import hearing
from leakaudit.views.extraction.deduction import Deduction

NO_MODELS = (
    "this adversary does not know the models at which gradients were evaluated, "
    "so no likelihood can be computed"
)
NO_SINGLE = (
    "gradients of several local steps are summed, so no likelihood of a record can be computed"
)
NO_OTHERS = "only sums with gradients of other nodes are determined, whose records are not replayed"
# Error of a model, per coordinate, up to which it counts as the model at which gradients were
# evaluated: a choice, far above the rounding of float32.
EXACT = 1e-4


@dataclass(frozen=True)
class Replays:
    """Trials of one node."""

    drawn: Tensor  # (n,) Index of the candidate that was present
    scores: Tensor  # (n, m) Log-likelihood of each candidate
    # the largest change of a gradient between two candidates, at the start model and at the models
    # that the leak reveals exactly
    moved: float = 0.0
    why: str = ""  # why the replays were impossible (then n = 0), otherwise empty

    @property
    def hits(self) -> int:
        """Trials in which the present candidate had the largest score, without NaN and ties."""
        if not len(self.drawn):
            return 0
        best, at = self.scores.nan_to_num(nan=-torch.inf).max(1)
        alone = (self.scores == best[:, None]).sum(1) == 1
        return int(((at == self.drawn) & alone & best.isfinite()).sum())


def replayed(ready: Plan, rows: Tensor, seed: int) -> Plan:
    """Return the plan with the same start and schedule, but other records (N, k) and noise."""
    noise = torch.Generator().manual_seed(child(ready.scenario.seed, seed, 1))
    random: Mapping[str, Generator] = {
        **recording.generators(ready.scenario.seed, *recording.STREAMS),
        "run": noise,
    }
    return replace(ready, rows=rows, random=random)


def replay(
    ready: Plan,
    adversary: Adversary,
    node: int,
    rows: Sequence[int],
    trials: range,
    seed: int,
    gradients: int,
    what: str,
) -> Replays:
    """Run replays with fresh noise, in which the node's first record is the drawn candidate.

    Each of `trials` draws one of the candidates, rows of the data set, uniformly. The time limit
    may end them early.
    """
    others = set(ready.rows.flatten().tolist()) - {int(ready.rows[node, 0])}
    if taken := others & set(rows):
        raise LeakauditError(f"candidates: record {min(taken)} is held by another node")
    random = torch.Generator().manual_seed(child(ready.scenario.seed, seed, 2))
    drawn = torch.randint(len(rows), (trials.stop,), generator=random)[trials.start :]
    task = Task.build(ready.task.spec, dtype=torch.float64)
    clip = clipped_at(ready)
    # A batch for each candidate: the candidate, then the node's other records.
    own = ready.rows[node, 1:]
    batches = torch.stack([torch.cat([torch.tensor([row]), own]) for row in rows])
    x = ready.source.x[batches].double()
    y = ready.source.y[batches]
    scores = torch.zeros(0, len(rows), dtype=torch.float64)
    moved = 0.0
    for k, pick in zip(trials, drawn.tolist(), strict=True):
        if expired():
            break
        records = ready.rows.clone()
        records[node, 0] = rows[pick]
        trace = record(replayed(ready, records, child(seed, k)), None).trace
        leaks = hearing.deduce(Deduction(trace, adversary), [node], gradients)
        if why := leaks.undetermined.get(node) or unusable(leaks[0]):
            return Replays(drawn[:0], scores[:0], why=why)
        leak = leaks[0]
        score = likelihood(leak, taken_at(leak, task, x, y, clip))
        scores = torch.cat([scores, score[None]])
        # The start model is the same in all replays, so it is examined only once.
        if not k or leak.theta_std <= EXACT:
            for theta in _sensitive_at(leak, trace):
                gradient = clipping.gradients(task, theta.expand(len(x), -1), x, y, clip)
                moved = max(moved, float(torch.cdist(gradient, gradient).max()))
        step(what, k + 1, trials.stop)
    return Replays(drawn[: len(scores)], scores, moved)


def joined(parts: Sequence[Replays], counts: Sequence[int]) -> Replays:
    """Join the trials of calls of `replay`, up to the first with fewer than its count."""
    used: list[Replays] = []
    for part, count in zip(parts, counts, strict=True):
        if part.why:
            return part
        used.append(part)
        if len(part.drawn) < count:
            break
    return Replays(
        torch.cat([part.drawn for part in used]),
        torch.cat([part.scores for part in used]),
        max(part.moved for part in used),
    )


def _sensitive_at(leak: GradientLeak, trace: Trace) -> Tensor:
    """Return the models (T, d) at which the change of a gradient is measured."""
    if leak.theta_std > EXACT:
        return trace.public["w0"][None].double()
    return models(leak)


def unusable(leak: GradientLeak) -> str:
    """Return why a leak has no likelihood, empty if it has one."""
    if leak.theta is None:
        return NO_MODELS
    if leak.others:
        return NO_OTHERS
    return NO_SINGLE if leak.inner > 1 else ""


def likelihood(leak: GradientLeak, taken: Tensor) -> Tensor:
    """Return the log-likelihood (m,) of candidates, up to a constant, in float64.

    With the combination C (r, T), the value V (r, c), the whitening W and a candidate's gradients
    G, of `taken` (m, T, c), it is -|W (C G - V)|^2 / 2.
    """
    white = whitening(leak)
    combined = torch.einsum("rt,mtd->mrd", leak.combination.double(), taken)
    residual = (combined - leak.value.double()).transpose(0, 1).flatten(1)
    rest = white @ residual
    scores: Tensor = -rest.reshape(len(white), len(taken), -1).square().sum((0, 2)) / 2
    return scores


def taken_at(leak: GradientLeak, task: Task, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Return gradients (m, T, c) of batches x (m, b, *shape), y (m, b) at the leak's models.

    The norm of a record's gradient is clipped, if `clip` is not 0.
    """
    columns = slice(*leak.columns)
    each = [
        clipping.gradients(task, theta.expand(len(x), -1), x, y, clip)[:, columns]
        for theta in models(leak)
    ]
    return torch.stack(each, 1)


def models(leak: GradientLeak) -> Tensor:
    """Return the leak's models (T, d)."""
    if leak.theta is None:
        raise LeakauditError(NO_MODELS)
    return leak.theta.double()


def clipped_at(ready: Plan) -> float:
    """Return the norm to which a victim clips gradients of records, 0 for none."""
    return float(getattr(ready.victim, "clip", 0.0) or 0.0)


def whitening(leak: GradientLeak) -> Tensor:
    """Return the matrix (r, r) that makes the errors of a leak's rows independent with deviation 1.

    It is the inverse Cholesky factor of their covariance; rounding of the value is added, because
    rows without noise would make it singular.
    """
    noise = (leak.noise if leak.noise is not None else leak.std.diag()).double()
    rounding = torch.finfo(leak.value.dtype).eps * leak.value.double().square().mean().sqrt()
    floor = rounding + torch.finfo(torch.float64).tiny  # positive even if the value is zero
    one = torch.eye(len(noise), dtype=torch.float64)
    covariance = noise @ noise.T + floor**2 * one
    white: Tensor = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariance), one, upper=False
    )
    return white
