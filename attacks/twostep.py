"""The attack of the PDMM thesis: two-step differences, with the last models taken as equal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Generator

from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# The relations determine one-step differences without error (`differential`, `analytic`, `exact`
# read these). The thesis estimates two-step differences instead, and its Figures 6.1 to 6.3 show
# what early stopping, several steps and quantizers do to this estimate
# (`leakaudit.views.extraction.two_steps`). Inputs are then found from one difference, as by the
# other two attacks. `auto` never uses it: the relations determine what it estimates.


@attack("twostep")
@dataclass(frozen=True)
class TwoStep(Attack):
    """Inputs from the thesis' estimate of two-step gradient differences; never certified."""

    rank: ClassVar[int] = 99
    reads: ClassVar[str] = "messages of PDMM; it estimates two-step differences of gradients itself"
    paper: ClassVar[str] = "Yu 2023, eqs. (2.13), (4.3) and (4.22), sections 5 and 6.3"
    cost: ClassVar[str] = "that of analytic or differential"

    assumes: Literal["auto", "exact", "gradient", "quadratic"] = param(
        "auto",
        "local update that the estimate assumes: exact is eq. (2.13), gradient (4.3), quadratic "
        "(4.22), auto that of the protocol, or exact if it takes several steps",
    )
    invert: Literal["auto", "analytic", "differential"] = param(
        "auto", "attack on the difference; auto: analytic if it applies"
    )
    difference: int = param(1, "which difference to use; 1 is that of the first observed round")

    @property
    def estimator(self) -> str:
        """The local update that the two-step estimate assumes."""
        return self.assumes

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require the two-step estimate, and a leak that the second attack can use."""
        if not leak.estimate:
            return 'it reads its own estimate of gradients: leaks(trace, estimator="auto")'
        if not 1 <= self.difference <= len(leak.value):
            return f"expected difference between 1 and {len(leak.value)}, got {self.difference}"
        return self._second(leak, task).refuses(self._one(leak), task)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs."""
        second = self._second(leak, task)
        found = second(self._one(leak), task, generator)
        note = f"{found.attack} on {leak.formula}; {found.note}"
        return replace(found, attack="twostep", note=note)

    def _one(self, leak: GradientLeak) -> GradientLeak:
        return leak.equation(self.difference - 1)

    def _second(self, leak: GradientLeak, task: Task) -> Attack:
        name = self.invert
        if name == "auto":
            first: Attack = registry.get("attacks", "analytic")()
            name = "differential" if first.refuses(self._one(leak), task) else "analytic"
        chosen: Attack = registry.get("attacks", name)()
        return chosen
