"""Exact sparse elimination modulo a Mersenne prime, and the way back to rationals.

Ranks decided in floating point are wrong here in both directions (docs/relations.md, traps). Modulo p a nonzero determinant
vanishes with a chance of about 1 / p.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction

Row = dict[int, int]
PRIMES = (
    2**61 - 1,
    2**521 - 1,
    2**4423 - 1,
)  # ranks take the first; a formula whose rationals are longer, the next
SLACK = 28  # bits: a residue that is no short rational passes for one with a chance of 2**-28


def residue(value: Fraction, prime: int) -> int:
    """Return a rational modulo the prime."""
    if value.denominator == 1:
        return value.numerator % prime
    return value.numerator * pow(value.denominator, -1, prime) % prime


def rational(value: int, prime: int) -> Fraction | None:
    """Return the short rational of a residue (Wang 1981), None where there is none.

    Numerator and denominator stay so far below sqrt(p / 2) that a residue at random has no such rational.
    """
    bound = 1 << (prime.bit_length() - SLACK) // 2
    r0, r1, s0, s1 = prime, value, 0, 1
    while r1 >= bound:
        q = r0 // r1
        r0, r1, s0, s1 = r1, r0 - q * r1, s1, s0 - q * s1
    return Fraction(r1, s1) if 0 < abs(s1) < bound else None


def subtract(row: Row, pivot: Row, column: int, prime: int) -> Row:
    """Return row minus the multiple of pivot that clears the column; pivot has a 1 there."""
    factor, out = row[column], dict(row)
    for k, v in pivot.items():
        new = (out.get(k, 0) - factor * v) % prime
        if new:
            out[k] = new
        else:
            out.pop(k, None)
    return out


def normal(row: Row, column: int, prime: int) -> Row:
    """Return the multiple of a row that has a 1 in the column."""
    inverse = pow(row[column], -1, prime)
    return {k: v * inverse % prime for k, v in row.items()}


class _Table:
    """Sparse rows with the places of every column; a pivot row is used up."""

    def __init__(self, rows: Iterable[Row], prime: int) -> None:
        self.prime = prime
        self.rows: list[Row | None] = [dict(r) for r in rows]
        self.columns: dict[int, set[int]] = defaultdict(set)
        for i, row in enumerate(self.rows):
            for k in row or ():
                self.columns[k].add(i)

    def pivot(self, column: int) -> None:
        """Clear a column with its shortest row, and take that row out."""
        rows, columns, prime = self.rows, self.columns, self.prime
        at = min(columns[column], key=lambda i: (len(rows[i] or ()), i))
        chosen = rows[at] or {}
        inverse = pow(chosen[column], -1, prime)
        for i in columns[column] - {at}:
            row = rows[i]
            assert row is not None  # a row that is used up stands in no column
            factor = row[column] * inverse % prime
            for k, v in chosen.items():
                new = (row.get(k, 0) - factor * v) % prime
                if new:
                    if k not in row:
                        columns[k].add(i)
                    row[k] = new
                elif k in row:
                    del row[k]
                    columns[k].discard(i)
        for k in chosen:
            columns[k].discard(at)
        rows[at] = None

    def clear(self, columns: Iterable[int]) -> list[int]:
        """Clear columns; return those that had a pivot.

        The column with the fewest rows goes first and its shortest row is the pivot, which keeps the rows sparse (Markowitz 1957).
        """
        heap = [(len(self.columns[c]), c) for c in set(columns) if c in self.columns]
        heapq.heapify(heap)
        cleared = []
        while heap:
            count, column = heapq.heappop(heap)
            now = len(self.columns[column])
            if now > count:
                heapq.heappush(heap, (now, column))
            elif now:
                self.pivot(column)
                cleared.append(column)
        return cleared


class Staircase:
    """Rows that come one after the other, in echelon form: the pivot of every row is its last column.

    Columns are numbered in the order in which they come to exist, so that a definition's pivot is what it defines and rows stay short.
    """

    def __init__(self, prime: int) -> None:
        self.prime = prime
        self.pivots: dict[int, Row] = {}
        self.found: set[int] = set()  # columns that follow by themselves; they count as nothing

    def add(self, row: Row) -> None:
        """Take a row in."""
        column, left = self._reduced(row)
        if column is None:
            return
        left = {k: v for k, v in left.items() if k not in self.found}
        self.pivots[column] = normal(left, column, self.prime)
        if len(left) == 1:
            self.found.add(column)

    def holds(self, row: Row) -> bool:
        """Whether a row is a combination of those that were taken in."""
        return self._reduced(row)[0] is None

    def _reduced(self, row: Row) -> tuple[int | None, Row]:
        """Subtract pivots from the last column down; return the first column that has none, and what is left then."""
        left = {k: v for k, v in row.items() if k not in self.found}
        heap = [-k for k in left]
        heapq.heapify(heap)
        while heap:
            column = -heapq.heappop(heap)
            if column not in left:
                continue
            if column not in self.pivots:
                return column, left
            factor = left[column]
            for k, v in self.pivots[column].items():
                new = (left.get(k, 0) - factor * v) % self.prime
                if not new:
                    left.pop(k, None)
                    continue
                if k not in left:
                    heapq.heappush(heap, -k)
                left[k] = new
        return None, left


def eliminate(rows: Iterable[Row], columns: Iterable[int], prime: int) -> list[Row]:
    """Return a basis, not reduced, of the combinations of the rows that hold none of the columns."""
    table = _Table(rows, prime)
    table.clear(columns)
    return [r for r in table.rows if r]


def independent(rows: Iterable[Row], columns: Iterable[int], prime: int) -> set[int]:
    """Return columns that are linearly independent and span all of the given columns."""
    return set(_Table(rows, prime).clear(columns))


def echelon(rows: Iterable[Row], order: Sequence[int], prime: int) -> list[Row]:
    """Return the reduced row echelon form in the given order of columns; other columns must be absent."""
    left, done = list(rows), list[Row]()
    for column in order:
        at = min(
            (i for i, r in enumerate(left) if column in r), key=lambda i: len(left[i]), default=None
        )
        if at is None:
            continue
        pivot = normal(left.pop(at), column, prime)
        left = [
            new for r in left if (new := subtract(r, pivot, column, prime) if column in r else r)
        ]
        done = [subtract(r, pivot, column, prime) if column in r else r for r in done] + [pivot]
    return done


def minimal_span(rows: Iterable[Row], order: Sequence[int], prime: int) -> list[Row]:
    """Return the basis whose rows are shortest from first to last column: no two begin, and no two end, at the same column.

    rows: a reduced row echelon form in the same order.
    """
    place = {c: k for k, c in enumerate(order)}
    ends: dict[int, tuple[int, Row]] = {}  # last column -> first place, row
    todo = [(min(place[c] for c in r), r) for r in rows]
    while todo:
        new = todo.pop()
        end = max(new[1], key=place.__getitem__)
        if end not in ends:
            ends[end] = new
            continue
        (begin, longer), shorter = sorted((ends[end], new), key=lambda pair: pair[0])
        ends[end] = shorter
        todo.append((begin, subtract(longer, normal(shorter[1], end, prime), end, prime)))
    return [
        normal(row, order[begin], prime)
        for begin, row in sorted(ends.values(), key=lambda pair: pair[0])
    ]
