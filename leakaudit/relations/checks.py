"""Is a declaration right? Contradictions inside it, and its residuals on a run.

A wrong declaration is the one silent failure of this engine: everything else is derived from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from leakaudit.errors import LeakauditError
from leakaudit.relations.declare import Relation, Relations
from leakaudit.relations.expression import Expression, Vector
from leakaudit.relations.modular import PRIMES, eliminate, rational, residue

# Root mean squares of a channel's own error that a message may miss by, in Euclidean norm over all
# coordinates. For many coordinates the norm is within a few percent of one; 4 leaves room for few
# coordinates and heavy tails. A choice.
CHANNEL = 4.0


def consistent(declared: Relations) -> None:
    """Raise LeakauditError if relations force private vectors or noise to depend on each other.

    Relations between private vectors and noise (priors), and relations with a public vector, are
    not contradictions.

    Args:
        declared: The protocol.
    """
    vectors, prime = declared.vectors, PRIMES[0]
    rows = [{k: residue(v, prime) for k, v in r.terms.items()} for r in declared.relations]
    for row in eliminate(
        rows, (k for k, v in enumerate(vectors) if v.kind in ("state", "message")), prime
    ):
        kinds = {vectors[k].kind for k in row}
        if "public" in kinds or kinds >= {"noise", "secret"} or kinds >= {"noise", "gradient"}:
            continue
        first = row[min(row)]
        terms = {k: rational(v * pow(first, -1, prime) % prime, prime) for k, v in row.items()}
        short = {k: v for k, v in terms.items() if v is not None}
        if short and len(short) == len(terms):
            what = f"{Expression(vectors, short)} = 0"
        else:
            what = ", ".join(vectors[k].label for k in sorted(row))
        raise LeakauditError(
            f"contradiction: the relations force {what}, but these vectors are free; "
            "a state may be defined twice"
        )


@dataclass(frozen=True)
class Residuals:
    """Residuals of the relations on a run.

    A relation with one vector that was not recorded defines it; with several it is skipped.

    Attributes:
        worst: Largest residual, relative to the relation's terms.
        checked: How many relations were checked.
        skipped: How many could not be.
    """

    worst: float
    checked: int
    skipped: int


@dataclass(frozen=True)
class _Value:
    """A vector in float64.

    Attributes:
        value: (c,) The vector.
        size: Of the terms that it was computed from, which sets its rounding.
    """

    value: Tensor
    size: float


def residuals(
    declared: Relations,
    fetch: Callable[[Vector], Tensor | None],
    tolerance: float,
    gradient: Callable[[Vector, Tensor], Tensor] | None = None,
) -> Residuals:
    """Check every relation, in the order of declaration, on recorded vectors.

    Args:
        declared: The protocol.
        fetch: Returns a vector (c,), or None if it is not recorded.
        tolerance: Largest residual, relative to the relation's terms.
        gradient: Takes a gradient that is not recorded, at the model (c,) where the declaration
            says that it was taken.

    Raises:
        LeakauditError: The residual of a relation exceeds the tolerance; it names the first.
    """
    values: dict[int, _Value] = {}
    for k, vector in enumerate(declared.vectors):
        if (value := fetch(vector)) is not None:
            values[k] = _Value(value.double(), float(value.double().norm()))
    worst = 0.0
    checked = 0
    skipped = 0
    for relation in declared.relations:
        if gradient is not None:
            _take(declared, relation, values, gradient)
        missing = [k for k in relation.terms if k not in values]
        if len(missing) > 1 or len(missing) == len(relation.terms):
            skipped += 1
            continue
        known = {k: v for k, v in relation.terms.items() if k in values}
        total = _sum(known, values)
        if missing:
            scale = -float(relation.terms[missing[0]])
            values[missing[0]] = _Value(total.value / scale, total.size / abs(scale))
            continue
        error = float(total.value.norm()) / total.size if total.size else 0.0
        channel = max(
            abs(float(v)) * declared.vectors[k].std
            for k, v in known.items()
            if declared.vectors[k].kind != "noise"
        )
        allowed = tolerance
        if total.size:
            allowed += CHANNEL * channel * math.sqrt(len(total.value)) / total.size
        if not error <= allowed:
            raise LeakauditError(
                f"round {relation.round}: the relation {relation.text} misses by {error:.1e} of "
                f"its terms (allowed {allowed:.1e}); "
                "the declaration does not describe this run"
            )
        worst = max(worst, error)
        checked += 1
    return Residuals(worst, checked, skipped)


def _take(
    declared: Relations,
    relation: Relation,
    values: dict[int, _Value],
    gradient: Callable[[Vector, Tensor], Tensor],
) -> None:
    """Put the gradients of a relation among the values, if the models are known."""
    for k in relation.terms:
        at = declared.points[k].at.terms if k in declared.points and k not in values else {}
        if at and all(m in values for m in at):
            taken = gradient(declared.vectors[k], _sum(at, values).value).double()
            values[k] = _Value(taken, float(taken.norm()))


def _sum(terms: Mapping[int, Fraction], values: Mapping[int, _Value]) -> _Value:
    total = torch.stack([values[k].value * float(v) for k, v in terms.items()]).sum(0)
    return _Value(total, max(values[k].size * abs(float(v)) for k, v in terms.items()))
