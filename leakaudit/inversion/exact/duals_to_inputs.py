"""Inputs from their dual vectors, one by one, so that an error in one leaves the others intact."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from leakaudit.core.progress import expired
from leakaudit.inversion.exact import neuron_sampling
from leakaudit.inversion.exact.activation_patterns import RELATIVE, WEAK, Dual, Groups
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.linear import edge, least_squares

# If every dual vector is known, the inputs M are the inverse of the duals Q (M Q = 1). One wrong
# dual then corrupts all inputs. But row k of M requires less. It is orthogonal to the known duals
# of the other samples, and to the null spaces of all neurons where sample k is active: with enough
# rounds, the rows of such a neuron span the inputs that are active there, including x_k. As many
# numbers as there are missing duals remain unknown, and most neurons agree on them
# (`_by_agreement`).
#
# Every input that lies on the data's grid is exact (`pixel_grid`), and is removed from the problem:
# the rows are projected onto the orthogonal complement of the certified inputs, which leaves the
# rows of a smaller batch (`_deflated`). Searching and removing alternate until nothing new is
# found.
#
# Two repairs use the grid itself. An estimate may still contain a multiple of one certified input
# (`_repaired`) or of two (`_freed`), because these are active wherever it is. The correct multiple
# is the one that moves all pixels onto the grid.
#
# Each constant below was changed by a factor of two to three in both directions
# (`activation_patterns` lists the recordings), and every image was recovered bit for bit each time.

# A neuron's null space is used if its smallest singular value of signal is this many times the
# largest one of noise: the null vectors then have an error of about 1/30 at worst.
GAP = 30.0

# Rounds of reweighted least squares. The smoothing of the weights halves each time, so the last is
# 2^-40 = 1e-12 of the mean error: a sum of norms, minimised to that precision.
AGREE = 40

# Part of another certified input in a dual vector, relative to its own, above which the vector is
# not a dual of that sample.
STRAY = 1e-2

# Number of certified inputs whose pairs are tried as contamination of an estimate: the five most
# likely, or ten pairs.
MOST = 5

# Part of an input outside a neuron's row space below which it is active there.
TIED = 1e-3

# Maximum number of missing samples for which the duals of certified ones are searched again. One
# search per certified sample is only worthwhile near the end.
TINY = 8

# Error that removing certified inputs adds to rows, in units of the number format's precision.
# Includes the condition number of the inputs, 20 to 60 in batches of 32 images.
ROUNDING = 1e3

# Maximum number of rounds of removing certified inputs. Each must find a new one for another to
# follow.
ROUNDS = 6


@dataclass(frozen=True)
class KnownInputs:
    """What is known about a batch."""

    certified: Tensor  # (n, p) inputs on the grid
    open: Tensor  # (k, p) estimates of others
    duals: tuple[Dual, ...] = ()
    # whether there are as many independent duals as samples, all of them reliable
    complete: bool = False


def recover(
    groups: Groups, basis: Tensor, grid: PixelGrid, known: Tensor, visits: int, generator: Generator
) -> KnownInputs:
    """Find the inputs in a space with `basis` (b, p + 1), given certified ones (n, p)."""
    found = KnownInputs(known, known[:0])
    for turn in range(ROUNDS):
        # The first round ignores the known inputs: a search of the whole batch also finds their
        # duals.
        inside = grid.stored(found.certified if turn else known[:0], basis)[1]
        duals = _search(groups, inside, found.duals, visits, generator)
        complete = len(duals) == groups.batch and not any(d.doubt for d in duals)
        guesses = grid.pixels(_estimates(groups, duals) @ basis) if duals else known[:0]
        new = merged(found.certified, guesses, grid)
        if len(new) < groups.batch:
            new = _repaired(new, guesses, grid)
        if groups.batch - TINY <= len(new) < groups.batch:
            for dual, x in zip(duals, guesses[-len(duals) :], strict=True):
                inside = grid.stored(new, basis)[1]
                new = _freed(new, dual, x, inside, groups, grid)
        more = len(new) > len(found.certified)
        left = guesses[~grid.holds(guesses)] if grid.levels else guesses
        found = KnownInputs(new, left, tuple(duals), complete)
        # The first round did not remove `known`, so a second may help even without new inputs.
        worth = more or (not turn and len(known) > 0)
        if len(new) >= groups.batch or not worth or expired():
            break
    return found


def merged(certified: Tensor, guesses: Tensor, grid: PixelGrid) -> Tensor:
    """Add the estimates (k, p) that lie on the grid and differ from all certified inputs."""
    if not grid.levels:
        return certified
    for x in grid.snapped(guesses[grid.holds(guesses)]):
        if not len(certified) or float((certified - x).abs().amax(1).min()) > 0.5 / grid.levels:
            certified = torch.cat([certified, x[None]])
    return certified


def _search(
    groups: Groups, known: Tensor, before: tuple[Dual, ...], visits: int, generator: Generator
) -> list[Dual]:
    """Return duals; those of uncertified samples are found after removing known ones (n, b)."""
    if not len(known):
        return _more(groups, visits, generator)
    left = groups.batch - len(known)
    others = _deflated(groups, known, visits, generator) if left else []
    own: list[Dual] = []
    for j in range(len(known)):
        mine = [d for d in before if not d.doubt and _belongs(d, j, known)]
        if not mine and 0 < left <= TINY:
            # Its dual is that of the one sample that remains besides the uncertified ones.
            rest = known[torch.arange(len(known)) != j]
            mine = [d for d in _deflated(groups, rest, visits, generator) if _belongs(d, j, known)]
        own += [_purified(groups, d, j, known) for d in mine[:1]]
    return groups.independent([*own, *others])


def _belongs(dual: Dual, j: int, known: Tensor) -> bool:
    """Check whether a dual belongs to known sample j: x_j q = 1, and x_i q = 0 for the others."""
    part = (known @ dual.vector).abs()
    meets = float(part[j]) > STRAY * float(known[j].norm())
    others = float(part.sum() - part[j])
    return meets and others < STRAY * len(part) * float(part[j])


def _purified(groups: Groups, dual: Dual, j: int, known: Tensor) -> Dual:
    """Make the dual vector of known sample j orthogonal to all other known samples (n, b)."""
    seen = known @ dual.vector
    seen[j] = 0
    q = dual.vector - least_squares(known, seen)
    return replace(dual, vector=q / q.norm(), zero=groups.zero_at(q))


def _deflated(groups: Groups, known: Tensor, visits: int, generator: Generator) -> list[Dual]:
    """Return the duals of the remaining samples, without those with coordinates `known` (n, b).

    They are orthogonal to all known inputs, so the search takes place in the complement, where
    the rows are those of a batch of b - n samples.
    """
    rest = torch.linalg.svd(known, full_matrices=True)[2][len(known) :].T
    rounding = ROUNDING * torch.finfo(rest.dtype).eps * groups.rows.square().mean((1, 2)).sqrt()
    smaller = Groups.of(groups.rows @ rest, groups.noise.hypot(rounding))
    duals = _more(smaller, visits, generator)
    return [replace(d, vector=rest @ d.vector, zero=groups.zero_at(rest @ d.vector)) for d in duals]


def _more(groups: Groups, visits: int, generator: Generator) -> list[Dual]:
    """Search by walks, then by draws, then for relative duals if some are still missing."""
    duals = groups.search(visits, generator)
    duals = neuron_sampling.sample(groups, duals, visits, generator)
    if len(duals) == groups.batch and not any(d.doubt for d in duals):
        return duals
    return groups.search(visits, generator, relative=True, known=duals)


def _estimates(groups: Groups, duals: list[Dual]) -> Tensor:
    """Estimate the coordinates (k, b) of the samples with these duals.

    The inverse, if there are as many duals as samples. Unless all of them are solid, also
    individual estimates, from all duals and from all except the weak ones.
    """
    out: list[Tensor] = []
    if len(duals) == groups.batch:
        inverse, info = torch.linalg.inv_ex(torch.stack([d.vector for d in duals], dim=1))
        if not int(info):
            out.append(inverse)
            if not any(d.doubt for d in duals):
                return torch.as_tensor(inverse)
    null, where = _nulls(groups)
    trusted = [d for d in duals if d.doubt != WEAK]
    choices = [duals] if len(trusted) in (0, len(duals)) else [duals, trusted]
    for chosen in choices:
        each = [_by_agreement(k, chosen, null, where, groups) for k in range(len(chosen))]
        out.append(torch.stack(each))
    return torch.cat(out)


def _nulls(groups: Groups) -> tuple[Tensor, Tensor]:
    """Return null vectors (k, b), and their groups (k,), where signal ends far above the noise."""
    n, b = groups.rows.shape[1:]
    level = groups.noise[:, None] * edge(n, b)
    padding = groups.sizes.new_zeros(len(groups), b - groups.sizes.shape[1])
    full = torch.cat([groups.sizes, padding], dim=1)
    # A singular value below twice the largest one of noise counts as noise.
    signal = full > 2 * level
    least = torch.where(signal, full, torch.inf).amin(1)
    # If there are as many signals as rounds, more samples may be active than the rounds can reveal.
    which = ((least > GAP * level[:, 0]) & (signal.sum(1) < min(n, b + 1))).nonzero().flatten()
    right = torch.linalg.svd(groups.rows[which], full_matrices=True)[2]
    take = ~signal[which]
    return right[take], which[:, None].expand(-1, b)[take]


def _by_agreement(k: int, duals: list[Dual], null: Tensor, where: Tensor, groups: Groups) -> Tensor:
    """Find coordinates (b,) that fit the other duals and most neurons where sample k is active.

    The duals leave x = first + free a, with one number a for each missing dual. A neuron g
    where k is active requires N_g x = 0 for its null vectors N_g, unless its activity was
    misjudged. So a minimises sum_g |N_g x|, which outliers hardly affect, by reweighted least
    squares.
    """
    me = duals[k]
    others: list[Tensor] = []
    for j, dual in enumerate(duals):
        # A relative dual may contain a multiple of q_k, if k is inactive wherever it vanishes.
        holds_me = dual.doubt == RELATIVE and bool(me.zero[dual.zero].all())
        if j != k and not holds_me:
            others.append(dual.vector)
    # x q_k = 1 and x q_j = 0: the pseudoinverse gives one solution, the rest of U the others.
    q = torch.stack([me.vector, *others], dim=1)
    right, size, left = torch.linalg.svd(q, full_matrices=True)
    first: Tensor = right[:, : len(size)] @ (left[:, 0] / size)
    free = right[:, len(size) :]
    active = ~me.zero[where]
    if not free.shape[1] or not bool(active.any()):
        return first
    a = null[active] @ free
    target = -(null[active] @ first)
    group = where[active]
    weight = target.new_ones(len(target))
    # So small that it only determines what no neuron determines.
    damp = 1e-9 * torch.eye(a.shape[1], dtype=a.dtype)
    x = a.new_zeros(a.shape[1])
    for turn in range(AGREE):
        root = weight.sqrt()
        system = torch.cat([root[:, None] * a, damp])
        wanted = torch.cat([root * target, x.new_zeros(len(damp))])
        x = least_squares(system, wanted)
        off = target.new_zeros(len(groups)).index_add(0, group, (a @ x - target).square()).sqrt()
        weight = 1 / (off + 0.5**turn * float(off.mean()) + 1e-12)[group]
    found: Tensor = first + free @ x
    return found


def _repaired(certified: Tensor, guesses: Tensor, grid: PixelGrid) -> Tensor:
    """Remove a multiple of one certified input from estimates; add those that reach the grid."""
    for x in guesses[~grid.holds(guesses)]:
        for other in certified:
            fixed = grid.in_plane(x, other[None])
            if fixed is not None:
                certified = merged(certified, fixed[None], grid)
                break
    return certified


def _freed(
    certified: Tensor, dual: Dual, x: Tensor, known: Tensor, groups: Groups, grid: PixelGrid
) -> Tensor:
    """Remove multiples of two certified inputs that are active wherever an estimate x (p,) is.

    Returns the certified inputs, with the estimate if a pair moves it onto the grid.
    """
    if bool(grid.holds(x[None])):
        return certified
    null, where = _nulls(groups)
    active = ~dual.zero[where]
    # A certified input is active at a neuron if it lies in its row space, outside its null space.
    outside = (null[active] @ known.T).square()
    by_group = outside.new_zeros(len(groups), len(known)).index_add(0, where[active], outside)
    off = by_group[where[active].unique()]
    if len(off):
        share = (off.sqrt() < TIED * known.norm(dim=1)).double().mean(0)
    else:
        share = known.new_zeros(len(known))
    likeliest = share.argsort(descending=True)[:MOST].tolist()
    for pair in itertools.combinations(likeliest, 2):
        fixed = grid.in_plane(x, certified[list(pair)])
        if fixed is not None:
            return merged(certified, fixed[None], grid)
    return certified
