"""Where a JSON value first departs from the types of `leakaudit.results.model`, in one sentence.

msgspec decides whether a value fits. Its message names a type and a place, but neither the value
that came nor, below a mapping of free names, the name. So once it has refused a value, the value
is walked beside its type to find the place.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache

from msgspec import inspect

WHOLE = "the record"  # what a place is called that is not inside anything


def departure(value: object, kind: type) -> str | None:
    """Find the first place where a value is not what its type says.

    Args:
        value: JSON values.
        kind: A `msgspec.Struct`.

    Returns:
        A sentence with the place, what is expected there, and what came; None if every value fits.
    """
    return _departure(value, _described(kind), "")


@cache
def _described(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def _departure(value: object, kind: inspect.Type, at: str) -> str | None:
    if isinstance(kind, inspect.UnionType):
        return _alternatives(value, kind.types, at)
    if isinstance(kind, inspect.VarTupleType) and isinstance(value, list | tuple):
        return _items(value, kind.item_type, at)
    if isinstance(kind, inspect.DictType) and isinstance(value, Mapping):
        return _named(value, kind.value_type, at)
    if isinstance(kind, inspect.StructType) and isinstance(value, Mapping):
        return _fields(value, kind, at)
    if _fits(value, kind):
        return None
    return _sentence(value, (kind,), at)


def _alternatives(value: object, kinds: Sequence[inspect.Type], at: str) -> str | None:
    """The sentence of the one alternative that has the same shape, else one that names them all."""
    inside = None
    for kind in kinds:
        found = _departure(value, kind, at)
        if found is None:
            return None
        if inside is None and _same_shape(value, kind):
            inside = found
    if inside is not None:
        return inside
    return _sentence(value, kinds, at)


def _same_shape(value: object, kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.VarTupleType):
        return isinstance(value, list | tuple)
    if isinstance(kind, inspect.DictType | inspect.StructType):
        return isinstance(value, Mapping)
    return False


def _items(value: Sequence[object], kind: inspect.Type, at: str) -> str | None:
    for place, item in enumerate(value):
        found = _departure(item, kind, f"{at}[{place}]")
        if found is not None:
            return found
    return None


def _named(value: Mapping[object, object], kind: inspect.Type, at: str) -> str | None:
    """A mapping from free names."""
    for key in value:
        if not isinstance(key, str):
            return _wrong_key(key, at)
    for key, item in value.items():
        found = _departure(item, kind, _inside(at, f"{key:.60}"))
        if found is not None:
            return found
    return None


def _fields(value: Mapping[object, object], kind: inspect.StructType, at: str) -> str | None:
    known = {field.encode_name: field for field in kind.fields}
    tag = kind.tag_field
    for key in value:
        if not isinstance(key, str):
            return _wrong_key(key, at)
    for name, field in known.items():
        if field.required and name not in value:
            return f"{at or WHOLE}: {name!r} is missing"
    if kind.forbid_unknown_fields:
        for key in value:
            if key not in known and key != tag:
                return f"{at or WHOLE}: unknown entry {key!r:.60}"
    for key, item in value.items():
        if isinstance(key, str) and key in known:
            found = _departure(item, known[key].type, _inside(at, key))
            if found is not None:
                return found
    return None


def _inside(at: str, name: str) -> str:
    if not at:
        return name
    return f"{at}.{name}"


def _wrong_key(key: object, at: str) -> str:
    return f"a key of {at or WHOLE}: expected text, got {key!r:.60}"


def _fits(value: object, kind: inspect.Type) -> bool:
    """Whether a value that holds no others fits its type."""
    if isinstance(kind, inspect.Metadata):
        return _fits(value, kind.type)
    if isinstance(kind, inspect.CustomType):
        return _is_json(value)
    if isinstance(kind, inspect.LiteralType | inspect.EnumType):
        return not isinstance(value, bool) and value in _allowed(kind)
    if isinstance(value, bool):
        return isinstance(kind, inspect.BoolType)
    if isinstance(kind, inspect.StrType):
        return isinstance(value, str) and (
            kind.pattern is None or re.search(kind.pattern, value) is not None
        )
    if isinstance(kind, inspect.IntType):
        return isinstance(value, int)
    if isinstance(kind, inspect.FloatType):
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(kind, inspect.NoneType) and value is None


def _allowed(kind: inspect.LiteralType | inspect.EnumType) -> list[object]:
    if isinstance(kind, inspect.LiteralType):
        return list(kind.values)
    return [member.value for member in kind.cls]


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _sentence(value: object, kinds: Sequence[inspect.Type], at: str) -> str:
    # A number is a union of whole numbers and floats; people read one word.
    has_float = any(isinstance(kind, inspect.FloatType) for kind in kinds)
    names = []
    for kind in kinds:
        if has_float and isinstance(kind, inspect.IntType):
            continue
        names.append(_name(kind))
    return f"{at or WHOLE}: expected {' or '.join(names)}, got {value!r:.60}"


def _name(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        described = (kind.extra_json_schema or {}).get("description")
        return str(described or "a JSON value")
    if isinstance(kind, inspect.LiteralType | inspect.EnumType):
        return " or ".join(sorted(map(repr, _allowed(kind))))
    if isinstance(kind, inspect.VarTupleType):
        return "a list"
    if isinstance(kind, inspect.DictType | inspect.StructType):
        return "a mapping"
    if isinstance(kind, inspect.FloatType):
        return "a finite number"
    if isinstance(kind, inspect.IntType):
        return "a whole number"
    if isinstance(kind, inspect.StrType):
        return "text"
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.NoneType):
        return "null"
    return "a JSON value"
