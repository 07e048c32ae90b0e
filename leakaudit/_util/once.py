"""Results that are computed once for an object, and forgotten with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def once(function: Callable[[T], R]) -> Callable[[T], R]:
    """Remember the value of a function for each object; the value must not refer to the object."""
    known: dict[int, R] = {}

    @wraps(function)
    def remembered(thing: T) -> R:
        key = id(thing)
        if key not in known:
            value = function(thing)
            weakref.finalize(thing, known.pop, key)
            known[key] = value
        return known[key]

    return remembered
