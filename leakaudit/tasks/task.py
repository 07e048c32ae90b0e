"""What is trained, as pure functions over a flat parameter vector; everything works under torch.func and in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from leakaudit.errors import LeakauditError
from leakaudit.tasks import build_task
from leakaudit.tasks.build_task import LinearNames
from leakaudit.tasks.chain_gradients import Chain
from leakaudit.tasks.dense_gradients import Stack
from leakaudit.tasks.smoothed_relu import Rounding, rounded
from leakaudit.trace import Layout, TaskSpec

LOOP_ABOVE = 100_000  # parameters; one node at a time is then faster than the grouped convolutions of vmap (3x on ResNets, CPU)
Params = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """A model, its loss and its input's normalisation; build it with `Task.build`.

    layout: where each trained parameter lies in the flat vector theta (d,). buffers: constants of the model
    (running statistics, frozen parameters). first_linear: (weight, bias or None) of a fully connected layer
    that sees the flattened, normalised input, None where there is none; last_linear: of the one that gives
    the outputs. convex: whether the loss is convex in theta. stack, chain: closed formulas of gradients, None for models
    that are neither; a chain's can be differentiated again, a stack's take half the time. Functions follow theta's dtype and device.
    """

    spec: TaskSpec
    layout: Layout
    buffers: Params
    first_linear: LinearNames | None
    last_linear: LinearNames | None
    convex: bool
    l2: float
    dtype: torch.dtype
    device: torch.device
    module: nn.Module = field(repr=False)
    stack: Stack | None = field(repr=False)
    chain: Chain | None = field(repr=False)
    trusted: bool = False

    @classmethod
    def build(
        cls,
        spec: TaskSpec,
        generator: Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        trusted: bool = False,
    ) -> Task:
        """Build the task that `spec` describes.

        `spec.args` are the model's, except ``l2`` (adds l2/2 |theta|^2 to the loss) and ``bn`` (``train``:
        statistics of the batch, the default, or ``eval``: running statistics as constants). Dropout is off.
        generator: draws the buffers and frozen parameters, a fixed one where None. dtype: of `init`.
        trusted: allows `spec.model` to name a ``package.module:factory``, whose code is then run.
        Raises LeakauditError where the spec does not describe a model that fits its inputs and loss.
        """
        build_task.check(spec)
        module = build_task.module(spec, generator or Generator().manual_seed(0), trusted).to(
            device
        )
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        rest = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad} | dict(
            module.named_buffers()
        )
        first, last = build_task.linear_ends(module, spec)
        layout = Layout(tuple(trained), tuple(tuple(p.shape) for p in trained.values()))
        return cls(
            spec=spec,
            layout=layout,
            buffers=rest,
            first_linear=first,
            last_linear=last,
            convex=build_task.convex(spec),
            l2=build_task.l2(spec),
            dtype=dtype,
            device=torch.device(device),
            module=module,
            stack=Stack.of(module, math.prod(spec.shape)),
            chain=Chain.of(module, layout, tuple(spec.shape)),
            trusted=trusted,
        )

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Task:
        """Return the task with another dtype for `init`, or on another device."""
        where = torch.device(device or self.device)
        buffers = {n: b.to(where) for n, b in self.buffers.items()}
        return replace(self, dtype=dtype or self.dtype, device=where, buffers=buffers)

    def rounded(self, rounding: Rounding) -> Task:
        """Return the task with every ReLU module rounded, for gradients by `again`; itself where the network has none."""
        module = rounded(self.module, rounding)
        if module is self.module:
            return self
        return replace(
            self,
            module=module,
            stack=None,
            chain=Chain.of(module, self.layout, tuple(self.spec.shape)),
        )

    def check_layout(self, layout: Layout) -> None:
        """Raise LeakauditError where a trace's layout is not this model's, naming the first parameter that differs."""
        mine, theirs = (list(zip(a.names, a.shapes, strict=True)) for a in (self.layout, layout))
        for i, (own, other) in enumerate(zip_longest(mine, theirs)):
            if own != other:
                says = ["nothing" if p is None else f"{p[0]!r} {p[1]}" for p in (own, other)]
                raise LeakauditError(
                    f"wrong model for the trace: parameter {i} is {says[1]} in the trace and {says[0]} in model {self.spec.model!r}; "
                    "name the model that was trained and its arguments"
                )

    def init(self, generator: Generator) -> Tensor:
        """Draw an initial model (d,) with the architecture's own initialisation; torch's global state stays as it was."""
        module = build_task.module(self.spec, generator, self.trusted)
        flat = torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])
        return flat.to(self.device, self.dtype)

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Outputs (b, k) of the model theta (d,) for x (b, *shape) in the data's units; k = 1 for loss ``binary``."""
        return self._outputs(self.layout.split(theta), x)

    def loss(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Mean loss over the batch, plus l2/2 |theta|^2.

        y: (b,) int64 labels or (b, classes) soft labels for ``cross_entropy``; (b,) in [0, 1] for ``binary``;
        (b,) or (b, classes) floats for ``squared``, which is half the mean squared error.
        """
        return self._loss(self.layout.split(theta), x, y)

    def losses(self, thetas: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """`loss` of every node: thetas (N, d), x (N, b, *shape), y (N, b) -> (N,)."""
        out: Tensor = vmap(self.loss)(thetas, x, y)
        return out

    def accuracy(self, theta: Tensor, x: Tensor, y: Tensor) -> float:
        """Share of right labels; raises LeakauditError for loss ``squared``."""
        if self.spec.loss == "squared":
            raise LeakauditError(
                "accuracy needs labels, and loss 'squared' has none; compare losses instead"
            )
        with torch.no_grad():
            out = self.logits(theta, x)
            guess = out.squeeze(1) > 0 if self.spec.loss == "binary" else out.argmax(1)
            right = (
                y > 0.5
                if self.spec.loss == "binary"
                else y.argmax(1)
                if y.is_floating_point()
                else y
            )
        return float((guess == right).double().mean())

    def gradient(self, theta: Tensor, x: Tensor, y: Tensor, create_graph: bool = False) -> Tensor:
        """Gradient (d,) of `loss`; with create_graph it can be differentiated again in theta, x and soft y."""
        with torch.enable_grad():
            theta = (
                theta if create_graph and theta.requires_grad else theta.detach().requires_grad_()
            )
            params = self.layout.split(theta)
            got = torch.autograd.grad(
                self._loss(params, x, y),
                list(params.values()),
                create_graph=create_graph,
                materialize_grads=True,
            )
            return torch.cat([g.flatten() for g in got])

    def again(self, thetas: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Gradients (n, d) that can be differentiated once more in x and soft y; thetas (n, d) are constants.

        x: (n, b, *shape). y: (n, b) or (n, b, classes). A chain of layers takes closed formulas, other models two passes of autograd.
        """
        thetas = thetas.detach()
        if self.chain is not None:
            found = self.chain.gradients(thetas, self._normalise(x.to(thetas)), y, self._error)
            return found + self.l2 * thetas if self.l2 else found
        if len(thetas) == 1 or self.layout.size > LOOP_ABOVE:
            return torch.stack(
                [self.gradient(*one, create_graph=True) for one in zip(thetas, x, y, strict=True)]
            )
        several: Tensor = vmap(self.grad_fn)(thetas, x, y)
        return several

    @overload
    def grad_fn(self, params: Tensor, x: Tensor, y: Tensor) -> Tensor: ...
    @overload
    def grad_fn(self, params: Params, x: Tensor, y: Tensor) -> dict[str, Tensor]: ...
    def grad_fn(self, params: Any, x: Tensor, y: Tensor) -> Any:
        """Gradient of `loss` in the form of `params`, flat (d,) or by name; for use inside vmap, grad and jvp."""
        if isinstance(params, Tensor):
            got = grad(self._loss)(self.layout.split(params), x, y)
            return torch.cat([got[n].flatten() for n in self.layout.names])
        return grad(self._loss)(params, x, y)

    def gradients(
        self,
        thetas: Tensor,
        x: Tensor,
        y: Tensor,
        chunk: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Gradients of all nodes: thetas (N, d), x (N, b, *shape), y (N, b) -> (N, d).

        chunk: nodes in one vmap, where all at once would not fit in memory; 1 takes them one by one, which is
        the choice for large models. out: (N, d) to write into.
        """
        if out is None or out.stride(1) != 1:
            new = self.gradients(
                thetas, x, y, chunk, torch.empty_like(thetas, memory_format=torch.contiguous_format)
            )
            return new if out is None else out.copy_(new)
        chunk = 1 if chunk is None and self.layout.size > LOOP_ABOVE else chunk
        if self.stack is not None:
            self._stacked(self.stack, thetas.detach(), x, y, out)
        elif chunk == 1:
            for i in range(len(thetas)):
                out[i] = self.gradient(thetas[i], x[i], y[i])
        else:
            for columns, block in self._vmapped(thetas, x, y, chunk):
                out[:, columns] = block
        return out

    def gradient_blocks(
        self, thetas: Tensor, x: Tensor, y: Tensor, chunk: int | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield (columns, (N, width)) of `gradients`, one parameter at a time."""
        if self.stack is None and self.layout.size <= LOOP_ABOVE:
            yield from self._vmapped(thetas, x, y, chunk)
            return
        whole = self.gradients(thetas, x, y, chunk)
        for columns in self.layout.slices.values():
            yield columns, whole[:, columns]

    def hessians(self, thetas: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Second derivatives of all nodes' losses, (N, d, d); meant for small convex models."""
        out: Tensor = vmap(jacrev(self.grad_fn))(thetas, x, y)
        return out

    def _vmapped(
        self, thetas: Tensor, x: Tensor, y: Tensor, chunk: int | None
    ) -> Iterator[tuple[slice, Tensor]]:
        got = vmap(grad(self._loss), chunk_size=chunk)(self.layout.split(thetas.detach()), x, y)
        for name in self.layout.names:
            yield self.layout.slices[name], got.pop(name).flatten(1)

    def _stacked(self, stack: Stack, thetas: Tensor, x: Tensor, y: Tensor, out: Tensor) -> None:
        with torch.no_grad():
            flat = self._normalise(x.to(thetas)).flatten(2)
            stack.gradients(
                self.layout.split(thetas),
                flat,
                lambda given: self._error(given, y),
                self.layout.split(out),
            )
            if self.l2:
                out.add_(thetas, alpha=self.l2)

    def _normalise(self, x: Tensor) -> Tensor:
        """(x - mean) / std; x: (..., *shape), one entry of mean and std a channel, or one for all."""
        if self.spec.mean == (0.0,) and self.spec.std == (1.0,):
            return x
        mean, std = (
            x.new_tensor(v).reshape(-1, *[1] * (len(self.spec.shape) - 1))
            for v in (self.spec.mean, self.spec.std)
        )
        return (x - mean) / std

    def _outputs(self, params: Params, x: Tensor) -> Tensor:
        like = next(iter(params.values()))
        constants = {n: b.to(like) if b.is_floating_point() else b for n, b in self.buffers.items()}
        try:
            out: Tensor = functional_call(
                self.module, {**params, **constants}, (self._normalise(x.to(like)),)
            )
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise LeakauditError(
                "bn=train has no statistics of one sample on 1x1 maps; use two samples a node, larger images or bn=eval"
            ) from None
        return out

    def _loss(self, params: Params, x: Tensor, y: Tensor) -> Tensor:
        out = self._outputs(params, x)
        if self.spec.loss == "cross_entropy":
            loss = F.cross_entropy(out, y.to(out.dtype) if y.is_floating_point() else y.long())
        elif self.spec.loss == "binary":
            loss = F.binary_cross_entropy_with_logits(out.squeeze(-1), y.to(out.dtype))
        else:
            loss = 0.5 * (out - y.to(out.dtype).reshape(out.shape)).square().sum(-1).mean()
        if self.l2:
            loss = (
                loss
                + 0.5 * self.l2 * torch.stack([p.square().sum() for p in params.values()]).sum()
            )
        return loss

    def _error(self, out: Tensor, y: Tensor) -> Tensor:
        """Derivative of the loss in the outputs (N, b, k), without the l2 term."""
        b = out.shape[1]
        if self.spec.loss == "binary":
            return (out.sigmoid() - y.to(out.dtype).unsqueeze(-1)).div_(b)
        if self.spec.loss == "squared":
            return (out - y.to(out.dtype).reshape(out.shape)).div_(b)
        if y.is_floating_point():
            soft = y.to(out.dtype)
            return (out.softmax(-1) * soft.sum(-1, keepdim=True) - soft).div_(b)
        probabilities = out.softmax(-1)
        return probabilities.scatter_add(
            -1, y.long().unsqueeze(-1), probabilities.new_full((*y.shape, 1), -1.0)
        ).div_(b)


@dataclass(frozen=True, eq=False)
class Problem:
    """A task and every node's data: x (N, b, *shape), y (N, b); here: (N,) bool, whose data are in this process, None for all."""

    task: Task
    x: Tensor
    y: Tensor
    here: Tensor | None = None

    def __post_init__(self) -> None:
        """Check that the data are the task's."""
        shape = self.task.spec.shape
        if (
            self.x.shape[2:] != shape
            or self.x.dim() != len(shape) + 2
            or self.y.shape[:2] != self.x.shape[:2]
        ):
            came = f"{tuple(self.x.shape)} and {tuple(self.y.shape)}"
            raise LeakauditError(
                f"problem: expected x (N, b, {', '.join(map(str, shape))}) and y (N, b), got {came}"
            )

    @property
    def nodes(self) -> int:
        """Number of nodes N."""
        return len(self.x)

    @property
    def samples(self) -> int:
        """Number of records b of each node."""
        return self.x.shape[1]
