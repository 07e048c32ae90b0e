"""Is a declaration right? Contradictions inside it, and its residuals on a run whose private vectors are known.

A wrong declaration is the one silent failure of this engine: everything else is derived from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.errors import LeakauditError
from leakaudit.relations.declare import Relations
from leakaudit.relations.expression import Expression, Vector
from leakaudit.relations.modular import PRIMES, eliminate, rational, residue


def consistent(declared: Relations) -> None:
    """Raise LeakauditError where the relations force private vectors, or noise, to depend on each other.

    Relations between private vectors and noise (priors), and relations with a public vector, are not contradictions.
    """
    vectors, prime = declared.vectors, PRIMES[0]
    rows = [{k: residue(v, prime) for k, v in r.terms.items()} for r in declared.relations]
    for row in eliminate(rows, (k for k, v in enumerate(vectors) if v.kind in ("state", "message")), prime):
        kinds = {vectors[k].kind for k in row}
        if "public" in kinds or kinds >= {"noise", "secret"} or kinds >= {"noise", "gradient"}:
            continue
        first = row[min(row)]
        terms = {k: rational(v * pow(first, -1, prime) % prime, prime) for k, v in row.items()}
        what = ", ".join(vectors[k].label for k in sorted(row))
        if short := {k: v for k, v in terms.items() if v is not None}:
            what = f"{Expression(vectors, short)} = 0" if len(short) == len(terms) else what
        raise LeakauditError(f"contradiction: the relations force {what}, but these vectors are free; a state may be defined twice")


@dataclass(frozen=True)
class Residuals:
    """Largest residual of the relations on a run, relative to their terms; how many were checked, and how many could not be.

    A relation with one vector that was not recorded defines it; with several it is skipped.
    """

    worst: float
    checked: int
    skipped: int


@dataclass(frozen=True)
class _Value:
    """A vector in float64, and the size of the terms that it was computed from, which sets its rounding."""

    value: Tensor
    size: float


def residuals(declared: Relations, fetch: Callable[[Vector], Tensor | None], tolerance: float) -> Residuals:
    """Check every relation, in the order of declaration, on recorded vectors (c,); fetch returns None for one that is not recorded.

    Raises LeakauditError that names the first relation whose residual exceeds the tolerance.
    """
    values: dict[int, _Value] = {}
    for k, vector in enumerate(declared.vectors):
        if (value := fetch(vector)) is not None:
            values[k] = _Value(value.double(), float(value.double().norm()))
    worst, checked, skipped = 0.0, 0, 0
    for relation in declared.relations:
        missing = [k for k in relation.terms if k not in values]
        if len(missing) > 1 or len(missing) == len(relation.terms):
            skipped += 1
            continue
        parts = [(values[k], float(v)) for k, v in relation.terms.items() if k in values]
        total = torch.stack([p.value * v for p, v in parts]).sum(0)
        size = max(p.size * abs(v) for p, v in parts)
        if missing:
            scale = -float(relation.terms[missing[0]])
            values[missing[0]] = _Value(total / scale, size / abs(scale))
            continue
        error = float(total.norm()) / size if size else 0.0
        if not error <= tolerance:
            raise LeakauditError(
                f"round {relation.round}: the relation {relation.text} misses by {error:.1e} of its terms (allowed {tolerance:.1e}); "
                "the declaration does not describe this run"
            )
        worst, checked = max(worst, error), checked + 1
    return Residuals(worst, checked, skipped)
