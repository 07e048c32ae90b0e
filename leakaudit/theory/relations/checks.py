"""Residuals of a declaration on a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations.declare import Relation, Relations
from leakaudit.theory.relations.expression import Vector

# A wrong declaration is the one silent failure of this engine: everything else is derived from it.

# Maximum Euclidean norm of a message's residual over all coordinates, in units of the root mean
# square of the channel's own error. For many coordinates, the norm is within a few per cent of one;
# 4 leaves room for few coordinates and heavy tails. A choice.
CHANNEL = 4.0


@dataclass(frozen=True)
class Residuals:
    """Residuals of the relations on a run."""

    worst: float  # largest residual, relative to the relation's terms
    checked: int  # number of relations that were checked
    skipped: int  # number of relations that could not be checked


@dataclass(frozen=True)
class _Value:
    value: Tensor  # (c,) the vector
    size: float  # size of the terms from which it was computed, which determines its rounding error


def residuals(
    declared: Relations,
    fetch: Callable[[Vector], Tensor | None],
    tolerance: float,
    gradient: Callable[[Vector, Tensor], Tensor] | None = None,
) -> Residuals:
    """Check every relation, in the order of declaration, on recorded vectors.

    A relation with one vector that was not recorded defines this vector; with several, it is
    skipped.

    Args:
        fetch: Returns a vector (c,), or None if it is not recorded.
        gradient: Evaluates a gradient that is not recorded, at the model (c,) that the declaration
            states.
    """
    values: dict[int, _Value] = {}
    for k, vector in enumerate(declared.vectors):
        value = fetch(vector)
        if value is not None:
            values[k] = _Value(value.double(), float(value.double().norm()))
    worst = 0.0
    checked = 0
    skipped = 0
    for relation in declared.relations:
        if gradient is not None:
            _take(declared, relation, values, gradient)
        known = dict(relation.terms)
        missing = [k for k in known if k not in values]
        if len(missing) > 1 or len(missing) == len(known):
            skipped += 1
            continue
        if missing:
            scale = -float(known.pop(missing[0]))
            total = _sum(known, values)
            values[missing[0]] = _Value(total.value / scale, total.size / abs(scale))
            continue
        total = _sum(known, values)
        error = 0.0
        allowed = tolerance
        if total.size:
            error = float(total.value.norm()) / total.size
            channel = _channel_error(declared, known)
            allowed += CHANNEL * channel * math.sqrt(len(total.value)) / total.size
        if not error <= allowed:
            raise LeakauditError(
                f"round {relation.round}: the relation {relation.text} has a relative residual of "
                f"{error:.1e} (maximum {allowed:.1e}); "
                "the declaration does not describe this run"
            )
        worst = max(worst, error)
        checked += 1
    return Residuals(max(worst, _omitted(declared, values, tolerance)), checked, skipped)


def _omitted(declared: Relations, values: Mapping[int, _Value], tolerance: float) -> float:
    """Check that what messages omit is zero wherever they are not, and return the largest error."""
    worst = 0.0
    for left, message in declared.omits.items():
        if left not in values or message not in values:
            continue
        sent = values[message].value != 0
        size = max(values[left].size, values[message].size)
        error = float(values[left].value[sent].norm()) / max(size, torch.finfo(torch.float64).tiny)
        if not error <= tolerance:
            vectors = declared.vectors
            raise LeakauditError(
                f"{vectors[left].label} should be zero wherever {vectors[message].label} is not, "
                f"but has a relative size of {error:.1e} there (maximum {tolerance:.1e}); "
                "the declaration does not describe this run"
            )
        worst = max(worst, error)
    return worst


def _take(
    declared: Relations,
    relation: Relation,
    values: dict[int, _Value],
    gradient: Callable[[Vector, Tensor], Tensor],
) -> None:
    for k in relation.terms:
        if k not in declared.points or k in values:
            continue
        model = declared.points[k].terms
        if model and model.keys() <= values.keys():
            taken = gradient(declared.vectors[k], _sum(model, values).value).double()
            values[k] = _Value(taken, float(taken.norm()))


def _channel_error(declared: Relations, terms: Mapping[int, Fraction]) -> float:
    largest = 0.0
    for k, coefficient in terms.items():
        vector = declared.vectors[k]
        if vector.kind != "noise":
            largest = max(largest, abs(float(coefficient)) * vector.std)
    return largest


def _sum(terms: Mapping[int, Fraction], values: Mapping[int, _Value]) -> _Value:
    parts = []
    size = 0.0
    for k, coefficient in terms.items():
        factor = float(coefficient)
        parts.append(values[k].value * factor)
        size = max(size, values[k].size * abs(factor))
    return _Value(torch.stack(parts).sum(0), size)
