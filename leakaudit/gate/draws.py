"""Whether noise that is declared independent and normal is so, in all messages, rounds and runs of a check together.

A message less what its declaration predicts without noise is a draw of the noise. Divided by the declared standard deviation, all draws
are vectors of independent standard normal numbers, whatever nodes, rounds and runs they are of. That has consequences with known laws:

- Size. The squares of any fixed set of numbers sum up to a chi-square: of a message, of a layer in it, of a coordinate in all messages.
  Noise that was left out somewhere makes one of these sums too small. Numbers that are almost 0 are counted besides, since a few numbers
  without noise are lost in every sum. A gradient that is not quite the truth's makes sums larger and numbers less often small (Anderson
  1955), so it raises no alarm.
- Pairs. The cosine of two draws depends on no size, and its square is Beta(1/2, (n - 1)/2). One that is too large is noise that two
  messages share. So is one of two coordinates, over all draws.
- Lags. In one vector that is repeated along a draw, numbers a fixed distance apart are alike. With x = log(1/p), M products of
  neighbours at one distance have a sum beyond sqrt(2 M x) + 2 x with probability at most p (Laurent, Massart 2000, lemma 1: the
  quadratic form has Frobenius norm sqrt(M/2) and spectral norm at most 1).
- Combinations. An N x n matrix of independent standard normal numbers has its singular values between sqrt(n) - sqrt(N) - t and
  sqrt(n) + sqrt(N) + t except with probability 2 exp(-t^2/2) (Davidson, Szarek 2001, theorem II.13). Noise whose sum over the nodes
  is 0, or that fills fewer dimensions than the message has, leaves a singular value that is too small.

Each family of tests shares `LEVEL` among all its tests (Bonferroni), so all of them together raise a false alarm on about one check in a
million.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import beta, binom, chi2

from leakaudit.gate.substitute import Floats, Noise

LEVEL = 1e-7  # chance of a false alarm of each family of tests
TOLERANCE = 1e-2  # part of the gradients by which honest ones may differ, such as those of another framework in half precision
WIDTH = 1024  # columns of a draw that are kept
KEPT = 1 << 25  # numbers that are kept of all draws
PRODUCTS = 1 << 35  # multiplications that comparing all pairs of draws may take: some seconds
FEWEST = 64  # columns that are left of a draw if there are that many pairs
SEARCHED = 1 << 24  # numbers that are searched for repetitions along a draw
HELD = 1 << 22  # sums of squares that are held for nodes one by one
JOINT = 256  # coordinates that are tested for combinations
MATRICES = 5  # whose combinations are tested
LONGER = 4  # times as many columns as rows, from which on combinations are tested
SMALL = tuple(
    2.0 ** (-4 * k) for k in range(1, 12)
)  # standard deviations: below each of these, numbers are counted ...
ROUNDINGS = (
    64.0  # ... if it is so many roundings of a message; on a coarse grid, noise can be 0 by chance
)
COARSE = 0.01  # rounding, in standard deviations, from which on noise is no longer told from it

Found = tuple[str, str]  # what it is about, and the sentence
Places = NDArray[np.int64]
Names = Callable[[int], str]  # how the k-th sum of a family is called
TWICE, QUIET = "P06", "P20"  # pitfalls of the lint
RUNS, PROCESS, ALONG = "seeds", "process", "along"


@dataclass(frozen=True)
class Run:
    """One call of a program. process: which of its processes was called; the second starts anew."""

    seed: int
    process: int = 0


@dataclass(frozen=True)
class _Draw:
    """Whose noise, of which run, and the place in its node's noise."""

    run: Run
    node: int
    place: int
    label: str

    def __str__(self) -> str:
        """Name the draw."""
        return f"{self.label} of node {self.node} with seed {self.run.seed}"


@dataclass
class Draws:
    """All draws of a check: `add` those of every run, then ask what is `wrong` with them."""

    _draws: list[_Draw] = field(default_factory=list)
    _rows: list[Floats] = field(default_factory=list)  # columns of each draw that are kept
    _signals: list[float] = field(default_factory=list)  # norm of the gradients in them
    _columns: Places = field(default_factory=lambda: np.zeros(0, np.int64))  # which these are
    _width: int = 0
    _layers: dict[str, slice] = field(default_factory=dict)
    _energy: list[Floats] = field(default_factory=list)  # of each draw, one number a layer
    _named: list[_Draw] = field(default_factory=list)
    _coordinates: Floats = field(
        default_factory=lambda: np.zeros(0)
    )  # sum of squares of every coordinate
    _of_node: dict[int, Floats] = field(default_factory=dict)  # the same of each node
    _counts: dict[int, int] = field(default_factory=dict)  # node -> draws
    _small: dict[float, list[int]] = field(
        default_factory=dict
    )  # level -> how many numbers lie below it, and of how many
    _spectra: dict[str, Floats] = field(
        default_factory=dict
    )  # layer -> sum of squared Fourier transforms
    _searched: int = 0  # draws in them
    _loose: float = (
        0.0  # by how much gradients within the tolerance may move a sum of products in them
    )

    def add(
        self,
        run: Run,
        noise: Sequence[Noise],
        layers: Mapping[str, slice],
        rounding: Mapping[int, float],
    ) -> None:
        """Take the noise of one run.

        Args:
            run: which.
            noise: of its nodes; what is not declared normal is left out.
            layers: name of a parameter -> its columns.
            rounding: node -> roundoff of one number of a message, in standard deviations of its noise.
        """
        for one in noise:
            width = one.rest.shape[1]
            if not one.gaussian or not width or rounding[one.node] > COARSE:
                continue
            if not self._width:
                self._start(width, layers)
            if width == self._width:
                self._add(run, one, rounding[one.node])

    def _start(self, width: int, layers: Mapping[str, slice]) -> None:
        chosen = np.random.default_rng(0).permutation(width)[:WIDTH]
        self._columns, self._width = np.sort(chosen), width
        self._coordinates = np.zeros(width)
        self._layers = {"": slice(0, width)}
        if len(layers) > 1:
            self._layers |= layers

    def _add(self, run: Run, one: Noise, rounding: float) -> None:
        """Take one node's noise; what a seed draws that is run again is compared with other seeds only."""
        names = [_Draw(run, one.node, k, label) for k, label in enumerate(one.labels)]
        room = (
            KEPT if run.process else KEPT - KEPT // 8
        )  # some is left for the process that starts anew, which comes last
        if (len(self._rows) + len(names)) * len(self._columns) <= room:
            self._draws += names
            self._rows += list(one.rest[:, self._columns].astype(np.float32))
            self._signals += np.linalg.norm(one.signal[:, self._columns], axis=1).tolist()
        if run.process:
            return
        squares = one.rest**2
        self._named += names
        self._energy += list(
            np.stack([squares[:, part].sum(1) for part in self._layers.values()], axis=1)
        )
        total = squares.sum(0)
        self._coordinates += total
        if one.node in self._of_node or (len(self._of_node) + 1) * self._width <= HELD:
            self._of_node[one.node] = self._of_node.get(one.node, np.zeros(self._width)) + total
        self._counts[one.node] = self._counts.get(one.node, 0) + len(names)
        self._count_small(one.rest, rounding)
        self._search(one)

    def _count_small(self, rest: Floats, rounding: float) -> None:
        size = np.abs(rest)
        for level in SMALL:
            if level >= ROUNDINGS * rounding:
                seen = self._small.setdefault(level, [0, 0])
                seen[0] += int((size < level).sum())
                seen[1] += size.size

    def _search(self, one: Noise) -> None:
        """Add to the spectra, from which the sums of products at all distances follow at once."""
        room = SEARCHED // self._width - self._searched
        rest, signal = one.rest[: max(0, room)], one.signal[: max(0, room)]
        if not len(rest):
            return
        self._searched += len(rest)
        long, moved = np.linalg.norm(rest, axis=1), TOLERANCE * np.linalg.norm(signal, axis=1)
        self._loose += float((2 * long * moved + moved**2).sum())
        for name, part in self._layers.items():
            some = rest[:, part]
            size = 2 * some.shape[1]
            for row in some:
                spectrum = np.abs(np.fft.rfft(row, size)) ** 2
                self._spectra[name] = (
                    self._spectra[name] + spectrum if name in self._spectra else spectrum
                )

    # --- what is wrong ------------------------------------------------------------------------------------------------

    def shared(self) -> Iterator[Found]:
        """Yield two draws that are one, if there are any; then what other tests of this noise show may well follow from it."""
        if self._rows:
            yield from self._pairs()

    def wrong(self) -> Iterator[Found]:
        """Yield the first other thing that no independent normal noise of the declared size shows."""
        if not self._named:
            return
        for family in (self._lags, self._coordinate_pairs, self._sizes, self._combinations):
            if found := next(family(), None):
                yield found
                return

    # --- size ---

    def _sizes(self) -> Iterator[Found]:
        """Yield the sum of squares that is least likely to be so small, and too many small numbers."""
        sums = list(self._sums())
        tests = sum(len(energy) for _, energy, _ in sums)
        worst = (LEVEL / (2 * tests), "")
        for names, energy, many in sums:
            chances = chi2.cdf(energy, many)
            at = int(np.argmin(chances))
            if chances[at] < worst[0]:
                size = math.sqrt(float(energy[at]) / float(many[at]))
                worst = (
                    float(chances[at]),
                    f"the noise of {names(at)} is {size:.3g} of what is declared",
                )
        if worst[1]:
            yield QUIET, f"{worst[1]} (chance {worst[0]:.1g})"
            return
        level = LEVEL / (2 * len(SMALL))
        for below, (count, numbers) in sorted(self._small.items()):
            chance = float(binom.sf(count - 1, numbers, 2 * ndtr(below) - 1))
            if chance < level:
                says = f"{count} of {numbers} numbers hold less than {below:.2g} of the declared noise, which is expected of"
                yield (
                    QUIET,
                    f"{says} {numbers * (2 * float(ndtr(below)) - 1):.2g} (chance {chance:.1g})",
                )
                return

    def _sums(self) -> Iterator[tuple[Names, Floats, Floats]]:
        """Yield sums of squares: how each is called, the sums, and how many numbers are in them."""
        energy = np.stack(self._energy)
        wide = np.array([part.stop - part.start for part in self._layers.values()], float)
        layers = [f" in {name}" if name else "" for name in self._layers]
        yield (
            (lambda k: f"{self._named[k // len(wide)]}{layers[k % len(wide)]}"),
            energy.ravel(),
            np.tile(wide, len(energy)),
        )
        yield (lambda k: f"all messages{layers[k]}"), energy.sum(0), wide * len(energy)
        total = sum(self._counts.values())
        yield (
            (lambda k: f"coordinate {k} in all messages"),
            self._coordinates,
            np.full(self._width, float(total)),
        )
        for node, squares in self._of_node.items():
            yield _coordinate_of(node), squares, np.full(self._width, float(self._counts[node]))
        for about, says in (
            ("node", "node {}"),
            ("place", "draw {} of every node"),
            ("seed", "the run with seed {}"),
        ):
            keys = np.array(
                [one.run.seed if about == "seed" else getattr(one, about) for one in self._named]
            )
            known, inverse, count = np.unique(keys, return_inverse=True, return_counts=True)
            sums = np.zeros(len(known))
            np.add.at(sums, inverse, energy[:, 0])
            yield _called(says, known.tolist()), sums, count.astype(np.float64) * self._width

    # --- pairs ---

    def _pairs(self) -> Iterator[Found]:
        """Yield two draws that are one."""
        chosen = sorted(range(len(self._draws)), key=lambda k: -self._draws[k].run.process)[
            : math.isqrt(PRODUCTS // FEWEST)
        ]
        some, count = [self._draws[k] for k in chosen], len(chosen)
        rows, signals = (
            np.stack([self._rows[k] for k in chosen]),
            np.array([self._signals[k] for k in chosen]),
        )
        width = min(rows.shape[1], max(FEWEST, PRODUCTS // count**2))
        if count < 2 or width < 2:
            return
        rows = rows[:, np.linspace(0, rows.shape[1] - 1, width).astype(int)]
        size = np.linalg.norm(rows, axis=1)
        limit = _cosine(LEVEL, count * (count - 1) // 2, width)
        runs = [one.run for one in some]
        number = {run: k for k, run in enumerate(dict.fromkeys(runs))}
        run = np.array([number[one] for one in runs])
        repeated = np.array([[a.seed == b.seed and a != b for b in number] for a in number])
        worst, found = 0.0, (0, 0)
        for start in range(0, count, WIDTH):
            stop = min(start + WIDTH, count)
            products = np.abs(rows[start:stop] @ rows[:stop].T).astype(float)
            loose = TOLERANCE * (
                np.outer(signals[start:stop], size[:stop])
                + np.outer(size[start:stop], signals[:stop])
            )
            scale = np.maximum(np.outer(size[start:stop], size[:stop]), 1e-300)
            cosine = (products - loose) / scale
            cosine[repeated[run[start:stop]][:, run[:stop]]] = (
                0.0  # a seed that is run again may draw the same
            )
            cosine[np.arange(start, stop)[:, None] <= np.arange(stop)[None, :]] = 0.0
            at = np.unravel_index(int(np.argmax(cosine)), cosine.shape)
            if cosine[at] > worst:
                worst, found = float(cosine[at]), (int(at[1]), start + int(at[0]))
        if worst > limit:
            first, second = sorted((some[k] for k in found), key=lambda one: one.run.process)
            yield _same(first, second, worst)

    # --- along a draw ---

    def _lags(self) -> Iterator[Found]:
        """Yield a distance at which the numbers of a draw are alike."""
        tests = sum((part.stop - part.start) - 1 for part in self._layers.values())
        if tests < 1 or not self._searched:
            return
        x = math.log(2 * tests / LEVEL)
        worst, says = 0.0, ""
        for name, part in self._layers.items():
            width = part.stop - part.start
            if width < 2:
                continue
            sums = np.fft.irfft(self._spectra[name], 2 * width)[:width]
            scale = max(1.0, float(sums[0]) / (self._searched * width))
            products = self._searched * (width - np.arange(1, width, dtype=float))
            over = (np.abs(sums[1:]) - self._loose) / scale - np.sqrt(2 * products * x) - 2 * x
            at = int(np.argmax(over / products))
            if over[at] > 0 and over[at] / products[at] > worst:
                worst = float(over[at] / products[at])
                alike = float(sums[1 + at]) / float(products[at]) / scale
                where = f" in {name}" if name else ""
                says = f"numbers of a message that are {at + 1} apart{where} hold the same noise (correlation {alike:.2f})"
        if says:
            yield ALONG, says

    def _coordinate_pairs(self) -> Iterator[Found]:
        """Yield two coordinates that hold the same noise in all messages."""
        rows, signals = self._distinct()
        count, width = rows.shape
        if count < 2 or width < 2:
            return
        size = np.linalg.norm(rows, axis=0)
        loose = TOLERANCE * float(np.linalg.norm(signals))  # of a column, at most
        limit = _cosine(LEVEL, width * (width - 1) // 2, count)
        products = np.abs(rows.T @ rows).astype(float) - loose * (size[:, None] + size[None, :])
        cosine = products / np.maximum(np.outer(size, size), 1e-300)
        np.fill_diagonal(cosine, 0.0)
        at = np.unravel_index(int(np.argmax(cosine)), cosine.shape)
        if cosine[at] > limit:
            one, other = sorted(int(self._columns[k]) for k in at)
            yield (
                ALONG,
                f"coordinates {one} and {other} hold the same noise in all messages (correlation {cosine[at]:.2f})",
            )

    def _distinct(self) -> tuple[Floats, Floats]:
        """Return the draws that are kept, without those of seeds that were run again, and the norms of the gradients in them."""
        keep = [k for k, one in enumerate(self._draws) if not one.run.process]
        rows = np.stack([self._rows[k] for k in keep]) if keep else np.zeros((0, 0))
        return rows, np.array([self._signals[k] for k in keep])

    # --- combinations ---

    def _combinations(self) -> Iterator[Found]:
        """Yield what of nodes, rounds, runs or coordinates is tied together by a fixed combination."""
        for says, matrix, loose in self._matrices():
            short, long = matrix.shape
            if short < 2 or long < LONGER * short:
                continue
            scale = max(1.0, float(np.linalg.norm(matrix)) / math.sqrt(matrix.size))
            values = (
                np.sqrt(np.maximum(np.linalg.eigvalsh((matrix @ matrix.T).astype(float)), 0.0))
                / scale
            )
            slack = math.sqrt(short) + math.sqrt(2 * math.log(2 * MATRICES / LEVEL)) + loose
            if values[0] < math.sqrt(long) - slack:
                part = values[0] / math.sqrt(long)
                yield (
                    TWICE,
                    f"{says} are not independent: a combination of them holds {part:.2g} of the noise that it should",
                )
                return
            if values[-1] > math.sqrt(long) + slack:
                part = values[-1] / math.sqrt(long)
                yield (
                    TWICE,
                    f"{says} are not independent: a combination of them holds {part:.3g} times the noise that it should",
                )
                return

    def _matrices(self) -> Iterator[tuple[str, Floats, float]]:
        """Yield draws as matrices whose rows should be independent, and by how much gradients may move their singular values."""
        at = {
            (one.run.seed, one.node, one.place): k
            for k, one in enumerate(self._draws)
            if not one.run.process
        }
        runs: dict[int, set[tuple[int, int]]] = {}
        for seed, node, place in at:
            runs.setdefault(seed, set()).add((node, place))
        nodes = sorted({node for _, node, _ in at})
        places = min(
            (
                sum(1 for one in at if one[0] == seed and one[1] == node)
                for seed in runs
                for node in nodes
            ),
            default=0,
        )
        shape = [(node, place) for node in nodes for place in range(places)]
        whole = [seed for seed, some in runs.items() if some.issuperset(shape)]
        known = [at[seed, node, place] for seed in whole for node, place in shape]
        if not known:
            return
        loose = TOLERANCE * float(np.linalg.norm([self._signals[k] for k in known]))
        flat = np.stack([self._rows[k] for k in known])
        cube = flat.reshape(len(whole), len(nodes), places, -1)
        for axis, says in enumerate(
            ("the noise of different runs", "the noise of different nodes", "the draws of a node")
        ):
            yield says, np.moveaxis(cube, axis, 0).reshape(cube.shape[axis], -1), loose
        yield (
            "the noise of different messages",
            np.moveaxis(cube, 0, 2).reshape(len(nodes) * places, -1),
            loose,
        )
        some = min(flat.shape[1], JOINT, len(flat) // LONGER)
        yield (
            "the coordinates of the noise",
            flat[:, np.linspace(0, flat.shape[1] - 1, some).astype(int)].T,
            loose,
        )


def _cosine(level: float, pairs: int, numbers: int) -> float:
    """Return the absolute cosine that one of so many pairs of independent vectors exceeds with a chance of `level` at most."""
    return math.sqrt(float(beta.isf(level / pairs, 0.5, (numbers - 1) / 2)))


def _same(first: _Draw, second: _Draw, cosine: float) -> Found:
    """Say that two draws are alike, and how that may have come about."""
    says = f"the noise of {second} is that of {first} (correlation {cosine:.2f})"
    if first.run.process != second.run.process:
        return (
            PROCESS,
            f"{says}, each the first run of a process: whoever starts the program knows the noise",
        )
    if first.run.seed != second.run.seed:
        return RUNS, f"{says}: it is not drawn anew, so whoever knows one run can take it away"
    return TWICE, says


def _coordinate_of(node: int) -> Names:
    return lambda k: f"coordinate {k} in all messages of node {node}"


def _called(says: str, known: Sequence[int]) -> Names:
    return lambda k: says.format(known[k])
