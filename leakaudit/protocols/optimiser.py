"""Optimisers of local training: what they do to a model, and what that leaves of the gradients."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations import Expression, Relations, decimal

Kind: TypeAlias = Literal["sgd", "adam", "adamw", "adagrad", "rmsprop"]

# Written as in torch.optim, for the gradient g at step k, the model w and the step size lr. With
# the coupled weight decay of all but AdamW, d = g + decay w; AdamW first shrinks w by 1 -
# lr decay, and d = g.
#
#     sgd       b <- momentum b + d            w <- w - lr b,  or w - lr (d + momentum b) (Nesterov)
#     adam      m <- .9 m + .1 d               v <- .999 v + .001 d^2
#               w <- w - lr (m / (1 - .9^k)) / (sqrt(v / (1 - .999^k)) + 1e-8)
#     adamw     as adam
#     adagrad   v <- v + d^2                   w <- w - lr d / (sqrt(v) + 1e-10)
#     rmsprop   v <- .99 v + .01 d^2           w <- w - lr d / (sqrt(v) + 1e-8)
#
# SGD is linear, so its steps are declared as relations and every gradient follows from the models.
# The others divide each coordinate by a measure of its own past, so a first step shows the sign of
# a gradient and hides its size: such steps are declared as opaque functions of the gradients.

# The defaults of torch.optim, which nearly all programs keep.
BETAS = (0.9, 0.999)
EPS = {"adam": 1e-8, "adamw": 1e-8, "adagrad": 1e-10, "rmsprop": 1e-8}
SMOOTHING = 0.99  # of RMSProp
HIDES = (
    "its optimiser divides each coordinate of a gradient by the size of the same coordinate in "
    "earlier ones, so that the models show signs but not sizes"
)


@dataclass
class OptimiserState:
    """What an optimiser keeps from step to step, for all nodes of a run."""

    count: int = 0  # steps so far
    # (N, d) the momentum buffer, or Adam's mean of gradients; None before the first step
    first: Tensor | None = None
    # (N, d) the mean or sum of squared gradients; None before the first step
    second: Tensor | None = None


# The same for a declaration: node -> its momentum buffer, or a vector that stands for all that Adam
# keeps.
DeclaredMemory: TypeAlias = dict[int, Expression]


@dataclass(frozen=True)
class Optimiser:
    """An optimiser with its constants."""

    kind: Kind = "sgd"  # its name in torch.optim, in lower case
    momentum: float = 0.0
    nesterov: bool = False  # whether SGD uses Nesterov momentum
    decay: float = 0.0

    def __post_init__(self) -> None:
        if self.kind != "sgd" and (self.momentum or self.nesterov):
            raise LeakauditError(
                f"momentum and nesterov belong to optimiser=sgd; {self.kind} has its own averages"
            )
        if self.nesterov and not self.momentum:
            raise LeakauditError("nesterov needs momentum > 0; set momentum=0.9, for example")
        if not 0 <= self.momentum < 1:
            raise LeakauditError(f"expected 0 <= momentum < 1, got {self.momentum:g}")

    @property
    def is_linear(self) -> bool:
        """Whether its steps are linear in the gradients."""
        return self.kind == "sgd"

    @property
    def is_plain(self) -> bool:
        """Whether a step depends on the current gradient only, linearly."""
        return self.is_linear and not self.momentum

    def step(self, memory: OptimiserState, lr: float, w: Tensor, g: Tensor) -> Tensor:
        """Take a step; the memory is changed, and so may be the gradients' buffer.

        Args:
            w: (N, d) the models.
            g: (N, d) the gradients.

        Returns:
            (N, d) the models after the step, in the buffer of `g` if that suffices.
        """
        memory.count += 1
        if self.is_plain:
            kept = w
            if self.decay:
                kept = (1 - lr * self.decay) * w
            return torch.add(kept, g, alpha=-lr, out=g)
        if self.kind == "adamw":
            w = w * (1 - lr * self.decay)
            d = g
        else:
            d = g + self.decay * w
        return torch.add(w, self._direction(memory, d), alpha=-lr)

    def _direction(self, memory: OptimiserState, d: Tensor) -> Tensor:
        """Return the direction (N, d) of a step."""
        if self.kind == "sgd":
            before = torch.zeros_like(d) if memory.first is None else memory.first
            memory.first = self.momentum * before + d
            if self.nesterov:
                return d + self.momentum * memory.first
            return memory.first
        before = torch.zeros_like(d) if memory.second is None else memory.second
        if self.kind == "adagrad":
            memory.second = before + d.square()
            return d / (memory.second.sqrt() + EPS["adagrad"])
        if self.kind == "rmsprop":
            memory.second = SMOOTHING * before + (1 - SMOOTHING) * d.square()
            return d / (memory.second.sqrt() + EPS["rmsprop"])
        mean = torch.zeros_like(d) if memory.first is None else memory.first
        fast, slow = BETAS
        memory.first = fast * mean + (1 - fast) * d
        memory.second = slow * before + (1 - slow) * d.square()
        size = (memory.second / (1 - slow**memory.count)).sqrt()
        return memory.first / (1 - fast**memory.count) / (size + EPS[self.kind])

    def declare(
        self,
        p: Relations,
        memory: DeclaredMemory,
        node: int,
        base: Expression,
        gradient: Expression,
        lr: Fraction,
        index: int | None = None,
    ) -> Expression:
        """Declare a step of a node."""
        decay = decimal(self.decay)
        if self.is_plain:
            return (1 - lr * decay) * base - lr * gradient
        held = memory.get(node)
        if self.kind == "sgd":
            mu = decimal(self.momentum)
            d = gradient + decay * base
            moved = d if held is None else d + mu * held
            b = p.state("b", node, index, eq=moved)
            memory[node] = b
            if self.nesterov:
                return base - lr * (d + mu * b)
            return base - lr * b
        kept = p.state("m", node, index)
        inputs = [base, gradient] if self.decay else [gradient]
        if held is not None:
            inputs.append(held)
        p.opaque(kept, of=inputs, hides=HIDES)
        memory[node] = kept
        new = p.state("u", node, index)
        p.opaque(new, of=[base, kept])
        return new
