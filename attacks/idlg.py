"""Improved deep leakage from gradients (Zhao et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.registry import attack
from leakaudit.inversion.labels import label_signs
from leakaudit.inversion.search import gradient_matching, objectives
from leakaudit.inversion.search.gradient_matching import GradientMatching

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# With cross-entropy and one sample, the slope of the loss in output c is softmax_c - [c is the
# label], which is negative only for the label. The signs of the last layer's gradient therefore
# show the label (eq. 4 to 6 of the paper; `label_signs.from_gradient`), and only the input remains
# to be searched, by matching gradients as in DLG.


@attack("idlg")
@dataclass(frozen=True)
class IDLG(GradientMatching):
    """L2 between gradients of one sample, minimised with L-BFGS after reading its label.

    Several leaks and starts are searched in one batch.
    """

    rank: ClassVar[int] = 0
    reads: ClassVar[str] = "plain gradients of one sample at known models, with the last layer"
    paper: ClassVar[str] = "Zhao et al. 2020, iDLG: Improved Deep Leakage from Gradients"
    cost: ClassVar[str] = (
        "20 double backward passes per step; 5 to 16 s for a CIFAR-10 image of a LeNet on one core"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require plain gradients of one sample at known models, including the last layer."""
        if not leak.is_plain:
            return objectives.COMBINED
        if leak.batch is not None and leak.batch > 1:
            return f"it reads one label, but each gradient comes from {leak.batch} samples; use dlg"
        why = objectives.missing(leak, batch=1)
        if why:
            return why
        if label_signs.from_gradient(leak, task) is None:
            return "the signs of the last layer's gradient do not show a single label; use dlg"
        return None

    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Reconstruct the inputs of several leaks in one batch."""
        read: list[Tensor] = []
        for leak in leaks:
            label = label_signs.from_gradient(leak, task)
            assert label is not None  # `refuses` has found one
            read.append(label)
        known = torch.stack(read).to(task.device)
        sizes = [1] * len(leaks)
        return gradient_matching.reconstructions(
            "idlg", leaks, task, generators, self, sizes, known
        )
