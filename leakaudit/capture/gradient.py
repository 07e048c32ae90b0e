"""One gradient, and the model at which it was computed, as a trace: a client and its server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from leakaudit._util.untrusted import tensors
from leakaudit.capture.tap import merge
from leakaudit.capture.tap.merge import Truth
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError, brief
from leakaudit.core.trace import Graph, TaskSpec, Trace
from leakaudit.tasks import weights
from leakaudit.tasks.task import Task
from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage

Tensors = dict[str, Tensor] | list[Tensor]  # by name, or in the order of the parameters
# What DistributedDataParallel, torch.compile and Opacus put before the names of parameters.
WRAPPED = ("module.", "_orig_mod.", "_module.")
ROUND = 1
LARGEST = 8 << 30  # bytes of a file of weights or of a gradient


@dataclass(frozen=True)
class GradientFiles:
    """What a user has: a model, its weights, and a gradient or the weights after one step."""

    weights: Path  # the weights at which the gradient was computed
    gradient: Path | None = None
    after: Path | None = None  # the weights after one step of SGD, in place of a gradient
    lr: float | None = None  # the size of that step
    truth: Path | None = None  # .npz with the records x and y of the batch

    def record(self, storage: Storage, spec: TaskSpec, batch: int) -> Trace:
        """Write the trace of the gradient; 0 classes are those of the last parameter.

        Raises:
            LeakauditError: A file cannot be read, or does not fit the model.
        """
        start = tensors.read(self.weights, LARGEST, "--weights")
        other = self.gradient or self.after
        if other is None:
            raise LeakauditError("expected --gradient FILE, or --after FILE with --lr")
        given = tensors.read(other, LARGEST, "--gradient" if self.gradient else "--after")
        if not spec.classes:
            if self.weights.suffix == ".safetensors":
                raise LeakauditError(
                    "--classes: expected the number of classes; a .safetensors file does not keep "
                    "the order of the parameters, whose last one would show it"
                )
            *_, last = _each(start)
            spec = replace(spec, classes=last.shape[0] if last.dim() else 0)
        task = built(spec, start, given)
        if self.gradient is not None:
            gradient = vector(given, task, "--gradient")
        else:
            moved = vector(start, task, "--weights") - vector(given, task, "--after")
            if self.lr is None or not self.lr > 0:
                raise LeakauditError(
                    "--after: expected --lr, the size of the step of SGD between both, above 0"
                )
            gradient = moved / self.lr
        truth = None
        if self.truth is not None:
            truth = merge.read_truth(self.truth, spec.shape, 1)
            if batch and len(truth[0]) != batch:
                raise LeakauditError(
                    f"--batch: expected the {len(truth[0])} records of --truth, got {batch}"
                )
        return record(storage, task, start, gradient, batch, truth)


def _each(given: Tensors) -> list[Tensor]:
    return list(given.values()) if isinstance(given, dict) else given


def built(spec: TaskSpec, *given: Tensors) -> Task:
    """Return the task of a user's own model, in float64 if any of some numbers are."""
    dtype = torch.float32
    for some in given:
        for one in _each(some):
            if one.dtype == torch.float64:
                dtype = torch.float64
    return Task.build(spec, dtype=dtype, trusted=True)


def _format(x: Tensor) -> torch.dtype:
    """Return the narrowest format that holds all numbers, in which a program computed them."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        if torch.equal(x.to(dtype).to(x), x):
            return dtype
    return x.dtype


def tensors_of(given: Tensor | Mapping[str, Tensor] | Iterable[Tensor]) -> Tensors:
    """Return tensors by name, or in their order."""
    if isinstance(given, Tensor):
        return [given]
    return dict(given) if isinstance(given, Mapping) else list(given)


@contextmanager
def _said_of(what: str) -> Iterator[None]:
    try:
        yield
    except LeakauditError as error:
        raise LeakauditError(f"{what}: {error}") from None


def vector(given: Tensors, task: Task, what: str) -> Tensor:
    """Return numbers of all parameters of a task's model, (d,) in the order of its layout.

    They are given as tensors of its shapes by name or in order, or as one vector (d,).

    Raises:
        LeakauditError: Names, shapes or kind of numbers are not those of the model, or a number is
            not finite.
    """
    layout = task.layout
    if isinstance(given, dict):
        with _said_of(what):
            return weights.parameters(unwrapped(given), task, {*layout.names, *task.buffers})
    if len(given) == 1 and given[0].numel() == layout.size:
        found = [given[0]]
    else:
        found = given
        shapes = [tuple(one.shape) for one in found]
        if shapes != list(layout.shapes):
            raise LeakauditError(
                f"{what}: expected {len(layout.shapes)} tensors of shapes "
                f"{brief(list(layout.shapes), 200)}, those of {task.spec.model!r}, or one vector "
                f"of {layout.size} numbers; got {len(shapes)} of shapes {brief(shapes, 200)}"
            )
    for one in found:
        if not one.is_floating_point():
            raise LeakauditError(f"{what}: expected floating-point numbers, got {one.dtype}")
    flat = torch.cat([one.detach().flatten() for one in found])
    bad = int((~flat.isfinite()).sum())
    if bad:
        raise LeakauditError(f"{what}: {bad} of {flat.numel()} numbers are not finite")
    return flat


def unwrapped(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under the names of the user's own model, without those of wrappers."""
    for prefix in WRAPPED:
        if given and all(name.startswith(prefix) for name in given):
            return unwrapped({name.removeprefix(prefix): value for name, value in given.items()})
    return given


def record(
    storage: Storage,
    task: Task,
    start: Tensors,
    gradient: Tensor,
    batch: int = 0,
    truth: Truth | None = None,
) -> Trace:
    """Write the trace of one round: a server sends the model, its client the gradient (d,).

    A start by name may have running statistics as well. A batch of 0 records: it is not known how
    many.

    Raises:
        LeakauditError: The parameters are not those of the model.
    """
    constants = {}
    if isinstance(start, dict):
        with _said_of("weights"):
            given = weights.fitted(unwrapped(start), task)
        w0, constants = given.w0, dict(given.constants)
    else:
        w0 = vector(start, task, "weights")
    described = task.with_constants(constants) if constants else task
    dtype = torch.promote_types(_format(gradient), _format(w0))
    with Recorder(
        storage,
        protocol="fedsgd",
        task=described,
        graph=Graph(2, ((0, 1),)),
        params={**asdict(registry.get("victims", "fedsgd")(server="unknown")), "samples": batch},
        rounds=1,
        options=RecorderOptions(dtype=dtype),
    ) as recorder:
        recorder.send(round=ROUND, src=1, dst=0, kind="w", value=w0.to(dtype))
        recorder.send(round=ROUND, src=0, dst=1, kind="g", value=gradient.to(dtype))
        if truth is not None:
            x, y, _ = truth
            recorder.truth(node=0, x=x, y=y)
    return recorder.trace
