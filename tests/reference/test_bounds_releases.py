"""Noisy releases against losses on a fine grid, samples, and every direction of a small vector."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import laplace, truncnorm

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.bounds.composition import repeat
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency
from leakaudit.theory.bounds.losses import Losses
from leakaudit.theory.bounds.mechanisms import Additive, truncated_laplace
from leakaudit.theory.bounds.releases import Escaping, Release, composed

Array = NDArray[np.float64]
Kind = tuple[Additive, float, int]  # noise, change of one coordinate, how often
ONE = Adjacency.REPLACE
CELLS = 1 << 18  # of the density of one release
GRID = 1 << 18  # of the losses
ALPHA = 1e-6  # chance that samples contradict a true bound


class FineGrid:
    """The losses of releases of numbers: densities on 250,000 cells, then convolved by FFT.

    Each loss is put on the two grid points beside it with its mean kept.
    """

    def __init__(self, kinds: Sequence[Kind]) -> None:
        ones = [self._one(noise, shift) for noise, shift, _ in kinds]
        times = [n for _, _, n in kinds]
        far = sum(
            n * float(np.abs(loss).max()) for (loss, _, _), n in zip(ones, times, strict=True)
        )
        mean = sum(n * float(p @ loss) for (loss, p, _), n in zip(ones, times, strict=True))
        square = sum(
            n * float(p @ (loss - p @ loss) ** 2)
            for (loss, p, _), n in zip(ones, times, strict=True)
        )
        widest = max(float(np.abs(loss).max()) for loss, _, _ in ones)
        reach = 1.1 * min(far, abs(mean) + 10 * math.sqrt(square) + 10 * widest)
        step = 2 * reach / GRID
        spectrum = np.ones(GRID // 2 + 1, complex)
        for (loss, p, _), n in zip(ones, times, strict=True):
            at = loss / step
            below = np.floor(at)
            cells = np.zeros(GRID)
            np.add.at(cells, below.astype(np.int64) % GRID, p * (1 - (at - below)))
            np.add.at(cells, (below.astype(np.int64) + 1) % GRID, p * (at - below))
            spectrum *= np.fft.rfft(cells) ** n
        self.chance = np.fft.irfft(spectrum, GRID)
        self.losses = step * np.fft.fftfreq(GRID, 1 / GRID)
        self.kept = math.prod((1 - lost) ** n for (_, _, lost), n in zip(ones, times, strict=True))

    @staticmethod
    def _one(noise: Additive, shift: float) -> tuple[Array, Array, float]:
        """Return losses, their chances if finite, and the chance of an infinite one."""
        far = min(noise.width, 45 * noise.scale if noise.power == 1 else shift + 8 * noise.scale)
        # The ends of the common support lie between cells.
        ends = np.linspace(-far, far, CELLS)
        if noise.width < math.inf:
            common = min(shift - far, far)
            ends = np.concatenate(
                [np.linspace(-far, common, CELLS // 8), np.linspace(common, far, CELLS)[1:]]
            )
        z = (ends[1:] + ends[:-1]) / 2
        p = np.exp(-((np.abs(z) / noise.scale) ** noise.power)) * np.diff(ends)
        p /= p.sum()
        loss = (np.abs(z - shift) ** noise.power - np.abs(z) ** noise.power) / (
            noise.scale**noise.power
        )
        gone = z < shift - noise.width
        lost = float(p[gone].sum())
        return loss[~gone], p[~gone] / (1 - lost if lost < 1 else 1), lost

    def delta(self, epsilon: float) -> float:
        above = self.losses > epsilon
        rest = float(self.chance[above] @ -np.expm1(epsilon - self.losses[above]))
        return 1 - self.kept * (1 - rest)

    def epsilon(self, delta: float) -> float:
        low, high = 0.0, float(self.losses.max())
        if self.delta(high) > delta:
            return math.inf
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high


def sampled(kind: Kind, count: int, random: np.random.Generator) -> Array:
    """Return the sum of the losses of releases, for `count` runs, by scipy's distributions."""
    noise, shift, times = kind
    u = random.random((count, times))
    if noise.power == 2:
        std = noise.scale / math.sqrt(2)
        edge = noise.width / std
        z = std * truncnorm.ppf(u, -edge, edge)
    else:
        low = laplace.cdf(-noise.width / noise.scale)
        z = noise.scale * laplace.ppf(low + u * (1 - 2 * low))
    moved = z - shift
    loss = (np.abs(moved) ** noise.power - np.abs(z) ** noise.power) / noise.scale**noise.power
    loss[np.abs(moved) > noise.width] = math.inf
    return np.asarray(loss.sum(1))


def lower_limit(values: Array) -> float:
    """Return a lower limit of a mean of values in [0, 1] (Maurer, Pontil 2009, Theorem 4)."""
    bits = math.log(2 / ALPHA)
    n = len(values)
    return float(
        values.mean() - math.sqrt(2 * values.var(ddof=1) * bits / n) - 7 * bits / (3 * (n - 1))
    )


def drawn(case: int) -> tuple[Kind, float]:
    """Return a random mechanism, scale, truncation, sensitivity, number of releases, and delta."""
    random = np.random.default_rng([50, case])
    power = 1 if random.random() < 0.5 else 2
    scale = math.exp(random.uniform(-2, 2))
    width = scale * random.uniform(1, 9) if random.random() < 0.75 else math.inf
    shift = scale * math.exp(random.uniform(-5, 0.5))
    times = max(1, int(math.exp(random.uniform(0, 5.5))))
    noise = Additive(power, scale, width)  # type: ignore[arg-type]
    return (noise, shift, times), 10 ** random.uniform(-8, -0.5)


def compare(case: int) -> None:
    kind, delta = drawn(case)
    noise, shift, times = kind
    bound = composed((Release(noise, 1, l2=shift, times=times),), ONE)
    fine = FineGrid([kind])
    epsilon, true = bound.epsilon(delta), fine.epsilon(delta)
    if math.inf in (epsilon, true):
        assert epsilon == true
        assert 1 - fine.kept > delta * (1 - 1e-4)
    else:
        assert true * (1 - 1e-3) - 1e-6 <= epsilon <= true * 1.03 + 1e-6
    loss = sampled(kind, 20_000, np.random.default_rng([51, case]))
    for target in (delta, 0.3, 0.1, 0.03, 0.01):
        at = bound.epsilon(target)
        if at < math.inf:
            excess = -np.expm1(np.minimum(at - loss, 0))
            assert lower_limit(excess) <= bound.delta(at) <= target * (1 + 1e-9)


@pytest.mark.parametrize("case", range(8))
def test_compositions_are_within_3_percent_of_a_fine_grid_and_never_below_samples(
    case: int,
) -> None:
    compare(case)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8, 200, 24))
def test_200_compositions_are_within_3_percent_and_never_below_samples(block: int) -> None:
    for case in range(block, block + 24):
        compare(case)


def test_truncation_costs_at_most_an_independent_outcome_that_identifies() -> None:
    """The theorem of the module: delta <= q + (1 - q) times the delta without truncation."""
    random = np.random.default_rng(0)
    for _ in range(4000):
        power = int(random.integers(1, 3))
        width = math.exp(random.uniform(-3, 3))
        shift = width * random.uniform(0, 2.2)
        epsilon = float(random.exponential() * 10 ** random.uniform(-2, 1))
        cut, whole = Additive(power, 1.0, width), Additive(power, 1.0)  # type: ignore[arg-type]
        q = cut.delta(math.inf, shift)
        assert cut.delta(epsilon, shift) <= (q + (1 - q) * whole.delta(epsilon, shift)) * (
            1 + 1e-12
        )


@pytest.mark.parametrize("case", range(6))
def test_the_bound_of_vectors_covers_every_direction(case: int) -> None:
    """The true curve of a direction is that of its coordinates, composed as releases of numbers."""
    random = np.random.default_rng([52, case])
    power = 1 + case % 2
    scale = math.exp(random.uniform(-1, 1))
    width = math.inf if case % 3 == 0 else scale * random.uniform(2.5, 7)
    noise = Additive(power, scale, width)  # type: ignore[arg-type]
    length = scale * math.exp(random.uniform(-3, -0.2))
    d, times = int(random.integers(2, 5)), int(random.integers(1, 20))
    directions = [np.eye(d)[0], np.ones(d), np.r_[1.0, np.full(d - 1, 0.2)]]
    for direction in (*directions, *np.abs(random.standard_normal((1, d)))):
        s = length * direction / np.linalg.norm(direction)
        fine = FineGrid([(noise, float(h), times) for h in s if h > 1e-9])
        both = {"l2": length, "l1": float(s.sum()), "linf": float(s.max())}
        for norms in ({"l2": length}, {"l1": both["l1"]}, {"linf": both["linf"]}, both):
            bound = composed((Release(noise, d, **norms, times=times),), ONE)
            for epsilon in (0.0, 0.3, 1.0, 3.0):
                assert fine.delta(epsilon) <= bound.delta(epsilon) * (1 + 1e-6) + 1e-9


def test_vectors_cost_little_more_than_an_equal_change_of_all_coordinates() -> None:
    d, times, delta = 40, 20, 1e-5
    for noise, most in (
        (Additive(2, math.sqrt(2), 7.0), 1.001),
        (Additive(1, 1.0), 1.1),
        (Additive(1, 1.0, 25.0), 1.1),
    ):
        bound = composed((Release(noise, d, l2=0.3, times=times),), ONE)
        equal = FineGrid([(noise, 0.3 / math.sqrt(d), d * times)])
        true = equal.epsilon(delta)
        assert true * (1 - 1e-3) <= bound.epsilon(delta) <= true * most


def test_known_curves() -> None:
    normal = composed((Release(Additive(2, math.sqrt(2)), 7, l2=0.3, times=9),), ONE)
    assert isinstance(normal, Gdp)
    assert normal.mu == pytest.approx(0.9)
    pure = composed((Release(Additive(1, 2.0), 5, l1=0.5, times=4),), ONE)
    assert pure.delta(1.0) == 0
    assert pure.epsilon(0.0) == pytest.approx(1.0)
    wide = truncated_laplace(1.0, 1e-3, math.sqrt(1000))  # calibrated to the L1 norm
    by_l1 = composed((Release(wide, 1000, l1=math.sqrt(1000)),), ONE)
    assert by_l1.delta(1.0 + 1e-9) == pytest.approx(1e-3, rel=2e-3)
    assert composed((Release(wide, 1000, l2=1.0),), ONE).delta(1.0) < 1e-3
    one = Losses(((wide, 0.4, 3),), ONE)
    assert repeat(Losses(((wide, 0.4, 1),), ONE), 3) == one
    still = composed((Release(wide, 3, l2=0.0),), ONE)
    assert still.delta(0.0) == 0


def test_an_outcome_that_identifies_leaves_no_epsilon() -> None:
    """Theorem 6 of DP-dKM at (.5, 1e-3): fifty releases identify with probability 1 - .999^50."""
    width = 4.0827
    noise = Additive(2, 1 / math.sqrt(0.5), width)
    for d in (1, 10):
        bound = composed((Release(noise, d, linf=1.0, l1=1.0, times=50),), ONE)
        lost = 1 - (1 - noise.escape([1.0])) ** 50
        assert bound.epsilon(lost * 0.99) == math.inf
        assert bound.delta(1e6) == pytest.approx(lost, rel=2e-3)
        assert bound.delta(1e6) >= lost * (1 - 1e-9)
    gone = composed((Release(noise, 1, l2=2 * width),), ONE)
    assert (gone.epsilon(0.999), gone.power(0.0)) == (math.inf, 1.0)
    spread = composed((Release(noise, 10_000, l2=1.0, times=50),), ONE)
    equal = 1 - (1 - noise.escape([0.01] * 10_000)) ** 50
    assert spread.delta(1e6) == pytest.approx(equal, rel=2e-3)
    assert equal > 8 * lost / 2
    assert composed((Release(noise, 3, linf=1.0, l2=math.inf),), ONE).delta(9.0) < 0.01


def test_a_failure_is_the_power_without_false_positives() -> None:
    inner = Gdp(1.0, ONE)
    bound = Escaping(inner, 0.1, math.inf, ONE)
    assert bound.power(0.0) == pytest.approx(0.1)
    for alpha in (0.01, 0.2, 0.6):
        allowed = [math.exp(e) * alpha + bound.delta(e) for e in np.linspace(0, 6, 60)]
        assert alpha <= bound.power(alpha) <= min(allowed) + 1e-12
        assert bound.power(alpha) == pytest.approx(0.1 + 0.9 * gaussian.power(alpha / 0.9, 1.0))
    twice = bound.plus(bound)
    assert twice.lost == pytest.approx(0.19)
    assert twice.inner == Gdp(math.sqrt(2), ONE)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: composed((), ONE),
        lambda: Release(Additive(1, 1.0), 0, l2=1.0),
        lambda: Release(Additive(1, 1.0), 1, l2=-1.0),
        lambda: Release(Additive(1, 1.0), 1, l1=math.nan),
        lambda: Release(Additive(1, 1.0), 1, l2=1.0, times=0),
        lambda: composed((Release(Additive(1, 1.0), 2, l2=1.0),), ONE).delta(-1.0),
    ],
)
def test_wrong_releases_are_rejected(wrong: object) -> None:
    with pytest.raises(LeakauditError, match="expected"):
        wrong()  # type: ignore[operator]
    assert composed((Release(Additive(1, 1.0), 2),), ONE) == Gdp(math.inf, ONE)


@pytest.mark.parametrize("case", range(8))
def test_the_least_loss_is_below_and_close(case: int) -> None:
    """What a change attains is rounded down: it never exceeds the upper side, and is near it."""
    (noise, shift, times), delta = drawn(case)
    upper = Losses(((noise, shift, times),), ONE)
    lower = Losses(((noise, shift, times),), ONE, least=True)
    for target in (delta, 0.1):
        low, high = lower.epsilon(target), upper.epsilon(target)
        assert low <= high
        assert low == high or low >= high * 0.95 - 1e-6
    fine = FineGrid([(noise, shift, times)])
    for epsilon in (0.0, 0.2, 1.0):
        assert lower.delta(epsilon) <= fine.delta(epsilon) * (1 + 1e-4) + 1e-9
