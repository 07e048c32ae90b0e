"""Many replays of one run in which the target is drawn from known candidates and identified by the likelihood of the leak.

The attacker of the bounds: it knows every other record, the start, the schedule and the candidates, and misses the target and the noise.
All candidates' gradients are taken at once, at the models that the leak shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.adversary import Adversary
from leakaudit.auditing.runs import child, recorded, replayed
from leakaudit.errors import LeakauditError
from leakaudit.extraction import hearing
from leakaudit.extraction.deduction import Deduction
from leakaudit.leak import GradientLeak
from leakaudit.progress import expired, step
from leakaudit.protocols.recording import Plan
from leakaudit.tasks.task import Task

NO_MODELS = "the models at which gradients were taken are not known to this adversary, so no likelihood can be computed"
EXACT = (
    1e-4  # error of a model, per coordinate, up to which its gradients are those that were taken
)
NO_SINGLE = (
    "gradients of several local steps are summed, so no likelihood of a record can be computed"
)


@dataclass(frozen=True)
class Replays:
    """Trials of one node. drawn: (n,) which candidate was there. scores: (n, m) log-likelihood of each candidate.

    moved: the largest change of a gradient between two candidates, at the start model and at those that the leak shows exactly. why: what
    made it impossible; then n = 0.
    """

    drawn: Tensor
    scores: Tensor
    moved: float = 0.0
    why: str = ""

    @property
    def hits(self) -> int:
        """Trials in which the candidate of the largest score was there; NaN and ties count as misses."""
        if not len(self.drawn):
            return 0
        best, at = self.scores.nan_to_num(nan=-torch.inf).max(1)
        alone = (self.scores == best[:, None]).sum(1) == 1
        return int(((at == self.drawn) & alone & best.isfinite()).sum())


def replay(
    ready: Plan,
    adversary: Adversary,
    node: int,
    rows: Sequence[int],
    trials: int,
    gradients: int,
    seed: int,
    what: str,
) -> Replays:
    """Run `trials` replays with the node's first record drawn uniformly from `rows` of the data set.

    Each takes fresh noise. Stops early at the deadline; raises LeakauditError for rows that other nodes hold.
    """
    others = set(ready.rows.flatten().tolist()) - {int(ready.rows[node, 0])}
    if taken := others & set(rows):
        raise LeakauditError(f"candidates: record {min(taken)} is held by another node")
    random = torch.Generator().manual_seed(child(ready.scenario.seed, seed, 2))
    drawn = torch.randint(len(rows), (trials,), generator=random)
    task = Task.build(ready.task.spec, dtype=torch.float64)
    x, y = ready.source.x, ready.source.y
    batches = torch.stack([torch.cat([torch.tensor([row]), ready.rows[node, 1:]]) for row in rows])
    scores, moved = torch.zeros(0, len(rows), dtype=torch.float64), 0.0
    for k, pick in enumerate(drawn.tolist()):
        if expired():
            break
        records = ready.rows.clone()
        records[node, 0] = rows[pick]
        recorder = recorded(replayed(ready, records, child(seed, k)))
        leaks = hearing.deduce(Deduction(recorder.trace, adversary), [node], gradients)
        if why := leaks.undetermined.get(node) or unusable(leaks[0]):
            return Replays(drawn[:0], scores[:0], why=why)
        at, clip = x[batches].double(), clipped_at(ready)
        scores = torch.cat(
            [scores, likelihood(leaks[0], taken_at(leaks[0], task, at, y[batches], clip))[None]]
        )
        if not k or leaks[0].theta_std <= EXACT:
            seen = (
                recorder.trace.public["w0"][None].double()
                if leaks[0].theta_std > EXACT
                else models(leaks[0])
            )
            moved = max(
                moved,
                max(
                    float(torch.cdist(g, g).max())
                    for g in (gradients_of(task, w, at, y[batches], clip) for w in seen)
                ),
            )
        step(what, k + 1, trials)
    return Replays(drawn[: len(scores)], scores, moved)


def unusable(leak: GradientLeak) -> str:
    """Say why a leak has no likelihood, empty where it has."""
    return NO_MODELS if leak.theta is None else NO_SINGLE if leak.inner > 1 else ""


def likelihood(leak: GradientLeak, taken: Tensor) -> Tensor:
    """Return the log-likelihood (m,) of candidates by their gradients (m, T, c) at the leak's models."""
    white = whitening(leak)
    rest = white @ (
        torch.einsum("rt,mtd->mrd", leak.combination.double(), taken) - leak.value.double()
    ).transpose(0, 1).flatten(1)
    scores: Tensor = -rest.reshape(len(white), len(taken), -1).square().sum((0, 2)) / 2
    return scores


def taken_at(leak: GradientLeak, task: Task, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Return gradients (m, T, c) of batches x (m, b, *shape), y (m, b) at the leak's models, as the protocol takes them."""
    return torch.stack(
        [gradients_of(task, w, x, y, clip)[:, slice(*leak.columns)] for w in models(leak)], 1
    )


def models(leak: GradientLeak) -> Tensor:
    """Return the leak's models (T, d); raises LeakauditError where the adversary does not know them."""
    if leak.theta is None:
        raise LeakauditError(NO_MODELS)
    return leak.theta.double()


def gradients_of(task: Task, theta: Tensor, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Return the mean gradients (m, d) of batches at one model, every record's cut to the norm `clip`, 0 for none."""
    if not clip:
        return task.gradients(theta.expand(len(x), -1), x, y)
    each = task.gradients(
        theta.expand(x.shape[0] * x.shape[1], -1), x.flatten(0, 1)[:, None], y.flatten()[:, None]
    )
    cut = each * (clip / each.norm(dim=1, keepdim=True).clamp_min(clip))
    mean: Tensor = cut.reshape(*x.shape[:2], -1).mean(1)
    return mean


def clipped_at(ready: Plan) -> float:
    """Return the norm to which a victim cuts the gradient of a record, 0 for none."""
    return float(getattr(ready.victim, "clip", 0.0) or 0.0)


def whitening(leak: GradientLeak) -> Tensor:
    """Return the matrix (m, m) that makes the errors of the rows independent with deviation 1."""
    noise = (leak.noise if leak.noise is not None else leak.std.diag()).double()
    floor = (
        torch.finfo(leak.value.dtype).eps * leak.value.double().square().mean().sqrt()
        + torch.finfo(torch.float64).tiny
    )
    one = torch.eye(len(noise), dtype=torch.float64)
    white: Tensor = torch.linalg.solve_triangular(
        torch.linalg.cholesky(noise @ noise.T + floor**2 * one), one, upper=False
    )
    return white
