"""Gradients of many small networks at once, to be differentiated once more in inputs and labels, in closed form.

A chain z_l = W_l U_l + b_l, a_l = s(z_l) has U_l, the columns of a_{l-1} that each output sees, and slopes d_l = dL/dz_l; its gradient is
d_l U_l^T. What a matching loss asks of it is the slope in x of <g(x), R> for a fixed R = dLoss/dg. That is the derivative of L along R,
so one forward pass carries z'_l = R_l U_l + W_l U'_l, and one backward pass m_l = dL'/dz_l (Pearlmutter 1994, "R-operator"). Weights are
never differentiated twice, and each network's convolution is a product of two matrices instead of a group of one large convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakaudit.tasks.smoothed_relu import Rounded
from leakaudit.trace import Layout

Error = Callable[[Tensor, Tensor], Tensor]
Bends = tuple[Tensor, Tensor | None, Tensor | None]
# value, first and second derivative of each activation, None for a second one of zero
ACTIVE: dict[type[nn.Module], Callable[[Any, Tensor], Bends]] = {
    nn.ReLU: lambda _, z: (z.relu(), (z > 0).to(z), None),
    nn.Sigmoid: lambda _, z: (a := z.sigmoid(), s := a * (1 - a), s * (1 - 2 * a)),
    nn.Tanh: lambda _, z: (a := z.tanh(), s := 1 - a * a, -2 * a * s),
    Rounded: lambda act, z: act.bends(z),
}
PASSIVE = (nn.Identity, nn.Dropout, nn.Dropout2d)


@dataclass(frozen=True, eq=False)
class Link:
    """A linear layer or a convolution, and the activation after it, None for none.

    weight, bias: where they lie in theta, None for no bias. before, after: shapes of input and output without the batch, channels or
    features first. Values are (n, channels, b, *sides), or (n, features, b) around linear layers.
    """

    module: nn.Module
    act: nn.Module | None
    weight: slice
    bias: slice | None
    before: tuple[int, ...]
    after: tuple[int, ...]

    def weights(self, flat: Tensor) -> Tensor:
        """Its weights (n, outputs, columns' length) among flat parameters (n, d); a view."""
        found: Tensor = flat[:, self.weight].unflatten(1, (self.after[0], -1))
        return found

    def shift(self, z: Tensor, flat: Tensor) -> Tensor:
        """Add its bias among flat parameters to z (n, outputs, ...), in place."""
        return z if self.bias is None else z.add_(flat[:, self.bias, None])

    def columns(self, a: Tensor) -> Tensor:
        """What each output sees of the input a: (n, weights an output, b * outputs a channel)."""
        m = self.module
        if not isinstance(m, nn.Conv2d):
            return a if a.dim() == 3 else a.movedim(2, -1).flatten(1, -2)
        (u, v), (s, t), (e, f), (p, q) = m.kernel_size, m.stride, m.dilation, _pads(m)
        a = F.pad(a, (q, q, p, p))
        n, c, b = a.shape[:3]
        i, j, k, y, x = a.stride()
        seen = a.as_strided(
            (n, c, u, v, b, *self.after[1:]),
            (i, j, e * y, f * x, k, s * y, t * x),
            a.storage_offset(),
        )
        return seen.reshape(n, c * u * v, -1)

    def back(self, columns: Tensor) -> Tensor:
        """Sum what belongs to the same input: the transpose of `columns`."""
        m = self.module
        if not isinstance(m, nn.Conv2d):
            return (
                columns
                if len(self.before) == 1
                else columns.unflatten(1, self.before).movedim(-1, 2)
            )
        n, b = len(columns), columns.shape[2] // math.prod(self.after[1:])
        each = columns.unflatten(2, (b, -1)).transpose(1, 2).flatten(0, 1)
        found: Tensor = F.fold(
            each, self.before[1:], m.kernel_size, m.dilation, _pads(m), m.stride
        ).unflatten(0, (n, b))
        return found.transpose(1, 2)

    def image(self, z: Tensor) -> Tensor:
        """View (n, channels, b * outputs a channel) as (n, channels, b, *sides)."""
        return z.unflatten(2, (-1, *self.after[1:])) if len(self.after) > 1 else z

    def bends(self, z: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Activation of z (n, channels, b * outputs a channel), its first and its second derivative; None for 1 and 0."""
        return (z, None, None) if self.act is None else ACTIVE[type(self.act)](self.act, z)


@dataclass(frozen=True, eq=False)
class Chain:
    """Links in order and the length d of the flat parameters."""

    links: tuple[Link, ...]
    size: int

    @classmethod
    def of(cls, module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> Chain | None:
        """Read the chain off a plain ``Sequential`` for inputs of a shape, None where the module is anything else."""
        links, at = list[Link](), layout.slices
        names = [n for n, _ in module.named_parameters(remove_duplicate=False)]
        if (
            type(module) is not nn.Sequential
            or names != list(layout.names)
            or len(shape) not in (1, 3)
        ):
            return None
        parts, flat = (
            [
                (n, m)
                for n, m in module.named_modules(remove_duplicate=False)
                if type(m) is not nn.Sequential
            ],
            len(shape) == 1,
        )
        for name, m in parts:
            if type(m) is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1):
                flat = True
            elif type(m) in ACTIVE and links and links[-1].act is None:
                links[-1] = Link(**{**vars(links[-1]), "act": m})
            elif (after := _after(m, shape, flat)) is not None:
                links.append(
                    Link(m, None, at[f"{name}.weight"], at.get(f"{name}.bias"), shape, after)
                )
                shape = after
            elif type(m) not in PASSIVE:
                return None
        return (
            cls(tuple(links), layout.size)
            if links and len(shape) == 1 and links[-1].act is None
            else None
        )

    def gradients(self, thetas: Tensor, x: Tensor, y: Tensor, error: Error) -> Tensor:
        """Gradients (n, d) at thetas (n, d), differentiable once in x (n, b, *shape) and in soft y, not in thetas.

        x: normalised. y: (n, b) or (n, b, classes). error: outputs (n, b, classes) and y to the slope of the loss in the outputs.
        """
        found: Tensor = _Gradients.apply(self, error, thetas.detach(), x, y)  # type: ignore[no-untyped-call]
        return found

    def forward(
        self, thetas: Tensor, x: Tensor
    ) -> tuple[Tensor, list[Tensor], list[Tensor | None], list[Tensor | None]]:
        """Outputs (n, classes, b), the columns of each link, and the first and second derivative of its activation."""
        columns, first, second, a = (
            list[Tensor](),
            list[Tensor | None](),
            list[Tensor | None](),
            x.movedim(1, 2),
        )
        for link in self.links:
            columns.append(link.columns(a))
            a, once, twice = link.bends(
                link.shift(torch.bmm(link.weights(thetas), columns[-1]), thetas)
            )
            a, first, second = link.image(a), [*first, once], [*second, twice]
        return a, columns, first, second


class _Gradients(torch.autograd.Function):
    """Gradients by one pass up and one down; their own slopes by a second pass of both, along the incoming R."""

    @staticmethod
    def forward(
        ctx: Any, chain: Chain, error: Error, thetas: Tensor, x: Tensor, y: Tensor
    ) -> Tensor:
        """Return gradients (n, d)."""
        out, columns, first, second = chain.forward(thetas, x)
        out = out.mT
        slopes, falls, found = [error(out, y).mT], [], thetas.new_empty(len(thetas), chain.size)
        for k in reversed(range(len(chain.links))):
            link, d = chain.links[k], slopes[-1]
            found[:, link.weight] = torch.bmm(d, columns[k].mT).flatten(
                1
            )  # a product into strided memory goes matrix by matrix
            if link.bias is not None:
                torch.sum(d, 2, out=found[:, link.bias])
            if k:
                falls.append(link.back(torch.bmm(link.weights(thetas).mT, d)).flatten(2))
                slopes.append(_times(falls[-1], first[k - 1]))
        ctx.chain, ctx.error = chain, error
        ctx.save_for_backward(
            thetas, y, out, *columns, *first, *second, *slopes[::-1], *falls[::-1]
        )
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, r: Tensor) -> tuple[Tensor | None, ...]:
        """Return the slopes of <gradients, r> in x and y."""
        links, n = ctx.chain.links, len(ctx.chain.links)
        thetas, y, out, *kept = ctx.saved_tensors
        columns, first, second, slopes, falls = (kept[k * n : (k + 1) * n] for k in range(5))
        moved = list[Tensor]()
        for k, link in enumerate(links):
            along = link.shift(torch.bmm(link.weights(r), columns[k]), r)
            if k:
                up = links[k - 1].image(_times(moved[-1], first[k - 1]))
                along.baddbmm_(link.weights(thetas), link.columns(up))
            moved.append(along)
        m, slope_y = _bent(ctx.error, out, y, moved[-1].mT)
        for k in reversed(range(n)):
            both = torch.cat([links[k].weights(r), links[k].weights(thetas)], dim=1)
            m = links[k].back(torch.bmm(both.mT, torch.cat([slopes[k], m], dim=1)))
            if k:
                m = _times(m.flatten(2), first[k - 1])
                m = (
                    m
                    if second[k - 1] is None
                    else m.addcmul_(falls[k - 1] * second[k - 1], moved[k - 1])
                )
        return None, None, None, m.transpose(1, 2), slope_y


def _times(slope: Tensor, bend: Tensor | None) -> Tensor:
    return slope if bend is None else slope * bend


def _bent(error: Error, out: Tensor, y: Tensor, along: Tensor) -> tuple[Tensor, Tensor | None]:
    """Slopes of <error(out, y), along> in the outputs, (n, classes, b), and in soft y."""
    soft = y.is_floating_point()
    with torch.enable_grad():
        out, y = out.detach().requires_grad_(), y.detach().requires_grad_(soft)
        found = torch.autograd.grad((error(out, y) * along).sum(), (out, y) if soft else (out,))
    return found[0].mT, found[1] if soft else None


def _pads(m: nn.Conv2d) -> tuple[int, int]:
    """Zeros on each side."""
    assert not isinstance(m.padding, str)
    return m.padding[0], m.padding[1]


def _after(m: nn.Module, shape: tuple[int, ...], flat: bool) -> tuple[int, ...] | None:
    """Shape of the output of a layer with weights for inputs of a shape, None where it is not one that a chain may have."""
    if type(m) is nn.Linear:
        return (m.out_features,) if flat and m.in_features == math.prod(shape) else None
    if (
        type(m) is not nn.Conv2d
        or flat
        or m.groups != 1
        or m.padding_mode != "zeros"
        or isinstance(m.padding, str)
    ):
        return None
    sides = zip(shape[1:], m.kernel_size, m.stride, m.dilation, _pads(m), strict=True)
    return m.out_channels, *((n + 2 * p - e * (k - 1) - 1) // s + 1 for n, k, s, e, p in sides)
