"""Controls of a gate: attacks must solve planted leaks, and must not match other records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from leakaudit._util.seeds import generator
from leakaudit.core.errors import AttackError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import Truth
from leakaudit.inversion import attacking
from leakaudit.judging.gate import measures
from leakaudit.judging.gate.cells import GateCell
from leakaudit.judging.gate.rule import Rule
from leakaudit.judging.gate.runs import SeedResults
from leakaudit.protocols.declared import constant
from leakaudit.reporting.results.model import RuleKind, RuleStatus
from leakaudit.scoring.scoring import score
from leakaudit.theory.bounds.empirical import at_least

# Thresholds at which a planted record counts as recovered: PSNR in dB for images, relative error
# for other data. A choice: 20 dB is a root mean square error of a tenth of the range, so the two
# are about equally strict.
NEAR_DB = 20.0
NEAR = 0.1
# If guessing yields the observed number of matches with a smaller probability than this, scores are
# not trusted. A choice: ten cells raise a false alarm in one run of 1000.
CHANCE = 1e-4
# The probability with which a guess finds all planted labels, at most. A choice.
GUESSED = 1e-3
# Number of gradients of a planted leak if there is none to copy, and by how much each parameter of
# the model changes between them. Choices: a few gradients at models that differ as they do between
# rounds of training.
ROUNDS = 4
STEP = 0.05
BATCH = "batch"  # subject of the control with several records at once
GAIN = 6.0  # dB by which the best record of a planted batch must beat a guess: half of its error
TWO = 2  # records planted for an attack on inputs: two different records need two answers
# Most records that are planted for an attack on labels. With 2 classes, a guess finds the labels of
# all of them with a probability of 1 / 1024, less than `GUESSED`.
MOST = 10


# --- planted leaks --------------------------------------------------------------------------------


def positive(cell: GateCell, run: SeedResults, nodes: tuple[int, ...]) -> Rule:
    """Plant noise-free gradients of known records, and test whether the attack recovers each.

    An attack on inputs gets two, one on labels so many that guessing succeeds with a probability of
    at most `GUESSED`. ``cell.planted`` keeps the reconstructions for `negative`.
    """
    says = ""
    for number in range(MOST):
        leak, truth = planted(cell.leak, run, nodes[0], number)
        try:
            found = _attack(cell, run, leak)
        except AttackError as error:
            says = f"{cell.attack} cannot use this leak, so its failure proves nothing: {error}"
            return Rule(RuleKind.POSITIVE, cell.name, "", RuleStatus.VOID, says)
        ok, says = _solved(found, truth)
        if not ok:
            says = f"{cell.attack} on noise-free gradients of a planted record: {says}"
            return Rule(RuleKind.POSITIVE, cell.name, "", RuleStatus.VOID, says)
        cell.planted.append((found, truth))
        guessed = run.trace.task.classes ** -(number + 1.0)  # probability of guessing all labels
        if number + 1 >= TWO and (len(found.x) or guessed <= GUESSED):
            break
    solved = f"{cell.attack} solves {len(cell.planted)} planted noise-free leaks"
    says = f"{solved}; the last one: {says}"
    return Rule(RuleKind.POSITIVE, cell.name, "", RuleStatus.OK, says)


def batched(
    cell: GateCell, run: SeedResults, nodes: tuple[int, ...], hidden: bool
) -> Iterator[Rule]:
    """Plant a gradient of as many records as the run's own, which the attack must come close to.

    There is no such control for one record, a small data set, or an attack on labels only. If noise
    is declared (`hidden`), which the recording and the lint verify, a weak attack is only reported.
    """
    size = _records(cell.leak, run, nodes[0])
    inputs = any(len(found.x) for found, _ in cell.planted)
    if size < TWO or len(_others(run)) <= size or not inputs:
        return
    leak, truth = planted(cell.leak, run, nodes[0], size=size)
    what = (
        f"{cell.attack} on the noise-free gradient of {size} planted records, "
        "the batch size of the program's own gradients"
    )
    status = RuleStatus.UNTESTED if hidden else RuleStatus.VOID
    try:
        found = _attack(cell, run, leak)
        guess = SeedResults(run.seed, run.trace, truth, run.task).guess(leak.node)
        gain = max(measures.values(guess, score(found, truth)[0])["gain"])
        says = f"{gain:.1f} dB closer to the best one than a guess, expected {GAIN:g} dB"
        if gain >= GAIN:
            status = RuleStatus.OK
    except AttackError as error:
        says = f"it cannot use this leak, so its failure proves nothing: {error}"
    yield Rule(RuleKind.POSITIVE, cell.name, BATCH, status, f"{what}: {says}")


def _attack(cell: GateCell, run: SeedResults, leak: GradientLeak) -> Reconstruction:
    random = generator(run.seed, leak.node)
    return attacking.attack_one(leak, run.task, cell.attack, random, **cell.settings)


def _records(like: GradientLeak | None, run: SeedResults, node: int) -> int:
    if like is not None and like.batch:
        return like.batch
    held_there = int((run.truth.node == node).sum())
    batch = int(constant(run.trace, "batch"))
    return batch if 0 < batch < held_there else held_there


def _others(run: SeedResults) -> Tensor:
    """Return records that no node trained on, or those of the run if none exist."""
    return run.truth.pool if len(run.truth.pool) else run.truth.x


def planted(
    like: GradientLeak | None, run: SeedResults, node: int, number: int = 0, size: int = 1
) -> tuple[GradientLeak, Truth]:
    """Return noise-free gradients of some records, combined like a leak, and their truth.

    Without a leak, they are single gradients at models close to the first one.
    """
    others = _others(run)
    rows = (number + torch.arange(size)) % len(others)
    unused = torch.ones(len(others), dtype=torch.bool)
    unused[rows] = False
    x = others[rows].to(run.truth.x)
    y = _labels(run, number, size)

    like = like or _single_gradients(run, node)
    models = _models(run, len(like.rounds))
    if like.theta is not None:
        models = like.theta.double()
    here = models.to(run.task.device)
    gradients = torch.stack([run.task.gradient(model, x.to(model), y) for model in here])
    recorded = gradients[:, slice(*like.columns)].double().cpu()
    value = like.combination.double() @ recorded
    # Without noise, only the rounding of a message in float32 remains.
    rounding = float(value.square().mean().sqrt()) * torch.finfo(torch.float32).eps
    made = GradientLeak(
        node,
        like.rounds,
        like.combination,
        value.to(like.value.dtype),
        torch.full((len(value),), rounding, dtype=torch.float64),
        like.columns,
        theta=None if like.theta is None else models,
        batch=size,
        formula="planted",
    )
    index = torch.arange(size)
    truth = replace(
        run.truth,
        x=x,
        y=y,
        node=torch.full_like(index, node),
        index=index,
        pool=torch.cat([others[unused].to(x), run.truth.x]),
    )
    return made, truth


def _single_gradients(run: SeedResults, node: int) -> GradientLeak:
    """Return a leak of single gradients at known models, with values that mean nothing."""
    first, last = run.trace.columns
    return GradientLeak(
        node,
        rounds=torch.arange(1, ROUNDS + 1),
        combination=torch.eye(ROUNDS, dtype=torch.float64),
        value=torch.zeros(ROUNDS, last - first, dtype=run.trace.dtype),
        std=torch.zeros(ROUNDS, dtype=torch.float64),
        columns=run.trace.columns,
        theta=_models(run, ROUNDS),
    )


def _labels(run: SeedResults, number: int, size: int) -> Tensor:
    """Return random classes, or the target of the run's first record."""
    y = run.truth.y[:1].expand(size, *run.truth.y.shape[1:])
    if y.is_floating_point():
        return y
    # Seeds outside the range of the nodes' seeds, so that no attack draws the same numbers.
    random = generator(run.seed, run.trace.graph.nodes + number)
    return torch.randint(run.trace.task.classes, y.shape, generator=random, dtype=y.dtype)


def _models(run: SeedResults, count: int) -> Tensor:
    """Return models (count, d) close to the first one."""
    random = torch.Generator().manual_seed(run.seed)
    first = run.trace.public.get("w0")
    if first is None or first.shape != (run.trace.layout.size,):
        first = run.task.init(random)
    move = torch.randn(count, len(first), generator=random, dtype=torch.float64)
    return first.double().cpu() + STEP * move


def _solved(found: Reconstruction, truth: Truth) -> tuple[bool, str]:
    (scored,) = score(found, truth)
    if not len(found.x) and found.y is not None:
        share = scored.labels_found or 0.0
        return share == 1.0, f"{share:.0%} of the labels found, expected all"
    error = (scored.relative_error or (None,))[0]
    if error is None:
        return False, f"nothing recovered ({found.note or 'no reason given'})"
    psnr = None if scored.psnr is None else scored.psnr[0]
    if psnr is not None:
        return psnr >= NEAR_DB, f"recovered at {psnr:.1f} dB, expected at least {NEAR_DB:g} dB"
    return error <= NEAR, f"recovered with relative error {error:.2g}, expected at most {NEAR:g}"


# --- records of others ----------------------------------------------------------------------------


def negative(cell: GateCell) -> Rule:
    """Score each reconstruction against another record, which it may match only by chance."""
    hits = 0  # records that were identified
    bits = 0  # records that are bit-identical
    trials = 0
    chance = 0.0  # largest probability that a guess identifies a record
    for found, truth in (*_shuffled(cell.found), *_shuffled(cell.planted)):
        (scored,) = score(found, truth)
        exact = scored.exact or [False] * len(scored.matched)
        for match, rank in zip(exact, scored.rank or (), strict=False):
            trials += 1
            hits += rank == 1
            bits += bool(match)
            chance = max(chance, scored.chance or 0.0)
    status = RuleStatus.OK
    says = (
        f"against the records of other nodes, {hits} of {trials} identified "
        f"(chance level {chance:.2g}) and {bits} identical"
    )
    if not trials:
        status = RuleStatus.UNTESTED
        says = "nothing to score against the records of other nodes"
        says = f"{says}: {cell.attack} reconstructed no input"
    # The probability of at least this number of matches, if each had the largest chance.
    elif bits or float(at_least(hits, trials, chance)) < CHANCE:
        status = RuleStatus.VOID
        why = "expected the chance level: the attack or the scores do not depend on the leak"
        says = f"{says}; {why}"
    return Rule(RuleKind.NEGATIVE, cell.name, "", status, says)


def _shuffled(
    pairs: Sequence[tuple[Reconstruction, Truth]],
) -> Iterator[tuple[Reconstruction, Truth]]:
    """Yield each reconstruction with the records of the next one, if they differ from its own."""
    following = [*pairs[1:], *pairs[:1]]
    for (found, truth), (other, their) in zip(pairs, following, strict=True):
        own = truth.of(*found.nodes)[0]
        strange = their.of(other.node)[0]
        same = any(bool((one == another).all()) for one in own for another in strange)
        if len(found.x) and not same:
            yield replace(found, node=other.node, others=(), y=None), their
