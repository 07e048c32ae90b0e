"""A small language for the shape of a JSON value, and where a value departs from it first.

A spec is a type (float takes whole numbers too and must be finite), None, a `Pattern` or a
frozenset of allowed values. ``(a, b)`` are alternatives, ``[a]`` is a list of a, ``{str: a}`` maps
any text to a, and every other dictionary lists its exact keys, where one that ends in "?" may be
absent. `ANY` is any JSON value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakaudit.trace import Json

ANY = object()


@dataclass(frozen=True)
class Pattern:
    """Text that a regular expression matches in full.

    Attributes:
        name: What a reader calls it.
        expression: The regular expression.
    """

    name: str
    expression: str


def departure(value: Json, spec: Any, at: str = "") -> str | None:
    """Say where a value departs from a spec first.

    Args:
        value: Of a file.
        spec: In the words above.
        at: Place of the value in the file.

    Returns:
        One sentence, or None if the value fits.
    """
    if isinstance(spec, tuple):
        return _alternatives(value, spec, at)
    if isinstance(spec, list) and isinstance(value, list):
        parts = [(f"{at}[{place}]", entry, spec[0]) for place, entry in enumerate(value)]
        return _first(parts)
    if isinstance(spec, dict) and isinstance(value, Mapping):
        return _mapping(value, spec, at)
    return None if _fits(value, spec) else _sentence(value, spec, at)


def _alternatives(value: Json, specs: tuple[Any, ...], at: str) -> str | None:
    tries = [departure(value, spec, at) for spec in specs]
    if None in tries:
        return None
    inside = [
        t
        for t, s in zip(tries, specs, strict=True)
        if isinstance(s, dict | list) and isinstance(value, type(s))
    ]
    return inside[0] if inside else _sentence(value, specs, at)


def _first(parts: Sequence[tuple[str, Json, Any]]) -> str | None:
    """Return the first departure of several values, given by place, value and spec."""
    for at, value, spec in parts:
        found = departure(value, spec, at)
        if found:
            return found
    return None


def _mapping(value: Mapping[Any, Json], spec: dict[Any, Any], at: str) -> str | None:
    dot = f"{at}." if at else ""
    place = at or "the record"
    for key in value:
        if not isinstance(key, str):
            return _sentence(key, str, f"a key of {place}")
    if str in spec:
        return _first([(f"{dot}{key:.60}", entry, spec[str]) for key, entry in value.items()])
    known = {key.removesuffix("?"): part for key, part in spec.items()}
    for key in spec:
        if not key.endswith("?") and key not in value:
            return f"{place}: {key!r} is missing"
    for key in value:
        if key not in known:
            return f"{place}: unknown entry {key!r:.60}"
    return _first([(f"{dot}{key}", entry, known[key]) for key, entry in value.items()])


def _fits(value: Json, spec: Any) -> bool:
    if spec is ANY:
        return _is_json(value)
    if isinstance(spec, Pattern):
        return isinstance(value, str) and re.fullmatch(spec.expression, value, re.ASCII) is not None
    if isinstance(spec, frozenset):
        return isinstance(value, str | int) and value in spec
    if isinstance(value, bool):
        return spec is bool
    if spec is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return value is None if spec is None else isinstance(spec, type) and isinstance(value, spec)


def _is_json(value: Json) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _sentence(value: Json, spec: Any, at: str) -> str:
    return f"{at or 'the record'}: expected {_name(spec)}, got {value!r:.60}"


def _name(spec: Any) -> str:
    if isinstance(spec, tuple):
        return " or ".join(map(_name, spec))
    if isinstance(spec, frozenset):
        return " or ".join(sorted(map(repr, spec)))
    if isinstance(spec, Pattern):
        return spec.name
    if isinstance(spec, list | dict):
        return "a list" if isinstance(spec, list) else "a mapping"
    return {
        None: "null",
        float: "a finite number",
        int: "a whole number",
        str: "text",
        bool: "true or false",
    }.get(spec, "a JSON value")
