"""What nodes' local steps changed, if the messages determine this but no gradient."""

from __future__ import annotations

from fractions import Fraction

import torch

from leakaudit.core.leak import GradientLeak
from leakaudit.theory.relations import Expression, determined
from leakaudit.views.extraction import gradient_values
from leakaudit.views.extraction.deduction import Deduction

# A nonlinear optimiser hides the gradients of its steps (`Relations.opaque`), but the sum of the
# steps is a vector like any other: it is determined if the relations say so, alone or together with
# messages of other nodes.


def leak(deduction: Deduction, node: int, rounds: int) -> GradientLeak | None:
    """Return the determined changes of one node, with the models before them if they are known.

    Returns:
        None if no change is determined, or the protocol declares none.
    """
    # The relations are continued until they contain a number of gradients, one for each step.
    steps = max(training.steps for _, training in deduction.base.changes.values())
    found = deduction.around(node, rounds * steps)
    knowledge = found.knowledge
    declared = knowledge.declared
    mine = []
    for place in sorted(declared.changes):
        if place in knowledge.used and declared.vectors[place].owner == node:
            mine.append(Expression(declared.vectors, {place: Fraction(1)}))
    rows = []
    for row in determined(knowledge, mine, form="echelon"):
        if len(row.terms) == 1:
            rows.append(row)
    rows = rows[:rounds]
    if not rows:
        return None
    view = deduction.view
    estimated = gradient_values.minimum_variance(deduction, knowledge, rows)
    theta = None
    points = [declared.changes[row.vector][0] for row in rows]
    heard = all(point.terms.keys() <= knowledge.known for point in points)
    if heard and view.columns == (0, view.layout.size):
        theta = gradient_values.models(deduction, points, {})
    _, training = declared.changes[rows[0].vector]
    return GradientLeak(
        node=node,
        rounds=torch.tensor([declared.vectors[row.vector].round for row in rows]),
        combination=torch.eye(len(rows), dtype=torch.float64),
        value=estimated.apply(deduction.fetch),
        std=torch.from_numpy(estimated.std),
        columns=view.columns,
        noise=torch.from_numpy(estimated.noise),
        theta=theta,
        wire=torch.finfo(view.dtype).eps,
        inner=training.steps,
        step=training.lr,
        adversary=str(view.adversary),
        formula=gradient_values.formula(found, rows[len(rows) // 2]),
        scope=found.scope,
        training=training,
    )
