"""What unknown masks of dropout mean for a reconstruction: no certificate is given.

The conditions of a certificate compare the leak with gradients that are computed again, or assume
that the first layer received the input itself. With masks that are not known, the gradients differ,
and dropout before the first layer passes on the input with some of its values set to zero and the
others enlarged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leakaudit.core.reconstruction import Certificate, Reconstruction

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

GIVEN = (Certificate.EXACT, Certificate.INTERVAL)
WHY = (
    "no certificate: the model may draw random masks in training, which are not known "
    '(state dropout = "eval" if it did not)'
)


def judged(found: Reconstruction, task: Task) -> Reconstruction:
    """Return a reconstruction without a certificate if the masks of the model are not known."""
    if not task.masked or not (found.certified or found.certificate in GIVEN):
        return found
    return replace(
        found,
        certificate=Certificate.APPROXIMATE,
        certified=0,
        interval=None,
        note=f"{WHY}; {found.note}",
    )
