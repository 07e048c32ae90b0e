"""Exact sparse elimination modulo a Mersenne prime, and the way back to rationals.

Which combinations of gradients a view determines is a question of ranks, and ranks decided in
floating point are wrong here in both directions (docs/relations.md, traps). So every decision is
made modulo a prime p: all arithmetic is on integers below p, and a determinant that is not zero
over the rationals vanishes modulo p with a chance of about 1 / p, 4e-19 for the first prime.
Formulas are found modulo p, too, and read back as the short fractions that their residues stand
for.

Two eliminations serve two questions. `eliminate` is given all rows at once and clears columns in
the order that keeps rows short: which unknowns go first does not matter to what is left. A
`Staircase` takes rows one after the other and answers in between whether a row follows from those
before; its pivots are the columns that came last, so that each definition is solved for what it
defines. Both run in about the number of entries that are ever made; these protocols are chains, so
that rows stay a few entries long.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

Row = dict[int, int]

# Mersenne primes. Ranks take the first, whose residues fit a machine word; a formula whose
# rationals are longer takes the next.
PRIMES = (2**61 - 1, 2**521 - 1, 2**4423 - 1)

# Bits by which numerator times denominator stay below p. There are 2^-28 as many such fractions as
# residues, so a residue at random passes for one with a chance of about 2^-28.
SLACK = 28


def residue(value: Fraction, prime: int) -> int:
    """Return a rational modulo the prime.

    Args:
        value: Its denominator must not be a multiple of the prime.
        prime: Of `PRIMES`.
    """
    if value.denominator == 1:
        return value.numerator % prime
    return value.numerator * pow(value.denominator, -1, prime) % prime


def modular(terms: Mapping[int, Fraction], prime: int, dropped: Collection[int] = ()) -> Row:
    """Return a linear form modulo the prime.

    Args:
        terms: Column -> coefficient, without zeros.
        prime: Of `PRIMES`.
        dropped: Columns that are left out.
    """
    if not dropped:
        return {column: residue(value, prime) for column, value in terms.items()}
    return {
        column: residue(value, prime) for column, value in terms.items() if column not in dropped
    }


def rational(value: int, prime: int) -> Fraction | None:
    """Return the short rational of a residue (Wang 1981), None if there is none.

    The extended Euclidean algorithm on p and the residue yields pairs (r, s) with r = s * value
    modulo p, that is r / s = value, whose r fall and whose s grow. The first r below the bound
    gives the only fraction with both parts below it: two different ones would have a cross product
    below p. Both parts stay so far below sqrt(p / 2) that a residue at random has no such fraction.

    Args:
        value: The residue, from 0 to prime - 1.
        prime: Of `PRIMES`.
    """
    bound = 1 << (prime.bit_length() - SLACK) // 2
    last_r = prime  # r = s * value modulo p, also for the last pair
    last_s = 0
    r = value
    s = 1
    while r >= bound:
        quotient, rest = divmod(last_r, r)
        last_r = r
        r = rest
        factor = last_s - quotient * s
        last_s = s
        s = factor
    if 0 < abs(s) < bound:
        return Fraction(r, s)
    return None


def subtract(row: Row, pivot: Row, column: int, prime: int) -> Row:
    """Return a row minus the multiple of a pivot row that clears a column.

    Args:
        row: Column -> residue, without zeros.
        pivot: A row with a 1 in the column.
        column: Present in both.
        prime: Of `PRIMES`.
    """
    factor = row[column]
    out = dict(row)
    for k, v in pivot.items():
        new = (out.get(k, 0) - factor * v) % prime
        if new:
            out[k] = new
        else:
            out.pop(k, None)
    return out


def normal(row: Row, column: int, prime: int) -> Row:
    """Return the multiple of a row that has a 1 in a column.

    Args:
        row: Column -> residue, without zeros.
        column: Present in the row.
        prime: Of `PRIMES`.
    """
    inverse = pow(row[column], -1, prime)
    return {k: v * inverse % prime for k, v in row.items()}


def negative(row: Row, prime: int) -> Row:
    """Return a row with every sign turned.

    Args:
        row: Column -> residue, without zeros.
        prime: Of `PRIMES`.
    """
    return {k: prime - v for k, v in row.items()}


class _SparseRows:
    """Sparse rows with the places of every column; a pivot row is used up."""

    def __init__(self, rows: Iterable[Row], prime: int) -> None:
        self.prime = prime
        self.rows: list[Row | None] = list(map(dict, rows))
        self.columns: dict[int, set[int]] = defaultdict(set)
        for i, row in enumerate(self.rows):
            for k in row or ():
                self.columns[k].add(i)

    def pivot(self, column: int) -> None:
        """Clear a column with its shortest row, and take that row out."""
        rows = self.rows
        columns = self.columns
        prime = self.prime
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

        The column with the fewest rows goes first and its shortest row is the pivot, which keeps
        the rows sparse (Markowitz 1957). Counts in the heap may be out of date: a column whose
        count has grown is put back, and one whose count has fallen is taken early, which costs
        sparsity but no correctness.
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
    """Rows that come one after the other, in echelon form.

    The pivot of every row is its last column. Columns are numbered in the order in which they come
    to exist, so that a definition's pivot is what it defines and rows stay short.

    Args:
        prime: Of `PRIMES`.
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
        """Subtract pivots from the last column down; return the first column that has none.

        The second value is the row that is left then.
        """
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
    """Return a basis, not reduced, of the combinations of the rows that hold none of some columns.

    Args:
        rows: Column -> residue, without zeros.
        columns: To be eliminated.
        prime: Of `PRIMES`.
    """
    table = _SparseRows(rows, prime)
    table.clear(columns)
    return list(filter(None, table.rows))


def independent(rows: Iterable[Row], columns: Iterable[int], prime: int) -> set[int]:
    """Return columns that are linearly independent and span all of the given columns.

    Args:
        rows: Column -> residue, without zeros.
        columns: To choose from.
        prime: Of `PRIMES`.
    """
    return set(_SparseRows(rows, prime).clear(columns))


def echelon(rows: Iterable[Row], order: Sequence[int], prime: int) -> list[Row]:
    """Return the reduced row echelon form in a given order of columns.

    Args:
        rows: Column -> residue, without zeros.
        order: All columns that occur.
        prime: Of `PRIMES`.
    """
    left = list(rows)
    done: list[Row] = []
    for column in order:
        shortest = _shortest(left, column)
        if shortest is None:
            continue
        pivot = normal(left.pop(shortest), column, prime)
        left = list(filter(None, _cleared(left, pivot, column, prime)))
        done = _cleared(done, pivot, column, prime)
        done.append(pivot)
    return done


def _shortest(rows: Sequence[Row], column: int) -> int | None:
    """Return the place of the first row, of those with a column, that has the fewest entries."""
    best = None
    for i, row in enumerate(rows):
        if column in row and (best is None or len(row) < len(rows[best])):
            best = i
    return best


def _cleared(rows: Iterable[Row], pivot: Row, column: int, prime: int) -> list[Row]:
    """Return the rows with a column cleared by its pivot."""
    cleared = []
    for row in rows:
        if column in row:
            cleared.append(subtract(row, pivot, column, prime))
        else:
            cleared.append(row)
    return cleared


def minimal_span(rows: Iterable[Row], order: Sequence[int], prime: int) -> list[Row]:
    """Return the basis whose rows are shortest from first to last column.

    In a minimal span form, no two rows begin, and no two end, at the same column (Kschischang,
    Sorokine 1995, of trellises). In an echelon form no two rows begin together. If two end
    together, the multiple of the one that begins later is subtracted from the other: that one keeps
    its beginning and ends earlier.

    Args:
        rows: A reduced row echelon form in the same order.
        order: All columns that occur.
        prime: Of `PRIMES`.
    """
    place = {column: k for k, column in enumerate(order)}
    ends: dict[int, tuple[int, Row]] = {}  # last column -> first place, row
    todo: list[tuple[int, Row]] = []
    for row in rows:
        todo.append((min(map(place.__getitem__, row)), row))
    while todo:
        new = todo.pop()
        end = max(new[1], key=place.__getitem__)
        if end not in ends:
            ends[end] = new
            continue
        (begin, longer), shorter = sorted((ends[end], new), key=lambda pair: pair[0])
        ends[end] = shorter
        todo.append((begin, subtract(longer, normal(shorter[1], end, prime), end, prime)))
    by_begin = sorted(ends.values(), key=lambda pair: pair[0])
    return [normal(row, order[begin], prime) for begin, row in by_begin]
