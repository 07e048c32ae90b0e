"""Exact sparse elimination modulo a Mersenne prime, and the conversion back to rationals."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

# Which combinations a view determines is a question of ranks, and ranks in floating point err in
# both directions here (docs/relations.md, pitfalls). Decisions are therefore made modulo a prime p:
# a determinant that is not zero over the rationals vanishes with a probability of about 1 / p,
# 4e-19 for the first prime. Formulas are computed modulo p, too, and converted back to the short
# fractions that their residues represent.
#
# `eliminate` receives all rows at once and clears columns in the order that keeps rows short. A
# `Staircase` receives rows one after another and decides in between whether a row follows from
# those before; its pivots are the most recent columns, so that each definition is solved for what
# it defines. The running time of both is roughly the number of entries ever created; these
# protocols are chains, so rows never have more than a few entries.

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


def modular(
    terms: Mapping[int, Fraction], prime: int = PRIMES[0], dropped: Collection[int] = ()
) -> Row:
    """Return a linear form modulo the prime."""
    if not dropped:
        return {column: residue(value, prime) for column, value in terms.items()}
    return {
        column: residue(value, prime) for column, value in terms.items() if column not in dropped
    }


def rational(value: int, prime: int) -> Fraction | None:
    """Return the short rational of a residue (Wang 1981); None if there is none."""
    # The extended Euclidean algorithm on p and the residue yields pairs (r, s) with r = s * value
    # modulo p, that is r / s = value, with decreasing r and increasing s. The first r below the
    # bound gives the only fraction with both parts below it: two different ones would have a cross
    # product below p. Both parts stay so far below sqrt(p / 2) that a random residue has no such
    # fraction.
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


def normal(row: Row, column: int, prime: int) -> Row:
    """Return the multiple of a row that has a 1 in a column."""
    inverse = pow(row[column], -1, prime)
    return {k: v * inverse % prime for k, v in row.items()}


class _SparseRows:
    """Sparse rows with an index of the rows of every column, both changed in place."""

    def __init__(self, rows: Iterable[Row], prime: int) -> None:
        self.prime = prime
        self.rows: dict[int, Row] = {at: dict(row) for at, row in enumerate(rows)}
        self.columns: dict[int, set[int]] = defaultdict(set)
        for at, row in self.rows.items():
            for k in row:
                self.columns[k].add(at)

    def pivot(self, column: int, among: Collection[int]) -> int:
        """Clear a column in all rows but one, the shortest of some; return the place of that one.

        Args:
            among: Places of rows with the column, at least one.
        """
        rows = self.rows
        columns = self.columns
        prime = self.prime
        chosen_at = min(among, key=lambda at: (len(rows[at]), at))
        chosen = rows[chosen_at]
        inverse = pow(chosen[column], -1, prime)
        for at in columns[column] - {chosen_at}:
            row = rows[at]
            factor = row[column] * inverse % prime
            for k, v in chosen.items():
                new = (row.get(k, 0) - factor * v) % prime
                if new:
                    if k not in row:
                        columns[k].add(at)
                    row[k] = new
                elif k in row:
                    del row[k]
                    columns[k].discard(at)
        return chosen_at

    def clear(self, columns: Iterable[int]) -> list[int]:
        """Clear columns, without their pivot rows; return those that had a pivot.

        The column with the fewest rows is cleared first, with its shortest row as pivot, which
        keeps the rows sparse (Markowitz 1957). Counts in the heap may be outdated: a column whose
        count has increased is put back, and one whose count has decreased is processed early, which
        affects only sparsity.
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
                at = self.pivot(column, self.columns[column])
                for k in self.rows.pop(at):
                    self.columns[k].discard(at)
                cleared.append(column)
        return cleared


class Staircase:
    """Rows that are added one after another, in echelon form.

    The pivot of every row is its last column. Columns are numbered in the order of their creation,
    so that a definition's pivot is what it defines and rows stay short.
    """

    def __init__(self, prime: int = PRIMES[0]) -> None:
        self.prime = prime
        self.pivots: dict[int, Row] = {}
        self.found: set[int] = set()  # columns that follow by themselves; they count as zero
        self._using: dict[int, list[int]] = defaultdict(list)  # column -> pivots of rows with it

    def add(self, row: Row) -> bool:
        """Add a row; return whether it is no combination of earlier ones."""
        column, left = self._reduced(row)
        if column is None:
            return False
        self.pivots[column] = normal(left, column, self.prime)
        for k in left:
            self._using[k].append(column)
        if len(left) == 1:
            self._follows(column)
        return True

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
        """Subtract pivots from the last column down.

        Returns:
            The first column without a pivot, and the row that remains at this point.
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
    return list(filter(None, table.rows.values()))


def independent(rows: Iterable[Row], columns: Iterable[int], prime: int) -> set[int]:
    """Return columns that are linearly independent and span all of the given columns."""
    return set(_SparseRows(rows, prime).clear(columns))


def echelon(rows: Iterable[Row], order: Sequence[int], prime: int) -> list[Row]:
    """Return the reduced row echelon form in an order of all columns that occur."""
    table = _SparseRows(rows, prime)
    done: dict[int, int] = {}  # place of a pivot row -> its column
    for column in order:
        left = table.columns[column] - done.keys()
        if left:
            done[table.pivot(column, left)] = column
    return [normal(table.rows[at], column, prime) for at, column in done.items()]


def minimal_span(rows: Iterable[Row], order: Sequence[int], prime: int) -> list[Row]:
    """Return the basis whose rows are shortest from first to last column."""
    # In a minimal span form, no two rows start, and no two end, at the same column (Kschischang,
    # Sorokine 1995, on trellises). In a reduced echelon form, which the rows are, no two start
    # together. If two end together, the multiple of the one that starts later is subtracted from
    # the other, which keeps its start and ends earlier.
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
        (begin, longer), (later, shorter) = sorted((ends[end], new), key=lambda pair: pair[0])
        ends[end] = (later, shorter)
        left = dict(longer)
        factor = longer[end] * pow(shorter[end], -1, prime)
        for k, v in shorter.items():
            left[k] = (left.get(k, 0) - factor * v) % prime
        todo.append((begin, {k: v for k, v in left.items() if v}))
    by_begin = sorted(ends.values(), key=lambda pair: pair[0])
    return [normal(row, order[begin], prime) for begin, row in by_begin]
