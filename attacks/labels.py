"""Labels only: the number of samples of each class behind a gradient or a local training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator

from leakaudit._util.plural import counted
from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import step
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack
from leakaudit.inversion.labels import label_counts, label_signs, read_labels
from leakaudit.inversion.labels.read_labels import LabelReading

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# The last layer's gradient is a sum of (softmax - one-hot label) times features, and the methods
# derive the number of samples of each class from it in different ways (`label_counts`).


# Methods that count samples, with real numbers or whole ones, and that only find classes (C,).
REAL = {"pooled": label_counts.pooled, "ilrg": label_counts.ilrg}
WHOLE = {"llg": label_counts.llg, "yin": label_counts.yin}
CLASSES = {
    "rlg": label_counts.rlg,
    "bias": label_counts.by_bias,
    "rows": label_counts.by_rows,
}


@attack("labels")
@dataclass(frozen=True)
class Labels(Attack):
    """Number of samples of each class, from the last layer's gradient.

    Each gradient is read by itself, unless all are of the same samples as declared.

    The attack recovers labels but no inputs, so `auto` tries it last.
    """

    exact: ClassVar[bool] = False
    quick: ClassVar[bool] = True
    rank: ClassVar[int] = 9
    reads: ClassVar[str] = "plain gradients or local trainings that contain the last layer"
    paper: ClassVar[str] = (
        "iDLG (Zhao et al. 2020), Yin et al. 2021, RLG (Dang et al. 2021), "
        "LLG (Wainakh et al. 2022), iLRG (Ma et al. 2023); pooled: developed for leakaudit"
    )
    cost: ClassVar[str] = "small matrices of the last layer; under a second"
    tokens: ClassVar[bool] = True

    method: Literal[
        "best", "pooled", "ilrg", "llg", "llg-dummies", "yin", "rlg", "bias", "rows"
    ] = param("best", "method; rlg, bias and rows report each class that they find only once")
    batch: int | None = param(
        None, "samples behind the gradient or local training; default: as stated by the leak"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require a plain gradient with the last layer, labels, and the number of samples."""
        if task.spec.loss == "squared":
            return "it recovers labels, and loss 'squared' has none"
        if leak.gaps:
            return leak.gaps
        rows = label_signs.plain_rows(leak)
        if not rows:
            return (
                "it reads a single gradient that is not zero, "
                "but all rows of this leak are combinations or zero"
            )
        head = label_counts.of(leak, task, rows[0])
        if head is None:
            return (
                "the leak does not contain the weights of the last linear layer, "
                "or the model has no such layer"
            )
        if self.batch is None and leak.batch is None:
            return "the number of samples behind each gradient is unknown; set batch=N"
        if self.method in ("pooled", "ilrg") and not head.whole:
            return (
                f"method {self.method} requires the model and a last layer with bias; "
                "use method=llg"
            )
        if self.method == "bias" and head.bias is None:
            return "method bias requires a last layer with bias; use method=llg"
        softmax = leak.theta is not None and task.spec.loss == "cross_entropy"
        if self.method == "llg-dummies" and not softmax:
            return "method llg-dummies requires the model and more than two outputs; use method=llg"
        return None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Read the labels.

        The certificate is APPROXIMATE if the counts are close to whole numbers, or if the
        method does not report how close they are.
        """
        batch = self.batch or leak.batch or 1
        step("labels", 0, 1)
        y, off, how = self._of_all(leak, task, batch, generator)
        step("labels", 1, 1)
        sure = _is_sure(off)
        within = ""
        if off != read_labels.UNKNOWN:
            within = f", counts within {off:.2g} of whole numbers"
        return Reconstruction(
            leak.node,
            "labels",
            torch.empty(0, *task.spec.shape, dtype=task.dtype),
            y.to(task.device),
            Certificate.APPROXIMATE if sure else Certificate.FAILED,
            off,
            note=f"labels without inputs, by {how}{within}",
        )

    def _of_all(
        self, leak: GradientLeak, task: Task, batch: int, generator: Generator
    ) -> LabelReading:
        """Read the labels once if all gradients are of the same records, or else of each."""
        rows = label_signs.plain_rows(leak)
        if len(rows) == 1 or (leak.steady and leak.records is not None):
            y, off, how = self._read(leak, task, batch, generator)
            return y, off, f"{how} of one gradient"
        each = [self._read(leak.equation(k), task, batch, generator) for k in rows]
        kept = [one for one in each if _is_sure(one[1])]
        if not kept:
            kept = [min(each, key=lambda one: one[1])]
        first, _, method = kept[0]
        y = torch.cat([labels for labels, _, _ in kept])
        if all(torch.equal(labels, first) for labels, _, _ in kept):
            y = first  # the same records, as far as labels show it
        how = f"{method} of {len(kept)} of {counted(len(rows), 'gradient')}, one by one"
        return y, max(off for _, off, _ in kept), how

    def _read(
        self, leak: GradientLeak, task: Task, batch: int, generator: Generator
    ) -> LabelReading:
        if self.method == "best":
            best = read_labels.read(leak, task, batch)
            assert best is not None  # `refuses` has found a last layer
            return best
        row = label_signs.plain_rows(leak)[0]
        head = label_counts.of(leak, task, row)
        assert head is not None
        if self.method in REAL:
            return read_labels.rounded(REAL[self.method](head, batch), batch, self.method)
        if self.method in CLASSES:
            n = CLASSES[self.method](head).long()
        elif self.method == "llg-dummies":
            assert leak.theta is not None
            theta = leak.theta[int(leak.combination[row].abs().argmax())].double()
            impact, offset = label_counts.dummies(task, theta, batch, generator)
            n = label_counts.llg(head, batch, impact, offset)
        else:
            n = WHOLE[self.method](head, batch)
        return (read_labels.spread(n), read_labels.UNKNOWN, self.method)


def _is_sure(off: float) -> bool:
    """Whether counts are close to whole numbers, or the method does not report how close."""
    return off < read_labels.NEAR or off == read_labels.UNKNOWN
