"""Choose the parameters of which a tap keeps the values."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import accumulate

NOTE = "layers"  # the note of an event with only the chosen parameters


def chosen(names: Sequence[str], layers: Sequence[str] | None) -> frozenset[int] | None:
    """Return the places of the parameters to keep.

    Args:
        names: names of all parameters, in the model's order.
        layers: ``first``, ``last`` (all parameters of the first or last module that has any), or
            names of parameters or modules, with ``*`` for any characters. None keeps all.

    Returns:
        The places; None for all of them.
    """
    if layers is None:
        return None
    found: set[int] = set()
    for layer in layers:
        pattern = layer
        if layer in ("first", "last") and names:
            pattern = _module(names[0] if layer == "first" else names[-1])
        for place, name in enumerate(names):
            if fnmatchcase(name, pattern) or fnmatchcase(_module(name), pattern):
                found.add(place)
    return frozenset(found)


def _module(name: str) -> str:
    """Return the name of the module of a parameter; its own name if it has none."""
    return name.rpartition(".")[0] or name


def place_of(sizes: Sequence[int], sent: int, length: int) -> int | None:
    """Return the place of a parameter that is sent by itself.

    Args:
        sizes: lengths of all parameters.
        sent: numbers of the model that were sent before it.
        length: its length.

    Returns:
        The place; None if no parameter of this length begins there.
    """
    starts = [0, *accumulate(sizes)]
    for place, start in enumerate(starts[:-1]):
        if start == sent and sizes[place] == length:
            return place
    return None
