"""The order and the axes in which a message holds the parameters of a model."""

# PyTorch stores the kernel of a dense layer as (out, in). JAX and TensorFlow store it as (in, out),
# and a tree of parameters is sorted by name. An order such as ``["layer1.bias",
# "layer1.weight.T"]`` describes both: parameters are listed as they follow in a message, and a
# suffix names the axes.

from __future__ import annotations

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
    shape: tuple[int, ...] = ()  # in a message; empty if its numbers are in the model's order
    axes: tuple[int, ...] = ()  # of that shape, in the order of the model's; empty if equal

    def arranged(self, numbers: Tensor) -> Tensor:
        """Return a parameter's numbers in the model's order."""
        if not self.axes:
            return numbers
        return numbers.reshape(self.shape).permute(self.axes).reshape(-1)


def _place(entry: str, layout: Layout) -> ParameterPlace:
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


def names_of(order: Sequence[str], layout: Layout) -> list[str]:
    """Return the names of the parameters in an order, without suffixes of axes."""
    return [split(entry, layout)[0] for entry in order or layout.names]


def places(order: Sequence[str], layout: Layout) -> list[ParameterPlace]:
    """Return the place of each parameter, in the order of a message, which has to list all."""
    # An empty order is the model's own.
    found = [_place(entry, layout) for entry in order or layout.names]
    names = names_of(order, layout)
    if sorted(names) != sorted(layout.names):
        listed = ", ".join(layout.names)
        raise LeakauditError(f"messages.order: expected each parameter once: {listed}")
    return found


def arrangements(shapes: Sequence[tuple[int, ...]]) -> list[tuple[Layout, tuple[str, ...]]]:
    """Return the fully connected networks that the tensors of a message may form.

    The parameters of a layout have the names 0, 1, ...; its order is that of the message.
    """
    # Kernels and biases are in the order of the layers. Widths decide whether a kernel is (out, in)
    # or (in, out), unless all are equal.
    kernels = [k for k, shape in enumerate(shapes) if len(shape) == 2]
    biases = [k for k, shape in enumerate(shapes) if len(shape) == 1]
    if not kernels or len(kernels) != len(biases) or 2 * len(kernels) != len(shapes):
        return []
    in_model = [k for layer in zip(kernels, biases, strict=True) for k in layer]
    found: list[tuple[Layout, tuple[str, ...]]] = []
    for suffix in ("", ".T"):
        own = [shapes[k][::-1] if suffix else shapes[k] for k in in_model]
        # Each layer has as many inputs as the last has outputs, and a bias for each output.
        joined = all(before[0] == after[1] for before, after in pairwise(own[::2]))
        if joined and own[1::2] == [(kernel[0],) for kernel in own[::2]]:
            names = [str(in_model.index(k)) for k in range(len(shapes))]
            order = [name + suffix * (k in kernels) for k, name in enumerate(names)]
            layout = Layout(tuple(sorted(names, key=int)), tuple(own))
            found.append((layout, tuple(order)))
    return found


def renamed(order: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return an order of numbered parameters with their names."""
    known: dict[str, str] = {}
    for number, name in enumerate(names):
        known |= {str(number): name, f"{number}.T": f"{name}.T"}
    return [known[entry] for entry in order]


def toggled(order: Sequence[str], layout: Layout) -> Iterator[tuple[str, ...]]:
    """Yield the orders that differ from one only in the axes of square kernels, or of all kernels.

    Shapes show a wrong suffix of any other kernel.
    """
    names = names_of(order, layout)
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
