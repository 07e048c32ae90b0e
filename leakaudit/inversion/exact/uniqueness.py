"""Which inputs of a batch activity of neurons proves, and which others could take their place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from leakaudit.inversion.linear import edge, positive

# The rows of a first layer, W = Delta [X 1], span a space with many bases. If X explains them, so
# does A X for every invertible A whose rows add up to one. If images are similar, such as x, x + 1
# and 2x - y, several bases consist of images. The residual is the same for all of them. They differ
# in the zeros of Delta: the rows of a neuron that is never active for sample k do not contain it.
#
# **Duals.** Let q_j solve X q_j = e_j, and let L_g be the rows of neuron g. Then L_g q_j = 0 if and
# only if sample j is inactive at g. A candidate's dual is some combination q' = sum_k c_k q_k of
# the true ones. If s of the c_k are non-zero, q' vanishes
#
# * at neurons where all s samples are inactive, whose rows have rank b - s at most, and
# * at neurons where the active ones among them cancel by coincidence. In general position, there
#   are so few of these that each adds a dimension that no other neuron adds: if it is omitted, the
#   rank falls.
#
# A dual is therefore *proven* (s = 1) if the rows where it vanishes have rank b - 1 and retain it
# when any one neuron is omitted. The requirement here is stronger, because candidates are chosen
# among many: some division of these neurons into three parts has rank b - 1 in every part. If the
# rows show that slopes of different samples depend on each other, nothing is in general position,
# and nothing is proven. docs/exact.md has the theorem and its proof.
#
# **Companions.** Let P be the proven duals and U the others. A true input is x_k = x'_k + sum over
# j in U of A_kj x'_j, because each dual in P contains one sample. A_kj is zero if q'_j vanishes,
# not by coincidence, at a neuron that is active for k. The remaining j are the companions of k: the
# candidates of which x'_k may still contain multiples. An input without companions is proven
# without examining its pixels.
#
# **Independent slopes.** All of this assumes that the loss's slopes of different samples do not
# depend on each other. If two samples have the same slope, all neurons where both are active
# contain the same sum of them, which looks like an input of its own. Known models exclude this
# (`slopes.agree`). Without them, `undecided` examines the neurons where two or three candidates are
# active together: their rows must be in general position, that is, any set of as many neurons as
# candidates must be independent. A sum that was mistaken for an input is never active together with
# its parts, or always in the same proportion. And slopes must not repeat from neuron to neuron, as
# behind quantised or pruned weights: no combination of two duals may vanish at three neurons where
# both are active (`repeating`).
#
# The thresholds err on the safe side. All except `ROUNDING`, `TIMES`, `CHANCE` and `FEWEST` were
# changed by a factor of two to three in both directions, which had no effect on ordinary batches of
# Fashion-MNIST. They protect against images that are similar:
# tests/adversarial/test_certificates.py has the families, and docs/exact.md counts 10,677 images of
# them, none of which was incorrectly called exact.

# A neuron is inactive if its rows are below this multiple of the noise. A root mean square over n
# rounds exceeds it with probability 6e-7 for n = 1 and less for more, ...
ZERO = 5.0
# ... which is only meaningful if active neurons are typically above this multiple of the noise, ...
CLEAR = 100.0
# ... and a neuron is certainly active above this multiple of it. The gap between 5 and 20 counts as
# neither.
FIRES = 20.0

# Rows contain a direction if it is this many times larger in them than noise (in amplitude).
SEEN = 6.0

# Share of a direction's energy that counts as zero, whatever the noise is: sums of squares in
# float64 have errors of 2e-16 times the condition number.
ROUNDING = 1e-11

# Minimum relative change over rounds that counts as a change. float32 messages resolve 1e-7.
TIMES = 1e-6

# Number of neurons that must agree that a dual contains nothing of an input: one may be a
# coincidence.
AGREE = 2

# Maximum probability that a dual looks proven because noise hides the remains of a coincidence.
CHANCE = 1e-6

# Minimum number of coincidences that every proof tolerates: candidates are chosen among many, so
# one may be there by selection, and another by chance. Rows are therefore divided into three parts.
LEAST = 2

# Maximum number of coincidences that a proof can tolerate; a dual that would need more is not
# proven.
SPARES = 3

# Number of divisions of the neurons to try. A choice: one proves as many ordinary batches as 32.
SHUFFLES = 8

# Maximum number of neurons with the same candidates that are compared, ...
TOGETHER = 8
# ... and minimum number for a conclusion. Five neurons have ten pairs and ten triples.
FEWEST = 5

# Minimum share of these choices that must be independent. If the rows of two samples lie in only
# two directions, half of the pairs are independent; with four directions, three quarters.
GENERAL = 0.8

# Number of sets of candidates that are examined at once, which bounds the memory.
CHUNK = 256

# Rounds in which a neuron's slopes are examined: those of at least this size, relative to its
# largest.
LOUD = 0.5


@dataclass(frozen=True)
class WindowRows:
    """Rows of all neurons over windows of rounds, in coordinates of the inputs' space."""

    rows: Tensor  # (G, n, b) with independent errors
    noise: float  # standard deviation of these errors
    neuron: Tensor  # (G,) the neuron of each group

    def slopes(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slopes (G, n, b) of candidates (b, b), and the noise (b,) of each.

        They are Delta if the candidates, an invertible matrix, are right.
        """
        duals = torch.linalg.inv(inputs)
        return self.rows @ duals, self.noise * duals.norm(dim=0)


def companions(
    data: WindowRows, inputs: Tensor, outputs: int, generator: Generator
) -> list[frozenset[int]]:
    """Return, for every candidate, the others of which it may still contain multiples.

    `outputs` is the number of independent entries of the loss's slope, e.g. classes - 1. Empty
    sets are proofs. The companions of an unproven candidate are all other unproven ones. If
    slopes depend on each other, or there are more samples than slopes, they are all others.
    """
    b = len(inputs)
    slopes, noise = data.slopes(inputs)
    size = slopes.square().mean(1).sqrt() / noise
    changes = independent_rounds(slopes, size)
    evidence = _Evidence.of(data)
    neuron = data.neuron
    # A sample's slopes have `outputs` free numbers in each independent round.
    if b > changes * outputs or evidence.dependent(size, _patterns(size)):
        return [frozenset(range(b)) - {k} for k in range(b)]
    held = [evidence.vanishing(size[:, j], neuron, changes, generator) for j in range(b)]
    unproven = [j for j in range(b) if not held[j].proven]
    found = []
    for k in range(b):
        if held[k].proven:
            may_hold = [j for j in unproven if not held[j].excludes(size[:, k], neuron)]
            found.append(frozenset(may_hold))
        else:
            found.append(frozenset(unproven) - {k})
    return found


def without(data: WindowRows, inputs: Tensor) -> Tensor:
    """Decide [k, j] whether candidate k fires at several neurons where j's dual vanishes (b, b)."""
    slopes, noise = data.slopes(inputs)
    size = slopes.square().mean(1).sqrt() / noise
    both: Tensor = (size > FIRES).double().T @ (size < ZERO).double() >= AGREE
    return both


def independent_rounds(slopes: Tensor, size: Tensor) -> int:
    """Count the rounds in which slopes (G, n, b) differ by more than noise: the rank over time."""
    over_time = slopes.transpose(0, 1).flatten(1)
    spread = torch.linalg.svdvals(over_time @ over_time.T).sqrt()
    loud = 0.0
    if bool((size > ZERO).any()):
        loud = float(size[size > ZERO].median())
    part = spread / positive(spread[0])
    return int(((part > TIMES) & (part * loud > FIRES)).sum())


def undecided(data: WindowRows, inputs: Tensor, generator: Generator) -> list[frozenset[int]]:
    """Return, for every candidate, those whose slopes are not shown to be independent of its own.

    All sets of two and of three candidates are examined.
    """
    b = len(inputs)
    slopes, noise = data.slopes(inputs)
    slopes = slopes / noise  # the noise of an entry is 1
    size = slopes.norm(dim=2)
    # For every neuron, one round with large slopes: neurons of one round share what depends on it.
    chance = (size >= LOUD * size.amax(1, keepdim=True)).double()
    rounds = torch.multinomial(chance, 1, generator=generator)[:, 0]
    rows = slopes[torch.arange(len(slopes)), rounds]  # (G, b)
    near: list[set[int]] = [set() for _ in range(b)]
    for count in (2, 3):
        if b < count:
            continue
        for some in torch.combinations(torch.arange(b), count).split(CHUNK):
            for names in some[~_general(rows, some, generator)].tolist():
                for k in names:
                    near[k].update(set(names) - {k})
    return [frozenset(some) for some in near]


def repeating(data: WindowRows, inputs: Tensor) -> list[frozenset[int]]:
    """Return, for every candidate, those with which a combination vanishes at several neurons.

    In general position, a combination of two duals that vanishes at a neuron where both samples
    are active does so at no other one. Where few values of slopes are possible, as behind
    quantised or pruned weights and at copies of neurons, it vanishes at many, and looks like
    the dual of one sample. The samples themselves then look like such combinations, so it does
    not matter which of them are the candidates.
    """
    b = len(inputs)
    slopes, noise = data.slopes(inputs)
    slopes = slopes / noise  # the noise of an entry is 1
    firing = slopes.square().mean(1).sqrt() > FIRES
    near: list[set[int]] = [set() for _ in range(b)]
    for j, k in torch.combinations(torch.arange(b), 2).tolist():
        both = firing[:, j] & firing[:, k]
        if _repeats(slopes[both][:, :, [j, k]], data.neuron[both]):
            near[j].add(k)
            near[k].add(j)
    return [frozenset(some) for some in near]


def _repeats(slopes: Tensor, neuron: Tensor) -> bool:
    """Decide whether one combination of two slopes vanishes at as many neurons as a proof needs."""
    size = slopes.norm(dim=2)
    loudest = slopes[torch.arange(len(slopes)), size.argmax(1)]  # (g, 2)
    size = size.amax(1)
    across = torch.stack([-loudest[:, 1], loudest[:, 0]], dim=1) / size[:, None]
    # The direction of the loudest row has an error of its own.
    still = (slopes @ across[:, :, None]).square().mean((1, 2)).sqrt() < ZERO * math.sqrt(2)
    if len(neuron[still].unique()) <= LEAST:
        return False
    loudest, across, size, neuron = loudest[still], across[still], size[still], neuron[still]
    # Every set of equal directions contains one that is the loudest.
    same = ((across @ loudest.T).abs() < ZERO * math.sqrt(2)) & (size <= size[:, None])
    names = torch.nn.functional.one_hot(neuron).double()
    return bool(((same.double() @ names > 0).sum(1) > LEAST).any())


def _general(rows: Tensor, some: Tensor, generator: Generator) -> Tensor:
    """Decide for which sets (n, s) of candidates the common neurons are in general position.

    `rows` (G, b) are slopes in one round of each neuron, with noise 1.
    """
    s = some.shape[1]
    firing = (rows.abs() > FIRES)[:, some].all(2).T  # (n, G)
    order = torch.rand(firing.shape, generator=generator, dtype=rows.dtype) + firing
    most = min(TOGETHER, rows.shape[0])
    neurons = order.topk(most, dim=1).indices  # the active ones come first
    number = firing.sum(1).clamp_max(most)
    choices = torch.combinations(torch.arange(most), s)
    seen = rows[neurons[:, :, None], some[:, None, :]]  # (n, most, s)
    there = (choices < number[:, None, None]).all(2)  # (n, choices)
    # The smallest singular value is the volume divided by the area of the largest side, up to a
    # factor of s; for noise, it is about 1.
    volume = torch.linalg.det(seen[:, choices]).abs()
    largest = seen.norm(dim=2)[:, choices].sort(dim=2).values[:, :, 1:].prod(2)
    independent = (volume > SEEN * s * largest) & there
    shown: Tensor = (number >= FEWEST) & (independent.sum(1) >= GENERAL * there.sum(1))
    return shown


def _patterns(size: Tensor) -> Tensor:
    """Number the patterns of activity (G,) that follow from sizes (G, b)."""
    numbers: Tensor = torch.unique((size > ZERO).long(), dim=0, return_inverse=True)[1]
    return numbers


@dataclass(frozen=True)
class _Vanishing:
    """Where a dual vanishes."""

    groups: Tensor  # (G,) bool, the groups where it vanishes not by coincidence
    proven: bool  # whether this proves that it is the dual of one sample

    def excludes(self, size: Tensor, unit: Tensor) -> bool:
        """Check whether the dual contains nothing of an input that is active with `size` (G,)."""
        both = self.groups & (size > FIRES)
        return len(unit[both].unique()) >= AGREE


@dataclass(frozen=True)
class _Evidence:
    """Rows in coordinates in which all of them together have unit energy in every direction."""

    grams: Tensor  # (G, b, b) the products L_g^T L_g
    noise: Tensor  # (b, b) the contribution of noise to the energy of one row
    rows: int  # number of rows in a group

    @classmethod
    def of(cls, data: WindowRows) -> _Evidence:
        """Scale the rows."""
        triangle = torch.linalg.qr(data.rows.flatten(0, 1)).R
        _, size, right = torch.linalg.svd(triangle, full_matrices=False)
        scale = right.T / positive(size)
        scaled = data.rows @ scale
        return cls(scaled.mT @ scaled, data.noise**2 * scale.T @ scale, data.rows.shape[1])

    def dependent(self, size: Tensor, patterns: Tensor) -> bool:
        """Check whether the rows of a pattern have lower rank than samples and neurons allow.

        This happens if the loss's slopes of some samples depend on each other, as for equal
        labels at a model whose outputs are zero or saturated, and if there are more samples
        than the loss has outputs in the rounds that differ. Then all neurons with one
        pattern contain the same combination, which looks like an input of its own, and
        activity proves nothing.
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
        """Find where a dual of some sizes (G,) vanishes, and whether this proves it."""
        zero = size < ZERO
        b = self.grams.shape[1]
        loud = size[~zero]
        if b == 1:
            return _Vanishing(zero, True)
        if not len(loud) or not bool(zero.any()) or float(loud.median()) < CLEAR:
            return _Vanishing(torch.zeros_like(zero), False)
        # Noise hides a coincidence in all rounds with probability (ZERO / `loud`)^changes, at any
        # of the neurons; this is its logarithm. The probability that `spares` of them coincide is
        # below CHANCE.
        chance = math.log(len(unit.unique())) + changes * math.log(ZERO / float(loud.median()))
        spares = SPARES + 1
        if chance < 0:
            spares = math.ceil(math.log(CHANCE) / chance)
        if (
            self._rank(zero) == b - 1
            and spares <= SPARES
            and self._spared(zero, unit, max(LEAST, spares), generator)
        ):
            return _Vanishing(zero, True)
        return _Vanishing(self._shared(zero, unit), False)

    def _spared(self, zero: Tensor, unit: Tensor, spares: int, generator: Generator) -> bool:
        """Check whether the rank stays b - 1 when a few arbitrary neurons are omitted.

        This is the case if some division of the neurons into spares + 1 parts has rank b -
        1 in every part: whichever `spares` neurons are omitted, one part is complete.
        """
        names = unit[zero].unique()
        parts = spares + 1
        if len(names) < parts:
            return False
        for _ in range(SHUFFLES):
            place = torch.randperm(len(names), generator=generator) % parts
            part = place[torch.searchsorted(names, unit.clamp(max=int(names[-1])))]
            if all(self._rank(zero & (part == p)) == len(self.noise) - 1 for p in range(parts)):
                return True
        return False

    def _shared(self, zero: Tensor, unit: Tensor) -> Tensor:
        """Return groups (G,) whose neuron can be omitted without loss of rank: no coincidences."""
        rank = self._rank(zero)
        kept = torch.zeros_like(zero)
        for name in unit[zero].unique():
            if self._rank(zero & (unit != name)) == rank:
                kept |= zero & (unit == name)
        return kept

    def _rank(self, groups: Tensor) -> int:
        """Count the directions that are visible in the rows of some groups (G,)."""
        energy, vectors = torch.linalg.eigh(self.grams[groups].sum(0))
        noise = self.rows * int(groups.sum()) * ((self.noise @ vectors) * vectors).sum(0)
        return int((energy > SEEN**2 * noise + ROUNDING).sum())


def refined(data: WindowRows, inputs: Tensor) -> tuple[Tensor, Tensor] | None:
    """Fit every dual again to all rows where it vanishes, and bound how mixed the inputs are.

    The rows R_j (N, b) where dual q_j vanishes have errors of deviation `noise`. So q_j, of
    length 1, is their last right singular vector up to an error of covariance noise^2 (R_j'
    R_j)^+. Because X is the inverse of the duals, an error e of q_j subtracts (x_i e) x_j from
    every input x_i.

    Returns the inputs (b, b), and the deviations (b, b) of the multiple of x_j that is
    contained in x_i, with the inputs scaled as given. None if the rows where some dual vanishes
    do not determine it: it may be proven by rounds in which more neurons are inactive.
    """
    duals = torch.linalg.inv(inputs)
    size = (data.rows @ duals).square().mean(1).sqrt() / (data.noise * duals.norm(dim=0))
    fitted = duals.clone()
    mixed = torch.zeros_like(inputs)
    b = len(inputs)
    for j in range(b):
        rows = data.rows[size[:, j] < ZERO].flatten(0, 1)
        _, strength, right = torch.linalg.svd(torch.linalg.qr(rows).R, full_matrices=True)
        of_noise = data.noise * edge(len(rows), b)
        if int((strength > SEEN * of_noise).sum()) < b - 1:
            return None
        length = duals[:, j].norm()
        fitted[:, j] = right[-1] * length * torch.sign(right[-1] @ duals[:, j])
        seen = (inputs @ right[:-1].T) / strength[: len(right) - 1]
        mixed[:, j] = data.noise * length * seen.norm(dim=1)
    mixed.fill_diagonal_(0)
    again, failed = torch.linalg.inv_ex(fitted)
    return None if failed else (again, mixed)
