"""Whether a gate can tell: the attack must solve a leak that was planted for it, and must not match the records of others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from scipy.stats import binom
from torch import Tensor

from leakaudit import api
from leakaudit.errors import AttackError
from leakaudit.gate.cells import Cell, generator
from leakaudit.gate.runs import Recorded
from leakaudit.leak import GradientLeak
from leakaudit.reconstruction import Reconstruction
from leakaudit.scoring import score
from leakaudit.trace import Truth

NEAR_DB, NEAR = 20.0, 0.1  # PSNR of an image, relative error of anything else, from which the planted record counts as recovered
CHANCE = 1e-3  # of so many matches by guessing; fewer than that and the scores are not to be trusted
ROUNDS, STEP = 4, 0.05  # gradients of a planted leak where there is none to copy, and how far models move between them
PLANTED = "the planted record"


@dataclass(frozen=True)
class Control:
    """The outcome of one control; says: in words, what was expected and what came."""

    name: str
    ok: bool
    says: str


def positive(cell: Cell, run: Recorded, nodes: tuple[int, ...]) -> Control:
    """Plant gradients of one known record, without noise, where the program's own leak stands, and see whether the attack recovers it."""
    leak, truth = planted(cell.leak, run, nodes[0])
    try:
        found = api.attack_one(leak, run.task, cell.attack, generator(run.seed, leak.node), **cell.settings)
    except AttackError as e:
        return Control("positive", False, f"{cell.attack} cannot use this leak, so it tells nothing: {e}")
    ok, says = _solved(found, truth)
    return Control("positive", ok, f"{cell.attack} on gradients of {PLANTED} without noise: {says}")


def planted(like: GradientLeak | None, run: Recorded, node: int) -> tuple[GradientLeak, Truth]:
    """Return noise-free gradients of one record of the data set, combined like a leak of the run, and the truth that goes with them.

    like: the leak whose rounds, models and combination are copied; without one, single gradients at models near the first.
    """
    others = run.truth.pool if len(run.truth.pool) else run.truth.x
    x, y = others[:1].to(run.truth.x), run.truth.y[:1]
    rounds = torch.arange(1, ROUNDS + 1) if like is None else like.rounds
    combination = torch.eye(len(rounds), dtype=torch.float64) if like is None else like.combination
    models = _models(run, len(rounds)) if like is None or like.theta is None else like.theta.double()
    columns = run.trace.columns if like is None else like.columns
    at = [run.task.gradient(m, x.to(m), y) for m in models.to(run.task.device)]
    value = combination.double() @ torch.stack(at)[:, slice(*columns)].double().cpu()
    dtype = run.trace.dtype if like is None else like.value.dtype
    std = torch.full((len(value),), float(value.square().mean().sqrt()) * torch.finfo(torch.float32).eps, dtype=torch.float64)
    theta = models if like is None or like.theta is not None else None
    made = GradientLeak(node, rounds, combination, value.to(dtype), std, columns, theta=theta, batch=1, formula="planted")
    index = torch.zeros(1, dtype=torch.int64)
    rest = torch.cat([others[1:].to(x), run.truth.x])
    return made, replace(run.truth, x=x, y=y, node=index + node, index=index, pool=rest)


def negative(cell: Cell) -> Control:
    """Score each reconstruction against the record of another node or run: it may match by chance alone."""
    hits, bits, trials, chance = 0, 0, 0, 0.0
    for found, truth in _shuffled(cell):
        (scored,) = score(found, truth)
        for match, rank in zip(scored.exact or [False] * len(scored.matched), scored.rank or (), strict=False):
            trials, hits, bits = trials + 1, hits + (rank == 1), bits + bool(match)
            chance = max(chance, scored.chance or 0.0)
    if not trials:
        return Control("negative", True, "no reconstruction to score against the records of others")
    ok = bits == 0 and float(binom.sf(hits - 1, trials, chance)) >= CHANCE
    says = f"against the records of others, {hits} of {trials} identified (chance {chance:.2g}) and {bits} identical"
    return Control("negative", ok, says if ok else f"{says}; expected chance: the attack or the scores do not depend on the leak")


def _solved(found: Reconstruction, truth: Truth) -> tuple[bool, str]:
    (scored,) = score(found, truth)
    if not len(found.x) and found.y is not None:
        share = scored.labels_found or 0.0
        return share == 1.0, f"{share:.0%} of the labels found, expected all"
    error = (scored.relative_error or (None,))[0]
    if error is None:
        return False, f"nothing recovered ({found.note or 'no reason given'})"
    if scored.psnr is not None and (psnr := scored.psnr[0]) is not None:
        return psnr >= NEAR_DB, f"recovered at {psnr:.1f} dB, expected at least {NEAR_DB:g} dB"
    return error <= NEAR, f"recovered with relative error {error:.2g}, expected at most {NEAR:g}"


def _models(run: Recorded, count: int) -> Tensor:
    """Return models (count, d) near the first one."""
    random = torch.Generator().manual_seed(run.seed)
    first = run.trace.public.get("w0")
    if first is None or first.shape != (run.trace.layout.size,):
        first = run.task.init(random)
    move = torch.randn(count, len(first), generator=random, dtype=torch.float64)
    return first.double().cpu() + STEP * move


def _shuffled(cell: Cell) -> Iterator[tuple[Reconstruction, Truth]]:
    """Yield each reconstruction with the next one's records, where these are others than its own."""
    for (found, truth), (other, their) in zip(cell.found, [*cell.found[1:], *cell.found[:1]], strict=True):
        own, strange = truth.of(found.node)[0], their.of(other.node)[0]
        if len(found.x) and not any(bool((o == s).all()) for o in own for s in strange):
            yield replace(found, node=other.node, y=None), their
