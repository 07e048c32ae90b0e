"""Deep leakage from gradients (Zhu et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Generator

from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack
from leakaudit.inversion.search import gradient_matching, objectives

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# The attack moves dummy inputs and dummy soft labels together until their gradient equals the
# leaked one: x, y = argmin |dL/dW(x, y) - g|^2 (eq. 2 of the paper). Here the distance is divided
# by the norm of g, so a zero gradient has the residual 1.
#
# The search differs from the published one in three ways, each of which a parameter reverts: L-BFGS
# has a line search, images are optimised in scaled frequencies instead of pixels, and starts are
# near gray.


@attack("dlg")
@dataclass(frozen=True)
class DLG(Attack):
    """L2 between gradients, minimised over inputs and soft labels with L-BFGS.

    Several leaks and starts are searched in one batch.
    """

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 1
    reads: ClassVar[str] = "plain gradients at known models"
    paper: ClassVar[str] = "Zhu et al. 2019, Deep Leakage from Gradients"
    cost: ClassVar[str] = "20 double backward passes per step; 3 to 20 s for a LeNet on one core"

    steps: int = param(300, "maximum number of L-BFGS steps (20 iterations each) per restart")
    restarts: int = param(
        3,
        "maximum number of starting points; more are tried, in groups of 1, 2, 4, ..., "
        "if ten times the goal is missed",
    )
    goal: float = param(3e-5, "relative residual at which the search stops")
    rows: int = param(1, "maximum number of gradients of the leak to fit at once")
    batch: int | None = param(
        None, "number of samples behind each gradient; default: as stated by the leak"
    )
    start: Literal["gray", "uniform", "normal"] = param(
        "gray", "dummy inputs: near 0.5, uniform in [0, 1], or N(0, 1) as published"
    )
    space: Literal["spectrum", "pixels"] = param(
        "spectrum", "variables of L-BFGS: scaled frequencies of the image, or pixels as published"
    )
    dtype: Literal["mixed", "float32", "float64"] = param(
        "mixed", "number format of the search; mixed: float32, then float64"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require plain gradients at known models."""
        if not leak.is_plain:
            return objectives.COMBINED
        return objectives.missing(leak, self.batch)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct inputs and labels; the certificate states whether they fit."""
        return next(found for _, found in self.many([leak], task, [generator]))

    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Reconstruct inputs and labels of several leaks in one batch."""
        sizes = [self.batch or leak.batch or 1 for leak in leaks]
        return gradient_matching.reconstructions("dlg", leaks, task, generators, self, sizes)
