"""Deep leakage from gradients (Zhu et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Generator

from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.search import gradient_matching, objectives
from leakaudit.inversion.search.gradient_matching import GradientMatching

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# The attack moves dummy inputs and dummy soft labels together until their gradient equals the
# leaked one: x, y = argmin |dL/dW(x, y) - g|^2 (eq. 2 of the paper). Here the distance is divided
# by the norm of g, so a zero gradient has the residual 1.
#
# The search differs from the published one, and each difference has a parameter that reverts it:
#
#     L-BFGS has a line search, and a relative objective   search=published
#     scaled frequencies of the image, not pixels          space=pixels
#     starts near gray, not N(0, 1)                        start=normal
#     float32 is refined in float64                        (search=published: float32)
#     three starts, and an end when the leak is fitted     restarts=1 goal=0


@attack("dlg")
@dataclass(frozen=True)
class DLG(GradientMatching):
    """L2 between gradients, minimised over inputs and soft labels with L-BFGS.

    Several leaks and starts are searched in one batch.
    """

    rank: ClassVar[int] = 1
    reads: ClassVar[str] = "plain gradients at known models"
    paper: ClassVar[str] = "Zhu et al. 2019, Deep Leakage from Gradients"
    cost: ClassVar[str] = (
        "20 double backward passes per step; 10 to 55 s for a CIFAR-10 image of a LeNet on one core"
    )

    batch: int | None = param(
        None, "number of samples behind each gradient; default: as stated by the leak"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require plain gradients at known models."""
        if not leak.is_plain:
            return objectives.COMBINED
        return objectives.missing(leak, self.batch)

    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Reconstruct inputs and labels of several leaks in one batch."""
        sizes = [self.batch or leak.batch or 1 for leak in leaks]
        return gradient_matching.reconstructions("dlg", leaks, task, generators, self, sizes)
