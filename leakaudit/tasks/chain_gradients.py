"""Closed formulas for gradients of many small networks that are differentiated once more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakaudit.core.trace import Layout
from leakaudit.tasks import sequential
from leakaudit.tasks.activations import ACTIVATIONS, Bends

# The second derivatives are those with respect to inputs and labels, as a matching loss needs them.
#
# A chain z_l = W_l U_l + b_l, a_l = s(z_l) has U_l, the columns of a_{l-1} that enter each output,
# and slopes d_l = dL/dz_l; its gradient in W_l is d_l U_l^T. A matching loss needs the slope in x
# of <g(x), R> for a fixed R = dLoss/dg. This is the derivative of L along R, so one forward pass
# carries z'_l = R_l U_l + W_l U'_l, and one backward pass m_l = dL'/dz_l (Pearlmutter 1994,
# "R-operator"). Weights are never differentiated twice, and each network's convolution is a product
# of two matrices instead of one group of a large convolution.
#
# Layout: n networks come first and b samples third, (n, channels, b, *sides) between convolutions
# and (n, features, b) between linear layers, so that a layer of all networks is one batched matrix
# product.

Error = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class _Link:
    """A linear layer or a convolution, and the activation after it.

    Values are (n, channels, b, *sides), or (n, features, b) around linear layers; `flat` are the
    parameters (n, d) of n networks, and columns (n, length, b * outputs per channel).
    """

    module: nn.Module
    act: nn.Module | None  # the activation's module, None if there is none
    weight: slice  # position of the weight in the flat parameters
    bias: slice | None  # position of the bias in the flat parameters, None for a layer without one
    before: tuple[int, ...]  # shape of an input without the batch, channels or features first
    after: tuple[int, ...]  # shape of an output without the batch, channels or features first

    def weights(self, flat: Tensor) -> Tensor:
        """View the layer's weights as matrices (n, outputs, length of a column)."""
        found: Tensor = flat[:, self.weight].unflatten(1, (self.after[0], -1))
        return found

    def shift(self, z: Tensor, flat: Tensor) -> Tensor:
        """Add the layer's bias to values (n, outputs, ...), in place."""
        if self.bias is None:
            return z
        return z.add_(flat[:, self.bias, None])

    def columns(self, a: Tensor) -> Tensor:
        """Gather the inputs of each output: the U of the module's docstring."""
        m = self.module
        if not isinstance(m, nn.Conv2d):
            return a if a.dim() == 3 else a.movedim(2, -1).flatten(1, -2)
        # The patches overlap; a view with repeated strides contains them all, and the reshape
        # copies them once.
        kernel_y, kernel_x = m.kernel_size
        step_y, step_x = m.stride
        apart_y, apart_x = m.dilation
        pad_y, pad_x = _pads(m)
        a = F.pad(a, (pad_x, pad_x, pad_y, pad_y))
        n, channels, samples = a.shape[:3]
        at_n, at_channel, at_sample, at_y, at_x = a.stride()
        seen = a.as_strided(
            (n, channels, kernel_y, kernel_x, samples, *self.after[1:]),
            (
                at_n,
                at_channel,
                apart_y * at_y,
                apart_x * at_x,
                at_sample,
                step_y * at_y,
                step_x * at_x,
            ),
            a.storage_offset(),
        )
        return seen.reshape(n, channels * kernel_y * kernel_x, -1)

    def back(self, columns: Tensor) -> Tensor:
        """Sum the values of each input over its columns: the transpose of `columns`."""
        m = self.module
        if not isinstance(m, nn.Conv2d):
            if len(self.before) == 1:
                return columns
            image: Tensor = columns.unflatten(1, self.before)
            return image.movedim(-1, 2)
        n = len(columns)
        samples = columns.shape[2] // math.prod(self.after[1:])
        apart: Tensor = columns.unflatten(2, (samples, -1))
        each = apart.transpose(1, 2).flatten(0, 1)
        folded: Tensor = F.fold(
            each, self.before[1:], m.kernel_size, m.dilation, _pads(m), m.stride
        )
        together: Tensor = folded.unflatten(0, (n, samples))
        return together.transpose(1, 2)

    def image(self, z: Tensor) -> Tensor:
        """Restore the sides of a convolution's outputs (n, channels, b * outputs per channel)."""
        if len(self.after) == 1:
            return z
        shown: Tensor = z.unflatten(2, (-1, *self.after[1:]))
        return shown

    def bends(self, z: Tensor) -> Bends:
        """Return value, first and second derivative of the activation; None for 1 or 0."""
        if self.act is None:
            return z, None, None
        bends = ACTIVATIONS[type(self.act)].bends
        assert bends is not None
        return bends(self.act, z)


@dataclass(frozen=True, eq=False)
class _ForwardPass:
    out: Tensor  # outputs (n, classes, b)
    columns: list[Tensor]  # the input of each link, as columns
    first: list[Tensor | None]  # the first derivative of each link's activation, None for 1
    second: list[Tensor | None]  # the second derivative of each link's activation, None for 0


# Maps parameters, inputs, labels and the slope of the loss to gradients (`_Chain.gradients`).
Formulas: TypeAlias = Callable[[Tensor, Tensor, Tensor, Error], Tensor]


def gradients(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> Formulas | None:
    """Return the formulas of a ``Sequential`` without shared or frozen parameters, or None."""
    found = sequential.trained(module, layout)
    if found is None or len(shape) not in (1, 3):
        return None
    parts, blocks = found
    if not all(_flattens_all(m) for _, m in parts):
        return None

    places = layout.slices
    links = []
    for block in blocks:
        act, name = block.activation, block.name
        if act is not None and ACTIVATIONS[type(act)].bends is None:
            return None
        after = _after(block.layer, shape, block.flat or len(shape) == 1)
        if after is None:
            return None
        weight, bias = places[f"{name}.weight"], places.get(f"{name}.bias")
        links.append(_Link(block.layer, act, weight, bias, shape, after))
        shape = after
    if len(shape) != 1 or links[-1].act is not None:
        return None
    return _Chain(tuple(links), layout.size).gradients


@dataclass(frozen=True, eq=False)
class _Chain:
    """A sequence of layers and activations."""

    links: tuple[_Link, ...]  # the layers in order
    size: int  # length d of the flat parameters

    def gradients(self, thetas: Tensor, x: Tensor, y: Tensor, error: Error) -> Tensor:
        """Return gradients (n, d) that are differentiable once, in x and in soft y, not in thetas.

        Args:
            thetas: Parameters of n networks (n, d).
            x: Normalised inputs (n, b, *shape).
            y: Labels (n, b), or (n, b, classes).
            error: Maps the outputs (n, b, classes) and y to the slope of the loss in the outputs.
        """
        given = (self, error, thetas.detach(), x, y)
        found: Tensor = _Gradients.apply(*given)  # type: ignore[no-untyped-call]
        return found

    def forward(self, thetas: Tensor, x: Tensor) -> _ForwardPass:
        """Evaluate all networks."""
        columns, first, second = list[Tensor](), list[Tensor | None](), list[Tensor | None]()
        a = x.movedim(1, 2)
        for link in self.links:
            columns.append(link.columns(a))
            z = link.shift(torch.bmm(link.weights(thetas), columns[-1]), thetas)
            value, once, twice = link.bends(z)
            a = link.image(value)
            first.append(once)
            second.append(twice)
        return _ForwardPass(a, columns, first, second)


class _Gradients(torch.autograd.Function):
    """Gradients by one forward and one backward pass; their slopes by a second pair, along R."""

    @staticmethod
    def forward(
        ctx: Any, chain: _Chain, error: Error, thetas: Tensor, x: Tensor, y: Tensor
    ) -> Tensor:
        up = chain.forward(thetas, x)
        out = up.out.mT
        found = thetas.new_empty(len(thetas), chain.size)
        slopes = [error(out, y).mT]  # d_l, from the last link to the first
        falls = []  # dL/da_l, the same without the activation's slope
        for k in reversed(range(len(chain.links))):
            link, d = chain.links[k], slopes[-1]
            # dL/dW_l = d_l U_l^T. A product directly into strided memory would run per matrix.
            found[:, link.weight] = torch.bmm(d, up.columns[k].mT).flatten(1)
            if link.bias is not None:
                torch.sum(d, 2, out=found[:, link.bias])
            if k:
                # d_{l-1} = (W_l^T d_l) s'(z_{l-1})
                falls.append(link.back(torch.bmm(link.weights(thetas).mT, d)).flatten(2))
                slopes.append(_times(falls[-1], up.first[k - 1]))
        ctx.chain = chain
        ctx.error = error
        ctx.save_for_backward(
            thetas, y, out, *up.columns, *up.first, *up.second, *slopes[::-1], *falls[::-1]
        )
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, r: Tensor) -> tuple[Tensor | None, ...]:
        """Return the slopes of <gradients, r> in x and y."""
        links: tuple[_Link, ...] = ctx.chain.links
        n = len(links)
        thetas, y, out, *kept = ctx.saved_tensors
        columns, first, second, slopes, falls = (kept[k * n : (k + 1) * n] for k in range(5))

        # Forward: z'_l = R_l U_l + r_l + W_l U'_l with r_l the part of R in the bias, and U'_l the
        # columns of a'_{l-1} = s'(z_{l-1}) z'_{l-1}.
        moved = list[Tensor]()
        for k, link in enumerate(links):
            along = link.shift(torch.bmm(link.weights(r), columns[k]), r)
            if k:
                up = links[k - 1].image(_times(moved[-1], first[k - 1]))
                along.baddbmm_(link.weights(thetas), link.columns(up))
            moved.append(along)

        # Backward: dL'/da_{l-1} = R_l^T d_l + W_l^T m_l, with both products in one, and
        # m_{l-1} = s'(z_{l-1}) dL'/da_{l-1} + s''(z_{l-1}) z'_{l-1} dL/da_{l-1}.
        m, slope_y = _bent(ctx.error, out, y, moved[-1].mT)
        for k in reversed(range(n)):
            both = torch.cat([links[k].weights(r), links[k].weights(thetas)], dim=1)
            m = links[k].back(torch.bmm(both.mT, torch.cat([slopes[k], m], dim=1)))
            if k:
                m = _times(m.flatten(2), first[k - 1])
                if second[k - 1] is not None:
                    m = m.addcmul_(falls[k - 1] * second[k - 1], moved[k - 1])
        return None, None, None, m.transpose(1, 2), slope_y


def _times(slope: Tensor, bend: Tensor | None) -> Tensor:
    return slope if bend is None else slope * bend


def _bent(error: Error, out: Tensor, y: Tensor, along: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the slopes of <error(out, y), along> in out, as (n, classes, b), and in soft y."""
    soft = y.is_floating_point()
    with torch.enable_grad():
        out = out.detach().requires_grad_()
        y = y.detach().requires_grad_(soft)
        wanted = (out, y) if soft else (out,)
        found = torch.autograd.grad((error(out, y) * along).sum(), wanted)
    return found[0].mT, found[1] if soft else None


def _pads(m: nn.Conv2d) -> tuple[int, int]:
    assert not isinstance(m.padding, str)
    return m.padding[0], m.padding[1]


def _flattens_all(m: nn.Module) -> bool:
    """Return whether a module, if it flattens, keeps only the batch dimension."""
    return not isinstance(m, nn.Flatten) or (m.start_dim, m.end_dim) == (1, -1)


def _after(m: nn.Module, shape: tuple[int, ...], flat: bool) -> tuple[int, ...] | None:
    """Return the shape of a layer's output; None if a chain cannot contain the layer."""
    if isinstance(m, nn.Linear):
        return (m.out_features,) if flat and m.in_features == math.prod(shape) else None
    if not isinstance(m, nn.Conv2d) or flat or not sequential.plain(m):
        return None
    sides = []
    numbers = zip(shape[1:], m.kernel_size, m.stride, m.dilation, _pads(m), strict=True)
    for side, kernel, step, apart, pad in numbers:
        sides.append((side + 2 * pad - apart * (kernel - 1) - 1) // step + 1)
    return m.out_channels, *sides
