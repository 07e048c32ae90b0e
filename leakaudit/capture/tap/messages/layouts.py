"""The order and the axes in which a message holds the parameters of a model.

PyTorch stores the kernel of a dense layer as (out, in). JAX and TensorFlow store it as (in, out),
and a tree of parameters is sorted by name. An order such as ``["layer1.bias", "layer1.weight.T"]``
describes both: parameters are listed as they follow in a message, and a suffix names the axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.trace import Layout

SUFFIXES = {  # suffix of a name -> axes of the message's tensor, in the order of the model's axes
    "T": (1, 0),  # a dense kernel stored as (in, out)
    "HWIO": (3, 2, 0, 1),  # a convolution stored as (height, width, in, out)
}


@dataclass(frozen=True)
class ParameterPlace:
    """The position of a parameter in the model's vector, and its form in a message."""

    start: int  # its first column in the model's vector
    stop: int  # the column after its last one
    # its shape in a message; empty if the message holds its numbers in the model's order
    shape: tuple[int, ...] = ()
    # the axes of that shape, in the order of the model's axes; empty if they are equal
    axes: tuple[int, ...] = ()

    def arranged(self, numbers: Tensor) -> Tensor:
        """Return a parameter's numbers in the model's order."""
        if not self.axes:
            return numbers
        return numbers.reshape(self.shape).permute(self.axes).reshape(-1)


def place(entry: str, layout: Layout) -> ParameterPlace:
    """Return the place of one entry of an order."""
    name, suffix = split(entry, layout)
    shape = layout.shapes[layout.names.index(name)]
    columns = layout.slices[name]
    if not suffix:
        return ParameterPlace(columns.start, columns.stop, shape)
    axes = SUFFIXES[suffix]
    if len(shape) != len(axes):
        raise LeakauditError(
            f"messages.order: {entry!r}: suffix .{suffix} is for parameters with {len(axes)} axes; "
            f"{name} has shape {list(shape)}"
        )
    sent = [0] * len(axes)
    for own, axis in enumerate(axes):
        sent[axis] = shape[own]
    return ParameterPlace(columns.start, columns.stop, tuple(sent), axes)


def split(entry: str, layout: Layout) -> tuple[str, str]:
    """Split one entry of an order into the name of a parameter and its suffix."""
    if entry in layout.names:
        return entry, ""
    name, _, suffix = entry.rpartition(".")
    if name in layout.names and suffix in SUFFIXES:
        return name, suffix
    known = ", ".join(f".{one}" for one in SUFFIXES)
    raise LeakauditError(
        f"messages.order: the model has no parameter {entry!r}{suggest(entry, layout.names)} "
        f"(suffixes for other axes: {known})"
    )


def places(order: Sequence[str], layout: Layout) -> list[ParameterPlace]:
    """Return the place of each parameter, in the order of a message.

    Args:
        order: an entry for each parameter; empty for the model's own order and axes.

    Raises:
        LeakauditError: a parameter is missing, unknown or listed twice, or a suffix does not fit.
    """
    found = [place(entry, layout) for entry in order or layout.names]
    names = [split(entry, layout)[0] for entry in order or layout.names]
    if sorted(names) != sorted(layout.names):
        listed = ", ".join(layout.names)
        raise LeakauditError(f"messages.order: expected each parameter once: {listed}")
    return found


@dataclass(frozen=True)
class Arrangement:
    """One way in which the tensors of a message may form a fully connected network."""

    # for each tensor of a message, the number of its parameter in the order weight, bias, weight,
    # bias,
    parameters: tuple[int, ...]
    transposed: tuple[bool, ...]  # for each tensor, whether it is a kernel stored as (in, out)

    @property
    def usual(self) -> bool:
        """Whether the tensors have the order and the axes of PyTorch."""
        in_order = self.parameters == tuple(range(len(self.parameters)))
        return in_order and not any(self.transposed)

    def sizes(self, sent: Sequence[int]) -> tuple[int, ...]:
        """Return the lengths of the parameters in the model's order, followed by their sum."""
        ordered = [0] * len(sent)
        for parameter, length in zip(self.parameters, sent, strict=True):
            ordered[parameter] = length
        return (*ordered, sum(ordered))

    def places(self, shapes: Sequence[tuple[int, ...]]) -> list[ParameterPlace]:
        """Return the places of the tensors."""
        sizes = self.sizes([math.prod(shape) for shape in shapes])
        found = []
        for parameter, transposed, shape in zip(
            self.parameters, self.transposed, shapes, strict=True
        ):
            start = sum(sizes[:parameter])
            axes = SUFFIXES["T"] if transposed else ()
            found.append(ParameterPlace(start, start + sizes[parameter], shape, axes))
        return found

    def order(self, names: Sequence[str]) -> list[str]:
        """Return the entries of [messages] order."""
        entries = []
        for parameter, transposed in zip(self.parameters, self.transposed, strict=True):
            entries.append(f"{names[parameter]}.T" if transposed else names[parameter])
        return entries


def arrangements(shapes: Sequence[tuple[int, ...]]) -> list[Arrangement]:
    """Return all ways in which the tensors of a message form a fully connected network.

    The kernels, and the biases, are taken to be in the order of the layers. The widths decide
    whether a kernel is stored as (out, in) or (in, out), unless all of them are equal.
    """
    kernels = [k for k, shape in enumerate(shapes) if len(shape) == 2]
    biases = [k for k, shape in enumerate(shapes) if len(shape) == 1]
    if not kernels or len(kernels) != len(biases) or 2 * len(kernels) != len(shapes):
        return []
    found = []
    for transposed in (False, True):
        if _is_chain(shapes, kernels, biases, transposed):
            found.append(_arrangement(len(shapes), kernels, biases, transposed))
    return found


def _is_chain(
    shapes: Sequence[tuple[int, ...]],
    kernels: Sequence[int],
    biases: Sequence[int],
    transposed: bool,
) -> bool:
    """Return whether each layer has as many inputs as the one before has outputs."""
    widths = []
    for kernel, bias in zip(kernels, biases, strict=True):
        inside, outside = _ends(shapes[kernel], transposed)
        if shapes[bias] != (outside,):
            return False
        widths.append((inside, outside))
    return all(before[1] == after[0] for before, after in pairwise(widths))


def _ends(shape: tuple[int, ...], transposed: bool) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a kernel."""
    if transposed:
        return shape[0], shape[1]
    return shape[1], shape[0]


def _arrangement(
    count: int, kernels: Sequence[int], biases: Sequence[int], transposed: bool
) -> Arrangement:
    parameters = [0] * count
    turned = [False] * count
    for layer, kernel in enumerate(kernels):
        parameters[kernel] = 2 * layer
        turned[kernel] = transposed
    for layer, bias in enumerate(biases):
        parameters[bias] = 2 * layer + 1
    return Arrangement(tuple(parameters), tuple(turned))


def toggled(order: Sequence[str], layout: Layout) -> Iterator[tuple[str, ...]]:
    """Yield the orders that differ from one only in the axes of square kernels, or of all kernels.

    Shapes show a wrong suffix of any other kernel.
    """
    names = [split(entry, layout)[0] for entry in order or layout.names]
    shapes = [layout.shapes[layout.names.index(name)] for name in names]
    given = tuple(order or layout.names)
    for every in (False, True):
        plain = []
        turned = []
        for entry, name, shape in zip(given, names, shapes, strict=True):
            matrix = len(shape) == 2 and (every or shape[0] == shape[1])
            plain.append(name if matrix else entry)
            turned.append(f"{name}.T" if matrix else entry)
        for other in (tuple(plain), tuple(turned)):
            if other != given:
                yield other
