"""Whether a gate can tell: the attack must solve leaks that were planted for it, and must not match the records of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.stats import binom
from torch import Tensor

from leakaudit._util.seeds import generator
from leakaudit.errors import AttackError
from leakaudit.gate import measures
from leakaudit.gate.cells import Cell
from leakaudit.gate.runs import Recorded
from leakaudit.inversion import attacking
from leakaudit.leak import GradientLeak
from leakaudit.reconstruction import Reconstruction
from leakaudit.scoring.scoring import score
from leakaudit.trace import Truth

NEAR_DB, NEAR = (
    20.0,
    0.1,
)  # PSNR of an image, relative error of anything else, from which a planted record counts as recovered
CHANCE = (
    1e-3  # of so many matches by guessing; fewer than that and the scores are not to be trusted
)
ROUNDS, STEP = (
    4,
    0.05,
)  # gradients of a planted leak where there is none to copy, and how far models move between them
BATCH = "batch"  # what the control of several records at once is about
GAIN = 6.0  # dB nearer to the best record of a planted batch than a guess is: half of its error
TWO, MOST = (
    2,
    10,
)  # records that are planted for an attack on inputs, and at most for one on labels alone


@dataclass(frozen=True)
class Control:
    """The outcome of one control.

    ok: None where there was nothing to test it on. says: in words, what was expected and what came. about: which of several of a name.
    """

    name: str
    ok: bool | None
    says: str
    about: str = ""


def positive(cell: Cell, run: Recorded, nodes: tuple[int, ...]) -> Control:
    """Plant gradients of known records, without noise, where the program's own leak stands, and see whether the attack recovers each.

    Two records for an attack on inputs; for one on labels alone as many as leave guessing a chance of `CHANCE`, with labels that are drawn.
    What it recovers is kept in ``cell.planted`` for `negative`.
    """
    for number in range(MOST):
        leak, truth = planted(cell.leak, run, nodes[0], number)
        try:
            found = attacking.attack_one(
                leak, run.task, cell.attack, generator(run.seed, leak.node), **cell.settings
            )
        except AttackError as e:
            return Control(
                "positive", False, f"{cell.attack} cannot use this leak, so it tells nothing: {e}"
            )
        ok, says = _solved(found, truth)
        if not ok:
            return Control(
                "positive",
                False,
                f"{cell.attack} on gradients of a planted record without noise: {says}",
            )
        cell.planted.append((found, truth))
        if number + 1 >= TWO and (
            len(found.x) or run.trace.task.classes ** -(number + 1.0) <= CHANCE
        ):
            break
    return Control(
        "positive",
        True,
        f"{cell.attack} solves {len(cell.planted)} leaks that were planted without noise, the last: {says}",
    )


def batched(cell: Cell, run: Recorded, nodes: tuple[int, ...], hidden: bool) -> Control | None:
    """Plant the gradient of as many records at once as the run's own gradients are of, and see whether the attack gets near one.

    None where these are of one record, which `positive` plants, where the data set is too small, or for an attack on labels alone.
    hidden: whether noise is declared, which the recording and the lint hold the program to. Without it all depends on the attack, and
    one that is too weak for such batches says nothing; with it, that is told and counts neither for nor against.
    """
    size = _records(cell.leak, run, nodes[0])
    others = run.truth.pool if len(run.truth.pool) else run.truth.x
    if (
        size < TWO
        or len(others) <= size
        or not cell.planted
        or not any(len(found.x) for found, _ in cell.planted)
    ):
        return None
    leak, truth = planted(cell.leak, run, nodes[0], size=size)
    what = f"{cell.attack} on the gradient of {size} planted records without noise, as many as the program's gradients are of"
    weak = None if hidden else False
    try:
        found = attacking.attack_one(
            leak, run.task, cell.attack, generator(run.seed, leak.node), **cell.settings
        )
    except AttackError as e:
        return Control(
            "positive", weak, f"{what}: it cannot use this leak, so it tells nothing: {e}", BATCH
        )
    guess = Recorded(run.seed, run.trace, truth, run.task).guess(leak.node)
    gain = max(measures.values(guess, score(found, truth)[0])["gain"])
    says = f"{what}: {gain:.1f} dB nearer to the best one than a guess, expected {GAIN:g} dB"
    return Control("positive", True if gain >= GAIN else weak, says, BATCH)


def _records(like: GradientLeak | None, run: Recorded, node: int) -> int:
    """Return how many records a gradient of the run is of."""
    if like is not None and like.batch:
        return like.batch
    held_there = int((run.truth.node == node).sum())
    batch = int(run.trace.params.get("batch") or 0)
    return batch if 0 < batch < held_there else held_there


def planted(
    like: GradientLeak | None, run: Recorded, node: int, number: int = 0, size: int = 1
) -> tuple[GradientLeak, Truth]:
    """Return noise-free gradients of records of the data set, combined like a leak of the run, and the truth that goes with them.

    like: the leak whose rounds, models and combination are copied; without one, single gradients at models near the first. number: of
    the first record; size: how many follow on it. Each bears a label that is drawn.
    """
    others = run.truth.pool if len(run.truth.pool) else run.truth.x
    rows = (number + torch.arange(size)) % len(others)
    left = torch.ones(len(others), dtype=torch.bool)
    left[rows] = False
    x, rest, y = (
        others[rows].to(run.truth.x),
        others[left],
        run.truth.y[:1].expand(size, *run.truth.y.shape[1:]),
    )
    if not y.is_floating_point():
        y = torch.randint(
            run.trace.task.classes,
            y.shape,
            generator=generator(run.seed, run.trace.graph.nodes + number),
            dtype=y.dtype,
        )
    rounds = torch.arange(1, ROUNDS + 1) if like is None else like.rounds
    combination = torch.eye(len(rounds), dtype=torch.float64) if like is None else like.combination
    models = (
        _models(run, len(rounds)) if like is None or like.theta is None else like.theta.double()
    )
    columns = run.trace.columns if like is None else like.columns
    gradients = [run.task.gradient(m, x.to(m), y) for m in models.to(run.task.device)]
    value = combination.double() @ torch.stack(gradients)[:, slice(*columns)].double().cpu()
    dtype = run.trace.dtype if like is None else like.value.dtype
    std = torch.full(
        (len(value),),
        float(value.square().mean().sqrt()) * torch.finfo(torch.float32).eps,
        dtype=torch.float64,
    )
    theta = models if like is None or like.theta is not None else None
    made = GradientLeak(
        node,
        rounds,
        combination,
        value.to(dtype),
        std,
        columns,
        theta=theta,
        batch=size,
        formula="planted",
    )
    index = torch.arange(size)
    return made, replace(
        run.truth,
        x=x,
        y=y,
        node=torch.full_like(index, node),
        index=index,
        pool=torch.cat([rest.to(x), run.truth.x]),
    )


def negative(cell: Cell) -> Control:
    """Score each reconstruction, of the program's records and of planted ones, against another record: it may match by chance alone."""
    hits, bits, trials, chance = 0, 0, 0, 0.0
    for found, truth in (*_shuffled(cell.found), *_shuffled(cell.planted)):
        (scored,) = score(found, truth)
        for match, rank in zip(
            scored.exact or [False] * len(scored.matched), scored.rank or (), strict=False
        ):
            trials, hits, bits = trials + 1, hits + (rank == 1), bits + bool(match)
            chance = max(chance, scored.chance or 0.0)
    if not trials:
        return Control(
            "negative",
            None,
            f"nothing to score against the records of others: {cell.attack} reconstructed no input",
        )
    ok = bits == 0 and float(binom.sf(hits - 1, trials, chance)) >= CHANCE
    says = f"against the records of others, {hits} of {trials} identified (chance {chance:.2g}) and {bits} identical"
    return Control(
        "negative",
        ok,
        says
        if ok
        else f"{says}; expected chance: the attack or the scores do not depend on the leak",
    )


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


def _shuffled(
    pairs: Sequence[tuple[Reconstruction, Truth]],
) -> Iterator[tuple[Reconstruction, Truth]]:
    """Yield each reconstruction with the next one's records, where these are others than its own."""
    for (found, truth), (other, their) in zip(pairs, [*pairs[1:], *pairs[:1]], strict=True):
        own, strange = truth.of(found.node)[0], their.of(other.node)[0]
        if len(found.x) and not any(bool((o == s).all()) for o in own for s in strange):
            yield replace(found, node=other.node, y=None), their
