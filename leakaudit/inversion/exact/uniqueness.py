"""Which inputs of a batch the activity of neurons proves, and which others could take their place.

The rows of a first layer, W = Delta [X 1], span a space with many bases. If X explains them, so does A X for every invertible A
whose rows add up to one, and where images are alike, such as x, x + 1 and 2x - y, several bases consist of images. The residual is
the same for all of them. What tells them apart are the zeros of Delta: a neuron that never fires for sample k has no part of it.

**Duals.** Let q_j solve X q_j = e_j, and let L_g be the rows of neuron g. Then L_g q_j = 0 exactly if sample j is inactive at g.
A candidate's dual is some combination q' = sum_k c_k q_k of the true ones. If s of the c_k are non-zero, q' vanishes

* at neurons where all s samples are inactive, whose rows have rank b - s at the most, and
* at neurons where the active ones of them cancel by accident. In general position there are so few of these that each adds a
  dimension that no other neuron adds: leave it out, and the rank falls.

So a dual is *proven* (s = 1) if the rows where it vanishes have rank b - 1 and keep it when any one neuron is left out. Here more is
asked for, since candidates are chosen among many: some division of these neurons into three parts has rank b - 1 in every part. If rows
show that slopes of different samples depend on each other, nothing is in general position, and nothing is proven.

**Companions.** Let P be the proven duals and U the others. A true input is x_k = x'_k + sum over j in U of A_kj x'_j, since the duals
in P hold one sample each. A_kj is zero if q'_j vanishes, not by accident, at a neuron that fires for k. What is left are the companions
of k: the candidates whose multiples x'_k may still hold. An input without companions is proven without looking at its pixels.

**Independent slopes.** All of this supposes that the loss's slopes of different samples do not depend on each other. If two samples
have one slope, all neurons where both fire see the same sum of them, which looks like an input of its own. Known models exclude that
(`slopes.agree`). Without them, `undecided` looks at the neurons where two or three candidates fire together: their rows must be in
general position, as many neurons as candidates always being independent. A sum that was taken for an input never fires together
with its parts, or always in the same proportion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

ZERO = 5.0  # a neuron is inactive if its rows are below this many times what noise alone makes of them ...
CLEAR = 100.0  # ... which means something only if the active ones are typically above this many times it, ...
FIRES = 20.0  # ... and a neuron surely fires above this many times it
SEEN = 6.0  # rows show a direction if it is this many times louder in them than noise
ROUNDING = 1e-11  # share of a direction's energy that counts as none, whatever the noise: sums of squares in float64
TIMES = 1e-6  # relative size of a change over rounds that counts as one
AGREE = 2  # neurons that must agree that a dual holds nothing of an input
CHANCE = (
    1e-6  # probability of a dual that looks proven because noise hides what is left of an accident
)
LEAST = 2  # accidents that every proof is proof against: candidates are chosen among many, so one may be there by choice
SPARES = 3  # most accidents that a proof is made proof against
SHUFFLES = 8  # ways of dividing the neurons that are tried
TOGETHER = 8  # most neurons with the same candidates that are compared, ...
FEWEST = 5  # ... and fewest that show anything
GENERAL = 0.8  # part of their choices that must be independent; two directions make a half of them so, four directions three quarters
CHUNK = 256  # sets of candidates that are looked at together
LOUD = 0.5  # size of a round, relative to a neuron's loudest one, whose slopes are looked at


@dataclass(frozen=True)
class Rows:
    """Rows of all neurons over windows of rounds, in coordinates of the inputs' space.

    rows: (G, n, b), errors independent with standard deviation `noise`. neuron: (G,) which neuron each group belongs to.
    """

    rows: Tensor
    noise: float
    neuron: Tensor


def companions(
    data: Rows, inputs: Tensor, outputs: int, generator: Generator
) -> list[frozenset[int]]:
    """Return, for every candidate, the others whose multiples it may still hold.

    Args:
        data: Rows of the first layer.
        inputs: Candidates (b, b) in the same coordinates, an invertible matrix.
        outputs: Independent entries of the loss's slope in the last layer, such as classes - 1.
        generator: Divides neurons into parts.

    Returns:
        One set per candidate; empty sets are proofs. Unproven candidates have all unproven others as companions, and if slopes
        depend on each other, or there are more samples than slopes, all candidates do.
    """
    b = len(inputs)
    duals = torch.linalg.inv(inputs)
    slopes = data.rows @ duals  # (G, n, b), Delta where the candidates are right
    size = slopes.square().mean(1).sqrt() / (data.noise * duals.norm(dim=0))
    changes = independent_rounds(slopes, size)
    evidence, neuron = _Evidence.of(data), data.neuron
    if b > changes * outputs or evidence.dependent(size, _patterns(size)):
        return [frozenset(range(b)) - {k} for k in range(b)]
    held = [evidence.vanishing(size[:, j], neuron, changes, generator) for j in range(b)]
    unproven = [j for j in range(b) if not held[j].proven]
    found = []
    for k in range(b):
        if held[k].proven:
            found.append(frozenset(j for j in unproven if not held[j].excludes(size[:, k], neuron)))
        else:
            found.append(frozenset(unproven) - {k})
    return found


def independent_rounds(slopes: Tensor, size: Tensor) -> int:
    """Number of rounds in which slopes (G, n, b) differ by more than noise, which is 1 in units of `size` (G, b)."""
    over_time = slopes.transpose(0, 1).flatten(1)
    spread = torch.linalg.svdvals(over_time @ over_time.T).sqrt()
    loud = float(size[size > ZERO].median()) if bool((size > ZERO).any()) else 0.0
    part = spread / spread[0].clamp_min(torch.finfo(spread.dtype).tiny)
    return int(((part > TIMES) & (part * loud > FIRES)).sum())


def undecided(data: Rows, inputs: Tensor, generator: Generator) -> list[frozenset[int]]:
    """Return, for every candidate, those whose slopes are not seen to be independent of its own, in twos and threes.

    Args:
        data: Rows of the first layer.
        inputs: Candidates (b, b) in the same coordinates, an invertible matrix.
        generator: Chooses rounds and neurons.
    """
    b = len(inputs)
    duals = torch.linalg.inv(inputs)
    slopes = (data.rows @ duals) / (
        data.noise * duals.norm(dim=0)
    )  # (G, n, b), the noise of an entry is 1
    size = slopes.norm(dim=2)
    # Of every neuron, one of its loud rounds: neurons of one round share what depends on the round.
    chance = (size >= LOUD * size.amax(1, keepdim=True)).double()
    rounds = torch.multinomial(chance, 1, generator=generator)[:, 0]
    rows = slopes[torch.arange(len(slopes)), rounds]  # (G, b)
    near: list[set[int]] = [set() for _ in range(b)]
    for count in (2, 3):
        for some in torch.combinations(torch.arange(b), count).split(CHUNK) if b >= count else ():
            for names in some[~_general(rows, some, generator)].tolist():
                for k in names:
                    near[k].update(set(names) - {k})
    return [frozenset(some) for some in near]


def _general(rows: Tensor, some: Tensor, generator: Generator) -> Tensor:
    """Tell of which candidates (n, s) the neurons where all of them fire have rows in general position; rows: (G, b)."""
    s = some.shape[1]
    firing = (rows.abs() > FIRES)[:, some].all(2).T  # (n, G)
    order = torch.rand(firing.shape, generator=generator, dtype=rows.dtype) + firing
    most = min(TOGETHER, rows.shape[0])
    neurons = order.topk(most, dim=1).indices  # those that fire come first
    number = firing.sum(1).clamp_max(most)
    choices = torch.combinations(torch.arange(most), s)
    seen = rows[neurons[:, :, None], some[:, None, :]]  # (n, most, s)
    there = (choices < number[:, None, None]).all(2)  # (n, choices)
    # The least singular value is the volume over the area of the largest side, up to a factor of s; noise makes about 1 of it.
    volume = torch.linalg.det(seen[:, choices]).abs()
    largest = seen.norm(dim=2)[:, choices].sort(dim=2).values[:, :, 1:].prod(2)
    independent = (volume > SEEN * s * largest) & there
    shown: Tensor = (number >= FEWEST) & (independent.sum(1) >= GENERAL * there.sum(1))
    return shown


def _patterns(size: Tensor) -> Tensor:
    """Number the patterns of activity (G,)."""
    numbers: Tensor = torch.unique((size > ZERO).long(), dim=0, return_inverse=True)[1]
    return numbers


@dataclass(frozen=True)
class _Vanishing:
    """Groups (G,) where a dual vanishes, and not by accident; whether that proves it to be the dual of one sample."""

    groups: Tensor
    proven: bool

    def excludes(self, size: Tensor, unit: Tensor) -> bool:
        """Whether the dual surely holds nothing of an input that fires with `size` (G,)."""
        both = self.groups & (size > FIRES)
        return len(unit[both].unique()) >= AGREE


@dataclass(frozen=True)
class _Evidence:
    """Rows in coordinates in which all of them together have unit energy in every direction.

    grams: (G, b, b). noise: (b, b), the energy that noise gives one row of them. rows: in a group.
    """

    grams: Tensor
    noise: Tensor
    rows: int

    @classmethod
    def of(cls, data: Rows) -> _Evidence:
        """Scale the rows."""
        _, size, right = torch.linalg.svd(
            torch.linalg.qr(data.rows.flatten(0, 1)).R, full_matrices=False
        )
        scale = right.T / size.clamp_min(torch.finfo(size.dtype).tiny)
        scaled = data.rows @ scale
        return cls(scaled.mT @ scaled, data.noise**2 * scale.T @ scale, data.rows.shape[1])

    def dependent(self, size: Tensor, patterns: Tensor) -> bool:
        """Whether some pattern's rows have a lower rank than its samples and neurons allow.

        That happens if the loss's slopes of some samples depend on each other, as they do for equal labels at a model whose outputs
        are zero or saturated, and with more samples than the loss has outputs in the rounds that differ. Then all neurons with one
        pattern see one combination, which looks like an input of its own, and activity proves nothing.
        """
        for number in patterns.unique():
            here = patterns == number
            samples = int((size[here][0] > ZERO).sum())
            if self._rank(here) < min(samples, int(here.sum())):
                return True
        return False

    def vanishing(
        self, size: Tensor, unit: Tensor, changes: int, generator: Generator
    ) -> _Vanishing:
        """Return where a dual vanishes, from its sizes (G,) at the groups in units of noise."""
        zero, b = size < ZERO, self.grams.shape[1]
        nowhere = _Vanishing(torch.zeros_like(zero), False)
        loud = size[~zero]
        if b == 1:
            return _Vanishing(zero, True)
        if not len(loud) or not bool(zero.any()) or float(loud.median()) < CLEAR:
            return nowhere
        # Noise hides an accident with this probability, at any of the neurons.
        chance = math.log(len(unit.unique())) + changes * math.log(ZERO / float(loud.median()))
        spares = math.ceil(math.log(CHANCE) / chance) if chance < 0 else SPARES + 1
        if (
            self._rank(zero) == b - 1
            and spares <= SPARES
            and self._spared(zero, unit, max(LEAST, spares), generator)
        ):
            return _Vanishing(zero, True)
        return _Vanishing(self._shared(zero, unit), False)

    def _spared(self, zero: Tensor, unit: Tensor, spares: int, generator: Generator) -> bool:
        """Whether the rank stays b - 1 when any few units are left out: some division into more parts has it in every part."""
        names = unit[zero].unique()
        parts = spares + 1
        for _ in range(SHUFFLES if len(names) >= parts else 0):
            place = torch.randperm(len(names), generator=generator) % parts
            part = place[torch.searchsorted(names, unit.clamp(max=int(names[-1])))]
            if all(self._rank(zero & (part == p)) == len(self.noise) - 1 for p in range(parts)):
                return True
        return False

    def _shared(self, zero: Tensor, unit: Tensor) -> Tensor:
        """Groups (G,) whose unit can be left out without a loss of rank."""
        rank, kept = self._rank(zero), torch.zeros_like(zero)
        for name in unit[zero].unique():
            if self._rank(zero & (unit != name)) == rank:
                kept |= zero & (unit == name)
        return kept

    def _rank(self, groups: Tensor) -> int:
        """Directions that the rows of some groups (G,) show."""
        energy, vectors = torch.linalg.eigh(self.grams[groups].sum(0))
        noise = self.rows * int(groups.sum()) * ((self.noise @ vectors) * vectors).sum(0)
        return int((energy > SEEN**2 * noise + ROUNDING).sum())


def refined(data: Rows, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Fit every dual once more to all rows where it vanishes, and say how far that leaves the inputs mixed.

    The rows R_j (N, b) where dual q_j vanishes have errors of standard deviation `noise`. So q_j, of length 1, is their last right
    singular vector up to an error of covariance noise^2 (R_j' R_j)^+, and since X is the inverse of the duals, an error e of q_j
    takes (x_i e) x_j from every input x_i.

    Args:
        data: Rows of the first layer.
        inputs: (b, b) in the same coordinates, invertible, whose duals are proven.

    Returns:
        The inputs (b, b), and the standard deviations (b, b) of the multiple of x_j that is in x_i, the inputs scaled as they are given.
    """
    duals = torch.linalg.inv(inputs)
    size = (data.rows @ duals).square().mean(1).sqrt() / (data.noise * duals.norm(dim=0))
    fitted, mixed = duals.clone(), torch.zeros_like(inputs)
    for j in range(len(inputs)):
        rows = data.rows[size[:, j] < ZERO].flatten(0, 1)
        _, strength, right = torch.linalg.svd(torch.linalg.qr(rows).R, full_matrices=True)
        length = duals[:, j].norm()
        fitted[:, j] = right[-1] * length * torch.sign(right[-1] @ duals[:, j])
        seen = (inputs @ right[:-1].T) / strength[: len(right) - 1]
        mixed[:, j] = data.noise * length * seen.norm(dim=1)
    mixed.fill_diagonal_(0)
    return torch.linalg.inv(fitted), mixed


def windows(stack_rows: Sequence[Tensor], noise: float) -> Rows:
    """Put windows, each (n, H, b) rows of all H neurons, side by side."""
    rows = torch.cat([part.transpose(0, 1) for part in stack_rows])
    neuron = torch.arange(stack_rows[0].shape[1]).repeat(len(stack_rows))
    return Rows(rows, noise, neuron)
