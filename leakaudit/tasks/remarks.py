"""What a model of the user means for attacks, in words."""

from __future__ import annotations

from torch import nn

from leakaudit.tasks.build_task import BatchNorm
from leakaudit.tasks.exported.program import ExportedProgram
from leakaudit.tasks.models import MODELS
from leakaudit.tasks.task import Task

MASKED = (
    "the model may draw random masks in training (dropout), which are not known: gradients cannot "
    "be computed again exactly, and no certificate is given"
)
COUPLED = (
    "batch normalisation uses the statistics of the batch, which couples its records: gradients "
    "are computed again for whole batches only"
)
TOKENS = (
    "the inputs are tokens: the rows of the embedding with a non-zero gradient are those of the "
    "batch (attack tokens); attacks that search for pixels do not apply"
)
SHARED = (
    "the inputs are tokens, but no trained embedding of their own receives them, so its gradient "
    "does not show which tokens occur; attacks that search for pixels do not apply"
)
ATTENTION = "attention mixes the positions of a record: no closed formula inverts its layers"
ADAPTED = (
    "a low-rank adapter receives the input: at known models, gradients show its batch from the "
    "second step on, if it has fewer records than the adapter's rank (attack exact)"
)
NOT_LINEAR = (
    "no fully connected layer receives the input, so the attacks analytic and exact do not apply; "
    "a search that finds nothing is not evidence of privacy"
)


def of(task: Task) -> tuple[str, ...]:
    """Return what is special about a model that is not registered, one sentence each."""
    if task.spec.model in MODELS:
        return ()
    found = []
    if task.masked:
        found.append(MASKED)
    if _couples(task.module):
        found.append(COUPLED)
    if task.tokens:
        found.append(TOKENS if task.embeddings[0] else SHARED)
    elif task.adapter is not None:
        found.append(ADAPTED)
    elif task.first_linear is None:
        found.append(NOT_LINEAR)
    if _attends(task.module):
        found.append(ATTENTION)
    frozen = [name for name, p in task.module.named_parameters() if not p.requires_grad]
    if frozen:
        found.append(_frozen(task, frozen))
    return tuple(found)


def _couples(module: nn.Module) -> bool:
    if isinstance(module, ExportedProgram):
        return module.exported_graph.normalises
    norms = [m for m in module.modules() if isinstance(m, BatchNorm)]
    return any(norm.running_mean is None for norm in norms)


def _attends(module: nn.Module) -> bool:
    if isinstance(module, ExportedProgram):
        return module.exported_graph.attends
    return any("attention" in type(m).__name__.lower() for m in module.modules())


def _frozen(task: Task, frozen: list[str]) -> str:
    names = task.layout.names
    shown = ", ".join(names[:4])
    more = f" and {len(names) - 4} others" if len(names) > 4 else ""
    return (
        f"{len(frozen)} parameters are frozen and do not travel: only gradients of {shown}{more} "
        "are attacked"
    )
