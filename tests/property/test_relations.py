"""Elimination modulo a prime against exact rational algebra, on random declarations."""

from __future__ import annotations

from fractions import Fraction as Q

from hypothesis import given, settings
from hypothesis import strategies as st

from leakaudit.core.adversary import Adversary
from leakaudit.theory.relations import (
    Expression,
    Knowledge,
    Relations,
    determined,
    explain,
    is_determined,
    know,
)
from leakaudit.theory.relations.modular import (
    PRIMES,
    echelon,
    eliminate,
    minimal_span,
    rational,
    residue,
)

SMALL = st.fractions(min_value=-3, max_value=3, max_denominator=4)
MATRIX = st.integers(1, 6).flatmap(
    lambda width: st.lists(
        st.lists(st.one_of(st.just(Q(0)), SMALL), min_size=width, max_size=width),
        min_size=1,
        max_size=6,
    )
)
STEADY = settings(derandomize=True, deadline=None, max_examples=60)


def row_space(matrix: list[list[Q]]) -> list[list[Q]]:
    """Return the reduced row echelon form, in rationals."""
    rows, done = [list(r) for r in matrix], list[list[Q]]()
    for column in range(len(matrix[0])):
        pivot = next((r for r in rows if r[column]), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        pivot = [v / pivot[column] for v in pivot]
        rows, done = (
            [[v - r[column] * w for v, w in zip(r, pivot, strict=True)] for r in part]
            for part in (rows, done)
        )
        done.append(pivot)
    return done


def declare(matrix: list[list[Q]], hidden: int) -> tuple[Knowledge, list[Expression]]:
    """Send every row of the matrix; the last `hidden` columns are noise."""
    p, width = Relations(), len(matrix[0])
    vectors = [
        p.secret("x", 0, c) if c < width - hidden else p.noise("n", 1, 0, c) for c in range(width)
    ]
    for k, row in enumerate(matrix):
        if any(row):
            form = [v * x for v, x in zip(row, vectors, strict=True) if v]
            p.send(0, 1, sum(form[1:], start=form[0]), "m", index=k)
    return know(p, Adversary()), vectors[: width - hidden]


@STEADY
@given(MATRIX, st.data())
def test_what_is_determined_is_the_row_space(matrix: list[list[Q]], data: st.DataObject) -> None:
    width = len(matrix[0])
    hidden = data.draw(st.integers(0, width - 1))
    k, targets = declare(matrix, hidden)
    backwards = row_space(
        [r[::-1] for r in matrix]
    )  # rows without noise come last, and begin after it
    expected = row_space(
        [r[::-1][: width - hidden] for r in backwards if not any(r[:hidden])]
        or [[Q(0)] * (width - hidden)]
    )
    found = determined(k, targets, form="echelon")
    assert [[e.terms.get(t.vector, Q(0)) for t in targets] for e in found] == expected
    assert len(determined(k, targets)) == len(expected)
    spans = determined(k, targets)
    assert len(spans) == len(expected)
    for e in spans:
        assert is_determined(k, e)
        assert explain(k, e) is not None


@STEADY
@given(MATRIX)
def test_a_minimal_span_basis_begins_and_ends_nowhere_twice(matrix: list[list[Q]]) -> None:
    prime, order = PRIMES[0], list(range(len(matrix[0])))
    rows = [{c: residue(v, prime) for c, v in enumerate(row) if v} for row in matrix]
    form = echelon(eliminate(rows, [], prime), order, prime)
    spans = minimal_span(form, order, prime)
    for ends in ([min(r) for r in spans], [max(r) for r in spans]):
        assert len(set(ends)) == len(form)
    assert echelon(spans, order, prime) == form


@STEADY
@given(st.fractions(max_denominator=2**15, min_value=-1, max_value=1))
def test_short_rationals_survive_the_prime(value: Q) -> None:
    for prime in PRIMES[:2]:
        assert rational(residue(value, prime), prime) == value


@STEADY
@given(MATRIX)
def test_explained_formulas_reproduce_the_combination(matrix: list[list[Q]]) -> None:
    k, targets = declare(matrix, 0)
    values = {t.vector: Q(7, 3) * (c + 1) ** 2 for c, t in enumerate(targets)}
    for r in k.relations:
        sent = next(v for v in r.terms if v not in values)
        values[sent] = (
            -sum((w * values[v] for v, w in r.terms.items() if v != sent), start=Q(0))
            / r.terms[sent]
        )
    for e in determined(k, targets):
        formula = explain(k, e)
        assert formula is not None
        assert sum(w * values[v] for v, w in formula.terms.items()) == sum(
            w * values[v] for v, w in e.terms.items()
        )
