"""Values of what is determined: formulas of least variance, applied to recorded messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from leakaudit.adversary import View
from leakaudit.extraction.deduction import Deduction, Determined
from leakaudit.leak import GradientLeak
from leakaudit.relations import Expression, Knowledge, determined, estimate
from leakaudit.relations.estimate import Estimate

SAMPLES = 6  # messages of a kind whose size is looked at
SHORT = 12  # terms of a formula that is written out
# Rounding of a message relative to the number format's: 1 / sqrt(12), and what the sender's own
# arithmetic adds.
UNIT = 0.5


@dataclass(frozen=True)
class _Gradients:
    """Gradients of a node as columns of a leak.

    A column is a single gradient, or the weighted sum of a round if all rows hold the same sum.

    Attributes:
        places: Vectors of each column, in the order in which they were taken.
        combination: (m, T) In units of the last vector of each column.
    """

    places: tuple[tuple[int, ...], ...]
    combination: Tensor

    @property
    def first(self) -> list[int]:
        """The gradient of every column that was taken first."""
        return [places[0] for places in self.places]


def leak(deduction: Deduction, found: Determined) -> GradientLeak:
    """Return the values of what is determined of a node, with their noise and the models.

    The models are those at which the gradients were taken, if they are determined. Only single
    gradients if there are any, since attacks compare them one by one; otherwise every combination.

    Args:
        deduction: Of the trace and the adversary.
        found: What is determined of the node.
    """
    view = deduction.view
    knowledge = found.knowledge
    rows = _single(found) or found.rows
    columns = _gradients(rows)
    whole = view.columns == (0, view.layout.size)
    points = _points(knowledge, columns.first) if whole else None
    unknown = list(dict.fromkeys(p for p in points or () if not p.terms.keys() <= knowledge.known))
    estimated = quietest(deduction, knowledge, [*rows, *unknown])
    values = estimated.apply(deduction.fetch)
    m = len(rows)
    declared = knowledge.declared
    rounds = [declared.vectors[g].round for g in columns.first]
    models = [
        max(declared.vectors[k].round for k in declared.points[g].at.terms) for g in columns.first
    ]
    return GradientLeak(
        node=found.node,
        rounds=torch.tensor(rounds),
        combination=columns.combination,
        value=values[:m],
        std=torch.from_numpy(estimated.std[:m]),
        columns=view.columns,
        noise=torch.from_numpy(estimated.noise[:m]),
        theta=None
        if points is None
        else _models(deduction, points, dict(zip(unknown, values[m:], strict=True))),
        theta_std=float(estimated.std[m:].max(initial=0.0)),
        batch=_count(view, "batch", "samples"),
        records=_count(view, "samples", "batch"),
        wire=torch.finfo(view.dtype).eps,
        inner=max(len(places) for places in columns.places),
        step=_step(knowledge, columns.places[0]),
        adversary=str(view.adversary),
        formula=formula(found, rows[len(rows) // 2]),
        scope=found.scope,
        theta_rounds=torch.tensor(models),
    )


def quietest(
    deduction: Deduction, knowledge: Knowledge, combinations: Sequence[Expression]
) -> Estimate:
    """Return the formula of least variance of every combination.

    Its noise holds the rounding of the wire, and that of applying it.

    Args:
        deduction: Of the trace and the adversary.
        knowledge: The relations in use, and what is known.
        combinations: That are determined.
    """
    sizes = _sizes(deduction, knowledge)
    wire = UNIT * torch.finfo(deduction.view.dtype).eps
    ours = torch.finfo(torch.float64).eps
    found = estimate(
        knowledge, combinations, rounding={name: wire * size for name, size in sizes.items()}
    )
    applied = ours * np.linalg.norm(
        found.weights * [sizes.get(v.name, 0.0) for v in found.vectors], axis=1
    )
    applied = np.hypot(applied, found.miss * max(sizes.values(), default=0.0))
    return replace(
        found, std=np.hypot(found.std, applied), noise=np.hstack([found.noise, np.diag(applied)])
    )


def formula(found: Determined, row: Expression) -> str:
    """Return ``row = messages`` in exact rationals, cut if it is long.

    Args:
        found: What is determined of the node.
        row: One combination of it.
    """
    exact = found.formula(row)
    ends = sorted(exact.terms)
    if len(ends) <= SHORT:
        return f"{row} = {exact}"
    some = Expression(exact.home, {k: exact.terms[k] for k in ends[:SHORT]})
    return f"{row} = {some} + … ({len(ends)} terms)"


def _single(found: Determined) -> tuple[Expression, ...]:
    """Rows that hold gradients of one round alone."""
    vectors = found.knowledge.declared.vectors
    return tuple(row for row in found.rows if len({vectors[k].round for k in row.terms}) == 1)


def _gradients(rows: Sequence[Expression]) -> _Gradients:
    """Put the gradients of a round into one column if every row holds the same multiple of all."""
    rounds = defaultdict[int, list[int]](list)
    for k in sorted({k for row in rows for k in row.terms}):
        rounds[rows[0].home[k].round].append(k)
    places = [tuple(ks) for ks in rounds.values()]
    if not all(_alike(rows, ks) for ks in places):
        places = [(k,) for ks in places for k in ks]
    entries = [[float(row.terms.get(ks[-1], 0)) for ks in places] for row in rows]
    return _Gradients(tuple(places), torch.tensor(entries, dtype=torch.float64))


def _alike(rows: Sequence[Expression], places: Sequence[int]) -> bool:
    """Whether all rows hold multiples of one combination of these vectors.

    The last one must be present in it.
    """
    shapes = set[tuple[Fraction, ...]]()
    for row in rows:
        if held := [row.terms.get(k, Fraction(0)) for k in places if k in row.terms]:
            if places[-1] not in row.terms or len(held) < len(places):
                return len(places) == 1
            shapes.add(tuple(v / held[-1] for v in held))
    return len(shapes) == 1


def _points(knowledge: Knowledge, gradients: Sequence[int]) -> list[Expression] | None:
    """Return the models at which gradients were taken, None where one of them is not determined."""
    points = [knowledge.declared.points[g].at for g in gradients]
    unknown = [p for p in points if not p.terms.keys() <= knowledge.known]
    if any(len(p.terms) != 1 or not p.terms.keys() <= knowledge.used for p in unknown):
        return None
    given: list[Expression] = []
    if unknown:
        distinct = list(dict.fromkeys(unknown))
        given = determined(knowledge, distinct, up_to_noise=True, form="echelon")
    single = {next(iter(row.terms)) for row in given if len(row.terms) == 1}
    return points if all(p.vector in single for p in unknown) else None


def _count(view: View, *names: str) -> int | None:
    """Return the first of some numbers of records that the protocol declares.

    Such a number is that of a mini-batch, or else the node's.
    """
    for name in names:
        if view.knows(name) and view.constant(name):
            return int(view.number(name))
    return None


def _step(knowledge: Knowledge, places: Sequence[int]) -> float | None:
    """Return the step size between two gradients of one round: -dw/dg.

    w is the model at which the second one is taken.
    """
    points = knowledge.declared.points
    if len(places) < 2 or len(points[places[1]].at.terms) != 1:
        return None
    after = points[places[1]].at.vector
    moves = (r.terms for r in knowledge.relations if places[0] in r.terms and after in r.terms)
    return next((float(terms[places[0]] / terms[after]) for terms in moves), None)


def _models(
    deduction: Deduction, points: Sequence[Expression], solved: Mapping[Expression, Tensor]
) -> Tensor:
    """Return the models (T, d), from what is known and from what was solved for."""
    vectors = points[0].home
    known = {
        k: deduction.fetch(vectors[k]).double() for p in points if p not in solved for k in p.terms
    }
    models = []
    for p in points:
        if p in solved:
            models.append(solved[p])
        else:
            parts = [float(v) * known[k] for k, v in p.terms.items()]
            models.append(torch.stack(parts).sum(0))
    return torch.stack(models)


def _sizes(deduction: Deduction, knowledge: Knowledge) -> dict[str, float]:
    """Return the root mean square of messages by kind, the largest of some of them."""
    kinds = defaultdict[str, list[int]](list)
    for k in sorted(knowledge.used & knowledge.known):
        if (v := knowledge.declared.vectors[k]).kind == "message":
            kinds[v.name].append(k)
    sizes = dict[str, float]()
    for name, places in kinds.items():
        some = places[:: max(1, len(places) // SAMPLES)]
        sizes[name] = max(
            float(deduction.fetch(knowledge.declared.vectors[k]).double().square().mean().sqrt())
            for k in some
        )
    return sizes
