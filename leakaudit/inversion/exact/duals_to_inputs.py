"""Inputs from their dual vectors, one at a time, so that what is wrong about one sample leaves the others as they are.

With every dual vector known, the inputs M are the inverse of the duals Q. But row k of M needs less: it is at a right angle to the
duals of the others that are known, and to the null spaces of the neurons where sample k is active, since x_k lies in their row spaces.
What is left open are as many numbers as duals are missing, and most neurons agree on them. Every input that is certified on the
data's grid is exact, and is taken out of the problem: the rest is a smaller batch.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from leakaudit.inversion.exact import neuron_sampling
from leakaudit.inversion.exact.activation_patterns import Dual, Groups
from leakaudit.inversion.exact.pixel_grid import Grid
from leakaudit.progress import expired

GAP = 30.0  # signal this far above noise tells a neuron's null space
AGREE = 40  # reweighted least squares towards the numbers that most neurons agree on
STRAY = 1e-2  # part of another certified input in a dual vector, relative to its own, that makes it no dual
MOST = 5  # certified inputs, two of which an estimate is freed from together
TIED = 1e-3  # part of an input outside a neuron's row space below which it is active there
TINY = 8  # missing samples up to which the duals of certified ones are searched again
ROUNDING = 1e3  # what taking certified inputs out adds, in units of the number format's precision
ROUNDS = 6  # of taking certified inputs out


@dataclass(frozen=True)
class Inputs:
    """What is known of a batch.

    certified: (n, p) inputs on the grid. open: (k, p) estimates of others. duals: of all samples, as far as they are known.
    complete: whether as many independent duals, none of them relative, were found as there are samples.
    """

    certified: Tensor
    open: Tensor
    duals: tuple[Dual, ...] = ()
    complete: bool = False


def recover(
    groups: Groups, basis: Tensor, grid: Grid, known: Tensor, visits: int, generator: Generator
) -> Inputs:
    """Find the inputs behind a batch's rows; basis: (b, p + 1), known: (n, p) certified already, visits: walks that may fail in a row."""
    found = Inputs(known, known[:0])
    for turn in range(ROUNDS):
        duals = _search(
            groups,
            coordinates(found.certified if turn else known[:0], basis, grid),
            found.duals,
            visits,
            generator,
        )
        complete = len(duals) == groups.batch and not any(d.doubt for d in duals)
        guesses = grid.pixels(_coordinates(groups, duals) @ basis) if duals else known[:0]
        new = merged(found.certified, guesses, grid)
        if len(new) < groups.batch:
            new = _repaired(new, guesses, grid)
        if groups.batch - TINY <= len(new) < groups.batch:
            for dual, x in zip(duals, guesses[-len(duals) :], strict=True):
                new = _freed(new, dual, x, coordinates(new, basis, grid), groups, grid)
        more = len(new) > len(found.certified)
        found = Inputs(
            new, guesses[~grid.holds(guesses)] if grid.levels else guesses, tuple(duals), complete
        )
        if len(new) >= groups.batch or not (more or (not turn and len(known))) or expired():
            break
    return found


def merged(certified: Tensor, guesses: Tensor, grid: Grid) -> Tensor:
    """Add the guesses that lie on the grid and are new."""
    for x in grid.snapped(guesses[grid.holds(guesses)]) if grid.levels else guesses[:0]:
        if not len(certified) or float((certified - x).abs().amax(1).min()) > 0.5 / grid.levels:
            certified = torch.cat([certified, x[None]])
    return certified


def coordinates(x: Tensor, basis: Tensor, grid: Grid) -> Tensor:
    """Return certified inputs (n, p) in coordinates (n, b) of the space; k/levels may have been rounded to float32 by who stored them."""
    stored = torch.stack([grid.rows(x), grid.rows(x.float().to(x))])
    inside = stored @ basis.T
    off = (stored - inside @ basis).norm(dim=2)
    return torch.where((off[0] < off[1])[:, None], inside[0], inside[1])


def _search(
    groups: Groups, known: Tensor, before: tuple[Dual, ...], visits: int, generator: Generator
) -> list[Dual]:
    """Return duals, those of uncertified samples from the problem without the certified ones, whose coordinates are `known` (n, b)."""
    if not len(known):
        return _more(groups, visits, generator)
    left = groups.batch - len(known)
    lifted = _deflated(groups, known, visits, generator) if left else []
    own = list[Dual]()
    for j in range(len(known)):
        mine = [d for d in before if not d.doubt and _belongs(d, j, known)]
        if not mine and 0 < left <= TINY:
            rest = known[torch.arange(len(known)) != j]
            mine = [d for d in _deflated(groups, rest, visits, generator) if _belongs(d, j, known)]
        own += [_purified(groups, d, j, known) for d in mine[:1]]
    return groups.independent([*own, *lifted])


def _belongs(dual: Dual, j: int, known: Tensor) -> bool:
    """Whether a dual vector is that of known sample j."""
    part = (known @ dual.vector).abs()
    return float(part[j]) > STRAY * float(known[j].norm()) and float(
        part.sum() - part[j]
    ) < STRAY * len(part) * float(part[j])


def _purified(groups: Groups, dual: Dual, j: int, known: Tensor) -> Dual:
    """Remove from the dual vector of known sample j what other known samples see of it."""
    seen = known @ dual.vector
    seen[j] = 0
    q = dual.vector - torch.linalg.lstsq(known, seen[:, None], driver="gelsd").solution[:, 0]
    return replace(dual, vector=q / q.norm(), zero=groups.zero_at(q))


def _deflated(groups: Groups, known: Tensor, visits: int, generator: Generator) -> list[Dual]:
    """Return the duals of the samples that are left when those with coordinates `known` (n, b) are taken out."""
    rest = torch.linalg.svd(known, full_matrices=True)[2][len(known) :].T
    rounding = ROUNDING * torch.finfo(rest.dtype).eps * groups.rows.square().mean((1, 2)).sqrt()
    smaller = Groups.of(groups.rows @ rest, groups.noise.hypot(rounding))
    duals = _more(smaller, visits, generator)
    return [replace(d, vector=rest @ d.vector, zero=groups.zero_at(rest @ d.vector)) for d in duals]


def _more(groups: Groups, visits: int, generator: Generator) -> list[Dual]:
    """Search for duals by walks, by draws where rounds are few, and for relative ones where some are missing or in doubt."""
    duals = neuron_sampling.sample(groups, groups.search(visits, generator), visits, generator)
    solid = len(duals) == groups.batch and not any(d.doubt for d in duals)
    return duals if solid else groups.search(visits, generator, relative=True, known=duals)


def _coordinates(groups: Groups, duals: list[Dual]) -> Tensor:
    """Return estimates (k, b): from the inverse where as many duals are known as samples, and one by one, from all and from solid duals."""
    out = list[Tensor]()
    if len(duals) == groups.batch:
        inverse, info = torch.linalg.inv_ex(torch.stack([d.vector for d in duals], dim=1))
        if not int(info):
            out.append(inverse)
            if not any(d.doubt for d in duals):
                return torch.as_tensor(inverse)
    null, where = _nulls(groups)
    solid = [d for d in duals if d.doubt != 2]
    for chosen in [duals] if len(solid) in (0, len(duals)) else [duals, solid]:
        out.append(
            torch.stack([_alone(k, chosen, null, where, groups) for k in range(len(chosen))])
        )
    return torch.cat(out)


def _nulls(groups: Groups) -> tuple[Tensor, Tensor]:
    """Null vectors (k, b) of groups whose signal ends far above noise, and the group (k,) of each."""
    n, b = groups.rows.shape[1:]
    level = groups.noise[:, None] * (n**0.5 + b**0.5)
    full = torch.cat(
        [groups.sizes, groups.sizes.new_zeros(len(groups), b - groups.sizes.shape[1])], dim=1
    )
    signal = full > 2 * level
    least = torch.where(signal, full, torch.inf).amin(1)
    which = ((least > GAP * level[:, 0]) & (signal.sum(1) < min(n, b + 1))).nonzero().flatten()
    right = torch.linalg.svd(groups.rows[which], full_matrices=True)[2]
    take = ~signal[which]
    return right[take], which[:, None].expand(-1, b)[take]


def _alone(k: int, duals: list[Dual], null: Tensor, where: Tensor, groups: Groups) -> Tensor:
    """Return the coordinates (b,) of sample k that fulfil the other duals and most neurons where it is active."""
    me = duals[k]
    others = [
        d.vector
        for j, d in enumerate(duals)
        if j != k and not (d.doubt == 1 and bool(me.zero[d.zero].all()))
    ]
    q = torch.stack([me.vector, *others], dim=1)
    right, size, left = torch.linalg.svd(q, full_matrices=True)
    first: Tensor = right[:, : len(size)] @ (left[:, 0] / size)
    free = right[:, len(size) :]
    active = ~me.zero[where]
    if not free.shape[1] or not bool(active.any()):
        return first
    a, target = null[active] @ free, -(null[active] @ first)
    group, weight = where[active], target.new_ones(len(target))
    damp = 1e-9 * torch.eye(a.shape[1], dtype=a.dtype)
    x = a.new_zeros(a.shape[1])
    for turn in range(AGREE):
        root = weight.sqrt()
        both = (
            torch.cat([root[:, None] * a, damp]),
            torch.cat([root * target, x.new_zeros(len(damp))]),
        )
        x = torch.linalg.lstsq(both[0], both[1][:, None], driver="gelsd").solution[:, 0]
        off = target.new_zeros(len(groups)).index_add(0, group, (a @ x - target).square()).sqrt()
        weight = 1 / (off + 0.5**turn * float(off.mean()) + 1e-12)[group]
    found: Tensor = first + free @ x
    return found


def _repaired(certified: Tensor, guesses: Tensor, grid: Grid) -> Tensor:
    """Free estimates from a multiple of one certified input that they may still hold, and add them where they are on the grid."""
    for x in guesses[~grid.holds(guesses)]:
        for other in certified:
            if (fixed := grid.on_line(x, other)) is not None:
                certified = merged(certified, fixed[None], grid)
                break
    return certified


def _freed(
    certified: Tensor, dual: Dual, x: Tensor, known: Tensor, groups: Groups, grid: Grid
) -> Tensor:
    """Free an estimate from multiples of two certified inputs, with coordinates `known`, that are active wherever it is."""
    if bool(grid.holds(x[None])):
        return certified
    null, where = _nulls(groups)
    active = ~dual.zero[where]
    outside = (null[active] @ known.T).square()
    off = outside.new_zeros(len(groups), len(known)).index_add(0, where[active], outside)[
        where[active].unique()
    ]
    share = (
        (off.sqrt() < TIED * known.norm(dim=1)).double().mean(0)
        if len(off)
        else known.new_zeros(len(known))
    )
    for pair in itertools.combinations(share.argsort(descending=True)[:MOST].tolist(), 2):
        if (fixed := grid.in_plane(x, certified[list(pair)])) is not None:
            return merged(certified, fixed[None], grid)
    return certified
