"""Whether the low bits of messages are as random as fresh noise makes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import chdtrc
from torch import Generator, Tensor

from leakaudit._util.signals import whole
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace
from leakaudit.protocols.declared import everything
from leakaudit.theory.relations import Relations
from leakaudit.theory.relations.estimate import recorded
from leakaudit.theory.relations.rounds import LinearForm, substituted
from leakaudit.views.deviation import Deviation

# Noise is much larger than the last digits of a number, so the low bits of a message to which it is
# added are independent and uniform, whatever the message is without it. Something else in them is
# invisible in the size and the distribution of the noise. Bits are +1 or -1 here, and
#
# - a bit of the same number in T messages of a node has a sum M, and the sum of D such M^2 / T
#   exceeds D + 2 sqrt(D x) + 2 x with probability at most exp(-x): the exponential moments of M^2
#   are at most those of a normal number of the same variance (Laurent, Massart 2000, lemma 1);
# - the n bits of two messages have a product beyond t with probability at most 2 exp(-t^2 / (2 n))
#   (Hoeffding 1963);
# - the last `LOST` bits, which a sum of two numbers of a format may leave empty, are at most as
#   often 1 as 0. The sum of those M^2 / T whose M is positive is largest if they are equally often;
#   half of the M contribute nothing then, so E exp(lambda M^2 / T) is (1 + (1 - 2 lambda)^-1/2) / 2
#   for each, and s is exceeded with probability at most exp(-lambda s) times the D-th power of it;
# - bytes are uniform, with a chi-square statistic of 255 degrees of freedom.
#
# Where a message is nothing but noise, its last bits are those of a rounded product of a standard
# deviation and a normal number: 60 % of the last two are 1 for .2 and float32. They are left out.
#
# A payload that is encrypted with a key that these tests do not have is as random as noise.

LEVEL = 1e-7  # probability of a false alarm, as of each family of `draws`
TESTS = 4
# Bits of a message: those of numbers of up to WIDTH columns; numbers of bits that are stored for
# comparisons of pairs, and multiplications of these comparisons. All are choices, as in `draws`.
WIDTH = 1024
KEPT = 1 << 24
PRODUCTS = 1 << 34
# A bit is tested if numbers that differ in it differ by at most this share of the noise and of the
# number: the density of noise changes so little within it that a bit is biased by at most 1 %,
# which the tests of pairs do not notice (they notice its square). Bytes are tested with the second
# share, for which the bias is below 1e-3.
COARSE = 5  # a 32nd
FINE = 8  # a 256th
# A sum of two numbers of a format has no bits below their last ones, and ties of its rounding are
# even. The larger number may be twice as large as the largest number of the message, so that so
# many of the last bits are left out, and one more for each power of two by which a number is
# smaller.
LOST = 2
# A bit of simulated noise counts as biased from this deviation on, 8 standard deviations of it.
BIASED = 0.0156
DRAWS = 1 << 16
BYTE = 8
VALUES = 1 << BYTE
EXPECTED = 20  # least expected number of bytes with each value: a choice, usual are 5
# Floating-point format -> bits of the mantissa that are stored, integers of the same size.
FORMATS: Mapping[torch.dtype, tuple[int, torch.dtype]] = {
    torch.float64: (52, torch.int64),
    torch.float32: (23, torch.int32),
    torch.float16: (10, torch.int16),
    torch.bfloat16: (7, torch.int16),
}

Signs: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.int64]


class Bits:
    """The low bits of messages: call `add` for every recording, then `wrong`."""

    def __init__(self) -> None:
        self._sums: dict[int, Integers] = {}  # node -> (columns, bits) sums of signs
        self._counts: dict[int, Integers] = {}  # node -> how many each sum has
        self._lowest_sums: dict[int, Integers] = {}  # the same of bits that a sum leaves empty
        self._lowest_counts: dict[int, Integers] = {}
        self._rows: list[Signs] = []
        self._labels: list[str] = []
        self._bytes = np.zeros(VALUES, np.int64)  # how often each value of a byte occurs
        self._shape: tuple[int, int] | None = None

    def add(self, trace: Trace, declared: Relations, where: str = "") -> None:
        """Add the messages of one recording that contain fresh noise."""
        if trace.dtype not in FORMATS:
            return
        read = recorded(everything(trace))
        for place, std in fresh(declared).items():
            vector = declared.vectors[place]
            try:
                payload = read(vector)
            except LeakauditError:  # its channel is not recorded
                continue
            with whole():
                self._add(payload, std, vector.owner or 0, f"{vector.label}{where}")

    def wrong(self) -> Iterator[Deviation]:
        """Yield what the low bits of the messages contain besides noise."""
        yield from self._repeated()
        yield from self._shared()
        yield from self._uneven()

    def _add(self, payload: Tensor, std: float, node: int, label: str) -> None:
        mantissa, integers = FORMATS[payload.dtype]
        some = payload[_spread(len(payload))].contiguous()
        numbers = some.double().numpy()
        largest = float(np.abs(numbers).max(initial=0.0))
        if not 0 < largest < math.inf:
            return
        if self._shape is None:
            self._shape = (len(some), mantissa)
        if self._shape != (len(some), mantissa):
            return
        words = some.view(integers).long().numpy()
        # Exponents of the numbers, and the first and the last bit that noise makes random.
        exponents = np.frexp(numbers)[1]
        biased = _biased(std, payload.dtype)
        first = np.maximum(math.frexp(largest)[1] - exponents + LOST, biased)
        units = np.frexp(std)[1] - 1 - (exponents - 1 - mantissa)
        depth = np.where(numbers == 0, 0, np.minimum(units, mantissa))
        bits = np.arange(mantissa)
        random = bits < depth[:, None] - COARSE
        tested = random & (bits >= first[:, None])
        lowest = random & (bits < LOST) & (bits >= biased)
        every = 2.0 * ((words[:, None] >> bits) & 1) - 1
        signs = np.where(tested, every, 0.0)
        for one in (self._sums, self._counts, self._lowest_sums, self._lowest_counts):
            one.setdefault(node, np.zeros(self._shape, np.int64))
        self._sums[node] += signs.astype(np.int64)
        self._counts[node] += tested
        self._lowest_sums[node] += np.where(lowest, every, 0.0).astype(np.int64)
        self._lowest_counts[node] += lowest
        if (len(self._rows) + 1) * signs.size <= KEPT:
            self._rows.append(signs.ravel().astype(np.float32))
            self._labels.append(label)
        whole_bytes = first + BYTE <= depth - FINE
        values = (words[whole_bytes] >> first[whole_bytes]) & (VALUES - 1)
        self._bytes += np.bincount(values, minlength=VALUES)

    def _repeated(self) -> Iterator[Deviation]:
        families = (
            ("low", self._sums, self._counts, -math.inf, 1.0, _largest),
            ("the last", self._lowest_sums, self._lowest_counts, 0, 0.5, _largest_positive),
        )
        for which, sums, counts, least, share, limit in families:
            tests = 0
            total = 0.0
            for node, each in sums.items():
                several = counts[node] > 1
                tests += int(several.sum())
                positive = several & (each > least)
                total += float((each[positive] ** 2 / counts[node][positive]).sum())
            if total > limit(tests, -math.log(LEVEL / TESTS)):
                says = (
                    f"{which} bits of numbers repeat from message to message of a node: their "
                    f"sums have {total / (share * tests):.3g} times the variance of random bits"
                )
                yield Deviation("bits", says, tuple(sorted(sums)))

    def _shared(self) -> Iterator[Deviation]:
        if len(self._rows) < 2:
            return
        size = len(self._rows[0])
        some = min(len(self._rows), math.isqrt(PRODUCTS // size))
        rows = np.stack(self._rows[:some])
        products = np.abs(np.tril(rows @ rows.T, -1))
        pairs = some * (some - 1) / 2
        limit = math.sqrt(2 * size * math.log(2 * pairs * TESTS / LEVEL))
        at = np.unravel_index(int(np.argmax(products)), products.shape)
        if products[at] > limit:
            one, other = self._labels[int(at[1])], self._labels[int(at[0])]
            yield Deviation("bits", f"the low bits of {other} and {one} are alike")

    def _uneven(self) -> Iterator[Deviation]:
        numbers = int(self._bytes.sum())
        expected = numbers / VALUES
        if expected < EXPECTED:
            return
        statistic = float(((self._bytes - expected) ** 2).sum()) / expected
        chance = float(chdtrc(VALUES - 1, statistic))
        if chance < LEVEL / TESTS:
            says = (
                f"the last byte of {numbers} numbers does not have all values equally often "
                f"(probability {chance:.1g})"
            )
            yield Deviation("bits", says)


@cache
def _biased(std: float, dtype: torch.dtype) -> int:
    """Return how many of the last bits of noise are biased because a program scales draws by it."""
    mantissa, integers = FORMATS[dtype]
    draws = torch.randn(DRAWS, dtype=torch.float64, generator=Generator().manual_seed(0)).to(dtype)
    found = 0
    for noise in (draws * std, draws / (1 / std)):
        words = noise.view(integers).long()
        for bit in range(mantissa - FINE):
            share = float(((words >> bit) & 1).double().mean())
            if abs(share - 0.5) > BIASED:
                found = max(found, bit + 1)
    return found


def _largest(count: int, x: float) -> float:
    """Return what a sum of so many M^2 / T exceeds with probability at most exp(-x)."""
    return count + 2 * math.sqrt(count * x) + 2 * x


def _largest_positive(count: int, x: float) -> float:
    """Return the same for those of positive M: the least of what different lambdas give."""
    exponent = np.linspace(0.005, 0.495, 99)
    moment = (1 + (1 - 2 * exponent) ** -0.5) / 2
    return float(((x + count * np.log(moment)) / exponent).min())


def fresh(declared: Relations) -> dict[int, float]:
    """Return the messages with noise of their own round that no earlier message contains."""
    vectors = declared.vectors
    states: dict[int, LinearForm] = {}  # state -> what it is made of in its own round
    seen: set[int] = set()
    found: dict[int, float] = {}
    for at, relation in enumerate(declared.relations):
        defined = max(relation.terms)
        now = vectors[defined].round
        parts = {}
        for k, factor in relation.terms.items():
            if k != defined and vectors[k].round == now:
                parts[k] = -factor / relation.terms[defined]
        form = substituted(parts, states)
        if vectors[defined].kind == "state":
            states[defined] = form
        if declared.sent.get(defined) != at or vectors[defined].std:  # rounded by its channel
            continue
        variance = 0.0
        for k, factor in form.items():
            is_new = vectors[k].kind == "noise" and k not in seen
            if is_new and vectors[k].law == "gaussian":
                variance += (float(factor) * vectors[k].std) ** 2
        seen.update(form)
        if variance:
            found[defined] = math.sqrt(variance)
    return found


def _spread(width: int) -> Tensor:
    return torch.from_numpy(np.linspace(0, width - 1, min(width, WIDTH)).astype(np.int64))
