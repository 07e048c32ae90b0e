"""Tests of whether noise that is declared as independent and normal actually is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betainccinv, chdtr, ndtr, ndtri

from leakaudit._util.signals import whole
from leakaudit.core.verdict import Verdict
from leakaudit.theory.bounds.empirical import at_least
from leakaudit.views.conformance import ties
from leakaudit.views.conformance.pitfall import Pitfall
from leakaudit.views.conformance.substitute import Floats, NormalisedNoise
from leakaudit.views.deviation import Deviation

# A message minus what its declaration predicts without noise is a draw of the noise. Divided by the
# declared standard deviation, all draws of all messages, rounds and runs of a check are vectors of
# independent standard normal numbers. Each family of tests below shares `LEVEL` among all its tests
# (Bonferroni), so all of them together raise a false alarm in about one check in a million.

# Probability of a false alarm of each family of tests: about 1e-6 per check with the eleven
# families below, a thousandth of the gate's default alpha.
LEVEL = 1e-7
# Relative amount by which correct gradients may differ from those of the truth. Another framework
# in half precision has rounding errors of 2^-11, which accumulate to less than this over a few
# layers.
TOLERANCE = 1e-2

# Limits of memory and time; all are choices. WIDTH columns of a draw are stored, KEPT numbers of
# all draws (128 MiB of float32), and HELD sums of squares for individual nodes (32 MiB). Comparing
# all pairs of draws takes at most PRODUCTS multiplications (some seconds), on at least FEWEST
# columns. SEARCHED numbers are searched for repetitions along a draw, and JOINT coordinates are
# tested for combinations.
WIDTH = 1024
KEPT = 1 << 25
HELD = 1 << 22
PRODUCTS = 1 << 35
FEWEST = 64
SEARCHED = 1 << 24
JOINT = 256

MATRICES = 5  # number of matrices whose combinations are tested, see `_matrices`
# Least number of columns per row for a test of combinations. From 4 columns per row, the smallest
# singular value of correct noise is at least half of what it would be with many columns, so that
# one close to 0 is conspicuous.
LONGER = 4
# Levels, in standard deviations, below which numbers are counted: 2^-4, 2^-8, ..., 2^-44.
SMALL = tuple(2.0 ** (-4 * power) for power in range(1, 12))
# Sizes beyond which numbers are counted: 2.5 to 4.5 standard deviations, in steps of a tenth.
LARGE = tuple(tenths / 10 for tenths in range(25, 46))
# A level is used if it is at least this many rounding errors of a message: on a coarse grid, noise
# can be 0 by chance. At 64, the grid changes the expected count by less than two per cent.
ROUNDINGS = 64.0
PEAK = 8.0  # largest number of a message over its root mean square: a choice
COARSE = 0.01  # rounding, in standard deviations, above which noise cannot be distinguished from it
# Numbers in which equal ones are searched, and rounding error of those of a truth, which float32
# stores. The first is a choice (a second).
TIED = 1 << 19
STORED = 2.0**-20
# Of a draw that is wider than WINDOW times WIDTH, the numbers with a size from FROM on are compared
# as well, about WIDTH of them: which ones these are does not depend on their order. Their density
# is that of normal numbers within a tenth, for gradients within the tolerance. Choices.
WINDOW = 4
FROM = 1.0
SHIFTED = 1.1
# Largest cosine that float32 tells from 1. Draws of so few numbers that independent ones may have a
# larger cosine are compared by `ties` only.
RESOLVED = 1 - 2.0**-20
FARTHEST = 8.0  # normal number that a probability near 0 or 1 is mapped to at most

Places = NDArray[np.int64]

# Subjects of deviations: pitfalls of the lint, or keys of `deviation.TITLES`.
TWICE = "P06"
QUIET = "P20"
LATTICE = "P10"
SHAPE = "P13"
RUNS = "seeds"
PROCESS = "process"
ALONG = "along"
NUMBERS = {QUIET: 20, LATTICE: 10, SHAPE: 13}  # subject -> pitfall, if not that of reused noise


@dataclass(frozen=True)
class _Draw:
    """One draw of the noise."""

    seed: int | None  # of its run; None if there is no other run
    process: int  # number of the process that was called; 1 is the new process
    node: int
    place: int  # index among the draws of its node
    label: str  # name of the noise in the declaration

    def __str__(self) -> str:
        name = f"{self.label} of node {self.node}"
        return name if self.seed is None else f"{name} with seed {self.seed}"


# The name of what a sum of squares covers, and the nodes in that name.
_Name: TypeAlias = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class _Sums:
    """A family of sums of squares."""

    named: Callable[[int], _Name]  # what the k-th sum covers
    energy: Floats  # (k,) the sums
    numbers: Floats  # (k,) the number of squares in each sum


@dataclass(frozen=True)
class _Below:
    """How many numbers are below a size."""

    size: float  # in units of the declared noise
    count: int
    numbers: int  # number of all

    @property
    def share(self) -> float:
        """Part of standard normal numbers that lie within +-size: 2 Phi(size) - 1."""
        return 2 * float(ndtr(self.size)) - 1

    @property
    def chance(self) -> float:
        return float(at_least(self.count, self.numbers, self.share))


def _too_many(some: Sequence[_Below], level: float) -> _Below | None:
    return next((one for one in some if one.chance < level), None)


def rounding_of(noise: Sequence[NormalisedNoise]) -> dict[int, float]:
    """Return the rounding error of one number of each node's messages, in units of its noise.

    Args:
        noise: the noise of some nodes, with at least one draw each.
    """
    return {one.node: PEAK * float((one.rounded / one.std).max()) for one in noise}


def judged(
    noise: Sequence[NormalisedNoise], layers: Mapping[str, slice[int, int, None]]
) -> Iterator[Pitfall]:
    """Yield the first property of a recording's noise that independent normal noise lacks."""
    every = Draws()
    every.add(noise, layers, rounding_of(noise))
    for one in itertools.islice(itertools.chain(every.shared(), every.wrong()), 1):
        number = NUMBERS.get(one.about, 6)
        yield Pitfall(number, Verdict.REFUTED, one.says, {"nodes": list(one.nodes)})


class Draws:
    """All draws of a check: call `add` for every run, then `shared` and `wrong`."""

    def __init__(self) -> None:
        # Draws of which some columns are stored, for comparisons of pairs.
        self._draws: list[_Draw] = []
        self._rows: list[Floats] = []
        self._signals: list[float] = []  # norm of the gradients in each
        self._columns: Places = np.zeros(0, np.int64)  # the stored columns
        self._width = 0  # width of a whole draw
        self._layers: dict[str, slice[int, int, None]] = {}
        # Sums of squares: of each draw, one number for each layer ...
        self._named: list[_Draw] = []
        self._energy: list[Floats] = []
        # ... and of every coordinate, over all nodes and over the draws of each node.
        self._coordinates: Floats = np.zeros(0)
        self._of_node: dict[int, Floats] = {}
        self._counts: dict[int, int] = {}  # node -> draws
        # Level -> numbers below it, and numbers that were compared with it.
        self._below: dict[float, int] = {}
        self._looked: dict[float, int] = {}
        # Numbers beyond each of `LARGE`, and all numbers.
        self._beyond = np.zeros(len(LARGE), np.int64)
        self._counted = 0
        # Layer -> sum of squared Fourier transforms of the draws that were searched.
        self._spectra: dict[str, Floats] = {}
        self._searched = 0
        # By how much gradients within the tolerance may change a sum of products in them.
        self._loose = 0.0
        # Numbers in which equal ones are searched, by draw: their sizes and coordinates.
        self._sizes_kept: list[Floats] = []
        self._at: list[Places] = []
        self._some: list[tuple[int, Floats]] = []  # draw -> those of a wide draw, by size
        self._rounding = 0.0
        # Direction -> products of the draws with it.
        self._along: dict[str, list[Floats]] = {}
        self._of_ones: set[str] = set()  # those of a vector of ones

    def add(
        self,
        noise: Sequence[NormalisedNoise],
        layers: Mapping[str, slice[int, int, None]],
        rounding: Mapping[int, float],
        seed: int | None = None,
        process: int = 0,
    ) -> None:
        """Add the noise of one run; that of a second process is compared only with other seeds.

        Args:
            rounding: node -> rounding error of one number of a message, in standard deviations of
                its noise (`rounding_of`).
        """
        for one in noise:
            width = one.rest.shape[1]
            if not one.gaussian or not width or rounding[one.node] > COARSE:
                continue
            if not self._width:
                self._start(width, layers)
            if width == self._width:
                with whole():  # what was added before Ctrl-C is still tested
                    names = []
                    for place, label in enumerate(one.labels):
                        names.append(_Draw(seed, process, one.node, place, label))
                    self._keep(names, one, process)
                    if not process:
                        self._sum(names, one, rounding[one.node])
                        self._project(one, noise, rounding[one.node])

    def shared(self) -> Iterator[Deviation]:
        """Yield two draws that are equal; findings of other tests may be a consequence of this."""
        if self._rows:
            yield from self._pairs(self._rows, LEVEL)

    def wrong(self) -> Iterator[Deviation]:
        """Yield the first other property that independent normal noise does not have."""
        if not self._named:
            return
        for family in (
            self._lags,  # numbers that repeat have other sizes, too
            self._sizes,  # numbers without noise are equal up to signs, too
            self._rearranged,
            self._coordinate_pairs,
            self._equal_numbers,
            self._directions,
            self._regular,
            self._tails,
            self._combinations,
        ):
            found = next(family(), None)
            if found is not None:
                yield found
                return

    # --- collecting -------------------------------------------------------------------------------

    def _start(self, width: int, layers: Mapping[str, slice[int, int, None]]) -> None:
        # With every column, the one that takes its place in reverse is stored as well.
        half = np.random.default_rng(0).permutation((width + 1) // 2)[: WIDTH // 2]
        self._columns = np.unique(np.concatenate([half, width - 1 - half]))
        self._width = width
        self._coordinates = np.zeros(width)
        self._layers = {"": slice(0, width)}
        # Of vectors that are not as long as the model, it is unknown what belongs to a parameter.
        if len(layers) > 1 and max(part.stop for part in layers.values()) == width:
            self._layers |= layers

    def _keep(self, names: Sequence[_Draw], one: NormalisedNoise, process: int) -> None:
        # An eighth is reserved for the new process, which comes last.
        room = KEPT if process else KEPT - KEPT // 8
        if (len(self._rows) + len(names)) * len(self._columns) <= room:
            self._draws += names
            self._rows += list(one.rest[:, self._columns].astype(np.float32))
            self._signals += np.linalg.norm(one.signal[:, self._columns], axis=1).tolist()

    def _sum(self, names: Sequence[_Draw], one: NormalisedNoise, rounding: float) -> None:
        squares = one.rest**2
        energy = np.stack([squares[:, part].sum(1) for part in self._layers.values()], axis=1)
        self._named += names
        self._energy += list(energy)
        total = squares.sum(0)
        self._coordinates += total
        if one.node in self._of_node:
            self._of_node[one.node] = self._of_node[one.node] + total
        elif (len(self._of_node) + 1) * self._width <= HELD:
            self._of_node[one.node] = total
        self._counts[one.node] = self._counts.get(one.node, 0) + len(names)
        self._count_small(one.rest, rounding)
        self._beyond += [int((np.abs(one.rest) > level).sum()) for level in LARGE]
        self._counted += one.rest.size
        self._search(one)
        self._keep_sizes(one.rest, rounding)

    def _count_small(self, rest: Floats, rounding: float) -> None:
        size = np.abs(rest)
        for level in SMALL:
            if level >= ROUNDINGS * rounding:
                below = int((size < level).sum())
                self._below[level] = self._below.get(level, 0) + below
                self._looked[level] = self._looked.get(level, 0) + size.size

    def _keep_sizes(self, rest: Floats, rounding: float) -> None:
        self._rounding = max(self._rounding, rounding or STORED)
        wide = self._width > WINDOW * WIDTH
        if wide:
            share = WIDTH / self._width
            to = float(ndtri(ndtr(FROM) + share / 2))
        for draw in rest:
            if (len(self._sizes_kept) + 1) * len(self._columns) > TIED:
                return
            size = np.abs(draw)
            if wide:
                inside = np.flatnonzero((size >= FROM) & (size < to))
                self._some.append((len(self._sizes_kept), size[inside]))
                self._at.append(inside)
            self._sizes_kept.append(size[self._columns])

    def _project(
        self, one: NormalisedNoise, every: Sequence[NormalisedNoise], rounding: float
    ) -> None:
        """Keep the products of draws with vectors that do not depend on them."""
        total: dict[int, Floats] = {}
        for other in every:
            if other.signal.shape[1] != self._width:
                continue
            for at, row in zip(other.rounds, other.signal, strict=True):
                total[at] = total.get(at, 0.0) + row
        known = {
            "its own gradient": (one.rest, one.signal),
            "what sets its gradient apart from that of a guess": (one.rest, one.better),
            "the gradient of the draw before": (one.rest[1:], one.signal[:-1]),
            "the gradients of all nodes": (one.rest, np.stack([total[at] for at in one.rounds])),
        }
        for name, (rest, vectors) in known.items():
            self._products(name, rest, vectors, rounding)
        for name, part in self._layers.items():
            where = f" in {name}" if name else ""
            ones = np.zeros((1, self._width))
            ones[:, part] = 1.0
            name = f"the sum of its numbers{where}"
            self._of_ones.add(name)
            self._products(name, one.rest, ones, rounding)

    def _products(self, name: str, rest: Floats, vectors: Floats, rounding: float) -> None:
        length = np.sqrt((vectors**2).sum(1))
        # A vector that is only rounding is none.
        real = np.broadcast_to(length > ROUNDINGS * rounding * math.sqrt(self._width), len(rest))
        if real.any():
            products = (rest * vectors).sum(1) / np.maximum(length, 1e-300)
            self._along.setdefault(name, []).append(products[real])

    def _search(self, one: NormalisedNoise) -> None:
        """Add to the spectra.

        They yield the sums of products at all distances at once (Wiener, Khinchin).
        """
        room = max(0, SEARCHED // self._width - self._searched)
        rest = one.rest[:room]
        signal = one.signal[:room]
        if not len(rest):
            return
        self._searched += len(rest)
        # If correct gradients change a draw r by e, any sum of its products changes by at most
        # 2 |r| |e| + |e|^2.
        long = np.linalg.norm(rest, axis=1)
        moved = TOLERANCE * np.linalg.norm(signal, axis=1)
        self._loose += float((2 * long * moved + moved**2).sum())
        for name, part in self._layers.items():
            some = rest[:, part]
            size = 2 * some.shape[1]  # padded with zeros, so that the ends do not wrap around
            for row in some:
                spectrum = np.abs(np.fft.rfft(row, size)) ** 2
                if name in self._spectra:
                    self._spectra[name] = self._spectra[name] + spectrum
                else:
                    self._spectra[name] = spectrum

    # --- size -------------------------------------------------------------------------------------

    # The squares of any fixed set of numbers have a chi-square sum: the numbers of a message, of a
    # layer in it, or of a coordinate in all messages. Missing noise makes one of these sums too
    # small. Numbers that are almost 0 are counted as well, because a few numbers without noise are
    # not noticeable in any sum. A gradient that differs slightly from that of the truth makes sums
    # larger and small numbers rarer (Anderson 1955), so it causes no false alarm.

    def _sizes(self) -> Iterator[Deviation]:
        """Yield the least likely sum of squares, and an excess of small numbers."""
        yield from self._small_sums()
        yield from self._small_numbers()

    def _small_sums(self) -> Iterator[Deviation]:
        families = list(self._sums())
        tests = sum(len(family.energy) for family in families)
        least = LEVEL / (2 * tests)  # half of the level is for sums, half for small numbers
        found: Deviation | None = None
        for family in families:
            chances = chdtr(family.numbers, family.energy)
            at = int(np.argmin(chances))
            if chances[at] < least:
                least = float(chances[at])
                size = math.sqrt(float(family.energy[at]) / float(family.numbers[at]))
                name, nodes = family.named(at)
                says = f"the noise of {name} is {size:.3g} times the declared noise"
                found = Deviation(QUIET, f"{says} (probability {least:.1g})", nodes)
        if found is not None:
            yield found

    def _small_numbers(self) -> Iterator[Deviation]:
        some = [_Below(b, count, self._looked[b]) for b, count in sorted(self._below.items())]
        found = _too_many(some, LEVEL / (2 * len(SMALL)))
        if found is not None:
            says = (
                f"{found.count} of {found.numbers} numbers contain less than {found.size:.2g} of "
                f"the declared noise; {found.numbers * found.share:.2g} such numbers are expected "
                f"(probability {found.chance:.1g})"
            )
            yield Deviation(QUIET, says)

    def _tails(self) -> Iterator[Deviation]:
        """Yield too few large numbers: without them, an output can exclude a record.

        An error of the gradient makes large numbers more frequent (Anderson 1955), so only too few
        of them are a fault.
        """
        expected = 2 * ndtr(-np.array(LARGE))
        chances = bdtr(self._beyond, self._counted, expected)
        at = int(np.argmin(chances))
        if chances[at] < LEVEL / len(LARGE):
            says = (
                f"{self._beyond[at]} of {self._counted} numbers are larger than {LARGE[at]:g} "
                f"standard deviations; {self._counted * expected[at]:.2g} are expected "
                f"(probability {chances[at]:.1g})"
            )
            yield Deviation(SHAPE, says)

    def _sums(self) -> Iterator[_Sums]:
        energy = np.stack(self._energy)
        wide = np.array([part.stop - part.start for part in self._layers.values()], float)
        layers = [f" in {name}" if name else "" for name in self._layers]

        def message(place: int) -> _Name:
            draw = self._named[place // len(wide)]
            return f"{draw}{layers[place % len(wide)]}", (draw.node,)

        def layer(place: int) -> _Name:
            return f"all messages{layers[place]}", ()

        yield _Sums(message, energy.ravel(), np.tile(wide, len(energy)))
        yield _Sums(layer, energy.sum(0), wide * len(energy))
        yield from self._coordinate_sums()
        first = energy[:, 0]  # the first layer is the whole message
        nodes = [draw.node for draw in self._named]
        yield self._grouped(first, nodes, lambda node: (f"node {node}", (node,)))
        places = [draw.place for draw in self._named]
        yield self._grouped(first, places, lambda place: (f"draw {place} of every node", ()))
        seeds = [draw.seed or 0 for draw in self._named]
        yield self._grouped(first, seeds, lambda seed: (f"the run with seed {seed}", ()))

    def _coordinate_sums(self) -> Iterator[_Sums]:
        total = sum(self._counts.values())
        counts = np.full(self._width, float(total))
        yield _Sums(partial(_coordinate, ()), self._coordinates, counts)
        for node, squares in self._of_node.items():
            counts = np.full(self._width, float(self._counts[node]))
            yield _Sums(partial(_coordinate, (node,)), squares, counts)

    def _grouped(self, energy: Floats, keys: Sequence[int], named: Callable[[int], _Name]) -> _Sums:
        """Return sums of the energies of all messages by key; `named` describes such a sum."""
        known, inverse, count = np.unique(np.array(keys), return_inverse=True, return_counts=True)
        sums = np.zeros(len(known))
        np.add.at(sums, inverse, energy)
        values: list[int] = known.tolist()
        return _Sums(
            lambda place: named(values[place]), sums, count.astype(np.float64) * self._width
        )

    # --- pairs ------------------------------------------------------------------------------------

    # The cosine of two draws is independent of their size, and its square is Beta(1/2, (n - 1)/2).
    # A value that is too large indicates noise that two messages share. The same applies to two
    # coordinates, over all draws.

    def _pairs(
        self,
        stored: Sequence[Floats],
        level: float,
        change: Callable[[Floats], Floats] | None = None,
        how: str = "",
        *,
        centred: bool = False,
    ) -> Iterator[Deviation]:
        """Yield two draws that are equal.

        All pairs are compared in blocks of `WIDTH` rows. If there are many draws, fewer columns are
        compared, and if there are very many, fewer draws, those of the new process first.
        """
        latest = sorted(range(len(self._draws)), key=lambda k: -self._draws[k].process)
        if how:  # a seed that is run again is compared as it is
            latest = [k for k in latest if not self._draws[k].process]
        chosen = latest[: math.isqrt(PRODUCTS // FEWEST)]
        count = len(chosen)
        if count < 2:
            return
        draws = [self._draws[k] for k in chosen]
        rows = np.stack([stored[k] for k in chosen])
        signals = np.array([self._signals[k] for k in chosen])
        width = min(rows.shape[1], max(FEWEST, PRODUCTS // count**2))
        if width < 2:
            return
        rows = rows[:, _spread(rows.shape[1], width)]
        if centred:
            rows = rows - rows.mean(1, keepdims=True)
        others = rows if change is None else change(rows)
        size = np.linalg.norm(rows, axis=1)
        allowed = _may_be_equal([(draw.seed, draw.process) for draw in draws])
        worst = 0.0
        found = (0, 0)
        for start in range(0, count, WIDTH):
            stop = min(start + WIDTH, count)
            products = np.abs(rows[start:stop] @ others[:stop].T).astype(float)
            # Gradients within the tolerance change a product <r, s> by at most |e| |s| + |r| |f|.
            loose = TOLERANCE * (
                np.outer(signals[start:stop], size[:stop])
                + np.outer(size[start:stop], signals[:stop])
            )
            scale = np.maximum(np.outer(size[start:stop], size[:stop]), 1e-300)
            cosine = (products - loose) / scale
            cosine[allowed(start, stop)] = 0.0
            # Compare each pair once, and no draw with itself.
            cosine[np.arange(start, stop)[:, None] <= np.arange(stop)[None, :]] = 0.0
            at = np.unravel_index(int(np.argmax(cosine)), cosine.shape)
            if cosine[at] > worst:
                worst = float(cosine[at])
                found = (int(at[1]), start + int(at[0]))
        limit = _largest_cosine(level, count * (count - 1) // 2, width - centred)
        if min(worst, RESOLVED) > limit:
            first, second = sorted((draws[k] for k in found), key=lambda draw: draw.process)
            yield _same(first, second, worst, how)

    # --- order and signs --------------------------------------------------------------------------

    # Numbers that occur twice (`ties`), in any order and with any signs, or that lie on a lattice.
    # The cosines of the sizes of two draws, which have no signs, and of one draw with another in
    # reverse, are tested as those of the draws are. A size is first mapped to a normal number by
    # its distribution.

    def _rearranged(self) -> Iterator[Deviation]:
        if not self._rows:
            return
        sizes = [_without_signs(row) for row in self._rows]
        each = LEVEL / 3
        yield from self._pairs(self._rows, each, _reversed, "in reverse order")
        if len(self._columns) > 2:  # the mean is one of their degrees of freedom
            signs = "with other signs"
            yield from self._pairs(sizes, each, None, signs, centred=True)
            yield from self._pairs(
                sizes, each, _reversed, f"in reverse order, {signs}", centred=True
            )

    def _equal_numbers(self) -> Iterator[Deviation]:
        if not self._sizes_kept:
            return
        columns = np.tile(self._columns, len(self._sizes_kept))
        draw = np.repeat(np.arange(len(self._sizes_kept)), len(self._columns))
        size = np.concatenate(self._sizes_kept)
        found = ties.equal(size, draw, columns, self._rounding, LEVEL / 2)
        if found is None and self._some:
            draw = np.repeat([k for k, _ in self._some], [len(size) for _, size in self._some])
            size = np.concatenate([size for _, size in self._some])
            density = SHIFTED * ties.DENSITY * math.exp(-(FROM**2) / 2) * self._width / WIDTH
            at = np.concatenate(self._at)
            found = ties.equal(size, draw, at, self._rounding, LEVEL / 2, density)
        if found is not None:
            yield self._tied(found)

    def _tied(self, found: ties.TiedNumbers) -> Deviation:
        where, count, numbers, expected = found
        if isinstance(where, str):
            says = (
                f"{count} of {numbers} numbers of the noise equal another one "
                f"{where} up to rounding and signs; at most {expected:.2g} are "
                "expected: they are on a lattice, such as that of bfloat16, or repeat"
            )
            return Deviation(LATTICE, says)
        one, other = (self._named[k] for k in where)
        says = (
            f"{count} of {numbers} numbers of the noise of {other} are numbers of that "
            f"of {one}, in another order or with other signs; {expected:.2g} are expected"
        )
        about = TWICE if one.seed == other.seed else RUNS
        return Deviation(about, says, (one.node, other.node))

    # --- directions and regularity ----------------------------------------------------------------

    # The product of a draw with a vector of norm 1 that does not depend on it, such as its own
    # gradient, is standard normal. Noise without a part in this direction leaves products near 0.
    # The squared norms of draws have chi-square distributions, so they are neither too similar nor
    # equal; a draw that was rotated has the norm of the original.

    def _directions(self) -> Iterator[Deviation]:
        tests = len(self._along) * (1 + len(SMALL))
        for name, some in self._along.items():
            products = np.concatenate(some)
            numbers = len(products)
            says = f"the noise of {numbers} messages in the direction of {name}"
            if name in self._of_ones:
                says = f"{name} of the noise of {numbers} messages"
            chance = float(chdtr(numbers, float((products**2).sum())))
            if chance < LEVEL / tests:
                size = math.sqrt(float((products**2).mean()))
                says = f"{says} is {size:.2g} times the declared noise (probability {chance:.1g})"
                yield Deviation(SHAPE, says)
                return
            small = []
            for below in sorted(SMALL):
                if below >= ROUNDINGS * self._rounding:
                    small.append(_Below(below, int((np.abs(products) < below).sum()), numbers))
            found = _too_many(small, LEVEL / tests)
            if found is not None:
                says = (
                    f"{says} is below {found.size:.2g} of the declared noise in {found.count} of "
                    f"them (probability {found.chance:.1g})"
                )
                yield Deviation(SHAPE, says)
                return

    def _regular(self) -> Iterator[Deviation]:
        energy = np.stack(self._energy)
        each = LEVEL / (2 * len(self._layers))
        for k, (name, part) in enumerate(self._layers.items()):
            where = f" in {name}" if name else ""
            width = part.stop - part.start
            chances = chdtr(float(width), energy[:, k])
            scores = np.clip(ndtri(chances), -FARTHEST, FARTHEST)
            chance = float(chdtr(len(scores), float((scores**2).sum())))
            if chance < each:
                spread = math.sqrt(float((scores**2).mean()))
                says = (
                    f"the norms of {len(scores)} draws{where} vary {spread:.2g} times as much as "
                    f"those of normal noise (probability {chance:.1g})"
                )
                yield Deviation(SHAPE, says)
                return
            norms = np.sqrt(energy[:, k])
            places = np.arange(len(norms))
            found = ties.equal(norms, places, np.zeros_like(places), self._rounding, each)
            if found is not None:
                _, count, numbers, expected = found
                says = (
                    f"{count} of {numbers} draws{where} have the norm of another one, "
                    f"up to rounding; at most {expected:.2g} are expected: they are rotated "
                    "copies"
                )
                yield Deviation(TWICE, says)
                return

    def _coordinate_pairs(self) -> Iterator[Deviation]:
        rows, signals = self._distinct()
        count, width = rows.shape
        if count < 2 or width < 2:
            return
        size = np.linalg.norm(rows, axis=0).astype(float)  # 1e-300 below is 0 in float32
        loose = TOLERANCE * float(np.linalg.norm(signals))  # of a column, at most
        limit = _largest_cosine(LEVEL, width * (width - 1) // 2, count)
        products = np.abs(rows.T @ rows).astype(float) - loose * (size[:, None] + size[None, :])
        cosine = products / np.maximum(np.outer(size, size), 1e-300)
        np.fill_diagonal(cosine, 0.0)
        at = np.unravel_index(int(np.argmax(cosine)), cosine.shape)
        if cosine[at] > limit:
            one, other = sorted(int(self._columns[k]) for k in at)
            says = f"coordinates {one} and {other} contain the same noise in all messages"
            yield Deviation(ALONG, f"{says} (correlation {cosine[at]:.2f})")

    def _distinct(self) -> tuple[Floats, Floats]:
        """Return the stored draws, and the norms of their gradients.

        Draws of seeds that were run again are omitted.
        """
        keep = [k for k, draw in enumerate(self._draws) if not draw.process]
        signals = np.array([self._signals[k] for k in keep])
        if not keep:
            return np.zeros((0, 0)), signals
        return np.stack([self._rows[k] for k in keep]), signals

    # --- lags -------------------------------------------------------------------------------------

    # If one vector is repeated along a draw, numbers at a fixed distance are similar. With x =
    # log(1/p), M products of neighbours at one distance have a sum beyond sqrt(2 M x) + 2 x with
    # probability at most p (Laurent, Massart 2000, lemma 1: the quadratic form has Frobenius norm
    # sqrt(M/2) and spectral norm at most 1).

    def _lags(self) -> Iterator[Deviation]:
        tests = sum((part.stop - part.start) - 1 for part in self._layers.values())
        if tests < 1 or not self._searched:
            return
        x = math.log(2 * tests / LEVEL)  # sums may be too large in either direction
        worst = 0.0
        says = ""
        for name, part in self._layers.items():
            width = part.stop - part.start
            if width < 2:
                continue
            sums = np.fft.irfft(self._spectra[name], 2 * width)[:width]
            # Noise that is larger than declared makes all sums larger.
            scale = max(1.0, float(sums[0]) / (self._searched * width))
            products = self._searched * (width - np.arange(1, width, dtype=float))
            over = (np.abs(sums[1:]) - self._loose) / scale - np.sqrt(2 * products * x) - 2 * x
            at = int(np.argmax(over / products))
            if over[at] > 0 and over[at] / products[at] > worst:
                worst = float(over[at] / products[at])
                alike = float(sums[1 + at]) / float(products[at]) / scale
                where = f" in {name}" if name else ""
                says = (
                    f"numbers of a message at distance {at + 1}{where} "
                    f"contain the same noise (correlation {alike:.2f})"
                )
        if says:
            yield Deviation(ALONG, says)

    # --- combinations -----------------------------------------------------------------------------

    # An N x n matrix of independent standard normal numbers has its singular values between sqrt(n)
    # - sqrt(N) - t and sqrt(n) + sqrt(N) + t except with probability 2 exp(-t^2/2) (Davidson,
    # Szarek 2001, theorem II.13). Noise whose sum over the nodes is 0, or that fills fewer
    # dimensions than the message has, leaves a singular value that is too small.

    def _combinations(self) -> Iterator[Deviation]:
        for rows, matrix, loose in self._matrices():
            short, long = matrix.shape
            if short < 2 or long < LONGER * short:
                continue
            scale = max(1.0, float(np.linalg.norm(matrix)) / math.sqrt(matrix.size))
            gram = (matrix @ matrix.T).astype(float)
            values = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0)) / scale
            # The t of the theorem, at the level of each of `MATRICES` tests.
            t = math.sqrt(2 * math.log(2 * MATRICES / LEVEL))
            slack = math.sqrt(short) + t + loose
            tied = f"not independent: {rows}; a combination of them contains"
            if values[0] < math.sqrt(long) - slack:
                part = values[0] / math.sqrt(long)
                yield Deviation(TWICE, f"{tied} {part:.2g} times the expected noise")
                return
            if values[-1] > math.sqrt(long) + slack:
                part = values[-1] / math.sqrt(long)
                yield Deviation(TWICE, f"{tied} {part:.3g} times the expected noise")
                return

    def _matrices(self) -> Iterator[tuple[str, Floats, float]]:
        """Yield the draws of all complete runs, arranged as matrices in five ways.

        With each, what its rows are, in words, and by how much gradients within the tolerance may
        change its singular values.

        The draws form an array with axes for runs, nodes, draws of a node, and coordinates. The
        rows of a matrix correspond to one of these axes, or to nodes and draws together.
        """
        at = {
            (draw.seed, draw.node, draw.place): k
            for k, draw in enumerate(self._draws)
            if not draw.process
        }
        runs: dict[int | None, set[tuple[int, int]]] = {}
        for seed, node, place in at:
            runs.setdefault(seed, set()).add((node, place))
        nodes = sorted({node for _, node, _ in at})
        counts = [
            sum(owner == node for owner, _ in drawn) for drawn in runs.values() for node in nodes
        ]
        places = min(counts, default=0)
        shape = [(node, place) for node in nodes for place in range(places)]
        whole = [seed for seed, drawn in runs.items() if drawn.issuperset(shape)]
        known = [at[seed, node, place] for seed in whole for node, place in shape]
        if not known:
            return
        loose = TOLERANCE * float(np.linalg.norm([self._signals[k] for k in known]))
        flat = np.stack([self._rows[k] for k in known])
        cube = flat.reshape(len(whole), len(nodes), places, -1)
        axes = (
            "the noise of different runs",
            "the noise of different nodes",
            "the draws of a node",
        )
        for axis, rows in enumerate(axes):
            values = np.moveaxis(cube, axis, 0).reshape(cube.shape[axis], -1)
            yield rows, values, loose
        messages = np.moveaxis(cube, 0, 2).reshape(len(nodes) * places, -1)
        yield "the noise of different messages", messages, loose
        some = min(flat.shape[1], JOINT, len(flat) // LONGER)
        coordinates = flat[:, _spread(flat.shape[1], some)].T
        yield "the coordinates of the noise", coordinates, loose


def _spread(width: int, some: int) -> Places:
    """Return some of the columns 0 to width - 1, evenly spaced."""
    return np.linspace(0, width - 1, some).astype(int)


def _may_be_equal(
    runs: Sequence[tuple[int | None, int]],
) -> Callable[[int, int], NDArray[np.bool_]]:
    """Return which pairs of draws may be equal, because a repeated seed may draw the same noise.

    Args:
        runs: Seed and process of each draw.

    Returns:
        A function of a block of rows, start and stop, to a mask (stop - start, stop) over the pairs
        with earlier draws.
    """
    number = {run: k for k, run in enumerate(dict.fromkeys(runs))}
    of_draw = np.array([number[run] for run in runs])
    again = np.array([[a[0] == b[0] and a != b for b in number] for a in number])

    def block(start: int, stop: int) -> NDArray[np.bool_]:
        mask: NDArray[np.bool_] = again[of_draw[start:stop]][:, of_draw[:stop]]
        return mask

    return block


def _largest_cosine(level: float, pairs: int, numbers: int) -> float:
    """Return the cosine that any of several pairs exceeds with a probability of at most `level`.

    The pairs consist of independent vectors, each of the given number of standard normal numbers.
    The square of their cosine has the beta distribution with parameters 1/2 and (numbers - 1) / 2.
    """
    return math.sqrt(float(betainccinv(0.5, (numbers - 1) / 2, level / pairs)))


def _same(first: _Draw, second: _Draw, cosine: float, how: str = "") -> Deviation:
    nodes = (first.node, second.node)
    like = f" {how}" if how else ""
    says = f"the noise of {second} equals that of {first}{like} (correlation {cosine:.2f})"
    if first.process != second.process:
        why = "each is the first run of a process, so anyone who starts the program knows the noise"
        return Deviation(PROCESS, f"{says}; {why}", nodes)
    if first.seed != second.seed:
        why = "it is not drawn anew, so anyone who knows one run can subtract it"
        return Deviation(RUNS, f"{says}; {why}", nodes)
    return Deviation(TWICE, says, nodes)


def _reversed(rows: Floats) -> Floats:
    return rows[:, ::-1]


def _without_signs(row: Floats) -> Floats:
    """Return the sizes of normal numbers as normal numbers."""
    chances = 2 * ndtr(np.abs(row.astype(float))) - 1
    scores = np.clip(ndtri(chances), -FARTHEST, FARTHEST)
    return np.asarray(scores, np.float32)


def _coordinate(nodes: tuple[int, ...], place: int) -> _Name:
    of_node = "".join(f" of node {node}" for node in nodes)
    return f"coordinate {place} in all messages{of_node}", nodes
