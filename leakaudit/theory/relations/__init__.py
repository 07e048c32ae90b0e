"""The linear engine: from one declaration of a protocol to what a view reveals.

What the view determines, with what accuracy, and what theory allows, all follows from the
declaration.

>>> from leakaudit.core.adversary import Adversary
>>> p = Relations()
>>> w = p.public("w0")
>>> for t in p.rounds(2):
...     w = p.state("w", 0, eq=w - "1/10" * p.grad(0, at=w))
...     m = p.send(0, 1, w, name="w")
>>> view = know(p, Adversary())
>>> determined(view, p.gradients(0))
[g[0,1], g[0,2]]
>>> explain(view, p.find("g", 0, 2))
10 w[0>1,1] - 10 w[0>1,2]
>>> round(float(estimate(view, [p.find("g", 0, 2)]).amplification[0]), 2)
14.14
"""

from leakaudit.theory.relations.account import Bound, account
from leakaudit.theory.relations.checks import Residuals, residuals
from leakaudit.theory.relations.declare import Relation, Relations
from leakaudit.theory.relations.determine import (
    determined,
    explain,
    is_determined,
)
from leakaudit.theory.relations.estimate import Estimate, estimate, recorded
from leakaudit.theory.relations.expression import Expression, Form, Number, Vector, decimal, exact
from leakaudit.theory.relations.knowledge import Knowledge, know
from leakaudit.theory.relations.record import (
    Turns,
    alone,
    drift,
    largest,
    reached,
    secretless,
    with_models,
)
from leakaudit.theory.relations.repeat import extend, steady
from leakaudit.theory.relations.semidefinite import supremum
from leakaudit.theory.relations.shifts import Shifts, shifts

__all__ = [
    "Bound",
    "Estimate",
    "Expression",
    "Form",
    "Knowledge",
    "Number",
    "Relation",
    "Relations",
    "Residuals",
    "Shifts",
    "Turns",
    "Vector",
    "account",
    "alone",
    "decimal",
    "determined",
    "drift",
    "estimate",
    "exact",
    "explain",
    "extend",
    "is_determined",
    "know",
    "largest",
    "reached",
    "recorded",
    "residuals",
    "secretless",
    "shifts",
    "steady",
    "supremum",
    "with_models",
]
