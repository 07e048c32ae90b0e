"""Training tasks as pure functions of a flat parameter vector.

Everything works under torch.func and in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakaudit._util.own_code import Trust
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Layout, TaskSpec
from leakaudit.tasks import build_task, chain_gradients, dense_gradients, losses, low_rank
from leakaudit.tasks.build_task import LinearNames
from leakaudit.tasks.low_rank import Adapter
from leakaudit.tasks.models import MODELS
from leakaudit.tasks.smoothed_relu import Rounding, rounded

# Number of parameters above which processing one node at a time is faster than the grouped
# convolutions of vmap (measured: 3x for ResNets on a processor).
LOOP_ABOVE = 100_000
Params = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """A model, its loss and the normalisation of its inputs; build it with `Task.build`.

    All functions follow the dtype and device of theta. N nodes hold b records each; d is the length
    of theta, k the number of outputs. Inputs are in the data's units.

    Attributes:
        spec: The public description from which the task was built.
        layout: Position of each trained parameter in the flat vector theta (d,).
        buffers: Constants of the model: running statistics and frozen parameters.
        first_linear: Names (weight, bias or None) of a fully connected layer that receives the
            flattened, normalised input; None if there is none.
        last_linear: The same for the layer that computes the outputs.
        adapter: The low-rank adapter of a frozen layer that receives the input, if there is one.
        convex: Whether the loss is convex in theta.
        l2: Weight of the penalty l2/2 |theta|^2.
        factor: Factor of the mean loss of the records; see `summed`.
        dtype: Dtype of the models drawn by `init`.
        device: Device of the models drawn by `init`.
        module: The torch module; its own parameter values are never used.
        stack: Closed formulas of gradients, for fully connected stacks; None for other models.
        chain: Closed formulas of gradients that can be differentiated again, for chains of layers;
            None for other models. Those of a stack take half the time.
        trusted: The ``package.module:factory`` that may execute its code; True for any.
        tokens: Number of different tokens if the inputs are tokens; 0 if they are numbers.
        masked: Whether the model drew random numbers in training, such as the masks of dropout:
            these are not known, and gradients are computed without them.
        embeddings: Names of the weights of the embedding that receives the tokens, and of one that
            receives their positions; None if there is none.
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
    stack: dense_gradients.Formulas | None = field(repr=False)
    chain: chain_gradients.Formulas | None = field(repr=False)
    trusted: Trust = False
    tokens: int = 0
    masked: bool = False
    factor: float = 1.0
    embeddings: tuple[str | None, str | None] = (None, None)
    adapter: Adapter | None = None

    @classmethod
    def build(
        cls,
        spec: TaskSpec,
        generator: Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        trusted: Trust = False,
    ) -> Task:
        """Build the task that a spec describes; dropout is off.

        Args:
            spec: Its `args` are the model's, except ``l2`` (adds l2/2 |theta|^2 to the loss),
                ``bn`` (``train``: statistics of the batch, the default; ``eval``: running
                statistics as constants), ``dropout`` (``train``: it was active in training, the
                default; ``eval``: it was not), ``tokens`` (number of different tokens, if the
                inputs are tokens) and ``sha256`` (of a program's file).
            generator: Draws the buffers and frozen parameters; None uses a fixed one.
            trusted: The ``package.module:factory`` that may be executed; True for the one that
                `spec` names. A torch.export program is run without executing code of its file.

        Raises:
            LeakauditError: The spec does not describe a model that fits its inputs and loss.
        """
        build_task.check(spec)
        source = generator or Generator().manual_seed(0)
        module = build_task.module(spec, source, trusted).to(device)
        trained: dict[str, Tensor] = {}
        constants: dict[str, Tensor] = {}
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                trained[name] = parameter
            else:
                constants[name] = parameter.detach()
        constants.update(module.named_buffers())
        first, last = build_task.linear_ends(module, spec)
        tokens = build_task.tokens(module, spec)
        layout = Layout(tuple(trained), tuple(tuple(p.shape) for p in trained.values()))
        made = cls(
            spec=spec,
            layout=layout,
            buffers=constants,
            first_linear=first,
            last_linear=last,
            convex=build_task.convex(spec),
            l2=build_task.l2(spec),
            dtype=dtype,
            device=torch.device(device),
            module=module,
            stack=dense_gradients.gradients(module, layout, math.prod(spec.shape)),
            chain=chain_gradients.gradients(module, layout, tuple(spec.shape)),
            trusted=trusted,
            tokens=tokens,
            masked=build_task.masked(module, spec),
            embeddings=build_task.embeddings(module, spec) if tokens else (None, None),
        )
        if spec.constants:
            made = made.with_constants(spec.constants)
        # The factor A of an adapter may be a layer of its own, without a bias.
        if first is None or first[1] is None:
            return replace(made, adapter=low_rank.first(made))
        return made

    def with_constants(self, constants: Params) -> Task:
        """Return the task with other running statistics and frozen parameters.

        Args:
            constants: Some of those of the model, by name.

        Raises:
            LeakauditError: The model does not have them, in this form.
        """
        build_task.check_constants(self.spec.model, constants, self.buffers)
        changed = {name: value.to(self.buffers[name]) for name, value in constants.items()}
        spec = replace(self.spec, constants={**self.spec.constants, **constants})
        return replace(self, spec=spec, buffers={**self.buffers, **changed})

    @property
    def one_by_one(self) -> bool:
        """Whether nodes are processed one after another.

        This is faster for large models. Models that read tokens may branch on their values, which
        vmap does not support.
        """
        return self.layout.size > LOOP_ABOVE or self.tokens > 0

    @property
    def vectorised(self) -> bool:
        """Whether `again` is faster for several models at once than for one after another."""
        return self.chain is not None or self.layout.size <= LOOP_ABOVE

    def to(
        self, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Task:
        """Return the task with another dtype for `init`, or on another device, if given."""
        where = torch.device(device or self.device)
        buffers = {n: b.to(where) for n, b in self.buffers.items()}
        return replace(self, dtype=dtype or self.dtype, device=where, buffers=buffers)

    def summed(self, count: float) -> Task:
        """Return the task whose loss is `count` times as large: a sum over so many records."""
        return replace(self, factor=self.factor * count, l2=self.l2 * count)

    def rounded(self, rounding: Rounding) -> Task:
        """Return the task with rounded ReLU modules, for `again`; itself if it has no ReLU.

        A search may change the width of the kinks later.
        """
        module = rounded(self.module, rounding)
        if module is self.module:
            return self
        chain = chain_gradients.gradients(module, self.layout, tuple(self.spec.shape))
        return replace(self, module=module, stack=None, chain=chain)

    def check_layout(self, layout: Layout) -> None:
        """Raise LeakauditError if a trace was recorded with another model."""
        mine = zip(self.layout.names, self.layout.shapes, strict=True)
        theirs = zip(layout.names, layout.shapes, strict=True)
        for i, (own, other) in enumerate(zip_longest(mine, theirs)):
            if own != other:
                raise LeakauditError(
                    f"wrong model for the trace: parameter {i} is {_described(other)} in the trace "
                    f"but {_described(own)} in model {self.spec.model!r}; "
                    "specify the model that was trained, and its arguments"
                )

    def init(self, generator: Generator) -> Tensor:
        """Draw an initial model (d,) as the architecture does; torch's global state stays."""
        module = build_task.module(self.spec, generator, self.trusted)
        flat = torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])
        return flat.to(self.device, self.dtype)

    def normalise(self, x: Tensor) -> Tensor:
        """Convert inputs from the data's units to the model's: (x - mean) / std.

        They are (..., *shape), or flattened (..., p) with p = prod(shape). `logits`, `loss` and all
        gradients do this themselves.

        Raises:
            LeakauditError: x has neither shape.
        """
        if self.spec.mean == (0.0,) and self.spec.std == (1.0,):
            return x
        mean, std = self.mean_and_std(x)
        return (x - mean) / std

    def denormalise(self, x: Tensor) -> Tensor:
        """Convert the model's inputs to the data's units, x std + mean."""
        mean, std = self.mean_and_std(x)
        return x * std + mean

    def mean_and_std(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the normalisation, broadcastable over inputs."""
        shape = tuple(self.spec.shape)
        sides = [1] * (len(shape) - 1)
        mean = like.new_tensor(self.spec.mean).reshape(-1, *sides)
        std = like.new_tensor(self.spec.std).reshape(-1, *sides)
        if tuple(like.shape[-len(shape) :]) == shape:
            return mean, std
        # Both readings of a shape are possible only if it is (1, ..., 1, p); then they have the
        # same result.
        if like.dim() and like.shape[-1] == math.prod(shape):
            return mean.expand(shape).flatten(), std.expand(shape).flatten()
        raise LeakauditError(
            f"expected inputs (..., {', '.join(map(str, shape))}) or (..., {math.prod(shape)}), "
            f"got {tuple(like.shape)}"
        )

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs (b, k) for inputs (b, *shape).

        k is 1 for loss ``binary``; for ``next_token``, they are (b, length, k).
        """
        return self.logits_at(self.layout.split(theta), x)

    def loss(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss over the batch, plus l2/2 |theta|^2.

        Args:
            theta: Flat parameters (d,).
            x: Inputs (b, *shape) in the data's units.
            y: (b,) int64 labels or (b, classes) soft labels for ``cross_entropy``; (b,) in [0, 1]
                for ``binary``; (b,) or (b, classes) floats for ``squared``, which is half the mean
                squared error; (b,) the token after each sequence for ``next_token``.
        """
        return self._loss(self.layout.split(theta), x, y)

    def losses(self, thetas: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the `loss` (N,) of every node."""
        out: Tensor = vmap(self.loss)(thetas, x, y)
        return out

    def accuracy(self, theta: Tensor, x: Tensor, y: Tensor) -> float:
        """Return the fraction of correct labels.

        Raises:
            LeakauditError: The loss is ``squared``, which has no labels.
        """
        if self.spec.loss == "squared":
            raise LeakauditError(
                "accuracy needs labels, but loss 'squared' has none; compare losses instead"
            )
        with torch.no_grad():
            right = losses.correct(self.spec.loss, self.logits(theta, x), x, y)
        return float(right.double().mean())

    def gradient(self, theta: Tensor, x: Tensor, y: Tensor, create_graph: bool = False) -> Tensor:
        """Return the gradient (d,) of `loss` in theta.

        With `create_graph`, it can be differentiated again, in theta, x and soft y.
        """
        with torch.enable_grad():
            if not (create_graph and theta.requires_grad):
                theta = theta.detach().requires_grad_()
            params = self.layout.split(theta)
            got = torch.autograd.grad(
                self._loss(params, x, y),
                list(params.values()),
                create_graph=create_graph,
                materialize_grads=True,
            )
            return torch.cat([g.flatten() for g in got])

    def again(self, thetas: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return gradients (n, d) that can be differentiated again in x and soft y, not in thetas.

        A chain of layers has closed formulas; other models take two passes of autograd.
        """
        thetas = thetas.detach()
        if self.chain is not None:
            slope = partial(losses.output_slope, self.spec.loss)
            found = self.chain(thetas, self.normalise(x.to(thetas)), y, slope)
            if self.factor != 1:
                found = self.factor * found
            return found + self.l2 * thetas if self.l2 else found
        if len(thetas) == 1:
            return self.gradient(thetas[0], x[0], y[0], create_graph=True)[None]
        if self.one_by_one:
            each = [
                self.gradient(*one, create_graph=True) for one in zip(thetas, x, y, strict=True)
            ]
            return torch.stack(each)
        several: Tensor = vmap(self.grad_fn)(thetas, x, y)
        return several

    def grad_fn(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient (d,) of `loss`, for use inside vmap, grad and jvp."""
        got = grad(self._loss)(self.layout.split(theta), x, y)
        return torch.cat([got[n].flatten() for n in self.layout.names])

    def gradients(
        self,
        thetas: Tensor,
        x: Tensor,
        y: Tensor,
        chunk: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return the gradients (N, d) of all nodes.

        Args:
            thetas: Parameters (N, d).
            x: Inputs (N, b, *shape).
            y: Labels (N, b).
            chunk: Nodes per vmap, if all at once do not fit into memory; 1 processes them one by
                one, which is the default for large models.
            out: Memory (N, d) for the result; None allocates it.
        """
        if out is None or out.stride(1) != 1:  # the formulas below write complete rows
            rows = torch.empty_like(thetas, memory_format=torch.contiguous_format)
            new = self.gradients(thetas, x, y, chunk, rows)
            return new if out is None else out.copy_(new)
        if chunk is None and self.one_by_one:
            chunk = 1
        if self.stack is not None:
            self._stacked(self.stack, thetas.detach(), x, y, out)
        elif chunk == 1:
            for i in range(len(thetas)):
                out[i] = self.gradient(thetas[i], x[i], y[i])
        else:
            got = vmap(grad(self._loss), chunk_size=chunk)(self.layout.split(thetas.detach()), x, y)
            for name, columns in self.layout.slices.items():
                out[:, columns] = got.pop(name).flatten(1)
        return out

    def hessians(self, thetas: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the second derivatives (N, d, d) of all nodes' losses, for small convex models."""
        out: Tensor = vmap(jacrev(self.grad_fn))(thetas, x, y)
        return out

    def _stacked(
        self, stack: dense_gradients.Formulas, thetas: Tensor, x: Tensor, y: Tensor, out: Tensor
    ) -> None:
        with torch.no_grad():
            flat = self.normalise(x.to(thetas)).flatten(2)
            stack(
                self.layout.split(thetas),
                flat,
                lambda outputs: losses.output_slope(self.spec.loss, outputs, y),
                self.layout.split(out),
            )
            if self.factor != 1:
                out.mul_(self.factor)
            if self.l2:
                out.add_(thetas, alpha=self.l2)

    def logits_at(self, params: Params, x: Tensor) -> Tensor:
        """Return the same as `logits`, for parameters by name; frozen ones may be among them."""
        like = next(iter(params.values()))
        constants = {n: b.to(like) if b.is_floating_point() else b for n, b in self.buffers.items()}
        inputs = x.long() if self.tokens else self.normalise(x.to(like))
        values = {**constants, **params}
        if self.spec.model in MODELS:
            found: Tensor = functional_call(self.module, values, (inputs,))
            return found
        # Other kernels of attention have no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            out: Tensor = functional_call(self.module, values, (inputs,))
        return out

    def _loss(self, params: Params, x: Tensor, y: Tensor) -> Tensor:
        if self.spec.is_text:
            y = losses.next_tokens(x, y)
        loss = losses.mean_loss(self.spec.loss, self.logits_at(params, x), y)
        if self.factor != 1:
            loss = self.factor * loss
        if self.l2:
            squares = torch.stack([p.square().sum() for p in params.values()])
            loss = loss + 0.5 * self.l2 * squares.sum()
        return loss


def _described(parameter: tuple[str, tuple[int, ...]] | None) -> str:
    if parameter is None:
        return "nothing"
    name, shape = parameter
    return f"{name!r} {shape}"


@dataclass(frozen=True, eq=False)
class Comparison:
    """What the curves of a run compare its models with, besides the records of its nodes."""

    x: Tensor  # held-out records (t, *shape), which no node holds
    y: Tensor  # their labels (t,), or targets (t, k)
    labels: str = "classes"  # what real targets stand for: ``signs`` or ``one-hot``
    every: int = 1  # rounds between two points of a curve
    optimum: Tensor | None = None  # (d,) minimiser of the nodes' mean objective, if it is known
    planted: Tensor | None = None  # (d,) parameters from which the targets were drawn


@dataclass(frozen=True, eq=False)
class Problem:
    """A task and every node's data."""

    task: Task
    x: Tensor  # inputs (N, b, *shape)
    y: Tensor  # labels (N, b)
    here: Tensor | None = None  # (N,) bool, nodes with data in this process; None for all
    against: Comparison | None = None  # what curves compare the models with

    def __post_init__(self) -> None:
        shape = self.task.spec.shape
        fits = self.x.dim() == len(shape) + 2 and self.x.shape[2:] == shape
        if not fits or self.y.shape[:2] != self.x.shape[:2]:
            came = f"{tuple(self.x.shape)} and {tuple(self.y.shape)}"
            raise LeakauditError(
                f"problem: expected x (N, b, {', '.join(map(str, shape))}) and y (N, b), got {came}"
            )

    def of(self, nodes: slice | Tensor) -> Problem:
        """Return the problem of some nodes."""
        here = self.here
        if here is not None:
            here = here[nodes]
        return Problem(self.task, self.x[nodes], self.y[nodes], here)

    @property
    def nodes(self) -> int:
        """Number of nodes N."""
        return len(self.x)

    @property
    def samples(self) -> int:
        """Number of records b of each node."""
        return self.x.shape[1]
