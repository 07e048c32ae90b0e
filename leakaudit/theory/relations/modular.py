"""Exact sparse elimination modulo a Mersenne prime, and the conversion back to rationals.

Which combinations of gradients a view determines is a question of ranks, and ranks computed in
floating point err in both directions here (docs/relations.md, pitfalls). Every decision is
therefore made modulo a prime p: all arithmetic uses integers below p, and a determinant that is not
zero over the rationals vanishes modulo p with a probability of about 1 / p, 4e-19 for the first
prime. Formulas are computed modulo p, too, and converted back to the short fractions that their
residues represent.

Two eliminations serve two purposes. `eliminate` receives all rows at once and clears columns in the
order that keeps rows short: the order of elimination does not affect the result. A `Staircase`
receives rows one after another and decides in between whether a row follows from those before; its
pivots are the most recent columns, so that each definition is solved for what it defines. The
running time of both is roughly the number of entries ever created; these protocols are chains, so
rows never have more than a few entries.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

Row = dict[int, int]

# Mersenne primes. Ranks use the first, whose residues fit a machine word; formulas with longer
# rationals use the next ones.
PRIMES = (2**61 - 1, 2**521 - 1, 2**4423 - 1)

# Number of bits by which numerator times denominator stay below p. There are 2^-28 times as many
# such fractions as residues, so a random residue passes for one with a probability of about 2^-28.
SLACK = 28


def residue(value: Fraction, prime: int) -> int:
    """Return a rational modulo the prime."""
    if value.denominator == 1:
        return value.numerator % prime
    return value.numerator * pow(value.denominator, -1, prime) % prime


def modular(terms: Mapping[int, Fraction], prime: int, dropped: Collection[int] = ()) -> Row:
    """Return a linear form modulo the prime."""
    if not dropped:
        return {column: residue(value, prime) for column, value in terms.items()}
    return {
        column: residue(value, prime) for column, value in terms.items() if column not in dropped
    }


def rational(value: int, prime: int) -> Fraction | None:
    """Return the short rational of a residue (Wang 1981); None if there is none.

    The extended Euclidean algorithm on p and the residue yields pairs (r, s) with r = s * value
    modulo p, that is r / s = value, with decreasing r and increasing s. The first r below the bound
    gives the only fraction with both parts below it: two different ones would have a cross product
    below p. Both parts stay so far below sqrt(p / 2) that a random residue has no such fraction.

    Args:
        value: The residue, from 0 to prime - 1.
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
        pivot: A row with a 1 in the column.
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
    """Return the multiple of a row that has a 1 in a column."""
    inverse = pow(row[column], -1, prime)
    return {k: v * inverse % prime for k, v in row.items()}


def negative(row: Row, prime: int) -> Row:
    """Return a row with all signs changed."""
    return {k: prime - v for k, v in row.items()}


class _SparseRows:
    """Sparse rows with an index of the rows of every column; a pivot row is removed."""

    def __init__(self, rows: Iterable[Row], prime: int) -> None:
        self.prime = prime
        self.rows: list[Row | None] = list(map(dict, rows))
        self.columns: dict[int, set[int]] = defaultdict(set)
        for i, row in enumerate(self.rows):
            for k in row or ():
                self.columns[k].add(i)

    def pivot(self, column: int) -> None:
        """Clear a column with its shortest row, and remove that row."""
        rows = self.rows
        columns = self.columns
        prime = self.prime
        at = min(columns[column], key=lambda i: (len(rows[i] or ()), i))
        chosen = rows[at] or {}
        inverse = pow(chosen[column], -1, prime)
        for i in columns[column] - {at}:
            row = rows[i]
            assert row is not None  # a removed row does not occur in any column
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

        The column with the fewest rows is cleared first, with its shortest row as pivot, which
        keeps the rows sparse (Markowitz 1957). Counts in the heap may be outdated: a column whose
        count has increased is put back, and one whose count has decreased is processed early, which
        affects sparsity but not correctness.
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
    """Rows that are added one after another, in echelon form.

    The pivot of every row is its last column. Columns are numbered in the order of their creation,
    so that a definition's pivot is what it defines and rows stay short.
    """

    def __init__(self, prime: int) -> None:
        self.prime = prime
        self.pivots: dict[int, Row] = {}
        self.found: set[int] = set()  # columns that follow by themselves; they count as zero
        self._using: dict[int, list[int]] = defaultdict(list)  # column -> pivots of rows with it

    def add(self, row: Row) -> None:
        """Add a row."""
        column, left = self._reduced(row)
        if column is None:
            return
        self.pivots[column] = normal(left, column, self.prime)
        for k in left:
            self._using[k].append(column)
        if len(left) == 1:
            self._follows(column)

    def _follows(self, column: int) -> None:
        """Remove a column that follows by itself from all rows, and those that follow from it."""
        waiting = [column]
        while waiting:
            found = waiting.pop()
            self.found.add(found)
            for pivot in self._using.pop(found, ()):
                row = self.pivots[pivot]
                if pivot != found and found in row:
                    del row[found]
                    if len(row) == 1:
                        waiting.append(pivot)

    def holds(self, row: Row) -> bool:
        """Return whether a row is a combination of those that were added."""
        return self._reduced(row)[0] is None

    def _reduced(self, row: Row) -> tuple[int | None, Row]:
        """Subtract pivots from the last column down; return the first column without a pivot.

        The second value is the row that remains at this point.
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
    """Return a basis, not reduced, of the combinations of the rows without some columns."""
    table = _SparseRows(rows, prime)
    table.clear(columns)
    return list(filter(None, table.rows))


def independent(rows: Iterable[Row], columns: Iterable[int], prime: int) -> set[int]:
    """Return columns that are linearly independent and span all of the given columns."""
    return set(_SparseRows(rows, prime).clear(columns))


def echelon(rows: Iterable[Row], order: Sequence[int], prime: int) -> list[Row]:
    """Return the reduced row echelon form in a given order of columns.

    Args:
        order: All columns that occur.
    """
    table: dict[int, Row] = dict(enumerate(rows))
    users = defaultdict[int, set[int]](set)
    for at, row in table.items():
        for column in row:
            users[column].add(at)
    left = set(table)
    done: list[int] = []
    for column in order:
        # The first row with the fewest entries among those with the column.
        pivots = [(len(table[at]), at) for at in users[column] if at in left]
        if not pivots:
            continue
        _, pivot = min(pivots)
        left.remove(pivot)
        done.append(pivot)
        table[pivot] = normal(table[pivot], column, prime)
        for at in users[column] - {pivot}:
            before = table[at]
            after = subtract(before, table[pivot], column, prime)
            for gone in before.keys() - after.keys():
                users[gone].discard(at)
            for new in after.keys() - before.keys():
                users[new].add(at)
            table[at] = after
            if not after:
                left.remove(at)
    return [table[at] for at in done]


def minimal_span(rows: Iterable[Row], order: Sequence[int], prime: int) -> list[Row]:
    """Return the basis whose rows are shortest from first to last column.

    In a minimal span form, no two rows start, and no two end, at the same column (Kschischang,
    Sorokine 1995, on trellises). In an echelon form, no two rows start together. If two end
    together, the multiple of the one that starts later is subtracted from the other, which keeps
    its start and ends earlier.

    Args:
        rows: A reduced row echelon form in the same order.
        order: All columns that occur.
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
